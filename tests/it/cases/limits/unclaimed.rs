//! The first limit of a queue with unclaimed dispatches.

use std::sync::Arc;

use tidegate_core::{
    job::{
        JobId,
        type_config::{Start, TypeConfig},
    },
    port::job_store::SharedStore,
    queue::QueueConfig,
    target::{Push, TargetConfig},
};
use tidegate_engine::{
    Dispatch, TickCache, TickInput, memory::MemoryStore, request::ReportOutcome,
    testkit::faults::FaultyStore,
};

use crate::cases::harness::{Harness, demand, every_store, queue, report, work};

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
        let mut other = Harness::on(Arc::clone(&harness.store));
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

/// The first limit's tick stops after each of its writes in turn, and its process lives on. Another
/// process has the next tick.
#[tokio::test]
async fn a_claim_that_was_not_written_is_repeated_and_not_sent() {
    let claimed = TypeConfig { start: Start::Claim, ..plain() };
    // Three claims can be cut, and the mark of what was sent. Claimed jobs run already.
    for (config, cuts) in [(plain(), 4), (claimed, 1)] {
        assert_eq!(cut_after_each_write(&config).await, cuts, "{:?}", config.start);
    }
}

/// Returns how many of the cuts came after the ledger was written.
async fn cut_after_each_write(config: &TypeConfig) -> u32 {
    let mut cut_after = 0;
    for writes in 0.. {
        let memory: SharedStore = Arc::new(MemoryStore::new());
        let store = Arc::new(FaultyStore::new(memory, 1));
        let mut harness = Harness::on(Arc::clone(&store) as SharedStore);
        harness.set_type("work", config.clone()).await;
        harness.enqueue_many((0..3).map(|_| work())).await;
        let runs = harness.lease(3).await;
        harness.set_queue(QueueConfig { concurrency: Some(9), ..QueueConfig::default() }).await;
        harness.tick(TickInput::default()).await;
        harness.wait(6);
        harness.enqueue(work()).await;
        let input = || TickInput {
            demands: vec![demand(&["work"], 9, Dispatch::Queue)],
            ..TickInput::default()
        };
        store.crash_after(writes);
        let cut = harness.engine.tick(&queue(), &mut harness.cache, input()).await;
        store.revive();
        if harness.granted().await > 0 {
            cut_after += 1;
            let mut cache = TickCache::default();
            harness.another().tick(&queue(), &mut cache, input()).await.unwrap();
        }
        harness.tick(TickInput::default()).await;
        let sent: Vec<JobId> = harness.work().into_iter().map(|work| work.job).collect();
        assert!(runs.iter().all(|run| !sent.contains(&run.id)), "after {writes} writes: {sent:?}");
        for job in &runs {
            let job = harness.job(&job.id).await;
            assert!(
                job.life.running().is_some(),
                "after {writes} writes {} is not claimed",
                job.id
            );
        }
        let ended = harness.succeed(&runs).await;
        assert!(ended.iter().all(|job| job.life.ended().is_some() && job.life.attempt == 1));
        if cut.is_ok() {
            break;
        }
    }
    cut_after
}

#[tokio::test]
async fn an_unclaimed_job_changed_before_a_limit_stops_no_queue() {
    for mut harness in every_store() {
        harness.set_type("work", plain()).await;
        harness.enqueue(work()).await;
        let mine = harness.lease(1).await;
        // Another process had the job too and completed it.
        let mut other = Harness::on(Arc::clone(&harness.store));
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
