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

use super::place::{Place, everywhere, in_every_home};

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

impl Place {
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
async fn an_occurrence_makes_the_job_that_its_schedule_says_and_tells_when_to_look_next() {
    for place in in_every_home() {
        let mut config = ScheduleConfig {
            expires_after_seconds: Some(Seconds::new(30)),
            ..tens().with_options(|options| options.priority = Some(7))
        };
        config
            .options
            .attributes
            .insert("region".into(), tidegate_core::job::Value::Text("east".into()));
        let place = place.scheduled(config).await;
        let early = place.occur_at(second(3)).await;
        assert_eq!((early.made.len(), early.next_at), (0, Some(second(10))));
        let due = place.occur_at(second(10)).await;
        assert_eq!(
            (made(&due), due.next_at),
            (vec!["beat:20260101T000010Z".to_owned()], Some(second(20)))
        );
        let job = &place.jobs().await[0];
        assert_eq!(
            (job.spec.priority, job.spec.expires_at, job.life.run_at()),
            (7, Some(second(40)), Some(second(10)))
        );
        assert_eq!(
            (job.data.inline(), job.spec.attributes.len()),
            (Some(&Payload::json("{\"n\":1}")), 1)
        );
        let state = place.state().await;
        assert_eq!(
            (state.last_occurrence, state.last_job, state.upto),
            (Some(second(10)), Some(job.id.clone()), second(10))
        );
    }
}

#[tokio::test]
async fn restarts_and_late_looks_let_nothing_drift_and_nothing_run_twice() {
    for place in in_every_home() {
        let mut place = place.scheduled(tens()).await;
        let mut at = 0;
        for wait in [3, 7, 1, 1, 19, 30, 9, 2, 8, 20] {
            at += wait;
            place.occur_at(second(at)).await;
            if wait % 2 == 1 {
                place.restart();
            }
            place.occur_at(second(at)).await;
        }
        assert_eq!(place.ids().await, at_seconds((10..=at).step_by(10)));
    }
}

#[tokio::test]
async fn any_number_of_engines_make_each_job_once() {
    for place in in_every_home() {
        // A job is gone as soon as it ends, so that only the state keeps a second one out.
        let place = place.scheduled(tens()).await;
        let engines: Vec<Engine> = (0..4).map(|_| place.another()).collect();
        for n in 1..=20 {
            place.clock.set(second(n * 10));
            let looks = engines.iter().map(|engine| engine.materialize(Duration::ZERO));
            let occurred = futures_util::future::join_all(looks).await;
            let made: Vec<String> =
                occurred.iter().flat_map(|occurred| made(occurred.as_ref().unwrap())).collect();
            assert_eq!(made.len(), 1, "{made:?}");
        }
        assert_eq!(place.ids().await, at_seconds((10..=200).step_by(10)));
    }
}

/// Also where the writes of a transaction go out one by one.
#[tokio::test]
async fn an_engine_that_comes_late_does_not_make_again_what_ran_and_is_gone() {
    let one_by_one = FaultyStore::new(Arc::new(MemoryStore::new()), 1);
    for mut place in in_every_home().into_iter().chain([Place::on(Arc::new(one_by_one))]) {
        place
            .set_type(
                "work",
                TypeConfig { retention_seconds: Seconds::new(0), ..TypeConfig::default() },
            )
            .await;
        place.put(tens()).await;
        let late = place.another();
        late.materialize(Duration::ZERO).await.unwrap();
        assert_eq!(place.occur_at(second(10)).await.made.len(), 1);
        let leased = place.lease(1).await;
        place.succeed(&leased).await;
        assert_eq!(place.ids().await, BTreeSet::new(), "it ran, and is gone");
        let occurred = late.materialize(Duration::ZERO).await.unwrap();
        assert_eq!((occurred.made.len(), place.ids().await.len()), (0, 0));
    }
}

#[tokio::test]
async fn what_was_missed_is_skipped_or_made_up_for_as_the_schedule_says() {
    for (missed, max_missed, made_up_for) in [
        (Missed::Skip, 9, vec![]),
        (Missed::One, 9, vec![3530]),
        (Missed::All, 3, vec![3510, 3520, 3530]),
    ] {
        for place in in_every_home() {
            let mut place = place.scheduled(ScheduleConfig { missed, max_missed, ..tens() }).await;
            place.restart();
            let occurred = place.occur_at(second(3600)).await;
            let wanted = at_seconds(made_up_for.iter().copied().chain((3540..=3600).step_by(10)));
            assert_eq!(place.ids().await, wanted, "{missed:?}");
            let skipped = 353 - made_up_for.len() as u64;
            assert_eq!(
                (occurred.missed.values().sum::<u64>(), place.state().await.missed),
                (skipped, skipped),
                "{missed:?}"
            );
            place.restart();
            assert_eq!(place.occur_at(second(3601)).await.made.len(), 0, "{missed:?}");
        }
    }
}

/// The process dies after every number of writes in turn, on a store that takes them one by one and on an atomic one.
#[tokio::test]
async fn a_crash_between_any_two_writes_neither_loses_nor_doubles_an_occurrence() {
    for flight in [Duration::ZERO, Duration::from_secs(5)] {
        for writes in 0..16 {
            let inner: [SharedStore; 2] =
                [Arc::new(MemoryStore::new()), Arc::new(SqliteStore::open_temporary().unwrap())];
            for inner in inner {
                let store = Arc::new(FaultyStore::new(inner, 1).with_flight(flight));
                let mut place =
                    Place::on(Arc::clone(&store) as SharedStore).scheduled(tens()).await;
                place.clock.set(second(20));
                store.crash_after(writes);
                let died = place.engine.materialize(Duration::ZERO).await;
                store.revive();
                place.restart();
                place.occur_at(second(22)).await;
                assert_eq!(
                    place.ids().await,
                    at_seconds([10, 20]),
                    "after {writes} writes, {died:?}"
                );
                assert_eq!(place.state().await.upto, second(20), "after {writes} writes");
                assert_eq!(place.state().await.last_job, Some(occurrence_id(&beat(), second(20))));
            }
        }
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_a_little_makes_nothing_twice() {
    for place in in_every_home() {
        let mut place = place.scheduled(tens()).await;
        place.occur_at(second(100)).await;
        for at in [50, 99, 100, 60] {
            place.restart();
            let occurred = place.occur_at(second(at)).await;
            assert_eq!((occurred.made.len(), occurred.next_at), (0, Some(second(110))), "at {at}");
        }
        place.occur_at(second(110)).await;
        let (grace, all) = (at_seconds((40..=110).step_by(10)), place.ids().await);
        assert!(all.is_superset(&grace) && all.len() == grace.len() + 1, "{all:?}");
    }
}

#[tokio::test]
async fn a_clock_that_was_far_ahead_does_not_silence_a_schedule() {
    for place in in_every_home() {
        let mut place = place.scheduled(ScheduleConfig { missed: Missed::Skip, ..tens() }).await;
        let wrong = second(365 * 86_400);
        place.occur_at(wrong).await;
        let made_ahead = place.ids().await;
        for restart in [false, true] {
            if restart {
                place.restart();
            }
            let at = if restart { 40 } else { 20 };
            place.occur_at(second(at)).await;
            place.occur_at(second(at + 10)).await;
        }
        let fresh: BTreeSet<String> = place.ids().await.difference(&made_ahead).cloned().collect();
        assert_eq!(fresh, at_seconds([30, 40, 50]), "from when the clock was right again");
    }
}

#[tokio::test]
async fn another_rule_starts_from_now_and_other_changes_leave_it_where_it_is() {
    for place in in_every_home() {
        let place = place.scheduled(tens()).await;
        place.clock.set(second(15));
        place.put(tens().with_options(|options| options.priority = Some(1))).await;
        assert_eq!(
            made(&place.occur_at(second(15)).await),
            ["beat:20260101T000010Z"],
            "it was due when the priority changed"
        );
        place.clock.set(second(25));
        place.put(ScheduleConfig { every_seconds: Some(Seconds::new(3)), ..tens() }).await;
        assert_eq!(
            made(&place.occur_at(second(26)).await),
            Vec::<String>::new(),
            "what the old rule would have made is not made"
        );
        assert_eq!(made(&place.occur_at(second(27)).await), ["beat:20260101T000027Z"]);
        let (item, state) = place.engine.schedule(&beat()).await.unwrap();
        assert_eq!((item.version, item.rule, state.last_occurrence), (3, 3, Some(second(27))));
    }
}

#[tokio::test]
async fn what_would_have_occurred_in_a_pause_is_not_made_up_for() {
    for place in in_every_home() {
        let place = place.scheduled(ScheduleConfig { missed: Missed::All, ..tens() }).await;
        place.occur_at(second(10)).await;
        assert!(place.engine.pause_schedule(&beat(), true).await.unwrap().config.paused);
        let paused = place.occur_at(second(500)).await;
        assert_eq!((paused.made.len(), paused.next_at), (0, None));
        let version = place.engine.pause_schedule(&beat(), true).await.unwrap().version;
        assert_eq!(version, 2, "a repeat changes nothing");
        place.engine.pause_schedule(&beat(), false).await.unwrap();
        assert_eq!(
            made(&place.occur_at(second(510)).await),
            [occurrence_id(&beat(), second(510)).to_string()]
        );
        assert_eq!(place.ids().await, at_seconds([10, 510]));
    }
}

#[tokio::test]
async fn a_deleted_schedule_leaves_its_jobs_and_one_of_its_name_begins_anew() {
    for place in in_every_home() {
        let place = place.scheduled(ScheduleConfig { missed: Missed::All, ..tens() }).await;
        place.occur_at(second(20)).await;
        assert!(matches!(
            place.engine.delete_schedule(&beat(), Some(9)).await,
            Err(Error::Stale { version: 1 })
        ));
        place.engine.delete_schedule(&beat(), Some(1)).await.unwrap();
        assert!(matches!(
            place.engine.schedule(&beat()).await,
            Err(Error::NotFound { code: ErrorCode::ScheduleNotFound, .. })
        ));
        assert!(place.engine.delete_schedule(&beat(), None).await.is_err());
        place.occur_at(second(300)).await;
        place.put(tens()).await;
        let state = place.state().await;
        assert_eq!(
            (state.upto, state.last_job),
            (second(300), None),
            "nothing is known of the old one"
        );
        place.occur_at(second(310)).await;
        assert_eq!(place.ids().await, at_seconds([10, 20, 310]));
    }
}

#[tokio::test]
async fn a_schedule_that_is_deleted_while_it_occurs_makes_nothing_afterwards() {
    for inner in in_every_home() {
        // The store gives way before each transaction, so the deletion is written while the occurrence is on its way.
        let store = FaultyStore::new(inner.store, 1).with_flight(Duration::ZERO);
        let place = Place::on(Arc::new(store)).scheduled(tens()).await;
        place.clock.set(second(10));
        let (beat, other) = (beat(), place.another());
        let (deletion, look) =
            (other.delete_schedule(&beat, None), place.engine.materialize(Duration::ZERO));
        let (deleted, occurred) =
            futures_util::future::join(Box::pin(deletion), Box::pin(look)).await;
        deleted.unwrap();
        assert_eq!((occurred.unwrap().made.len(), place.ids().await.len()), (0, 0));
    }
}

/// The state of a schedule stays behind if its removal dies half way.
#[tokio::test]
async fn what_a_half_done_removal_leaves_behind_counts_for_nothing_and_a_repeat_goes_on() {
    for (if_match, flight) in [(None, 5), (Some(1), 5), (Some(1), 0)] {
        let mut died = 0;
        for writes in 0.. {
            let store = FaultyStore::new(Arc::new(MemoryStore::new()), 1)
                .with_flight(Duration::from_secs(flight));
            let store = Arc::new(store);
            let place = Place::on(Arc::clone(&store) as SharedStore).scheduled(tens()).await;
            place.occur_at(second(10)).await;
            place.engine.materialize(Duration::from_secs(30)).await.unwrap();
            store.crash_after(writes);
            if place.engine.delete_schedule(&beat(), if_match).await.is_ok() {
                break;
            }
            store.revive();
            died += 1;
            let again = place.engine.delete_schedule(&beat(), if_match).await;
            assert!(
                matches!(again, Ok(()) | Err(Error::NotFound { .. })),
                "after {writes} writes: {again:?}"
            );
            assert!(
                place.engine.schedule(&beat()).await.is_err(),
                "after {writes} writes it is gone"
            );
            assert!(
                waiting(&place).await.is_empty(),
                "after {writes} writes what was made ahead is gone"
            );
            place.clock.set(second(500));
            place.put(tens()).await;
            assert_eq!(place.state().await.upto, second(500), "after {writes} writes");
            assert_eq!(place.occur_at(second(510)).await.made.len(), 1);
        }
        assert!(died > 4, "it writes {died} times");
    }
}

#[tokio::test]
async fn a_schedule_whose_type_is_gone_says_so_is_tried_again_and_holds_no_other() {
    for place in everywhere() {
        let place = place.scheduled(tens()).await;
        place.set_type("other", TypeConfig::default()).await;
        let other = ScheduleConfig::every(name("other"), Seconds::new(10));
        place.engine.put_schedule(&name("other"), other, Payload::null(), None).await.unwrap();
        place.engine.delete_type(&name("work"), None).await.unwrap();
        let occurred = place.occur_at(second(10)).await;
        assert_eq!(
            (made(&occurred), occurred.errors.len()),
            (vec!["other:20260101T000010Z".to_owned()], 1)
        );
        let error = place.state().await.last_error.unwrap();
        assert_eq!(
            (error.occurrence, error.at, error.message.as_str()),
            (second(10), second(10), "there is no job type work")
        );
        let again = place.occur_at(second(11)).await;
        assert_eq!((again.errors.len(), again.next_at), (0, Some(second(20))), "not at once");
        assert!(
            place.engine.pause_schedule(&beat(), false).await.is_ok(),
            "it can be operated all the same"
        );
        assert_eq!(place.occur_at(second(20)).await.errors.len(), 1);
        assert_eq!(place.state().await.last_error.unwrap().at, second(10), "since when");
        place.set_type("work", TypeConfig::default()).await;
        place.occur_at(second(31)).await;
        assert_eq!(place.state().await.last_error, None);
        let all = place.ids().await;
        assert!(all.is_superset(&at_seconds([10, 20, 30])), "{all:?}");
    }
}

#[tokio::test]
async fn ahead_of_time_jobs_are_made_that_start_at_it() {
    for place in in_every_home() {
        let place = place.scheduled(tens()).await;
        let minute = Duration::from_mins(1);
        let occurred = place.engine.materialize(minute).await.unwrap();
        assert_eq!((made(&occurred).len(), occurred.next_at), (6, Some(second(10))));
        let due: Vec<_> =
            place.jobs().await.iter().rev().map(|job| job.life.run_at().unwrap()).collect();
        assert_eq!(
            due.iter().copied().collect::<BTreeSet<_>>(),
            (1..=6).map(|n| second(n * 10)).collect::<BTreeSet<_>>()
        );
        place.clock.set(second(30));
        assert_eq!(
            place.engine.materialize(Duration::ZERO).await.unwrap().made.len(),
            0,
            "whoever looks without looking ahead finds all done"
        );
        assert_eq!(place.engine.materialize(minute).await.unwrap().made.len(), 3);
        assert_eq!(place.ids().await, at_seconds((10..=90).step_by(10)));
    }
}

/// The jobs that wait, with what they carry.
async fn waiting(place: &Place) -> BTreeSet<(u64, String)> {
    let jobs = place
        .jobs()
        .await
        .into_iter()
        .filter(|job| job.life.run_at().is_some_and(|at| at > place.now()));
    let data = |job: &Job| String::from_utf8(job.data.inline().unwrap().bytes.to_vec()).unwrap();
    jobs.map(|job| (job.life.run_at().unwrap().since(second(0)).as_secs(), data(&job))).collect()
}

#[tokio::test]
async fn what_was_made_ahead_of_its_time_is_taken_back_when_it_is_not_to_be_so_any_more() {
    let minute = Duration::from_mins(1);
    let with = |data: &str, seconds: Vec<u64>| {
        seconds.into_iter().map(|at| (at, data.to_owned())).collect::<BTreeSet<_>>()
    };
    for place in in_every_home() {
        let place = place.scheduled(tens()).await;
        place.engine.materialize(minute).await.unwrap();
        assert_eq!(waiting(&place).await, with("{\"n\":1}", vec![10, 20, 30, 40, 50, 60]));
        place.clock.set(second(25));
        // Paused: those whose time had come stay. Resumed: the rest is made anew.
        for _ in 0..2 {
            place.engine.pause_schedule(&beat(), true).await.unwrap();
            place.engine.materialize(minute).await.unwrap();
            assert_eq!(place.ids().await, at_seconds([10, 20]));
        }
        place.engine.pause_schedule(&beat(), false).await.unwrap();
        place.engine.materialize(minute).await.unwrap();
        assert_eq!(waiting(&place).await, with("{\"n\":1}", vec![30, 40, 50, 60, 70, 80]));
        // Other data, and then another rule. What is due and what is like it was stays.
        place.clock.set(second(40));
        place.engine.put_schedule(&beat(), tens(), Payload::json("2"), None).await.unwrap();
        place.engine.materialize(minute).await.unwrap();
        assert_eq!(waiting(&place).await, with("2", vec![50, 60, 70, 80, 90, 100]));
        let revised: Vec<_> = place.jobs().await.iter().map(|job| job.spec.created_at).collect();
        place.wait(1);
        place.engine.put_schedule(&beat(), tens(), Payload::json("2"), None).await.unwrap();
        assert_eq!(
            place.jobs().await.iter().map(|job| job.spec.created_at).collect::<Vec<_>>(),
            revised,
            "nothing has changed"
        );
        let every = |span| ScheduleConfig { every_seconds: Some(Seconds::new(span)), ..tens() };
        place.engine.put_schedule(&beat(), every(20), Payload::json("2"), None).await.unwrap();
        place.engine.materialize(minute).await.unwrap();
        assert_eq!(waiting(&place).await, with("2", vec![60, 80, 100]));
        // What a client has cancelled is there to be read.
        place.engine.cancel(&occurrence_id(&beat(), second(80)), None, false).await.unwrap();
        place.engine.delete_schedule(&beat(), None).await.unwrap();
        assert_eq!(place.ids().await, at_seconds([10, 20, 30, 40, 80]));
    }
}

/// What an owner does to a schedule of which jobs were made ahead.
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
async fn a_change_that_dies_half_way_has_not_begun_or_is_carried_through_by_whoever_looks_next() {
    let minute = Duration::from_mins(1);
    for (change, flight) in Change::ALL.into_iter().flat_map(|change| [(change, 0), (change, 5)]) {
        let mut died = 0;
        for writes in 0.. {
            let store = FaultyStore::new(Arc::new(MemoryStore::new()), 1)
                .with_flight(Duration::from_secs(flight));
            let store = Arc::new(store);
            let mut place = Place::on(Arc::clone(&store) as SharedStore).scheduled(tens()).await;
            place.engine.materialize(minute).await.unwrap();
            place.wait(5);
            store.crash_after(writes);
            if change.make(&place.engine).await.is_ok() {
                break;
            }
            store.revive();
            died += 1;
            place.restart();
            place.engine.materialize(minute).await.unwrap();
            let (found, before) = (waiting(&place).await, minute_of(10, "{\"n\":1}"));
            assert!(
                found == before || found == change.leaves(),
                "{change:?} after {writes} writes: {found:?}"
            );
            let again = change.make(&place.engine).await;
            assert!(
                matches!(again, Ok(()) | Err(Error::NotFound { .. })),
                "{change:?} after {writes} writes: {again:?}"
            );
            place.engine.materialize(minute).await.unwrap();
            assert_eq!(
                waiting(&place).await,
                change.leaves(),
                "{change:?} after {writes} writes, and again"
            );
        }
        assert!(died > 4, "{change:?} writes {died} times");
    }
}

/// `work`, by somebody who is given only every `pace`-th turn, from turn `first` on.
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

/// Writes go out one by one here, and whoever changes the schedule is slow, so that others do all they can between any two of them.
#[tokio::test]
async fn who_looks_or_resumes_while_a_schedule_changes_loses_no_occurrence() {
    let minute = Duration::from_mins(1);
    let ahead = async || {
        let place = Place::on(Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), 1)))
            .scheduled(tens())
            .await;
        place.engine.materialize(minute).await.unwrap();
        let other = place.another();
        (place, other)
    };
    for (first, pace) in (0..30).flat_map(|first| [(first, 1), (first, 6), (first, 50)]) {
        for change in Change::ALL {
            let (place, other) = ahead().await;
            let changed = paced(0, pace, change.make(&place.engine));
            let (changed, looked) =
                futures_util::future::join(changed, paced(first, 1, other.materialize(minute)))
                    .await;
            changed.unwrap();
            looked.unwrap();
            place.engine.materialize(minute).await.unwrap();
            assert_eq!(
                waiting(&place).await,
                change.leaves(),
                "{change:?} at {pace}, a look after {first} turns"
            );
        }
        let (place, other) = ahead().await;
        let resume = async {
            other.pause_schedule(&beat(), false).await.unwrap();
            other.materialize(minute).await
        };
        let pause = paced(0, pace, async { place.engine.pause_schedule(&beat(), true).await });
        let (paused, resumed) = futures_util::future::join(pause, paced(first, 1, resume)).await;
        paused.unwrap();
        resumed.unwrap();
        place.engine.materialize(minute).await.unwrap();
        let paused = place.engine.schedule(&beat()).await.unwrap().0.config.paused;
        let wanted = if paused { BTreeSet::new() } else { minute_of(10, "{\"n\":1}") };
        assert_eq!(
            waiting(&place).await,
            wanted,
            "paused: {paused} at {pace}, a resume after {first} turns"
        );
    }
}

