//! Does what is due without anybody asking: expiry, deadlines, ended leases, retention.

use std::{sync::Arc, time::Duration};

use super::{Inner, Stage, metrics};
use crate::time::Timestamp;

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
                        inner.left(&job.spec.queue, job, *version);
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
                changed = stopping.changed() => if changed.is_err() || *stopping.borrow() == Stage::Stopped { return },
            }
        }
    });
}
