//! Ended jobs are hidden at the end of their retention, and their partitions are dropped.

use std::sync::Arc;

use super::server::{RUNTIME, WAITING, open_at, rows, settings};
use tidegate_core::{
    job::{Encoding, Event, JobId, Revision},
    port::job_store::{Committed, Expect, JobStore, Key, ListQuery, Txn, Write},
    time::Seconds,
};
use tidegate_engine::{
    memory::FakeClock,
    testkit::builders::{at, job, name},
};

const HOUR: i64 = 3_600_000;

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

fn clock_now(clock: &FakeClock) -> tidegate_core::time::Timestamp {
    tidegate_core::port::Clock::now(clock)
}