#[tokio::test]
async fn what_is_made_ahead_while_a_schedule_changes_is_as_it_is_to_be() {
    let minute = Duration::from_mins(1);
    for turns in 0..16 {
        for change in Change::ALL {
            // It gives way before each transaction.
            let store =
                FaultyStore::new(Arc::new(MemoryStore::new()), 1).with_flight(Duration::ZERO);
            let place = Place::on(Arc::new(store)).scheduled(tens()).await;
            let other = place.another();
            let late = paced(turns, 1, change.make(&other));
            let (looked, changed) =
                futures_util::future::join(paced(0, 1, place.engine.materialize(minute)), late)
                    .await;
            looked.unwrap();
            changed.unwrap();
            place.engine.materialize(minute).await.unwrap();
            assert_eq!(waiting(&place).await, change.leaves(), "{change:?} after {turns} turns");
        }
    }
}

#[tokio::test]
async fn what_clients_put_in_place_of_an_occurrence_or_changed_of_it_is_never_taken_back() {
    let minute = Duration::from_mins(1);
    for place in in_every_home() {
        let place = place.scheduled(tens()).await;
        let id = |at| occurrence_id(&beat(), second(at));
        let mine = NewJob {
            id: Some(id(20)),
            run_at: Some(second(20)),
            ..NewJob::new(name("work"), Payload::json("\"mine\""))
        };
        place.enqueue(mine).await;
        place.engine.materialize(minute).await.unwrap();
        let patch = async |at, patch: JobPatch| {
            place.engine.patch(&id(at), None, patch, None).await.map(drop).unwrap()
        };
        patch(30, JobPatch { data: Some(Payload::json("\"patched\"")), ..JobPatch::default() })
            .await;
        patch(40, JobPatch { run_at: Some(second(45)), ..JobPatch::default() }).await;
        patch(50, JobPatch { priority: Some(3), ..JobPatch::default() }).await;
        let kept = [(20, "\"mine\""), (30, "\"patched\""), (45, "{\"n\":1}"), (50, "{\"n\":1}")];
        let kept: BTreeSet<(u64, String)> =
            kept.into_iter().map(|(at, data)| (at, data.to_owned())).collect();
        place.engine.pause_schedule(&beat(), true).await.unwrap();
        assert_eq!(waiting(&place).await, kept, "paused");
        place.engine.pause_schedule(&beat(), false).await.unwrap();
        place.engine.materialize(minute).await.unwrap();
        let resumed: BTreeSet<_> =
            kept.iter().cloned().chain([10, 60].map(|at| (at, "{\"n\":1}".to_owned()))).collect();
        assert_eq!(waiting(&place).await, resumed);
        for change in [Change::Data, Change::Rule, Change::Delete] {
            change.make(&place.engine).await.unwrap();
            assert_eq!(waiting(&place).await, kept, "{change:?}");
            if !matches!(change, Change::Delete) {
                place.engine.materialize(minute).await.unwrap();
                assert!(waiting(&place).await.is_superset(&kept), "{change:?}");
            }
        }
    }
}

