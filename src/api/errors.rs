//! The errors of jobs, counted in groups.

use serde::{Deserialize, Serialize};
use tidegate_core::{
    job::{JobId, TypeName, lifecycle::Reason},
    time::Timestamp,
};

/// Jobs whose latest errors have one type, reason and pattern.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ErrorGroup {
    /// The type of the jobs.
    #[schema(value_type = String)]
    pub r#type: TypeName,
    /// The reason.
    pub reason: Reason,
    /// The message with `*` in place of each word that has a digit; empty without a message. It is
    /// the value of the filter `error_pattern`.
    pub pattern: String,
    /// The latest message.
    pub message: Option<String>,
    /// How many jobs.
    pub jobs: u64,
    /// When the first of these errors came.
    pub first_at: Timestamp,
    /// When the latest of these errors came.
    pub last_at: Timestamp,
    /// Some of the jobs, at most three.
    #[schema(value_type = Vec<String>)]
    pub examples: Vec<JobId>,
}

/// Groups of errors.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Errors)]
pub struct ErrorPage {
    /// The groups, those with most jobs first; at most 500.
    pub errors: Vec<ErrorGroup>,
    /// How many jobs with errors are in no group, because there are more than 500.
    pub ungrouped: u64,
    /// Where the next page starts; none on the last one. A group may be on several pages: its counts
    /// add up.
    pub next_cursor: Option<String>,
}
