//! Jobs that are enqueued ahead of their occurrence, and changes of the schedule after that.

use std::{collections::BTreeSet, sync::Arc, task::Poll, time::Duration};

use tidegate_core::{
    job::Payload,
    port::job_store::SharedStore,
    schedule::{ScheduleConfig, occurrence_id},
    time::Seconds,
};
use tidegate_engine::{Error, memory::MemoryStore, testkit::faults::FaultyStore};

use super::{Change, at_seconds, beat, made, minute_of, second, tens, waiting};
use crate::cases::harness::{Harness, every_store_and_table};

#[tokio::test]
async fn ahead_of_time_jobs_are_made_that_start_at_it() {
    for harness in every_store_and_table() {
        let harness = harness.scheduled(tens()).await;
        let minute = Duration::from_mins(1);
        let occurred = harness.engine.materialize(minute).await.unwrap();
        assert_eq!((made(&occurred).len(), occurred.next_at), (6, Some(second(10))));
        let due: Vec<_> =
            harness.jobs().await.iter().rev().map(|job| job.life.run_at().unwrap()).collect();
        assert_eq!(
            due.iter().copied().collect::<BTreeSet<_>>(),
            (1..=6).map(|n| second(n * 10)).collect::<BTreeSet<_>>()
        );
        harness.clock.set(second(30));
        assert_eq!(
            harness.engine.materialize(Duration::ZERO).await.unwrap().made.len(),
            0,
            "without lookahead, no occurrence is left to create"
        );
        assert_eq!(harness.engine.materialize(minute).await.unwrap().made.len(), 3);
        assert_eq!(harness.ids().await, at_seconds((10..=90).step_by(10)));
    }
}

#[tokio::test]
async fn a_job_enqueued_ahead_is_withdrawn_after_a_schedule_change() {
    let minute = Duration::from_mins(1);
    let with = |data: &str, seconds: Vec<u64>| {
        seconds.into_iter().map(|at| (at, data.to_owned())).collect::<BTreeSet<_>>()
    };
    for harness in every_store_and_table() {
        let harness = harness.scheduled(tens()).await;
        harness.engine.materialize(minute).await.unwrap();
        assert_eq!(waiting(&harness).await, with("{\"n\":1}", vec![10, 20, 30, 40, 50, 60]));
        harness.clock.set(second(25));
        // Paused: due jobs stay. Resumed: the rest is enqueued again.
        for _ in 0..2 {
            harness.engine.pause_schedule(&beat(), true).await.unwrap();
            harness.engine.materialize(minute).await.unwrap();
            assert_eq!(harness.ids().await, at_seconds([10, 20]));
        }
        harness.engine.pause_schedule(&beat(), false).await.unwrap();
        harness.engine.materialize(minute).await.unwrap();
        assert_eq!(waiting(&harness).await, with("{\"n\":1}", vec![30, 40, 50, 60, 70, 80]));
        // Other data, and then another rule. Jobs that are due or unchanged stay.
        harness.clock.set(second(40));
        harness.engine.put_schedule(&beat(), tens(), Payload::json("2"), None).await.unwrap();
        harness.engine.materialize(minute).await.unwrap();
        assert_eq!(waiting(&harness).await, with("2", vec![50, 60, 70, 80, 90, 100]));
        let revised: Vec<_> = harness.jobs().await.iter().map(|job| job.spec.created_at).collect();
        harness.wait(1);
        harness.engine.put_schedule(&beat(), tens(), Payload::json("2"), None).await.unwrap();
        assert_eq!(
            harness.jobs().await.iter().map(|job| job.spec.created_at).collect::<Vec<_>>(),
            revised,
            "nothing has changed"
        );
        let every = |span| ScheduleConfig { every_seconds: Some(Seconds::new(span)), ..tens() };
        harness.engine.put_schedule(&beat(), every(20), Payload::json("2"), None).await.unwrap();
        harness.engine.materialize(minute).await.unwrap();
        assert_eq!(waiting(&harness).await, with("2", vec![60, 80, 100]));
        // A job that a client cancelled stays readable.
        harness.engine.cancel(&occurrence_id(&beat(), second(80)), None, false).await.unwrap();
        harness.engine.delete_schedule(&beat(), None).await.unwrap();
        assert_eq!(harness.ids().await, at_seconds([10, 20, 30, 40, 80]));
    }
}