#[tokio::test]
async fn whoever_takes_an_occurrence_s_id_takes_its_place_and_holds_nothing_up() {
    for place in in_every_home() {
        let place = place.scheduled(tens()).await;
        let id = occurrence_id(&beat(), second(10));
        place
            .enqueue(NewJob {
                id: Some(id.clone()),
                ..NewJob::new(name("work"), Payload::json("\"mine\""))
            })
            .await;
        let occurred = place.occur_at(second(20)).await;
        assert_eq!(
            (made(&occurred), occurred.errors.len()),
            (vec![occurrence_id(&beat(), second(20)).to_string()], 0)
        );
        assert_eq!(place.ids().await, at_seconds([10, 20]));
    }
}

#[tokio::test]
async fn a_unique_key_keeps_an_occurrence_from_overlapping_the_last() {
    for place in in_every_home() {
        let unique =
            Some(Unique { key: "beat".into(), hold: UniqueWhile::Live, period_seconds: None });
        let mut place =
            place.scheduled(tens().with_options(|options| options.unique = unique)).await;
        place.occur_at(second(40)).await;
        assert_eq!(place.ids().await, at_seconds([10]), "it has not ended");
        assert_eq!(
            place.state().await.last_job,
            Some(occurrence_id(&beat(), second(10))),
            "the one that stands in their place"
        );
        let leased = place.lease(1).await;
        place.succeed(&leased).await;
        place.occur_at(second(50)).await;
        assert_eq!(place.ids().await, at_seconds([10, 50]));
    }
}

