//! Unclaimed dispatch: of a dispatch and a change of the same job, exactly one wins.

use std::{pin::pin, sync::Arc, task::Poll, time::Duration};
use tidegate_core::error_code::ErrorCode;

use futures_util::poll;
use tidegate_core::{
    job::{
        Outcome,
        type_config::{Start, TypeConfig},
    },
    port::job_store::SharedStore,
    queue::QueueConfig,
    target::{Push, TargetConfig},
    time::Seconds,
};
use tidegate_engine::{
    Dispatch, Error, TickCache, TickInput,
    memory::MemoryStore,
    request::{Heartbeat, JobPatch, NewJob, ReportOutcome},
    testkit::{builders::name, faults::FaultyStore},
};

use super::harness::{Harness, Yielding, demand, every_store, failed, queue, report, work};

/// A push type whose jobs are dispatched without a claim.
fn plain() -> TypeConfig {
    let target = TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:1/")));
    TypeConfig { target: Some(target), start: Start::Plain, ..TypeConfig::default() }
}

/// A harness that lets other processes run before each write, with an unclaimed job and a claimed
/// one, whose claim is a write.
async fn with_turns() -> (Harness, tidegate_core::job::Job) {
    let store = FaultyStore::new(Arc::new(MemoryStore::new()) as SharedStore, 1)
        .with_flight(Duration::ZERO);
    let harness = Harness::on(Arc::new(store));
    harness.set_type("work", plain()).await;
    harness.set_type("claimed", TypeConfig::default()).await;
    let job = harness.enqueue(work()).await;
    harness.enqueue(NewJob::new(name("claimed"), work().data)).await;
    (harness, job)
}

fn both() -> TickInput {
    TickInput {
        demands: vec![demand(&["work", "claimed"], 2, Dispatch::Claim)],
        ..TickInput::default()
    }
}

#[tokio::test]
async fn a_job_changed_before_its_dispatch_is_not_dispatched() {
    for change in ["cancel", "patch", "pause"] {
        let (harness, job) = with_turns().await;
        let (of, mut cache) = (queue(), TickCache::default());
        let outcome = {
            let mut tick = pin!(harness.engine.tick(&of, &mut cache, both()));
            assert!(
                poll!(&mut tick).is_pending(),
                "it has looked, and is to write the other's claim"
            );
            match change {
                "cancel" => drop(harness.engine.cancel(&job.id, None, false).await.unwrap()),
                "patch" => {
                    let patch = JobPatch {
                        run_at: Some(harness.now() + Duration::from_mins(1)),
                        ..JobPatch::default()
                    };
                    harness.engine.patch(&job.id, None, patch, None).await.unwrap();
                }
                _ => drop(harness.engine.pause_queue(&queue(), true).await.unwrap()),
            }
            tick.await.unwrap()
        };
        assert!(
            outcome.claimed.iter().all(|claimed| claimed.job.id != job.id),
            "{change} was answered"
        );
        assert!(outcome.again, "who was left out is looked for again");
    }
}

#[tokio::test]
async fn a_job_is_not_dispatched_during_its_cancel() {
    let (harness, job) = with_turns().await;
    let (of, mut cache) = (queue(), TickCache::default());
    let mut cancel = pin!(harness.engine.cancel(&job.id, None, false));
    assert!(poll!(&mut cancel).is_pending(), "it has looked, and is to write");
    let outcome = harness.engine.tick(&of, &mut cache, both()).await.unwrap();
    assert!(outcome.again && outcome.claimed.iter().all(|claimed| claimed.job.id != job.id));
    let Poll::Ready(cancelled) = poll!(&mut cancel) else { panic!("its turn has come") };
    assert!(cancelled.unwrap().1.ended);
}

#[tokio::test]
async fn a_dispatched_job_changed_elsewhere_can_be_dispatched_again() {
    for mut harness in every_store() {
        harness.set_type("work", plain()).await;
        harness.enqueue(work()).await;
        let run = harness.lease(1).await.remove(0);
        let other = Harness::on(Arc::clone(&harness.store));
        other
            .engine
            .patch(&run.id, None, JobPatch { priority: Some(Some(1)), ..JobPatch::default() }, None)
            .await
            .unwrap();
        let beat = Heartbeat {
            id: run.id.clone(),
            job_type: None,
            attempt: 1,
            token: run.life.running().map(|run| run.token),
            lease_seconds: Some(Seconds::from_millis(60_000)),
            progress: None,
            checkpoint: None,
        };
        let refused = harness.engine.heartbeat(beat).await;
        assert!(
            matches!(refused, Err(Error::Conflict { code: ErrorCode::StaleAttempt, .. })),
            "{refused:?}"
        );
        assert_eq!(harness.lease(1).await.len(), 1, "no worker has it, so it can be leased");
    }
}

