//! The sweeper: expiry, deadlines, ended leases, retention, retry decisions and pending replies.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::task::JoinHandle;

use crate::{
    runtime::{
        Inner, Server, audit, history, logs,
        shared::{self, PART_INTERVAL, SWEEP, SweptCounts},
        trigger_status,
    },
    telemetry::metrics,
};
use tidegate_core::{
    job::{Job, PluginName},
    time::Timestamp,
};
use tidegate_engine::{Error, plugins::retry_decisions::by_strategy};

/// The longest time between two sweeps: another process may write a job that is due earlier.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How often depths are measured, if the measurements take no more than their share of the time.
const DEPTH_INTERVAL: Duration = Duration::from_secs(2);
/// Measurements take at most one part in so many of the time, unless they are a minute apart. In a database
/// with an old transaction, each one reads all that was removed since.
const DEPTH_SHARE: u32 = 20;
/// The longest wait after a measurement, however long it took.
const MAX_DEPTH_INTERVAL: Duration = Duration::from_mins(1);
/// How often a page of the pending replies is matched, and expired ones are dropped.
const REPLY_INTERVAL: Duration = Duration::from_secs(1);
/// Most retry strategies that are called at once.
const MAX_CONCURRENT_DECISIONS: usize = 16;
/// Most retry decisions that are written together.
const MAX_DECISIONS_PER_COMMIT: usize = 64;
/// How often it is checked whether a step of a pass is due.
const PASS_INTERVAL: Duration = Duration::from_mins(1);

/// Starts sweeping; ends with the server.
pub(crate) fn spawn(inner: &Arc<Inner>) {
    let server = Arc::downgrade(inner);
    let pending = Arc::clone(&inner.pending);
    inner.spawn(async move {
        let mut sweeper = Sweeper::default();
        while let Some(inner) = server.upgrade() {
            let next_at = sweeper.sweep(&inner).await;
            let clock = Arc::clone(&inner.engine.ports().clock);
            drop(inner);
            let poll_at = clock.now() + POLL_INTERVAL;
            tokio::select! {
                () = clock.sleep_until(next_at.map_or(poll_at, |at| at.min(poll_at))) => {}
                () = pending.notified() => {}
            }
        }
    });
}

/// What the sweeper keeps between two sweeps.
#[derive(Default)]
struct Sweeper {
    depth_at: Timestamp,
    gauges: metrics::DepthGauges,
    /// When the recorded calls of plugins are stored next.
    calls_at: Timestamp,
    replies_at: Timestamp,
    /// The cursor of the next page of pending replies.
    replies_after: Option<String>,
    /// The removal of old records under way. It delays no sweep.
    dropping: Option<JoinHandle<Option<()>>>,
    triggers_at: Timestamp,
    passes_at: Timestamp,
    /// When this server stores next what it counted, and adds what all servers that share the store
    /// have counted.
    parts_at: Timestamp,
    /// The passes under way. They delay no sweep.
    passes: Option<JoinHandle<Option<()>>>,
    /// When what waits is counted next, and the count under way.
    waiting_at: Timestamp,
    counting: Option<JoinHandle<Option<Timestamp>>>,
    /// Calls of retry strategies under way. A slow one delays neither the sweep nor another one.
    deciding: HashMap<Option<PluginName>, JoinHandle<Option<()>>>,
    /// The strategy that was called last; the next sweep starts with its successor.
    last_strategy: Option<PluginName>,
}

