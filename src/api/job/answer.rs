//! Answers about several jobs.

use serde::{Deserialize, Deserializer, Serialize};
use tidegate_core::job::JobId;

use super::{JobView, ShortView};
use crate::Problem;

/// A page of jobs.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct JobPage<'a> {
    /// The jobs, newest first by creation; on AWS by when they were first due, from the present back,
    /// and then those due later. With `sort`, in that order.
    #[schema(value_type = Vec<JobView>)]
    pub jobs: Vec<JobView<'a>>,
    /// The ids of jobs that may belong to the list and cannot be read, at most 100: their records
    /// are damaged, or a newer release wrote them. `GET` of one says why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
    /// With `sort`: which jobs were compared. Absent if the list has this order anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sorted: Option<SortedJobs>,
    /// Where the next page starts; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// The jobs that were compared for a page of a sorted list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SortedJobs {
    /// How many matching jobs were compared, at most 10,000: the first ones of the list without
    /// `sort`.
    pub compared: u64,
    /// Whether these are all that match. If not, further conditions make the list whole.
    pub complete: bool,
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
#[allow(clippy::large_enum_variant, reason = "a server has one at a time, and writes it")]
pub enum BatchJob<'a> {
    /// The whole job.
    Whole(JobView<'a>),
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
