//! What a simulation comes to: plain data, the same for the same scenario and policies, byte for byte.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    policies::Calls,
    record::{By, Group, Note, Recording},
    scenario::{Expect, Scenario},
    series::Series,
};
use tidegate_core::job::Outcome;

/// Into how many parts a report's time is cut for its [`Chart`].
pub const COLUMNS: usize = 400;

/// How a queue did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimulationReport {
    /// By what jobs are told apart: an attribute's name, or `type`.
    pub by: String,
    /// Why it ended.
    pub over: Over,
    /// How long it lasted.
    pub seconds: f64,
    /// Rounds that the queue took; 0 for what a live queue did.
    pub rounds: u64,
    /// All jobs.
    pub all: Row,
    /// The jobs of each value, by it; after the first 100 values, the others together.
    pub groups: Vec<Row>,
    /// How often each rule held a candidate.
    pub held: BTreeMap<String, u64>,
    /// The calls of plugins, by their role.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub calls: BTreeMap<&'static str, Calls>,
    /// What was expected, and whether it was so.
    pub expectations: Vec<Expectation>,
    /// What ran over time.
    pub chart: Chart,
}

/// Why a simulation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// Every job has ended.
    Done,
    /// Its duration was over.
    Duration,
    /// Jobs wait, and nothing will ever happen that lets them start.
    Stalled,
    /// It took more rounds than any simulation may.
    Rounds,
}

/// Jobs that are alike.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What they have in common; `all` for all.
    pub value: String,
    /// How many came.
    pub jobs: u64,
    /// Ended `succeeded`.
    pub succeeded: u64,
    /// Ended `failed`.
    pub failed: u64,
    /// Ended `expired`.
    pub expired: u64,
    /// Ended `cancelled`.
    pub cancelled: u64,
    /// Ended `dropped`.
    pub dropped: u64,
    /// Still scheduled.
    pub waiting: u64,
    /// Still running.
    pub running: u64,
    /// From due time to first attempt, jobs that still wait counted with their wait so far.
    pub wait_seconds: Waits,
    /// The most weight that ran at once.
    pub most_running: u64,
    /// The weight that ran on average.
    pub mean_running: f64,
    /// The most weight that may run at once, where that is known: from the expectations, else from the queue's limits.
    pub limit: Option<u64>,
    /// `mean_running` as a part of the limit.
    pub utilisation: Option<f64>,
    /// Attempts after a failed one.
    pub retries: u64,
    /// How often a throttler gave one another time.
    pub rescheduled: u64,
    /// How often a throttler held one, by its reason.
    pub held: BTreeMap<String, u64>,
}

/// What many numbers come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// Half of them no larger than this.
    pub median: u64,
    /// None larger than this.
    pub most: u64,
}

impl Spread {
    /// Of these numbers, if there are any.
    pub fn of(mut numbers: Vec<u64>) -> Option<Self> {
        numbers.sort_unstable();
        Some(Self {
            median: *numbers.get(numbers.len().div_ceil(2).checked_sub(1)?)?,
            most: *numbers.last()?,
        })
    }
}

/// How long jobs waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Waits {
    /// Half of them no longer than this.
    pub median: f64,
    /// All but a hundredth no longer than this.
    pub p99: f64,
    /// None longer than this.
    pub longest: f64,
}

impl Waits {
    /// Of these waits, in seconds.
    pub fn of(mut waits: Vec<f64>) -> Self {
        waits.sort_unstable_by(f64::total_cmp);
        let part = |part: f64| match waits.len() {
            0 => 0.0,
            count => waits[((count as f64 * part).ceil() as usize).clamp(1, count) - 1],
        };
        Self { median: part(0.5), p99: part(0.99), longest: part(1.0) }
    }
}

/// Something expected.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Expectation {
    /// What: `max_running region=east`.
    pub name: String,
    /// What it must be.
    pub wanted: String,
    /// What it was.
    pub got: String,
    /// Whether that is as expected.
    pub met: bool,
}

/// What ran over time: the most in each of [`COLUMNS`] equal parts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chart {
    /// How long a part is.
    pub column_seconds: f64,
    /// The weight of all that ran.
    pub all: Vec<u64>,
    /// The weight of each value's jobs, in the order of `groups`.
    pub groups: Vec<Vec<u64>>,
}

/// How a simulation of a trace compares with what the live queue did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// Jobs that started in both.
    pub jobs: u64,
    /// How long they really waited.
    pub real_wait_seconds: Waits,
    /// How long they waited in the simulation.
    pub simulated_wait_seconds: Waits,
    /// The mean of how far a job's start was off.
    pub mean_difference_seconds: f64,
    /// How much of what ran in either at any time, ran in both: 1 if they agree in every moment. Of all jobs, and of each value.
    pub overlap: BTreeMap<String, f64>,
}

impl Recording {
    /// The report of what happened until `end` milliseconds.
    pub(super) fn report(
        &self,
        scenario: &Scenario,
        over: Over,
        end: u64,
        rounds: u64,
    ) -> SimulationReport {
        let mut groups: Vec<(usize, Row)> = (0..self.groups.len())
            .map(|index| {
                let notes = self.jobs.iter().filter(|note| note.group == index);
                (
                    index,
                    self.row(
                        &self.groups[index],
                        notes,
                        limit(scenario, &self.by, Some(&self.groups[index].value)),
                        end,
                    ),
                )
            })
            .collect();
        groups.sort_by(|(_, a), (_, b)| a.value.cmp(&b.value));
        let chart = Chart {
            column_seconds: end as f64 / 1000.0 / COLUMNS as f64,
            all: self.all.running.columns(end, COLUMNS),
            groups: groups
                .iter()
                .map(|(index, _)| self.groups[*index].running.columns(end, COLUMNS))
                .collect(),
        };
        let mut report = SimulationReport {
            by: self.by.name().to_owned(),
            over,
            seconds: end as f64 / 1000.0,
            rounds,
            all: self.row(&self.all, self.jobs.iter(), limit(scenario, &self.by, None), end),
            groups: groups.into_iter().map(|(_, row)| row).collect(),
            held: self.held.clone(),
            calls: BTreeMap::new(),
            expectations: Vec::new(),
            chart,
        };
        report.expectations = self.expectations(&scenario.expect, &report);
        report
    }

