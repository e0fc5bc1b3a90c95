//! Jobs that cannot be read: each is logged once, and every call goes on without it.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use tidegate_core::port::job_store::{StoreError, UnreadableJob};

/// Most remembered jobs. After that they are forgotten, and logged again.
const MAX_LOGGED: usize = 10_000;

/// The jobs that this process has logged. Ticks meet a damaged job again and again.
static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The job `id`, whose record led to `error`. Its first appearance is logged.
pub(super) fn unreadable(id: impl Into<String>, error: &StoreError) -> UnreadableJob {
    let job = UnreadableJob::new(id, error);
    let mut logged = LOGGED.lock();
    if logged.len() >= MAX_LOGGED {
        logged.clear();
    }
    if logged.insert(format!("{job}")) {
        tracing::error!(
            job = job.id,
            reason = job.reason,
            "a job cannot be read and is left out: a newer release wrote it, or it is damaged"
        );
    }
    job
}
