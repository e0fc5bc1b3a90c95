//! How long the attempts of a scenario take, and how often they fail.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

use tidegate_core::{job::lifecycle::Reason, queue::matcher::Matcher, time::Seconds};

/// A rule for attempts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Which jobs (default: all): a matcher as in the constraints of a queue.
    #[serde(default, rename = "match")]
    pub matcher: Matcher,
    /// Only attempts that go to this host: that of the type's target, or of the one that a retry
    /// strategy chose (default: any).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// How long an attempt takes.
    pub seconds: Span,
    /// How often an attempt fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureRule>,
}

/// A span of seconds: a number, `{"uniform": [least, most]}`, or `{"exponential": mean}`. Up to
/// 31622400.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Span {
    /// Always this length.
    Fixed(f64),
    /// Drawn for each attempt.
    Drawn(Drawn),
}

/// How a span is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Drawn {
    /// Uniformly between these.
    Uniform([f64; 2]),
    /// Exponentially distributed with this mean.
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
    /// The fraction of the attempts that fail: 0 to 1.
    pub rate: f64,
    /// The reason (default `failed`): `failed`, `timeout`, `lease_expired`, `connection_lost` or
    /// `not_delivered`.
    #[serde(default = "failed", skip_serializing_if = "is_failed")]
    pub reason: Reason,
    /// The HTTP status that the target answered (100 to 599).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Only attempts that start in this period of the scenario fail: `[from, to]`, `to` exclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub during_seconds: Option<[Seconds; 2]>,
    /// How long a failing attempt takes (default: as long as any other).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<Span>,
    /// Whether it may be retried (default true).
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub retryable: bool,
    /// What the worker reports for people (at most 4096 bytes; default: that it is simulated).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What the worker reports for programs (at most 16384 bytes as JSON).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
    /// The shortest wait that the target asks for, as with `Retry-After`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before_seconds: Option<Seconds>,
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
