//! Calls that wait for the end of a job.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

use tidegate_core::job::JobId;

/// The number of entries above which finished waits are removed.
const MAX_BEFORE_CLEANUP: usize = 1024;

/// The waits by job. An end in another process is found only by polling.
#[derive(Default)]
pub(super) struct Waiters(Mutex<HashMap<JobId, Arc<Notify>>>);

impl Waiters {
    /// The notification of the end of `job`. Get it before reading the job.
    pub(super) fn of(&self, job: &JobId) -> Arc<Notify> {
        let mut waiters = self.0.lock();
        // A wait that is over holds no clone.
        if waiters.len() > MAX_BEFORE_CLEANUP {
            waiters.retain(|_, notify| Arc::strong_count(notify) > 1);
        }
        Arc::clone(waiters.entry(job.clone()).or_default())
    }

    /// Wakes the calls that wait for `job`.
    pub(super) fn notify(&self, job: &JobId) {
        if let Some(notify) = self.0.lock().remove(job) {
            notify.notify_waiters();
        }
    }
}
