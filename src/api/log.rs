//! Log lines of attempts.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tidegate_core::time::Timestamp;

use crate::AnyValue;

/// How important a log line is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Every step.
    Trace,
    /// What helps to find a fault.
    Debug,
    /// What happens.
    #[default]
    Info,
    /// What may need attention.
    Warn,
    /// What failed.
    Error,
}

impl LogLevel {
    /// The level as it is serialised.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// A log line that a worker sends about its attempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewLogLine {
    /// When it was written (default: when the server receives it). Lines that all have a time are
    /// kept once, although their request is repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
    /// Its level (default `info`).
    #[serde(default)]
    #[schema(required = false)]
    pub level: LogLevel,
    /// The text. Of a line with more than 4 KiB, fields and text are cut.
    pub text: String,
    /// Values that belong to it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, AnyValue>>)]
    pub fields: Map<String, Value>,
}

/// A log line of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LogLine {
    /// Its number among the lines of its job, from 0. Numbers that are missing are of lines that
    /// are no longer kept.
    pub number: u64,
    /// The attempt.
    pub attempt: u16,
    /// When it was written.
    pub time: Timestamp,
    /// Its level.
    pub level: LogLevel,
    /// The text.
    pub text: String,
    /// Values that belong to it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, AnyValue>>)]
    pub fields: Map<String, Value>,
    /// Whether a part of it was left out, because it had more than 4 KiB.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub cut: bool,
}

/// A page of the log lines of a job.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LogPage {
    /// The lines, oldest first.
    pub lines: Vec<LogLine>,
    /// How many lines of this page's range are no longer kept.
    pub dropped: u64,
    /// Where the next page starts; absent if the job has ended and has no more lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
