//! The numbers of jobs by phase, from those by state.
//!
//! A store that counts by phase has the numbers of its latest count. The others keep exact numbers by
//! state, which say nothing of the time. So the scheduled jobs are divided when a client looks, by
//! a read with a bound: the soonest of those that are due later. They are usually few, and then all
//! numbers are exact.

use std::collections::BTreeMap;

use crate::{Engine, Error};
use tidegate_core::{
    job::{Phase, QueueName, TypeName},
    port::job_store::{Depth, DueQuery, ScheduledPhases, StateFilter},
    queue::order::{Order, Position},
    time::Timestamp,
};

/// Numbers of jobs by type and phase.
pub type PhaseCounts = BTreeMap<(TypeName, Phase), u64>;

/// The jobs of a type that are due later, as far as they were read.
#[derive(Clone, Copy, Debug, Default)]
struct Later {
    jobs: u64,
    retrying: u64,
}

/// The soonest jobs that are due later.
#[derive(Debug, Default)]
struct LaterJobs {
    by_type: BTreeMap<TypeName, Later>,
    /// Whether there are no others.
    are_all: bool,
}

impl Engine {
    /// How many jobs of `queue` are in each phase at `now`, of those that `depths` counts by state.
    ///
    /// Of the jobs that are due later, the `most` soonest ones (1 to 1000) are read. If there are
    /// more, the others count as `scheduled` without a look at whether they are `retrying`, and the
    /// ready ones are counted: `due` has their numbers if the caller knows them, else up to
    /// `100 * most` are counted. Ready jobs beyond that count as `scheduled` too.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn count_phases(
        &self,
        queue: &QueueName,
        depths: &[Depth],
        due: Option<&BTreeMap<TypeName, u64>>,
        now: Timestamp,
        most: u32,
    ) -> Result<PhaseCounts, Error> {
        let depths = || depths.iter().filter(|depth| depth.queue == *queue && depth.jobs > 0);
        // If all were counted as due, none is due later.
        let are_due = |depth: &Depth| {
            due.and_then(|due| due.get(&depth.job_type)).is_some_and(|due| *due >= depth.jobs)
        };
        let is_undivided = |depth: &&Depth| {
            depth.state == StateFilter::Scheduled && depth.phases.is_none() && !are_due(depth)
        };
        let types: Vec<TypeName> =
            depths().filter(is_undivided).map(|depth| depth.job_type.clone()).collect();
        let later = self.later_jobs(queue, &types, now, most).await?;
        let counted = if later.are_all || due.is_some() {
            BTreeMap::new()
        } else {
            let store = &self.ports().store;
            let bound = store.capabilities().max_counted_due.min(100 * most);
            store.count_due(queue, &types, now, bound).await?
        };
        let due = due.unwrap_or(&counted);
        let mut counts = PhaseCounts::new();
        for depth in depths() {
            let mut add = |phase, jobs| {
                if jobs > 0 {
                    *counts.entry((depth.job_type.clone(), phase)).or_default() += jobs;
                }
            };
            match depth.state {
                StateFilter::Running => add(Phase::Running, depth.jobs),
                StateFilter::Ended(outcome) => add(Phase::Ended(outcome), depth.jobs),
                StateFilter::Scheduled => {
                    let due = due.get(&depth.job_type).copied().unwrap_or_default();
                    let ScheduledPhases { ready, retrying } =
                        depth.phases.unwrap_or_else(|| later.divide(depth, due));
                    add(Phase::Ready, ready);
                    add(Phase::Retrying, retrying);
                    add(Phase::Scheduled, depth.jobs.saturating_sub(ready + retrying));
                }
            }
        }
        Ok(counts)
    }

    /// The `most` soonest jobs of `types` that are due after `now`.
    async fn later_jobs(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        now: Timestamp,
        most: u32,
    ) -> Result<LaterJobs, Error> {
        if types.is_empty() {
            return Ok(LaterJobs { are_all: true, ..LaterJobs::default() });
        }
        let queries = [true, false].map(|critical| DueQuery {
            queue: queue.clone(),
            critical,
            types: types.to_vec(),
            partition: None,
            order: Order::Time { step_millis: 0 },
            until: Timestamp::MAX,
            after: Some(Position::after_all_due_by(now)),
            limit: most,
            granted: None,
        });
        let pages = self.ports().store.due(&queries).await?;
        let mut later = LaterJobs { are_all: true, ..LaterJobs::default() };
        for page in pages {
            later.are_all &= page.next.is_none();
            for job in &page.jobs {
                let of_type = later.by_type.entry(job.spec.job_type.clone()).or_default();
                of_type.jobs += 1;
                of_type.retrying += u64::from(Phase::of(&job.life, now) == Phase::Retrying);
            }
        }
        Ok(later)
    }
}

impl LaterJobs {
    /// The phases of the scheduled jobs that `depth` counts, if `due` of them were counted as due.
    fn divide(&self, depth: &Depth, due: u64) -> ScheduledPhases {
        let later = self.by_type.get(&depth.job_type).copied().unwrap_or_default();
        let ready = if self.are_all { depth.jobs.saturating_sub(later.jobs) } else { due };
        // The jobs may have changed since they were counted.
        let retrying = later.retrying.min(depth.jobs);
        ScheduledPhases { ready: ready.min(depth.jobs - retrying), retrying }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheduled_jobs_are_divided() {
        // Whether all that are due later were read; these and the retries among them; the due ones.
        let table = [
            (true, (10, 4), 0, (40, 4)),
            (true, (0, 0), 0, (50, 0)),
            (false, (20, 4), 7, (7, 4)),
            // Jobs were added after the count.
            (true, (60, 55), 0, (0, 50)),
        ];
        for (are_all, (jobs, retrying), due, expected) in table {
            let job_type: TypeName = "t".parse().unwrap();
            let by_type = [(job_type.clone(), Later { jobs, retrying })].into();
            let (queue, state) = ("q".parse().unwrap(), StateFilter::Scheduled);
            let depth = Depth { queue, job_type, state, jobs: 50, phases: None };
            let divided = LaterJobs { by_type, are_all }.divide(&depth, due);
            assert_eq!((divided.ready, divided.retrying), expected, "{are_all} {jobs}");
        }
    }
}
