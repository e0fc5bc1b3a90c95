//! Changes of a schedule itself: a new rule, a pause, and its removal.

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    error_code::ErrorCode,
    job::Payload,
    port::job_store::SharedStore,
    schedule::{Missed, ScheduleConfig, occurrence_id},
    time::Seconds,
};
use tidegate_engine::{
    Error,
    memory::MemoryStore,
    request::{PauseOnPut, ScheduleRequest},
    testkit::faults::FaultyStore,
};

use super::{at_seconds, beat, made, second, tens, waiting};
use crate::cases::harness::{Harness, every_store_and_table};

#[tokio::test]
async fn only_a_new_rule_restarts_a_schedule_from_now() {
    for harness in every_store_and_table() {
        let harness = harness.scheduled(tens()).await;
        harness.clock.set(second(15));
        harness.put(tens().with_options(|options| options.priority = Some(1))).await;
        assert_eq!(
            made(&harness.occur_at(second(15)).await),
            ["beat:20260101T000010Z"],
            "it was due when the priority changed"
        );
        harness.clock.set(second(25));
        harness.put(ScheduleConfig { every_seconds: Some(Seconds::new(3)), ..tens() }).await;
        assert_eq!(
            made(&harness.occur_at(second(26)).await),
            Vec::<String>::new(),
            "what the old rule would have made is not made"
        );
        assert_eq!(made(&harness.occur_at(second(27)).await), ["beat:20260101T000027Z"]);
        let (item, state) = harness.engine.schedule(&beat()).await.unwrap();
        assert_eq!((item.version, item.rule, state.last_occurrence), (3, 3, Some(second(27))));
    }
}

#[tokio::test]
async fn occurrences_during_a_pause_are_not_caught_up() {
    for harness in every_store_and_table() {
        let harness = harness.scheduled(ScheduleConfig { missed: Missed::All, ..tens() }).await;
        harness.occur_at(second(10)).await;
        assert!(harness.engine.pause_schedule(&beat(), true).await.unwrap().config.paused);
        let paused = harness.occur_at(second(500)).await;
        assert_eq!((paused.made.len(), paused.next_at), (0, None));
        let version = harness.engine.pause_schedule(&beat(), true).await.unwrap().version;
        assert_eq!(version, 2, "a repeat changes nothing");
        harness.engine.pause_schedule(&beat(), false).await.unwrap();
        assert_eq!(
            made(&harness.occur_at(second(510)).await),
            [occurrence_id(&beat(), second(510)).to_string()]
        );
        assert_eq!(harness.ids().await, at_seconds([10, 510]));
    }
}

#[tokio::test]
async fn a_put_keeps_the_pause_unless_it_says_otherwise() {
    for harness in every_store_and_table() {
        let harness = harness.scheduled(tens()).await;
        let engine = &harness.engine;
        let put = async |config: ScheduleConfig, pause| {
            let request = ScheduleRequest { config, pause };
            let preview =
                engine.preview_schedule(&beat(), request.clone(), Payload::null(), None).await;
            let (put, _) =
                engine.put_schedule(&beat(), request, Payload::null(), None).await.unwrap();
            assert_eq!(preview.unwrap().0.config, put.config);
            put.config.paused
        };
        let paused = || ScheduleConfig { paused: true, ..tens() };
        assert!(!put(paused(), PauseOnPut::Keep).await, "it was not paused");
        engine.pause_schedule(&beat(), true).await.unwrap();
        let other = ScheduleConfig { every_seconds: Some(Seconds::new(3)), ..tens() };
        assert!(put(other, PauseOnPut::Keep).await);
        assert_eq!(harness.occur_at(second(500)).await.made.len(), 0);
        assert!(!put(tens(), PauseOnPut::AsConfigured).await);
        assert!(put(paused(), PauseOnPut::AsConfigured).await);
    }
}

#[tokio::test]
async fn a_deleted_schedule_keeps_its_jobs_and_its_name_starts_over() {
    for harness in every_store_and_table() {
        let harness = harness.scheduled(ScheduleConfig { missed: Missed::All, ..tens() }).await;
        harness.occur_at(second(20)).await;
        assert!(matches!(
            harness.engine.delete_schedule(&beat(), Some(9)).await,
            Err(Error::Stale { version: 1 })
        ));
        harness.engine.delete_schedule(&beat(), Some(1)).await.unwrap();
        assert!(matches!(
            harness.engine.schedule(&beat()).await,
            Err(Error::NotFound { code: ErrorCode::ScheduleNotFound, .. })
        ));
        assert!(harness.engine.delete_schedule(&beat(), None).await.is_err());
        harness.occur_at(second(300)).await;
        harness.put(tens()).await;
        let state = harness.state().await;
        assert_eq!(
            (state.upto, state.last_job),
            (second(300), None),
            "nothing is known of the old one"
        );
        harness.occur_at(second(310)).await;
        assert_eq!(harness.ids().await, at_seconds([10, 20, 310]));
    }
}

#[tokio::test]
async fn a_schedule_deleted_during_an_occurrence_enqueues_no_more() {
    for inner in every_store_and_table() {
        // The store yields before each transaction, so the deletion is written while the occurrence
        // is in progress.
        let store = FaultyStore::new(inner.store, 1).with_flight(Duration::ZERO);
        let harness = Harness::on(Arc::new(store)).scheduled(tens()).await;
        harness.clock.set(second(10));
        let (beat, other) = (beat(), harness.another());
        let (deletion, look) =
            (other.delete_schedule(&beat, None), harness.engine.materialize(Duration::ZERO));
        let (deleted, occurred) =
            futures_util::future::join(Box::pin(deletion), Box::pin(look)).await;
        deleted.unwrap();
        assert_eq!((occurred.unwrap().made.len(), harness.ids().await.len()), (0, 0));
    }
}

/// The state of a schedule remains if the process dies during the removal.
#[tokio::test]
async fn a_half_done_removal_has_no_effect_and_can_be_repeated() {
    for (if_match, flight) in [(None, 5), (Some(1), 5), (Some(1), 0)] {
        let mut died = 0;
        for writes in 0.. {
            let store = FaultyStore::new(Arc::new(MemoryStore::new()), 1)
                .with_flight(Duration::from_secs(flight));
            let store = Arc::new(store);
            let harness = Harness::on(Arc::clone(&store) as SharedStore).scheduled(tens()).await;
            harness.occur_at(second(10)).await;
            harness.engine.materialize(Duration::from_secs(30)).await.unwrap();
            store.crash_after(writes);
            if harness.engine.delete_schedule(&beat(), if_match).await.is_ok() {
                break;
            }
            store.revive();
            died += 1;
            let again = harness.engine.delete_schedule(&beat(), if_match).await;
            assert!(
                matches!(again, Ok(()) | Err(Error::NotFound { .. })),
                "after {writes} writes: {again:?}"
            );
            assert!(
                harness.engine.schedule(&beat()).await.is_err(),
                "after {writes} writes it is gone"
            );
            assert!(
                waiting(&harness).await.is_empty(),
                "after {writes} writes what was made ahead is gone"
            );
            harness.clock.set(second(500));
            harness.put(tens()).await;
            assert_eq!(harness.state().await.upto, second(500), "after {writes} writes");
            assert_eq!(harness.occur_at(second(510)).await.made.len(), 1);
        }
        assert!(died > 4, "it writes {died} times");
    }
}
