//! How a job ends without a result: expiry, deadline, cancel, removal after its retention.

use std::time::Duration;

use tidegate_core::{
    error_code::ErrorCode,
    job::{Outcome, lifecycle::Reason, type_config::TypeConfig},
    time::Seconds,
};
use tidegate_engine::{
    Error, TickInput,
    request::{NewJob, ReportOutcome},
};

use crate::cases::harness::{every_store, failed, report, work};

#[tokio::test]
async fn a_job_is_not_started_after_it_expires() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let expires_at = Some(harness.now() + Duration::from_secs(10));
        let blocker = harness.enqueue(work()).await;
        let swept = harness.enqueue(NewJob { expires_at, ..work() }).await;
        let seen = harness.enqueue(NewJob { expires_at, ..work() }).await;
        let running = harness.lease(1).await;
        assert_eq!(running[0].id, blocker.id);
        harness.wait(10);
        harness.engine.sweep().await.unwrap();
        assert_eq!(harness.job(&swept.id).await.life.ended(), Some(Outcome::Expired));
        harness.succeed(&running).await;
        assert!(harness.lease(1).await.is_empty());
        let there = harness.job(&seen.id).await;
        assert_eq!((there.life.ended(), there.life.attempt), (Some(Outcome::Expired), 0));
    }
}

#[tokio::test]
async fn a_tick_before_the_sweep_expires_the_job_itself() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let expires_at = Some(harness.now() + Duration::from_secs(10));
        let job = harness.enqueue(NewJob { expires_at, ..work() }).await;
        harness.wait(10);
        assert!(harness.lease(1).await.is_empty());
        assert_eq!(harness.job(&job.id).await.life.ended(), Some(Outcome::Expired));
    }
}

#[tokio::test]
async fn a_deadline_ends_waiting_and_running_jobs_and_frees_slots() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let deadline_seconds = Some(Seconds::new(20));
        let running = harness
            .enqueue(work().with_options(|options| options.deadline_seconds = deadline_seconds))
            .await;
        let waiting = harness
            .enqueue(work().with_options(|options| options.deadline_seconds = deadline_seconds))
            .await;
        let next = harness.enqueue(work()).await;
        let claimed = harness.lease(1).await;
        assert_eq!(claimed[0].id, running.id);
        harness.wait(20);
        let swept = harness.engine.sweep().await.unwrap();
        for job in [&running, &waiting] {
            let there = harness.job(&job.id).await;
            assert_eq!(there.life.ended(), Some(Outcome::Failed));
            assert_eq!(there.life.error.unwrap().reason, Reason::Deadline);
        }
        let released =
            swept.changed.iter().map(|(job, version)| (job.id.clone(), *version)).collect();
        harness.tick(TickInput { released, ..TickInput::default() }).await;
        assert_eq!(harness.lease(1).await[0].id, next.id);
        let late = harness
            .tick(TickInput {
                reports: vec![report(&claimed[0], ReportOutcome::Succeeded { result: None })],
                ..TickInput::default()
            })
            .await;
        assert!(late.reports[0].is_err(), "its result comes too late");
    }
}

#[tokio::test]
async fn ended_jobs_and_their_keys_are_pruned_after_retention() {
    for mut harness in every_store() {
        harness.with_limit(1000).await;
        harness
            .set_type(
                "work",
                TypeConfig { retention_seconds: Seconds::new(600), ..TypeConfig::default() },
            )
            .await;
        let jobs = harness
            .enqueue_many(
                (0..600).map(|n| NewJob { correlation_key: Some(n.to_string()), ..work() }),
            )
            .await;
        let running = harness.lease(1000).await;
        harness.succeed(&running).await;
        harness.wait(599);
        assert_eq!(harness.engine.sweep().await.unwrap().removed, 0);
        harness.wait(1);
        let first = harness.engine.sweep().await.unwrap();
        assert_eq!(
            (first.removed, first.next_at),
            (500, Some(harness.now())),
            "in small batches, and there is more"
        );
        assert_eq!(harness.engine.sweep().await.unwrap().removed, 100);
        assert!(harness.engine.job(&jobs[0].id, None).await.is_err());
        harness.enqueue(NewJob { correlation_key: Some("1".into()), ..work() }).await;
    }
}

#[tokio::test]
async fn a_job_with_zero_retention_vanishes_and_frees_its_slot() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        harness
            .set_type(
                "work",
                TypeConfig { retention_seconds: Seconds::new(0), ..TypeConfig::default() },
            )
            .await;
        let jobs = harness.enqueue_many([work(), work()]).await;
        let running = harness.lease(1).await;
        assert_eq!(harness.succeed(&running).await[0].life.ended(), Some(Outcome::Succeeded));
        assert!(harness.engine.job(&jobs[0].id, None).await.is_err());
        assert_eq!(harness.lease(1).await[0].id, jobs[1].id);
    }
}

#[tokio::test]
async fn a_cancelled_running_job_keeps_its_slot_until_its_result() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        harness.enqueue_many([work(), work()]).await;
        let running = harness.lease(1).await;
        let (_, cancelled) = harness.engine.cancel(&running[0].id, None, false).await.unwrap();
        assert!(!cancelled.ended);
        assert!(harness.lease(1).await.is_empty());
        let done = harness.succeed(&running).await;
        assert_eq!(done[0].life.ended(), Some(Outcome::Cancelled));
        assert_eq!(harness.lease(1).await.len(), 1);
        let again = harness.engine.cancel(&running[0].id, None, false).await;
        assert!(matches!(again, Err(Error::Conflict { .. })));
    }
}

#[tokio::test]
async fn a_report_after_a_forced_cancel_is_refused() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        harness.enqueue(work()).await;
        let running = harness.lease(1).await;
        harness.engine.cancel(&running[0].id, None, true).await.unwrap();
        for reported in [ReportOutcome::Succeeded { result: None }, failed()] {
            let outcome = harness
                .tick(TickInput {
                    reports: vec![report(&running[0], reported)],
                    ..TickInput::default()
                })
                .await;
            assert!(
                matches!(
                    &outcome.reports[0],
                    Err(Error::Conflict { code: ErrorCode::StaleAttempt, .. })
                ),
                "{:?}",
                outcome.reports[0]
            );
        }
    }
}

#[tokio::test]
async fn a_result_of_a_job_that_was_to_be_cancelled_may_be_repeated() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        for reported in [ReportOutcome::Succeeded { result: None }, failed()] {
            harness.enqueue(work()).await;
            let running = harness.lease(1).await;
            harness.engine.cancel(&running[0].id, None, false).await.unwrap();
            for _ in 0..2 {
                let outcome = harness
                    .tick(TickInput {
                        reports: vec![report(&running[0], reported.clone())],
                        ..TickInput::default()
                    })
                    .await;
                assert_eq!(
                    outcome.reports[0].as_ref().unwrap().life.ended(),
                    Some(Outcome::Cancelled)
                );
            }
        }
    }
}
