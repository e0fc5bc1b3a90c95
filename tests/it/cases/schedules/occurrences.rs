//! When an occurrence makes its job: on time, late, missed, and with a clock that is wrong.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidegate_backends::sqlite::SqliteStore;
use tidegate_core::{
    job::{Payload, type_config::TypeConfig},
    port::job_store::SharedStore,
    schedule::{Missed, ScheduleConfig, occurrence_id},
    time::Seconds,
};
use tidegate_engine::{
    Engine,
    memory::MemoryStore,
    testkit::{builders::name, faults::FaultyStore},
};

use tracing::level_filters::LevelFilter;

use super::{at_seconds, beat, made, second, tens};
use crate::{
    cases::harness::{Harness, every_store, every_store_and_table},
    logged::Log,
};

#[tokio::test]
async fn an_occurrence_enqueues_its_job_and_returns_the_next_due_time() {
    for harness in every_store_and_table() {
        let mut config = ScheduleConfig {
            expires_after_seconds: Some(Seconds::new(30)),
            ..tens().with_options(|options| options.priority = Some(7))
        };
        config
            .options
            .attributes
            .insert("region".into(), tidegate_core::job::Value::Text("east".into()));
        let harness = harness.scheduled(config).await;
        let early = harness.occur_at(second(3)).await;
        assert_eq!((early.made.len(), early.next_at), (0, Some(second(10))));
        let due = harness.occur_at(second(10)).await;
        assert_eq!(
            (made(&due), due.next_at),
            (vec!["beat:20260101T000010Z".to_owned()], Some(second(20)))
        );
        let job = &harness.jobs().await[0];
        assert_eq!(
            (job.spec.priority, job.spec.expires_at, job.life.run_at()),
            (7, Some(second(40)), Some(second(10)))
        );
        assert_eq!(
            (job.data.inline(), job.spec.attributes.len()),
            (Some(&Payload::json("{\"n\":1}")), 1)
        );
        let state = harness.state().await;
        assert_eq!(
            (state.last_occurrence, state.last_job, state.upto),
            (Some(second(10)), Some(job.id.clone()), second(10))
        );
    }
}

#[tokio::test]
async fn restarts_and_late_ticks_cause_no_drift_and_no_second_run() {
    for harness in every_store_and_table() {
        let mut harness = harness.scheduled(tens()).await;
        let mut at = 0;
        for wait in [3, 7, 1, 1, 19, 30, 9, 2, 8, 20] {
            at += wait;
            harness.occur_at(second(at)).await;
            if wait % 2 == 1 {
                harness.restart();
            }
            harness.occur_at(second(at)).await;
        }
        assert_eq!(harness.ids().await, at_seconds((10..=at).step_by(10)));
    }
}

#[tokio::test]
async fn any_number_of_engines_make_each_job_once() {
    for harness in every_store_and_table() {
        // A job is removed as soon as it ends, so only the schedule's state prevents a second one.
        let harness = harness.scheduled(tens()).await;
        let engines: Vec<Engine> = (0..4).map(|_| harness.another()).collect();
        for n in 1..=20 {
            harness.clock.set(second(n * 10));
            let looks = engines.iter().map(|engine| engine.materialize(Duration::ZERO));
            let occurred = futures_util::future::join_all(looks).await;
            let made: Vec<String> =
                occurred.iter().flat_map(|occurred| made(occurred.as_ref().unwrap())).collect();
            assert_eq!(made.len(), 1, "{made:?}");
        }
        assert_eq!(harness.ids().await, at_seconds((10..=200).step_by(10)));
    }
}

/// Also on a store that writes a transaction one by one.
#[tokio::test]
async fn a_late_engine_repeats_no_occurrence_that_ran_and_expired() {
    let one_by_one = FaultyStore::new(Arc::new(MemoryStore::new()), 1);
    for mut harness in
        every_store_and_table().into_iter().chain([Harness::on(Arc::new(one_by_one))])
    {
        harness
            .set_type(
                "work",
                TypeConfig { retention_seconds: Seconds::new(0), ..TypeConfig::default() },
            )
            .await;
        harness.put(tens()).await;
        let late = harness.another();
        late.materialize(Duration::ZERO).await.unwrap();
        assert_eq!(harness.occur_at(second(10)).await.made.len(), 1);
        let leased = harness.lease(1).await;
        harness.succeed(&leased).await;
        assert_eq!(harness.ids().await, BTreeSet::new(), "it ran, and is gone");
        let occurred = late.materialize(Duration::ZERO).await.unwrap();
        assert_eq!((occurred.made.len(), harness.ids().await.len()), (0, 0));
    }
}

#[tokio::test]
async fn missed_occurrences_are_skipped_or_caught_up_as_configured() {
    for (missed, max_missed, made_up_for) in [
        (Missed::Skip, 9, vec![]),
        (Missed::One, 9, vec![3530]),
        (Missed::All, 3, vec![3510, 3520, 3530]),
    ] {
        for harness in every_store_and_table() {
            let mut harness =
                harness.scheduled(ScheduleConfig { missed, max_missed, ..tens() }).await;
            harness.restart();
            let occurred = harness.occur_at(second(3600)).await;
            let wanted = at_seconds(made_up_for.iter().copied().chain((3540..=3600).step_by(10)));
            assert_eq!(harness.ids().await, wanted, "{missed:?}");
            let skipped = 353 - made_up_for.len() as u64;
            assert_eq!(
                (occurred.missed.values().sum::<u64>(), harness.state().await.missed),
                (skipped, skipped),
                "{missed:?}"
            );
            harness.restart();
            assert_eq!(harness.occur_at(second(3601)).await.made.len(), 0, "{missed:?}");
        }
    }
}

