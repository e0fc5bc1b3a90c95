//! Messages between short-lived processes: granted work to workers, hints and timers to ticks.
//!
//! A message may arrive late, twice, or never. It names its subject and not an action, so that the
//! receiver reads the store and decides.

use std::collections::BTreeSet;

use async_trait::async_trait;

use super::StoreError;
use crate::{
    job::{Job, JobId, QueueName, Version},
    queue::GrantDigest,
    time::Timestamp,
};

/// An attempt to claim and deliver.
///
/// The condition of the claim decides whether the attempt may still start. The tick sends unclaimed
/// work again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The job's queue.
    pub queue: QueueName,
    /// The job.
    pub job: JobId,
    /// The version that was granted or read.
    pub version: Version,
    /// The earliest time of the claim.
    pub run_at: Timestamp,
    /// The ledger's time at the decision; none if the queue had no ledger, so that no grant was
    /// needed.
    pub granted_at: Option<Timestamp>,
    /// How many bytes the job's data and its checkpoint have, so that a receiver can bound its memory
    /// before the claim.
    /// A message of an earlier release has 0.
    pub data_bytes: u64,
}

impl Work {
    /// The work that starts `job` at `run_at`, decided at `granted_at`.
    pub fn of(job: &Job, run_at: Timestamp, granted_at: Option<Timestamp>) -> Self {
        Self {
            queue: job.spec.queue.clone(),
            job: job.id.clone(),
            version: job.life.version,
            run_at,
            granted_at,
            data_bytes: job.input_bytes() as u64,
        }
    }
}

/// A hint to the ticks of a queue.
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
    /// A job may be due, or may fit now.
    Due,
    /// A job left a version that may have been granted.
    Released(JobId, Version),
    /// A job waits for the decision of its retry plugin.
    RetryDecision(JobId),
    /// A bulk operation has jobs left. It has no queue; its hints name [`OPERATIONS`].
    Operation(String),
}

/// The queue name in hints about bulk operations. Names that start with `tidegate.` are reserved
/// for the server.
pub const OPERATIONS: &str = "tidegate.operations";

/// A tick of a queue at an instant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timer {
    /// The instant.
    pub at: Timestamp,
    /// The queue.
    pub queue: QueueName,
}

/// Carries messages between processes. Every call takes many, and repeating it is harmless.
#[async_trait]
pub trait WorkQueue: Send + Sync {
    /// Sends every item of `work`. It arrives half a second before its `run_at` at the earliest.
    ///
    /// `run_at` may be at most [`REACH_SECONDS`] away. After an error, some of it may have been
    /// sent.
    async fn send(&self, work: &[Work]) -> Result<(), StoreError>;

    /// Sends hints to the ticks. Those of one queue arrive in order and one at a time, as far as
    /// the implementation can ensure it.
    ///
    /// An implementation may send one [`HintKind::Due`] for many hints of a queue, and keep what
    /// they say of releases for [`Self::take_releases`].
    async fn hint(&self, hints: &[Hint]) -> Result<(), StoreError>;

    /// The grants of `queue` that jobs have left, as far as hints left them here. Called before a
    /// tick reads the store; a hint after this call arrives by a message of its own.
    ///
    /// A call may return releases again that an earlier one returned.
    async fn take_releases(&self, queue: &QueueName) -> Result<BTreeSet<GrantDigest>, StoreError>;

    /// Schedules a tick for each timer, half a second before its instant at the earliest. The
    /// instant may be at most [`REACH_SECONDS`] away.
    async fn set_timers(&self, timers: &[Timer]) -> Result<(), StoreError>;
}

/// The longest delay of a message, in seconds.
pub const REACH_SECONDS: u64 = 900;
