//! A throttler, and more partitions than one tick visits.

use std::{
    collections::BTreeSet,
    slice,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

use super::{by_region, each_held, region, says, waiting};
use crate::cases::harness::{Harness, demand, every_store, every_store_and_table, with};
use tidegate_core::{
    job::{Job, JobId, Value},
    port::{
        JobStore, StoreError, StoreLayer,
        job_store::{DuePage, DueQuery, SharedStore},
        policy::{ThrottleAnswer, ThrottleCall},
    },
    queue::plugin::Description,
};
use tidegate_engine::{
    Dispatch, TickInput, TickOutcome,
    testkit::{
        FnPolicy,
        policies::{each, hold, run},
    },
};

/// One job of each region.
fn one_each(call: &ThrottleCall) -> ThrottleAnswer {
    let mut used = waiting::running(call);
    each(call, |job| {
        let used = used.entry(region(job)).or_default();
        *used += 1;
        if *used == 1 { run() } else { hold("its share is in use") }
    })
}

/// A queue of 200 slots with this throttler, whose regions take turns.
async fn throttled(
    harness: Harness,
    decide: impl Fn(&ThrottleCall) -> ThrottleAnswer + Send + Sync + 'static,
) -> Harness {
    let policy = FnPolicy::default().throttling(move |_, call| Ok(decide(call)));
    let mut harness = harness.with_policy(policy);
    let says = Description { group_by: vec!["region".into()], ..says() };
    harness.throttled(says, waiting::by_region(200)).await;
    harness.settle().await;
    harness
}

/// This many waiting jobs of each region.
async fn backlogs(harness: &Harness, regions: usize, jobs: usize) {
    for _ in 0..jobs {
        let each = (0..regions).map(|n| with("region", &format!("r{n:03}")));
        harness.enqueue_many(each).await;
    }
}

/// A tick with workers for a hundred jobs.
async fn tick(harness: &mut Harness) -> TickOutcome {
    let demands = vec![demand(&["work"], 100, Dispatch::Claim)];
    harness.tick(TickInput { demands, ..TickInput::default() }).await
}

#[tokio::test]
async fn every_partition_is_visited_before_one_is_read_on() {
    for harness in every_store_and_table() {
        let mut harness = throttled(harness, one_each).await;
        // A tick reads 15 of each region at first.
        backlogs(&harness, 150, 20).await;
        let mut running: Vec<Job> = Vec::new();
        let mut ticks = 0;
        while running.len() < 150 {
            let outcome = tick(&mut harness).await;
            running.extend(outcome.claimed.into_iter().map(|claimed| claimed.job));
            ticks += 1;
            assert!(ticks <= 12, "{} of 150 regions after {ticks} ticks", running.len());
        }
        assert_eq!(by_region(&running).len(), 150);
    }
}

#[tokio::test]
async fn a_free_slot_makes_the_scan_visit_all_partitions_again() {
    for harness in every_store() {
        let mut harness = throttled(harness, one_each).await;
        backlogs(&harness, 150, 20).await;
        let mut running: Vec<Job> = Vec::new();
        // The last ones of these ticks read partitions to their ends, because slots are left.
        for _ in 0..20 {
            let outcome = tick(&mut harness).await;
            assert!(outcome.again, "the partitions have more jobs than were read");
            running.extend(outcome.claimed.into_iter().map(|claimed| claimed.job));
        }
        assert_eq!(running.len(), 150);
        for ended in running.into_iter().step_by(40) {
            harness.succeed(slice::from_ref(&ended)).await;
            let mut ticks = 0;
            let next = loop {
                if let Some(next) = tick(&mut harness).await.claimed.pop() {
                    break next.job;
                }
                ticks += 1;
                assert!(ticks < 6, "{} waits for {ticks} ticks", region(&ended));
            };
            assert_eq!(region(&next), region(&ended));
        }
    }
}

/// A store that counts the pages of partitions that are read behind a position.
struct ReadsBehind {
    store: SharedStore,
    count: AtomicUsize,
}

impl ReadsBehind {
    /// How many there were since the last call.
    fn take(&self) -> usize {
        self.count.swap(0, Ordering::SeqCst)
    }
}

impl StoreLayer for ReadsBehind {
    fn inner(&self) -> &dyn JobStore {
        &*self.store
    }

    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        let behind = |query: &&DueQuery| query.partition.is_some() && query.after.is_some();
        self.count.fetch_add(queries.iter().filter(behind).count(), Ordering::SeqCst);
        self.store.due(queries).await
    }
}

