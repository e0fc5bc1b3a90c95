//! Tests of plugins as data: a case has the input of a call and the expected response.
//!
//! ```json
//! {"name": "the east has its share", "role": "throttler", "config": {"limit": 2},
//!  "running": [{"attributes": {"region": "east"}}],
//!  "candidates": [{"attributes": {"region": "east"}}, {"attributes": {"region": "west"}}],
//!  "expect": {"decisions": [{"action": "run"}, {"action": "hold", "reason": "the east"}]}}
//! ```
//!
//! A case does not depend on the language of the plugin. A [`Component`] runs it without a server.
//! The format and its defaults are those of the SDK (`plugins/sdk/src/testing`), which runs the
//! same files on Rust code. [`recorded()`] turns a fault that a server recorded into a case.

mod component;
mod expect;
mod recorded;

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::{Map, Value, json};

pub use self::{
    component::{Component, Unusable},
    expect::Expect,
    recorded::recorded,
};
use tidegate_backends::wasm::record;
use tidegate_core::{
    port::policy::{self, Call, ThrottleCall},
    queue::plugin::Role,
    time::Timestamp,
};

/// One call and its expected response.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The behaviour that it shows.
    pub name: String,
    /// The role in which the plugin is called.
    pub role: Role,
    #[serde(default)]
    config: Map<String, Value>,
    #[serde(default = "queue")]
    queue: String,
    #[serde(default = "new_year")]
    now: Instant,
    #[serde(default)]
    seed: u64,
    concurrency: Option<u32>,
    #[serde(default = "room")]
    room: u32,
    #[serde(default)]
    running: Vec<Running>,
    #[serde(default)]
    candidates: Vec<Candidate>,
    /// Absent: only the candidates wait.
    waiting: Option<Waiting>,
    #[serde(default)]
    ended: Vec<End>,
    #[serde(default)]
    state: BTreeMap<String, Value>,
    /// When keys of the state expire.
    #[serde(default)]
    state_expires: BTreeMap<String, Instant>,
    #[serde(default)]
    job: Candidate,
    #[serde(default)]
    failure: Failing,
    /// The expected response.
    #[serde(default)]
    pub expect: Expect,
}

/// A candidate, or the job that failed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Candidate {
    id: Option<String>,
    #[serde(rename = "type")]
    job_type: Option<String>,
    priority: Option<i32>,
    weight: Option<u32>,
    attributes: BTreeMap<String, Value>,
    attempt: Option<u32>,
    attempts: Option<u32>,
    created_at: Option<Instant>,
    run_at: Option<Instant>,
    expires_at: Option<Instant>,
    deadline_at: Option<Instant>,
    target_host: Option<String>,
    replay_of: Option<String>,
    correlation_key: Option<String>,
    /// The failed attempts before.
    earlier: Vec<Failing>,
    data: Option<Value>,
    /// The number of copies; their ids end in `-1`, `-2` and so on.
    times: Option<u32>,
}

/// A job that runs.
#[allow(clippy::struct_field_names, reason = "the names of the case files")]
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Running {
    id: Option<String>,
    #[serde(rename = "type")]
    job_type: Option<String>,
    priority: Option<i32>,
    weight: Option<u32>,
    critical: bool,
    attributes: BTreeMap<String, Value>,
    granted_at: Option<Instant>,
    times: Option<u32>,
}

/// What waits in the queue, in addition to the candidates.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Waiting {
    /// By attribute and value.
    groups: BTreeMap<String, BTreeMap<String, WaitingGroup>>,
    others: Option<WaitingGroup>,
    counted_at: Option<Instant>,
}

/// The waiting jobs with one value of an attribute.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WaitingGroup {
    count: u32,
    weight: Option<u64>,
    oldest_due_at: Option<Instant>,
    #[serde(default)]
    at_least: bool,
}

/// An attempt that ended.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct End {
    id: Option<String>,
    #[serde(rename = "type")]
    job_type: Option<String>,
    priority: Option<i32>,
    weight: Option<u32>,
    attributes: BTreeMap<String, Value>,
    target_host: Option<String>,
    attempt: Option<u32>,
    started_at: Option<Instant>,
    ended_at: Option<Instant>,
    /// Default: true if there is no reason.
    succeeded: Option<bool>,
    reason: Option<String>,
    message: Option<String>,
    status: Option<u16>,
    details: Option<Value>,
    not_before: Option<Instant>,
    times: Option<u32>,
}

/// A failed attempt.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Failing {
    attempt: Option<u32>,
    reason: Option<String>,
    message: Option<String>,
    status: Option<u16>,
    details: Option<Value>,
    started_at: Option<Instant>,
    ended_at: Option<Instant>,
    /// The earliest next attempt that the worker or the target requested.
    not_before: Option<Instant>,
}

