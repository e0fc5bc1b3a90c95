//! The job store in memory: the reference with which the other stores are compared.
//!
//! It implements the port in the simplest way, not the fastest: one lock, jobs in a map, and an
//! ordered set for each query. Transactions are atomic: every condition is checked before the first
//! write.

mod clock;
mod entropy;
mod movable;
mod state;
mod work_queue;

pub use clock::FakeClock;
pub use entropy::SeededEntropy;
pub use work_queue::MemoryWorkQueue;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;

use state::Records;
use tidegate_core::{
    job::{Job, JobId, QueueName, Spec, TypeName},
    port::{
        Inbox, InboxClosing, InboxDepth, InboxPage, InboxRequest, InboxRules,
        job_store::{
            Atomicity, Committed, Depth, Depths, DuePage, DueQuery, DueScan, Item, ItemKind,
            JobStore, Key, ListPage, ListQuery, MAX_UNREADABLE, OrderedScan, OverduePage,
            PartitionPage, Purged, Record, RecordKind, RecordQuery, ScanQuery, StateFilter,
            StoreCapabilities, StoreError, StoredBody, StoredJob, StoredKey, Txn, UnreadableJob,
            WaitingPage, WakePosition, flatten, is_stored_separately,
        },
        listing::Cursor,
    },
    queue::{GrantBatch, Ledger, ledger::BatchId, waiting::WaitingCount},
    time::Timestamp,
};

/// A job store whose records exist only in this value.
#[derive(Debug, Default)]
pub struct MemoryStore {
    records: Mutex<Records>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of the next request of the inbox, as a transaction of an application draws it.
    pub fn draw_request_number(&self) -> u64 {
        let mut records = self.records.lock();
        records.inbox_newest += 1;
        records.inbox_newest
    }

    /// Puts a request into the inbox, as the commit of such a transaction does.
    pub fn add_request(&self, number: u64, request: InboxRequest) {
        self.records.lock().inbox.insert(number, request);
    }

    /// Makes a job unreadable, as damage of its record would, for tests. A second call restores it.
    pub fn damage_job(&self, id: &JobId) {
        let damaged = &mut self.records.lock().damaged;
        if !damaged.remove(id) {
            damaged.insert(id.clone());
        }
    }
}

/// What is left of a delay is all of it, and requests have no age: the inbox has no clock. It has no
/// transactions of others either, so nothing keeps it from being closed.
#[async_trait]
impl Inbox for MemoryStore {
    async fn set_rules(&self, _: InboxRules) -> Result<(), StoreError> {
        Ok(())
    }

    async fn close(&self) -> Result<InboxClosing, StoreError> {
        Ok(InboxClosing::Closed)
    }

    async fn requests(&self, after: u64, until: u64, limit: u32) -> Result<InboxPage, StoreError> {
        let records = self.records.lock();
        let within =
            records.inbox.iter().filter(|(number, _)| (after + 1..=until).contains(number));
        let (numbers, requests): (Vec<u64>, Vec<InboxRequest>) =
            within.take(limit as usize).map(|(number, request)| (*number, request.clone())).unzip();
        Ok(InboxPage { requests, last: numbers.last().copied() })
    }

    async fn depth(&self, limit: u32) -> Result<InboxDepth, StoreError> {
        let requests = (self.records.lock().inbox.len() as u64).min(limit.into());
        Ok(InboxDepth { requests, oldest_age: Duration::ZERO })
    }

    async fn newest(&self) -> Result<u64, StoreError> {
        Ok(self.records.lock().inbox_newest)
    }

    async fn request(&self, id: &JobId) -> Result<Option<InboxRequest>, StoreError> {
        Ok(self.records.lock().inbox.values().find(|request| request.id == *id).cloned())
    }
}

