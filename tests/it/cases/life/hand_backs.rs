//! Attempts that workers hand back: they do not count, and their jobs lose nothing.

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    error_code::ErrorCode,
    job::{
        Job, Outcome,
        lifecycle::{AttemptRecord, EndedAs, HandBack, Reason},
        retry::{Backoff, Jitter, Retry},
        type_config::{Delivery, TypeConfig},
    },
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    Error, TickInput, TickOutcome,
    memory::MemoryStore,
    request::{Report, ReportOutcome},
};

use crate::cases::harness::{Harness, every_store_and_table as every_store, failed, report, work};

fn released() -> ReportOutcome {
    ReportOutcome::HandedBack(HandBack::default())
}

fn snoozed(until: Timestamp) -> ReportOutcome {
    let message = Some("not ready".to_owned());
    ReportOutcome::HandedBack(HandBack { until: Some(until), message, ..HandBack::default() })
}

async fn tick(harness: &mut Harness, reports: Vec<Report>) -> TickOutcome {
    harness.tick(TickInput { reports, ..TickInput::default() }).await
}

/// Reports an outcome of the running attempt of `job`, and returns the job after it.
async fn reported(harness: &mut Harness, job: &Job, outcome: ReportOutcome) -> Job {
    tick(harness, vec![report(job, outcome)]).await.reports.remove(0).unwrap()
}

/// The only job that can be leased.
async fn leased(harness: &mut Harness) -> Job {
    let mut jobs = harness.lease(5).await;
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    jobs.remove(0)
}

fn waits_a_second() -> Retry {
    Retry::Exponential(Backoff {
        base_seconds: Seconds::new(1),
        max_seconds: Seconds::new(600),
        jitter: Jitter::None,
    })
}

#[tokio::test]
async fn a_job_that_is_handed_back_has_its_slot_and_place_again() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        harness.settle().await;
        let (first, second) = (harness.enqueue(work()).await, harness.enqueue(work()).await);
        harness.wait(3);
        let run = leased(&mut harness).await;
        assert_eq!((&run.id, run.life.attempt), (&first.id, 1));
        let back = reported(&mut harness, &run, released()).await;
        assert_eq!(back.life.run_at(), first.life.run_at(), "its place in the order");
        let again = leased(&mut harness).await;
        assert_eq!((&again.id, again.life.attempt), (&first.id, 2), "before the second job");
        let until = harness.now() + Duration::from_mins(1);
        reported(&mut harness, &again, snoozed(until)).await;
        let explained = harness.explain(&first.id).await;
        let by = explained.held_by.unwrap();
        assert_eq!((by.kind, explained.reason.as_str()), ("snoozed", "not ready"));
        assert_eq!(explained.earliest_at, Some(until));
        let other = leased(&mut harness).await;
        assert_eq!(other.id, second.id, "a snoozed job holds no slot");
        harness.succeed(&[other]).await;
        assert!(harness.lease(1).await.is_empty());
        harness.wait(60);
        let run = leased(&mut harness).await;
        assert_eq!((&run.id, run.life.attempt, run.life.counted_attempts()), (&first.id, 3, 1));
        harness.succeed(&[run]).await;
        let ended = harness.job(&first.id).await.life;
        let ends: Vec<_> = ended.history.iter().map(AttemptRecord::ended_as).collect();
        assert_eq!(ends, [EndedAs::Released, EndedAs::Snoozed, EndedAs::Succeeded]);
    }
}

#[tokio::test]
async fn hand_backs_without_progress_fail_after_a_number_in_a_row() {
    for mut harness in every_store() {
        let config = TypeConfig {
            max_releases: 2,
            max_attempts: Some(2),
            retry: waits_a_second(),
            ..TypeConfig::default()
        };
        harness.set_type("work", config).await;
        let job = harness.enqueue(work()).await;
        for round in 1..=2 {
            for _ in 0..2 {
                let run = leased(&mut harness).await;
                reported(&mut harness, &run, released()).await;
            }
            let run = leased(&mut harness).await;
            let there = reported(&mut harness, &run, released()).await;
            let error = there.life.error.clone().unwrap();
            assert_eq!(error.reason, Reason::NotDelivered);
            assert_eq!(error.message.unwrap(), "handed back without progress, as 2 before it");
            assert_eq!((there.life.attempt, there.life.counted_attempts()), (3 * round, round));
            if round == 1 {
                let wait = there.life.run_at().unwrap().since(harness.now());
                assert_eq!(wait, Duration::from_secs(1), "the wait after one attempt");
                harness.wait(1);
            }
        }
        assert_eq!(harness.job(&job.id).await.life.ended(), Some(Outcome::Failed));
    }
}

