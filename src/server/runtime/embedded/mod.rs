//! The embedded deployment mode: one process on SQLite, with a task per active queue.
//!
//! Read in this order: [`open`] and `log` (the ports), [`queue_task`] (ticks), `lease` and `unwritten`
//! (pull workers), [`sweeper`] (work that becomes due without a request), `schedules`, `operations`,
//! `restart` (pushes that a stop cut), `handler`, `place` (the data at rest, for a
//! move).

pub(super) mod handler;
pub(super) mod lease;
#[cfg(feature = "embedded")]
mod log;
#[cfg(feature = "embedded")]
pub mod open;
pub(super) mod operations;
#[cfg(feature = "embedded")]
pub mod place;
pub mod queue_task;
pub(super) mod restart;
pub(super) mod schedules;
pub mod sweeper;
pub(super) mod unwritten;

use std::sync::Arc;

use super::{Inner, Server};
#[cfg(any(test, feature = "embedded"))]
use super::{
    changes, plugin_registry,
    shadow::{self, ShadowCalls},
    shared,
};
use tidegate_core::job::{QueueName, TypeName};
#[cfg(any(test, feature = "embedded"))]
use tidegate_engine::Error;
use tidegate_engine::{Catalog, request::WorkerStatus};

impl Server {
    /// Resumes what was under way at the stop and starts the tasks of the server.
    #[cfg(any(test, feature = "embedded"))]
    pub(super) async fn start_tasks(&self, shadow_calls: ShadowCalls) -> Result<(), Error> {
        let inner = &self.inner;
        let catalog = inner.engine.catalog().await?;
        inner.apply_recording_rules(&catalog);
        inner.engine.record_schema(catalog).await?;
        plugin_registry::recompile(self).await?;
        if inner.shares_store() {
            self.join().await?;
            // The pushes and operations under way are those of others.
            self.wake_all().await?;
        } else {
            self.load_capacities().await?;
            inner.load_history().await;
            inner.load_trigger_statuses().await;
            inner.engine.load_running().await?;
            restart::CutPushes::find(self).await?.resume(self).await?;
        }
        changes::spawn(inner);
        sweeper::spawn(inner);
        schedules::spawn(inner);
        shadow::spawn(inner, shadow_calls);
        if inner.shares_store() {
            shared::spawn(inner);
            return Ok(());
        }
        operations::resume(self).await
    }
}

/// The status of what takes the jobs of each type of `queue`: a handler, the push slots, or the
/// pull workers that call this process.
pub(super) fn worker_status(
    inner: &Arc<Inner>,
    queue: &QueueName,
    catalog: &Arc<Catalog>,
) -> impl Fn(&TypeName) -> WorkerStatus + Send + Sync + 'static {
    let (inner, catalog) = (Arc::clone(inner), Arc::clone(catalog));
    let snapshot = inner.queue(queue).snapshot();
    let running = inner.engine.running_by_worker(&[]);
    let unnamed = inner.engine.running_without_worker(queue);
    let workers = inner.workers.of_queue(queue, &running, &catalog.drains, inner.engine.now());
    move |job_type| {
        let slots = |in_use: u32, capacity: u32| WorkerStatus {
            in_use: in_use.into(),
            capacity: Some(capacity.into()),
            ..WorkerStatus::default()
        };
        if let Some(handler) = inner.handlers.get(job_type) {
            let handling = snapshot.handling.get(job_type).copied().unwrap_or(0);
            return slots(handling, handler.concurrency);
        }
        let item = catalog.types.get(job_type);
        if item.is_some_and(|item| inner.engine.is_pushed(&item.config)) {
            let most = inner.options.push_slots;
            return slots(most - snapshot.push_free.unwrap_or(most).min(most), most);
        }
        workers.status(job_type, unnamed.get(job_type).copied().unwrap_or(0))
    }
}
