//! The events of `GET /v1/stream`: server-sent events, each with a name, an id and one of these
//! values as JSON.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use tidegate_core::{
    job::{
        JobId, QueueName, TypeName,
        lifecycle::{Progress, Reason},
    },
    time::Timestamp,
};

/// Event `job`: a job was accepted or has changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct JobChange<'a> {
    /// The job.
    #[schema(value_type = String)]
    pub id: JobId,
    /// Its type.
    #[schema(value_type = String)]
    pub r#type: TypeName,
    /// Its queue.
    #[schema(value_type = String)]
    pub queue: QueueName,
    /// Its state, as in the job.
    #[schema(value_type = String)]
    pub state: Cow<'a, str>,
    /// Its phase at the time of the change.
    #[schema(value_type = String)]
    pub phase: Cow<'a, str>,
    /// Attempts started so far.
    pub attempt: u16,
    /// The number of this change, as in the `ETag` of the job. Changes of a job may arrive in another
    /// order; the one with the highest number is the latest.
    pub revision: u64,
    /// When it was committed.
    pub at: Timestamp,
    /// The earliest start, of a job that waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// The worker of the running attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The latest progress of the running attempt, without a note of over 200 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The reason of the latest error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_reason: Option<Reason>,
}

/// Event `removed`: the record of a job was removed, because its retention is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RemovedJob {
    /// The job.
    #[schema(value_type = String)]
    pub id: JobId,
}

/// Event `queue`: the configuration of a queue has changed, a pause included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct QueueChange {
    /// The queue.
    pub queue: String,
    /// Its new version; absent if it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

/// Event `job_type`: the configuration of a type has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct JobTypeChange {
    /// The type.
    pub r#type: String,
    /// Its new version; absent if it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

/// Event `worker`: a worker has registered or left, or its drain began or ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WorkerChange {
    /// The worker.
    pub worker: String,
    /// `registered`, `draining`, `stopping`, `undrained` or `removed`.
    #[schema(value_type = String)]
    pub change: Cow<'static, str>,
}

/// Event `ready`: the first one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct StreamReady {
    /// Whether the events go on after the one that the request named. If not, read your state now.
    pub resumed: bool,
}

/// Event `skipped`: changes before this event were not sent. Read again what you show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SkippedChanges {
    /// How many changes, also of what the filter leaves out; null if that is not known, for example
    /// after a restart of the server.
    pub changes: Option<u64>,
}
