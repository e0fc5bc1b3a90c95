//! Repeated, late and conflicting reports.

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    job::{Outcome, State, type_config::TypeConfig},
    port::job_store::SharedStore,
    time::Seconds,
};
use tidegate_engine::{
    Dispatch, Error, TickInput,
    memory::MemoryStore,
    request::{Heartbeat, ReportOutcome},
    testkit::faults::FaultyStore,
};

use crate::cases::harness::{Harness, demand, every_store, failed, report, work};

#[tokio::test]
async fn a_repeated_report_is_harmless_and_a_late_one_refused() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        harness.enqueue(work()).await;
        let first = harness.lease(1).await.remove(0);
        let again = harness.succeed(std::slice::from_ref(&first)).await;
        assert_eq!(again[0].life.ended(), Some(Outcome::Succeeded));
        assert_eq!(harness.succeed(std::slice::from_ref(&first)).await[0].life, again[0].life);
        let late = report(&first, failed());
        let outcome = harness.tick(TickInput { reports: vec![late], ..TickInput::default() }).await;
        assert!(outcome.reports[0].is_err());
    }
}

#[tokio::test]
async fn a_report_that_comes_again_is_answered_and_counts_for_nothing() {
    for limited in [true, false] {
        for mut harness in every_store() {
            if limited {
                harness.with_limit(1).await;
            } else {
                harness.set_type("work", TypeConfig::default()).await;
            }
            harness.enqueue(work()).await;
            let run = harness.lease(1).await.remove(0);
            let done = || report(&run, ReportOutcome::Succeeded { result: None });
            // Twice at once, and then once more.
            let outcome = harness
                .tick(TickInput { reports: vec![done(), done()], ..TickInput::default() })
                .await;
            assert!(outcome.reports.iter().all(Result::is_ok), "{:?}", outcome.reports);
            assert_eq!(outcome.settled().map(|job| &job.id).collect::<Vec<_>>(), [&run.id]);
            let outcome =
                harness.tick(TickInput { reports: vec![done()], ..TickInput::default() }).await;
            assert!(outcome.reports[0].is_ok());
            assert_eq!((outcome.settled().count(), outcome.repeated.contains(&0)), (0, true));
        }
    }
}

#[tokio::test]
async fn a_worker_slower_than_its_lease_has_its_report_refused() {
    for mut harness in every_store() {
        harness.with_limit(1).await;
        let job = harness.enqueue(work()).await;
        let slow = harness.lease(1).await.remove(0);
        harness.wait(31);
        harness.lease(1).await;
        assert!(matches!(harness.job(&job.id).await.life.state, State::Scheduled { .. }));
        harness.wait(10);
        let second = harness.lease(1).await.remove(0);
        assert_eq!(second.life.attempt, 2);
        let outcome = harness
            .tick(TickInput {
                reports: vec![report(&slow, ReportOutcome::Succeeded { result: None })],
                ..TickInput::default()
            })
            .await;
        assert!(outcome.reports[0].is_err());
        assert_eq!(harness.succeed(&[second]).await[0].life.ended(), Some(Outcome::Succeeded));
    }
}

/// A harness in which another process has changed one of two running jobs.
async fn two_run_and_one_has_changed(harness: &mut Harness) -> Vec<tidegate_core::job::Job> {
    harness.enqueue_many([work(), work()]).await;
    let run = harness.lease(2).await;
    let other = Harness::on(Arc::clone(&harness.store));
    let token = run[0].life.running().map(|run| run.token);
    let (id, attempt) = (run[0].id.clone(), run[0].life.attempt);
    let beat = Heartbeat {
        id,
        job_type: None,
        attempt,
        token,
        lease_seconds: None,
        progress: None,
        checkpoint: None,
    };
    other.engine.heartbeat(beat).await.unwrap();
    run
}

#[tokio::test]
async fn a_report_next_to_a_conflicting_one_gets_its_own_outcome() {
    for mut harness in every_store() {
        harness
            .set_type(
                "work",
                TypeConfig { retention_seconds: Seconds::new(0), ..TypeConfig::default() },
            )
            .await;
        let run = two_run_and_one_has_changed(&mut harness).await;
        for answered in harness.succeed(&run).await {
            assert_eq!(
                answered.life.ended(),
                Some(Outcome::Succeeded),
                "removed with its end, which is no reason to say it is unknown"
            );
        }
    }
}

#[tokio::test]
async fn claimed_jobs_are_delivered_though_a_report_was_not_settled() {
    let store =
        Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), 1).with_flight(Duration::ZERO));
    let mut harness = Harness::on(Arc::clone(&store) as SharedStore);
    harness.set_type("work", TypeConfig::default()).await;
    let run = two_run_and_one_has_changed(&mut harness).await;
    let waiting = harness.enqueue(work()).await;
    // The process lives until the first commit: one refused report, and a claim.
    store.crash_after(3);
    let reports = vec![report(&run[0], ReportOutcome::Succeeded { result: None })];
    let outcome = harness
        .tick(TickInput {
            reports,
            demands: vec![demand(&["work"], 1, Dispatch::Claim)],
            ..TickInput::default()
        })
        .await;
    assert_eq!(outcome.claimed[0].job.id, waiting.id);
    assert!(
        matches!(outcome.reports[0], Err(Error::Unavailable { .. })),
        "{:?}",
        outcome.reports[0]
    );
}