/// A queue as of [`throttled`] whose partitions are being read to their ends: one job of each region
/// runs. And how often the store is read behind a position.
async fn read_on(
    mut harness: Harness,
    regions: usize,
    ticks: usize,
) -> (Harness, Arc<ReadsBehind>, Vec<Job>) {
    let count = AtomicUsize::new(0);
    let reads = Arc::new(ReadsBehind { store: Arc::clone(&harness.store), count });
    harness.store = Arc::clone(&reads) as _;
    let mut harness = throttled(harness, one_each).await;
    backlogs(&harness, regions, 20).await;
    let mut running: Vec<Job> = Vec::new();
    for _ in 0..ticks {
        running.extend(tick(&mut harness).await.claimed.into_iter().map(|claimed| claimed.job));
    }
    assert_eq!(running.len(), regions);
    assert!(reads.take() > 0, "the scan has a cursor");
    (harness, reads, running)
}

#[tokio::test]
async fn a_first_lap_reads_behind_the_cursor_once() {
    for harness in every_store() {
        let (mut harness, reads, running) = Box::pin(read_on(harness, 150, 20)).await;
        for ended in running.into_iter().step_by(40) {
            harness.succeed(slice::from_ref(&ended)).await;
            // These visit all partitions.
            let mut started = Vec::new();
            for _ in 0..3 {
                started.extend(tick(&mut harness).await.claimed);
            }
            let started: Vec<String> = started.iter().map(|claimed| region(&claimed.job)).collect();
            assert_eq!(started, [region(&ended)]);
            assert_eq!(reads.take(), 1);
        }
    }
}

#[tokio::test]
async fn first_pages_that_fill_the_slots_are_all_that_is_read() {
    for harness in every_store() {
        let (mut harness, reads, running) = Box::pin(read_on(harness, 60, 10)).await;
        for ended in &running[..5] {
            harness.succeed(slice::from_ref(ended)).await;
            let started = harness.lease(1).await;
            let started: Vec<String> = started.iter().map(region).collect();
            assert_eq!(started, [region(ended)]);
            assert_eq!(reads.take(), 0);
        }
    }
}

#[tokio::test]
async fn a_job_deep_in_one_of_many_partitions_is_found() {
    for place in ["r000", "r069"] {
        let [harness, _] = every_store();
        let mut harness = throttled(harness, |call| {
            let is_wanted = |job: &Job| job.spec.attributes.contains_key("wanted");
            each(call, |job| if is_wanted(job) { run() } else { hold("it is not wanted") })
        })
        .await;
        backlogs(&harness, 70, 17).await;
        harness.wait(1);
        let mut wanted = with("region", place);
        wanted.options.attributes.insert("wanted".into(), Value::Text("yes".into()));
        let wanted = harness.enqueue(wanted).await;
        let mut ticks = 0;
        let found = loop {
            let mut outcome = tick(&mut harness).await;
            if let Some(found) = outcome.claimed.pop() {
                break found.job;
            }
            ticks += 1;
            assert!(outcome.again && ticks < 200, "{place}: not found in {ticks} ticks");
        };
        assert_eq!(found.id, wanted.id);
    }
}

#[tokio::test]
async fn a_scan_of_many_partitions_offers_each_job_and_ends() {
    for (jobs, most) in [(3, 4), (17, 200)] {
        let offered: Arc<Mutex<BTreeSet<JobId>>> = Arc::default();
        let noted = Arc::clone(&offered);
        let [harness, _] = every_store();
        let mut harness = throttled(harness, move |call| {
            noted.lock().extend(call.candidates.iter().map(|job| job.id.clone()));
            each_held(call)
        })
        .await;
        backlogs(&harness, 70, jobs).await;
        let mut ticks = 1;
        while tick(&mut harness).await.again {
            ticks += 1;
            assert!(ticks < most, "{jobs} jobs of each: {ticks} ticks");
        }
        assert_eq!(offered.lock().len(), 70 * jobs);
    }
}

/// Only the engine that has read a first page knows whether its partition has more.
#[tokio::test]
async fn a_restart_during_a_lap_hides_no_job() {
    for harness in every_store_and_table() {
        let offered: Arc<Mutex<BTreeSet<JobId>>> = Arc::default();
        let noted = Arc::clone(&offered);
        let mut harness = throttled(harness, move |call| {
            noted.lock().extend(call.candidates.iter().map(|job| job.id.clone()));
            each_held(call)
        })
        .await;
        // The first tick visits this region last, and reads 15 of its jobs.
        harness.enqueue_many((0..20).map(|_| with("region", "r063"))).await;
        backlogs(&harness, 130, 1).await;
        assert!(tick(&mut harness).await.again);
        harness.restart();
        let mut ticks = 1;
        while tick(&mut harness).await.again {
            ticks += 1;
            assert!(ticks < 200, "{ticks} ticks");
        }
        assert_eq!(offered.lock().len(), 150);
    }
}
