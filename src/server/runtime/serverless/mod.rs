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
//! Read in this order: [`outbox`] (follow-up messages), [`sweep`] (ticks of a queue, and the
//! maintenance sweep), [`deliver`] (work becomes attempts), [`lease`] (pull workers).

mod deliver;
mod lease;
pub(crate) mod outbox;
mod sweep;

use std::collections::HashMap;

use parking_lot::Mutex;

pub use outbox::NEAR;
pub use sweep::SweepReport;

use super::Builder;
use crate::runtime::embedded::queue_task::QueueSnapshot;
use tidegate_core::job::QueueName;
use tidegate_engine::{Engine, Error, LedgerView, TickCache};

/// The assumed duration of an attempt for `desired_workers`: no process measures it.
const ASSUMED_RUN_SECONDS: f64 = 1.0;

/// What a serverless server has instead of tasks.
#[derive(Default)]
pub(super) struct Serverless {
    pub(super) outbox: outbox::Outbox,
    /// The tick caches by queue. A stale one costs a read.
    caches: Mutex<HashMap<QueueName, TickCache>>,
}

impl Serverless {
    fn take_cache(&self, queue: &QueueName) -> TickCache {
        self.caches.lock().remove(queue).unwrap_or_default()
    }

    fn keep_cache(&self, queue: &QueueName, cache: TickCache) {
        self.caches.lock().insert(queue.clone(), cache);
    }
}

/// The snapshot of a queue, from its ledger. The ledger has no counts of held candidates, so each
/// rule that holds some counts as one.
pub(super) async fn snapshot(engine: &Engine, queue: &QueueName) -> Result<QueueSnapshot, Error> {
    let mut snapshot =
        QueueSnapshot { mean_run_seconds: ASSUMED_RUN_SECONDS, ..QueueSnapshot::default() };
    if let Some((ledger, batches)) = engine.ports().store.ledger(queue).await? {
        let catalog = engine.catalog().await?;
        snapshot.held = ledger.held.keys().map(|rule| (rule.to_string(), 1)).collect();
        let mut view = LedgerView::new(ledger, batches);
        snapshot.running_weight = view.usage(&catalog.limits(queue)).weight();
    }
    Ok(snapshot)
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
