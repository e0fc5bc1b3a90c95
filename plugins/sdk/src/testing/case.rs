//! A case in its file format, and as the values that a plugin receives.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::time::Instant;
use crate::{
    Attribute, Call, Data, Ended, Failure, Job, Problem, Round, Running, RunningJob, State,
    Waiting, WaitingGroup, parse,
};

/// The role that a case tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A throttler's decision.
    Throttler,
    /// The decision of a retry strategy.
    Retry,
}

/// One call, and its expected outcome.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are the contract's")]
pub struct Case {
    pub name: String,
    pub role: Role,
    #[serde(default)]
    pub config: Map<String, Value>,
    #[serde(default = "queue")]
    pub queue: String,
    #[serde(default = "new_year")]
    pub now: Instant,
    #[serde(default)]
    pub seed: u64,
    pub concurrency: Option<u32>,
    #[serde(default = "room")]
    pub room: u32,
    #[serde(default)]
    pub running: Vec<Granted>,
    #[serde(default)]
    pub candidates: Vec<Candidate>,
    /// Absent: only the candidates wait.
    pub waiting: Option<Waits>,
    #[serde(default)]
    pub ended: Vec<End>,
    #[serde(default)]
    pub state: BTreeMap<String, Value>,
    /// When keys of the state expire.
    #[serde(default)]
    pub state_expires: BTreeMap<String, Instant>,
    #[serde(default)]
    pub job: Candidate,
    #[serde(default)]
    pub failure: Failed,
    #[serde(default)]
    pub expect: Expect,
}

/// A candidate, or the job that failed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "the names are the contract's")]
pub struct Candidate {
    pub id: Option<String>,
    #[serde(rename = "type")]
    pub job_type: Option<String>,
    pub priority: Option<i32>,
    pub weight: Option<u32>,
    pub attributes: BTreeMap<String, Value>,
    pub attempt: Option<u32>,
    pub attempts: Option<u32>,
    pub created_at: Option<Instant>,
    pub run_at: Option<Instant>,
    pub expires_at: Option<Instant>,
    pub deadline_at: Option<Instant>,
    pub target_host: Option<String>,
    pub replay_of: Option<String>,
    pub correlation_key: Option<String>,
    /// The failed attempts before.
    pub earlier: Vec<Failed>,
    pub data: Option<Value>,
    /// How many copies of it there are. Their ids end in `-1`, `-2` and so on.
    pub times: Option<u32>,
}

/// A running job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "the names are the contract's")]
pub struct Granted {
    pub id: Option<String>,
    #[serde(rename = "type")]
    pub job_type: Option<String>,
    pub priority: Option<i32>,
    pub weight: Option<u32>,
    pub critical: bool,
    pub attributes: BTreeMap<String, Value>,
    pub granted_at: Option<Instant>,
    pub times: Option<u32>,
}

/// What waits in the queue, in addition to the candidates.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "the names are the contract's")]
pub struct Waits {
    /// By attribute and value.
    pub groups: BTreeMap<String, BTreeMap<String, WaitsGroup>>,
    pub others: Option<WaitsGroup>,
    pub counted_at: Option<Instant>,
}

/// The waiting jobs with one value of an attribute.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are the contract's")]
pub struct WaitsGroup {
    pub count: u32,
    /// Default: 1 for each job.
    pub weight: Option<u64>,
    pub oldest_due_at: Option<Instant>,
    #[serde(default)]
    pub at_least: bool,
}

/// An attempt that ended.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "the names are the contract's")]
pub struct End {
    pub id: Option<String>,
    #[serde(rename = "type")]
    pub job_type: Option<String>,
    pub priority: Option<i32>,
    pub weight: Option<u32>,
    pub attributes: BTreeMap<String, Value>,
    pub target_host: Option<String>,
    pub attempt: Option<u32>,
    pub started_at: Option<Instant>,
    pub ended_at: Option<Instant>,
    /// Whether it succeeded; true unless a reason is given.
    pub succeeded: Option<bool>,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub status: Option<u16>,
    pub details: Option<Value>,
    pub not_before: Option<Instant>,
    pub times: Option<u32>,
}

/// A failed attempt.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "the names are the contract's")]
pub struct Failed {
    pub attempt: Option<u32>,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub status: Option<u16>,
    pub details: Option<Value>,
    pub started_at: Option<Instant>,
    pub ended_at: Option<Instant>,
    /// The earliest next attempt that the worker or the target requested.
    pub not_before: Option<Instant>,
}

/// The expected outcome of the call. Absent fields are not compared, except that the configuration
/// must be valid.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "the names are the contract's")]
pub struct Expect {
    pub decisions: Option<Vec<ExpectDecision>>,
    /// How many candidates run.
    pub runs: Option<usize>,
    pub more: Option<bool>,
    /// The whole state after the call. A value that is not a text is compared as JSON.
    pub state: Option<BTreeMap<String, Value>>,
    /// When keys of the state after the call expire; the others do not.
    pub state_expires: Option<BTreeMap<String, Instant>>,
    pub problems: Vec<ExpectProblem>,
    /// The prefix of the call's error.
    pub error: Option<String>,
    pub retry: Option<ExpectRetry>,
    /// The prefix of the message. Null matches any message, and none.
    #[serde(deserialize_with = "present")]
    pub give_up: Option<Option<String>>,
}

