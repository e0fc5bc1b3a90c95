//! The table and the store of one environment, which count what it reads and what it computes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use tidegate_backends::{
    dynamodb::{
        DynamoStore, Key,
        memory::MemoryTable,
        table::{Change, Exchange, Item, Page, PageQuery, Table},
    },
    testkit::limits::LimitedTable,
};
use tidegate_core::{
    job::{Job, JobId, QueueName, Spec, TypeName},
    port::{
        JobStore, StoreCapabilities, StoreError,
        job_store::{
            self, Committed, Depths, DuePage, DueQuery, DueScan, ItemKind, ListPage, ListQuery,
            OverduePage, PartitionPage, Purged, Record, RecordKind, RecordQuery, ScanPage,
            ScanQuery, StoredBody, StoredJob, StoredKey, Txn, UnreadableJob, WaitingPage,
            WakePosition,
        },
    },
    queue::{GrantBatch, Ledger, ledger::BatchId},
    time::Timestamp,
};

use super::memory::Gauge;
use crate::serverless::time::Virtual;

/// Microseconds of a whole processor for one item that is sent or received.
const ITEM_MICROS: f64 = 15.0;

/// The table of all environments.
pub type SharedTable = Arc<LimitedTable<MemoryTable>>;

/// The table without its limits, to prepare a scenario.
pub struct Unlimited(pub SharedTable);

/// The table, as one environment uses it.
pub struct EnvironmentTable {
    pub table: SharedTable,
    pub gauge: Arc<Gauge>,
    pub time: Arc<Virtual>,
}

impl EnvironmentTable {
    /// Counts items that were read: each is an item, and a decoded job.
    async fn received<'i>(&self, items: impl Iterator<Item = &'i Item>) {
        let mut count = 0;
        for item in items {
            let is_row = item.key.p.starts_with("B#") && !item.key.s.contains('!');
            self.gauge.read(item.size() + if is_row { size_of::<Job>() } else { 200 });
            count += 1;
        }
        self.gauge.compute(&self.time, f64::from(count) * ITEM_MICROS).await;
    }
}

#[async_trait]
impl Table for EnvironmentTable {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError> {
        let found = self.table.get(keys).await?;
        self.received(found.iter().flatten()).await;
        Ok(found)
    }

    async fn query(&self, query: &PageQuery) -> Result<Page, StoreError> {
        let page = self.table.query(query).await?;
        self.received(page.items.iter()).await;
        Ok(page)
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Page, StoreError> {
        let page = self.table.scan(prefix, after, limit).await?;
        self.received(page.items.iter()).await;
        Ok(page)
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        self.gauge.compute(&self.time, changes.len() as f64 * ITEM_MICROS).await;
        self.table.write(changes).await
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        self.gauge.compute(&self.time, changes.len() as f64 * ITEM_MICROS).await;
        self.table.together(changes).await
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Option<Item>, StoreError> {
        self.gauge.compute(&self.time, ITEM_MICROS).await;
        self.table.exchange(exchange).await
    }
}

#[async_trait]
impl Table for Unlimited {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError> {
        self.0.unlimited().get(keys).await
    }

    async fn query(&self, query: &PageQuery) -> Result<Page, StoreError> {
        self.0.unlimited().query(query).await
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Page, StoreError> {
        self.0.unlimited().scan(prefix, after, limit).await
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        self.0.unlimited().write(changes).await
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        self.0.unlimited().together(changes).await
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Option<Item>, StoreError> {
        self.0.unlimited().exchange(exchange).await
    }
}

/// The store of an environment: what a call reads is live until the call ends.
pub struct CountedStore {
    pub store: DynamoStore,
    pub gauge: Arc<Gauge>,
}

/// A scan whose pages are live while they are read.
struct CountedScan<'s> {
    scan: Box<dyn DueScan + 's>,
    gauge: &'s Gauge,
}

#[async_trait]
impl DueScan for CountedScan<'_> {
    async fn next(&mut self) -> Result<Option<ScanPage>, StoreError> {
        self.gauge.call(self.scan.next()).await
    }

    async fn leave(self: Box<Self>) {
        self.scan.leave().await;
    }
}

#[async_trait]
impl JobStore for CountedStore {
    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        self.gauge.call(self.store.commit(txns)).await
    }

    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }

