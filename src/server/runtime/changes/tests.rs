//! Readers of a server in memory, whose time only the tests move.

use std::{sync::Arc, time::Duration};

use futures_util::poll;
use object_store::memory::InMemory;

use super::{
    reader::{MAX_EVENTS, MAX_READERS, MAX_STREAM},
    *,
};
use crate::runtime::{
    Server,
    testing::{builder_on, in_time, last_event_id, shown_events},
};
use tidegate_core::{
    error_code::ErrorCode,
    job::{Payload, type_config::TypeConfig},
    port::{Clock as _, Committed, Write, job_store::ItemKind},
    time::Seconds,
};
use tidegate_engine::{
    Error,
    memory::{FakeClock, MemoryStore},
    request::{NewJob, Registration},
    testkit::{
        builders::name,
        faults::{Faults, FaultyStore},
    },
};

async fn server() -> (Server, Arc<FakeClock>, Arc<FaultyStore>) {
    let clock = Arc::new(FakeClock::default());
    let store =
        Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), 1).with_flight(Duration::ZERO));
    let builder = builder_on(&clock, Arc::clone(&store) as _, Arc::new(InMemory::new()));
    let server = builder.start().await.unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    (server, clock, store)
}

fn job(id: &str) -> NewJob {
    NewJob { id: Some(name(id)), ..NewJob::new(name("work"), Payload::null()) }
}

/// The next events.
async fn next(clock: &FakeClock, reader: &mut ChangeReader) -> Vec<String> {
    loop {
        let frames = in_time(clock, reader.next()).await.expect("the stream goes on");
        let events = shown_events(&frames);
        if !events.is_empty() {
            return events;
        }
    }
}

#[tokio::test]
async fn a_reader_sees_what_is_committed() {
    let (server, clock, store) = server().await;
    let mut reader = server.changes(ChangeFilter::default(), None).unwrap();
    assert_eq!(next(&clock, &mut reader).await, ["ready false"]);
    server.enqueue(job("a")).await.unwrap();
    assert_eq!(next(&clock, &mut reader).await, ["job a scheduled"]);
    server.cancel(&name("a"), None, false).await.unwrap();
    assert_eq!(next(&clock, &mut reader).await, ["job a cancelled"]);
    // It may have happened.
    store.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
    server.enqueue(job("b")).await.unwrap_err();
    store.set_faults(Faults::default());
    assert_eq!(next(&clock, &mut reader).await, ["skipped 1"]);
    server.pause_queue(&name("default"), true).await.unwrap();
    assert_eq!(next(&clock, &mut reader).await, ["queue default"]);
    server.register_worker("w", Registration::of_capacity(3)).await.unwrap();
    assert_eq!(next(&clock, &mut reader).await, ["worker w registered"]);
    server.drain_worker("w", true).await.unwrap();
    assert_eq!(next(&clock, &mut reader).await, ["worker w draining"]);
    server.stop_worker("w").await.unwrap();
    assert_eq!(next(&clock, &mut reader).await, ["worker w stopping"]);
}

#[tokio::test]
async fn a_commit_whose_outcome_is_unknown_is_skipped() {
    let (server, clock, _) = server().await;
    let store = Arc::clone(&server.engine().ports().store);
    let write = |was| Write::SetItem {
        kind: ItemKind::Drain,
        name: "w".into(),
        was,
        version: was + 1,
        bytes: Some(Vec::new()),
    };
    // Changes were not kept when it began.
    let mut early = store.commit(vec![vec![write(0)]]);
    assert!(poll!(&mut early).is_pending());
    let mut reader = server.changes(ChangeFilter::default(), None).unwrap();
    assert!(matches!(early.await.unwrap()[..], [Committed::All]));
    assert_eq!(next(&clock, &mut reader).await, ["ready false"]);
    assert_eq!(next(&clock, &mut reader).await, ["skipped 1"]);
    // Its caller leaves.
    let mut left = store.commit(vec![vec![write(1)]]);
    assert!(poll!(&mut left).is_pending());
    drop(left);
    assert_eq!(next(&clock, &mut reader).await, ["skipped 1"]);
}

