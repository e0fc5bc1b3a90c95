//! The home of a server whose process does not stay: a function that is called, answers, and may never be called again.
//!
//! ```text
//!   a verb ─▶ engine ─▶ a note of what must follow ──flush, before the answer──▶ WorkQueue: work, hints, wake-ups
//!   hints, wake-ups ─▶ Server::tick_queue ─▶ work        work ─▶ Server::deliver ─▶ notes        every minute: Server::minute
//! ```
//!
//! The one thing to know: nothing here must be remembered. Whatever is not told (a process died, a message was lost) is found in
//! the store by the minute's round.
//!
//! Read in this order: [`outbox`] (what is told to whom), [`sweep`] (who takes a queue's rounds), [`deliver`] (work becomes attempts),
//! [`lease`] (pull workers).

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
use tidegate_engine::{Engine, Error, TickCache, View};

/// How long an attempt is taken to last where nobody remembers: what `desired_workers` starts from.
const RUN_SECONDS: f64 = 1.0;

/// What an away server has instead of tasks.
#[derive(Default)]
pub(super) struct Serverless {
    pub(super) outbox: outbox::Outbox,
    /// What was seen of each queue. It may be old, and costs a read then.
    caches: Mutex<HashMap<QueueName, TickCache>>,
}

impl Serverless {
    fn take_cache(&self, queue: &QueueName) -> TickCache {
        self.caches.lock().remove(queue).unwrap_or_default()
    }

    fn keep_cache(&self, queue: &QueueName, memory: TickCache) {
        self.caches.lock().insert(queue.clone(), memory);
    }
}

/// What a queue shows of itself, as far as its head has it: how many each rule holds nobody counts, so each counts for one.
pub(super) async fn snapshot(engine: &Engine, queue: &QueueName) -> Result<QueueSnapshot, Error> {
    let mut shown = QueueSnapshot { mean_run_seconds: RUN_SECONDS, ..QueueSnapshot::default() };
    if let Some((head, batches)) = engine.ports().store.ledger(queue).await? {
        let catalog = engine.catalog().await?;
        shown.held = head.held.keys().map(|rule| (rule.to_string(), 1)).collect();
        let mut view = View::new(head, batches);
        shown.running_weight = view.usage(&catalog.limits(queue)).weight();
    }
    Ok(shown)
}

impl Builder {
    /// Makes it a server that starts no task of its own: what must follow is told by [`flush`](super::Server::flush), and done by whoever calls
    /// [`tick_queue`](super::Server::tick_queue), [`deliver`](super::Server::deliver) and [`minute`](super::Server::minute).
    #[must_use]
    pub fn serverless(mut self) -> Self {
        self.serverless = true;
        self
    }
}
