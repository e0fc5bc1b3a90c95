//! The desired number of workers of a queue: its due jobs are drained in a minute, within its
//! limits and rates.
//!
//! What the throttler admits is its own decision, and is ignored.

use std::collections::{BTreeMap, HashMap};

use tidegate_core::{
    job::{QueueName, TypeName},
    queue::Startable,
};
use tidegate_engine::{Catalog, explanation::DRAIN_TARGET};

/// The workers for `due` jobs by type. `startable` is what the limits admit of the first of them,
/// with whether there are more than those, and `means` has the seconds that an attempt of a type
/// takes.
pub(super) fn desired_workers(
    catalog: &Catalog,
    queue: &QueueName,
    due: &BTreeMap<TypeName, u64>,
    (startable, more): (&BTreeMap<TypeName, Startable>, bool),
    means: &HashMap<TypeName, f64>,
) -> u64 {
    let limits = catalog.limits(queue);
    if limits.paused {
        return 0;
    }
    let config = |name: &TypeName| catalog.types.get(name).map(|item| &item.config);
    let weight = |name: &TypeName| config(name).map_or(1, |config| u64::from(config.weight));
    let mut types: Vec<(u64, &TypeName, u64)> =
        due.iter().map(|(name, jobs)| (weight(name), name, *jobs)).collect();
    // The lightest types first: most of their jobs run at once.
    types.sort_unstable();
    let mut capacity = limits.queue.concurrency.map(u64::from);
    let mut workers = 0;
    for (weight, name, jobs) in types {
        let admitted = startable.get(name).copied().unwrap_or_default();
        // If all were examined, the others cannot be read, and no worker gets them.
        let jobs = if more { jobs } else { jobs.min(admitted.examined) };
        if jobs == 0 {
            continue;
        }
        // What admits all examined jobs is taken to admit the others as well.
        let bound = |most: u64| if most == admitted.examined { jobs } else { most };
        let (starts, at_once) = (bound(admitted.starts), bound(admitted.at_once));
        let lease = config(name).map(|config| config.lease_seconds.as_f64());
        let took = means.get(name).copied().or(lease).unwrap_or_default();
        let wanted = (starts as f64 * took / DRAIN_TARGET.as_secs_f64()).ceil().max(1.0) as u64;
        let most = [limits.types.get(name).map(|most| u64::from(*most)), capacity];
        let fit = most
            .into_iter()
            .flatten()
            .map(|most| most.checked_div(weight).unwrap_or(u64::MAX))
            .chain([at_once])
            .min()
            .unwrap_or(at_once);
        let fit = wanted.min(fit);
        capacity = capacity.map(|capacity| capacity - fit * weight);
        workers += fit;
    }
    workers
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::testkit::builders::name;

    #[test]
    fn due_jobs_that_cannot_be_read_want_no_workers() {
        let (queue, work): (QueueName, TypeName) = (name("default"), name("work"));
        let (due, means) = ([(work.clone(), 9)].into(), [(work.clone(), 60.0)].into());
        let wanted = |readable: u64, more: bool| {
            let all = Startable { examined: readable, starts: readable, at_once: readable };
            let startable = [(work.clone(), all)].into();
            desired_workers(&Catalog::default(), &queue, &due, (&startable, more), &means)
        };
        assert_eq!(wanted(9, false), 9);
        assert_eq!(wanted(4, true), 9, "the others were not examined");
        assert_eq!(wanted(4, false), 4);
        assert_eq!(wanted(0, false), 0);
    }
}
