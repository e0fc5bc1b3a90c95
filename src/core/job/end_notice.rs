//! The notice that a job's `callback_url` receives at its end, and the data of the event about it.

use serde::Serialize;
use serde_json::value::RawValue;

use super::{Attributes, JobId, Payload, TypeName, lifecycle::Reason};
use crate::time::Timestamp;

/// The `kind` of every notice.
pub const KIND: &str = "completion";

/// What a `callback_url` receives, and the data of the event about the end of a job.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Ended)]
pub struct EndNotice<'a> {
    /// Always `completion`: it tells the notice from a pushed job, which has no such field.
    #[schema(value_type = String)]
    pub kind: &'static str,
    /// The job.
    pub id: &'a JobId,
    /// Its type.
    pub r#type: &'a TypeName,
    /// Its final state: `succeeded`, `failed`, `expired`, `cancelled` or `dropped`.
    #[schema(value_type = String)]
    pub state: &'static str,
    /// Its latest attempt.
    pub attempt: u16,
    /// The key by which a later reply finds the job.
    #[schema(value_type = Option<String>)]
    pub correlation_key: Option<&'a str>,
    /// Its result, unless that is too large to be stored in the notice.
    #[schema(value_type = Payload)]
    pub result: Option<&'a RawValue>,
    /// When it ended.
    pub ended_at: Timestamp,
    /// The latest failure.
    #[schema(value_type = Option<EndError>)]
    pub error: Option<EndError<'a>>,
    /// Its attributes, in events.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub attributes: Option<&'a Attributes>,
}

/// Why an ended job failed.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct EndError<'a> {
    /// The reason.
    pub reason: Reason,
    /// For people.
    #[schema(value_type = Option<String>)]
    pub message: Option<&'a str>,
}
