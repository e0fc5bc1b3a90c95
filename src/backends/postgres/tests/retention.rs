//! Ended jobs are hidden at the end of their retention, and their partitions are dropped.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use super::server::{RUNTIME, WAITING, open_at, rows, settings};
use crate::postgres::PostgresStore;
use tidegate_core::{
    job::{Encoding, Event, JobId, Revision},
    port::job_store::{Committed, Expect, JobStore, Key, ListQuery, Txn, Write},
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    memory::FakeClock,
    testkit::builders::{at, job, name},
};

const HOUR: i64 = 3_600_000;
/// Callers that commit at once.
const CALLERS: usize = 4;
/// Jobs that end before a partition is dropped, and after it.
const JOBS: usize = 50;

#[test]
fn forgotten_jobs_are_hidden_and_then_dropped() {
    let clock = Arc::new(FakeClock::new(at(0)));
    let store = open_at(&settings(), Arc::clone(&clock));
    RUNTIME.block_on(async {
        let commit = async |txn: Txn| store.commit(vec![txn]).await.unwrap().remove(0);
        let of = |id: &str| {
            job(id)
                .data(Encoding::Json, vec![b'1'; 3000])
                .with(|spec| spec.retention = Seconds::new(60))
                .build()
        };
        let key = Key::Idempotency("k".into());
        let (one, id) = (of("one"), name::<JobId>("one"));
        let point = |was| Write::SetKey { key: key.clone(), job: id.clone(), was };
        let end = |job: &tidegate_core::job::Job| {
            let ended = job.apply(Event::Cancel { force: false }, at(0)).unwrap();
            vec![Write::SetJob { job: ended, was: Revision(1), all: false }]
        };
        commit(vec![point(Expect::Absent), Write::AddJob(one.clone())]).await;
        commit(end(&one)).await;
        let is_there = async || store.get(std::slice::from_ref(&id)).await.unwrap()[0] != Ok(None);
        assert!(is_there().await);
        // A new job of its id is refused until it is forgotten.
        let again = commit(vec![Write::AddJob(one.clone())]).await;
        assert!(matches!(again, Committed::Conflict { .. }), "{again:?}");
        clock.set(at(60_000));
        assert!(!is_there().await);
        let page = store.list(&ListQuery { limit: 5, ..ListQuery::default() }).await.unwrap();
        assert!(page.jobs.is_empty());
        let again = commit(vec![Write::AddJob(one.clone())]).await;
        assert!(matches!(again, Committed::All), "{again:?}");
        commit(end(&one)).await;
        assert_eq!(
            store.depth(None).await.unwrap().counts.iter().map(|it| it.jobs).sum::<u64>(),
            1
        );
        // Its partition is kept for an hour after its day.
        clock.set(at(24 * HOUR));
        assert_eq!(store.upkeep(None).await.unwrap(), None);
        clock.set(at(25 * HOUR));
        let mut after = store.upkeep(None).await.unwrap();
        assert!(after.is_some());
        while after.is_some() {
            after = store.upkeep(after.as_deref()).await.unwrap();
        }
        assert_eq!(store.depth(None).await.unwrap().counts, []);
        assert_eq!(store.keys(std::slice::from_ref(&key)).await.unwrap(), [Ok(None)]);
        assert_eq!(store.bodies(std::slice::from_ref(&id)).await.unwrap(), [Ok(None)]);
    });
    assert!(rows(&store, "SELECT FROM ended").is_empty());
    let left = "SELECT FROM pg_class WHERE relkind = 'r' AND relname LIKE 'ended\\_%' \
         AND relnamespace = current_schema()::text::regnamespace";
    assert!(rows(&store, left).is_empty());
}

/// A partition is not dropped while one of its jobs names an object: a sweep deletes that first.
#[test]
fn a_job_with_an_object_keeps_its_partition() {
    let clock = Arc::new(FakeClock::new(at(0)));
    let store = open_at(&settings(), Arc::clone(&clock));
    RUNTIME.block_on(async {
        let mut one = job("one").with(|spec| spec.retention = Seconds::new(60)).build();
        one.data =
            tidegate_core::job::Body::Object { encoding: Encoding::Json, key: "k".into(), len: 9 };
        let ended = one.apply(Event::Cancel { force: false }, at(0)).unwrap();
        let end = Write::SetJob { job: ended.clone(), was: Revision(1), all: false };
        store.commit(vec![vec![Write::AddJob(one)], vec![end]]).await.unwrap();
        clock.set(at(40 * HOUR));
        let mut after = store.upkeep(None).await.unwrap();
        while after.is_some() {
            after = store.upkeep(after.as_deref()).await.unwrap();
        }
        let overdue = store.overdue(clock_now(&clock), None, 10).await.unwrap();
        assert_eq!(overdue.jobs, std::slice::from_ref(&ended));
        let remove = Write::RemoveJob { id: ended.id.clone(), was: ended.life.revision };
        let answers = store.commit(vec![vec![remove]]).await.unwrap();
        assert!(matches!(answers[0], Committed::All), "{answers:?}");
        let mut after = store.upkeep(None).await.unwrap();
        while after.is_some() {
            after = store.upkeep(after.as_deref()).await.unwrap();
        }
    });
    let left = "SELECT FROM pg_class WHERE relkind = 'r' AND relname LIKE 'ended\\_%' \
         AND relnamespace = current_schema()::text::regnamespace";
    assert!(rows(&store, left).is_empty());
}

