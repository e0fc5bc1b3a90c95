//! Ticks that follow each other at once claim what one of them has read, within the limits and in order.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tidegate_backends::sqlite::SqliteStore;
use tidegate_core::{
    job::{Job, JobId, type_config::TypeConfig},
    port::{
        JobStore, StoreError, StoreLayer,
        job_store::{DuePage, DueQuery, SharedStore},
        store_layer::Operation,
    },
    queue::{QueueConfig, config::Constraint, matcher::Matcher},
};
use tidegate_engine::{
    Dispatch, TickInput,
    memory::MemoryStore,
    request::{Report, ReportOutcome},
};

use crate::cases::harness::{Harness, demand, failed, queue, report, with, work};

/// Counts the reads of pages of candidates, and of the version of the configuration.
struct CountedReads {
    store: SharedStore,
    pages: AtomicUsize,
    versions: AtomicUsize,
}

impl CountedReads {
    /// The reads of pages since the last call.
    fn pages(&self) -> usize {
        self.pages.swap(0, Ordering::Relaxed)
    }

    /// The reads of the version of the configuration since the last call.
    fn versions(&self) -> usize {
        self.versions.swap(0, Ordering::Relaxed)
    }
}

impl StoreLayer for CountedReads {
    fn inner(&self) -> &dyn JobStore {
        &*self.store
    }

    async fn around<T: Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        if operation == Operation::ItemsVersion {
            self.versions.fetch_add(1, Ordering::Relaxed);
        }
        call.await
    }

    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        // A queue without critical jobs has no page of them to read.
        let pages = queries.iter().filter(|query| !query.critical).count();
        self.pages.fetch_add(pages, Ordering::Relaxed);
        self.inner().due(queries).await
    }
}

/// A harness on each embedded store, with what it reads.
fn counted() -> [(Harness, Arc<CountedReads>); 2] {
    let sqlite = SqliteStore::open_temporary().unwrap();
    let stores: [SharedStore; 2] = [Arc::new(MemoryStore::new()), Arc::new(sqlite)];
    stores.map(|store| {
        let (pages, versions) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let counted = Arc::new(CountedReads { store, pages, versions });
        (Harness::on(Arc::clone(&counted) as _), counted)
    })
}

/// Enqueues `count` jobs, one after the other.
async fn enqueue(harness: &Harness, count: usize) -> Vec<JobId> {
    let mut ids = Vec::with_capacity(count);
    for _ in 0..count {
        ids.push(harness.enqueue(work()).await.id);
        harness.clock.advance(Duration::from_millis(1));
    }
    ids
}

/// A tick that lease calls for `capacity` jobs cause alone, with these reports.
async fn tick(harness: &mut Harness, capacity: u32, reports: Vec<Report>) -> Vec<Job> {
    let demands = vec![demand(&["work"], capacity, Dispatch::Claim)];
    let input = TickInput { reports, demands, unchanged: true, ..TickInput::default() };
    harness.tick(input).await.claimed.into_iter().map(|claimed| claimed.job).collect()
}

fn ids(jobs: &[Job]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id.clone()).collect()
}

fn succeeded(job: &Job) -> Report {
    report(job, ReportOutcome::Succeeded { result: None })
}

#[tokio::test]
async fn ticks_claim_in_order_what_an_earlier_one_has_read() {
    for (mut harness, reads) in counted() {
        harness.with_limit(100).await;
        let jobs = enqueue(&harness, 12).await;
        // One more than it needs is not enough for a tick that needs as many.
        let cases = [(1, 1), (3, 0), (4, 0), (1, 1), (2, 0)];
        let mut claimed = Vec::new();
        reads.pages();
        for (capacity, pages) in cases {
            let leased = tick(&mut harness, capacity, Vec::new()).await;
            assert_eq!(leased.len(), capacity as usize);
            assert_eq!(reads.pages(), pages, "{capacity} after {}", claimed.len());
            claimed.extend(ids(&leased));
        }
        assert_eq!(claimed, jobs[..11]);
        assert_eq!(harness.granted().await, 11);
    }
}

