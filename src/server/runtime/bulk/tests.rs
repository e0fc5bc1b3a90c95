//! Operations whose store is unavailable, or whose record cannot be read. Only the tests move time.

use std::{sync::Arc, time::Duration};

use object_store::memory::InMemory;

use super::*;
use crate::runtime::testing::{builder_on, in_time};
use tidegate_core::{
    job::{
        Event, Payload, Token,
        lifecycle::{Failure, Reason, RetryDecision},
        type_config::TypeConfig,
    },
    port::{Clock as _, JobFilter, job_filter::TimeRange, job_store::StateFilter},
};
use tidegate_engine::{
    memory::{FakeClock, MemoryStore},
    request::{BulkPatch, JobPatch, NewJob},
    testkit::{
        builders::name,
        faults::{Faults, FaultyStore},
    },
};

/// A server with `jobs` scheduled jobs, its store and its clock.
async fn server(jobs: usize) -> (Server, Arc<FaultyStore>, Arc<FakeClock>) {
    let clock = Arc::new(FakeClock::default());
    let store =
        Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), 1).with_flight(Duration::ZERO));
    let server = builder_on(&clock, Arc::clone(&store) as _, Arc::new(InMemory::new()))
        .start()
        .await
        .unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let jobs = (0..jobs).map(|_| NewJob::new(name("work"), Payload::null())).collect();
    assert!(server.enqueue_many(jobs).await.iter().all(Result::is_ok));
    (server, store, clock)
}

/// Stores an operation that cancels the jobs in `states`, and does not start it.
async fn added(server: &Server, states: &[&str]) -> StoredOperation {
    let request = BulkRequest::new(BulkChange::Cancel, JobFilter::default());
    let mut stored = StoredOperation::new(request, "cancel-all".into(), server.now());
    stored.states = states.iter().map(ToString::to_string).collect();
    stored.to = Timestamp::MAX;
    server.add(stored).await.unwrap()
}

/// A query for `limit` jobs.
fn all(limit: u32) -> ListQuery {
    ListQuery { limit, ..ListQuery::default() }
}

async fn scheduled(server: &Server) -> u64 {
    let depths = server.engine().ports().store.depth(None).await.unwrap().counts;
    let scheduled = depths.iter().filter(|depth| depth.state == StateFilter::Scheduled);
    scheduled.map(|depth| depth.jobs).sum()
}

#[tokio::test]
async fn an_operation_returns_when_its_time_ends_in_an_outage() {
    let (server, store, clock) = server(3).await;
    let stored = added(&server, &[]).await;
    store.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
    let end = clock.now() + Duration::from_secs(10);
    let outcome = in_time(&clock, server.operate(&stored.operation.id, end)).await;
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    assert!(clock.now() <= end, "{} is past {end}", clock.now());
    store.set_faults(Faults::default());
    assert!(server.operate(&stored.operation.id, Timestamp::MAX).await.unwrap());
    let operation = server.operation(&stored.operation.id).await.unwrap();
    assert_eq!((operation.state.as_str(), operation.done), ("done", 3));
}

/// An outage that begins between the read of a page and its changes.
#[tokio::test]
async fn a_page_is_not_tried_again_when_its_time_ends() {
    let (server, store, clock) = server(30).await;
    let mut stored = added(&server, &[]).await;
    let page = server.engine().ports().store.list(&all(PAGE_SIZE)).await.unwrap().jobs;
    assert_eq!(page.len(), 30);
    store.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
    let end = clock.now() + Duration::from_secs(10);
    let outcome =
        in_time(&clock, server.apply_to_page(&mut stored, &JobFilter::default(), page, end)).await;
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    let tries = store.failed();
    assert!(clock.now() <= end && tries <= 11, "{tries}");
}

#[tokio::test]
async fn a_dry_run_counts_and_changes_nothing() {
    let (server, ..) = server(30).await;
    let request =
        BulkRequest { dry_run: true, ..BulkRequest::new(BulkChange::Cancel, JobFilter::default()) };
    let begun = server.bulk(request, None).await.unwrap();
    assert!(server.operate(&begun.id, Timestamp::MAX).await.unwrap());
    let operation = server.operation(&begun.id).await.unwrap();
    assert!(operation.dry_run && operation.sample.len() == 20, "{operation:?}");
    assert_eq!((operation.matched, operation.done, operation.refused), (30, 30, 0));
    assert_eq!(scheduled(&server).await, 30);
    // A scheduled job is not replayed.
    let replay = BulkChange::Replay { again: false };
    let request = BulkRequest { dry_run: true, ..BulkRequest::new(replay, JobFilter::default()) };
    let begun = server.bulk(request, None).await.unwrap();
    assert!(server.operate(&begun.id, Timestamp::MAX).await.unwrap());
    let operation = server.operation(&begun.id).await.unwrap();
    assert_eq!((operation.done, operation.refused, operation.sample.len()), (0, 30, 0));
}

#[tokio::test]
async fn a_job_that_no_longer_matches_is_refused() {
    let (server, ..) = server(2).await;
    let mut stored = added(&server, &[]).await;
    let due = TimeRange { from: None, to: Some(server.now() + Duration::from_secs(1)) };
    let filter = JobFilter { due, ..JobFilter::default() };
    let query = ListQuery { filter: filter.clone(), ..all(10) };
    let page = server.engine().list(&query).await.unwrap().jobs;
    let later = Some(server.now() + Duration::from_hours(1));
    let patch = JobPatch { run_at: later, ..JobPatch::default() };
    server.patch(&page[0].id, None, patch, None).await.unwrap();
    server.apply_to_page(&mut stored, &filter, page, Timestamp::MAX).await.unwrap();
    assert_eq!((stored.operation.done, stored.operation.refused), (1, 1));
    assert_eq!(scheduled(&server).await, 1);
}

