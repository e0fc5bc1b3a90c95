//! What a move of a whole store needs in addition to the calls of the engine: lists of everything.
//!
//! The others are found by the port itself: bodies, batches and items. Jobs, keys, ledgers and the records
//! of all groups are not, because no operation of the engine reads all of them.

use async_trait::async_trait;

use super::job_store::{JobStore, Key, Record, RecordKind, RecordQuery, StoreError, UnreadableJob};
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

/// Some of the records of a kind, of all groups.
#[derive(Clone, Debug, Default)]
pub struct AllRecordsPage {
    /// The records, by name.
    pub records: Vec<Record>,
    /// The names of damaged ones, as far as they can be read. Other calls leave these records out.
    pub damaged: Vec<String>,
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

    /// A page of the records of a kind, of all groups, by name: at most `limit` (1 to 1000), the damaged
    /// ones included, after `after`, the `next` of a page. A store may end a page earlier, so that it needs
    /// a bounded amount of memory.
    async fn all_records(
        &self,
        kind: RecordKind,
        after: Option<&str>,
        limit: u32,
    ) -> Result<AllRecordsPage, StoreError> {
        // A store that keeps groups apart, or whose records can be damaged, finds them in another way.
        let after = after.map(str::to_owned);
        let query = RecordQuery { kind, prefix: String::new(), after, limit };
        let records = self.records(&[query]).await?.pop().unwrap_or_default();
        let last = records.last().filter(|_| records.len() >= limit as usize);
        let next = last.map(|record| record.name.clone());
        Ok(AllRecordsPage { records, damaged: Vec::new(), next })
    }

    /// The queues that have a ledger, by name.
    async fn ledger_queues(&self) -> Result<Vec<QueueName>, StoreError>;

    /// Makes the store ready for servers after everything was moved into it. It may be repeated.
    ///
    /// It raises [`JobStore::items_version`] to `least` if it is smaller: the version of an item that
    /// is created again continues after that number, so it must not be smaller than the versions of
    /// items that were moved. And it prepares what the store derives from its jobs.
    async fn complete_move(&self, least: u64) -> Result<(), StoreError>;
}
