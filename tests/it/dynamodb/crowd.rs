//! Very many jobs that are due together, on a table: each is read once, and a lookahead that has no
//! more time goes on later.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tidegate_backends::{
    dynamodb::{DynamoStore, memory::MemoryTable},
    testkit::meter::table::Metered,
};
use tidegate_core::{
    job::{Payload, type_config::TypeConfig},
    port::{
        JobStore, StoreError,
        store_layer::{Operation, StoreLayer},
    },
    target::{Push, TargetConfig},
};
use tidegate_engine::{
    memory::{FakeClock, SeededEntropy},
    request::NewJob,
    testkit::builders::name,
};

use crate::cases::harness::Harness;

/// A store each of whose pages of due jobs takes a second.
struct Slow {
    store: DynamoStore,
    clock: Arc<FakeClock>,
}

impl StoreLayer for Slow {
    fn inner(&self) -> &dyn JobStore {
        &self.store
    }

    async fn around<T: Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        if operation == Operation::Due {
            self.clock.advance(Duration::from_secs(1));
        }
        call.await
    }
}

/// A queue with a push type on `table`.
async fn harness(table: &Arc<Metered<MemoryTable>>) -> Harness {
    let clock = Arc::new(FakeClock::default());
    let entropy = Arc::new(SeededEntropy::new(3));
    let store = DynamoStore::new(Arc::clone(table) as _, Arc::clone(&clock) as _, entropy);
    let slow = Slow { store, clock: Arc::clone(&clock) };
    let harness = Harness::at(Arc::new(slow), clock);
    let target = TargetConfig::Push(Box::new(Push::to("http://worker.example/")));
    let push = TypeConfig { target: Some(target), ..TypeConfig::default() };
    harness.set_type("work", push).await;
    harness
}

async fn enqueue(harness: &Harness, jobs: usize, after: Duration) {
    let run_at = Some(harness.now() + after);
    let new = || NewJob { run_at, ..NewJob::new(name("work"), Payload::null()) };
    for _ in 0..jobs / 100 {
        harness.enqueue_many((0..100).map(|_| new())).await;
    }
}

#[tokio::test]
async fn the_jobs_of_one_instant_are_read_once() {
    let table = Metered::new(MemoryTable::new());
    let harness = harness(&table).await;
    enqueue(&harness, 6000, Duration::from_secs(200)).await;
    harness.wait(100);
    let before = table.bill();
    assert_eq!(harness.look_ahead().await.unwrap().sent, 6000);
    let read = (table.bill() - before).reads;
    // A row is smaller than a quarter of a unit. The rest are configuration and registries.
    assert!(read <= 6000.0 / 4.0 + 20.0, "{read}");
}

#[tokio::test]
async fn a_lookahead_without_time_goes_on_where_it_stopped() {
    let table = Metered::new(MemoryTable::new());
    let harness = harness(&table).await;
    assert_eq!(harness.look_ahead().await.unwrap().sent, 0);
    // No sweep runs for a day.
    for hour in 1..=24 {
        enqueue(&harness, 100, Duration::from_hours(hour)).await;
    }
    harness.wait(25 * 3600);
    let queues = [name("default")];
    let (mut sweeps, mut sent) = (0, HashSet::new());
    loop {
        let stop_at = harness.now() + Duration::from_secs(7);
        let lookahead = harness.look_ahead_until(&queues, stop_at).await.unwrap();
        sent.extend(harness.work().into_iter().map(|work| work.job));
        sweeps += 1;
        // The jobs that are late by hours may need more sweeps.
        if !lookahead.stopped || lookahead.sent == 0 {
            break;
        }
        assert!(lookahead.sent <= 800, "some were sent twice: {}", lookahead.sent);
        assert!(sweeps < 20, "it makes progress: {}", sent.len());
    }
    assert_eq!(sent.len(), 2400);
    assert!(sweeps > 2, "the time was short: {sweeps}");
    assert!(!harness.look_ahead().await.unwrap().stopped, "it ends if it has time");
}
