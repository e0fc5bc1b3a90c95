//! The jobs of a trace.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use tidegate_core::{
    job::{
        Attributes, JobId, Outcome, TypeName,
        lifecycle::{EndedAs, Reason},
    },
    time::Seconds,
};

/// A job of a trace: when it arrived, and what happened to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracedJob {
    /// Its id (default: generated).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<JobId>,
    /// Its type.
    #[serde(rename = "type")]
    pub job_type: TypeName,
    /// When it arrived, from the start of the scenario.
    pub at_seconds: Seconds,
    /// When it was due, from the start of the scenario (default: when it arrived).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_seconds: Option<Seconds>,
    /// When it expires, from the start of the scenario.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_seconds: Option<Seconds>,
    /// When it ends at the latest, from the start of the scenario (default: by its type).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<Seconds>,
    /// The job that it runs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_of: Option<JobId>,
    /// Its correlation key. It is left out if a simulated job of its type that has not ended has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_key: Option<String>,
    /// Its attributes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: Attributes,
    /// Its weight (default: the type's).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Its priority (default: the type's).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Whether it bypasses limits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub critical: bool,
    /// Its data (default null).
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub data: serde_json::Value,
    /// Its attempts, in order (at most 100). Further attempts follow `service`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<TracedAttempt>,
    /// How it ended in the live queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Outcome>,
    /// When it ended in the live queue, from the start of the scenario.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_seconds: Option<Seconds>,
}

/// An attempt of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracedAttempt {
    /// How long it took.
    pub seconds: Seconds,
    /// How it ended: `succeeded`, `failed`, `cancelled`, `released` or `snoozed`; absent if it still
    /// ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<EndedAs>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The HTTP status that the target answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What the worker reported for people (at most 4096 bytes).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What the worker reported for programs (at most 16384 bytes as JSON).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
    /// The shortest wait that the target asked for, or for how long it was snoozed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before_seconds: Option<Seconds>,
    /// When it started in the live queue, from the start of the scenario.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_seconds: Option<Seconds>,
}
