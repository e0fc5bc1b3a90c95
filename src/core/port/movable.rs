//! What a move of a whole store needs in addition to the calls of the engine: lists of everything.
//!
//! The other records are found by the port itself: bodies, batches, items and records. Jobs, keys and
//! ledgers are not, because no operation of the engine reads all of them.

use async_trait::async_trait;

use super::job_store::{JobStore, Key, StoreError, UnreadableJob};
use crate::job::{Job, JobId, QueueName};

/// Some of all the jobs of a store.
#[derive(Clone, Debug, Default)]
pub struct AllJobsPage {
    /// The jobs. A body over 1 KiB is [`Body::Separate`](crate::job::Body::Separate). Jobs past their
    /// retention that the store hides from its readers are left out.
    pub jobs: Vec<Result<Job, UnreadableJob>>,
    /// Where the next page starts; none on the last one. A page may be empty and have a next one.
    pub next: Option<String>,
}

/// A store whose whole content can be listed, so that it can be moved to another store.
///
/// The calls are for a store that no server uses meanwhile. A write between two pages may be missed.
#[async_trait]
pub trait Movable: JobStore {
    /// A page of all jobs, in an order of the store that never changes: at most `limit` (1 to 1000),
    /// after `after`, the `next` of a page.
    async fn all_jobs(&self, after: Option<&str>, limit: u32) -> Result<AllJobsPage, StoreError>;

    /// The keys that point at these jobs, each with its job, in any order.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`] if one of them is damaged.
    async fn keys_of(&self, jobs: &[JobId]) -> Result<Vec<(Key, JobId)>, StoreError>;

    /// The queues that have a ledger, by name.
    async fn ledger_queues(&self) -> Result<Vec<QueueName>, StoreError>;

    /// Raises [`JobStore::items_version`] to `least` if it is smaller.
    ///
    /// The version of an item that is created again continues after that number, so it must not be
    /// smaller than the versions of items that were moved.
    async fn raise_items_version(&self, least: u64) -> Result<(), StoreError>;
}
