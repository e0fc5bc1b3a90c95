//! Claims whose answer is lost, on a store whose transactions are whole and that others write to.

use std::{pin::pin, sync::Arc, task::Poll, time::Duration};

use futures_util::poll;
use rstest::rstest;
use tidegate_core::{
    job::type_config::TypeConfig, port::job_store::SharedStore, queue::QueueConfig,
};
use tidegate_engine::{
    memory::MemoryStore,
    testkit::faults::{Faults, FaultyStore},
};

use crate::cases::harness::{Harness, work};

/// The jobs would run nowhere until their leases end.
#[rstest]
#[tokio::test]
async fn claimed_jobs_reach_their_worker(
    #[values(None, Some(5))] concurrency: Option<u32>,
    #[values(true, false)] is_written: bool,
) {
    let memory: SharedStore = Arc::new(MemoryStore::new());
    let store = FaultyStore::new(memory, 1).with_flight(Duration::ZERO).shared();
    let store = Arc::new(store);
    let mut harness = Harness::on(Arc::clone(&store) as SharedStore);
    harness.set_queue(QueueConfig { concurrency, ..QueueConfig::default() }).await;
    harness.set_type("work", TypeConfig::default()).await;
    harness.enqueue_many((0..3).map(|_| work())).await;
    let fault = if is_written {
        Faults { lose_answer: 1.0, ..Faults::default() }
    } else {
        Faults { unavailable: 1.0, ..Faults::default() }
    };
    store.set_faults(fault);
    let clock = Arc::clone(&harness.clock);
    let leased = {
        let mut lease = pin!(harness.lease(3));
        loop {
            if let Poll::Ready(leased) = poll!(&mut lease) {
                break leased;
            }
            if store.failed() == 1 {
                store.set_faults(Faults::default());
            }
            clock.advance(Duration::from_millis(1));
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(store.failed(), 1);
    assert_eq!(leased.len(), 3);
    for job in &leased {
        let stored = harness.job(&job.id).await;
        assert_eq!(
            stored.life.running().map(|run| run.token),
            job.life.running().map(|run| run.token)
        );
        assert_eq!(stored.life.attempt, 1);
    }
}