/// An instant, written as RFC 3339 or as milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Instant(pub Timestamp);

impl<'de> Deserialize<'de> for Instant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Number(millis) => {
                millis.as_i64().map(|millis| Self(Timestamp::from_millis(millis)))
            }
            Value::String(text) => text.parse().ok().map(Self),
            _ => None,
        }
        .ok_or_else(|| D::Error::custom("an instant like 2026-01-31T09:30:00Z is expected"))
    }
}

fn queue() -> String {
    "queue".to_owned()
}

/// 2026-01-01T00:00:00Z.
fn new_year() -> Instant {
    Instant(Timestamp::from_millis(1_767_225_600_000))
}

fn room() -> u32 {
    1000
}

impl Case {
    /// Reads the cases of a file: one case, a list, or a call that a server recorded.
    ///
    /// # Errors
    ///
    /// What is invalid, and its path.
    pub fn read(text: &str) -> Result<Vec<Self>, String> {
        fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
            let mut json = serde_json::Deserializer::from_str(text);
            serde_path_to_error::deserialize(&mut json).map_err(|error| error.to_string())
        }
        let call: Option<Value> = serde_json::from_str(text).ok();
        if let Some(call) = call.filter(|call| call.get("throttle").or(call.get("retry")).is_some())
        {
            return parse(&recorded("a recorded call", &call)?.to_string()).map(|case| vec![case]);
        }
        if text.trim_start().starts_with('[') {
            parse(text)
        } else {
            parse(text).map(|case| vec![case])
        }
    }

    /// Returns the configuration as the plugin receives it, JSON text.
    pub fn config(&self) -> String {
        Value::Object(self.config.clone()).to_string()
    }

    /// Returns the time of the call.
    pub fn now(&self) -> Timestamp {
        self.now.0
    }

    /// Returns the call.
    ///
    /// # Errors
    ///
    /// A name or value that no server has.
    pub fn call(&self) -> Result<Call, String> {
        let context =
            json!({"queue": self.queue, "now": self.now, "seed": self.seed, "config": self.config});
        let call = match self.role {
            Role::Throttler => {
                let numbered = || many(&self.candidates, |job| job.times);
                let candidates: Vec<Value> =
                    numbered().map(|(job, number)| job.value(number, self.now)).collect();
                let running: Vec<Value> = many(&self.running, |job| job.times)
                    .map(|(job, number)| job.value(number, self.now))
                    .collect();
                let ended: Vec<Value> = many(&self.ended, |end| end.times)
                    .map(|(end, number)| end.value(number, self.now))
                    .collect();
                let data: Map<String, Value> = numbered()
                    .filter_map(|(job, number)| {
                        Some((number.id("job", job.id.as_ref()), job.data.clone()?))
                    })
                    .collect();
                json!({"throttle": {
                    "context": context,
                    "round": {
                        "concurrency": self.concurrency, "room": self.room, "ended": ended,
                    },
                    "running": running,
                    "candidates": candidates,
                    "waiting": self.waiting.as_ref().map(|waiting| waiting.value(self.now)),
                    "state": self.state(),
                    "data": data,
                }})
            }
            Role::Retry => {
                let attempt = self.job.attempt.unwrap_or(1);
                json!({"retry": {
                    "context": context,
                    "failed": self.job.value(Number::default(), self.now),
                    "last": self.failure.value(attempt, self.now),
                    "state": self.state(),
                    "data": self.job.data,
                }})
            }
        };
        let call = record::from_json(&call.to_string()).map_err(|error| error.to_string())?;
        Ok(match call {
            Call::Throttle(call) if self.waiting.is_none() => {
                let waiting = Arc::new(policy::Waiting::of(&call.candidates));
                Call::Throttle(Arc::new(ThrottleCall { waiting, ..(*call).clone() }))
            }
            call => call,
        })
    }

    /// Returns the state: values, or pairs of a value and its expiry.
    fn state(&self) -> Map<String, Value> {
        let kept = |(key, value): (&String, &Value)| {
            let value = text(value);
            match self.state_expires.get(key) {
                Some(at) => (key.clone(), json!([value, at])),
                None => (key.clone(), value.into()),
            }
        };
        self.state.iter().map(kept).collect()
    }

    /// Returns the number of candidates.
    pub fn candidates(&self) -> usize {
        many(&self.candidates, |job| job.times).count()
    }
}

/// The place of an item in its list, from 1, and the number of its copy, if it has copies.
#[derive(Clone, Copy, Debug)]
struct Number(usize, Option<u32>);

impl Default for Number {
    fn default() -> Self {
        Self(1, None)
    }
}

