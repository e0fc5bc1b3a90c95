//! Does what is due without anybody asking: expiry, deadlines, ended leases, retention, verdicts on failed attempts.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinHandle;

use super::{Inner, Stage, metrics, plugins::Plugins};
use crate::{job::Job, time::Timestamp};

/// The longest between two looks: what becomes due earlier than all that was known waits no longer.
const LOOK: Duration = Duration::from_millis(500);

/// How often depths are measured.
const DEPTH: Duration = Duration::from_secs(2);

/// Starts sweeping; ends with the server.
pub(super) fn spawn(inner: &Arc<Inner>) {
    let home = Arc::downgrade(inner);
    let mut stopping = inner.stopping.subscribe();
    tokio::spawn(async move {
        let mut depth_at = Timestamp::EPOCH;
        let Some(pending) = home.upgrade().map(|inner| Arc::clone(&inner.pending)) else { return };
        // Plugins take their time; what else is due does not wait for them.
        let mut asking: Option<JoinHandle<()>> = None;
        loop {
            let Some(inner) = home.upgrade() else { return };
            let clock = Arc::clone(&inner.engine.ports().clock);
            if clock.now() >= depth_at {
                depth_at = clock.now() + DEPTH;
                match inner.engine.ports().store.depth().await {
                    Ok(depths) => metrics::depth(&depths),
                    Err(error) => tracing::warn!(%error, "depths cannot be read"),
                }
            }
            let next_at = match inner.engine.sweep().await {
                Ok(swept) => {
                    for (job, version) in &swept.changed {
                        // Only the end of a lease leaves a job that goes on.
                        if job.life.ended().is_none() {
                            inner.over(job);
                        }
                        inner.left(&job.spec.queue, job, *version);
                    }
                    if !swept.pending.is_empty() && asking.as_ref().is_none_or(JoinHandle::is_finished) {
                        asking = Some(tokio::spawn(verdicts(Arc::clone(&inner), swept.pending)));
                    }
                    swept.next_at
                }
                Err(error) => {
                    tracing::warn!(%error, "a sweep failed");
                    None
                }
            };
            drop(inner);
            let look = clock.now() + LOOK;
            tokio::select! {
                () = clock.sleep_until(next_at.map_or(look, |at| at.min(look))) => {}
                () = pending.notified() => {}
                changed = stopping.changed() => if changed.is_err() || *stopping.borrow() == Stage::Stopped { return },
            }
        }
    });
}

/// Has the retry strategies of jobs asked that wait for it. If that got on, another sweep follows at once.
async fn verdicts(inner: Arc<Inner>, jobs: Vec<Job>) {
    match inner.engine.verdicts(jobs).await {
        Ok(verdicts) => {
            if !verdicts.changed.is_empty() {
                inner.pending.notify_one();
            }
            for fault in verdicts.faults {
                Plugins::retry_failed(&fault);
            }
            for (job, version) in &verdicts.changed {
                inner.left(&job.spec.queue, job, *version);
            }
        }
        // They wait as before, and the next sweep finds them.
        Err(error) => tracing::warn!(%error, "verdicts on failed attempts cannot be had"),
    }
}
