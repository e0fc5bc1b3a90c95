//! The ways between processes that do not stay: granted work to whoever claims it, hints and wake-ups to whoever ticks.
//!
//! The one thing to know: whatever is sent may arrive late, twice, or never. Each message says what it is about and not what to
//! do, so that its reader looks at the store and decides.

use async_trait::async_trait;

use super::StoreError;
use crate::{
    job::{JobId, QueueName, Version},
    time::Timestamp,
};

/// An attempt to be claimed and delivered. The claim's condition tells whether it still may be, and the tick
/// sends again what nobody claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The job's queue.
    pub queue: QueueName,
    /// The job.
    pub job: JobId,
    /// The version that was granted, or seen.
    pub version: Version,
    /// Not to be claimed before.
    pub run_at: Timestamp,
    /// The head's time at the decision; none if the queue had no head, so that nobody had to grant it.
    pub granted_at: Option<Timestamp>,
}

/// What a queue's tick is to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The queue.
    pub queue: QueueName,
    /// What happened.
    pub kind: HintKind,
}

/// What happened in a queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HintKind {
    /// Something may be due, or may fit now.
    Due,
    /// A job left the version it may have been granted at.
    Released(JobId, Version),
    /// A job waits for its retry strategy to be asked.
    RetryDecision(JobId),
    /// A bulk operation has jobs left. It has no queue: [`OPERATIONS`] stands for one.
    Operation(String),
}

/// The queue in whose name bulk operations are told of. Names that start with `tidegate.` are the server's own.
pub const OPERATIONS: &str = "tidegate.operations";

/// A queue is to be looked at, at an instant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timer {
    /// When.
    pub at: Timestamp,
    /// The queue.
    pub queue: QueueName,
}

/// Carries what one process has for another. Every call takes many, and its repeat is harmless.
#[async_trait]
pub trait WorkQueue: Send + Sync {
    /// Hands on every piece of `work`, to arrive half a second before its `run_at` at the earliest, or fails as a whole: some of it may
    /// have gone out then. `run_at` may be at most [`REACH_SECONDS`] away.
    async fn send(&self, work: &[Work]) -> Result<(), StoreError>;

    /// Tells the ticks. Those of one queue arrive one after the other as far as that can be had, in the order they were told in.
    async fn hint(&self, hints: &[Hint]) -> Result<(), StoreError>;

    /// Has queues looked at: each at its instant, half a second before at the earliest. It may be at most [`REACH_SECONDS`] away.
    async fn set_timers(&self, wakes: &[Timer]) -> Result<(), StoreError>;
}

/// The longest that anything sent can be delayed.
pub const REACH_SECONDS: u64 = 900;
