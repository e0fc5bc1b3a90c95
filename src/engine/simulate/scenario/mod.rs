//! A scenario: which jobs arrive when, how long their attempts take, and what the queue must
//! achieve. Plain data, read from JSON; [`check`](super::check) has the bounds of its fields.

mod arrivals;
mod service;
mod traced;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use arrivals::{Arrival, Burst, Choice};
pub use service::{Drawn, FailureRule, Service, Span};
pub use traced::{TracedAttempt, TracedJob};

use tidegate_core::{
    job::{QueueName, TypeName, type_config::TypeConfig},
    queue::QueueConfig,
    time::{Seconds, Timestamp},
};

/// The input of a simulation. Every field is optional.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// A description for readers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// The seed of all random draws (default 1).
    pub seed: u64,
    /// When it begins (default 2026-01-01T00:00:00Z).
    pub start: Timestamp,
    /// It ends after this time, or earlier when every job has ended (default 86400; 0.001 to
    /// 31622400).
    pub duration_seconds: Seconds,
    /// Least time between two ticks of the queue (default 0.001; 0.001 to 3600). A longer time
    /// makes long simulations fast.
    pub tick_seconds: Seconds,
    /// The queue's name (default `simulated`).
    pub name: QueueName,
    /// The configuration of the queue, as in `PUT /v1/queues/{q}`.
    pub queue: QueueConfig,
    /// Job types, as in `PUT /v1/job-types/{t}`. Other types have the defaults. Simulated
    /// workers run the jobs: of targets, only the hosts have an effect, and callbacks have none.
    pub types: BTreeMap<TypeName, TypeConfig>,
    /// How many jobs workers run at the same time, whatever the limits allow (default 10000; 1 to
    /// 100000).
    pub workers: u32,
    /// Streams of jobs: at most 1000, and 1000000 jobs in all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arrivals: Vec<Arrival>,
    /// Single jobs, as in a trace. They count towards the 1000000 jobs of `arrivals`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<TracedJob>,
    /// Which attempts of the trace in `jobs` decide how simulated ones end (default `job`).
    #[serde(skip_serializing_if = "Outcomes::is_default")]
    pub outcomes: Outcomes,
    /// How long attempts take and how they end: the first rule that matches a job (default: one
    /// second, and success). At most 100.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub service: Vec<Service>,
    /// What must hold at the end.
    #[serde(skip_serializing_if = "Expect::is_empty")]
    pub expect: Expect,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            about: String::new(),
            seed: 1,
            start: Timestamp::from_millis(1_767_225_600_000),
            duration_seconds: Seconds::new(86_400),
            tick_seconds: Seconds::from_millis(1),
            name: "simulated".parse().expect("it is a valid name"),
            queue: QueueConfig::default(),
            types: BTreeMap::new(),
            workers: 10_000,
            arrivals: Vec::new(),
            jobs: Vec::new(),
            outcomes: Outcomes::Job,
            service: Vec::new(),
            expect: Expect::default(),
        }
    }
}

/// Which attempts of a trace decide how simulated ones end, and how long they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcomes {
    /// Those of the same job: its first attempt ends as its first one did.
    #[default]
    Job,
    /// The one of the same type that started last before: a target that was down is down at the
    /// same time, whichever jobs are started then.
    Time,
}

impl Outcomes {
    /// Whether it is the default.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_default(&self) -> bool {
        *self == Self::Job
    }
}

/// Expectations that must hold at the end. An absent field expects nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// The most weight that may run at the same time: of jobs with `attribute=value`, of
    /// `type=name`, or of all jobs (empty text).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub max_running: BTreeMap<String, u64>,
    /// Every job must have ended by then, from the start of the scenario.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_by_seconds: Option<Seconds>,
    /// The longest wait of a job, from its due time to its first attempt: of all jobs, or of those
    /// that a name in the form of `max_running` selects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_wait_seconds: Option<LongestWait>,
    /// The exact number of jobs that end `dropped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
    /// The exact number of jobs that end `failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<u64>,
}

/// The longest waits that are expected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected seconds, or an object of seconds such as {\"region=east\": 60}"
)]
pub enum LongestWait {
    /// Of all jobs.
    All(Seconds),
    /// Of the jobs with `attribute=value`, of `type=name`, or of all jobs (empty text).
    Of(BTreeMap<String, Seconds>),
}

impl LongestWait {
    /// The longest wait by the name of its jobs, which is empty for all.
    pub fn named(&self) -> Vec<(&str, Seconds)> {
        match self {
            Self::All(most) => vec![("", *most)],
            Self::Of(named) => named.iter().map(|(key, most)| (key.as_str(), *most)).collect(),
        }
    }
}

impl Expect {
    /// The names of the groups of jobs that it observes: of `max_running`, then of
    /// `longest_wait_seconds`.
    pub(super) fn groups(&self) -> impl Iterator<Item = &str> {
        let waits = self.longest_wait_seconds.iter().flat_map(LongestWait::named);
        self.max_running.keys().map(String::as_str).chain(waits.map(|(key, _)| key))
    }

    /// Whether there are no expectations.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Why a text is not a valid scenario: the field and the fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", if field.is_empty() { String::new() } else { format!("{field}: ") })]
pub struct BadScenario {
    /// The path of the field: `arrivals[2].count`; empty for the whole scenario.
    pub field: String,
    /// What it must be, or why it cannot be read.
    pub message: String,
}

impl Scenario {
    /// Reads a scenario from JSON, and checks it.
    ///
    /// # Errors
    ///
    /// The first fault: a text that is not JSON, an unknown field, a value outside its bounds.
    pub fn read(text: &str) -> Result<Self, BadScenario> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let scenario: Self = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let path = error.path().to_string();
            BadScenario {
                field: if path == "." { String::new() } else { path },
                message: error.inner().to_string(),
            }
        })?;
        reader
            .end()
            .map_err(|error| BadScenario { field: String::new(), message: error.to_string() })?;
        scenario.check()?;
        Ok(scenario)
    }

    /// The number of jobs that arrive.
    pub fn job_count(&self) -> u64 {
        self.arrivals.iter().map(|arrival| u64::from(arrival.count)).sum::<u64>()
            + self.jobs.len() as u64
    }
}