#[tokio::test]
async fn a_reader_resumes_after_an_event() {
    let (server, clock, _) = server().await;
    let mut first = server.changes(ChangeFilter::default(), None).unwrap();
    let ready = first.next().await.unwrap();
    server.enqueue(job("a")).await.unwrap();
    assert_eq!(next(&clock, &mut first).await, ["job a scheduled"]);
    drop(first);
    server.enqueue(job("b")).await.unwrap();
    let id = last_event_id(&ready);
    let mut second = server.changes(ChangeFilter::default(), Some(&id)).unwrap();
    assert_eq!(next(&clock, &mut second).await, ["ready true"]);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.extend(next(&clock, &mut second).await);
    }
    assert_eq!(seen, ["job a scheduled", "job b scheduled"]);
    drop(second);
    // Nothing is kept a minute after the last reader.
    for _ in 0..700 {
        clock.advance(Duration::from_millis(100));
        tokio::task::yield_now().await;
    }
    assert!(!server.inner.changes.is_recording());
    let mut third = server.changes(ChangeFilter::default(), Some(&id)).unwrap();
    assert_eq!(next(&clock, &mut third).await, ["ready false", "skipped null"]);
    let mut fresh = server.changes(ChangeFilter::default(), None).unwrap();
    let future = format!("{}9", last_event_id(&fresh.next().await.unwrap()));
    for strange in ["", "x", "1-2", &id, &future] {
        let mut reader = server.changes(ChangeFilter::default(), Some(strange)).unwrap();
        assert_eq!(next(&clock, &mut reader).await, ["ready false", "skipped null"], "{strange}");
    }
}

#[tokio::test]
async fn a_flood_is_skipped_but_for_jobs_that_are_named() {
    let (server, clock, _) = server().await;
    let mut all = server.changes(ChangeFilter::default(), None).unwrap();
    let ids = [name("last")].into();
    let mut one = server.changes(ChangeFilter { ids, ..ChangeFilter::default() }, None).unwrap();
    next(&clock, &mut all).await;
    next(&clock, &mut one).await;
    let mut jobs: Vec<NewJob> = (0..MAX_PENDING + 50).map(|n| job(&format!("j{n}"))).collect();
    jobs.push(job("last"));
    assert!(server.enqueue_many(jobs).await.iter().all(Result::is_ok));
    assert_eq!(next(&clock, &mut one).await, ["job last scheduled"]);
    let mut seen = Vec::new();
    while seen.last().map(String::as_str) != Some("job last scheduled") {
        let more = next(&clock, &mut all).await;
        assert!(more.len() <= MAX_EVENTS + 1);
        seen.extend(more);
    }
    assert_eq!(seen.len(), MAX_PENDING + 2);
    assert_eq!(seen.iter().filter(|event| *event == "skipped 50").count(), 1);
    // The next publication has room again.
    server.enqueue(job("more")).await.unwrap();
    assert_eq!(next(&clock, &mut all).await, ["job more scheduled"]);
}

#[tokio::test]
async fn readers_are_bounded_and_a_stream_ends() {
    let (server, clock, _) = server().await;
    let readers: Vec<_> =
        (0..MAX_READERS).map(|_| server.changes(ChangeFilter::default(), None).unwrap()).collect();
    let refused = server.changes(ChangeFilter::default(), None).map(drop).unwrap_err();
    assert!(matches!(refused, Error::Conflict { code: ErrorCode::TooManyStreams, .. }));
    drop(readers);
    let mut reader = server.changes(ChangeFilter::default(), None).unwrap();
    let start = clock.now();
    let mut number = 0;
    // Also while there is always something to read.
    while in_time(&clock, reader.next()).await.is_some() {
        number += 1;
        server.enqueue(job(&format!("j{number}"))).await.unwrap();
        clock.advance(Duration::from_secs(1));
    }
    assert!(clock.now() >= start + MAX_STREAM);
    let mut reader = server.changes(ChangeFilter::default(), None).unwrap();
    reader.next().await.unwrap();
    server.stop().await;
    assert_eq!(reader.next().await, None);
    let refused = server.changes(ChangeFilter::default(), None).map(drop).unwrap_err();
    assert!(matches!(refused, Error::Unavailable { .. }));
}

#[tokio::test]
async fn the_end_of_a_job_that_is_not_kept_is_seen() {
    let (server, clock, _) = server().await;
    let config = TypeConfig { retention_seconds: Seconds::new(0), ..TypeConfig::default() };
    server.put_type(&name("brief"), config, None).await.unwrap();
    let job_type = Some(name("brief"));
    let mut reader = server.changes(ChangeFilter { job_type, ..Default::default() }, None).unwrap();
    next(&clock, &mut reader).await;
    let new = NewJob { id: Some(name("b")), ..NewJob::new(name("brief"), Payload::null()) };
    server.enqueue(new).await.unwrap();
    assert_eq!(next(&clock, &mut reader).await, ["job b scheduled"]);
    server.cancel(&name("b"), None, false).await.unwrap();
    assert_eq!(next(&clock, &mut reader).await, ["job b cancelled"]);
}
