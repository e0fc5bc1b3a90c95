//! The report of a simulation: plain data, the same for the same scenario and policies, byte for
//! byte.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    policies::Calls,
    record::{By, Group, JobRecord, Recording},
    scenario::{Expect, LongestWait, Scenario},
};
use tidegate_core::job::Outcome;

/// The number of equal parts of the time in a [`Chart`].
pub const CHART_COLUMNS: usize = 400;

/// The measurements of a queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimulationReport {
    /// How jobs are grouped: the name of an attribute, or `type`.
    pub by: String,
    /// Why it ended.
    pub over: Over,
    /// How long it lasted.
    pub seconds: f64,
    /// Ticks of the queue; 0 for a live queue.
    pub ticks: u64,
    /// All jobs.
    pub all: Row,
    /// The jobs of each value, in its order. Beyond 100 values the other jobs form one group.
    pub groups: Vec<Row>,
    /// How often each rule held a candidate.
    pub held: BTreeMap<String, u64>,
    /// The calls of plugins, by their role.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub calls: BTreeMap<&'static str, Calls>,
    /// The expectations, and whether each is met.
    pub expectations: Vec<Expectation>,
    /// The running weight over time.
    pub chart: Chart,
}

/// Why a simulation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// Every job has ended.
    Done,
    /// Its duration has elapsed.
    Duration,
    /// Jobs wait, and no event follows that could start them.
    Stalled,
    /// It reached the maximum number of ticks.
    Ticks,
    /// Its caller stopped it.
    Stopped,
}

/// The measurements of a group of jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Their common value; `all` for all jobs.
    pub value: String,
    /// How many arrived.
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
    /// From the due time to the first attempt. For jobs that still wait, the wait so far.
    pub wait_seconds: Waits,
    /// The most weight that ran at the same time.
    pub most_running: u64,
    /// The weight that ran on average.
    pub mean_running: f64,
    /// The most weight that may run at the same time, if it is known: from the expectations,
    /// otherwise from the limits of the queue.
    pub limit: Option<u64>,
    /// `mean_running` as a fraction of the limit.
    pub utilisation: Option<f64>,
    /// Attempts after a failed one.
    pub retries: u64,
    /// How often a throttler rescheduled one.
    pub rescheduled: u64,
    /// How often a throttler held one, by its reason.
    pub held: BTreeMap<String, u64>,
}

/// Median and maximum of a set of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: u64,
    /// The maximum.
    pub most: u64,
}

impl Spread {
    /// The spread of these numbers; `None` without numbers.
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
    /// The median.
    pub median: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The maximum.
    pub longest: f64,
}

impl Waits {
    /// The distribution of these waits, in seconds.
    pub fn of(mut waits: Vec<f64>) -> Self {
        waits.sort_unstable_by(f64::total_cmp);
        let part = |part: f64| match waits.len() {
            0 => 0.0,
            count => waits[((count as f64 * part).ceil() as usize).clamp(1, count) - 1],
        };
        Self { median: part(0.5), p99: part(0.99), longest: part(1.0) }
    }
}

/// An expectation and its result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Expectation {
    /// Its name: `max_running region=east`.
    pub name: String,
    /// What it must be.
    pub wanted: String,
    /// What it was.
    pub got: String,
    /// Whether it is met.
    pub met: bool,
}

/// The running weight over time: the maximum in each of [`CHART_COLUMNS`] equal parts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chart {
    /// How long a part is.
    pub column_seconds: f64,
    /// The weight of all that ran.
    pub all: Vec<u64>,
    /// The weight of each value's jobs, in the order of `groups`.
    pub groups: Vec<Vec<u64>>,
}

impl Recording {
    /// The report up to `end`, in milliseconds from the start.
    pub(super) fn report(
        &self,
        scenario: &Scenario,
        over: Over,
        end: u64,
        ticks: u64,
    ) -> SimulationReport {
        let mut groups: Vec<(usize, Row)> = (0..self.groups.len())
            .map(|index| {
                let jobs = self.jobs.iter().filter(|job| job.group == index);
                (
                    index,
                    self.row(
                        &self.groups[index],
                        jobs,
                        limit(scenario, &self.by, Some(&self.groups[index].value)),
                        end,
                    ),
                )
            })
            .collect();
        groups.sort_by(|(_, a), (_, b)| a.value.cmp(&b.value));
        let chart = Chart {
            column_seconds: end as f64 / 1000.0 / CHART_COLUMNS as f64,
            all: self.all.running.columns(end, CHART_COLUMNS),
            groups: groups
                .iter()
                .map(|(index, _)| self.groups[*index].running.columns(end, CHART_COLUMNS))
                .collect(),
        };
        let mut report = SimulationReport {
            by: self.by.name().to_owned(),
            over,
            seconds: end as f64 / 1000.0,
            ticks,
            all: self.row(&self.all, self.jobs.iter(), limit(scenario, &self.by, None), end),
            groups: groups.into_iter().map(|(_, row)| row).collect(),
            held: self.held.clone(),
            calls: BTreeMap::new(),
            expectations: Vec::new(),
            chart,
        };
        report.expectations = self.expectations(&scenario.expect, &report, end);
        report
    }

    fn row<'a>(
        &self,
        group: &Group,
        jobs: impl Iterator<Item = &'a JobRecord>,
        limit: Option<u64>,
        end: u64,
    ) -> Row {
        let mut counts = BTreeMap::<Outcome, u64>::new();
        let (mut waiting, mut running, mut waits) = (0, 0, Vec::new());
        for job in jobs {
            match job.ended {
                Some((_, outcome)) => *counts.entry(outcome).or_default() += 1,
                None if job.running => running += 1,
                None => waiting += 1,
            }
            waits.extend(self.wait(job, end));
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

    /// The expectations of `expect`, compared with `report`.
    fn expectations(
        &self,
        expect: &Expect,
        report: &SimulationReport,
        end: u64,
    ) -> Vec<Expectation> {
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
                .filter_map(|job| job.ended)
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
        let waits = expect.longest_wait_seconds.iter().flat_map(LongestWait::named);
        for (watch, (key, most)) in (expect.max_running.len() as u32..).zip(waits) {
            let got = self.longest_wait(watch, end);
            let wanted = format!("at most {} s", most.as_f64());
            found.push(Expectation {
                name: format!("longest wait {key}").trim_end().to_owned(),
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
}

/// The most weight that may run of the jobs with a value (`None`: of all jobs), if the scenario
/// limits it.
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