    fn row<'a>(
        &self,
        group: &Group,
        notes: impl Iterator<Item = &'a Note>,
        limit: Option<u64>,
        end: u64,
    ) -> Row {
        let now = self.start + std::time::Duration::from_millis(end);
        let mut counts = BTreeMap::<Outcome, u64>::new();
        let (mut waiting, mut running, mut waits) = (0, 0, Vec::new());
        for note in notes {
            match note.ended {
                Some((_, outcome)) => *counts.entry(outcome).or_default() += 1,
                None if note.running => running += 1,
                None => waiting += 1,
            }
            // Who was dropped or expired before it ever ran waited for nothing.
            if let Some(until) = note.started.or(note.ended.is_none().then_some(now)) {
                waits.push(until.since(note.due).as_secs_f64());
            }
        }
        let ended = |outcome| counts.get(&outcome).copied().unwrap_or_default();
        let mean_running = group.running.mean(end);
        Row {
            value: group.value.clone(),
            jobs: group.jobs,
            succeeded: ended(Outcome::Succeeded),
            failed: ended(Outcome::Failed),
            expired: ended(Outcome::Expired),
            cancelled: ended(Outcome::Cancelled),
            dropped: ended(Outcome::Dropped),
            waiting,
            running,
            wait_seconds: Waits::of(waits),
            most_running: group.running.most(),
            mean_running,
            limit,
            utilisation: limit.filter(|limit| *limit > 0).map(|limit| mean_running / limit as f64),
            retries: group.retries,
            rescheduled: group.rescheduled,
            held: group.held.clone(),
        }
    }

    /// What `expect` says, held against `report`.
    fn expectations(&self, expect: &Expect, report: &SimulationReport) -> Vec<Expectation> {
        let mut found = Vec::new();
        for ((key, most), watch) in expect.max_running.iter().zip(&self.watches) {
            let (got, name) = (watch.running.most(), if key.is_empty() { "all" } else { key });
            found.push(Expectation {
                name: format!("max_running {name}"),
                wanted: format!("at most {most}"),
                got: got.to_string(),
                met: got <= *most,
            });
        }
        if let Some(by) = expect.done_by_seconds {
            let last = self
                .jobs
                .iter()
                .filter_map(|note| note.ended)
                .map(|(at, _)| at)
                .max()
                .unwrap_or(self.start);
            let seconds = last.since(self.start).as_secs_f64();
            let left = report.all.waiting + report.all.running;
            let got = if left == 0 {
                format!("{seconds} s")
            } else {
                format!("{left} jobs had not ended after {} s", report.seconds)
            };
            let wanted = format!("by {} s", by.as_f64());
            found.push(Expectation {
                name: "done".into(),
                wanted,
                got,
                met: left == 0 && seconds <= by.as_f64(),
            });
        }
        if let Some(most) = expect.longest_wait_seconds {
            let got = report.all.wait_seconds.longest;
            let wanted = format!("at most {} s", most.as_f64());
            found.push(Expectation {
                name: "longest wait".into(),
                wanted,
                got: format!("{got} s"),
                met: got <= most.as_f64(),
            });
        }
        for (name, wanted, got) in [
            ("dropped", expect.dropped, report.all.dropped),
            ("failed", expect.failed, report.all.failed),
        ] {
            if let Some(wanted) = wanted {
                found.push(Expectation {
                    name: name.into(),
                    wanted: wanted.to_string(),
                    got: got.to_string(),
                    met: wanted == got,
                });
            }
        }
        found
    }

    /// How this compares with what really happened, up to the end of both at `end` milliseconds.
    pub(super) fn agreement(
        &self,
        real: &Recording,
        ids: &[tidegate_core::job::JobId],
        end: u64,
    ) -> Agreement {
        let started = |record: &Recording, id| {
            let note = &record.jobs[record.number(id)?];
            Some((note.started?, note.started?.since(note.due).as_secs_f64()))
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

/// The most weight that may run of a value's jobs (none: of all), where the scenario says it.
fn limit(scenario: &Scenario, by: &By, value: Option<&str>) -> Option<u64> {
    let key = value.map_or_else(String::new, |value| format!("{}={value}", by.name()));
    let expected = scenario.expect.max_running.get(&key).copied();
    let queue = &scenario.queue;
    let configured = || match (value, by) {
        (None, _) => queue.concurrency,
        (Some(value), By::Type) => scenario
            .types
            .iter()
            .find(|(name, _)| name.as_str() == value)
            .and_then(|(_, config)| config.concurrency),
        (Some(_), By::Attribute(name)) => {
            let per_value =
                queue.constraints.iter().filter(|constraint| constraint.per.as_ref() == Some(name));
            per_value
                .filter(|constraint| {
                    constraint.matcher == tidegate_core::queue::matcher::Matcher::default()
                })
                .filter_map(|one| one.concurrency)
                .min()
        }
    };
    expected.or_else(|| configured().map(u64::from))
}