#[tokio::test]
async fn a_sweep_skips_unclaimed_dispatches() {
    for mut harness in every_store() {
        harness.set_type("work", plain()).await;
        harness.set_type("claimed", TypeConfig::default()).await;
        let soon = Some(harness.now() + Duration::from_secs(10));
        harness.enqueue_many((0..600).map(|_| NewJob { expires_at: soon, ..work() })).await;
        assert_eq!(harness.lease(600).await.len(), 600);
        let later = Some(harness.now() + Duration::from_secs(20));
        let other = harness
            .enqueue(NewJob { expires_at: later, ..NewJob::new(name("claimed"), work().data) })
            .await;
        harness.wait(30);
        let swept = harness.engine.sweep().await.unwrap();
        assert_eq!(harness.job(&other.id).await.life.ended(), Some(Outcome::Expired));
        assert_ne!(
            swept.next_at,
            Some(harness.now()),
            "there is nothing else to do about those that are on their way"
        );
    }
}

#[tokio::test]
async fn an_unclaimed_dispatch_is_not_revoked_before_its_claim() {
    let store = FaultyStore::new(Arc::new(MemoryStore::new()) as SharedStore, 1);
    let mut harness = Harness::on(Arc::new(store));
    harness.set_type("work", plain()).await;
    harness.set_type("claimed", TypeConfig::default()).await;
    harness.enqueue(work()).await;
    harness.enqueue(NewJob::new(name("claimed"), work().data)).await;
    let runs = harness.lease_of(&["work", "claimed"], 2).await;
    assert_eq!(runs.len(), 2);
    harness.set_queue(QueueConfig { concurrency: Some(2), ..QueueConfig::default() }).await;
    harness.lease(1).await;
    harness.wait(6);
    {
        let (of, mut cache) = (queue(), TickCache::default());
        let mut tick = pin!(harness.engine.tick(&of, &mut cache, TickInput::default()));
        while harness.granted().await < 2 {
            assert!(poll!(&mut tick).is_pending(), "its grants are written before its claims");
        }
        let mut other = TickCache::default();
        harness.another().tick(&queue(), &mut other, TickInput::default()).await.unwrap();
        tick.await.unwrap();
    }
    for ended in harness.succeed(&runs).await {
        assert_eq!(ended.life.ended(), Some(Outcome::Succeeded), "{}", ended.id);
    }
    assert_eq!(harness.granted().await, 0);
}

#[tokio::test]
async fn a_result_written_before_a_refused_ledger_ends_its_dispatch() {
    let store = FaultyStore::new(Arc::new(MemoryStore::new()) as SharedStore, 1);
    let mut harness = Harness::on(Arc::new(store));
    harness.set_type("work", plain()).await;
    harness.enqueue(work()).await;
    let run = harness.lease(1).await.remove(0);
    harness.set_queue(QueueConfig { concurrency: Some(2), ..QueueConfig::default() }).await;
    let (other, mut others_cache) = (harness.another(), TickCache::default());
    other.tick(&queue(), &mut others_cache, TickInput::default()).await.unwrap();
    harness.wait(6);
    let reports = vec![report(&run, ReportOutcome::Succeeded { result: None })];
    let input = TickInput { reports, ..TickInput::default() };
    let (of, mut cache) = (queue(), TickCache::default());
    let mut tick = pin!(harness.engine.tick(&of, &mut cache, input));
    let stored =
        async || harness.store.get(std::slice::from_ref(&run.id)).await.unwrap().remove(0).unwrap();
    while stored().await.is_none_or(|job| job.life.ended().is_none()) {
        assert!(poll!(&mut tick).is_pending(), "the job is written before the ledger");
    }
    other.tick(&queue(), &mut others_cache, TickInput::default()).await.unwrap();
    let outcome = tick.await.unwrap();
    assert!(outcome.reports.iter().all(Result::is_ok), "{:?}", outcome.reports);
    let changed = harness.engine.patch(&run.id, None, JobPatch::default(), None).await;
    assert_ne!(changed.unwrap_err().code(), ErrorCode::AlreadyDispatched, "the job has ended");
}

#[tokio::test]
async fn a_result_that_was_overtaken_starts_no_ended_job_again() {
    let mut harness = Harness::on(Arc::new(Yielding(Arc::new(MemoryStore::new()))));
    harness.set_type("work", plain()).await;
    harness.enqueue(work()).await;
    let run = harness.lease(1).await.remove(0);
    let slow = TickInput { reports: vec![report(&run, failed())], demands: Vec::new(), ..both() };
    let (of, mut cache) = (queue(), TickCache::default());
    let mut tick = pin!(harness.engine.tick(&of, &mut cache, slow));
    assert!(poll!(&mut tick).is_pending(), "it knows the job, and reads the configuration");
    let succeeded = vec![report(&run, ReportOutcome::Succeeded { result: None })];
    let settled = harness.engine.report(&queue(), succeeded).await.unwrap();
    assert!(settled.reports[0].is_ok());
    let outcome = tick.await.unwrap();
    let there = harness.job(&run.id).await;
    assert_eq!(there.life.ended(), Some(Outcome::Succeeded), "{:?}", outcome.reports);
}
