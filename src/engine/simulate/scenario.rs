//! A scenario: which jobs arrive when, how long their attempts take, and what is expected of the queue. Plain data, read from
//! JSON; what its fields may hold is checked in [`check`](super::check).

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};

use tidegate_core::{
    job::{
        Attributes, JobId, Outcome, QueueName, TypeName, Value, lifecycle::Reason,
        spec::ValueVisitor, type_config::TypeConfig,
    },
    queue::{QueueConfig, matcher::Matcher},
    time::{Seconds, Timestamp},
};

/// A simulation, whole. Every field may be absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// A sentence for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// Fixes everything that is drawn (default 1).
    pub seed: u64,
    /// The instant it begins at (default 2026-01-01T00:00:00Z).
    pub start: Timestamp,
    /// It ends after this long, or before if every job has ended (default 86400; 0.001 to 31622400).
    pub duration_seconds: Seconds,
    /// Rounds of the queue are at least this far apart (default 0.001; 0.001 to 3600). A longer one makes long simulations fast.
    pub tick_seconds: Seconds,
    /// The queue's name (default `simulated`).
    pub name: QueueName,
    /// The queue's configuration, as of `PUT /v1/queues/{q}`.
    pub queue: QueueConfig,
    /// Job types, as of `PUT /v1/job-types/{t}`; types that are not here have the defaults. Where their jobs go and who is
    /// told makes no difference here: simulated workers run them.
    pub types: BTreeMap<TypeName, TypeConfig>,
    /// How many jobs workers run at once, whatever the limits say (default 10000; 1 to 100000).
    pub workers: u32,
    /// Streams of jobs: at most 1000, and 1000000 jobs in all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arrivals: Vec<Arrival>,
    /// Jobs one by one, as a trace has them; counted with the streams.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<TracedJob>,
    /// How long attempts take and how they end: the first rule that matches a job (default: a second, and success). At most 100.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub service: Vec<Service>,
    /// What must be so in the end.
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
            name: "simulated".parse().expect("a good name"),
            queue: QueueConfig::default(),
            types: BTreeMap::new(),
            workers: 10_000,
            arrivals: Vec::new(),
            jobs: Vec::new(),
            service: Vec::new(),
            expect: Expect::default(),
        }
    }
}

/// A stream of alike jobs. They come at once, unless one of `every_seconds`, `per_second`, `poisson_per_second` and `burst` is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrival {
    /// Their type.
    #[serde(rename = "type")]
    pub job_type: TypeName,
    /// How many (1 to 1000000).
    pub count: u32,
    /// When the first may come (default 0).
    #[serde(default)]
    pub from_seconds: Seconds,
    /// All at that moment; says what is so anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_once: Option<bool>,
    /// One after the other, this far apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<Seconds>,
    /// Evenly, this many a second (over 0, to 1000000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_second: Option<f64>,
    /// By chance, this many a second on average (over 0, to 1000000): a Poisson process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poisson_per_second: Option<f64>,
    /// In bursts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
    /// Their attributes: each a value, or a weighted choice `{"east": 3, "north": 1}` of texts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, Choice>,
    /// Their weight (default: the type's).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Their priority (default: the type's).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Whether limits do not hold them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub critical: bool,
    /// What they carry (default null).
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub data: serde_json::Value,
    /// From their arrival to their due time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_seconds: Option<Seconds>,
}

/// Jobs that come together, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// How many come together (1 to 1000000).
    pub jobs: u32,
    /// How far apart the bursts are (from 0.001).
    pub every_seconds: Seconds,
}

/// The value of an attribute of a stream's jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Choice {
    /// The same for all.
    Fixed(Value),
    /// One of these texts for each, as often as its number says (0 or more, their sum over 0; at most 1000 texts).
    Weighted(BTreeMap<String, f64>),
}

