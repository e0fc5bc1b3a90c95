//! Bulk operations: a repeat starts nothing new, and internal jobs of the server are not changed.

use std::{sync::Arc, time::Duration};
use tidegate_core::error_code::ErrorCode;

use async_trait::async_trait;
use tidegate_backends::system::SystemEntropy;
use tidegate_core::{
    job::{Outcome, Payload, type_config::TypeConfig},
    port::{
        JobFilter, Target,
        job_filter::TimeRange,
        job_store::{ListQuery, StateFilter},
        policy::NoPolicy,
        target::{Request, Response, TargetError},
    },
    time::Timestamp,
};
use tidegate_engine::{
    Error, Ports,
    memory::{FakeClock, MemoryStore, MemoryWorkQueue},
    request::{BulkChange, BulkRequest, NewJob, Operation},
    testkit::{
        builders::name,
        faults::{Faults, FaultyStore},
    },
};
use tidegate_server::{Server, runtime::Handled};

/// A target that is never reached.
struct Unreachable;

#[async_trait]
impl Target for Unreachable {
    async fn call(&self, _: Request) -> Result<Response, TargetError> {
        Err(TargetError::NotConnected("no target is reachable".into()))
    }
}

/// A server whose jobs of type `work` succeed at once, and its store. Its clock does not advance.
async fn place() -> (Server, Arc<FaultyStore>) {
    place_at(Arc::new(FakeClock::default())).await
}

/// The same with this clock.
async fn place_at(clock: Arc<FakeClock>) -> (Server, Arc<FaultyStore>) {
    let store =
        Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), 1).with_flight(Duration::ZERO));
    let ports = Ports {
        store: Arc::clone(&store) as _,
        objects: Arc::new(object_store::memory::InMemory::new()),
        work: Arc::new(MemoryWorkQueue::default()),
        clock,
        entropy: Arc::new(SystemEntropy),
        policy: Arc::new(NoPolicy),
    };
    let server = Server::builder(ports, Arc::new(Unreachable));
    let server = server
        .handler(name("work"), 8, |_| Box::pin(async { Handled::Succeeded(None) }))
        .start()
        .await
        .unwrap();
    for kind in ["work", "later"] {
        server.put_type(&name(kind), TypeConfig::default(), None).await.unwrap();
    }
    (server, store)
}

