//! The job store on one DynamoDB table.
//!
//! **A job's own row is its entry in the due-time index.** The row's key contains the instant at
//! which the job was first due, and strongly consistent queries read it there. A rescheduled job
//! keeps its row. A small *index entry* is written at the new time first, so that the job is found
//! whichever process crashes at whichever point. Entries before a bucket's *low watermark* are
//! settled and are not read again. See `docs/decisions` for the schema, the cost of each write, and
//! why no job is lost.
//!
//! Read in this order: [`key`] (the keys of items), [`row`] and [`batch`] (their attributes),
//! [`table`] (the requests to DynamoDB), [`mod@write`] (a commit, in waves), [`entry`] (index
//! entries, and when they count), [`bucket`] and [`partition`] (reading a bucket, and moving its
//! low watermark), [`read_units`] (what reads cost), [`active`] (queues with open buckets),
//! [`stream`] (the buckets of an index partition), [`retention`] (what ended jobs leave behind),
//! [`due`], [`waiting`], [`timer`], [`timer_check`], [`list`], [`list_position`] and [`count`] (the
//! queries), [`recount`] and [`recount_ended`] (the counts that a sweep keeps), [`item_version`]
//! (the configuration as a condition), [`tick_request`] (one hint for many), [`movable`] and
//! [`record_groups`] (lists of everything), [`sdk`] (the table over the network).

mod active;
mod batch;
mod bucket;
#[cfg(any(test, feature = "testkit"))]
pub mod change_decoder;
mod count;
mod due;
mod entry;
#[cfg(test)]
mod fuzz;
mod item_version;
mod key;
mod list;
mod list_position;
mod locate;
#[cfg(any(test, feature = "testkit"))]
pub mod memory;
mod movable;
mod partition;
mod read_units;
mod record;
mod record_groups;
mod recount;
mod recount_ended;
pub(crate) mod repeat;
mod retention;
mod row;
mod scan;
pub mod sdk;
mod stream;
pub mod table;
mod tick_request;
mod timer;
mod timer_bucket;
mod timer_check;
mod upkeep;
mod waiting;
mod write;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;

pub use bucket::LowWatermarks;
pub use key::Key;
use key::{JobLocation, Partition};
use row::BodyAt;
use scan::TableScan;
use table::{Item, PageQuery, Table};
pub use tick_request::TickRequests;

use crate::unreadable::unreadable;
use tidegate_core::{
    job::{Job, JobId, QueueName, Spec, TypeName},
    port::{
        Atomicity, Clock, Entropy, StoreCapabilities, StoreError,
        job_store::{
            self, Committed, Depths, DuePage, DueQuery, DueScan, ItemKind, JobStore, ListPage,
            ListQuery, OverduePage, PartitionPage, Purged, Record, RecordKind, RecordQuery,
            ScanQuery, StoredBody, StoredJob, StoredKey, Txn, UnreadableJob, WaitingPage,
            WakePosition,
        },
    },
    queue::{GrantBatch, Ledger, ledger::BatchId},
    time::Timestamp,
};

/// How long a write may be in flight after its conditions were read. A commit is given up after
/// half of it, and a single request much earlier.
const MAX_IN_FLIGHT_WRITE: Duration = Duration::from_secs(10);
/// How often a ledger is read if its batches change meanwhile.
const MAX_LEDGER_READS: usize = 8;
/// Most due jobs that a count covers. It reads each of them.
const MAX_COUNTED_DUE: u32 = 1000;
/// Maximum entries of each cache of [`KnownRecords`].
const MAX_KNOWN_RECORDS: usize = 50_000;

/// A cache of facts that never change, or that may be written twice. It only saves requests.
#[derive(Default)]
struct KnownRecords {
    /// The registered buckets.
    registered: HashSet<Key>,
    /// The registrations that do not expire.
    lasting: HashSet<Key>,
    /// The locations of the rows of clients' ids.
    locations: HashMap<JobId, locate::KnownLocation>,
    /// Entries that lead to no candidate.
    exhausted: HashMap<Key, partition::Exhausted>,
    /// The beginnings of buckets that lead to no candidate, by the key of the bucket's registration.
    passed: HashMap<Key, partition::Passed>,
    /// Whether every queue with open buckets is listed.
    active_is_complete: bool,
    /// The version of the configuration that was read last.
    configuration: u64,
    /// The versions of items of the configuration.
    item_versions: HashMap<Key, item_version::ItemVersion>,
    /// The groups of records, once a move has listed them.
    groups: Option<record_groups::RecordGroups>,
}

/// Jobs, ledgers and configuration in one table.
pub struct DynamoStore {
    table: Arc<dyn Table>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    shards: u8,
    low_watermarks: LowWatermarks,
    known: Arc<Mutex<KnownRecords>>,
    /// The shard of the timers that this process writes.
    timer_shard: OnceLock<u8>,
}

