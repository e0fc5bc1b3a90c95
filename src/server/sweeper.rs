//! Does what is due without anybody asking: expiry, deadlines, ended leases, retention, verdicts on failed attempts,
//! replies that waited for their jobs.

use std::{sync::Arc, time::Duration};

use super::{Inner, Stage, metrics, plugins::Plugins};
use crate::{job::Job, time::Timestamp};

/// The longest between two looks: what becomes due earlier than all that was known waits no longer.
const LOOK: Duration = Duration::from_millis(500);

/// How often depths are measured.
const DEPTH: Duration = Duration::from_secs(2);
/// How often a page of the kept replies is looked at, and what is over its time dropped.
const REPLIES: Duration = Duration::from_secs(1);

/// Starts sweeping; ends with the server.
pub(super) fn spawn(inner: &Arc<Inner>) {
    let home = Arc::downgrade(inner);
    let mut stopping = inner.stopping.subscribe();
    tokio::spawn(async move {
        let mut depth_at = Timestamp::EPOCH;
        let (mut replies_at, mut replies_after) = (Timestamp::EPOCH, None);
        let Some(pending) = home.upgrade().map(|inner| Arc::clone(&inner.pending)) else { return };
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
            if clock.now() >= replies_at {
                replies_at = clock.now() + REPLIES;
                replies_after = kept(&inner, replies_after).await;
            }
            let next_at = match inner.engine.sweep().await {
                Ok(swept) => {
                    for (job, version) in &swept.changed {
                        inner.left(&job.spec.queue, job, *version);
                    }
                    if !swept.pending.is_empty() {
                        verdicts(&inner, swept.pending).await;
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

/// Has a page of the kept replies looked at, and drops what is over its time. Where the next page starts.
async fn kept(inner: &Arc<Inner>, after: Option<String>) -> Option<String> {
    match inner.engine.sweep_dead().await {
        Ok(purged) => metrics::dead(purged),
        Err(error) => tracing::warn!(%error, "dead events cannot be looked at"),
    }
    match inner.engine.sweep_replies(after).await {
        Ok(heard) => {
            metrics::heard(&heard);
            inner.tell(&[], &heard.changed);
            heard.next
        }
        // They are looked at again from the beginning.
        Err(error) => {
            tracing::warn!(%error, "kept replies cannot be looked at");
            None
        }
    }
}

/// Has the retry strategies of jobs asked that wait for it.
async fn verdicts(inner: &Arc<Inner>, jobs: Vec<Job>) {
    match inner.engine.verdicts(jobs).await {
        Ok(verdicts) => {
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
