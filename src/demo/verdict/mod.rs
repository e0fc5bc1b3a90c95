//! The final table: each promise, the observation, and whether the two agree.
//!
//! Pure. The workers' own `event_log` shows what ran at once, when, and how often. The server's
//! answers show how each job ended. The table compares the two with each other and with the plan.

mod limits;
mod messages;
mod outcomes;

use std::{collections::HashMap, time::Duration};

use serde::Serialize;
use serde_json::Value;

use super::{
    event_log::Pages,
    plan::{Planned, PlannedOutcome},
    producer::Accepted,
};
use tidegate_api::{AnyValue, Explanation, JobView, Reason};

/// One promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Its subject.
    pub what: &'static str,
    /// What was promised.
    pub expected: String,
    /// What was seen.
    pub seen: String,
    /// Whether the promise was kept.
    pub ok: bool,
}

/// The server's view of a job at the end, as far as the promises depend on it.
#[derive(Clone, Debug, Default)]
pub struct ObservedJob {
    pub id: String,
    pub state: String,
    pub attempt: u16,
    /// Why attempts failed, oldest first.
    pub failures: Vec<Reason>,
    /// The latest failure.
    pub error: Option<Reason>,
    pub result: Option<Value>,
}

impl From<JobView<'_>> for ObservedJob {
    fn from(job: JobView<'_>) -> Self {
        let result = job.result.as_ref().and_then(AnyValue::json);
        Self {
            id: job.id.to_string(),
            state: job.state.to_string(),
            attempt: job.attempt,
            failures: job
                .history
                .iter()
                .filter_map(|entry| Some(entry.error.as_ref()?.reason))
                .collect(),
            error: job.error.as_ref().map(|error| error.reason),
            result: result.and_then(|json| serde_json::from_str(json).ok()),
        }
    }
}

/// A kill of the server.
#[derive(Clone, Copy, Debug)]
pub struct Kill {
    /// How long no server served.
    pub outage: Duration,
    /// Whether its disk was lost, too.
    pub loses_disk: bool,
}

/// The evidence that the table is computed from.
pub struct Evidence<'a> {
    /// The planned jobs.
    pub plan: &'a [Planned],
    /// What the server acknowledged.
    pub accepted: &'a Accepted,
    /// What the workers saw.
    pub pages: &'a Pages,
    /// The server's view of the jobs, by id.
    pub jobs: &'a HashMap<String, ObservedJob>,
    /// Why the waiting jobs wait.
    pub explained: &'a [Explanation],
    /// The kill of the server, if there was one.
    pub kill: Option<Kill>,
    /// The highest accepted lateness at the 99th percentile.
    pub lateness: Duration,
}

/// Returns the rows of the table.
pub fn table(evidence: &Evidence<'_>) -> Vec<Row> {
    let mut rows = evidence.outcomes();
    rows.extend(evidence.kill());
    rows.extend(evidence.limits());
    rows.extend(evidence.times());
    rows.extend(evidence.attempts());
    rows.extend(evidence.messages());
    rows
}

/// Returns a row.
fn row(what: &'static str, expected: impl Into<String>, seen: impl Into<String>, ok: bool) -> Row {
    Row { what, expected: expected.into(), seen: seen.into(), ok }
}

/// Returns a row that compares two numbers, which must be equal.
fn equal(what: &'static str, expected: usize, seen: usize, unit: &str) -> Row {
    let said = |number: usize| {
        if unit.is_empty() { number.to_string() } else { format!("{number} {unit}") }
    };
    row(what, said(expected), said(seen), expected == seen)
}

impl<'a> Evidence<'a> {
    /// Returns the planned jobs that the server acknowledged. The promises apply to those alone.
    fn acknowledged(&self) -> impl Iterator<Item = &'a Planned> {
        let known = &self.accepted.jobs;
        self.plan.iter().filter(|job| known.contains_key(&job.id))
    }

    /// Returns the acknowledged jobs with the planned outcome `fate`.
    fn with(&self, fate: PlannedOutcome) -> impl Iterator<Item = &'a Planned> {
        self.acknowledged().filter(move |job| job.fate == fate)
    }

    /// Returns the server's view of a planned job.
    fn job(&self, planned: &Planned) -> Option<&'a ObservedJob> {
        self.jobs.get(&planned.id)
    }

    /// Returns how many attempts the workers saw of each job.
    fn runs(&self) -> HashMap<&str, u64> {
        let mut runs: HashMap<&str, u64> = HashMap::new();
        for start in &self.pages.starts {
            *runs.entry(&start.id).or_default() += 1;
        }
        runs
    }
}

#[cfg(test)]
mod tests;
