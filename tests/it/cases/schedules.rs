//! Schedules on every store: each occurrence makes one job, through restarts, crashes, other engines and clocks that jump.

use std::{collections::BTreeSet, sync::Arc, task::Poll, time::Duration};
use tidegate_core::error_code::ErrorCode;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tidegate_backends::sqlite::SqliteStore;
use tidegate_core::{
    job::{
        Job, Payload, ScheduleName,
        spec::{Unique, UniqueWhile},
        type_config::TypeConfig,
    },
    port::job_store::{ListQuery, SharedStore},
    schedule::{Missed, SCHEDULE_DATA_BYTES, ScheduleConfig, ScheduleState, occurrence_id},
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    Engine, Error, Materialized,
    memory::MemoryStore,
    request::{JobPatch, NewJob},
    testkit::{
        builders::name,
        faults::{Faults, FaultyStore},
    },
};

use super::harness::{Harness, every_store, every_store_and_table};

/// Where the clock of a place begins.
const START: i64 = 1_767_225_600_000;

fn beat() -> ScheduleName {
    name("beat")
}

/// A job of type `work` every ten seconds.
fn tens() -> ScheduleConfig {
    ScheduleConfig::every(name("work"), Seconds::new(10))
}

fn second(second: u64) -> Timestamp {
    Timestamp::from_millis(START) + Duration::from_secs(second)
}

impl Harness {
    async fn scheduled(self, config: ScheduleConfig) -> Self {
        self.set_type("work", TypeConfig::default()).await;
        self.put(config).await;
        self
    }

    async fn put(&self, config: ScheduleConfig) {
        self.engine.put_schedule(&beat(), config, Payload::json("{\"n\":1}"), None).await.unwrap();
    }

    /// Looks at `at`; when it made what, and when to look next.
    async fn occur_at(&self, at: Timestamp) -> Materialized {
        self.clock.set(at);
        self.engine.materialize(Duration::ZERO).await.unwrap()
    }

    async fn jobs(&self) -> Vec<Job> {
        self.store.list(&ListQuery { limit: 1000, ..ListQuery::default() }).await.unwrap().jobs
    }

    /// The ids of all jobs.
    async fn ids(&self) -> BTreeSet<String> {
        self.jobs().await.iter().map(|job| job.id.to_string()).collect()
    }

    async fn state(&self) -> ScheduleState {
        self.engine.schedule(&beat()).await.unwrap().1
    }
}

/// The ids of the occurrences at these seconds.
fn at_seconds(seconds: impl IntoIterator<Item = u64>) -> BTreeSet<String> {
    seconds.into_iter().map(|n| occurrence_id(&beat(), second(n)).to_string()).collect()
}

fn made(occurred: &Materialized) -> Vec<String> {
    occurred.made.iter().map(|(_, enqueued)| enqueued.job.id.to_string()).collect()
}

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
        // A job is gone as soon as it ends, so that only the state keeps a second one out.
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

/// Also where the writes of a transaction go out one by one.
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

/// The process dies after every number of writes in turn, on a store that takes them one by one and on an atomic one.
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
async fn what_would_have_occurred_in_a_pause_is_not_made_up_for() {
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
        // The store gives way before each transaction, so the deletion is written while the occurrence is on its way.
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

/// The state of a schedule stays behind if its removal dies half way.
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
            "whoever looks without looking ahead finds all done"
        );
        assert_eq!(harness.engine.materialize(minute).await.unwrap().made.len(), 3);
        assert_eq!(harness.ids().await, at_seconds((10..=90).step_by(10)));
    }
}