/// A decision. Absent times and reasons are not compared.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are the contract's")]
pub struct ExpectDecision {
    pub action: String,
    /// When a hold ends.
    pub until: Option<Instant>,
    /// The new due time.
    pub at: Option<Instant>,
    /// The prefix of the reason.
    pub reason: Option<String>,
    pub times: Option<u32>,
}

/// An error in the configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are the contract's")]
pub struct ExpectProblem {
    pub path: String,
    /// The prefix of the message.
    #[serde(default)]
    pub message: String,
}

/// Another attempt. An absent time is not compared. What else is absent must not be changed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are the contract's")]
pub struct ExpectRetry {
    pub at: Option<Instant>,
    pub after_seconds: Option<f64>,
    pub data: Option<Value>,
    pub priority: Option<i32>,
    pub weight: Option<u32>,
    pub attempts_left: Option<u32>,
    pub timeout_seconds: Option<f64>,
    pub target: Option<String>,
}

fn queue() -> String {
    "queue".to_owned()
}

/// 2026-01-01T00:00:00Z.
fn new_year() -> Instant {
    Instant(1_767_225_600_000)
}

fn room() -> u32 {
    1000
}

/// Distinguishes `null` from an absent field.
fn present<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl Case {
    /// The cases of a file, which has one case or a list of them.
    ///
    /// # Errors
    ///
    /// Why the text cannot be parsed.
    pub fn read(text: &str) -> Result<Vec<Self>, String> {
        let message = |problem: Problem| format!("{}: {}", problem.path, problem.message);
        if text.trim_start().starts_with('[') {
            parse(text).map_err(message)
        } else {
            parse(text).map(|case| vec![case]).map_err(message)
        }
    }

    /// The configuration as text, as a plugin receives it.
    pub fn config_text(&self) -> String {
        Value::Object(self.config.clone()).to_string()
    }

    /// The round of a throttler's call.
    pub fn round(&self) -> Round {
        Round {
            queue: self.queue.clone(),
            now: self.now.0,
            seed: self.seed,
            concurrency: self.concurrency,
            room: self.room,
            ended: many(&self.ended, |end| end.times)
                .map(|(end, number)| end.value(number, self.now))
                .collect(),
            running: Running::of(
                many(&self.running, |job| job.times)
                    .map(|(job, number)| job.value(number, self.now))
                    .collect(),
            ),
            waiting: self.waiting.as_ref().map_or_else(
                || Waiting::of_candidates(&self.jobs()),
                |waits| waits.value(&self.jobs(), self.now),
            ),
            state: State::of(self.now.0, self.kept()),
            data: Data::of(
                self.numbered()
                    .filter_map(|(job, number)| {
                        Some((job.name(&number), job.data.as_ref()?.to_string()))
                    })
                    .collect(),
            ),
        }
    }

    /// The entries of the state, each with the time of its expiry.
    fn kept(&self) -> BTreeMap<String, (String, Option<u64>)> {
        let expires_at = |key: &String| self.state_expires.get(key).map(|at| at.0);
        let entry = |(key, value)| (String::clone(key), (text(value), expires_at(key)));
        self.state.iter().map(entry).collect()
    }

    /// The candidates of a throttler's call.
    pub fn jobs(&self) -> Vec<Job> {
        self.numbered().map(|(job, number)| job.value(&number, self.now)).collect()
    }

    fn numbered(&self) -> impl Iterator<Item = (&Candidate, Number)> {
        many(&self.candidates, |job| job.times)
    }

    /// A retry strategy's call.
    pub fn call(&self) -> Call {
        let data = self
            .job
            .data
            .as_ref()
            .map(|data| (self.job.name(&Number::default()), data.to_string()));
        Call {
            queue: self.queue.clone(),
            now: self.now.0,
            seed: self.seed,
            data: Data::of(data.into_iter().collect()),
            state: State::of(self.now.0, self.kept()),
        }
    }

    /// The job that failed, and its failure.
    pub fn failed(&self) -> (Job, Failure) {
        let job = self.job.value(&Number::default(), self.now);
        let last = self.failure.value(job.attempt, self.now);
        (job, last)
    }
}

/// The position in a list, from 1, and the number of the copy, if there are copies.
#[derive(Clone, Copy, Debug)]
pub struct Number(usize, Option<u32>);

impl Default for Number {
    fn default() -> Self {
        Self(1, None)
    }
}

impl Number {
    /// The given id, or one made from the position.
    fn id(self, given: Option<&String>) -> String {
        let id = given.cloned().unwrap_or_else(|| format!("job-{}", self.0));
        self.1.map_or_else(|| id.clone(), |repetition| format!("{id}-{repetition}"))
    }
}

