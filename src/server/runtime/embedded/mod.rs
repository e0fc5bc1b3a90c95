//! The embedded deployment mode: one process on SQLite, with a task per active queue.
//!
//! Read in this order: [`open`] (the ports), [`queue_task`] (ticks), `lease` (pull workers),
//! [`sweeper`] (work that becomes due without a request), `schedules`, `operations`, `handler`.

pub(super) mod handler;
pub(super) mod lease;
#[cfg(feature = "embedded")]
pub mod open;
pub(super) mod operations;
pub mod queue_task;
pub(super) mod schedules;
pub mod sweeper;

use std::sync::Arc;

use crate::runtime::Inner;
use tidegate_core::job::Job;
use tidegate_engine::Catalog;

/// Whether a handler, a push slot or a waiting worker of this process can take `job`.
pub(super) fn has_capacity_for(inner: &Arc<Inner>, job: &Job, catalog: &Catalog) -> bool {
    let job_type = &job.spec.job_type;
    let snapshot = inner.queue(&job.spec.queue).snapshot();
    if let Some(handler) = inner.handlers.get(job_type) {
        return handler.concurrency > snapshot.handling.get(job_type).copied().unwrap_or(0);
    }
    let item = catalog.types.get(job_type);
    if item.is_some_and(|item| inner.engine.is_pushed(&item.config)) {
        return snapshot.push_free.unwrap_or(1) > 0;
    }
    snapshot.wanted.get(job_type).is_some_and(|wanted| *wanted > 0)
}