/// The jobs that wait, with what they carry.
async fn waiting(harness: &Harness) -> BTreeSet<(u64, String)> {
    let jobs = harness
        .jobs()
        .await
        .into_iter()
        .filter(|job| job.life.run_at().is_some_and(|at| at > harness.now()));
    let data = |job: &Job| String::from_utf8(job.data.inline().unwrap().bytes.to_vec()).unwrap();
    jobs.map(|job| (job.life.run_at().unwrap().since(second(0)).as_secs(), data(&job))).collect()
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
        // Other data, and then another rule. What is due and what is like it was stays.
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
        // What a client has cancelled is there to be read.
        harness.engine.cancel(&occurrence_id(&beat(), second(80)), None, false).await.unwrap();
        harness.engine.delete_schedule(&beat(), None).await.unwrap();
        assert_eq!(harness.ids().await, at_seconds([10, 20, 30, 40, 80]));
    }
}

/// A change of a schedule whose next jobs were enqueued ahead.
#[derive(Clone, Copy, Debug)]
enum Change {
    Data,
    Rule,
    Pause,
    Delete,
}

impl Change {
    const ALL: [Self; 4] = [Self::Data, Self::Rule, Self::Pause, Self::Delete];

    async fn make(self, engine: &Engine) -> Result<(), Error> {
        let every = |span| ScheduleConfig { every_seconds: Some(Seconds::new(span)), ..tens() };
        let put = async |span, data| {
            engine.put_schedule(&beat(), every(span), Payload::json(data), None).await.map(drop)
        };
        match self {
            Self::Data => put(10, "2").await,
            Self::Rule => put(15, "{\"n\":1}").await,
            Self::Pause => engine.pause_schedule(&beat(), true).await.map(drop),
            Self::Delete => engine.delete_schedule(&beat(), None).await,
        }
    }

    /// What waits after it, a minute ahead.
    fn leaves(self) -> BTreeSet<(u64, String)> {
        match self {
            Self::Data => minute_of(10, "2"),
            Self::Rule => minute_of(15, "{\"n\":1}"),
            Self::Pause | Self::Delete => BTreeSet::new(),
        }
    }
}

/// The first minute's jobs, one every `span` seconds, as [`waiting`] says it.
fn minute_of(span: usize, data: &str) -> BTreeSet<(u64, String)> {
    (span as u64..=60).step_by(span).map(|at| (at, data.to_owned())).collect()
}

/// The process dies after every number of writes in turn, on a store that takes them one by one and on an atomic one.
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

/// Each write goes out by itself and the change is slow, so that other processes act between any
/// two of its writes.
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
            // It gives way before each transaction.
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