#[tokio::test]
async fn a_tick_that_needs_as_many_reads_none_ahead() {
    for (mut harness, reads) in counted() {
        harness.with_limit(100).await;
        let jobs = enqueue(&harness, 20).await;
        assert_eq!(ids(&tick(&mut harness, 8, Vec::new()).await), jobs[..8]);
        reads.pages();
        assert_eq!(ids(&tick(&mut harness, 1, Vec::new()).await), jobs[8..9]);
        assert_eq!(reads.pages(), 1);
    }
}

#[tokio::test]
async fn a_limit_holds_for_candidates_of_an_earlier_tick() {
    for (mut harness, reads) in counted() {
        harness.with_limit(2).await;
        let jobs = enqueue(&harness, 20).await;
        let mut running = tick(&mut harness, 5, Vec::new()).await;
        assert_eq!(ids(&running), jobs[..2]);
        reads.pages();
        for next in 2..6 {
            let done = succeeded(&running.remove(0));
            let leased = tick(&mut harness, 5, vec![done]).await;
            assert_eq!(ids(&leased), jobs[next..=next]);
            assert_eq!((reads.pages(), harness.granted().await), (0, 2));
            running.extend(leased);
        }
        assert!(tick(&mut harness, 5, Vec::new()).await.is_empty(), "no slot is free");
    }
}

#[tokio::test]
async fn other_ticks_and_old_candidates_are_read_again() {
    for (mut harness, reads) in counted() {
        harness.with_limit(100).await;
        let jobs = enqueue(&harness, 30).await;
        let mut claimed = ids(&tick(&mut harness, 1, Vec::new()).await);
        // Something may have changed.
        reads.pages();
        claimed.extend(ids(&harness.lease(1).await));
        assert_eq!(reads.pages(), 1);
        claimed.extend(ids(&tick(&mut harness, 3, Vec::new()).await));
        reads.pages();
        harness.clock.advance(Duration::from_millis(20));
        claimed.extend(ids(&tick(&mut harness, 1, Vec::new()).await));
        assert_eq!(reads.pages(), 0, "they are not too old");
        harness.clock.advance(Duration::from_millis(1));
        claimed.extend(ids(&tick(&mut harness, 1, Vec::new()).await));
        assert_eq!(reads.pages(), 1, "they are");
        // Another configuration may have another order. This one leaves the ledger as it is: a tick on
        // an older ledger is refused and reads twice.
        let other = "other".parse().unwrap();
        harness.engine.put_queue(&other, QueueConfig::default(), None).await.unwrap();
        reads.pages();
        claimed.extend(ids(&tick(&mut harness, 1, Vec::new()).await));
        assert_eq!(reads.pages(), 1);
        assert_eq!(claimed, jobs[..8]);
    }
}

#[tokio::test]
async fn a_job_that_goes_first_is_found_by_the_next_tick() {
    for (mut harness, _) in counted() {
        harness.with_limit(100).await;
        let jobs = enqueue(&harness, 5).await;
        assert_eq!(ids(&tick(&mut harness, 1, Vec::new()).await), jobs[..1]);
        let first =
            harness.enqueue(work().with_options(|options| options.priority = Some(1))).await;
        // The message about it causes this tick.
        assert_eq!(ids(&harness.lease(2).await), [first.id, jobs[1].clone()]);
    }
}

#[tokio::test]
async fn a_delayed_job_goes_first_from_its_due_time_on() {
    for (mut harness, reads) in counted() {
        harness.with_limit(100).await;
        let jobs = enqueue(&harness, 5).await;
        let mut delayed = work().with_options(|options| options.priority = Some(1));
        delayed.run_at = Some(harness.now() + Duration::from_millis(2));
        let delayed = harness.enqueue(delayed).await;
        // It reads all jobs that are due, and when the next one is.
        assert_eq!(ids(&tick(&mut harness, 1, Vec::new()).await), jobs[..1]);
        harness.clock.advance(Duration::from_millis(2));
        reads.pages();
        assert_eq!(ids(&tick(&mut harness, 1, Vec::new()).await), [delayed.id]);
        assert_eq!(reads.pages(), 1);
    }
}

