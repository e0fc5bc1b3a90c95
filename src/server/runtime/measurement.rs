//! What an embedded server counts every other second, or less often if that takes long: the jobs of each
//! queue by phase, the weight that runs, and the oldest due job. The metrics, the history and the overview
//! show it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;

use super::{Error, Inner};
use tidegate_core::{
    job::{QueueName, TypeName},
    port::job_store::{Depth, StateFilter},
    time::Timestamp,
};
use tidegate_engine::jobs::phases::PhaseCounts;

/// Most jobs due later that a measurement reads, of all queues together; at least 10 of each queue.
const MAX_MEASURED_LATER: u32 = 10_000;

/// What was counted.
#[derive(Clone, Debug)]
pub(super) struct Measurement {
    /// When the count began.
    pub at: Timestamp,
    /// The jobs of each queue by type and phase.
    pub counts: BTreeMap<QueueName, PhaseCounts>,
    /// The queues whose jobs could not be counted.
    pub uncounted: BTreeSet<QueueName>,
    /// The weight that runs.
    pub weights: BTreeMap<QueueName, u64>,
    /// The same, of the queues without a ledger alone. The ticks of the others record theirs.
    pub weights_without_ledger: BTreeMap<QueueName, u64>,
    /// The due time of the job that has been due longest.
    pub oldest_due: BTreeMap<QueueName, Option<Timestamp>>,
}

/// The latest measurement.
#[derive(Default)]
pub(super) struct LatestMeasurement(Mutex<Option<Arc<Measurement>>>);

impl LatestMeasurement {
    /// Replaces the measurement. Of queues that could not be counted, the earlier numbers stay.
    pub fn set(&self, mut measurement: Measurement) -> Arc<Measurement> {
        let mut latest = self.0.lock();
        for queue in &measurement.uncounted {
            let earlier = latest.as_ref().and_then(|earlier| earlier.counts.get(queue));
            if let Some(counts) = earlier {
                measurement.counts.insert(queue.clone(), counts.clone());
            }
        }
        Arc::clone(latest.insert(Arc::new(measurement)))
    }

    /// The measurement. It is late if the store is slow, and says its age.
    pub fn get(&self, now: Timestamp) -> Option<Arc<Measurement>> {
        // One from the future was made before the clock was set back.
        self.0.lock().clone().filter(|latest| latest.at <= now)
    }
}

impl Inner {
    /// Counts the jobs of all queues.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(super) async fn measure(self: &Arc<Self>) -> Result<Measurement, Error> {
        let at = self.engine.now();
        let depths = self.engine.ports().store.depth(None).await?.counts;
        let counts = self.measure_phases(&depths, at).await;
        let queues = depths.iter().map(|depth| &depth.queue);
        let uncounted = queues.filter(|queue| !counts.contains_key(*queue)).cloned().collect();
        let mut types: BTreeMap<QueueName, Vec<TypeName>> = BTreeMap::new();
        let mut running: BTreeMap<QueueName, u64> = BTreeMap::new();
        for depth in depths.into_iter().filter(|depth| depth.jobs > 0) {
            match depth.state {
                StateFilter::Scheduled => {
                    types.entry(depth.queue).or_default().push(depth.job_type);
                }
                StateFilter::Running => *running.entry(depth.queue).or_default() += depth.jobs,
                StateFilter::Ended(_) => {}
            }
        }
        let (mut weights, mut weights_without_ledger) = (BTreeMap::new(), BTreeMap::new());
        for (queue, jobs) in running {
            if let Some(granted) = self.queue_snapshot(&queue).await?.running_weight {
                weights.insert(queue, granted);
                continue;
            }
            let weight = self.engine.running_weight(&queue, jobs).await?;
            if weight > 0 {
                weights_without_ledger.insert(queue.clone(), weight);
            }
            weights.insert(queue, weight);
        }
        let oldest_due = self.engine.oldest_due(types, self.engine.now()).await?;
        Ok(Measurement { at, counts, uncounted, weights, weights_without_ledger, oldest_due })
    }

    /// How many jobs there are in each phase at `now`, without the queues that cannot be counted.
    async fn measure_phases(
        &self,
        depths: &[Depth],
        now: Timestamp,
    ) -> BTreeMap<QueueName, PhaseCounts> {
        let mut queues: BTreeMap<&QueueName, Vec<Depth>> = BTreeMap::new();
        for depth in depths {
            queues.entry(&depth.queue).or_default().push(depth.clone());
        }
        let share = MAX_MEASURED_LATER / queues.len().max(1) as u32;
        let most = share.clamp(10, 1000);
        let mut counts = BTreeMap::new();
        for (queue, depths) in queues {
            match self.engine.count_phases(queue, &depths, None, now, most).await {
                Ok(of_queue) => {
                    counts.insert(queue.clone(), of_queue);
                }
                Err(error) => tracing::warn!(%queue, %error, "its jobs by phase cannot be counted"),
            }
        }
        counts
    }
}
