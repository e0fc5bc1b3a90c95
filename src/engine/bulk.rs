//! Bulk operations: which jobs, which change, and how far it has come.

use serde::{Deserialize, Serialize};

use tidegate_core::{
    calendar::window::Window, job::JobId, port::JobFilter, stored::UnknownNames, strict::present,
    time::Timestamp,
};

/// Most skipped jobs that an operation names.
pub const MAX_SKIPPED_JOBS: usize = 100;
/// Most jobs of the sample of a dry run.
pub const MAX_SAMPLE: usize = 20;

/// A request for a bulk operation.
#[derive(Clone, Debug)]
pub struct BulkRequest {
    /// The change of each job.
    pub change: BulkChange,
    /// The jobs.
    pub filter: JobFilter,
    /// Whether to count what the operation would do, and to change nothing.
    pub dry_run: bool,
}

impl BulkRequest {
    /// A request to change the jobs that `filter` matches.
    pub fn new(change: BulkChange, filter: JobFilter) -> Self {
        Self { change, filter, dry_run: false }
    }
}

/// What a bulk operation does to each job.
#[derive(Clone, Debug)]
pub enum BulkChange {
    /// Cancels it.
    Cancel,
    /// Replays it, if it was not replayed before.
    Replay {
        /// Also if it was replayed before.
        again: bool,
    },
    /// Drops it if it is scheduled.
    Purge,
    /// Changes it if it is scheduled.
    Patch(BulkPatch),
}

impl BulkChange {
    /// The kind of the operation.
    pub fn kind(&self) -> BulkKind {
        match self {
            Self::Cancel => BulkKind::Cancel,
            Self::Replay { .. } => BulkKind::Replay,
            Self::Purge => BulkKind::Purge,
            Self::Patch(_) => BulkKind::Patch,
        }
    }
}

/// The kind of a bulk operation.
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
    /// The new due time; `Some(None)` is now.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Option<Timestamp>>,
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
    /// Whether it changes nothing: it counts what it would do, by the states of the jobs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
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
    /// The first jobs that a dry run would change, at most [`MAX_SAMPLE`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sample: Vec<JobId>,
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
