//! A type that moves or is removed during enqueues: every accepted job waits in the queue of its
//! type.

use std::{pin::pin, sync::Arc, time::Duration};
use tidegate_core::error_code::ErrorCode;

use futures_util::{FutureExt, poll};
use tidegate_core::{
    job::type_config::TypeConfig, port::job_store::SharedStore, queue::QueueConfig,
};
use tidegate_engine::{
    Error,
    memory::MemoryStore,
    testkit::{builders::name, faults::FaultyStore},
};

use super::harness::{Harness, every_store, of_type, work};

/// A harness whose store lets other processes run before each transaction or, if it is slow, before
/// each write.
async fn harness(flight: u64) -> Harness {
    let store =
        FaultyStore::new(Arc::new(MemoryStore::new()), 1).with_flight(Duration::from_secs(flight));
    let harness = Harness::on(Arc::new(store) as SharedStore);
    harness.engine.put_queue(&name("other"), QueueConfig::default(), None).await.unwrap();
    harness.set_type("work", TypeConfig::default()).await;
    harness
}

/// Runs both in turn until they have ended. Time passes only while no write is in flight, as the
/// store promises.
async fn both<A, B>(
    harness: &Harness,
    enqueue: impl Future<Output = A>,
    change: impl Future<Output = B>,
    head_start: (usize, usize),
) -> (A, B) {
    let (mut enqueue, mut change) = (pin!(enqueue.fuse()), pin!(change.fuse()));
    let (mut added, mut changed) = (None, None);
    for turn in 0..1000 {
        if added.is_none()
            && (turn >= head_start.1 || turn < head_start.0)
            && let std::task::Poll::Ready(answer) = poll!(&mut enqueue)
        {
            added = Some(answer);
        }
        if changed.is_none()
            && turn >= head_start.0
            && let std::task::Poll::Ready(answer) = poll!(&mut change)
        {
            changed = Some(answer);
        }
        if added.is_some() {
            harness.wait(1);
        }
        if added.is_some() && changed.is_some() {
            break;
        }
    }
    (added.expect("the enqueue ends"), changed.expect("the change ends"))
}

#[tokio::test]
async fn a_job_enqueued_while_its_type_moves_lands_in_the_new_queue() {
    let (mut moved, mut refused) = (0, 0);
    for flight in [0, 5] {
        for head_start in (0..6).flat_map(|n| [(n, 0), (0, n)]) {
            let harness = harness(flight).await;
            let to = TypeConfig { queue: name("other"), ..TypeConfig::default() };
            let of = name("work");
            let change = harness.engine.put_type(&of, to, None);
            let (jobs, change) = both(
                &harness,
                Box::pin(harness.engine.enqueue(vec![work(), work()])),
                change,
                head_start,
            )
            .await;
            match change {
                Ok(_) => moved += 1,
                Err(Error::Conflict { code: ErrorCode::TypeHasLiveJobs, .. }) => refused += 1,
                Err(error) => panic!("{head_start:?}: {error}"),
            }
            let queue = harness.engine.job_type(&name("work")).await.unwrap().config.queue.clone();
            for job in jobs {
                let job = job.unwrap().job;
                assert_eq!(
                    harness.job(&job.id).await.spec.queue,
                    queue,
                    "flight {flight}, {head_start:?}"
                );
                assert_eq!(job.spec.queue, queue, "and so it was answered");
            }
        }
    }
    assert!(moved > 0 && refused > 0, "both happened: {moved} moves, {refused} refusals");
}

#[tokio::test]
async fn removing_a_type_during_an_enqueue_leaves_no_job_behind() {
    let (mut removed, mut refused) = (0, 0);
    for flight in [0, 5] {
        for head_start in (0..6).flat_map(|n| [(n, 0), (0, n)]) {
            let harness = harness(flight).await;
            let of = name("work");
            let change = harness.engine.delete_type(&of, None);
            let (jobs, change) =
                both(&harness, harness.engine.enqueue(vec![work()]), change, head_start).await;
            let live = harness
                .store
                .depth(None)
                .await
                .unwrap()
                .counts
                .iter()
                .map(|depth| depth.jobs)
                .sum::<u64>();
            match (&jobs[0], change) {
                (Err(Error::NotFound { code: ErrorCode::JobTypeNotFound, .. }), Ok(())) => {
                    removed += 1;
                    assert_eq!(live, 0, "flight {flight}, {head_start:?}");
                }
                (Ok(_), Err(Error::Conflict { code: ErrorCode::TypeHasLiveJobs, .. })) => {
                    refused += 1;
                }
                other => panic!("flight {flight}, {head_start:?}: {other:?}"),
            }
        }
    }
    assert!(removed > 0 && refused > 0, "both happened: {removed} removals, {refused} refusals");
}

#[tokio::test]
async fn a_type_that_joins_a_queue_while_it_is_removed_keeps_it() {
    for head_start in (0..4).flat_map(|n| [(n, 0), (0, n)]) {
        let harness = harness(0).await;
        let to = TypeConfig { queue: name("other"), ..TypeConfig::default() };
        let (name, other) = (name("joins"), name("other"));
        let join = harness.engine.put_type(&name, to, None);
        let (joined, removed) =
            both(&harness, join, harness.engine.delete_queue(&other, None), head_start).await;
        match (joined, removed) {
            (Ok(_), Err(Error::Conflict { code: ErrorCode::QueueInUse, .. }))
            | (Err(Error::NotFound { code: ErrorCode::QueueNotFound, .. }), Ok(())) => {}
            both => panic!("{head_start:?}: {both:?}"),
        }
    }
}

#[tokio::test]
async fn an_enqueue_that_finds_a_type_half_moved_keeps_it_where_it_is() {
    for harness in every_store() {
        harness.set_type("work", TypeConfig::default()).await;
        harness.engine.put_queue(&name("other"), QueueConfig::default(), None).await.unwrap();
        let item = harness.engine.job_type(&name("work")).await.unwrap();
        let marked = tidegate_core::job::type_config::TypeItem {
            leaving: true,
            version: item.version + 1,
            ..(*item).clone()
        };
        let write = tidegate_core::port::Write::SetItem {
            kind: tidegate_core::port::job_store::ItemKind::Type,
            name: "work".into(),
            was: item.version,
            version: marked.version,
            bytes: Some(serde_json::to_vec(&marked).unwrap()),
        };
        harness.store.commit(vec![vec![write]]).await.unwrap();
        let job = harness.enqueue(of_type("work")).await;
        assert_eq!(job.spec.queue, item.config.queue);
        assert!(
            !harness.engine.job_type(&name("work")).await.unwrap().leaving,
            "the next enqueue finds it as it is"
        );
        harness.engine.cancel(&job.id, None, false).await.unwrap();
        let to = TypeConfig { queue: name("other"), ..TypeConfig::default() };
        harness.engine.put_type(&name("work"), to, None).await.unwrap();
        assert_eq!(harness.enqueue(work()).await.spec.queue, name("other"));
    }
}