impl Sweeper {
    /// Does what is due. Returns when the next job is due.
    async fn sweep(&mut self, inner: &Arc<Inner>) -> Option<Timestamp> {
        let clock = &inner.engine.ports().clock;
        if clock.now() >= self.depth_at {
            let (least_at, began) = (clock.now() + DEPTH_INTERVAL, clock.machine_now());
            if let Err(error) = self.measure_depths(inner).await {
                tracing::warn!(%error, "queue depths cannot be read");
            }
            let pause = clock.machine_now().since(began).saturating_mul(DEPTH_SHARE);
            self.depth_at = least_at.max(clock.now() + pause.min(MAX_DEPTH_INTERVAL));
        }
        if clock.now() >= self.calls_at {
            self.calls_at = clock.now() + REPLY_INTERVAL;
            inner.store_plugin_calls().await;
        }
        if !inner.shares_store() {
            inner.end_step(false).await;
        } else if clock.now() >= self.parts_at {
            self.parts_at = clock.now() + PART_INTERVAL;
            inner.store_parts(false).await;
            if inner.owns(SWEEP) {
                add_parts(inner).await;
            }
        }
        if !inner.owns(SWEEP) {
            return None;
        }
        if clock.now() >= self.replies_at {
            self.replies_at = clock.now() + REPLY_INTERVAL;
            self.replies_after = sweep_replies(inner, self.replies_after.take()).await;
            if self.dropping.as_ref().is_none_or(JoinHandle::is_finished) {
                self.dropping = Some(inner.spawn(drop_leases_and_lines(Arc::clone(inner))));
            }
        }
        if !inner.shares_store() && clock.now() >= self.triggers_at {
            self.triggers_at = clock.now() + trigger_status::STORE_INTERVAL;
            if let Err(error) = inner.store_trigger_statuses().await {
                tracing::warn!(%error, "what triggers did was not stored; it is repeated");
            }
        }
        let is_free = self.passes.as_ref().is_none_or(JoinHandle::is_finished);
        if is_free && clock.now() >= self.passes_at {
            self.passes_at = clock.now() + PASS_INTERVAL;
            self.passes = Some(inner.spawn(make_passes(Arc::clone(inner))));
        }
        self.count_waiting(inner).await;
        match inner.engine.sweep().await {
            Ok(swept) => {
                inner.on_swept(&swept.changed);
                self.decide(inner, by_strategy(swept.pending));
                swept.next_at
            }
            Err(error) => {
                tracing::warn!(%error, "a sweep failed; it is repeated");
                None
            }
        }
    }

    /// Starts to count what waits, for the throttlers that need it. It delays no sweep.
    async fn count_waiting(&mut self, inner: &Arc<Inner>) {
        let now = inner.engine.now();
        if let Some(counting) = self.counting.take_if(|counting| counting.is_finished()) {
            self.waiting_at = counting.await.ok().flatten().unwrap_or(now);
        }
        if self.counting.is_none() && now >= self.waiting_at {
            self.counting = Some(inner.spawn(count_waiting(Arc::clone(inner))));
        }
    }

    /// Records how many jobs there are, and how long the oldest one of each queue has been due.
    async fn measure_depths(&mut self, inner: &Arc<Inner>) -> Result<(), Error> {
        let measured = inner.measure().await?;
        self.gauges.jobs(&measured.counts);
        // Of a queue with a ledger, the ticks record it: on a shared store, those of any server.
        self.gauges.weights(if inner.shares_store() {
            &measured.weights
        } else {
            &measured.weights_without_ledger
        });
        self.gauges.oldest_due(&measured.oldest_due, inner.engine.now());
        inner.measured(&*inner.engine.catalog().await?, &measured);
        inner.measurement.set(measured);
        Ok(())
    }

    /// Calls retry strategies in turn, each at most once at a time.
    fn decide(&mut self, inner: &Arc<Inner>, mut jobs: BTreeMap<Option<PluginName>, Vec<Job>>) {
        self.deciding.retain(|_, call| !call.is_finished());
        let from_last = jobs.split_off(&self.last_strategy);
        for (plugin, jobs) in from_last.into_iter().chain(jobs) {
            let is_free = !self.deciding.contains_key(&plugin);
            if is_free && self.deciding.len() < MAX_CONCURRENT_DECISIONS {
                self.last_strategy.clone_from(&plugin);
                let call = inner.spawn(decide_retries(Arc::clone(inner), jobs));
                self.deciding.insert(plugin, call);
            }
        }
    }
}

/// Adds what all servers that share the store have counted to what each of them shows.
async fn add_parts(inner: &Arc<Inner>) {
    let server = Server { inner: Arc::clone(inner) };
    if let Err(error) = server.record_merged_step().await {
        tracing::warn!(%error, "a step of the history was not stored; it is repeated");
    }
    if let Err(error) = inner.add_trigger_parts().await {
        tracing::warn!(%error, "what triggers did was not added up; it is repeated");
    }
    if let Err(error) = inner.add_plugin_parts().await {
        tracing::warn!(%error, "calls of plugins were not added up; it is repeated");
    }
}

