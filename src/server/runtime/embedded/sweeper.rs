//! Does what is due without anybody asking: expiry, deadlines, ended leases, retention, verdicts on failed attempts,
//! replies that waited for their jobs.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::task::JoinHandle;

use crate::{
    runtime::{Inner, Stage},
    telemetry::metrics,
};
use tidegate_core::{
    job::{Job, PluginName},
    time::Timestamp,
};
use tidegate_engine::plugins::retry_decisions::by_strategy;

/// The longest between two looks: what becomes due earlier than all that was known waits no longer.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How often depths are measured.
const DEPTH_INTERVAL: Duration = Duration::from_secs(2);
/// How often a page of the kept replies is looked at, and what is over its time dropped.
const REPLY_INTERVAL: Duration = Duration::from_secs(1);

/// How many plugins are asked at once; they take turns.
const MAX_CONCURRENT_DECISIONS: usize = 16;

/// Verdicts that are written together.
const TOGETHER: usize = 64;

/// Starts sweeping; ends with the server.
pub(crate) fn spawn(inner: &Arc<Inner>) {
    let home = Arc::downgrade(inner);
    let mut stopping = inner.stopping.subscribe();
    tokio::spawn(async move {
        let mut depth_at = Timestamp::EPOCH;
        let (mut replies_at, mut replies_after) = (Timestamp::EPOCH, None);
        let Some(pending) = home.upgrade().map(|inner| Arc::clone(&inner.pending)) else {
            return;
        };
        // Plugins take their time: neither what else is due nor another plugin waits for one.
        let mut asking: HashMap<Option<PluginName>, JoinHandle<()>> = HashMap::new();
        let mut turn = None;
        loop {
            let Some(inner) = home.upgrade() else { return };
            let clock = Arc::clone(&inner.engine.ports().clock);
            if clock.now() >= depth_at {
                depth_at = clock.now() + DEPTH_INTERVAL;
                match inner.engine.ports().store.depth().await {
                    Ok(depths) => metrics::depth(&depths),
                    Err(error) => tracing::warn!(%error, "depths cannot be read"),
                }
            }
            if clock.now() >= replies_at {
                replies_at = clock.now() + REPLY_INTERVAL;
                replies_after = kept(&inner, replies_after).await;
            }
            let next_at = match inner.engine.sweep().await {
                Ok(swept) => {
                    for (job, version) in &swept.changed {
                        // Only the end of a lease leaves a job that goes on.
                        if job.life.ended().is_none() {
                            inner.on_attempt_finished(job);
                        }
                        inner.on_superseded(&job.spec.queue, job, *version);
                    }
                    asking.retain(|_, asked| !asked.is_finished());
                    let mut first = by_strategy(swept.pending);
                    let then = first.split_off(&turn);
                    for (plugin, jobs) in then.into_iter().chain(first) {
                        if asking.len() < MAX_CONCURRENT_DECISIONS && !asking.contains_key(&plugin)
                        {
                            turn.clone_from(&plugin);
                            asking.insert(plugin, tokio::spawn(verdicts(Arc::clone(&inner), jobs)));
                        }
                    }
                    swept.next_at
                }
                Err(error) => {
                    tracing::warn!(%error, "a sweep failed");
                    None
                }
            };
            drop(inner);
            let look = clock.now() + POLL_INTERVAL;
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
        Err(error) => tracing::warn!(%error, "dead letters cannot be looked at"),
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

/// Has the retry strategies of jobs asked that wait for it, some at a time: what is said of the first does not wait for the last. If that got on,
/// another sweep follows at once.
async fn verdicts(inner: Arc<Inner>, jobs: Vec<Job>) {
    let mut changed = false;
    for jobs in jobs.chunks(TOGETHER) {
        match inner.engine.verdicts(jobs.to_vec()).await {
            Ok(mut verdicts) => {
                changed |= !verdicts.changed.is_empty();
                inner.note_verdicts(&mut verdicts);
                for (job, version) in &verdicts.changed {
                    inner.on_superseded(&job.spec.queue, job, *version);
                }
            }
            // They wait as before, and the next sweep finds them.
            Err(error) => tracing::warn!(%error, "verdicts on failed attempts cannot be had"),
        }
    }
    if changed {
        inner.pending.notify_one();
    }
}
