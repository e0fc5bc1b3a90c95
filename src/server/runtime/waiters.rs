//! Who waits for a job to end.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

use tidegate_core::job::JobId;

/// Waits by job. An end that happens elsewhere is seen by looking again.
#[derive(Default)]
pub(super) struct Waiters(Mutex<HashMap<JobId, Arc<Notify>>>);

impl Waiters {
    /// What is told when `job` ends. Take it before looking at the job.
    pub(super) fn of(&self, job: &JobId) -> Arc<Notify> {
        let mut waiters = self.0.lock();
        // Whoever has gone holds no clone any more.
        if waiters.len() > 1024 {
            waiters.retain(|_, notify| Arc::strong_count(notify) > 1);
        }
        Arc::clone(waiters.entry(job.clone()).or_default())
    }

    /// Wakes those who wait for `job`.
    pub(super) fn notify(&self, job: &JobId) {
        if let Some(notify) = self.0.lock().remove(job) {
            notify.notify_waiters();
        }
    }
}
