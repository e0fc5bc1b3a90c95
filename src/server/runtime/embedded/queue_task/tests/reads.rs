//! What the lease calls of a limited queue read.

use super::*;
use crate::runtime::testing::RecordingStore;
use tidegate_core::port::store_layer::Operation;
use tidegate_engine::request::ReportOutcome;

/// The report that the running attempt of `job` has succeeded.
fn success(job: &Job) -> Report {
    Report {
        id: job.id.clone(),
        job_type: None,
        attempt: job.life.attempt,
        token: None,
        outcome: ReportOutcome::Succeeded { result: None },
        checkpoint: None,
    }
}

/// What a lease call with these reports reads of the configuration, jobs and ledgers; and the job that
/// it gets.
async fn reads(
    server: &Server,
    store: &RecordingStore,
    reports: Vec<Report>,
) -> (Vec<Operation>, Job) {
    // Whatever else the server has to do is done.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    store.take();
    let mut leased = server.lease(LeaseRequest { reports, ..request() }).await.unwrap();
    let mut calls = store.take();
    assert!(leased.reports.iter().all(Result::is_ok));
    calls.retain(|call| {
        use Operation as O;
        matches!(call, O::ItemsVersion | O::Items | O::Ledger | O::Due | O::Get | O::Running)
    });
    (calls, leased.jobs.remove(0))
}

#[tokio::test]
async fn a_lease_call_claims_what_the_one_before_has_read() {
    let clock = Arc::new(FakeClock::default());
    let store = RecordingStore::new(Arc::new(MemoryStore::new()));
    let server = builder_on(&clock, Arc::clone(&store) as _, Arc::new(InMemory::new()));
    let server = server.start().await.unwrap();
    let limited = QueueConfig { concurrency: Some(2), ..QueueConfig::default() };
    server.put_queue(&name("default"), limited, None).await.unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    for _ in 0..8 {
        enqueue(&server, "work").await;
    }
    // The task was idle, and got no messages about these jobs.
    let (_, job) = reads(&server, &store, Vec::new()).await;
    let (calls, mut job) = reads(&server, &store, vec![success(&job)]).await;
    assert_eq!(calls, [Operation::ItemsVersion, Operation::Due]);
    for _ in 0..3 {
        let (calls, next) = reads(&server, &store, vec![success(&job)]).await;
        assert_eq!(calls, [Operation::ItemsVersion], "the call reads it, and not the tick");
        job = next;
    }
    // The message about a new job has the next tick read.
    enqueue(&server, "work").await;
    let (calls, _) = reads(&server, &store, vec![success(&job)]).await;
    assert_eq!(calls, [Operation::ItemsVersion, Operation::Due]);
}