/// Matches a page of the pending replies and drops expired ones. Returns the next page's cursor.
async fn sweep_replies(inner: &Arc<Inner>, after: Option<String>) -> Option<String> {
    let mut counts = SweptCounts::default();
    match inner.engine.sweep_dead().await {
        Ok(purged) => {
            metrics::dead_letters(purged);
            counts.dead_letters = Some(purged.left);
        }
        Err(error) => tracing::warn!(%error, "dead letters cannot be swept"),
    }
    let next = match inner.engine.sweep_replies(after).await {
        Ok(swept) => {
            metrics::pending_replies(&swept);
            counts.pending_replies = Some(swept.kept);
            inner.on_events(&[], &swept.changed);
            swept.next
        }
        // The next sweep starts again at the first page.
        Err(error) => {
            tracing::warn!(%error, "pending replies cannot be swept");
            None
        }
    };
    inner.on_swept_counts(counts);
    next
}

/// Removes the old records that may be many: those of lease calls, and log lines.
async fn drop_leases_and_lines(inner: Arc<Inner>) {
    if let Err(error) = inner.engine.drop_lease_records().await {
        tracing::warn!(%error, "old records of lease calls were not removed");
    }
    if let Err(error) = logs::drop_old_lines(&inner.engine).await {
        tracing::warn!(%error, "old log lines were not removed");
    }
}

/// Makes the steps of passes that are due: over objects, and the upkeep of the store.
async fn make_passes(inner: Arc<Inner>) {
    let until = inner.engine.now() + PASS_INTERVAL;
    if let Err(error) = inner.engine.sweep_objects(until).await {
        tracing::warn!(%error, "objects that no job names are not deleted");
    }
    if let Err(error) = inner.engine.upkeep(until).await {
        tracing::warn!(%error, "the upkeep of the store failed; it is repeated");
    }
    if let Err(error) = inner.engine.drop_old_retry_states().await {
        tracing::warn!(%error, "old states of retry strategies were not removed");
    }
    if let Err(error) = history::drop_old_steps(&inner.engine).await {
        tracing::warn!(%error, "old steps of the history were not removed");
    }
    if let Err(error) = audit::drop_old_entries(&inner.engine).await {
        tracing::warn!(%error, "old audit entries were not removed");
    }
    if let Err(error) = shared::drop_old_records(&inner).await {
        tracing::warn!(%error, "old records of servers were not removed");
    }
    if let Err(error) = inner.drop_old_trigger_statuses().await {
        tracing::warn!(%error, "old statuses of triggers were not removed");
    }
    if let Err(error) = inner.drop_old_plugin_calls().await {
        tracing::warn!(%error, "old recorded calls of plugins were not removed");
    }
}

/// Counts what waits. Returns when to count again.
async fn count_waiting(inner: Arc<Inner>) -> Timestamp {
    let now = inner.engine.now();
    let next_at = inner.engine.count_waiting(now + PASS_INTERVAL).await;
    let next_at = next_at.inspect_err(|error| tracing::warn!(%error, "waiting jobs not counted"));
    next_at.ok().flatten().unwrap_or(now + REPLY_INTERVAL)
}

/// Calls the retry strategies of `jobs`, some jobs at a time, so that the first decisions do not
/// wait for the last. After a decision, another sweep follows at once.
async fn decide_retries(inner: Arc<Inner>, jobs: Vec<Job>) {
    let mut changed = false;
    for jobs in jobs.chunks(MAX_DECISIONS_PER_COMMIT) {
        match inner.engine.decide_retries(jobs.to_vec()).await {
            Ok(mut decisions) => {
                changed |= !decisions.changed.is_empty();
                inner.on_retry_decisions(&mut decisions);
            }
            // The jobs still await their decision, and the next sweep finds them.
            Err(error) => tracing::warn!(%error, "retry decisions failed"),
        }
    }
    if changed {
        inner.pending.notify_one();
    }
}

#[cfg(test)]
mod tests;
