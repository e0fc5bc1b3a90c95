//! Bulk operations: cancel, replay, purge or change every job that a filter matches, in the
//! background.

use serde::{Deserialize, Serialize};
use tidegate_core::{
    calendar::window::Window,
    job::{Attributes, JobId, QueueName, TypeName, Value as AttributeValue},
    strict::{or_default, present},
    time::Timestamp,
};

/// Which jobs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Bulk)]
pub struct BulkBody {
    /// What the jobs have in common: at least one condition, unless `all` is true.
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "FilterBody::is_empty"
    )]
    pub filter: FilterBody,
    /// Every job. Without it, a request that names no condition is refused.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

/// Which jobs are replayed.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BulkReplay)]
pub struct BulkReplayBody {
    /// What the jobs have in common: at least one condition, unless `all` is true.
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "FilterBody::is_empty"
    )]
    pub filter: FilterBody,
    /// Every job. Without it, a request that names no condition is refused.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// Replay jobs that were replayed before, too. Without it they are skipped.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

/// Conditions; a job matches if all of them hold.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobFilter)]
pub struct FilterBody {
    /// Only this type.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub job_type: Option<TypeName>,
    /// Only this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub queue: Option<QueueName>,
    /// Only these states: a word or a list of words, `ended` among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Words>,
    /// Only with these attribute values.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, AttributeValue>>)]
    pub attribute: Option<Attributes>,
    /// Only created at this instant or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// Only created before this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
}

impl FilterBody {
    /// Whether it has no condition, so that every job matches.
    pub fn is_empty(&self) -> bool {
        let Self { job_type, queue, state, attribute, from, to } = self;
        job_type.is_none()
            && queue.is_none()
            && state.is_none()
            && attribute.as_ref().is_none_or(Attributes::is_empty)
            && from.is_none()
            && to.is_none()
    }
}

/// A word or a list of words.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged, expecting = "expected a state or a list of states")]
pub enum Words {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
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
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "FilterBody::is_empty"
    )]
    pub filter: FilterBody,
    /// Every job. Without it, a request that names no condition is refused.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// What changes: at least one field.
    pub patch: BulkChanges,
}

/// What a bulk change sets. Absent fields stay; null is the value of the job's type.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkChanges {
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
