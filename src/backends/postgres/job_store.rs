//! The calls of the port.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::try_join_all;

use super::{MAX_DRAWN, PostgresStore, partitions, step::encode_all};
use tidegate_core::{
    job::{Job, JobId, QueueName, Spec, TypeName},
    port::job_store::{
        Atomicity, Committed, Depths, DuePage, DueQuery, DueScan, Item, ItemKind, JobStore, Key,
        ListPage, ListQuery, OrderedScan, OverduePage, PartitionPage, Purged, Record, RecordKind,
        RecordQuery, ScanQuery, StoreCapabilities, StoreError, StoredBody, StoredJob, StoredKey,
        Txn, UnreadableJob, WaitingPage, WakePosition, flatten,
    },
    queue::{GrantBatch, Ledger, ledger::BatchId},
    time::Timestamp,
};

/// Most due jobs that a count covers. It counts entries of an index, and reads no job.
const MAX_COUNTED_DUE: u32 = 100_000;
/// Index entries that one pass over the waiting jobs of a queue counts.
const MAX_COUNTED_WAITING: u32 = 1_000_000;
/// How long the next pass waits for each of them: many times as long as reading one takes.
const COUNT_PAUSE: Duration = Duration::from_micros(20);

#[async_trait]
impl JobStore for PostgresStore {
    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let (txns, steps): (Vec<Txn>, Vec<Vec<usize>>) = txns.into_iter().map(flatten).unzip();
        let txns = encode_all(txns, &self.names, &self.readers).await?;
        let answers = self.writer.commit(txns).await?;
        Ok(answers.into_iter().zip(steps).map(|(answer, steps)| answer.regrouped(&steps)).collect())
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            shared: true,
            atomicity: Atomicity::Atomic,
            expires_natively: true,
            max_counted_due: MAX_COUNTED_DUE,
            waiting_pass: (MAX_COUNTED_WAITING, COUNT_PAUSE),
            lists_by_creation: true,
        }
    }

    fn assign_id(&self, id: JobId, _: &Spec, _: Timestamp) -> JobId {
        let mut drawn = self.shared.drawn.lock();
        if drawn.len() >= MAX_DRAWN {
            drawn.clear();
        }
        drawn.insert(id.clone());
        id
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<StoredJob>, StoreError> {
        self.jobs_by_id(ids).await
    }

    async fn bodies(&self, ids: &[JobId]) -> Result<Vec<StoredBody>, StoreError> {
        self.bodies_by_id(ids).await
    }

    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        self.due_pages(queries).await
    }

    fn scan_due(&self, query: ScanQuery) -> Box<dyn DueScan + '_> {
        Box::new(OrderedScan::new(self, query))
    }

    async fn count_due(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        most: u32,
    ) -> Result<BTreeMap<TypeName, u64>, StoreError> {
        self.due_counts(queue, types, until, most).await
    }

    async fn active_queues(&self, _: Timestamp) -> Result<BTreeSet<QueueName>, StoreError> {
        self.queues_with_jobs().await
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
        self.due_partitions(queue, types, (until, after, limit), skip).await
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
        self.waiting_counts(queue, types, (until, after, limit), most).await
    }

    async fn overdue(
        &self,
        until: Timestamp,
        after: Option<WakePosition>,
        limit: u32,
    ) -> Result<OverduePage, StoreError> {
        self.overdue_jobs(until, after, limit).await
    }

    async fn running(
        &self,
        queue: &QueueName,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<Result<Job, UnreadableJob>>, StoreError> {
        self.running_jobs(queue, after, limit).await
    }

    async fn newer_ledger(
        &self,
        queue: &QueueName,
        known: u64,
    ) -> Result<Option<(Ledger, Vec<GrantBatch>)>, StoreError> {
        self.ledger_unless(queue, known).await
    }

    async fn batches(&self, queue: &QueueName) -> Result<Vec<(BatchId, u64)>, StoreError> {
        self.batches_of(queue).await
    }

    async fn keys(&self, keys: &[Key]) -> Result<Vec<StoredKey>, StoreError> {
        self.jobs_by_key(keys).await
    }

    async fn live_job(
        &self,
        job_type: Option<&TypeName>,
        queue: Option<&QueueName>,
    ) -> Result<Option<Result<Job, UnreadableJob>>, StoreError> {
        self.any_live_job(job_type, queue).await
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        self.list_page(query).await
    }

    async fn depth(&self, queue: Option<&QueueName>) -> Result<Depths, StoreError> {
        self.depths(queue).await
    }

    async fn keep_counts(&self, _: Timestamp) -> Result<(), StoreError> {
        self.fold_counts().await
    }

    async fn items(&self, kind: ItemKind) -> Result<Vec<Item>, StoreError> {
        self.items_of(kind).await
    }

    async fn items_version(&self) -> Result<u64, StoreError> {
        self.shared.items_version.get(&self.readers).await
    }

    async fn records(&self, queries: &[RecordQuery]) -> Result<Vec<Vec<Record>>, StoreError> {
        try_join_all(queries.iter().map(|query| self.record_page(query))).await
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
        if after.is_none() {
            self.fold_counts_in_turn().await;
        }
        partitions::clean(&self.readers, after, self.clock.now()).await
    }
}
