//! What all stores share about lists: which jobs a query selects, and where a page ended.

use std::{fmt, str::FromStr};

use super::job_store::ListQuery;
use crate::{
    job::{Job, QueueName, TypeName},
    time::Timestamp,
};

/// Where a page of a list ended. In a list by creation it is the position of its last job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// When that job was accepted. In another list it is later than any job.
    pub created_at: Timestamp,
    /// What distinguishes it from others of that instant, or the position in a list that is not by
    /// creation, in a form of the store.
    pub tie: String,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.created_at.millis(), self.tie)
    }
}

/// The text is not the cursor of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be the cursor of a page of this list")]
pub struct BadCursor;

impl FromStr for Cursor {
    type Err = BadCursor;
    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let (millis, tie) = text.split_once('_').ok_or(BadCursor)?;
        Ok(Self {
            created_at: Timestamp::from_millis(millis.parse().map_err(|_| BadCursor)?),
            tie: tie.to_owned(),
        })
    }
}

impl ListQuery {
    /// Whether it may select jobs of `job_type`.
    pub fn asks_for_type(&self, job_type: &TypeName) -> bool {
        self.filter.job_type.as_ref().is_none_or(|name| name == job_type)
            && self.within_types.as_ref().is_none_or(|names| names.contains(job_type))
    }

    /// Whether it may select jobs in `queue`.
    pub fn asks_for_queue(&self, queue: &QueueName) -> bool {
        self.filter.queue.as_ref().is_none_or(|name| name == queue)
            && self.within_queues.as_ref().is_none_or(|names| names.contains(queue))
    }

    /// Whether it selects `job`, regardless of its cursor and of conditions on the data.
    pub fn asks_for(&self, job: &Job) -> bool {
        self.asks_for_type(&job.spec.job_type)
            && self.asks_for_queue(&job.spec.queue)
            && self.filter.matches(job, self.now)
    }
}