impl DynamoStore {
    /// A store on `table`.
    pub fn new(table: Arc<dyn Table>, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self {
            table,
            clock,
            entropy,
            shards: 1,
            low_watermarks: LowWatermarks::default(),
            known: Arc::default(),
            timer_shard: OnceLock::new(),
        }
    }

    /// Spreads the new jobs of each queue and type over this many partitions an hour. A partition
    /// accepts 1000 writes a second. The number may change at any time, up and down.
    #[must_use]
    pub fn with_shards(mut self, shards: u8) -> Self {
        self.shards = shards.max(1);
        self
    }

    /// Sets when low watermarks move.
    #[must_use]
    pub fn with_low_watermarks(mut self, low_watermarks: LowWatermarks) -> Self {
        self.low_watermarks = low_watermarks;
        self
    }

    /// Damages the row of a job, for tests. A second call restores it.
    #[cfg(any(test, feature = "testkit"))]
    pub async fn damage_job(&self, id: &JobId) {
        let row = self.rows(&[id]).await.ok().and_then(|mut rows| rows.pop().flatten());
        let mut row = row.expect("the job is there");
        row::flip(&mut row);
        self.table.write(&[table::Change::Put(row)]).await.expect("the table answers");
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The index partition in which a job waits.
    fn index_partition(&self, id: &JobId, spec: &Spec) -> Partition {
        Partition::of(spec, key::parts(id).0, self.shards)
    }

    /// The items of these keys, each read from one of its copies. An item that has none was written
    /// by a release that made none.
    async fn copies(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError> {
        let copies: Vec<Key> = keys.iter().map(|key| key::copy(key, self.entropy.bits())).collect();
        let mut items = self.table.get(&copies).await?;
        let (missing, originals): (Vec<usize>, Vec<Key>) = (0..keys.len())
            .filter(|index| items[*index].is_none())
            .map(|index| (index, keys[index].clone()))
            .unzip();
        if !missing.is_empty() {
            for (index, item) in missing.into_iter().zip(self.table.get(&originals).await?) {
                items[index] = item;
            }
        }
        Ok(items)
    }

    /// All items in a range of a partition.
    async fn all(&self, p: String, from: String, to: String) -> Result<Vec<Item>, StoreError> {
        let mut query = PageQuery { p, from, to, limit: None, backward: false, after: None };
        let mut items = Vec::new();
        loop {
            let page = self.table.query(&query).await?;
            items.extend(page.items);
            query.after = page.next;
            if query.after.is_none() {
                return Ok(items);
            }
        }
    }

    /// All items of a partition.
    async fn whole(&self, p: impl Into<String>) -> Result<Vec<Item>, StoreError> {
        self.all(p.into(), key::FIRST.into(), key::LAST.into()).await
    }
}

#[async_trait]
impl JobStore for DynamoStore {
    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        self.write(txns).await
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            shared: true,
            atomicity: Atomicity::Steps { max_in_flight_write: MAX_IN_FLIGHT_WRITE },
            expires_natively: true,
            max_counted_due: MAX_COUNTED_DUE,
            waiting_pass: (waiting::MAX_COUNTED, waiting::COUNT_PAUSE),
            lists_by_creation: false,
        }
    }

    fn assign_id(&self, id: JobId, spec: &Spec, run_at: Timestamp) -> JobId {
        let location = JobLocation {
            index_partition: Partition::of(spec, id.as_str(), self.shards),
            at: run_at,
        };
        key::with_location(&id, &location)
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<StoredJob>, StoreError> {
        self.found(&ids.iter().collect::<Vec<_>>()).await
    }

    async fn bodies(&self, ids: &[JobId]) -> Result<Vec<StoredBody>, StoreError> {
        let rows = self.rows(&ids.iter().collect::<Vec<_>>()).await?;
        let keys: Vec<Vec<Key>> = ids
            .iter()
            .zip(&rows)
            .map(|(id, item)| {
                item.as_ref().and_then(BodyAt::read).map(|at| at.keys(id)).unwrap_or_default()
            })
            .collect();
        let parts = self.table.get(&keys.concat()).await?;
        let mut rest = &parts[..];
        let mut bodies = Vec::with_capacity(ids.len());
        for (id, keys) in ids.iter().zip(keys) {
            let (own, others) = rest.split_at(keys.len());
            rest = others;
            let body = row::body(id, own);
            bodies.push(body.map_err(|error| unreadable(id.as_str(), &error)));
        }
        Ok(bodies)
    }

    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        self.due_pages(queries).await
    }

