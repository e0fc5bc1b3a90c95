//! The schedules' task: it materializes occurrences at their time.
//!
//! The task sleeps until the next occurrence, at most [`POLL_INTERVAL`]: another process may change
//! a schedule, and the machine's clock may be set.

use std::{sync::Arc, time::Duration};

use crate::runtime::{Inner, StopPhase, WeakServer, shared::SCHEDULES};
use tidegate_core::{port::Clock, time::Timestamp};

/// The longest time between two reads of the schedules.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the task; it ends when the server begins to stop.
pub(in crate::runtime) fn spawn(inner: &Arc<Inner>) {
    let (server, changed) = (Arc::downgrade(inner), Arc::clone(&inner.rescheduled));
    let mut stopping = inner.stopping.subscribe();
    inner.tasks.spawn(async move {
        while let Some((clock, next_at)) = materialize(&server).await {
            tokio::select! {
                () = clock.sleep_until(next_at) => {}
                () = changed.notified() => {}
                phase = stopping.changed() => {
                    if phase.is_err() || *stopping.borrow() != StopPhase::Serving {
                        return;
                    }
                }
            }
        }
    });
}

/// Materializes what is due, and returns when to do it next; `None` while the server stops.
async fn materialize(server: &WeakServer) -> Option<(Arc<dyn Clock>, Timestamp)> {
    let inner = server.upgrade()?;
    // A stop waits for a commit that is under way.
    let _busy = inner.busy()?;
    let clock = Arc::clone(&inner.engine.ports().clock);
    if !inner.owns(SCHEDULES) {
        let poll_at = clock.now() + POLL_INTERVAL;
        return Some((clock, poll_at));
    }
    let next_at = match inner.engine.materialize(Duration::ZERO).await {
        Ok(materialized) => {
            inner.on_materialized(&materialized);
            materialized.next_at
        }
        Err(error) => {
            tracing::warn!(%error, "schedules cannot be read; they are retried");
            None
        }
    };
    let poll_at = clock.now() + POLL_INTERVAL;
    Some((clock, next_at.map_or(poll_at, |at| at.min(poll_at))))
}