// By hand, because an untagged enum says only that nothing fits.
impl<'de> Deserialize<'de> for Choice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Choice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number, or an object of texts and their weights")
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Choice, E> {
                ValueVisitor.visit_bool(value).map(Choice::Fixed)
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Choice, E> {
                ValueVisitor.visit_i64(value).map(Choice::Fixed)
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Choice, E> {
                ValueVisitor.visit_u64(value).map(Choice::Fixed)
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Choice, E> {
                ValueVisitor.visit_f64(value).map(Choice::Fixed)
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Choice, E> {
                ValueVisitor.visit_str(value).map(Choice::Fixed)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Choice, A::Error> {
                BTreeMap::deserialize(MapAccessDeserializer::new(map)).map(Choice::Weighted)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// A rule for attempts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Which jobs (default: all): a matcher as of a queue's constraints.
    #[serde(default, rename = "match")]
    pub matcher: Matcher,
    /// How long an attempt takes.
    pub seconds: Span,
    /// How often one fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureRule>,
}

/// A span of seconds: a number, `{"uniform": [least, most]}`, or `{"exponential": mean}`. Up to 31622400.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Span {
    /// Always this.
    Fixed(f64),
    /// Drawn anew for each attempt.
    Drawn(Drawn),
}

/// How a span is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Drawn {
    /// Anywhere between these.
    Uniform([f64; 2]),
    /// Memoryless, this long on average.
    Exponential(f64),
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a number of seconds, {\"uniform\": [least, most]} or {\"exponential\": mean}",
                )
            }

            fn visit_i64<E>(self, value: i64) -> Result<Span, E> {
                Ok(Span::Fixed(value as f64))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Span, E> {
                Ok(Span::Fixed(value as f64))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Span, E> {
                Ok(Span::Fixed(value))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Span, A::Error> {
                Drawn::deserialize(MapAccessDeserializer::new(map)).map(Span::Drawn)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// How often an attempt fails, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailureRule {
    /// Which part of the attempts: 0 to 1.
    pub rate: f64,
    /// Why (default `failed`): `failed`, `timeout`, `lost` or `not_delivered`.
    #[serde(default = "failed", skip_serializing_if = "is_failed")]
    pub reason: Reason,
    /// The HTTP status that the target answered (100 to 599).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Only attempts that start in this stretch of the scenario fail: `[from, to]`, `to` exclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub during_seconds: Option<[Seconds; 2]>,
    /// How long a failing attempt takes (default: as any other).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<Span>,
    /// Whether another attempt makes sense (default true).
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub retryable: bool,
}

/// A job of a trace: when it came, and what really became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracedJob {
    /// Its id (default: made up).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<JobId>,
    /// Its type.
    #[serde(rename = "type")]
    pub job_type: TypeName,
    /// When it came, from the scenario's start.
    pub at_seconds: Seconds,
    /// When it was due, from the scenario's start (default: when it came).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_seconds: Option<Seconds>,
    /// Never started after this, from the scenario's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_seconds: Option<Seconds>,
    /// Its attributes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: Attributes,
    /// Its weight (default: the type's).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Its priority (default: the type's).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Whether limits do not hold it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub critical: bool,
    /// What it carries (default null).
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub data: serde_json::Value,
    /// What its attempts were, in order (at most 100). An attempt that is not here goes by `service`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<TracedAttempt>,
    /// How it really ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Outcome>,
    /// When it really ended, from the scenario's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_seconds: Option<Seconds>,
}

/// An attempt of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracedAttempt {
    /// How long it took.
    pub seconds: Seconds,
    /// How it ended: `succeeded`, `failed` or `cancelled`; absent if it had not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The HTTP status that the target answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// When it really started, from the scenario's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_seconds: Option<Seconds>,
}

/// What must be so in the end; what is absent may be as it will.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// The most weight that may run at once: of jobs with `attribute=value`, of `type=name`, or (by an empty text) of all.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub max_running: BTreeMap<String, u64>,
    /// Every job has ended by then, from the scenario's start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_by_seconds: Option<Seconds>,
    /// No job waits longer from its due time to its first attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_wait_seconds: Option<Seconds>,
    /// Exactly this many jobs end `dropped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
    /// Exactly this many jobs end `failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<u64>,
}

impl Expect {
    /// Whether nothing is expected.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn failed() -> Reason {
    Reason::Failed
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_failed(reason: &Reason) -> bool {
    *reason == Reason::Failed
}

fn yes() -> bool {
    true
}

/// Why a text is no scenario: where in it, and what is wrong there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", if field.is_empty() { String::new() } else { format!("{field}: ") })]
pub struct BadScenario {
    /// The field's path: `arrivals[2].count`; empty for the whole.
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

    /// How many jobs come.
    pub fn job_count(&self) -> u64 {
        self.arrivals.iter().map(|arrival| u64::from(arrival.count)).sum::<u64>()
            + self.jobs.len() as u64
    }
}
