//! A run in numbers and a picture: what an operator compares when a queue is to be changed.

use super::{
    record::{JobRecord, Recording},
    report::Over,
    scenario::Scenario,
    series::Series,
};
use tidegate_core::job::Outcome;

/// The number of equal parts of the time in a [`Summary`].
pub const PARTS: usize = 120;

/// Quantiles of a set of durations in seconds; zeros of an empty set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl Percentiles {
    fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_unstable_by(f64::total_cmp);
        let part = |part: f64| match seconds.len() {
            0 => 0.0,
            count => seconds[((count as f64 * part).ceil() as usize).clamp(1, count) - 1],
        };
        Self { p50: part(0.5), p95: part(0.95), p99: part(0.99) }
    }
}

/// The measurements of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// How many jobs arrived.
    pub jobs: u64,
    /// Jobs that ended, in whatever way.
    pub finished: u64,
    /// Jobs that ended `failed`.
    pub failed: u64,
    /// Jobs that ended `expired`.
    pub expired: u64,
    /// From the due time to the first attempt. For jobs that still wait, the wait so far.
    pub start_delay_seconds: Percentiles,
    /// How long the attempts took.
    pub run_seconds: Percentiles,
    /// How long the run lasted.
    pub seconds: f64,
    /// The weight that ran on average, as a fraction of the limit of the queue; none without a
    /// limit.
    pub utilization: Option<f64>,
    /// When the last job ended; none if some have not.
    pub drained_after_seconds: Option<f64>,
    /// How long each of the [`PARTS`] is.
    pub part_seconds: f64,
    /// The most jobs that were due and had not started yet, in each part.
    pub waiting: Vec<u64>,
    /// The most weight that ran, in each part.
    pub running: Vec<u64>,
    /// The groups of jobs, those with most jobs first.
    pub groups: Vec<GroupSummary>,
    /// Whether it ended before its time was over or all jobs had ended.
    pub stopped_early: bool,
}

/// The measurements of the jobs with one value.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSummary {
    /// The value.
    pub value: String,
    /// How many jobs arrived.
    pub jobs: u64,
    /// As for the whole run.
    pub start_delay_seconds: Percentiles,
    /// Its part of the weight that ran over time, 0 to 1.
    pub share: f64,
}

impl Recording {
    /// The summary up to `end`, in milliseconds from the start.
    pub(super) fn summary(&self, scenario: &Scenario, over: Over, end: u64) -> Summary {
        let ended = |outcome| {
            let is_so = |job: &&JobRecord| job.ended.is_some_and(|(_, of)| of == outcome);
            self.jobs.iter().filter(is_so).count() as u64
        };
        let after = |at: tidegate_core::time::Timestamp| at.since(self.start);
        let last = self.jobs.iter().filter_map(|job| job.ended).map(|(at, _)| at).max();
        let is_drained = self.ended == self.jobs.len() as u64;
        let mean = self.all.running.mean(end);
        let limit = scenario.queue.concurrency.filter(|limit| *limit > 0);
        let group = |(index, group): (usize, &super::record::Group)| GroupSummary {
            value: group.value.clone(),
            jobs: group.jobs,
            start_delay_seconds: self.delays(end, |job| job.group == index),
            share: if mean > 0.0 { group.running.mean(end) / mean } else { 0.0 },
        };
        let mut groups: Vec<GroupSummary> = self.groups.iter().enumerate().map(group).collect();
        groups.sort_by(|a, b| b.jobs.cmp(&a.jobs).then_with(|| a.value.cmp(&b.value)));
        Summary {
            jobs: self.jobs.len() as u64,
            finished: self.ended,
            failed: ended(Outcome::Failed),
            expired: ended(Outcome::Expired),
            start_delay_seconds: self.delays(end, |_| true),
            run_seconds: Percentiles::of(self.runs.clone()),
            seconds: end as f64 / 1000.0,
            utilization: limit.map(|limit| mean / f64::from(limit)),
            drained_after_seconds: last.filter(|_| is_drained).map(|at| after(at).as_secs_f64()),
            part_seconds: end as f64 / 1000.0 / PARTS as f64,
            waiting: self.backlog().columns(end, PARTS),
            running: self.all.running.columns(end, PARTS),
            groups,
            stopped_early: matches!(over, Over::Stopped | Over::Ticks),
        }
    }

    /// The start delays of some jobs.
    fn delays(&self, end: u64, of: impl Fn(&JobRecord) -> bool) -> Percentiles {
        let jobs = self.jobs.iter().filter(|job| of(job));
        Percentiles::of(jobs.filter_map(|job| self.wait(job, end)).collect())
    }

    /// How many jobs were due and had not started yet.
    fn backlog(&self) -> Series {
        let millis = |at: tidegate_core::time::Timestamp| at.since(self.start).as_millis() as u64;
        let mut changes: Vec<(u64, bool)> = Vec::with_capacity(2 * self.jobs.len());
        for job in &self.jobs {
            let until = job.started.or(job.ended.map(|(at, _)| at));
            if until.is_some_and(|until| until <= job.due) {
                continue;
            }
            changes.push((millis(job.due), true));
            changes.extend(until.map(|until| (millis(until), false)));
        }
        // At the same instant, starts come first.
        changes.sort_unstable();
        let mut series = Series::default();
        for (at, more) in changes {
            series.change(at, 1, more);
        }
        series
    }
}
