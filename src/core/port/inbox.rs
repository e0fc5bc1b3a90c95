//! The inbox: requests for jobs that applications wrote into the database of the job store, each in a
//! transaction of its own.
//!
//! A request waits in the inbox until a server adds its job. The transaction that adds the job removes
//! the request ([`Write::TakeRequest`]), so that any number of servers may try, and one succeeds.
//!
//! [`Write::TakeRequest`]: super::Write::TakeRequest

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::StoreError;
use crate::{job::JobId, time::Timestamp};

/// A request in the inbox. Its values are as the application gave them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxRequest {
    /// The id that its job will have. Ids ascend with the time of the request, as far as clocks do.
    pub id: JobId,
    /// The name of the job type.
    pub job_type: String,
    /// The job's data: JSON.
    pub data: Bytes,
    /// The other fields of a request for a job: a JSON object.
    pub options: Bytes,
    /// When the job is due.
    pub run_at: Option<Timestamp>,
    /// What is left of the delay, which began with the request.
    pub delay: Option<Duration>,
    /// The name of the caller in the database.
    pub caller: String,
}

/// What an inbox checks before it accepts a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxRules {
    /// Most bytes of the data.
    pub max_data_bytes: usize,
    /// Whether a type that is not configured is accepted.
    pub create_unknown_types: bool,
}

/// The inbox of a job store.
#[async_trait]
pub trait Inbox: Send + Sync {
    /// Sets what the inbox checks from now on.
    async fn set_rules(&self, rules: InboxRules) -> Result<(), StoreError>;

    /// The first requests by id, at most `limit`: those after `after`, or of all. Fewer if they are
    /// large; none only if there are none.
    async fn requests(
        &self,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<InboxRequest>, StoreError>;

    /// The request with this id, if it is in the inbox.
    async fn request(&self, id: &JobId) -> Result<Option<InboxRequest>, StoreError>;
}
