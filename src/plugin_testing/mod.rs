//! Tests of plugins as data: a case has the input of a call and the expected response.
//!
//! ```json
//! {"name": "the east has its share", "role": "throttler", "config": {"limit": 2},
//!  "running": [{"attributes": {"region": "east"}}],
//!  "candidates": [{"attributes": {"region": "east"}}, {"attributes": {"region": "west"}}],
//!  "expect": {"decisions": [{"action": "run"}, {"action": "hold", "reason": "the east"}]}}
//! ```
//!
//! A case does not depend on the language of the plugin. A [`Component`] runs it without a server. The
//! format and its defaults are those of the SDK (`plugins/sdk/src/testing`), which runs the same files
//! on Rust code. [`recorded()`] turns a fault that a server recorded into a case.

mod component;
mod expect;
mod recorded;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::{Map, Value, json};

pub use self::{
    component::{Answer, Component, Unusable},
    expect::Expect,
    recorded::recorded,
};
use tidegate_backends::wasm::record;
use tidegate_core::port::policy::Call;
use tidegate_core::{queue::plugin::Role, time::Timestamp};

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
    #[serde(default)]
    ended: Vec<End>,
    #[serde(default)]
    state: BTreeMap<String, Value>,
    #[serde(default)]
    job: Candidate,
    #[serde(default)]
    failure: Failing,
    #[serde(default)]
    earlier: Vec<Failing>,
    not_before: Option<Instant>,
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
    data: Option<Value>,
    /// So many of them; their ids end in `-1`, `-2` and so on.
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

/// An attempt that ended.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct End {
    id: Option<String>,
    #[serde(rename = "type")]
    job_type: Option<String>,
    attributes: BTreeMap<String, Value>,
    attempt: Option<u32>,
    /// It did, unless a reason is given.
    succeeded: Option<bool>,
    reason: Option<String>,
    status: Option<u16>,
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
    /// The cases of a file: one, or a list; or a call as a server recorded it.
    ///
    /// # Errors
    ///
    /// What cannot be read, and where.
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

    /// The configuration as a plugin is given it.
    pub fn config(&self) -> String {
        Value::Object(self.config.clone()).to_string()
    }

    /// When the call is.
    pub fn now(&self) -> Timestamp {
        self.now.0
    }

    /// The call.
    ///
    /// # Errors
    ///
    /// A name or value that no server would have.
    pub fn call(&self) -> Result<Call, String> {
        let context =
            json!({"queue": self.queue, "now": self.now, "seed": self.seed, "config": self.config});
        let call = match self.role {
            Role::Throttler => {
                let numbered = || many(&self.candidates, |job| job.times);
                let data: Map<String, Value> = numbered()
                    .filter_map(|(job, number)| {
                        Some((number.id("job", job.id.as_ref()), job.data.clone()?))
                    })
                    .collect();
                json!({"throttle": {
                    "context": context,
                    "round": {
                        "concurrency": self.concurrency, "room": self.room,
                        "ended": many(&self.ended, |end| end.times).map(|(end, number)| end.value(number)).collect::<Vec<_>>(),
                    },
                    "running": many(&self.running, |job| job.times).map(|(job, number)| job.value(number, self.now)).collect::<Vec<_>>(),
                    "candidates": numbered().map(|(job, number)| job.value(number, self.now)).collect::<Vec<_>>(),
                    "state": self.state.iter().map(|(key, value)| (key.clone(), text(value).into())).collect::<Map<_, _>>(),
                    "data": data,
                }})
            }
            Role::Retry => {
                let attempt = self.job.attempt.unwrap_or(1);
                json!({"retry": {
                    "context": context,
                    "failed": {
                        "job": self.job.value(Number::default(), self.now),
                        "last": self.failure.value(attempt, self.now),
                        "earlier": (1..).zip(&self.earlier).map(|(attempt, failure)| failure.value(attempt, self.now)).collect::<Vec<_>>(),
                        "not-before": self.not_before,
                    },
                    "data": self.job.data,
                }})
            }
        };
        record::from_json(&call.to_string()).map_err(|error| error.to_string())
    }

    /// How many candidates there are.
    pub fn candidates(&self) -> usize {
        many(&self.candidates, |job| job.times).count()
    }
}