/// A new job takes the id of a forgotten one while the upkeep deletes that one. Its body and its key
/// stay.
#[test]
fn a_new_job_of_a_forgotten_id_keeps_its_body() {
    let clock = Arc::new(FakeClock::new(at(0)));
    let store = open_at(&settings(), Arc::clone(&clock));
    let of = |id: &str| {
        let old = job(id).data(Encoding::Json, vec![b'1'; 3000]);
        let old = old.with(|spec| spec.retention = Seconds::new(60)).build();
        let ended = old.apply(Event::Cancel { force: false }, at(0)).unwrap();
        vec![
            vec![Write::AddJob(old)],
            vec![Write::SetJob { job: ended, was: Revision(1), all: false }],
        ]
    };
    RUNTIME.block_on(store.commit([of("one"), of("two")].concat())).unwrap();
    clock.set(at(40 * HOUR));
    let link = RUNTIME.block_on(async { store.readers.link().await.unwrap() });
    // What the addition of a new job writes.
    let add = "BEGIN; DELETE FROM ended WHERE id = 'one'; \
         UPDATE bodies SET bytes = bytes WHERE id = 'one'; \
         INSERT INTO keys VALUES (2, 0, 'k', 'one')";
    RUNTIME.block_on(link.client.batch_execute(add)).unwrap();
    let store = Arc::new(store);
    let upkeep = {
        let store = Arc::clone(&store);
        RUNTIME.spawn(async move {
            let mut after = store.upkeep(None).await.unwrap();
            while after.is_some() {
                after = store.upkeep(after.as_deref()).await.unwrap();
            }
        })
    };
    while rows(&store, WAITING).is_empty() {
        assert!(!upkeep.is_finished(), "it has not waited");
        std::thread::yield_now();
    }
    RUNTIME.block_on(link.client.batch_execute("COMMIT")).unwrap();
    RUNTIME.block_on(upkeep).unwrap();
    let bodies = rows(&store, "SELECT id FROM bodies");
    assert_eq!(bodies.iter().map(|row| row.get::<_, &str>(0)).collect::<Vec<_>>(), ["one"]);
    assert_eq!(rows(&store, "SELECT FROM keys").len(), 1);
    assert_eq!(rows(&store, "SELECT FROM ended").len(), 0);
}

/// The addition of a job, and its end at `now`. It is forgotten a minute later.
fn add_and_end(id: &str, now: Timestamp) -> [Write; 2] {
    let added = job(id).with(|spec| spec.retention = Seconds::new(60)).build();
    let ended = added.apply(Event::Cancel { force: false }, now).unwrap();
    [Write::AddJob(added), Write::SetJob { job: ended, was: Revision(1), all: false }]
}

/// Adds, ends and reads jobs at `now` until there are `enough`.
async fn live(
    store: Arc<PostgresStore>,
    caller: usize,
    now: Timestamp,
    enough: Arc<AtomicBool>,
    ended: Arc<AtomicUsize>,
) {
    let mut n = 0;
    while !enough.load(Ordering::Relaxed) {
        n += 1;
        let id = format!("job-{caller}-{n}");
        for write in add_and_end(&id, now) {
            let answers = store.commit(vec![vec![write]]).await.unwrap();
            assert!(matches!(answers[0], Committed::All), "{answers:?}");
        }
        let found = store.get(&[name(&id)]).await.unwrap().remove(0);
        assert!(matches!(found, Ok(Some(_))), "{found:?}");
        ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// The lock of the drop waits for commits, and they for it. None fails.
#[test]
fn a_partition_is_dropped_while_jobs_are_added_and_end() {
    let clock = Arc::new(FakeClock::new(at(0)));
    let store = Arc::new(open_at(&settings(), Arc::clone(&clock)));
    let old = (0..JOBS).map(|n| add_and_end(&format!("old-{n}"), at(0)));
    let (added, over): (Vec<Txn>, Vec<Txn>) = old.map(|[add, end]| (vec![add], vec![end])).unzip();
    let answers = RUNTIME.block_on(store.commit([added, over].concat())).unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Committed::All)), "{answers:?}");
    let table = "SELECT FROM pg_class WHERE relname = 'ended_0_1' \
         AND relnamespace = current_schema()::text::regnamespace";
    assert_eq!(rows(&store, table).len(), 1);

    let now = at(25 * HOUR);
    clock.set(now);
    let (enough, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (store, enough, ended) =
                (Arc::clone(&store), Arc::clone(&enough), Arc::clone(&ended));
            RUNTIME.spawn(live(store, caller, now, enough, ended))
        })
        .collect();
    let assert_alive = || {
        assert!(!callers.iter().any(tokio::task::JoinHandle::is_finished), "a caller failed");
    };
    let wait_for_more = || {
        let aim = ended.load(Ordering::Relaxed) + JOBS;
        while ended.load(Ordering::Relaxed) < aim {
            assert_alive();
            std::thread::yield_now();
        }
    };
    wait_for_more();
    let mut after = None;
    while !rows(&store, table).is_empty() {
        assert_alive();
        after = RUNTIME.block_on(store.upkeep(after.as_deref())).unwrap();
    }
    wait_for_more();

    enough.store(true, Ordering::Relaxed);
    for caller in callers {
        RUNTIME.block_on(caller).unwrap();
    }
    let ended = i64::try_from(ended.load(Ordering::Relaxed)).unwrap();
    let number = |sql: &str| rows(&store, sql)[0].get::<_, i64>(0);
    assert_eq!(number("SELECT count(*) FROM ended"), ended);
    assert_eq!(number("SELECT count(*) FROM jobs"), 0);
    assert_eq!(number("SELECT sum(jobs)::bigint FROM counts"), ended);
}

fn clock_now(clock: &FakeClock) -> Timestamp {
    tidegate_core::port::Clock::now(clock)
}
