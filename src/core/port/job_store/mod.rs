//! Durable jobs, ledgers and configuration.
//!
//! A store keeps and compares; it never decides. Every write is conditional, and every call takes
//! and returns many.
//!
//! A job is **found by its own record**. [`JobStore::due`] finds a scheduled job from its `run_at`
//! on, and [`JobStore::overdue`] finds a job in any state from its `wake_at` on. A store whose
//! index is separate from the record writes the index entry first.
//!
//! Read in this order: [`mod@write`] (conditional writes), [`record`] (small records with an
//! expiry), [`item`] (configuration), [`query`] and [`scan`] (reads of jobs), [`capabilities`],
//! [`error`], and the trait.

pub mod capabilities;
pub mod error;
pub mod item;
pub mod query;
pub mod record;
pub mod scan;
pub mod write;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;

pub use super::job_filter::{JobFilter, NotAState, StateFilter};
pub use capabilities::{Atomicity, StoreCapabilities};
pub use error::{
    ErrorSource, NO_ROOM, StoreError, StoredBody, StoredJob, StoredKey, UnreadableJob, last_id,
};
pub use item::{Item, ItemKind};
pub use query::{
    Depth, Depths, DuePage, DueQuery, KeptCounts, ListPage, ListQuery, MAX_LOOKED_AT,
    MAX_UNREADABLE, OverduePage, PartitionPage, ScheduledPhases, WaitingPage, WakePosition,
};
pub use record::{Purged, RECORD_BYTES, Record, RecordKind, RecordQuery};
pub use scan::{DueRange, DueScan, OrderedScan, ScanPage, ScanQuery};
pub use write::{Committed, CurrentRecord, Expect, Key, Txn, Write, each_write, flatten};

use crate::{
    job::{Body, Job, JobId, QueueName, Spec, TypeName},
    queue::{GrantBatch, Ledger, ledger::BatchId},
    time::Timestamp,
};

/// Durable jobs, one writer at a time per record.
///
/// After `Ok`, a write is durable and every later read sees it. Wrappers (metrics, faults)
/// implement every method, so that none is bypassed by a default.
#[async_trait]
pub trait JobStore: Send + Sync {
    /// Commits each transaction separately, in the order given: one answer per transaction.
    ///
    /// Within a transaction, writes happen in order up to the first refused one. After
    /// [`StoreError::Unavailable`] and [`StoreError::OutcomeUnknown`] each may or may not have
    /// happened; after [`StoreError::Throttled`] and [`StoreError::NotLeader`] none has.
    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError>;

    /// What the store guarantees. It never changes during the life of a store.
    fn capabilities(&self) -> StoreCapabilities;

    /// Returns the id to store a new job under, given the generated `id`.
    ///
    /// A store may append the job's location after a dot. A store without atomic transactions
    /// always does, which distinguishes a generated id from one that a client chose. An id that a
    /// client chose is never changed.
    fn assign_id(&self, id: JobId, spec: &Spec, run_at: Timestamp) -> JobId;

    /// The jobs with these ids, in their order. A body over 1 KiB is [`Body::Separate`].
    async fn get(&self, ids: &[JobId]) -> Result<Vec<StoredJob>, StoreError>;

    /// The bodies that are stored separately from these jobs, in their order.
    async fn bodies(&self, ids: &[JobId]) -> Result<Vec<StoredBody>, StoreError>;

    /// Due jobs: one page per query. A job that cannot be read is left out. A store that has left
    /// out many may end the page early, even before its first job.
    ///
    /// Several callers may get the same job; `commit` lets one of them win.
    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError>;

    /// Begins a scan of due jobs, which follows no order. A store whose pages of [`Self::due`] read
    /// no job of an earlier page may return an [`OrderedScan`].
    fn scan_due(&self, query: ScanQuery) -> Box<dyn DueScan + '_>;

    /// How many jobs of each of `types` of `queue` are due at `until`, including critical ones.
    ///
    /// Counting stops at `most` (1 to [`StoreCapabilities::max_counted_due`]) jobs in total. A type
    /// without due jobs may be missing.
    async fn count_due(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        most: u32,
    ) -> Result<BTreeMap<TypeName, u64>, StoreError>;

    /// The queues that have jobs to care for at `until`: every queue with a running job, or with a
    /// scheduled one that is due at `until` or before. Other queues may be among them.
    async fn active_queues(&self, until: Timestamp) -> Result<BTreeSet<QueueName>, StoreError>;

    /// The partitions in which jobs of `types` of `queue` are due at `until`, critical or not: at
    /// most `limit`, in order, starting after `after`. Those in `skip` are left out, and not read.
    ///
    /// A call looks at [`MAX_LOOKED_AT`] partitions for each of `limit` at most. It does not read
    /// the jobs of a partition whose jobs are all due in a later hour.
    async fn partitions(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        after: Option<&str>,
        limit: u32,
        skip: &BTreeSet<String>,
    ) -> Result<PartitionPage, StoreError>;

