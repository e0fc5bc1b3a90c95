//! The desired number of workers of a queue: its backlog is drained in a minute, within its limits.
//!
//! Only the limits of the queue and of its types count. What constraints and the throttler admit
//! depends on the jobs, and is ignored.

use std::{collections::BTreeMap, time::Duration};

use tidegate_core::job::{QueueName, TypeName};
use tidegate_engine::Catalog;

/// The time in which the workers would drain the backlog.
const DRAIN_TARGET: Duration = Duration::from_mins(1);

/// The workers for a `backlog` of due jobs by type, if an attempt takes `mean` seconds.
pub(super) fn desired_workers(
    catalog: &Catalog,
    queue: &QueueName,
    backlog: &BTreeMap<TypeName, u64>,
    mean: f64,
) -> u64 {
    let limits = catalog.limits(queue);
    if limits.paused {
        return 0;
    }
    let weight =
        |name: &TypeName| catalog.types.get(name).map_or(1, |item| u64::from(item.config.weight));
    let mut types: Vec<(u64, &TypeName, u64)> =
        backlog.iter().map(|(name, jobs)| (weight(name), name, *jobs)).collect();
    // The lightest types first: most of their jobs run at once.
    types.sort_unstable();
    let mut capacity = limits.queue.concurrency.map(u64::from);
    let mut workers = 0;
    for (weight, name, jobs) in types.into_iter().filter(|(_, _, jobs)| *jobs > 0) {
        // At least one worker, even if the duration of an attempt is unknown.
        let wanted = (jobs as f64 * mean / DRAIN_TARGET.as_secs_f64()).ceil().max(1.0) as u64;
        let most = [limits.types.get(name).map(|most| u64::from(*most)), capacity];
        let fit = most
            .into_iter()
            .flatten()
            .map(|most| most.checked_div(weight).unwrap_or(u64::MAX))
            .min();
        let fit = fit.map_or(wanted, |fit| wanted.min(fit));
        capacity = capacity.map(|capacity| capacity - fit * weight);
        workers += fit;
    }
    workers
}
