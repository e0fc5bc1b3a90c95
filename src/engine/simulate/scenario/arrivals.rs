//! Streams of jobs that arrive.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};

use tidegate_core::{
    job::{TypeName, Value, spec::ValueVisitor},
    time::Seconds,
};

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
