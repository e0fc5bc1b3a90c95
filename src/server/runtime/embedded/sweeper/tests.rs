//! What a slow store delays. Only the tests and their stores move time.

use std::sync::atomic::{AtomicUsize, Ordering};

use object_store::memory::InMemory;
use parking_lot::Mutex;

use super::*;
use crate::runtime::testing::{builder_on, until};
use tidegate_core::port::{
    Clock, JobStore, StoreError, StoreLayer,
    job_store::{Purged, RecordKind},
    store_layer::Operation,
};
use tidegate_engine::memory::{FakeClock, MemoryStore};

/// Measurements of a test, with the count of a start.
const MEASURED: usize = 4;
/// How far a step of a test moves the clock.
const STEP: Duration = Duration::from_millis(10);

/// A store that takes some time to count its jobs, and records when that began.
struct SlowCounts {
    store: MemoryStore,
    clock: Arc<FakeClock>,
    takes: Duration,
    began: Mutex<Vec<Timestamp>>,
}

impl StoreLayer for SlowCounts {
    fn inner(&self) -> &dyn JobStore {
        &self.store
    }

    async fn around<T: Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        if operation == Operation::Depth {
            self.began.lock().push(self.clock.now());
            self.clock.advance(self.takes);
        }
        call.await
    }
}

/// The time between the starts of two measurements, on a store that takes so long for each.
async fn interval_of_measurements(takes: Duration) -> Duration {
    let clock = Arc::new(FakeClock::default());
    let store = Arc::new(SlowCounts {
        store: MemoryStore::new(),
        clock: Arc::clone(&clock),
        takes,
        began: Mutex::default(),
    });
    let objects = Arc::new(InMemory::new());
    let server = builder_on(&clock, Arc::clone(&store) as _, objects).start().await.unwrap();
    until("it has measured", async || {
        clock.advance(STEP);
        store.began.lock().len() >= MEASURED
    })
    .await;
    server.stop().await;
    let began = store.began.lock();
    began[MEASURED - 1].since(began[MEASURED - 2])
}

#[tokio::test]
async fn measurements_take_a_small_part_of_the_time() {
    let seconds = Duration::from_secs;
    let quick = interval_of_measurements(Duration::ZERO).await;
    assert!((DEPTH_INTERVAL..seconds(15)).contains(&quick), "{quick:?}");
    let slow = interval_of_measurements(seconds(1)).await;
    assert!((seconds(21)..seconds(40)).contains(&slow), "{slow:?}");
    let slowest = interval_of_measurements(seconds(30)).await;
    assert!((seconds(90)..seconds(120)).contains(&slowest), "it has a bound: {slowest:?}");
}

/// A store that never answers a purge of the records of lease calls.
#[derive(Default)]
struct StuckPurges {
    store: MemoryStore,
    purges: AtomicUsize,
    /// The checks of jobs since the first such purge.
    checks: AtomicUsize,
}

impl StoreLayer for StuckPurges {
    fn inner(&self) -> &dyn JobStore {
        &self.store
    }

    async fn around<T: Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        if operation == Operation::Overdue && self.purges.load(Ordering::SeqCst) > 0 {
            self.checks.fetch_add(1, Ordering::SeqCst);
        }
        call.await
    }

    async fn purge(
        &self,
        kind: RecordKind,
        now: Timestamp,
        keep: u64,
        limit: u32,
    ) -> Result<Purged, StoreError> {
        if kind == RecordKind::Lease {
            self.purges.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
        self.inner().purge(kind, now, keep, limit).await
    }
}

#[tokio::test]
async fn a_slow_purge_of_records_delays_no_check_of_leases() {
    let clock = Arc::new(FakeClock::default());
    let store = Arc::new(StuckPurges::default());
    let objects = Arc::new(InMemory::new());
    let server = builder_on(&clock, Arc::clone(&store) as _, objects).start().await.unwrap();
    until("leases are checked", async || {
        clock.advance(POLL_INTERVAL);
        store.checks.load(Ordering::SeqCst) >= 10
    })
    .await;
    assert_eq!(store.purges.load(Ordering::SeqCst), 1, "the next purge waits for this one");
    server.stop().await;
}
