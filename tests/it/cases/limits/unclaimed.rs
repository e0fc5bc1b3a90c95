//! The first limit of a queue with unclaimed dispatches.

use tidegate_core::{
    job::type_config::{Start, TypeConfig},
    queue::QueueConfig,
    target::{Push, TargetConfig},
};
use tidegate_engine::{TickInput, request::ReportOutcome};

use crate::cases::harness::{Harness, every_store, report, work};

/// A push type whose jobs are dispatched without a claim.
fn plain() -> TypeConfig {
    let target = TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:1/")));
    TypeConfig { target: Some(target), start: Start::Plain, ..TypeConfig::default() }
}

#[tokio::test]
async fn the_first_limit_counts_unclaimed_dispatches() {
    for mut harness in every_store() {
        harness.set_type("work", plain()).await;
        harness.enqueue_many((0..6).map(|_| work())).await;
        let mut running = harness.lease(3).await;
        assert!(
            harness.job(&running[0].id).await.life.run_at().is_some(),
            "its record does not say that it runs"
        );
        harness.set_queue(QueueConfig { concurrency: Some(2), ..QueueConfig::default() }).await;
        // One job ends in the first tick under the limit.
        harness.succeed(&running.split_off(2)).await;
        assert!(harness.lease(5).await.is_empty(), "two are under way");
        assert_eq!(harness.granted().await, 2);
        assert!(
            harness.job(&running[0].id).await.life.running().is_some(),
            "now it is known to run"
        );
        let done = harness.succeed(&running).await;
        assert!(done.iter().all(|job| job.life.ended().is_some() && job.life.attempt == 1));
        assert_eq!(harness.lease(5).await.len(), 2);
        assert_eq!(harness.granted().await, 2);
    }
}

#[tokio::test]
async fn another_process_counts_its_own_in_its_next_tick() {
    for mut harness in every_store() {
        harness.set_type("work", plain()).await;
        harness.enqueue_many((0..6).map(|_| work())).await;
        let mut other = Harness::on(std::sync::Arc::clone(&harness.store));
        let running = other.lease(2).await;
        assert_eq!(running.len(), 2);
        harness.set_queue(QueueConfig { concurrency: Some(3), ..QueueConfig::default() }).await;
        harness.tick(TickInput::default()).await;
        other.tick(TickInput::default()).await;
        assert_eq!(harness.granted().await, 2);
        assert_eq!(harness.lease(5).await.len(), 1);
        assert!(other.succeed(&running).await.iter().all(|job| job.life.ended().is_some()));
    }
}

#[tokio::test]
async fn an_unclaimed_job_changed_before_a_limit_stops_no_queue() {
    for mut harness in every_store() {
        harness.set_type("work", plain()).await;
        harness.enqueue(work()).await;
        let mine = harness.lease(1).await;
        // Another process had the job too and completed it.
        let mut other = Harness::on(std::sync::Arc::clone(&harness.store));
        let theirs = other.lease(1).await;
        other.succeed(&theirs).await;
        harness.set_queue(QueueConfig { concurrency: Some(1), ..QueueConfig::default() }).await;
        harness.enqueue(work()).await;
        assert_eq!(harness.lease(1).await.len(), 1);
        let reports =
            mine.iter().map(|job| report(job, ReportOutcome::Succeeded { result: None })).collect();
        assert!(
            harness.tick(TickInput { reports, ..TickInput::default() }).await.reports[0].is_err(),
            "its attempt was the other's"
        );
    }
}

#[tokio::test]
async fn an_unclaimed_type_in_a_queue_with_limits_is_claimed() {
    for mut harness in every_store() {
        harness.set_type("work", plain()).await;
        harness.set_queue(QueueConfig { concurrency: Some(1), ..QueueConfig::default() }).await;
        harness.enqueue_many([work(), work()]).await;
        let running = harness.lease(5).await;
        assert_eq!(running.len(), 1);
        assert!(harness.job(&running[0].id).await.life.running().is_some());
        assert_eq!(harness.granted().await, 1);
    }
}