    /// How many jobs of `types` of `queue` that are not critical are due at `until`, by partition: a
    /// page of at most `limit` (1 to 1000) partitions, in order, starting after `after`. A partition
    /// without such jobs is left out.
    ///
    /// These are estimates. Counting stops at `most` jobs of a partition, and a store may derive the
    /// weight from some of the jobs. A job that is granted, or that awaits its retry decision, may
    /// be counted.
    async fn count_waiting(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        after: Option<&str>,
        limit: u32,
        most: u32,
    ) -> Result<WaitingPage, StoreError>;

    /// At most `limit` jobs with a `wake_at` of `until` or before, earliest first; with `after`,
    /// the `next` of a page, those behind it. A job that cannot be read is left out. A store with
    /// much else to do may end the page early; its `next_at` is `until` then.
    async fn overdue(
        &self,
        until: Timestamp,
        after: Option<WakePosition>,
        limit: u32,
    ) -> Result<OverduePage, StoreError>;

    /// At most `limit` running jobs of `queue`, by id, starting after `after`. A job that cannot be
    /// read is among them unless it is known not to run.
    async fn running(
        &self,
        queue: &QueueName,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<Result<Job, UnreadableJob>>, StoreError>;

    /// A queue's ledger with the batches that it names, if the queue has a ledger.
    async fn ledger(
        &self,
        queue: &QueueName,
    ) -> Result<Option<(Ledger, Vec<GrantBatch>)>, StoreError> {
        // The first version is 1.
        self.newer_ledger(queue, 0).await
    }

    /// A queue's ledger with the batches that it names, unless its version is `known`.
    async fn newer_ledger(
        &self,
        queue: &QueueName,
        known: u64,
    ) -> Result<Option<(Ledger, Vec<GrantBatch>)>, StoreError>;

    /// The batches stored for `queue`, whether its ledger names them or not.
    async fn batches(&self, queue: &QueueName) -> Result<Vec<(BatchId, u64)>, StoreError>;

    /// The jobs that these keys point at, in their order.
    async fn keys(&self, keys: &[Key]) -> Result<Vec<StoredKey>, StoreError>;

    /// A job of `job_type`, or of any, in `queue`, or in any, that has not ended, if there is one. A
    /// job that cannot be read is one unless it is known to be another's.
    async fn live_job(
        &self,
        job_type: Option<&TypeName>,
        queue: Option<&QueueName>,
    ) -> Result<Option<Result<Job, UnreadableJob>>, StoreError>;

    /// A page of jobs, in the order of [`StoreCapabilities::lists_by_creation`]. The page is empty
    /// for a cursor that is not a [`super::listing::Cursor`].
    ///
    /// A store reads a bounded number of jobs for a page, whether they match or not, so a page may be
    /// short or empty and still have a next one.
    async fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError>;

    /// How many jobs there are, in one queue or in all, by type and state.
    ///
    /// A store in which each count would read the jobs returns what [`Self::keep_counts`] has left,
    /// with its age. No decision may depend on it.
    async fn depth(&self, queue: Option<&QueueName>) -> Result<Depths, StoreError>;

    /// Brings the numbers that [`Self::depth`] returns up to date, until `until`, if the store keeps
    /// them. What one call reads and writes has a bound, so it may leave some queues for a later call.
    ///
    /// Two calls at once, or one that ends early, make the numbers older at worst.
    async fn keep_counts(&self, until: Timestamp) -> Result<(), StoreError>;

    /// Every item of a kind, by name.
    async fn items(&self, kind: ItemKind) -> Result<Vec<Item>, StoreError>;

    /// A number that rises whenever an item changes that [`ItemKind::is_decided_under`].
    async fn items_version(&self) -> Result<u64, StoreError>;

    /// Records by name: one page per query, in their order.
    ///
    /// A record that was dropped during the read may be missing; one that was just written is not.
    async fn records(&self, queries: &[RecordQuery]) -> Result<Vec<Vec<Record>>, StoreError>;

    /// Drops records of `kind`: first those that have expired at `now`, then as many as exceed
    /// `keep`.
    ///
    /// Of the latter, those that expire first go first. One call drops at most `limit` (1 to
    /// 10000). A store may leave some for a later call, and its count of what is left may be a
    /// minute old.
    async fn purge(
        &self,
        kind: RecordKind,
        now: Timestamp,
        keep: u64,
        limit: u32,
    ) -> Result<Purged, StoreError>;

    /// Makes one step of what the store itself needs from time to time, such as renewing what expires
    /// although its job still waits.
    ///
    /// A step has a bound. It returns where the next one goes on, if there is one: that is `after` of
    /// the next call. The engine begins again some hours after the first step.
    async fn upkeep(&self, after: Option<&str>) -> Result<Option<String>, StoreError>;
}

/// A shared store.
pub type SharedStore = Arc<dyn JobStore>;

/// Most bytes of a body that is stored in its job's record; a larger one is stored separately.
pub const INLINE_BYTES: usize = 1024;

/// Whether `body` is too large to be stored in its job's record.
pub fn is_stored_separately(body: &Body) -> bool {
    body.inline().is_some_and(|payload| payload.bytes.len() > INLINE_BYTES)
}
