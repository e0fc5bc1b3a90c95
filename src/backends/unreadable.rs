//! Records that cannot be read: each is logged once, and every call goes on without it.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use tidegate_core::port::job_store::{StoreError, UnreadableJob};

/// Most lines about records that a process logs. One more says that there are more.
const MAX_LOGGED: usize = 10_000;

/// What this process has logged. Ticks meet a damaged job again and again. Nothing is forgotten: a
/// process that logs a second time would log with every pass.
static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Whether `line` is to be logged: it was not logged before, and the log is not full.
fn is_logged_now(line: String) -> bool {
    let mut logged = LOGGED.lock();
    if logged.len() > MAX_LOGGED || logged.contains(&line) {
        return false;
    }
    logged.insert(line);
    if logged.len() > MAX_LOGGED {
        tracing::error!(
            logged = MAX_LOGGED,
            "more records cannot be read; the log has no lines about them"
        );
        return false;
    }
    true
}

/// The job `id`, whose record led to `error`. Its first appearance is logged.
pub(super) fn unreadable(id: impl Into<String>, error: &StoreError) -> UnreadableJob {
    let job = UnreadableJob::new(id, error);
    if is_logged_now(job.to_string()) {
        tracing::error!(
            job = job.id,
            reason = job.reason,
            "a job cannot be read and is left out: a newer release wrote it, or it is damaged"
        );
    }
    job
}

/// Logs once that another record than a job is left out because of `error`.
pub(super) fn log_damage(error: &StoreError) {
    let error = error.chain().to_string();
    if is_logged_now(error.clone()) {
        tracing::error!(error, "a damaged record is left out");
    }
}