    fn assign_id(&self, id: JobId, spec: &Spec, run_at: Timestamp) -> JobId {
        self.store.assign_id(id, spec, run_at)
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<StoredJob>, StoreError> {
        self.gauge.call(self.store.get(ids)).await
    }

    async fn bodies(&self, ids: &[JobId]) -> Result<Vec<StoredBody>, StoreError> {
        self.gauge.call(self.store.bodies(ids)).await
    }

    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        self.gauge.call(self.store.due(queries)).await
    }

    fn scan_due(&self, query: ScanQuery) -> Box<dyn DueScan + '_> {
        Box::new(CountedScan { scan: self.store.scan_due(query), gauge: &self.gauge })
    }

    async fn count_due(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        most: u32,
    ) -> Result<BTreeMap<TypeName, u64>, StoreError> {
        self.gauge.call(self.store.count_due(queue, types, until, most)).await
    }

    async fn active_queues(&self, until: Timestamp) -> Result<BTreeSet<QueueName>, StoreError> {
        self.gauge.call(self.store.active_queues(until)).await
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
        self.gauge.call(self.store.partitions(queue, types, until, after, limit, skip)).await
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
        let call = self.store.count_waiting(queue, types, until, after, limit, most);
        self.gauge.call(call).await
    }

    async fn overdue(
        &self,
        until: Timestamp,
        after: Option<WakePosition>,
        limit: u32,
    ) -> Result<OverduePage, StoreError> {
        self.gauge.call(self.store.overdue(until, after, limit)).await
    }

    async fn running(
        &self,
        queue: &QueueName,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<Result<Job, UnreadableJob>>, StoreError> {
        self.gauge.call(self.store.running(queue, after, limit)).await
    }

    async fn newer_ledger(
        &self,
        queue: &QueueName,
        known: u64,
    ) -> Result<Option<(Ledger, Vec<GrantBatch>)>, StoreError> {
        self.gauge.call(self.store.newer_ledger(queue, known)).await
    }

    async fn batches(&self, queue: &QueueName) -> Result<Vec<(BatchId, u64)>, StoreError> {
        self.gauge.call(self.store.batches(queue)).await
    }

    async fn keys(&self, keys: &[job_store::Key]) -> Result<Vec<StoredKey>, StoreError> {
        self.gauge.call(self.store.keys(keys)).await
    }

    async fn live_job(
        &self,
        job_type: Option<&TypeName>,
        queue: Option<&QueueName>,
    ) -> Result<Option<Result<Job, UnreadableJob>>, StoreError> {
        self.gauge.call(self.store.live_job(job_type, queue)).await
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        self.gauge.call(self.store.list(query)).await
    }

    async fn depth(&self, queue: Option<&QueueName>) -> Result<Depths, StoreError> {
        self.gauge.call(self.store.depth(queue)).await
    }

    async fn keep_counts(&self, until: Timestamp) -> Result<(), StoreError> {
        self.gauge.call(self.store.keep_counts(until)).await
    }

    async fn items(&self, kind: ItemKind) -> Result<Vec<job_store::Item>, StoreError> {
        self.gauge.call(self.store.items(kind)).await
    }

    async fn items_version(&self) -> Result<u64, StoreError> {
        self.gauge.call(self.store.items_version()).await
    }

    async fn records(&self, queries: &[RecordQuery]) -> Result<Vec<Vec<Record>>, StoreError> {
        self.gauge.call(self.store.records(queries)).await
    }

    async fn purge(
        &self,
        kind: RecordKind,
        now: Timestamp,
        keep: u64,
        limit: u32,
    ) -> Result<Purged, StoreError> {
        self.gauge.call(self.store.purge(kind, now, keep, limit)).await
    }

    async fn upkeep(&self, after: Option<&str>) -> Result<Option<String>, StoreError> {
        self.gauge.call(self.store.upkeep(after)).await
    }
}