impl Number {
    /// Returns the `given` id, or one from `word` and the place.
    fn id(self, word: &str, given: Option<&String>) -> String {
        let id = given.cloned().unwrap_or_else(|| format!("{word}-{}", self.0));
        self.1.map_or_else(|| id.clone(), |repetition| format!("{id}-{repetition}"))
    }
}

/// Repeats each item of a list by its `times`.
fn many<T>(list: &[T], times: impl Fn(&T) -> Option<u32>) -> impl Iterator<Item = (&T, Number)> {
    (1..).zip(list).flat_map(move |(place, one)| {
        let repetitions: Vec<Option<u32>> =
            times(one).map_or(vec![None], |times| (1..=times).map(Some).collect());
        repetitions.into_iter().map(move |repetition| (one, Number(place, repetition)))
    })
}

/// Returns a string unchanged, any other value as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns attributes as a job has them: numbers and strings.
fn attributes(written: &BTreeMap<String, Value>) -> Map<String, Value> {
    let value = |value: &Value| {
        if value.is_number() { value.clone() } else { text(value).into() }
    };
    written.iter().map(|(name, written)| (name.clone(), value(written))).collect()
}

fn job_type(given: Option<&String>) -> &str {
    given.map_or("job", String::as_str)
}

impl Candidate {
    fn value(&self, number: Number, now: Instant) -> Value {
        json!({
            "id": number.id("job", self.id.as_ref()),
            "job-type": job_type(self.job_type.as_ref()),
            "priority": self.priority.unwrap_or(100),
            "weight": self.weight.unwrap_or(1),
            "attributes": attributes(&self.attributes),
            "attempt": self.attempt.unwrap_or(1),
            "attempts": self.attempts.unwrap_or(3),
            "created-at": self.created_at.unwrap_or(now),
            "run-at": self.run_at.unwrap_or(now),
            "expires-at": self.expires_at,
            "deadline-at": self.deadline_at,
            "target-host": self.target_host,
            "replay-of": self.replay_of,
            "correlation-key": self.correlation_key,
            "earlier": (1..)
                .zip(&self.earlier)
                .map(|(attempt, failure)| failure.value(attempt, now))
                .collect::<Vec<_>>(),
        })
    }
}

impl Running {
    fn value(&self, number: Number, now: Instant) -> Value {
        json!({
            "id": number.id("running", self.id.as_ref()),
            "job-type": job_type(self.job_type.as_ref()),
            "priority": self.priority.unwrap_or(100),
            "weight": if self.critical { 0 } else { self.weight.unwrap_or(1) },
            "critical": self.critical,
            "attributes": attributes(&self.attributes),
            "granted-at": self.granted_at.unwrap_or(now),
        })
    }
}

impl Waiting {
    fn value(&self, now: Instant) -> Value {
        let groups = |groups: &BTreeMap<String, WaitingGroup>| -> Map<String, Value> {
            groups.iter().map(|(value, group)| (value.clone(), group.value(now))).collect()
        };
        let groups = self.groups.iter().map(|(name, of)| (name.clone(), groups(of).into()));
        json!({
            "groups": groups.collect::<Map<_, _>>(),
            "others": self.others.as_ref().map(|group| group.value(now)),
            "counted-at": self.counted_at,
        })
    }
}

impl WaitingGroup {
    fn value(&self, now: Instant) -> Value {
        json!({
            "count": self.count,
            "weight": self.weight,
            "oldest-due-at": self.oldest_due_at.unwrap_or(now),
            "at-least": self.at_least,
        })
    }
}

impl End {
    fn value(&self, number: Number, now: Instant) -> Value {
        json!({
            "id": number.id("ended", self.id.as_ref()),
            "job-type": job_type(self.job_type.as_ref()),
            "priority": self.priority.unwrap_or(100),
            "weight": self.weight.unwrap_or(1),
            "attributes": attributes(&self.attributes),
            "target-host": self.target_host,
            "attempt": self.attempt.unwrap_or(1),
            "started-at": self.started_at.unwrap_or(now),
            "ended-at": self.ended_at.unwrap_or(now),
            "succeeded": self.succeeded.unwrap_or(self.reason.is_none()),
            "reason": self.reason,
            "message": self.message,
            "status": self.status,
            "details": self.details,
            "not-before": self.not_before,
        })
    }
}

impl Failing {
    fn value(&self, attempt: u32, now: Instant) -> Value {
        json!({
            "attempt": self.attempt.unwrap_or(attempt),
            "reason": self.reason.as_deref().unwrap_or("failed"),
            "message": self.message,
            "status": self.status,
            "details": self.details,
            "started-at": self.started_at.unwrap_or(now),
            "ended-at": self.ended_at.unwrap_or(now),
            "not-before": self.not_before,
        })
    }
}

#[cfg(test)]
mod tests;
