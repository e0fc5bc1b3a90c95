//! The serverless deployment mode: functions that are invoked, answer, and may never run again.
//!
//! ```text
//!   a verb ─▶ engine ─▶ outbox ──flush, before the answer──▶ WorkQueue: work, hints, timers
//!   hints, timers ─▶ Server::tick_queue ─▶ work      work ─▶ Server::deliver ─▶ outbox
//!   every minute: Server::maintenance_sweep
//! ```
//!
//! No process must keep anything in memory. If a process dies or a message is lost, the maintenance
//! sweep finds in the store what must follow.
//!
//! Read in this order: [`outbox`] (follow-up messages), [`ticks`] (ticks of a queue), [`sweep`] (the
//! maintenance sweep), [`deliver`] and [`unclaimed`] (work becomes attempts), [`lease`] and
//! [`demands`] (pull workers).

mod deliver;
mod demands;
mod lease;
pub(crate) mod outbox;
mod sweep;
mod ticks;
mod unclaimed;

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

pub use outbox::NEAR;
pub use sweep::SweepReport;

use super::Builder;
use crate::runtime::embedded::queue_task::QueueSnapshot;
use tidegate_core::{
    job::{QueueName, TypeName},
    port::job_store::StateFilter,
    time::Timestamp,
};
use tidegate_engine::{Engine, Error, LedgerView, TickCache, request::WorkerStatus};

/// What a serverless server has instead of tasks.
#[derive(Default)]
pub(super) struct Serverless {
    pub(super) outbox: outbox::Outbox,
    /// The tick caches by queue. A stale one costs a read.
    caches: Mutex<HashMap<QueueName, TickCache>>,
    /// The latest tick of each queue in this process.
    ticks: Mutex<HashMap<QueueName, LatestTick>>,
    /// The places of waiting lease calls.
    places: demands::Places,
    /// What lease calls have seen of each queue.
    seen: Mutex<HashMap<QueueName, lease::SeenQueue>>,
}

/// A tick of a queue that succeeded.
#[derive(Clone, Copy, Default)]
struct LatestTick {
    began: Timestamp,
    /// When the queue may tick again for a hint.
    next_at: Timestamp,
}

impl Serverless {
    fn take_cache(&self, queue: &QueueName) -> TickCache {
        self.caches.lock().remove(queue).unwrap_or_default()
    }

    fn latest_tick(&self, queue: &QueueName) -> LatestTick {
        self.ticks.lock().get(queue).copied().unwrap_or_default()
    }

    fn note_tick(&self, queue: &QueueName, tick: LatestTick) {
        self.ticks.lock().insert(queue.clone(), tick);
    }

    fn keep_cache(&self, queue: &QueueName, cache: TickCache) {
        self.caches.lock().insert(queue.clone(), cache);
    }
}

/// The snapshot of a queue, from its ledger.
pub(super) async fn snapshot(engine: &Engine, queue: &QueueName) -> Result<QueueSnapshot, Error> {
    let mut snapshot = QueueSnapshot::default();
    if let Some((ledger, batches)) = engine.ports().store.ledger(queue).await? {
        let catalog = engine.catalog().await?;
        let mut view = LedgerView::new(ledger, batches);
        snapshot.running_weight = Some(view.usage(&catalog.limits(queue)).weight());
    }
    Ok(snapshot)
}

/// What is known of the workers of each type of a queue: how many of its jobs run.
pub(super) async fn worker_status(
    engine: &Engine,
    queue: &QueueName,
) -> Result<Box<dyn Fn(&TypeName) -> WorkerStatus + Send + Sync>, Error> {
    let depths = engine.ports().store.depth(Some(queue)).await?.counts.into_iter();
    let running: BTreeMap<TypeName, u64> = depths
        .filter(|depth| depth.state == StateFilter::Running)
        .map(|depth| (depth.job_type, depth.jobs))
        .collect();
    Ok(Box::new(move |job_type| WorkerStatus {
        in_use: running.get(job_type).copied().unwrap_or(0),
        ..WorkerStatus::default()
    }))
}

impl Builder {
    /// Makes the server serverless: it starts no task. [`flush`](super::Server::flush) publishes
    /// follow-up messages. Other invocations process them with
    /// [`tick_queue`](super::Server::tick_queue), [`deliver`](super::Server::deliver) and
    /// [`maintenance_sweep`](super::Server::maintenance_sweep).
    #[must_use]
    pub fn serverless(mut self) -> Self {
        self.serverless = true;
        self
    }
}
