//! How many workers a queue could use: so many that its backlog is drained in a minute, and no more than its limits admit.
//!
//! It counts what the queue's and the types' own limits say. What constraints and the throttler admit depends on the jobs, and is not
//! reckoned with.

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
    // The lightest first: of them the most run at once.
    types.sort_unstable();
    let mut room = limits.queue.concurrency.map(u64::from);
    let mut workers = 0;
    for (weight, name, jobs) in types.into_iter().filter(|(_, _, jobs)| *jobs > 0) {
        // Even if nobody knows yet how long an attempt takes, one is needed.
        let wanted = (jobs as f64 * mean / DRAIN_TARGET.as_secs_f64()).ceil().max(1.0) as u64;
        let most = [limits.types.get(name).map(|most| u64::from(*most)), room];
        let fit = most
            .into_iter()
            .flatten()
            .map(|most| most.checked_div(weight).unwrap_or(u64::MAX))
            .min();
        let fit = fit.map_or(wanted, |fit| wanted.min(fit));
        room = room.map(|room| room - fit * weight);
        workers += fit;
    }
    workers
}