#[tokio::test]
async fn a_run_out_of_turn_is_made_once_under_its_key_and_touches_no_occurrence() {
    for place in in_every_home() {
        let place = place
            .scheduled(ScheduleConfig { expires_after_seconds: Some(Seconds::new(60)), ..tens() })
            .await;
        place.engine.pause_schedule(&beat(), true).await.unwrap();
        let run = async |key: Option<&str>| {
            place.engine.run_schedule(&beat(), key.map(str::to_owned)).await.unwrap()
        };
        let first = run(Some("k")).await;
        place.wait(1);
        let again = run(Some("k")).await;
        assert_eq!((first.new, again.new, &again.job.id), (true, false, &first.job.id));
        assert!(run(Some("other")).await.new && run(None).await.new && run(None).await.new);
        assert_eq!(first.job.data.inline(), Some(&Payload::json("{\"n\":1}")));
        let state = place.state().await;
        assert_eq!((state.last_occurrence, state.last_job), (None, None));
    }
}

#[tokio::test]
async fn what_its_jobs_could_not_be_a_schedule_is_refused() {
    for place in in_every_home() {
        place.set_type("work", TypeConfig::default()).await;
        let put = async |config: ScheduleConfig, data: Payload| {
            place.engine.put_schedule(&beat(), config, data, None).await.unwrap_err()
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
        assert!(place.engine.schedules().await.unwrap().is_empty(), "nothing was stored");
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
    let place = Place::on(Arc::clone(&store) as SharedStore).scheduled(config).await;
    store.set_faults(Faults {
        cut: 0.15,
        lose_answer: 0.15,
        unavailable: 0.1,
        throttled: 0.05,
        reads: 0.05,
    });
    let mut engines: Vec<Engine> = (0..3).map(|_| place.another()).collect();
    let (mut now, mut horizon) = (0, 0);
    for _ in 0..40 {
        now += chance.random_range(0..25);
        // The machine's clock is set back now and then.
        let shown =
            if chance.random_bool(0.2) { now - chance.random_range(0..=now.min(30)) } else { now };
        place.clock.set(second(shown));
        let ahead = if chance.random_bool(0.3) { chance.random_range(0..60) } else { 0 };
        horizon = horizon.max(shown + ahead);
        let looks = engines
            .iter()
            .filter(|_| chance.random_bool(0.7))
            .map(|engine| engine.materialize(Duration::from_secs(ahead)));
        futures_util::future::join_all(looks.collect::<Vec<_>>()).await;
        if chance.random_bool(0.2) {
            let dies = chance.random_range(0..engines.len());
            engines[dies] = place.another();
        }
    }
    store.set_faults(Faults::default());
    let last = place.another();
    place.clock.set(second(now.max(horizon)));
    last.materialize(Duration::ZERO).await.unwrap();
    assert_eq!(place.ids().await, at_seconds((10..=now.max(horizon)).step_by(10)), "seed {seed}");
    assert_eq!(place.state().await.missed, 0, "seed {seed}");
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
