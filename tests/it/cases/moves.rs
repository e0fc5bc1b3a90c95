//! A type that moves or is removed while jobs of it are being added: every job that was accepted waits where its type belongs.

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

use super::place::{Place, everywhere, of_type, work};

/// A place whose store gives others a turn before each transaction, or, if it takes its time, before each write.
async fn place(flight: u64) -> Place {
    let store =
        FaultyStore::new(Arc::new(MemoryStore::new()), 1).with_flight(Duration::from_secs(flight));
    let place = Place::on(Arc::new(store) as SharedStore);
    place.engine.put_queue(&name("other"), QueueConfig::default(), None).await.unwrap();
    place.set_type("work", TypeConfig::default()).await;
    place
}

/// Lets both go on by turns until they have ended. Time passes only while no job is on its way, as the store promises.
async fn both<A, B>(
    place: &Place,
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
            place.wait(1);
        }
        if added.is_some() && changed.is_some() {
            break;
        }
    }
    (added.expect("the enqueue ends"), changed.expect("the change ends"))
}

#[tokio::test]
async fn a_job_that_is_accepted_while_its_type_moves_waits_where_the_type_belongs() {
    let (mut moved, mut refused) = (0, 0);
    for flight in [0, 5] {
        for head_start in (0..6).flat_map(|n| [(n, 0), (0, n)]) {
            let place = place(flight).await;
            let to = TypeConfig { queue: name("other"), ..TypeConfig::default() };
            let of = name("work");
            let change = place.engine.put_type(&of, to, None);
            let (jobs, change) = both(
                &place,
                Box::pin(place.engine.enqueue(vec![work(), work()])),
                change,
                head_start,
            )
            .await;
            match change {
                Ok(_) => moved += 1,
                Err(Error::Conflict { code: ErrorCode::TypeHasLiveJobs, .. }) => refused += 1,
                Err(error) => panic!("{head_start:?}: {error}"),
            }
            let queue = place.engine.job_type(&name("work")).await.unwrap().config.queue.clone();
            for job in jobs {
                let job = job.unwrap().job;
                assert_eq!(
                    place.job(&job.id).await.spec.queue,
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
async fn a_type_that_is_removed_while_a_job_is_added_leaves_no_job_behind() {
    let (mut removed, mut refused) = (0, 0);
    for flight in [0, 5] {
        for head_start in (0..6).flat_map(|n| [(n, 0), (0, n)]) {
            let place = place(flight).await;
            let of = name("work");
            let change = place.engine.delete_type(&of, None);
            let (jobs, change) =
                both(&place, place.engine.enqueue(vec![work()]), change, head_start).await;
            let live =
                place.store.depth().await.unwrap().iter().map(|depth| depth.jobs).sum::<u64>();
            match (&jobs[0], change) {
                (Err(Error::NotFound { code: ErrorCode::JobTypeNotFound, .. }), Ok(())) => {
                    removed += 1;
                    assert_eq!(live, 0, "flight {flight}, {head_start:?}");
                }
                (Ok(_), Err(Error::Conflict { code: ErrorCode::TypeHasLiveJobs, .. })) => {
                    refused += 1
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
        let place = place(0).await;
        let to = TypeConfig { queue: name("other"), ..TypeConfig::default() };
        let (name, other) = (name("joins"), name("other"));
        let join = place.engine.put_type(&name, to, None);
        let (joined, removed) =
            both(&place, join, place.engine.delete_queue(&other, None), head_start).await;
        match (joined, removed) {
            (Ok(_), Err(Error::Conflict { code: ErrorCode::QueueInUse, .. }))
            | (Err(Error::NotFound { code: ErrorCode::QueueNotFound, .. }), Ok(())) => {}
            both => panic!("{head_start:?}: {both:?}"),
        }
    }
}

#[tokio::test]
async fn an_enqueue_that_finds_a_type_half_moved_keeps_it_where_it_is() {
    for place in everywhere() {
        place.set_type("work", TypeConfig::default()).await;
        place.engine.put_queue(&name("other"), QueueConfig::default(), None).await.unwrap();
        let item = place.engine.job_type(&name("work")).await.unwrap();
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
        place.store.commit(vec![vec![write]]).await.unwrap();
        let job = place.enqueue(of_type("work")).await;
        assert_eq!(job.spec.queue, item.config.queue);
        assert!(
            !place.engine.job_type(&name("work")).await.unwrap().leaving,
            "the next enqueue finds it as it is"
        );
        place.engine.cancel(&job.id, None, false).await.unwrap();
        let to = TypeConfig { queue: name("other"), ..TypeConfig::default() };
        place.engine.put_type(&name("work"), to, None).await.unwrap();
        assert_eq!(place.enqueue(work()).await.spec.queue, name("other"));
    }
}
