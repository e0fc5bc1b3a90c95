//! What made a job, as answers show it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use tidegate_core::{
    job::{ScheduleName, TriggerName, origin::Origin},
    time::Timestamp,
};

/// What made a job that no caller enqueued: a schedule, or a trigger from an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = JobOrigin)]
pub struct OriginView<'a> {
    /// The schedule; absent if a trigger made the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub schedule: Option<Cow<'a, ScheduleName>>,
    /// The occurrence of the schedule; absent if a request ran the schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub occurrence: Option<Timestamp>,
    /// The trigger; absent if a schedule made the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub trigger: Option<Cow<'a, TriggerName>>,
    /// The id of the event; absent if it has over 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub event: Option<Cow<'a, str>>,
    /// The source of the event; absent if it has over 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub source: Option<Cow<'a, str>>,
}

impl<'a> OriginView<'a> {
    /// What an answer shows of `origin`.
    pub fn of(origin: &'a Origin) -> Self {
        match origin {
            Origin::Schedule(of) => Self {
                schedule: Some(Cow::Borrowed(&of.schedule)),
                occurrence: of.occurrence,
                ..Self::default()
            },
            Origin::Trigger(of) => Self {
                trigger: Some(Cow::Borrowed(&of.trigger)),
                event: of.event.as_deref().map(Cow::Borrowed),
                source: of.source.as_deref().map(Cow::Borrowed),
                ..Self::default()
            },
        }
    }
}
