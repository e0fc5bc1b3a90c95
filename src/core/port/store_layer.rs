//! Layers of stores: a store that forwards to another one and acts around each call.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;

use super::job_store::{
    Committed, Depths, DuePage, DueQuery, DueScan, Item, ItemKind, JobStore, Key, ListPage,
    ListQuery, OverduePage, PartitionPage, Purged, Record, RecordKind, RecordQuery, ScanPage,
    ScanQuery, StoreCapabilities, StoreError, StoredBody, StoredJob, StoredKey, Txn, UnreadableJob,
    WaitingPage, WakePosition,
};
use crate::{
    job::{Job, JobId, QueueName, Spec, TypeName},
    queue::{GrantBatch, Ledger, ledger::BatchId},
    time::Timestamp,
};

/// A call of a [`JobStore`], as [`StoreLayer::around`] sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is named after its method")]
pub enum Operation {
    Commit,
    Get,
    Bodies,
    Due,
    CountDue,
    ActiveQueues,
    Partitions,
    CountWaiting,
    Overdue,
    Running,
    Ledger,
    Batches,
    Keys,
    LiveJob,
    List,
    Depth,
    KeepCounts,
    Items,
    ItemsVersion,
    Records,
    Purge,
    Upkeep,
}

/// A [`JobStore`] that forwards every call to [`Self::inner`], through [`Self::around`].
///
/// Implement this instead of the port for metrics, faults or checks. A layer overrides `around` to
/// act on every call alike, and the methods below it for the calls that it answers differently. An
/// overridden method does not pass through `around` unless it calls it.
pub trait StoreLayer: Send + Sync {
    /// The store behind this layer.
    fn inner(&self) -> &dyn JobStore;

    /// Runs `call`, the forwarded `operation`. The call does nothing until it is polled.
    fn around<T: Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> impl Future<Output = Result<T, StoreError>> + Send {
        let _ = operation;
        call
    }

    /// See [`JobStore::commit`].
    fn commit(
        &self,
        txns: Vec<Txn>,
    ) -> impl Future<Output = Result<Vec<Committed>, StoreError>> + Send {
        self.around(Operation::Commit, self.inner().commit(txns))
    }

    /// See [`JobStore::due`].
    fn due(
        &self,
        queries: &[DueQuery],
    ) -> impl Future<Output = Result<Vec<DuePage>, StoreError>> + Send {
        async move { self.around(Operation::Due, self.inner().due(queries)).await }
    }

    /// See [`JobStore::partitions`].
    fn partitions(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        after: Option<&str>,
        limit: u32,
        skip: &BTreeSet<String>,
    ) -> impl Future<Output = Result<PartitionPage, StoreError>> + Send {
        async move {
            let call = self.inner().partitions(queue, types, until, after, limit, skip);
            self.around(Operation::Partitions, call).await
        }
    }

    /// See [`JobStore::count_waiting`].
    fn count_waiting(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        after: Option<&str>,
        limit: u32,
        most: u32,
    ) -> impl Future<Output = Result<WaitingPage, StoreError>> + Send {
        async move {
            let call = self.inner().count_waiting(queue, types, until, after, limit, most);
            self.around(Operation::CountWaiting, call).await
        }
    }

    /// See [`JobStore::items`].
    fn items(&self, kind: ItemKind) -> impl Future<Output = Result<Vec<Item>, StoreError>> + Send {
        async move { self.around(Operation::Items, self.inner().items(kind)).await }
    }

    /// See [`JobStore::purge`].
    fn purge(
        &self,
        kind: RecordKind,
        now: Timestamp,
        keep: u64,
        limit: u32,
    ) -> impl Future<Output = Result<Purged, StoreError>> + Send {
        self.around(Operation::Purge, self.inner().purge(kind, now, keep, limit))
    }

    /// See [`JobStore::capabilities`].
    fn capabilities(&self) -> StoreCapabilities {
        self.inner().capabilities()
    }

    /// See [`JobStore::assign_id`].
    fn assign_id(&self, id: JobId, spec: &Spec, run_at: Timestamp) -> JobId {
        self.inner().assign_id(id, spec, run_at)
    }
}

/// A scan of the inner store, each page of it through [`StoreLayer::around`].
struct LayeredScan<'a, L> {
    layer: &'a L,
    inner: Box<dyn DueScan + 'a>,
}