#[async_trait]
impl JobStore for MemoryStore {
    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let mut records = self.records.lock();
        let whole = |txn| {
            let (writes, steps) = flatten(txn);
            records.commit(writes).regrouped(&steps)
        };
        Ok(txns.into_iter().map(whole).collect())
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            atomicity: Atomicity::Atomic,
            shared: false,
            expires_natively: false,
            max_counted_due: 100_000,
            waiting_pass: (1_000_000, Duration::ZERO),
            lists_by_creation: true,
        }
    }

    fn assign_id(&self, id: JobId, _: &Spec, _: Timestamp) -> JobId {
        id
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<StoredJob>, StoreError> {
        let records = self.records.lock();
        Ok(ids.iter().map(|id| records.stored(id)).collect())
    }

    async fn bodies(&self, ids: &[JobId]) -> Result<Vec<StoredBody>, StoreError> {
        let records = self.records.lock();
        let body = |id| {
            records
                .jobs
                .get(id)
                .filter(|job| is_stored_separately(&job.data))
                .and_then(|job| job.data.inline().cloned())
        };
        Ok(ids.iter().map(|id| Ok(body(id))).collect())
    }

    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        let records = self.records.lock();
        Ok(queries.iter().map(|query| records.due(query)).collect())
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
        let records = self.records.lock();
        let is_counted = |job: &&Job| {
            types.contains(&job.spec.job_type) && job.life.run_at().is_some_and(|at| at <= until)
        };
        let mut counts = BTreeMap::new();
        for job in records.scheduled(queue).filter(is_counted).take(most as usize) {
            *counts.entry(job.spec.job_type.clone()).or_default() += 1;
        }
        Ok(counts)
    }

    async fn active_queues(&self, until: Timestamp) -> Result<BTreeSet<QueueName>, StoreError> {
        let records = self.records.lock();
        let has_due = |queue: &&QueueName| {
            records.scheduled(queue).next().is_some_and(|job| job.life.run_at() <= Some(until))
        };
        let running = records.running.iter().filter(|(_, ids)| !ids.is_empty());
        let due = records.queues_with_scheduled().filter(has_due);
        Ok(running.map(|(queue, _)| queue).chain(due).cloned().collect())
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
        let records = self.records.lock();
        let mut first: BTreeMap<&str, Timestamp> = BTreeMap::new();
        let jobs = records.scheduled(queue).filter(|job| types.contains(&job.spec.job_type));
        for (name, at) in
            jobs.filter_map(|job| Some((job.spec.partition.as_str(), job.life.run_at()?)))
        {
            if after.is_none_or(|after| after < name) && !skip.contains(name) {
                let first = first.entry(name).or_insert(at);
                *first = at.min(*first);
            }
        }
        Ok(PartitionPage::of(first, until, limit as usize))
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
        let records = self.records.lock();
        let is_counted = |job: &&Job| {
            let partition = job.spec.partition.as_str();
            types.contains(&job.spec.job_type)
                && !job.spec.critical
                && job.life.run_at().is_some_and(|at| at <= until)
                && after.is_none_or(|after| after < partition)
        };
        let mut due: BTreeMap<&str, Vec<&Job>> = BTreeMap::new();
        for job in records.scheduled(queue).filter(is_counted) {
            due.entry(&job.spec.partition).or_default().push(job);
        }
        let has_more = due.len() > limit as usize;
        let mut page = WaitingPage::default();
        for (name, jobs) in due.into_iter().take(limit as usize) {
            let counted = jobs.iter().take(most as usize).copied();
            let Some(count) = WaitingCount::of(counted) else { continue };
            let at_least = jobs.len() > most as usize;
            page.read += u64::from(count.jobs);
            page.counts.push((name.to_owned(), WaitingCount { at_least, ..count }));
        }
        page.next = page.counts.last().filter(|_| has_more).map(|(name, _)| name.clone());
        Ok(page)
    }

    async fn overdue(
        &self,
        until: Timestamp,
        _: Option<WakePosition>,
        limit: u32,
    ) -> Result<OverduePage, StoreError> {
        let records = self.records.lock();
        let due = records.wakes.iter().take_while(|(at, _)| *at <= until);
        let due = due.filter_map(|(_, id)| records.readable(&records.jobs[id]).ok());
        let jobs = due.take(limit as usize).collect();
        let next_at = records.wakes.iter().map(|(at, _)| *at).find(|at| *at > until);
        Ok(OverduePage { jobs, next: None, next_at })
    }

    async fn running(
        &self,
        queue: &QueueName,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<Result<Job, UnreadableJob>>, StoreError> {
        let records = self.records.lock();
        let Some(ids) = records.running.get(queue) else {
            return Ok(Vec::new());
        };
        let ids =
            ids.iter().filter(|id| after.is_none_or(|after| after < *id)).take(limit as usize);
        Ok(ids.map(|id| records.readable(&records.jobs[id])).collect())
    }

    async fn newer_ledger(
        &self,
        queue: &QueueName,
        known: u64,
    ) -> Result<Option<(Ledger, Vec<GrantBatch>)>, StoreError> {
        let records = self.records.lock();
        let ledger = records.ledgers.get(queue).filter(|ledger| ledger.version != known);
        let Some(ledger) = ledger else {
            return Ok(None);
        };
        let named =
            ledger.referenced_batches().filter_map(|id| records.batches.get(&(queue.clone(), id)));
        Ok(Some((ledger.clone(), named.cloned().collect())))
    }

    async fn batches(&self, queue: &QueueName) -> Result<Vec<(BatchId, u64)>, StoreError> {
        let records = self.records.lock();
        let all =
            records.batches.range((queue.clone(), BatchId(0))..=(queue.clone(), BatchId(u64::MAX)));
        Ok(all.map(|((_, id), batch)| (*id, batch.ledger_version)).collect())
    }

    async fn keys(&self, keys: &[Key]) -> Result<Vec<StoredKey>, StoreError> {
        let records = self.records.lock();
        Ok(keys.iter().map(|key| Ok(records.keys.get(key).cloned())).collect())
    }

    async fn live_job(
        &self,
        job_type: Option<&TypeName>,
        queue: Option<&QueueName>,
    ) -> Result<Option<Result<Job, UnreadableJob>>, StoreError> {
        let records = self.records.lock();
        let live = records.jobs.values().find(|job| {
            job.life.ended().is_none()
                && job_type.is_none_or(|name| *name == job.spec.job_type)
                && queue.is_none_or(|name| *name == job.spec.queue)
        });
        Ok(live.map(|job| records.readable(job)))
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        let after: Option<Cursor> = match &query.cursor {
            None => None,
            Some(text) => match text.parse() {
                Ok(cursor) => Some(cursor),
                Err(_) => return Ok(ListPage::default()),
            },
        };
        let records = self.records.lock();
        let (mut found, mut unreadable) = (Vec::new(), Vec::new());
        for job in records.jobs.values().filter(|job| query.asks_for(job)) {
            match records.readable(job) {
                Ok(job) => found.push((list_position(&job), job)),
                Err(job) => unreadable.push(job),
            }
        }
        unreadable.truncate(MAX_UNREADABLE);
        found.retain(|(at, _)| after.as_ref().is_none_or(|after| at < after));
        found.sort_by(|(a, _), (b, _)| b.cmp(a));
        let more = found.len() > query.limit as usize;
        found.truncate(query.limit as usize);
        let next_cursor = found.last().filter(|_| more).map(|(at, _)| at.to_string());
        Ok(ListPage {
            jobs: found.into_iter().map(|(_, job)| job).collect(),
            unreadable,
            next_cursor,
        })
    }

    async fn depth(&self, queue: Option<&QueueName>) -> Result<Depths, StoreError> {
        let records = self.records.lock();
        let mut counts = BTreeMap::<_, u64>::new();
        let is_of = |job: &&Job| queue.is_none_or(|name| *name == job.spec.queue);
        for job in records.jobs.values().filter(is_of) {
            let group = (
                job.spec.queue.clone(),
                job.spec.job_type.clone(),
                StateFilter::from(&job.life.state),
            );
            *counts.entry(group).or_default() += 1;
        }
        let depth =
            |((queue, job_type, state), jobs)| Depth { queue, job_type, state, jobs, phases: None };
        Ok(Depths { counts: counts.into_iter().map(depth).collect(), kept: None })
    }

    async fn keep_counts(&self, _: Timestamp) -> Result<(), StoreError> {
        Ok(())
    }

    async fn items(&self, kind: ItemKind) -> Result<Vec<Item>, StoreError> {
        let records = self.records.lock();
        Ok(records
            .items
            .iter()
            .filter(|((of, _), _)| *of == kind)
            .map(|(_, item)| item.clone())
            .collect())
    }

    async fn items_version(&self) -> Result<u64, StoreError> {
        Ok(self.records.lock().items_version)
    }

    async fn records(&self, queries: &[RecordQuery]) -> Result<Vec<Vec<Record>>, StoreError> {
        let records = self.records.lock();
        let page = |query: &RecordQuery| {
            let start = query
                .after
                .as_ref()
                .filter(|after| **after >= query.prefix)
                .map_or(Bound::Included(&query.prefix), Bound::Excluded);
            let named = records
                .kept
                .range((start.map(|name| (query.kind, name.clone())), Bound::Unbounded))
                .map(|(_, record)| record);
            let matching = named.take_while(|record| {
                record.kind == query.kind && record.name.starts_with(&query.prefix)
            });
            matching.take(query.limit as usize).cloned().collect()
        };
        Ok(queries.iter().map(page).collect())
    }

    async fn purge(
        &self,
        kind: RecordKind,
        now: Timestamp,
        keep: u64,
        limit: u32,
    ) -> Result<Purged, StoreError> {
        Ok(self.records.lock().purge(kind, now, keep, limit))
    }

    async fn upkeep(&self, _: Option<&str>) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}

/// The position of `job` in a list. Jobs created at the same instant are ordered by id, descending.
fn list_position(job: &Job) -> Cursor {
    Cursor { created_at: job.spec.created_at, tie: job.id.to_string() }
}
