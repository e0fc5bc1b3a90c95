//! The jobs of a trace.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use tidegate_core::{
    job::{Attributes, JobId, Outcome, TypeName, lifecycle::Reason},
    time::Seconds,
};

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