    fn scan_due(&self, query: ScanQuery) -> Box<dyn DueScan + '_> {
        Box::new(TableScan::new(self, query))
    }

    async fn count_due(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        most: u32,
    ) -> Result<BTreeMap<TypeName, u64>, StoreError> {
        self.count_due_jobs(queue, types, until, most).await
    }

    async fn active_queues(&self, until: Timestamp) -> Result<BTreeSet<QueueName>, StoreError> {
        self.queues_with_open_buckets(until).await
    }

    async fn partitions(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        after: Option<&str>,
        limit: u32,
        skip: &BTreeSet<String>,
    ) -> Result<PartitionPage, StoreError> {
        self.partitions_with_due_jobs(queue, types, until, after, limit as usize, skip).await
    }

    async fn count_waiting(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        after: Option<&str>,
        limit: u32,
        most: u32,
    ) -> Result<WaitingPage, StoreError> {
        let page = (after, limit as usize, most);
        self.count_waiting_jobs(queue, types, until, page).await
    }

    async fn overdue(
        &self,
        until: Timestamp,
        _: Option<WakePosition>,
        limit: u32,
    ) -> Result<OverduePage, StoreError> {
        let (jobs, next_at) = self.overdue_jobs(until, limit as usize).await?;
        Ok(OverduePage { jobs, next: None, next_at })
    }

    async fn running(
        &self,
        queue: &QueueName,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<Result<Job, UnreadableJob>>, StoreError> {
        self.running_jobs(queue, after, limit as usize).await
    }

    async fn newer_ledger(
        &self,
        queue: &QueueName,
        known: u64,
    ) -> Result<Option<(Ledger, Vec<GrantBatch>)>, StoreError> {
        let mut seen = None;
        for _ in 0..MAX_LEDGER_READS {
            let Some(item) = self.table.get(&[key::ledger(queue)]).await?.pop().flatten() else {
                return Ok(None);
            };
            let ledger = row::decode_ledger(&item)?;
            if ledger.version == known {
                return Ok(None);
            }
            let named: Vec<Key> =
                ledger.referenced_batches().map(|id| key::batch(queue, id)).collect();
            let found: Option<Vec<Item>> = self.table.get(&named).await?.into_iter().collect();
            if let Some(found) = found {
                let batches = found.iter().map(batch::decode_batch).collect::<Result<_, _>>()?;
                return Ok(Some((ledger, batches)));
            }
            // Either the ledger was replaced meanwhile and dropped the batch, or a batch is
            // missing.
            if seen == Some(ledger.version) {
                break;
            }
            seen = Some(ledger.version);
        }
        Err(StoreError::corrupt(format!("the ledger of queue {queue} names a missing batch")))
    }

    async fn batches(&self, queue: &QueueName) -> Result<Vec<(BatchId, u64)>, StoreError> {
        let items = self.whole(key::batches(queue)).await?;
        Ok(items
            .iter()
            .filter_map(|item| Some((key::batch_of(&item.key.s)?, item.number(row::VERSION)?)))
            .collect())
    }

    async fn keys(&self, keys: &[job_store::Key]) -> Result<Vec<StoredKey>, StoreError> {
        let names: Vec<Key> = keys.iter().map(key::name).collect();
        let found = self.table.get(&names).await?;
        let holder = |(key, item): (&job_store::Key, Option<Item>)| {
            item.map(|item| row::holder(&item, key)).transpose()
        };
        Ok(keys.iter().zip(found).map(holder).collect())
    }

    async fn live_job(
        &self,
        job_type: Option<&TypeName>,
        queue: Option<&QueueName>,
    ) -> Result<Option<Result<Job, UnreadableJob>>, StoreError> {
        self.any_live_job(job_type, queue).await
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        self.list_jobs(query).await
    }

    async fn depth(&self, queue: Option<&QueueName>) -> Result<Depths, StoreError> {
        self.kept_counts(queue).await
    }

    async fn keep_counts(&self, until: Timestamp) -> Result<(), StoreError> {
        self.recount(until).await
    }

    async fn items(&self, kind: ItemKind) -> Result<Vec<job_store::Item>, StoreError> {
        let items = self.whole(key::items(kind)).await?;
        let item = |item: &Item| {
            let (version, bytes) = item.number(row::VERSION).zip(item.bytes(row::RECORD))?;
            let name = item.key.s.clone();
            Some(row::item(name, kind, version, bytes))
        };
        Ok(items.iter().filter_map(item).collect())
    }

    async fn items_version(&self) -> Result<u64, StoreError> {
        self.configuration_version().await
    }

    async fn records(&self, queries: &[RecordQuery]) -> Result<Vec<Vec<Record>>, StoreError> {
        let pages = queries.iter().map(|query| self.record_page(query));
        futures_util::future::try_join_all(pages).await
    }

    async fn purge(
        &self,
        kind: RecordKind,
        now: Timestamp,
        keep: u64,
        limit: u32,
    ) -> Result<Purged, StoreError> {
        self.purge_records(kind, now, keep, limit).await
    }

    async fn upkeep(&self, after: Option<&str>) -> Result<Option<String>, StoreError> {
        self.keep_waiting_jobs(after).await
    }
}
