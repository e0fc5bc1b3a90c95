//! What a heartbeat of a lease and one of a pushed attempt have in common.

use std::time::Duration;

use tidegate_api::{HeartbeatBody, Seconds};

use crate::attempt::{Attempt, Changes};

/// What a handler shows is sent at most this often.
pub(crate) const FLUSH_TIME: Duration = Duration::from_secs(1);
/// How long a report waits for the heartbeat that is under way, which may carry log lines.
pub(crate) const MAX_BEAT_WAIT: Duration = Duration::from_secs(5);

/// The body of a heartbeat, with what the handler has shown.
pub(crate) fn heartbeat<'a>(
    job: &Attempt,
    shown: &'a Changes,
    lease_seconds: Option<Seconds>,
) -> HeartbeatBody<'a> {
    let (progress, note) = shown.progress.clone().unzip();
    HeartbeatBody {
        attempt: job.number(),
        lease_seconds,
        progress,
        note: note.flatten(),
        checkpoint: shown.checkpoint.as_deref(),
        log: shown.log.clone(),
    }
}
