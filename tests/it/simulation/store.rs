//! The ways to the store: every engine has its own, with its own faults, and all lead to one store whose
//! every commit the [`Model`] sees in the order in which it happened.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidegate_core::{
    job::{Job, JobId, Payload, QueueName, Spec, TypeName},
    port::job_store::{
        Atomicity, Committed, CurrentRecord, Depth, DuePage, DueQuery, Item, ItemKind, JobStore,
        Key, ListPage, ListQuery, Purged, Record, RecordKind, RecordQuery, SharedStore,
        StoreCapabilities, StoreError, Txn, Write,
    },
    queue::{GrantBatch, Ledger, ledger::BatchId},
    time::Timestamp,
};
use tidegate_engine::testkit::faults::{Faults, FaultyStore};

use super::{bugs::Bug, model::Model, scheduler::Scheduler};

/// The store itself, watched.
pub struct Watched {
    pub store: SharedStore,
    pub model: Arc<Mutex<Model>>,
    pub scheduler: Arc<Scheduler>,
    /// Whether writes arrive one by one, with time between them.
    pub slow: bool,
    /// How many claims are under way.
    pub claiming: AtomicUsize,
    /// Since when keys point where they do.
    pub keyed: Mutex<HashMap<Key, Timestamp>>,
}

/// Counts something that is under way, for as long as it lives.
struct Under<'a>(&'a AtomicUsize);

