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
    /// The id that its job will have.
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

/// Some requests. Each has a number: those of one transaction ascend in the order of its calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InboxPage {
    /// The requests in the order of their numbers, without those that cannot be read.
    pub requests: Vec<InboxRequest>,
    /// The number of the last one, also if it cannot be read. None if there are no more.
    pub last: Option<u64>,
}

/// How much waits in an inbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InboxDepth {
    /// How many requests wait, or the bound of the count if there are more.
    pub requests: u64,
    /// For how long the oldest of them has waited; zero if none waits.
    pub oldest_age: Duration,
}

/// What an inbox checks before it accepts a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxRules {
    /// Most bytes of the data. Not zero.
    pub max_data_bytes: usize,
    /// Whether a type that is not configured is accepted.
    pub create_unknown_types: bool,
}

/// What an attempt to close an inbox has reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InboxClosing {
    /// No transaction adds a request any more, not even one that began before.
    Closed,
    /// Transactions that may have made requests are open. Those that begin to request are refused
    /// already. Each is described for people; none may be known.
    InUse(Vec<String>),
}

/// The inbox of a job store.
#[async_trait]
pub trait Inbox: Send + Sync {
    /// Sets what the inbox checks from now on, and opens it if it was closed.
    async fn set_rules(&self, rules: InboxRules) -> Result<(), StoreError>;

    /// Refuses every request from now on, because the jobs are moved to another store, and waits a few
    /// seconds for the end of the transactions that have made one. A repeat waits again.
    async fn close(&self) -> Result<InboxClosing, StoreError>;

    /// The first requests by number, at most `limit`, with numbers after `after` and up to `until`.
    /// Fewer if they are large.
    async fn requests(&self, after: u64, until: u64, limit: u32) -> Result<InboxPage, StoreError>;

    /// How much waits. At most `limit` requests are counted.
    async fn depth(&self, limit: u32) -> Result<InboxDepth, StoreError>;

    /// The greatest number that a request has had. It is found at once, however many there were.
    async fn newest(&self) -> Result<u64, StoreError>;

    /// The request with this id, if it is in the inbox.
    async fn request(&self, id: &JobId) -> Result<Option<InboxRequest>, StoreError>;
}