/// Each element of a list, with its copies.
pub fn many<T>(
    list: &[T],
    times: impl Fn(&T) -> Option<u32>,
) -> impl Iterator<Item = (&T, Number)> {
    (1..).zip(list).flat_map(move |(place, one)| {
        let repetitions: Vec<Option<u32>> =
            times(one).map_or(vec![None], |times| (1..=times).map(Some).collect());
        repetitions.into_iter().map(move |repetition| (one, Number(place, repetition)))
    })
}

/// A string as it is, any other value as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn attributes(written: &BTreeMap<String, Value>) -> Vec<Attribute> {
    written
        .iter()
        .map(|(name, value)| Attribute { name: name.clone(), value: text(value) })
        .collect()
}

fn job_type(given: Option<&String>) -> String {
    given.cloned().unwrap_or_else(|| "job".to_owned())
}

impl Candidate {
    fn name(&self, number: &Number) -> String {
        number.id(self.id.as_ref())
    }

    fn value(&self, number: &Number, now: Instant) -> Job {
        Job {
            id: self.name(number),
            job_type: job_type(self.job_type.as_ref()),
            priority: self.priority.unwrap_or(100),
            weight: self.weight.unwrap_or(1),
            attributes: attributes(&self.attributes),
            attempt: self.attempt.unwrap_or(1),
            attempts: self.attempts.unwrap_or(3),
            created_at: self.created_at.unwrap_or(now).0,
            run_at: self.run_at.unwrap_or(now).0,
            expires_at: self.expires_at.map(|at| at.0),
            deadline_at: self.deadline_at.map(|at| at.0),
            target_host: self.target_host.clone(),
            replay_of: self.replay_of.clone(),
            correlation_key: self.correlation_key.clone(),
            earlier: (1..)
                .zip(&self.earlier)
                .map(|(attempt, failure)| failure.value(attempt, now))
                .collect(),
        }
    }
}

impl Granted {
    fn value(&self, number: Number, now: Instant) -> RunningJob {
        RunningJob {
            id: number.id(self.id.as_ref()).replacen(
                "job-",
                "running-",
                usize::from(self.id.is_none()),
            ),
            job_type: job_type(self.job_type.as_ref()),
            priority: self.priority.unwrap_or(100),
            weight: if self.critical { 0 } else { self.weight.unwrap_or(1) },
            critical: self.critical,
            attributes: attributes(&self.attributes),
            granted_at: self.granted_at.unwrap_or(now).0,
        }
    }
}

impl Waits {
    fn value(&self, candidates: &[Job], now: Instant) -> Waiting {
        let groups = |groups: &BTreeMap<String, WaitsGroup>| {
            groups.iter().map(|(value, group)| group.value(value, now)).collect()
        };
        let groups = self.groups.iter().map(|(name, of)| (name.clone(), groups(of)));
        let others = self.others.as_ref().map(|group| group.value("", now));
        let mut waiting = Waiting::of(groups.collect(), others, self.counted_at.map(|at| at.0));
        waiting.cover(candidates);
        waiting
    }
}

impl WaitsGroup {
    fn value(&self, value: &str, now: Instant) -> WaitingGroup {
        WaitingGroup {
            value: value.to_owned(),
            count: self.count,
            weight: self.weight.unwrap_or(self.count.into()),
            oldest_due_at: self.oldest_due_at.unwrap_or(now).0,
            at_least: self.at_least,
        }
    }
}

impl End {
    fn value(&self, number: Number, now: Instant) -> Ended {
        Ended {
            id: number.id(self.id.as_ref()).replacen(
                "job-",
                "ended-",
                usize::from(self.id.is_none()),
            ),
            job_type: job_type(self.job_type.as_ref()),
            priority: self.priority.unwrap_or(100),
            weight: self.weight.unwrap_or(1),
            attributes: attributes(&self.attributes),
            target_host: self.target_host.clone(),
            attempt: self.attempt.unwrap_or(1),
            started_at: self.started_at.unwrap_or(now).0,
            ended_at: self.ended_at.unwrap_or(now).0,
            succeeded: self.succeeded.unwrap_or(self.reason.is_none()),
            reason: self.reason.clone(),
            message: self.message.clone(),
            status: self.status,
            details: self.details.as_ref().map(Value::to_string),
            not_before: self.not_before.map(|at| at.0),
        }
    }
}

impl Failed {
    fn value(&self, attempt: u32, now: Instant) -> Failure {
        Failure {
            attempt: self.attempt.unwrap_or(attempt),
            reason: self.reason.clone().unwrap_or_else(|| "failed".to_owned()),
            message: self.message.clone(),
            status: self.status,
            details: self.details.as_ref().map(Value::to_string),
            started_at: self.started_at.unwrap_or(now).0,
            ended_at: self.ended_at.unwrap_or(now).0,
            not_before: self.not_before.map(|at| at.0),
        }
    }
}