impl<'a> Under<'a> {
    fn way(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Under<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a future is worth, without giving up the turn: the store behind answers at once, or on a thread of its own.
pub fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

/// One engine's way to the store.
pub struct Way {
    inner: SharedStore,
    cutting: Option<Arc<FaultyStore>>,
    scheduler: Arc<Scheduler>,
    faults: Mutex<Faults>,
    bug: Option<Bug>,
    flight: Duration,
    model: Arc<Mutex<Model>>,
}

impl Way {
    /// A way to `watched`, without faults as yet. Where that is slow, transactions are cut into single writes.
    pub fn new(watched: &Arc<Watched>, seed: u64, flight: Duration, bug: Option<Bug>) -> Arc<Self> {
        let cutting = watched
            .slow
            .then(|| Arc::new(FaultyStore::new(Arc::clone(watched) as SharedStore, seed)));
        let inner = cutting
            .clone()
            .map_or_else(|| Arc::clone(watched) as SharedStore, |cutting| cutting as SharedStore);
        let (scheduler, model) = (Arc::clone(&watched.scheduler), Arc::clone(&watched.model));
        Arc::new(Self { inner, cutting, scheduler, faults: Mutex::default(), bug, flight, model })
    }

    /// A way to a store that has its own faults.
    #[cfg(feature = "aws")]
    pub fn straight(
        store: SharedStore,
        watched: &Watched,
        flight: Duration,
        bug: Option<Bug>,
    ) -> Arc<Self> {
        let (scheduler, model) = (Arc::clone(&watched.scheduler), Arc::clone(&watched.model));
        Arc::new(Self {
            inner: store,
            cutting: None,
            scheduler,
            faults: Mutex::default(),
            bug,
            flight,
            model,
        })
    }

    /// From now on these faults happen, and this part of the commits stops half way.
    pub fn set_faults(&self, faults: Faults) {
        *self.faults.lock() = faults;
        if let Some(cutting) = &self.cutting {
            cutting.set_faults(Faults { cut: faults.cut, ..Faults::default() });
        }
    }

    async fn read(&self) -> Result<(), StoreError> {
        self.scheduler.step().await;
        let lost = self.faults.lock().reads;
        if self.scheduler.happens(lost) {
            Err(StoreError::unavailable("the read was not answered"))
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl JobStore for Way {
    async fn commit(&self, mut txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        self.scheduler.step().await;
        if let Some(bug) = self.bug {
            bug.spoil(&mut txns, &self.model.lock());
        }
        let faults = *self.faults.lock();
        if self.scheduler.happens(faults.unavailable) {
            return Err(StoreError::unavailable("the commit was not answered"));
        }
        // Skewed clocks see the same stretch of time a little longer: a store promises what is left of it.
        let longest = Duration::from_secs(4);
        let answer = self.scheduler.bounded(longest, self.inner.commit(txns)).await?;
        self.scheduler.step().await;
        if self.scheduler.happens(faults.lose_answer) {
            return Err(StoreError::unavailable("the commit's answer was lost"));
        }
        Ok(answer)
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            atomicity: Atomicity::from_max_in_flight_write(self.flight),
            ..self.inner.capabilities()
        }
    }

    fn assign_id(&self, id: JobId, spec: &Spec, run_at: Timestamp) -> JobId {
        self.inner.assign_id(id, spec, run_at)
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Job>>, StoreError> {
        self.read().await?;
        self.inner.get(ids).await
    }

    async fn bodies(&self, ids: &[JobId]) -> Result<Vec<Option<Payload>>, StoreError> {
        self.read().await?;
        self.inner.bodies(ids).await
    }

    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        self.read().await?;
        let pages = self.inner.due(queries).await;
        self.scheduler.step().await;
        pages
    }

    async fn count_due(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        most: u32,
    ) -> Result<BTreeMap<TypeName, u64>, StoreError> {
        self.read().await?;
        self.inner.count_due(queue, types, until, most).await
    }

    async fn partitions(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        self.read().await?;
        self.inner.partitions(queue, types, after, limit).await
    }

    async fn overdue(
        &self,
        until: Timestamp,
        limit: u32,
    ) -> Result<(Vec<Job>, Option<Timestamp>), StoreError> {
        self.read().await?;
        self.inner.overdue(until, limit).await
    }

    async fn running(
        &self,
        queue: &QueueName,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<Job>, StoreError> {
        self.read().await?;
        self.inner.running(queue, after, limit).await
    }

    async fn ledger(
        &self,
        queue: &QueueName,
    ) -> Result<Option<(Ledger, Vec<GrantBatch>)>, StoreError> {
        self.read().await?;
        let head = self.inner.ledger(queue).await;
        self.scheduler.step().await;
        head
    }

    async fn batches(&self, queue: &QueueName) -> Result<Vec<(BatchId, u64)>, StoreError> {
        self.read().await?;
        self.inner.batches(queue).await
    }

    async fn keys(&self, keys: &[Key]) -> Result<Vec<Option<JobId>>, StoreError> {
        self.read().await?;
        self.inner.keys(keys).await
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        self.read().await?;
        self.inner.list(query).await
    }

    async fn depth(&self) -> Result<Vec<Depth>, StoreError> {
        self.read().await?;
        self.inner.depth().await
    }

    async fn items(&self, kind: ItemKind) -> Result<Vec<Item>, StoreError> {
        self.read().await?;
        self.inner.items(kind).await
    }

    async fn items_version(&self) -> Result<u64, StoreError> {
        self.read().await?;
        self.inner.items_version().await
    }

    async fn records(&self, queries: &[RecordQuery]) -> Result<Vec<Vec<Record>>, StoreError> {
        self.read().await?;
        self.inner.records(queries).await
    }

    async fn purge(
        &self,
        kind: RecordKind,
        now: Timestamp,
        keep: u64,
        limit: u32,
    ) -> Result<Purged, StoreError> {
        self.read().await?;
        self.inner.purge(kind, now, keep, limit).await
    }
}

#[async_trait]
impl JobStore for Watched {
    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let mut answers = Vec::with_capacity(txns.len());
        for txn in txns {
            if self.slow {
                let claims = txn.iter().any(|write| matches!(write, Write::SetJob { job, .. } if job.life.running().is_some()));
                let claiming = claims.then(|| Under::way(&self.claiming));
                self.scheduler.linger().await;
                drop(claiming);
            }
            let mut model = self.model.lock();
            let mut answer = at_once(self.store.commit(vec![txn.clone()]))?;
            let mut keyed = self.keyed.lock();
            match &mut answer[..] {
                [Committed::All] => {
                    model.see(&txn, self.scheduler.now());
                    let set = txn.iter().filter_map(|write| {
                        if let Write::SetKey { key, .. } = write { Some(key.clone()) } else { None }
                    });
                    keyed.extend(set.map(|key| (key, self.scheduler.now())));
                }
                [Committed::Conflict { step, standing: CurrentRecord::Key { since, .. } }] => {
                    if let Write::SetKey { key, .. } = &txn[*step] {
                        *since = keyed.get(key).copied();
                    }
                }
                _ => {}
            }
            answers.extend(answer);
        }
        Ok(answers)
    }

    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }

    fn assign_id(&self, id: JobId, spec: &Spec, run_at: Timestamp) -> JobId {
        self.store.assign_id(id, spec, run_at)
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Job>>, StoreError> {
        at_once(self.store.get(ids))
    }

    async fn bodies(&self, ids: &[JobId]) -> Result<Vec<Option<Payload>>, StoreError> {
        at_once(self.store.bodies(ids))
    }

    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        at_once(self.store.due(queries))
    }

    async fn count_due(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        most: u32,
    ) -> Result<BTreeMap<TypeName, u64>, StoreError> {
        at_once(self.store.count_due(queue, types, until, most))
    }

    async fn partitions(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        at_once(self.store.partitions(queue, types, after, limit))
    }

    async fn overdue(
        &self,
        until: Timestamp,
        limit: u32,
    ) -> Result<(Vec<Job>, Option<Timestamp>), StoreError> {
        at_once(self.store.overdue(until, limit))
    }

    async fn running(
        &self,
        queue: &QueueName,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<Job>, StoreError> {
        at_once(self.store.running(queue, after, limit))
    }

    async fn ledger(
        &self,
        queue: &QueueName,
    ) -> Result<Option<(Ledger, Vec<GrantBatch>)>, StoreError> {
        at_once(self.store.ledger(queue))
    }

    async fn batches(&self, queue: &QueueName) -> Result<Vec<(BatchId, u64)>, StoreError> {
        at_once(self.store.batches(queue))
    }

    async fn keys(&self, keys: &[Key]) -> Result<Vec<Option<JobId>>, StoreError> {
        at_once(self.store.keys(keys))
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        at_once(self.store.list(query))
    }

    async fn depth(&self) -> Result<Vec<Depth>, StoreError> {
        at_once(self.store.depth())
    }

    async fn items(&self, kind: ItemKind) -> Result<Vec<Item>, StoreError> {
        at_once(self.store.items(kind))
    }

    async fn items_version(&self) -> Result<u64, StoreError> {
        at_once(self.store.items_version())
    }

    async fn records(&self, queries: &[RecordQuery]) -> Result<Vec<Vec<Record>>, StoreError> {
        at_once(self.store.records(queries))
    }

    async fn purge(
        &self,
        kind: RecordKind,
        now: Timestamp,
        keep: u64,
        limit: u32,
    ) -> Result<Purged, StoreError> {
        at_once(self.store.purge(kind, now, keep, limit))
    }
}