/// Leases whose workers are gone say nothing about the job: only a far higher bound ends them.
#[tokio::test]
async fn leases_that_no_worker_received_are_counted_apart() {
    let mut harness = Harness::on(Arc::new(MemoryStore::new()));
    let config = TypeConfig { max_releases: 1, retry: waits_a_second(), ..TypeConfig::default() };
    harness.set_type("work", config).await;
    harness.enqueue(work()).await;
    let not_received = |job: &Job| ReportOutcome::NotReceived {
        revision: job.life.revision,
        message: "gone".to_owned(),
    };
    for round in 0..3 {
        for number in 0..=1000 {
            // A hand-back by a worker begins the count again.
            if round == 0 && number == 1000 {
                let run = leased(&mut harness).await;
                let there = reported(&mut harness, &run, released()).await;
                assert_eq!(there.life.counted_attempts(), 0);
                break;
            }
            let run = leased(&mut harness).await;
            let there = reported(&mut harness, &run, not_received(&run)).await;
            let fails = number == 1000;
            assert_eq!(there.life.counted_attempts() + 1, round.max(1) + u16::from(fails));
        }
        harness.wait(10);
    }
    let error = leased(&mut harness).await.life.error.unwrap();
    assert_eq!(error.message.unwrap(), "its worker did not receive it, as 1000 before it: gone");
}

#[tokio::test]
async fn an_attempt_that_is_handed_back_does_not_count() {
    for mut harness in every_store() {
        let config =
            TypeConfig { max_attempts: Some(2), retry: waits_a_second(), ..TypeConfig::default() };
        harness.set_type("work", config).await;
        let job = harness.enqueue(work()).await;
        for outcome in [released(), failed(), released(), released()] {
            let run = leased(&mut harness).await;
            let there = reported(&mut harness, &run, outcome).await;
            assert_eq!(there.life.ended(), None);
            harness.wait(1);
        }
        let run = leased(&mut harness).await;
        assert_eq!((run.life.attempt, run.life.counted_attempts()), (5, 2));
        reported(&mut harness, &run, failed()).await;
        assert_eq!(harness.job(&job.id).await.life.ended(), Some(Outcome::Failed));
    }
}

#[tokio::test]
async fn an_at_most_once_job_that_has_not_begun_starts_again() {
    for mut harness in every_store() {
        let once = |delivery| TypeConfig { delivery, max_releases: 1, ..TypeConfig::default() };
        harness.set_type("work", once(Delivery::AtMostOnce)).await;
        let job = harness.enqueue(work()).await;
        let run = leased(&mut harness).await;
        reported(&mut harness, &run, released()).await;
        let run = leased(&mut harness).await;
        assert_eq!(run.life.attempt, 2);
        let there = reported(&mut harness, &run, released()).await;
        assert_eq!(there.life.ended(), Some(Outcome::Failed), "the limit of hand-backs ends it");
        assert_eq!(there.life.error.unwrap().reason, Reason::NotDelivered);
        assert_eq!(harness.job(&job.id).await.life.attempt, 2);

        // A hand-back of another type does not say that the work has not begun.
        harness.set_type("work", once(Delivery::AtLeastOnce)).await;
        let job = harness.enqueue(work()).await;
        let run = leased(&mut harness).await;
        reported(&mut harness, &run, released()).await;
        harness.set_type("work", once(Delivery::AtMostOnce)).await;
        assert!(harness.lease(1).await.is_empty(), "it may have begun");
        let there = harness.job(&job.id).await;
        assert_eq!(there.life.error.unwrap().reason, Reason::OutcomeUnknown);
    }
}

#[tokio::test]
async fn a_hand_back_is_repeated_without_effect() {
    for mut harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        harness.enqueue(work()).await;
        let run = leased(&mut harness).await;
        let back = reported(&mut harness, &run, released()).await;
        assert_eq!(reported(&mut harness, &run, released()).await, back);
        let next = leased(&mut harness).await;
        assert_eq!(reported(&mut harness, &run, released()).await, next, "while another runs");
        for other in [snoozed(harness.now()), failed(), ReportOutcome::Succeeded { result: None }] {
            let answer = tick(&mut harness, vec![report(&run, other)]).await.reports.remove(0);
            let stale =
                matches!(answer, Err(Error::Conflict { code: ErrorCode::StaleAttempt, .. }));
            assert!(stale, "{answer:?}");
        }
    }
}

#[tokio::test]
async fn a_hand_back_of_a_job_that_is_to_be_cancelled_ends_it() {
    for mut harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        let job = harness.enqueue(work()).await;
        let run = leased(&mut harness).await;
        harness.engine.cancel(&job.id, None, false).await.unwrap();
        let outcome = snoozed(harness.now());
        let there = reported(&mut harness, &run, outcome).await;
        assert_eq!(there.life.ended(), Some(Outcome::Cancelled));
    }
}
