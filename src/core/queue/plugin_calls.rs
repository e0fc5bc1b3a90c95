//! What is recorded of the calls of plugins: which calls, and what their records lack.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    job::{JobId, QueueName, TypeName, extract},
    time::Timestamp,
};

/// Most parts that the records of a queue's calls lack.
pub const MAX_REDACTED_PARTS: usize = 32;
/// Most attributes of a [`CallFilter`].
pub const MAX_FILTER_ATTRIBUTES: usize = 16;
/// Most bytes of a text in a [`CallFilter`].
pub const MAX_FILTER_TEXT_BYTES: usize = 256;

/// How the calls of plugins about a queue's jobs are recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PluginCalls {
    /// Whether calls are stored: those that fail, those that a filter matches, and on AWS and
    /// Postgres one a minute (default true). Without it, recorded calls are in the memory of the
    /// server alone.
    #[serde(deserialize_with = "or_true")]
    pub store: bool,
    /// What recorded calls lack (default: nothing): `data` of jobs; the plugin's `state`, in either
    /// role; messages and details of `failures`; the `texts` of the plugin, which are its log, its
    /// reasons and the messages of its faults; all `attributes`, or one as `attributes.NAME`. At
    /// most 32.
    #[serde(deserialize_with = "crate::strict::or_default")]
    #[schema(value_type = Vec<String>)]
    pub redact: Vec<RedactedPart>,
}

impl Default for PluginCalls {
    fn default() -> Self {
        Self { store: true, redact: Vec::new() }
    }
}

/// Reads a flag; null is true.
fn or_true<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Option::deserialize(deserializer).map(|flag| flag.unwrap_or(true))
}

/// A part that the records of calls lack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RedactedPart {
    /// The data of jobs.
    Data,
    /// The state of the throttler, or of the retry strategy.
    State,
    /// The messages and details of failed attempts.
    Failures,
    /// The log, the reasons and the faults of the plugin.
    Texts,
    /// The values of all attributes.
    Attributes,
    /// The values of one attribute.
    Attribute(String),
}

impl fmt::Display for RedactedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data => f.write_str("data"),
            Self::State => f.write_str("state"),
            Self::Failures => f.write_str("failures"),
            Self::Texts => f.write_str("texts"),
            Self::Attributes => f.write_str("attributes"),
            Self::Attribute(name) => write!(f, "attributes.{name}"),
        }
    }
}

/// The text names no part of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be data, state, failures, texts, attributes, or attributes.NAME")]
pub struct NotAPart;

impl FromStr for RedactedPart {
    type Err = NotAPart;

    fn from_str(text: &str) -> Result<Self, NotAPart> {
        Ok(match text {
            "data" => Self::Data,
            "state" => Self::State,
            "failures" => Self::Failures,
            "texts" => Self::Texts,
            "attributes" => Self::Attributes,
            _ => {
                let name = text.strip_prefix("attributes.").ok_or(NotAPart)?;
                if name.is_empty() || name.len() > extract::NAME_BYTES {
                    return Err(NotAPart);
                }
                Self::Attribute(name.to_owned())
            }
        })
    }
}

impl TryFrom<String> for RedactedPart {
    type Error = NotAPart;

    fn try_from(text: String) -> Result<Self, NotAPart> {
        text.parse()
    }
}

impl From<RedactedPart> for String {
    fn from(part: RedactedPart) -> Self {
        part.to_string()
    }
}

/// The calls of a plugin that the server stores for a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = PluginRecording)]
pub struct CallRecording {
    /// Which calls.
    pub filter: CallFilter,
    /// Calls after this time are not stored.
    pub until: Timestamp,
}

/// Which calls of a plugin are stored. A call matches if one of its jobs meets all conditions;
/// without conditions every call does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = PluginCallFilter)]
pub struct CallFilter {
    /// The queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub queue: Option<QueueName>,
    /// The type of the job.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub job_type: Option<TypeName>,
    /// The id of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub job: Option<JobId>,
    /// Values of attributes of the job: at most 16, of at most 256 bytes.
    #[serde(
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "crate::strict::or_default"
    )]
    pub attributes: BTreeMap<String, String>,
    /// The decision about the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<DecidedAction>,
    /// A part of the reason of the decision: at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a plugin decided about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecidedAction {
    /// The throttler lets it start.
    Run,
    /// The throttler holds it.
    Hold,
    /// The throttler moves it to a later time.
    Reschedule,
    /// The throttler ends it.
    Drop,
    /// The retry strategy plans another attempt.
    Retry,
    /// The retry strategy plans no more attempts.
    GiveUp,
}

impl DecidedAction {
    /// The action's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Hold => "hold",
            Self::Reschedule => "reschedule",
            Self::Drop => "drop",
            Self::Retry => "retry",
            Self::GiveUp => "give_up",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_as_it_is_written() {
        for text in ["data", "state", "failures", "texts", "attributes", "attributes.a.b"] {
            assert_eq!(text.parse::<RedactedPart>().unwrap().to_string(), text);
        }
        let long = format!("attributes.{}", "x".repeat(extract::NAME_BYTES + 1));
        for text in ["", "body", "attributes.", "attribute.a", &long] {
            assert_eq!(text.parse::<RedactedPart>(), Err(NotAPart), "{text}");
        }
    }

    #[test]
    fn calls_are_stored_whole_unless_the_queue_says_otherwise() {
        let read = |text: &str| serde_json::from_str::<PluginCalls>(text);
        assert_eq!(read("{}").unwrap(), PluginCalls::default());
        assert_eq!(read(r#"{"store": null, "redact": null}"#).unwrap(), PluginCalls::default());
        let given = read(r#"{"store": false, "redact": ["data"]}"#).unwrap();
        assert_eq!(given, PluginCalls { store: false, redact: vec![RedactedPart::Data] });
        assert!(read(r#"{"redact": ["secret"]}"#).is_err() && read(r#"{"keep": 1}"#).is_err());
    }
}
