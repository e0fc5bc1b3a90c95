//! Answers about several jobs, and about what one waits for.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};
use tidegate_core::{job::JobId, time::Timestamp};

use super::{JobView, ShortView};
use crate::Problem;

/// A page of jobs.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct JobPage<'a> {
    /// The jobs, newest first by creation.
    #[schema(value_type = Vec<JobView>)]
    pub jobs: Vec<JobView<'a>>,
    /// Where the next page starts; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// The outcome of each job of a batch, in order.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BatchView<'a> {
    /// One answer per job.
    #[schema(value_type = Vec<BatchResult>)]
    pub results: Vec<BatchResult<'a>>,
}

/// The outcome of one job of a batch.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BatchResult<'a> {
    /// 201 if it is new, 200 if it existed, else the status of the problem.
    pub status: u16,
    /// The job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<JobView>)]
    pub job: Option<BatchJob<'a>>,
    /// Why the job was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}

/// A job of a batch.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum BatchJob<'a> {
    /// The whole job.
    Whole(Box<JobView<'a>>),
    /// Its short form, where whole jobs would exceed the limit of an answer.
    Short(ShortView<'a>),
}

impl BatchJob<'_> {
    /// The job's id.
    pub fn id(&self) -> &JobId {
        match self {
            Self::Whole(job) => &job.id,
            Self::Short(job) => &job.id,
        }
    }
}

/// Reads the short form, which both forms have.
impl<'de> Deserialize<'de> for BatchJob<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ShortView::deserialize(deserializer).map(Self::Short)
    }
}

/// Why a job waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Explanation {
    /// The name of its state.
    #[schema(value_type = String)]
    pub state: Cow<'static, str>,
    /// The name of its phase, as a job shows it.
    #[schema(value_type = String)]
    pub phase: Cow<'static, str>,
    /// What holds it; absent if nothing does.
    pub held_by: Option<HeldBy>,
    /// Since when.
    pub since: Option<Timestamp>,
    /// For people.
    pub reason: String,
    /// The earliest start, where that is known.
    pub earliest_at: Option<Timestamp>,
}

/// What holds a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HeldBy {
    /// `due_time`, `window`, `paused`, `concurrency`, `type_concurrency`, `constraint`,
    /// `throttler`, `order`, `worker` or `retry`.
    #[schema(value_type = String)]
    pub kind: Cow<'static, str>,
    /// Its name, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}
