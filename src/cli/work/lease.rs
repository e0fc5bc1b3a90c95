//! The shapes of leasing, reporting and heartbeats, as the API has them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::cli::Problem;
use tidegate_core::time::{Seconds, Timestamp};

/// `POST /v1/leases`.
#[derive(Serialize)]
pub struct LeaseRequest<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub types: &'a [String],
    pub max: usize,
    pub wait_seconds: Seconds,
    pub worker: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<Seconds>,
    #[serde(skip_serializing_if = "<[Report]>::is_empty")]
    pub reports: &'a [Report],
}

/// The answer to [`LeaseRequest`].
#[derive(Debug, Deserialize)]
pub struct Granted {
    pub leases: Vec<Lease>,
    #[serde(default)]
    pub reports: Vec<Reported>,
}

/// One attempt at one job, held by this worker until `expires_at` unless a heartbeat extends it.
#[derive(Debug, Deserialize)]
pub struct Lease {
    pub job: Job,
    pub attempt: u16,
    pub token: String,
    pub expires_at: Option<Timestamp>,
}

/// What a command is told of its job.
#[derive(Debug, Deserialize)]
pub struct Job {
    pub id: String,
    pub r#type: String,
    #[serde(default)]
    pub queue: String,
    #[serde(default)]
    pub max_attempts: u16,
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// `None` for null.
    #[serde(default)]
    pub data: Option<Box<RawValue>>,
    #[serde(default)]
    pub attributes: Option<Box<RawValue>>,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

/// How an attempt ended.
#[derive(Clone, Debug, Serialize)]
pub struct ReportResult {
    pub status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Details>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
}

impl ReportResult {
    /// A failure that is tried again while attempts are left.
    pub fn failed(message: impl Into<String>) -> Self {
        Self {
            status: Status::Failed,
            result: None,
            message: Some(message.into()),
            error: None,
            retryable: None,
        }
    }
}

/// How an attempt ended, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Succeeded,
    Failed,
}

/// How the process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Details {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

/// An outcome on its way to the server, as a lease request carries it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub id: String,
    pub r#type: String,
    pub token: String,
    #[serde(flatten)]
    pub body: Body,
}

/// An outcome as `POST /v1/jobs/{t}/{id}` has it.
#[derive(Clone, Debug, Serialize)]
pub struct Body {
    pub attempt: u16,
    #[serde(flatten)]
    pub outcome: ReportResult,
}

/// The server's answer to a report that a lease request carried.
#[derive(Debug, Deserialize)]
pub struct Reported {
    pub status: u16,
    #[serde(default)]
    pub error: Option<Problem>,
}

/// `POST /v1/jobs/{t}/{id}/heartbeat`.
#[derive(Serialize)]
pub struct Heartbeat<'a> {
    pub attempt: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<Seconds>,
    #[serde(flatten)]
    pub progress: Option<&'a Progress>,
}

/// How far a command says it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Progress {
    #[serde(rename = "progress")]
    pub percent: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The answer to [`Heartbeat`].
#[derive(Debug, Deserialize)]
pub struct Beaten {
    #[serde(default)]
    pub cancel: bool,
}