#[async_trait]
impl<L: StoreLayer> DueScan for LayeredScan<'_, L> {
    async fn next(&mut self) -> Result<Option<ScanPage>, StoreError> {
        self.layer.around(Operation::Due, self.inner.next()).await
    }

    async fn leave(self: Box<Self>) {
        let Self { layer, inner } = *self;
        let left = async {
            inner.leave().await;
            Ok(())
        };
        // There is nothing to repeat: a later scan reads more.
        let _ = layer.around(Operation::Due, left).await;
    }
}

#[async_trait]
impl<L: StoreLayer> JobStore for L {
    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        StoreLayer::commit(self, txns).await
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreLayer::capabilities(self)
    }

    fn assign_id(&self, id: JobId, spec: &Spec, run_at: Timestamp) -> JobId {
        StoreLayer::assign_id(self, id, spec, run_at)
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<StoredJob>, StoreError> {
        self.around(Operation::Get, self.inner().get(ids)).await
    }

    async fn bodies(&self, ids: &[JobId]) -> Result<Vec<StoredBody>, StoreError> {
        self.around(Operation::Bodies, self.inner().bodies(ids)).await
    }

    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        StoreLayer::due(self, queries).await
    }

    fn scan_due(&self, query: ScanQuery) -> Box<dyn DueScan + '_> {
        Box::new(LayeredScan { layer: self, inner: self.inner().scan_due(query) })
    }

    async fn count_due(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        most: u32,
    ) -> Result<BTreeMap<TypeName, u64>, StoreError> {
        let call = self.inner().count_due(queue, types, until, most);
        self.around(Operation::CountDue, call).await
    }

    async fn active_queues(&self, until: Timestamp) -> Result<BTreeSet<QueueName>, StoreError> {
        self.around(Operation::ActiveQueues, self.inner().active_queues(until)).await
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
        StoreLayer::partitions(self, queue, types, until, after, limit, skip).await
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
        StoreLayer::count_waiting(self, queue, types, until, after, limit, most).await
    }

    async fn overdue(
        &self,
        until: Timestamp,
        after: Option<WakePosition>,
        limit: u32,
    ) -> Result<OverduePage, StoreError> {
        self.around(Operation::Overdue, self.inner().overdue(until, after, limit)).await
    }

    async fn running(
        &self,
        queue: &QueueName,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<Result<Job, UnreadableJob>>, StoreError> {
        self.around(Operation::Running, self.inner().running(queue, after, limit)).await
    }

    async fn newer_ledger(
        &self,
        queue: &QueueName,
        known: u64,
    ) -> Result<Option<(Ledger, Vec<GrantBatch>)>, StoreError> {
        self.around(Operation::Ledger, self.inner().newer_ledger(queue, known)).await
    }

    async fn batches(&self, queue: &QueueName) -> Result<Vec<(BatchId, u64)>, StoreError> {
        self.around(Operation::Batches, self.inner().batches(queue)).await
    }

    async fn keys(&self, keys: &[Key]) -> Result<Vec<StoredKey>, StoreError> {
        self.around(Operation::Keys, self.inner().keys(keys)).await
    }

    async fn live_job(
        &self,
        job_type: Option<&TypeName>,
        queue: Option<&QueueName>,
    ) -> Result<Option<Result<Job, UnreadableJob>>, StoreError> {
        self.around(Operation::LiveJob, self.inner().live_job(job_type, queue)).await
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        self.around(Operation::List, self.inner().list(query)).await
    }

    async fn depth(&self, queue: Option<&QueueName>) -> Result<Depths, StoreError> {
        self.around(Operation::Depth, self.inner().depth(queue)).await
    }

    async fn keep_counts(&self, until: Timestamp) -> Result<(), StoreError> {
        self.around(Operation::KeepCounts, self.inner().keep_counts(until)).await
    }

    async fn items(&self, kind: ItemKind) -> Result<Vec<Item>, StoreError> {
        StoreLayer::items(self, kind).await
    }

    async fn items_version(&self) -> Result<u64, StoreError> {
        self.around(Operation::ItemsVersion, self.inner().items_version()).await
    }

    async fn records(&self, queries: &[RecordQuery]) -> Result<Vec<Vec<Record>>, StoreError> {
        self.around(Operation::Records, self.inner().records(queries)).await
    }

    async fn purge(
        &self,
        kind: RecordKind,
        now: Timestamp,
        keep: u64,
        limit: u32,
    ) -> Result<Purged, StoreError> {
        StoreLayer::purge(self, kind, now, keep, limit).await
    }

    async fn upkeep(&self, after: Option<&str>) -> Result<Option<String>, StoreError> {
        self.around(Operation::Upkeep, self.inner().upkeep(after)).await
    }
}