/// The process dies after 0, 1, 2, ... writes, on a store that writes one by one and on an atomic
/// one.
#[tokio::test]
async fn a_crash_between_any_two_writes_keeps_each_occurrence_once() {
    for flight in [Duration::ZERO, Duration::from_secs(5)] {
        for writes in 0..16 {
            let inner: [SharedStore; 2] =
                [Arc::new(MemoryStore::new()), Arc::new(SqliteStore::open_temporary().unwrap())];
            for inner in inner {
                let store = Arc::new(FaultyStore::new(inner, 1).with_flight(flight));
                let mut harness =
                    Harness::on(Arc::clone(&store) as SharedStore).scheduled(tens()).await;
                harness.clock.set(second(20));
                store.crash_after(writes);
                let died = harness.engine.materialize(Duration::ZERO).await;
                store.revive();
                harness.restart();
                harness.occur_at(second(22)).await;
                assert_eq!(
                    harness.ids().await,
                    at_seconds([10, 20]),
                    "after {writes} writes, {died:?}"
                );
                assert_eq!(harness.state().await.upto, second(20), "after {writes} writes");
                assert_eq!(
                    harness.state().await.last_job,
                    Some(occurrence_id(&beat(), second(20)))
                );
            }
        }
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_a_little_makes_nothing_twice() {
    for harness in every_store_and_table() {
        let mut harness = harness.scheduled(tens()).await;
        harness.occur_at(second(100)).await;
        for at in [50, 99, 100, 60] {
            harness.restart();
            let occurred = harness.occur_at(second(at)).await;
            assert_eq!((occurred.made.len(), occurred.next_at), (0, Some(second(110))), "at {at}");
        }
        harness.occur_at(second(110)).await;
        let (grace, all) = (at_seconds((40..=110).step_by(10)), harness.ids().await);
        assert!(all.is_superset(&grace) && all.len() == grace.len() + 1, "{all:?}");
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_is_logged_once() {
    for harness in every_store() {
        let (log, logging) = Log::capture(LevelFilter::WARN);
        let harness = harness.scheduled(tens()).await;
        harness.occur_at(second(100)).await;
        assert_eq!(log.text(), "");
        let lines = || log.text().lines().filter(|line| line.contains("was set back")).count();
        harness.occur_at(second(50)).await;
        harness.occur_at(second(60)).await;
        assert_eq!(lines(), 1, "{}", log.text());
        let line: serde_json::Value = serde_json::from_str(log.text().trim_end()).unwrap();
        let fields = &line["fields"];
        assert_eq!((&fields["schedule"], &line["level"]), (&"beat".into(), &"WARN".into()));
        for (field, at) in [("until", second(100)), ("next", second(110))] {
            assert!(fields[field].as_str().unwrap().contains(&at.to_string()), "{fields}");
        }
        harness.occur_at(second(110)).await;
        harness.occur_at(second(90)).await;
        assert_eq!(lines(), 2, "the clock was right in between");
        drop(logging);
    }
}

#[tokio::test]
async fn a_clock_that_was_far_ahead_does_not_silence_a_schedule() {
    for harness in every_store_and_table() {
        let mut harness =
            harness.scheduled(ScheduleConfig { missed: Missed::Skip, ..tens() }).await;
        let wrong = second(365 * 86_400);
        harness.occur_at(wrong).await;
        let made_ahead = harness.ids().await;
        for restart in [false, true] {
            if restart {
                harness.restart();
            }
            let at = if restart { 40 } else { 20 };
            harness.occur_at(second(at)).await;
            harness.occur_at(second(at + 10)).await;
        }
        let fresh: BTreeSet<String> =
            harness.ids().await.difference(&made_ahead).cloned().collect();
        assert_eq!(fresh, at_seconds([30, 40, 50]), "from when the clock was right again");
    }
}

#[tokio::test]
async fn a_schedule_with_a_missing_type_is_retried_and_blocks_none() {
    for harness in every_store() {
        let harness = harness.scheduled(tens()).await;
        harness.set_type("other", TypeConfig::default()).await;
        let other = ScheduleConfig::every(name("other"), Seconds::new(10));
        harness.engine.put_schedule(&name("other"), other, Payload::null(), None).await.unwrap();
        harness.engine.delete_type(&name("work"), None).await.unwrap();
        let occurred = harness.occur_at(second(10)).await;
        assert_eq!(
            (made(&occurred), occurred.errors.len()),
            (vec!["other:20260101T000010Z".to_owned()], 1)
        );
        let error = harness.state().await.last_error.unwrap();
        assert_eq!(
            (error.occurrence, error.at, error.message.as_str()),
            (second(10), second(10), "there is no job type work")
        );
        let again = harness.occur_at(second(11)).await;
        assert_eq!((again.errors.len(), again.next_at), (0, Some(second(20))), "not at once");
        assert!(
            harness.engine.pause_schedule(&beat(), false).await.is_ok(),
            "it can be operated all the same"
        );
        assert_eq!(harness.occur_at(second(20)).await.errors.len(), 1);
        assert_eq!(harness.state().await.last_error.unwrap().at, second(10), "since when");
        harness.set_type("work", TypeConfig::default()).await;
        harness.occur_at(second(31)).await;
        assert_eq!(harness.state().await.last_error, None);
        let all = harness.ids().await;
        assert!(all.is_superset(&at_seconds([10, 20, 30])), "{all:?}");
    }
}
