//! Bulk operations: cancel, replay, purge or change every job that a filter matches, in the
//! background.

use serde::{Deserialize, Serialize};
use tidegate_core::{
    calendar::window::Window,
    job::JobId,
    strict::{or_default, present},
    time::Timestamp,
};

use crate::FilterBody;

/// Which jobs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Bulk)]
pub struct BulkBody {
    /// What the jobs have in common: at least one condition, unless `all` is true.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub filter: FilterBody,
    /// Every job. Without it, a request that names no condition is refused.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// Count what it would do, and change nothing.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

fn is_default(filter: &FilterBody) -> bool {
    *filter == FilterBody::default()
}

/// Which jobs are replayed.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BulkReplay)]
pub struct BulkReplayBody {
    /// What the jobs have in common: at least one condition, unless `all` is true.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub filter: FilterBody,
    /// Every job. Without it, a request that names no condition is refused.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// Replay jobs that were replayed before, too. Without it they are skipped.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// Count what it would do, and change nothing.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// What a bulk operation does to each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
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

/// A change of every scheduled job that a filter matches.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BulkPatch)]
pub struct BulkPatchBody {
    /// What the jobs have in common: at least one condition, unless `all` is true.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub filter: FilterBody,
    /// Every job. Without it, a request that names no condition is refused.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// What changes: at least one field.
    pub patch: BulkChanges,
    /// Count what it would do, and change nothing.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// What a bulk change sets. Absent fields stay; null is the value of the job's type.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkChanges {
    /// Their due time; in the past and null mean now.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Timestamp>)]
    pub run_at: Option<Option<Timestamp>>,
    /// The windows in which they may start, at most 32; an empty list means always, null those of
    /// the type.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Window>>)]
    pub windows: Option<Option<Vec<Window>>>,
    /// Their priority; null means that of the type.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i32>)]
    pub priority: Option<Option<i32>>,
}

/// A bulk operation, running or finished.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Operation {
    /// Its id.
    pub id: String,
    /// What it does.
    pub kind: BulkKind,
    /// `running`, `done` or `failed`.
    pub state: String,
    /// Whether it is a dry run: `done`, `refused` and `skipped` count what the operation would do.
    #[serde(default)]
    pub dry_run: bool,
    /// Jobs that matched so far.
    pub matched: u64,
    /// Jobs that it changed.
    pub done: u64,
    /// Jobs that refused the change (they had ended, or were running).
    pub refused: u64,
    /// Jobs that were not replayed: they were replayed before, or a live job has their correlation
    /// key.
    #[serde(default)]
    pub skipped: u64,
    /// The first of these, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped_jobs: Vec<SkippedJob>,
    /// The first jobs that a dry run would change, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub sample: Vec<JobId>,
    /// The ids of jobs that may match and cannot be read, at most 100. They are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
    /// When it was requested.
    pub created_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// What stopped it, if something did.
    pub error: Option<String>,
}

/// A job that was not replayed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SkippedJob {
    /// The job.
    #[schema(value_type = String)]
    pub id: JobId,
    /// `already_replayed` or `correlation_key_taken`.
    pub reason: String,
    /// Its replay, or the live job that has its correlation key.
    #[schema(value_type = String)]
    pub holder: JobId,
}

/// A background operation.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = OperationAnswer)]
pub struct OperationView {
    /// Its current state.
    pub operation: Operation,
}
