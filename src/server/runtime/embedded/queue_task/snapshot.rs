//! The state of a queue's task, for the queue's status, `explain` and the metrics.

use std::collections::{BTreeMap, HashMap};

use super::{ExecutionSlot, Task};
use crate::{runtime::Inner, telemetry::metrics};
use tidegate_core::job::TypeName;
use tidegate_engine::{Catalog, LedgerView, TickOutcome};

/// The weight of a new value in a moving mean is one in this many.
const MEAN_WINDOW: f64 = 16.0;

/// The state of a queue after its latest tick.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueSnapshot {
    /// How many candidates each rule held in the latest tick that scanned.
    pub(crate) held: BTreeMap<String, u64>,
    /// The granted weight.
    pub(crate) running_weight: u64,
    /// Jobs that workers wait for, by type.
    pub(crate) wanted: HashMap<TypeName, u32>,
    /// Free push slots, once a tick has counted them.
    pub(crate) push_free: Option<u32>,
    /// Jobs that handlers run, by type.
    pub(crate) handling: HashMap<TypeName, u32>,
    /// The duration of an attempt, a moving mean.
    pub(crate) mean_run_seconds: f64,
    /// The delay between due time and start of an attempt, a moving mean.
    pub(crate) mean_lateness_seconds: f64,
}

impl Task {
    /// Records the candidates that a tick held, and the duration and start delay of attempts.
    pub(super) fn update_means(&self, outcome: &TickOutcome) {
        let mut snapshot = self.snapshot.lock();
        snapshot.held =
            outcome.held.iter().map(|(rule, count)| (rule.to_string(), *count)).collect();
        for job in outcome.settled() {
            if let Some(entry) = job.life.history.last() {
                let took = entry.ended_at.since(entry.started_at).as_secs_f64();
                snapshot.mean_run_seconds = moving_mean(snapshot.mean_run_seconds, took);
            }
        }
        for claimed in &outcome.claimed {
            let delay = claimed
                .job
                .life
                .started_at
                .map_or(0.0, |at| at.since(claimed.run_at).as_secs_f64());
            snapshot.mean_lateness_seconds = moving_mean(snapshot.mean_lateness_seconds, delay);
        }
    }

    /// Records the waiting workers and the running attempts.
    pub(super) fn update_snapshot(&mut self, inner: &Inner, catalog: &Catalog) {
        let mut snapshot = self.snapshot.lock();
        snapshot.wanted.clear();
        let mut want = |types: Option<&Vec<TypeName>>, max| match types {
            Some(types) => types
                .iter()
                .for_each(|name| *snapshot.wanted.entry(name.clone()).or_default() += max),
            None => catalog
                .types_of(&self.queue)
                .for_each(|(name, _)| *snapshot.wanted.entry(name.clone()).or_default() += max),
        };
        self.leases.iter().for_each(|waiting| want(waiting.call.types.as_ref(), waiting.call.max));
        self.watches.retain(|watch| {
            let watch = watch.upgrade();
            watch.as_ref().inspect(|watch| want(watch.types.as_ref(), watch.max)).is_some()
        });
        snapshot.push_free = Some(self.free_slots(&ExecutionSlot::Push, inner.options.push_slots));
        snapshot.handling = self
            .running
            .iter()
            .filter_map(|(slot, count)| slot.handler().map(|name| (name.clone(), *count)))
            .collect();
        snapshot.running_weight = self.cache.view().map_or(0, LedgerView::weight);
        metrics::queue(&self.queue, snapshot.running_weight, &snapshot.held);
    }
}

/// A moving mean with one more value; the first value is the mean.
fn moving_mean(mean: f64, value: f64) -> f64 {
    if mean == 0.0 { value } else { mean + (value - mean) / MEAN_WINDOW }
}
