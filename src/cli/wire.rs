//! The columns of tables: the part of an answer that a list shows. `--json` never passes through here.
//!
//! Every field may be absent: a table with a dash is better than none.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use tidegate_core::time::Timestamp;

/// A job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Job {
    pub id: String,
    pub r#type: String,
    pub queue: String,
    pub state: String,
    pub attempt: u16,
    pub max_attempts: u16,
    pub priority: Option<i32>,
    pub run_at: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub error: Option<Failure>,
    pub history: Vec<HistoryEntry>,
}

/// What went wrong.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Failure {
    pub reason: String,
    pub message: Option<String>,
}

impl Failure {
    /// The failure in one line.
    pub fn line(&self) -> String {
        let message = self.message.as_deref().unwrap_or_default();
        match message.trim().lines().last() {
            Some(last) => format!("{}: {last}", self.reason),
            None => self.reason.clone(),
        }
    }
}

/// One finished attempt.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct HistoryEntry {
    pub attempt: u16,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub outcome: String,
    pub error: Option<Failure>,
}

/// A queue: its settings and how it stands.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Queue {
    pub name: String,
    pub paused: bool,
    pub concurrency: Option<u64>,
    /// How it stands; absent where only its settings are told.
    pub status: Option<QueueStatus>,
}

/// How a queue stands.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct QueueStatus {
    pub depth: BTreeMap<String, u64>,
    pub running_weight: u64,
    pub oldest_due_at: Option<Timestamp>,
    pub held: BTreeMap<String, u64>,
    pub desired_workers: u64,
}

/// A job type's settings.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobType {
    pub name: String,
    pub queue: String,
    pub target: Option<Target>,
    pub delivery: String,
    pub max_attempts: Option<u16>,
    pub concurrency: Option<u64>,
    pub timeout_seconds: Option<f64>,
}

/// Where a type's jobs go.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Target {
    pub url: Option<String>,
}

/// A schedule: its settings, and what it came to.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Schedule {
    pub name: String,
    pub r#type: String,
    pub cron: Option<String>,
    pub tz: Option<String>,
    pub every_seconds: Option<f64>,
    pub paused: bool,
    pub next: Vec<Timestamp>,
    pub last_occurrence: Option<Timestamp>,
    pub last_error: Option<ScheduleError>,
    pub missed_count: u64,
}

/// Why an occurrence made no job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ScheduleError {
    pub message: String,
}

/// An access token, without its secret.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Token {
    pub id: String,
    pub name: String,
    pub scopes: Vec<String>,
    pub created_at: Option<Timestamp>,
    /// The secret; only the answer to its creation has it.
    #[serde(rename = "token")]
    pub secret: Option<String>,
}

/// A trigger's rule.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Trigger {
    pub name: String,
    pub filter: Value,
    pub enqueue: Value,
    pub complete: Value,
    pub version: u64,
}
