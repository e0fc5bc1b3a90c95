//! The state of a queue's task, for the queue's status, `explain` and the metrics.

use std::collections::{BTreeMap, HashMap};

use super::{ExecutionSlot, Task};
use crate::{runtime::Inner, telemetry::metrics};
use tidegate_core::job::TypeName;
use tidegate_engine::{LedgerView, TickOutcome};

/// The weight of a new value in a moving mean is one in this many.
const MEAN_WINDOW: f64 = 16.0;

/// The state of a queue after its latest tick.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueSnapshot {
    /// How many candidates each rule held in the latest tick that scanned.
    pub(crate) held: BTreeMap<String, u64>,
    /// The granted weight; none if the queue has no ledger.
    pub(crate) running_weight: Option<u64>,
    /// Free push slots, once a tick has counted them.
    pub(crate) push_free: Option<u32>,
    /// Jobs that handlers run, by type.
    pub(crate) handling: HashMap<TypeName, u32>,
    /// The duration of an attempt of each type, a moving mean.
    pub(crate) mean_run_seconds: HashMap<TypeName, f64>,
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
                match snapshot.mean_run_seconds.get_mut(&job.spec.job_type) {
                    Some(mean) => *mean = moving_mean(*mean, took),
                    None => {
                        snapshot.mean_run_seconds.insert(job.spec.job_type.clone(), took);
                    }
                }
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

    /// Records the running attempts and the slots in use.
    pub(super) fn update_snapshot(&mut self, inner: &Inner) {
        let mut snapshot = self.snapshot.lock();
        self.watches.retain(|watch| watch.strong_count() > 0);
        snapshot.push_free = Some(self.free_slots(&ExecutionSlot::Push, inner.options.push_slots));
        snapshot.handling = self
            .running
            .iter()
            .filter_map(|(slot, count)| slot.handler().map(|name| (name.clone(), *count)))
            .collect();
        snapshot.running_weight = self.cache.view().map(LedgerView::weight);
        metrics::queue(&self.queue, snapshot.running_weight, &snapshot.held);
    }
}

/// A moving mean with one more value; the first value is the mean.
fn moving_mean(mean: f64, value: f64) -> f64 {
    if mean == 0.0 { value } else { mean + (value - mean) / MEAN_WINDOW }
}
