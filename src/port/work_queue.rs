//! The way from an admission to whoever claims it, where the two are not the same process.

use async_trait::async_trait;

use super::StoreError;
use crate::{
    job::{JobId, QueueName, Version},
    time::Timestamp,
};

/// A granted attempt to be claimed and delivered. It may arrive late, twice, or never: the claim's
/// condition tells which, and the tick sends again what nobody claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The job's queue.
    pub queue: QueueName,
    /// The job.
    pub job: JobId,
    /// The version that was granted.
    pub version: Version,
    /// The head's time at the decision.
    pub decided_at: Timestamp,
}

/// Carries granted work.
#[async_trait]
pub trait WorkQueue: Send + Sync {
    /// Hands on every piece of `work`, or fails as a whole; a repeat is harmless.
    async fn send(&self, work: &[Work]) -> Result<(), StoreError>;
}