/// Which of a list it is, from 1, and which of its repetitions, if it has such.
#[derive(Clone, Copy, Debug)]
struct Number(usize, Option<u32>);

impl Default for Number {
    fn default() -> Self {
        Self(1, None)
    }
}

impl Number {
    /// The id given, or one that counts.
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

/// A text as it is, anything else as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Attributes as a job has them: numbers and texts.
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

impl End {
    fn value(&self, number: Number) -> Value {
        json!({
            "id": number.id("ended", self.id.as_ref()),
            "job-type": job_type(self.job_type.as_ref()),
            "attributes": attributes(&self.attributes),
            "attempt": self.attempt.unwrap_or(1),
            "succeeded": self.succeeded.unwrap_or(self.reason.is_none()),
            "reason": self.reason,
            "status": self.status,
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
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(text: &str) -> Call {
        Case::read(text).unwrap()[0].call().unwrap()
    }

    #[test]
    fn what_a_case_leaves_out_has_a_default() {
        let Call::Throttle(call) = call(
            r#"{"name": "a", "role": "throttler", "running": [{"times": 2, "attributes": {"region": "east", "size": 2, "big": true}}],
                "candidates": [{"data": {"rows": 1}}, {"id": "b", "weight": 3, "attempt": 2}], "state": {"n": 1, "s": "x"}}"#,
        ) else {
            panic!("a throttler's call")
        };
        let ids: Vec<&str> = call.candidates.iter().map(|job| job.id.as_str()).collect();
        assert_eq!((ids.as_slice(), call.room, &*call.config), (&["job-1", "b"][..], 1000, "{}"));
        assert_eq!((call.candidates[1].spec.weight, call.candidates[1].life.attempt), (3, 1));
        assert_eq!(call.now.to_string(), "2026-01-01T00:00:00.000Z");
        assert_eq!(
            call.running.iter().map(|grant| grant.job.as_str()).collect::<Vec<_>>(),
            ["running-1-1", "running-1-2"]
        );
        assert_eq!(
            serde_json::to_value(&call.running.iter().next().unwrap().attributes).unwrap(),
            json!({"region": "east", "size": 2, "big": "true"})
        );
        assert_eq!((call.state["n"].as_str(), call.state["s"].as_str()), ("1", "x"));
        assert_eq!(call.data.values().collect::<Vec<_>>(), [r#"{"rows":1}"#]);
    }

    #[test]
    fn a_retry_strategy_is_told_of_the_failures_in_their_order() {
        let Call::Retry(call) = call(
            r#"[{"name": "a", "role": "retry", "job": {"attempt": 3, "data": [1]}, "failure": {"status": 503, "details": {"code": 7}},
                 "earlier": [{"reason": "timeout"}, {}], "not_before": "2026-01-01T00:01:00Z"}]"#,
        ) else {
            panic!("a retry strategy's call")
        };
        assert_eq!(
            call.job.life.history.iter().map(|entry| entry.attempt).collect::<Vec<_>>(),
            [1, 2, 3]
        );
        assert_eq!(call.job.life.history[2].error.as_ref().unwrap().status, Some(503));
        assert_eq!(
            (call.data.as_deref(), call.not_before.map(Timestamp::millis)),
            (Some("[1]"), Some(1_767_225_660_000))
        );
    }

    #[test]
    fn what_is_wrong_with_a_case_is_told_with_its_place() {
        for (text, wanted) in [
            (r#"{"name": "a", "role": "throttler", "candidats": []}"#, "unknown field `candidats`"),
            (
                r#"{"name": "a", "role": "throttler", "candidates": [{"weight": -1}]}"#,
                "candidates[0].weight",
            ),
            (r#"{"name": "a", "role": "throttler", "now": "soon"}"#, "an instant like"),
        ] {
            let said = Case::read(text).unwrap_err();
            assert!(said.contains(wanted), "{said}");
        }
        let strange =
            Case::read(r#"{"name": "a", "role": "retry", "failure": {"reason": "bored"}}"#)
                .unwrap();
        assert!(strange[0].call().unwrap_err().contains("bored"));
    }
}
