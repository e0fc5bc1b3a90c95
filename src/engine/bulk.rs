//! Bulk operations: which jobs, which change, and how far it has come.

use serde::{Deserialize, Serialize};

use tidegate_core::{
    calendar::window::Window,
    job::{Attributes, JobId, QueueName, TypeName},
    port::job_store::StateFilter,
    stored::UnknownNames,
    strict::present,
    time::Timestamp,
};

/// Most skipped jobs that an operation names.
pub const MAX_SKIPPED_JOBS: usize = 100;

/// The jobs that a bulk operation applies to.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// Only this type.
    pub job_type: Option<TypeName>,
    /// Only this queue.
    pub queue: Option<QueueName>,
    /// Only these states.
    pub states: Vec<StateFilter>,
    /// Only with these attribute values.
    pub attributes: Attributes,
    /// Only created at this instant or later.
    pub from: Option<Timestamp>,
    /// Only created before this instant.
    pub to: Option<Timestamp>,
}

/// The change that a bulk operation makes to each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BulkKind {
    /// Cancels it.
    Cancel,
    /// Replays it.
    Replay,
    /// Drops it if it is scheduled.
    Purge,
    /// Changes it if it is scheduled.
    Patch,
}

/// What a bulk operation changes in scheduled jobs. What is absent stays; `Some(None)` is the value
/// of the job's type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BulkPatch {
    /// The new windows.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub windows: Option<Option<Vec<Window>>>,
    /// The new priority.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub priority: Option<Option<i32>>,
}

/// A job that a bulk replay skipped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SkippedJob {
    /// The job.
    pub id: JobId,
    /// `already_replayed` or `correlation_key_taken`.
    pub reason: String,
    /// Its replay, or the live job that has its correlation key.
    pub holder: JobId,
}

/// A bulk operation, running or finished.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Its id.
    pub id: String,
    /// The change that it makes.
    pub kind: BulkKind,
    /// `running`, `done` or `failed`.
    pub state: String,
    /// Jobs that matched so far.
    pub matched: u64,
    /// Jobs that were changed.
    pub done: u64,
    /// Jobs whose state did not allow the change.
    pub refused: u64,
    /// Jobs that were not replayed because there is a replay, or a live job with their key.
    #[serde(default)]
    pub skipped: u64,
    /// The first of these, at most [`MAX_SKIPPED_JOBS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped_jobs: Vec<SkippedJob>,
    /// Jobs that may match and cannot be read, so that they were left out: their ids, at most
    /// [`MAX_UNREADABLE`](tidegate_core::port::job_store::MAX_UNREADABLE).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
    /// When it was requested.
    pub created_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// What stopped it, if something did.
    pub error: Option<String>,
    /// The fields that a newer release added.
    #[serde(flatten)]
    pub unknown: UnknownNames,
}