#[tokio::test]
async fn a_candidate_that_has_changed_is_read_again() {
    for (mut harness, reads) in counted() {
        harness.with_limit(100).await;
        let jobs = enqueue(&harness, 5).await;
        assert_eq!(ids(&tick(&mut harness, 1, Vec::new()).await), jobs[..1]);
        // By a process that sends no message.
        harness.another().cancel(&jobs[1], None, false).await.unwrap();
        reads.pages();
        let leased = tick(&mut harness, 2, Vec::new()).await;
        assert_eq!(ids(&leased), jobs[2..4], "its claim was refused");
        assert_eq!(reads.pages(), 1);
        assert_eq!(harness.granted().await, 3);
    }
}

#[tokio::test]
async fn nothing_is_kept_behind_a_job_that_is_held() {
    for (mut harness, reads) in counted() {
        let constraint = Constraint {
            name: "tenant".into(),
            matcher: Matcher::default(),
            per: Some("tenant".into()),
            concurrency: Some(1),
            rate: None,
        };
        let constraints = vec![constraint];
        let config = QueueConfig { concurrency: Some(9), constraints, ..QueueConfig::default() };
        harness.set_queue(config).await;
        harness.set_type("work", TypeConfig::default()).await;
        let mut jobs = Vec::new();
        for tenant in ["a", "a", "b", "c", "d"] {
            jobs.push(harness.enqueue(with("tenant", tenant)).await.id);
            harness.clock.advance(Duration::from_millis(1));
        }
        let running = tick(&mut harness, 2, Vec::new()).await;
        assert_eq!(ids(&running), [jobs[0].clone(), jobs[2].clone()]);
        reads.pages();
        // Its slot is free for the job that was held.
        let leased = tick(&mut harness, 1, vec![succeeded(&running[0])]).await;
        assert_eq!(ids(&leased), jobs[1..2]);
        assert_eq!(reads.pages(), 1);
    }
}

#[tokio::test]
async fn nothing_is_kept_in_a_tick_that_schedules_a_job() {
    for (mut harness, reads) in counted() {
        harness.with_limit(100).await;
        let jobs = enqueue(&harness, 9).await;
        let running = tick(&mut harness, 1, Vec::new()).await;
        reads.pages();
        let leased = tick(&mut harness, 1, vec![report(&running[0], failed())]).await;
        assert_eq!((ids(&leased), reads.pages()), (jobs[1..2].to_vec(), 0));
        let leased = tick(&mut harness, 1, Vec::new()).await;
        assert_eq!((ids(&leased), reads.pages()), (jobs[2..3].to_vec(), 1));
    }
}

#[tokio::test]
async fn a_tick_takes_the_configuration_of_its_calls() {
    for (mut harness, reads) in counted() {
        harness.with_limit(100).await;
        enqueue(&harness, 9).await;
        let input = || TickInput {
            demands: vec![demand(&["work"], 1, Dispatch::Claim)],
            catalog_age: Some(Duration::from_millis(20)),
            ..TickInput::default()
        };
        // A call reads it, and then causes the tick.
        harness.engine.catalog().await.unwrap();
        reads.versions();
        assert_eq!(harness.tick(input()).await.claimed.len(), 1);
        assert_eq!(reads.versions(), 0);
        harness.clock.advance(Duration::from_millis(21));
        assert_eq!(harness.tick(input()).await.claimed.len(), 1);
        assert_eq!(reads.versions(), 1, "the read is too old");
        // Another process closes the queue. No call has read it since, but the commit compares.
        let other = harness.another();
        let limited = |most| QueueConfig { concurrency: Some(most), ..QueueConfig::default() };
        other.put_queue(&queue(), limited(0), None).await.unwrap();
        assert!(harness.tick(input()).await.claimed.is_empty());
        other.put_queue(&queue(), limited(9), None).await.unwrap();
        harness.engine.catalog().await.unwrap();
        assert_eq!(harness.tick(input()).await.claimed.len(), 1);
    }
}