#[tokio::test]
async fn a_job_that_a_client_made_or_changed_is_never_withdrawn() {
    let minute = Duration::from_mins(1);
    for harness in every_store_and_table() {
        let harness = harness.scheduled(tens()).await;
        let id = |at| occurrence_id(&beat(), second(at));
        let mine = NewJob {
            id: Some(id(20)),
            run_at: Some(second(20)),
            ..NewJob::new(name("work"), Payload::json("\"mine\""))
        };
        harness.enqueue(mine).await;
        harness.engine.materialize(minute).await.unwrap();
        let patch = async |at, patch: JobPatch| {
            harness.engine.patch(&id(at), None, patch, None).await.map(drop).unwrap();
        };
        patch(30, JobPatch { data: Some(Payload::json("\"patched\"")), ..JobPatch::default() })
            .await;
        patch(40, JobPatch { run_at: Some(second(45)), ..JobPatch::default() }).await;
        patch(50, JobPatch { priority: Some(3), ..JobPatch::default() }).await;
        let kept = [(20, "\"mine\""), (30, "\"patched\""), (45, "{\"n\":1}"), (50, "{\"n\":1}")];
        let kept: BTreeSet<(u64, String)> =
            kept.into_iter().map(|(at, data)| (at, data.to_owned())).collect();
        harness.engine.pause_schedule(&beat(), true).await.unwrap();
        assert_eq!(waiting(&harness).await, kept, "paused");
        harness.engine.pause_schedule(&beat(), false).await.unwrap();
        harness.engine.materialize(minute).await.unwrap();
        let resumed: BTreeSet<_> =
            kept.iter().cloned().chain([10, 60].map(|at| (at, "{\"n\":1}".to_owned()))).collect();
        assert_eq!(waiting(&harness).await, resumed);
        for change in [Change::Data, Change::Rule, Change::Delete] {
            change.make(&harness.engine).await.unwrap();
            assert_eq!(waiting(&harness).await, kept, "{change:?}");
            if !matches!(change, Change::Delete) {
                harness.engine.materialize(minute).await.unwrap();
                assert!(waiting(&harness).await.is_superset(&kept), "{change:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_client_job_with_an_occurrence_id_replaces_the_occurrence() {
    for harness in every_store_and_table() {
        let harness = harness.scheduled(tens()).await;
        let id = occurrence_id(&beat(), second(10));
        harness
            .enqueue(NewJob {
                id: Some(id.clone()),
                ..NewJob::new(name("work"), Payload::json("\"mine\""))
            })
            .await;
        let occurred = harness.occur_at(second(20)).await;
        assert_eq!(
            (made(&occurred), occurred.errors.len()),
            (vec![occurrence_id(&beat(), second(20)).to_string()], 0)
        );
        assert_eq!(harness.ids().await, at_seconds([10, 20]));
    }
}

#[tokio::test]
async fn a_unique_key_keeps_an_occurrence_from_overlapping_the_last() {
    for harness in every_store_and_table() {
        let unique =
            Some(Unique { key: "beat".into(), hold: UniqueWhile::Live, period_seconds: None });
        let mut harness =
            harness.scheduled(tens().with_options(|options| options.unique = unique)).await;
        harness.occur_at(second(40)).await;
        assert_eq!(harness.ids().await, at_seconds([10]), "it has not ended");
        assert_eq!(
            harness.state().await.last_job,
            Some(occurrence_id(&beat(), second(10))),
            "the one that stands in their place"
        );
        let leased = harness.lease(1).await;
        harness.succeed(&leased).await;
        harness.occur_at(second(50)).await;
        assert_eq!(harness.ids().await, at_seconds([10, 50]));
    }
}

#[tokio::test]
async fn a_manual_run_is_made_once_per_key_and_moves_no_occurrence() {
    for harness in every_store_and_table() {
        let harness = harness
            .scheduled(ScheduleConfig { expires_after_seconds: Some(Seconds::new(60)), ..tens() })
            .await;
        harness.engine.pause_schedule(&beat(), true).await.unwrap();
        let run = async |key: Option<&str>| {
            harness.engine.run_schedule(&beat(), key.map(str::to_owned)).await.unwrap()
        };
        let first = run(Some("k")).await;
        harness.wait(1);
        let again = run(Some("k")).await;
        assert_eq!((first.new, again.new, &again.job.id), (true, false, &first.job.id));
        assert!(run(Some("other")).await.new && run(None).await.new && run(None).await.new);
        assert_eq!(first.job.data.inline(), Some(&Payload::json("{\"n\":1}")));
        let state = harness.state().await;
        assert_eq!((state.last_occurrence, state.last_job), (None, None));
    }
}

#[tokio::test]
async fn what_its_jobs_could_not_be_a_schedule_is_refused() {
    for harness in every_store_and_table() {
        harness.set_type("work", TypeConfig::default()).await;
        let put = async |config: ScheduleConfig, data: Payload| {
            harness.engine.put_schedule(&beat(), config, data, None).await.unwrap_err()
        };
        let blame = async |config: ScheduleConfig| match put(config, Payload::null()).await {
            Error::Invalid { field, .. } => field,
            Error::NotFound { code, .. } => code.to_string(),
            error => panic!("{error}"),
        };
        assert_eq!(blame(ScheduleConfig { every_seconds: None, ..tens() }).await, "cron");
        assert_eq!(
            blame(tens().with_options(|options| options.max_attempts = Some(0))).await,
            "max_attempts"
        );
        assert_eq!(
            blame(tens().with_options(|options| options.timeout_seconds = Some(Seconds::new(0))))
                .await,
            "timeout_seconds"
        );
        assert_eq!(
            blame(tens().with_options(|options| options.deadline_seconds = Some(Seconds::new(0))))
                .await,
            "deadline_seconds"
        );
        assert_eq!(
            blame(tens().with_options(
                |options| options.headers = [("tidegate-x".into(), "1".into())].into()
            ))
            .await,
            "headers.tidegate-x"
        );
        assert_eq!(
            blame(ScheduleConfig { job_type: name("gone"), ..tens() }).await,
            "job_type_not_found"
        );
        assert_eq!(
            blame(ScheduleConfig { job_type: name("tidegate.callback"), ..tens() }).await,
            "job_type_not_found"
        );
        assert!(
            matches!(put(tens(), Payload::json("{")).await, Error::Invalid { field, .. } if field == "data")
        );
        let large = Payload::json(format!("\"{}\"", "x".repeat(SCHEDULE_DATA_BYTES)));
        assert!(matches!(put(tens(), large).await, Error::TooLarge { field: "data", .. }));
        assert!(harness.engine.schedules().await.unwrap().is_empty(), "nothing was stored");
    }
}

/// One run of several engines that look at random instants, over a store that fails now and then, with processes that die.
async fn random_run(seed: u64) {
    let mut chance = StdRng::seed_from_u64(seed);
    let atomic = chance.random_bool(0.5);
    let inner: SharedStore = if chance.random_bool(0.5) {
        Arc::new(MemoryStore::new())
    } else {
        Arc::new(SqliteStore::open_temporary().unwrap())
    };
    let store = Arc::new(FaultyStore::new(inner, seed).with_flight(if atomic {
        Duration::ZERO
    } else {
        Duration::from_secs(5)
    }));
    let config = ScheduleConfig { missed: Missed::All, max_missed: 1000, ..tens() };
    let harness = Harness::on(Arc::clone(&store) as SharedStore).scheduled(config).await;
    store.set_faults(Faults {
        cut: 0.15,
        lose_answer: 0.15,
        unavailable: 0.1,
        throttled: 0.05,
        reads: 0.05,
    });
    let mut engines: Vec<Engine> = (0..3).map(|_| harness.another()).collect();
    let (mut now, mut horizon) = (0, 0);
    for _ in 0..40 {
        now += chance.random_range(0..25);
        // The machine's clock is set back now and then.
        let shown =
            if chance.random_bool(0.2) { now - chance.random_range(0..=now.min(30)) } else { now };
        harness.clock.set(second(shown));
        let ahead = if chance.random_bool(0.3) { chance.random_range(0..60) } else { 0 };
        horizon = horizon.max(shown + ahead);
        let looks = engines
            .iter()
            .filter(|_| chance.random_bool(0.7))
            .map(|engine| engine.materialize(Duration::from_secs(ahead)));
        futures_util::future::join_all(looks.collect::<Vec<_>>()).await;
        if chance.random_bool(0.2) {
            let dies = chance.random_range(0..engines.len());
            engines[dies] = harness.another();
        }
    }
    store.set_faults(Faults::default());
    let last = harness.another();
    harness.clock.set(second(now.max(horizon)));
    last.materialize(Duration::ZERO).await.unwrap();
    assert_eq!(harness.ids().await, at_seconds((10..=now.max(horizon)).step_by(10)), "seed {seed}");
    assert_eq!(harness.state().await.missed, 0, "seed {seed}");
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "how far to look is told by whoever runs the tests")]
async fn through_random_faults_every_occurrence_makes_its_job() {
    let count =
        std::env::var("TIDEGATE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60);
    for seed in 0..count {
        random_run(seed).await;
    }
}
