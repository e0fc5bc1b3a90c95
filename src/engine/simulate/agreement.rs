//! How a simulation of a trace agrees with the live queue.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{record::Recording, report::Waits, series::Series};

/// How a simulation of a trace agrees with the live queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// Jobs that started in both.
    pub jobs: u64,
    /// How long they waited in the live queue.
    pub real_wait_seconds: Waits,
    /// How long they waited in the simulation.
    pub simulated_wait_seconds: Waits,
    /// The mean difference between the starts of a job in both.
    pub mean_difference_seconds: f64,
    /// The weight that ran in both at the same time, as a fraction of the weight that ran in
    /// either: 1 if they always agree. For all jobs, and for each value.
    pub overlap: BTreeMap<String, f64>,
}

impl Recording {
    /// The agreement with the live queue, up to the end of both at `end` milliseconds.
    pub(super) fn agreement(
        &self,
        real: &Recording,
        ids: &[tidegate_core::job::JobId],
        end: u64,
    ) -> Agreement {
        let started = |record: &Recording, id| {
            let job = &record.jobs[record.number(id)?];
            Some((job.started?, job.started?.since(job.due).as_secs_f64()))
        };
        let pairs: Vec<_> =
            ids.iter().filter_map(|id| Some((started(real, id)?, started(self, id)?))).collect();
        let off = pairs.iter().map(|((a, _), (b, _))| a.since(*b).max(b.since(*a)).as_secs_f64());
        let none = Series::default();
        let of = |record: &Recording, value: &str| {
            record
                .groups
                .iter()
                .find(|group| group.value == value)
                .map(|group| group.running.clone())
        };
        let mut overlap: BTreeMap<String, f64> = real
            .groups
            .iter()
            .map(|group| {
                (
                    group.value.clone(),
                    group.running.overlap(of(self, &group.value).as_ref().unwrap_or(&none), end),
                )
            })
            .collect();
        overlap.insert(String::new(), self.all.running.overlap(&real.all.running, end));
        Agreement {
            jobs: pairs.len() as u64,
            real_wait_seconds: Waits::of(pairs.iter().map(|((_, wait), _)| *wait).collect()),
            simulated_wait_seconds: Waits::of(pairs.iter().map(|(_, (_, wait))| *wait).collect()),
            mean_difference_seconds: off.sum::<f64>() / pairs.len().max(1) as f64,
            overlap,
        }
    }
}