async fn until<T>(what: &str, mut good: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..20_000 {
        if let Some(found) = good().await {
            return found;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never came to that: {what}")
}

async fn count(server: &Server, job_type: &str) -> usize {
    let filter = JobFilter { job_type: Some(name(job_type)), ..JobFilter::default() };
    let query = ListQuery { filter, limit: 100, ..ListQuery::default() };
    server.list(&query).await.unwrap().jobs.len()
}

async fn over(server: &Server, operation: &Operation) -> Operation {
    let over = async || {
        Some(server.operation(&operation.id).await.unwrap())
            .filter(|operation| operation.ended_at.is_some())
    };
    until("the operation is over", over).await
}

/// Every job of type `work` that succeeded.
fn succeeded() -> JobFilter {
    let states = vec![StateFilter::Ended(Outcome::Succeeded)];
    JobFilter { job_type: Some(name("work")), states, ..JobFilter::default() }
}

fn since(from: Timestamp) -> TimeRange {
    TimeRange { from: Some(from), to: None }
}

fn replay_of(filter: JobFilter) -> BulkRequest {
    BulkRequest::new(BulkChange::Replay { again: false }, filter)
}

async fn three_have_succeeded(server: &Server) {
    let jobs = (0..3).map(|_| NewJob::new(name("work"), Payload::null())).collect();
    assert!(server.enqueue_many(jobs).await.iter().all(Result::is_ok));
    let ended = async || {
        let query = ListQuery {
            filter: JobFilter {
                job_type: Some(name("work")),
                states: succeeded().states,
                ..JobFilter::default()
            },
            limit: 100,
            ..ListQuery::default()
        };
        (server.list(&query).await.unwrap().jobs.len() == 3).then_some(())
    };
    until("three have succeeded", ended).await;
}

#[tokio::test]
async fn a_repeated_bulk_replay_replays_nothing_again() {
    let (server, _) = place().await;
    three_have_succeeded(&server).await;
    let ask =
        async |change, filter, key| server.bulk(BulkRequest::new(change, filter), Some(key)).await;
    let replay = BulkChange::Replay { again: false };
    let first = ask(replay.clone(), succeeded(), "k1").await.unwrap();
    assert_eq!(over(&server, &first).await.done, 3);
    let again = ask(replay.clone(), succeeded(), "k1").await.unwrap();
    assert_eq!((again.id, again.done), (first.id.clone(), 3), "the operation that is over");
    assert_eq!(count(&server, "work").await, 6);
    for (kind, filter) in [
        (BulkChange::Cancel, succeeded()),
        (replay.clone(), JobFilter { created: since(server.now()), ..succeeded() }),
        (replay.clone(), JobFilter { min_attempt: Some(1), ..succeeded() }),
    ] {
        let refused = ask(kind, filter, "k1").await.unwrap_err();
        assert!(
            matches!(refused, Error::Conflict { code: ErrorCode::IdempotencyKeyReused, .. }),
            "{refused:?}"
        );
    }
    let other = ask(BulkChange::Cancel, succeeded(), "k2").await.unwrap();
    assert_ne!(other.id, first.id);
    server.stop().await;
}

#[tokio::test]
async fn a_bulk_replay_skips_what_was_replayed_before() {
    let clock = Arc::new(FakeClock::default());
    let (server, _) = place_at(Arc::clone(&clock)).await;
    three_have_succeeded(&server).await;
    clock.advance(Duration::from_millis(1));
    let created = TimeRange { to: Some(server.now()), ..TimeRange::default() };
    let originals = JobFilter { created, ..succeeded() };
    let counts = |operation: &Operation| {
        (operation.matched, operation.done, operation.refused, operation.skipped)
    };
    let replay = async |again| {
        let operation = server
            .bulk(BulkRequest::new(BulkChange::Replay { again }, originals.clone()), None)
            .await
            .unwrap();
        over(&server, &operation).await
    };
    assert_eq!(counts(&replay(false).await), (3, 3, 0, 0));
    clock.advance(Duration::from_millis(1));
    let skipped = replay(false).await;
    assert_eq!(counts(&skipped), (3, 0, 0, 3));
    for job in &skipped.skipped_jobs {
        let original = server.job(&job.id, None).await.unwrap();
        assert_eq!(
            (job.reason.as_str(), Some(&job.holder)),
            ("already_replayed", original.life.replayed_by.as_ref())
        );
    }
    assert_eq!(counts(&replay(true).await), (3, 3, 0, 0));
    assert_eq!(count(&server, "work").await, 9);
    server.stop().await;
}

#[tokio::test]
async fn a_repeat_starts_an_operation_whose_response_was_lost() {
    let (server, store) = place().await;
    three_have_succeeded(&server).await;
    store.set_faults(Faults { lose_answer: 1.0, ..Faults::default() });
    assert!(matches!(
        server.bulk(replay_of(succeeded()), Some("k")).await,
        Err(Error::Unavailable { .. })
    ));
    store.set_faults(Faults::default());
    let again = server.bulk(replay_of(succeeded()), Some("k")).await.unwrap();
    assert_eq!(over(&server, &again).await.done, 3);
    assert_eq!(count(&server, "work").await, 6);
    server.stop().await;
}

#[tokio::test]
async fn a_bulk_cancel_keeps_pending_completion_callbacks() {
    let (server, _) = place().await;
    let with_callback = NewJob::new(name("work"), Payload::null()).with_options(|options| {
        options.callback_url = Some("http://127.0.0.1:9/callback".parse().unwrap());
    });
    server.enqueue(with_callback).await.unwrap();
    let callback = "tidegate.callback";
    until("the callback is enqueued", async || (count(&server, callback).await == 1).then_some(()))
        .await;
    server.enqueue(NewJob::new(name("later"), Payload::null())).await.unwrap();
    let live = JobFilter {
        states: vec![StateFilter::Scheduled, StateFilter::Running],
        ..JobFilter::default()
    };
    let all = server.bulk(BulkRequest::new(BulkChange::Cancel, live.clone()), None).await.unwrap();
    assert_eq!(over(&server, &all).await.matched, 1, "the one of type `later`");
    let named = server
        .bulk(
            BulkRequest::new(
                BulkChange::Cancel,
                JobFilter { job_type: Some(name(callback)), ..live },
            ),
            None,
        )
        .await
        .unwrap();
    assert_eq!(over(&server, &named).await.matched, 1);
    // It is not stopped: a stop waits for the call, whose retry is due later, and time does not
    // advance.
}
