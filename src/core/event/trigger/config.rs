//! A trigger as its author writes it, and as it is stored.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    event::{filter::Filter, template::Template},
    job::TypeName,
};

/// Most triggers of a server.
pub const MAX_TRIGGERS: usize = 500;
/// Most job types whose ends one trigger handles.
pub const MAX_JOB_TYPES: usize = 100;

/// What happens with each event that the filter matches: either `enqueue` or `complete`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TriggerConfig {
    /// The job types whose ends it handles, at most 100: `job.succeeded`, `job.failed`,
    /// `job.expired`, `job.cancelled` and `job.dropped`. With these it handles no other event, and
    /// without them no end of a job.
    #[serde(
        deserialize_with = "crate::strict::or_default",
        skip_serializing_if = "BTreeSet::is_empty"
    )]
    #[schema(value_type = Vec<String>)]
    pub job_types: BTreeSet<TypeName>,
    /// Which events; an empty filter matches all.
    #[serde(deserialize_with = "crate::strict::or_default")]
    pub filter: Filter,
    /// The job to enqueue: `type` and any other field of `POST /v1/jobs` except `id`. In each
    /// value, `{"$expr": "..."}` is replaced by the result of a JMESPath expression over the event.
    /// Without `data` the job carries the event's data, byte for byte.
    #[serde(
        deserialize_with = "crate::strict::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub enqueue: BTreeMap<String, Template>,
    /// The job to complete: its `type` and `correlation_key`, and its result: `attempt`, `status`
    /// (`succeeded`, `failed`, true or false), `result`, `message`, `error`, `retryable`. Each
    /// value may hold expressions, as in `enqueue`.
    #[serde(
        deserialize_with = "crate::strict::or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub complete: BTreeMap<String, Template>,
}

/// A trigger as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TriggerItem {
    /// Its configuration.
    pub config: TriggerConfig,
    /// Raised by every change.
    pub version: u64,
}