#[tokio::test]
async fn a_due_job_that_is_to_run_now_keeps_its_place() {
    let (server, _, clock) = server(1).await;
    let before = server.engine().list(&all(1)).await.unwrap().jobs;
    clock.advance(Duration::from_secs(10));
    let patch = BulkPatch { run_at: Some(None), ..BulkPatch::default() };
    let request = BulkRequest::new(BulkChange::Patch(patch), JobFilter::default());
    let begun = server.bulk(request, None).await.unwrap();
    assert!(server.operate(&begun.id, Timestamp::MAX).await.unwrap());
    let operation = server.operation(&begun.id).await.unwrap();
    assert_eq!((operation.matched, operation.refused), (1, 0));
    assert_eq!(server.engine().list(&all(1)).await.unwrap().jobs, before);
}

/// A page that is repeated after a crash, while the first try's jobs have run.
#[tokio::test]
async fn a_job_that_has_run_since_is_not_moved_again() {
    let (server, _, clock) = server(2).await;
    let later = server.now() + Duration::from_hours(1);
    let patch = BulkPatch { run_at: Some(Some(later)), ..BulkPatch::default() };
    let request = BulkRequest::new(BulkChange::Patch(patch), JobFilter::default());
    let mut stored = StoredOperation::new(request, "move-all".into(), server.now());
    clock.advance(Duration::from_secs(1));
    let job = server.engine().list(&all(1)).await.unwrap().jobs.remove(0);
    let claim = Event::Claim {
        version: job.life.version,
        token: Token::new(1),
        worker: None,
        lease: Duration::from_secs(30),
        granted: false,
        decided_at: server.now(),
    };
    let fail = Event::Fail {
        attempt: 1,
        failure: Failure::new(Reason::Failed, "no"),
        next: RetryDecision::Wait(Duration::from_secs(1)),
    };
    let retrying = job.apply(claim, server.now()).unwrap().apply(fail, server.now()).unwrap();
    let write = Write::SetJob { job: retrying.clone(), was: job.life.revision, all: false };
    server.engine().ports().store.commit(vec![vec![write]]).await.unwrap();
    let page = server.engine().list(&all(10)).await.unwrap().jobs;
    server.apply_to_page(&mut stored, &JobFilter::default(), page, Timestamp::MAX).await.unwrap();
    assert_eq!((stored.operation.done, stored.operation.refused), (1, 1));
    assert_eq!(server.engine().job(&job.id, None).await.unwrap(), retrying);
}

/// An older release reads all operations, and refuses one with a field that it does not know.
#[tokio::test]
async fn an_ended_operation_has_no_newer_field() {
    let (server, ..) = server(1).await;
    let filter = JobFilter { max_attempt: Some(5), ..JobFilter::default() };
    let request = BulkRequest { dry_run: true, ..BulkRequest::new(BulkChange::Cancel, filter) };
    let begun = server.bulk(request, None).await.unwrap();
    assert!(server.operate(&begun.id, Timestamp::MAX).await.unwrap());
    let stored = server.stored(&begun.id).await.unwrap().unwrap();
    assert_eq!((stored.operation.matched, stored.operation.done), (1, 1));
    let stored = serde_json::to_value(&stored).unwrap();
    let newer = ["more", "dry_run"].map(|field| stored.get(field));
    assert_eq!(newer, [None, None]);
}

#[tokio::test]
async fn an_operation_with_an_unknown_state_changes_no_job() {
    let (server, ..) = server(3).await;
    let stored = added(&server, &["paused"]).await;
    assert!(server.operate(&stored.operation.id, Timestamp::MAX).await.unwrap());
    let operation = server.operation(&stored.operation.id).await.unwrap();
    assert_eq!((operation.state.as_str(), operation.matched), ("failed", 0));
    assert!(operation.error.as_ref().is_some_and(|error| error.contains("paused")));
    assert_eq!(scheduled(&server).await, 3);
}

#[tokio::test]
async fn a_progress_field_of_a_newer_release_stays() {
    let (server, ..) = server(3).await;
    let mut stored = added(&server, &[]).await;
    stored.operation.unknown.insert("delayed".into(), 7.into());
    server.save(&stored).await.unwrap();
    assert!(server.operate(&stored.operation.id, Timestamp::MAX).await.unwrap());
    let operation = server.operation(&stored.operation.id).await.unwrap();
    assert_eq!((operation.done, operation.unknown["delayed"].as_u64()), (3, Some(7)));
}

#[tokio::test]
async fn a_damaged_operation_is_an_error_and_affects_no_other() {
    let (server, ..) = server(0).await;
    let stored = added(&server, &[]).await;
    // Without the part of its filter that is not known here, it would cancel other jobs.
    let mut newer = serde_json::to_value(&stored).unwrap();
    newer["priority_above"] = 7.into();
    for (name, bytes) in [("damaged", b"{".to_vec()), ("newer", newer.to_string().into_bytes())] {
        let write = Write::SetItem {
            kind: ItemKind::Operation,
            name: name.into(),
            was: 0,
            version: 1,
            bytes: Some(bytes),
        };
        server.engine().ports().store.commit(vec![vec![write]]).await.unwrap();
        let error = server.operation(name).await.unwrap_err();
        assert!(matches!(error, Error::Internal(_)), "{error:?}");
    }
    let unfinished = server.unfinished().await.unwrap();
    let ids: Vec<_> = unfinished.iter().map(|stored| stored.operation.id.as_str()).collect();
    assert_eq!(ids, [stored.operation.id]);
    assert!(server.operate("cancel-all", Timestamp::MAX).await.unwrap());
}
