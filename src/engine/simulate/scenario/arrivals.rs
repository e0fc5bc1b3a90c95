//! Streams of jobs that arrive.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};

use tidegate_core::{
    job::{JobId, TypeName, Value, spec::ValueVisitor},
    time::Seconds,
};

/// A stream of similar jobs. They arrive at the same time, unless one of `every_seconds`,
/// `per_second`, `poisson_per_second` and `burst` is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrival {
    /// Their type.
    #[serde(rename = "type")]
    pub job_type: TypeName,
    /// How many (1 to 1000000).
    pub count: u32,
    /// When the first may arrive (default 0).
    #[serde(default)]
    pub from_seconds: Seconds,
    /// All at that time; states the default explicitly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_once: Option<bool>,
    /// At a fixed interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<Seconds>,
    /// Evenly, at this rate per second (over 0, to 1000000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_second: Option<f64>,
    /// A Poisson process with this mean rate per second (over 0, to 1000000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poisson_per_second: Option<f64>,
    /// In bursts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
    /// Their attributes: each has a value, or a weighted choice of texts such as `{"east": 3,
    /// "north": 1}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, Choice>,
    /// Their weight (default: the type's).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Their priority (default: the type's).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Whether they bypass limits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub critical: bool,
    /// Their data (default null).
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub data: serde_json::Value,
    /// From their arrival to their due time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_seconds: Option<Seconds>,
    /// From their arrival to the end of each, at the latest (default: the type's).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<Seconds>,
    /// The job that they run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_of: Option<JobId>,
    /// Their correlation keys. `{n}` in it is the number of the job in the stream, from 1. A key is left
    /// out if a simulated job of its type that has not ended has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_key: Option<String>,
}

/// Groups of jobs at a fixed interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// The number of jobs in a group (1 to 1000000).
    pub jobs: u32,
    /// The interval between groups (from 0.001).
    pub every_seconds: Seconds,
}

/// The value of an attribute of a stream's jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Choice {
    /// The same for all jobs.
    Fixed(Value),
    /// One of these texts for each job, as often as its weight (0 or more, their sum over 0; at
    /// most 1000 texts).
    Weighted(BTreeMap<String, f64>),
}

// Written by hand, because the error of a derived untagged enum does not say what is wrong.
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