/// The process dies after 0, 1, 2, ... writes, on a store that writes one by one and on an atomic
/// one.
#[tokio::test]
async fn a_crashed_schedule_change_has_not_begun_or_is_completed() {
    let minute = Duration::from_mins(1);
    for (change, flight) in Change::ALL.into_iter().flat_map(|change| [(change, 0), (change, 5)]) {
        let mut died = 0;
        for writes in 0.. {
            let store = FaultyStore::new(Arc::new(MemoryStore::new()), 1)
                .with_flight(Duration::from_secs(flight));
            let store = Arc::new(store);
            let mut harness =
                Harness::on(Arc::clone(&store) as SharedStore).scheduled(tens()).await;
            harness.engine.materialize(minute).await.unwrap();
            harness.wait(5);
            store.crash_after(writes);
            if change.make(&harness.engine).await.is_ok() {
                break;
            }
            store.revive();
            died += 1;
            harness.restart();
            harness.engine.materialize(minute).await.unwrap();
            let (found, before) = (waiting(&harness).await, minute_of(10, "{\"n\":1}"));
            assert!(
                found == before || found == change.leaves(),
                "{change:?} after {writes} writes: {found:?}"
            );
            let again = change.make(&harness.engine).await;
            assert!(
                matches!(again, Ok(()) | Err(Error::NotFound { .. })),
                "{change:?} after {writes} writes: {again:?}"
            );
            harness.engine.materialize(minute).await.unwrap();
            assert_eq!(
                waiting(&harness).await,
                change.leaves(),
                "{change:?} after {writes} writes, and again"
            );
        }
        assert!(died > 4, "{change:?} writes {died} times");
    }
}

/// `work`, polled only at every `pace`-th turn, from turn `first` on.
async fn paced<T>(first: u32, pace: u32, work: impl Future<Output = T>) -> T {
    let mut work = Box::pin(work);
    let mut left = first;
    std::future::poll_fn(|context| {
        if left > 0 {
            left -= 1;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        left = pace - 1;
        work.as_mut().poll(context)
    })
    .await
}

/// Each write is separate and the change is slow, so other processes act between any two of its
/// writes.
#[tokio::test]
async fn a_tick_or_resume_during_a_change_loses_no_occurrence() {
    let minute = Duration::from_mins(1);
    let ahead = async || {
        let harness = Harness::on(Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), 1)))
            .scheduled(tens())
            .await;
        harness.engine.materialize(minute).await.unwrap();
        let other = harness.another();
        (harness, other)
    };
    for (first, pace) in (0..30).flat_map(|first| [(first, 1), (first, 6), (first, 50)]) {
        for change in Change::ALL {
            let (harness, other) = ahead().await;
            let changed = paced(0, pace, change.make(&harness.engine));
            let (changed, looked) =
                futures_util::future::join(changed, paced(first, 1, other.materialize(minute)))
                    .await;
            changed.unwrap();
            looked.unwrap();
            harness.engine.materialize(minute).await.unwrap();
            assert_eq!(
                waiting(&harness).await,
                change.leaves(),
                "{change:?} at {pace}, a look after {first} turns"
            );
        }
        let (harness, other) = ahead().await;
        let resume = async {
            other.pause_schedule(&beat(), false).await.unwrap();
            other.materialize(minute).await
        };
        let pause = paced(0, pace, async { harness.engine.pause_schedule(&beat(), true).await });
        let (paused, resumed) = futures_util::future::join(pause, paced(first, 1, resume)).await;
        paused.unwrap();
        resumed.unwrap();
        harness.engine.materialize(minute).await.unwrap();
        let paused = harness.engine.schedule(&beat()).await.unwrap().0.config.paused;
        let wanted = if paused { BTreeSet::new() } else { minute_of(10, "{\"n\":1}") };
        assert_eq!(
            waiting(&harness).await,
            wanted,
            "paused: {paused} at {pace}, a resume after {first} turns"
        );
    }
}

#[tokio::test]
async fn a_job_enqueued_ahead_during_a_change_follows_the_new_rule() {
    let minute = Duration::from_mins(1);
    for turns in 0..16 {
        for change in Change::ALL {
            // It yields before each transaction.
            let store =
                FaultyStore::new(Arc::new(MemoryStore::new()), 1).with_flight(Duration::ZERO);
            let harness = Harness::on(Arc::new(store)).scheduled(tens()).await;
            let other = harness.another();
            let late = paced(turns, 1, change.make(&other));
            let (looked, changed) =
                futures_util::future::join(paced(0, 1, harness.engine.materialize(minute)), late)
                    .await;
            looked.unwrap();
            changed.unwrap();
            harness.engine.materialize(minute).await.unwrap();
            assert_eq!(waiting(&harness).await, change.leaves(), "{change:?} after {turns} turns");
        }
    }
}
