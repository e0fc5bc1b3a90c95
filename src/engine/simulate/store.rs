//! The store of a simulation: the memory store with an index over its due jobs. It reports every
//! committed job to the [`Recording`].
//!
//! The memory store scans every scheduled job for each page of candidates. With a hundred thousand
//! waiting jobs, a simulation would do little else. This store keeps due jobs in their queue's
//! order.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
};

use parking_lot::Mutex;

use super::record::Recording;
use crate::memory::MemoryStore;
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName},
    port::{
        Clock, Committed, JobStore, StoreError, StoreLayer, Txn, Write,
        job_store::{DuePage, DueQuery, PartitionPage, WaitingPage, flatten},
    },
    queue::{
        order::{self, Order, Position},
        waiting::WaitingCount,
    },
    time::Timestamp,
};

/// Jobs of each partition and type whose weights and due times are read to count what waits.
const WAITING_SAMPLE: usize = 100;

/// The store.
pub(super) struct SimulationStore {
    memory: MemoryStore,
    clock: Arc<dyn Clock>,
    /// The simulated queue, the only one that is indexed.
    queue: QueueName,
    index: Mutex<Index>,
    record: Arc<Mutex<Recording>>,
}

/// The scheduled jobs of the queue.
struct Index {
    order: Order,
    /// Those that are not critical, and those that are, by partition and type.
    groups: [BTreeMap<(String, TypeName), DueGroup>; 2],
    /// The location of each job in `groups`.
    locations: HashMap<JobId, DueLocation>,
}

/// The jobs of one partition and type.
#[derive(Default)]
struct DueGroup {
    /// Those that were due at the last query, in the queue's order.
    due: BTreeSet<order::OrderKey>,
    /// The others, by due time.
    later: BTreeSet<(Timestamp, JobId)>,
}

struct DueLocation {
    critical: bool,
    group: (String, TypeName),
    priority: i32,
    run_at: Timestamp,
}

impl Index {
    fn remove(&mut self, id: &JobId) {
        let Some(location) = self.locations.remove(id) else {
            return;
        };
        let groups = &mut self.groups[usize::from(location.critical)];
        let group = groups.get_mut(&location.group).expect("a location names a partition");
        if !group.later.remove(&(location.run_at, id.clone())) {
            group.due.remove(&self.order.key(location.priority, location.run_at, id));
        }
        if group.later.is_empty() && group.due.is_empty() {
            groups.remove(&location.group);
        }
    }

    fn add(&mut self, job: &Job, run_at: Timestamp) {
        let spec = &job.spec;
        let group = (spec.partition.clone(), spec.job_type.clone());
        self.groups[usize::from(spec.critical)]
            .entry(group.clone())
            .or_default()
            .later
            .insert((run_at, job.id.clone()));
        let location =
            DueLocation { critical: spec.critical, group, priority: spec.priority, run_at };
        self.locations.insert(job.id.clone(), location);
    }

    /// The ids that answer `query`, whether there are more, and when the next one is due.
    fn due(&mut self, query: &DueQuery) -> (Vec<JobId>, bool, Option<Timestamp>) {
        let Self { order, groups, locations } = self;
        let groups = &mut groups[usize::from(query.critical)];
        let queried: Vec<&mut DueGroup> = groups
            .iter_mut()
            .filter(|((partition, job_type), _)| {
                query.partition.as_ref().is_none_or(|name| name == partition)
                    && query.types.contains(job_type)
            })
            .map(|(_, group)| group)
            .collect();
        let after =
            query.after.as_ref().map(|last| order.key(last.priority, last.run_at, &last.id));
        let most = query.limit as usize;
        let mut keys: Vec<&order::OrderKey> = Vec::new();
        let mut next: Option<Timestamp> = None;
        for group in queried {
            group.move_due(query.until, *order, locations);
            next = next.into_iter().chain(group.later.first().map(|(at, _)| *at)).min();
            match &after {
                Some(after) => keys.extend(
                    group.due.range((Bound::Excluded(after), Bound::Unbounded)).take(most + 1),
                ),
                None => keys.extend(group.due.iter().take(most + 1)),
            }
        }
        keys.sort_unstable();
        let more = keys.len() > most;
        keys.truncate(most);
        (keys.into_iter().map(|(.., id)| id.clone()).collect(), more, next)
    }

    /// The partitions with jobs of `types` that are due at `until`, in their order.
    fn partitions(
        &self,
        types: &[TypeName],
        until: Timestamp,
        after: Option<&str>,
        limit: usize,
    ) -> PartitionPage {
        let mut first: BTreeMap<&str, Timestamp> = BTreeMap::new();
        for ((partition, job_type), group) in self.groups.iter().flatten() {
            let partition = partition.as_str();
            if types.contains(job_type) && after.is_none_or(|after| after < partition) {
                let later = group.later.first().map(|(at, _)| *at);
                let at = if group.due.is_empty() { later.unwrap_or(until) } else { until };
                let first = first.entry(partition).or_insert(at);
                *first = at.min(*first);
            }
        }
        PartitionPage::of(first, until, limit)
    }
}

/// How many jobs of a partition wait, and the first of them.
type WaitingJobs = (String, usize, Vec<JobId>);

impl Index {
    /// What waits in at most `limit` partitions after `after`, without critical jobs, and the last
    /// partition if there are more.
    fn waiting(
        &mut self,
        types: &[TypeName],
        until: Timestamp,
        after: Option<&str>,
        limit: usize,
    ) -> (Vec<WaitingJobs>, Option<String>) {
        let Self { order, groups, locations } = self;
        let mut found: BTreeMap<&str, (usize, Vec<JobId>)> = BTreeMap::new();
        for ((partition, job_type), group) in &mut groups[0] {
            if !types.contains(job_type) || after.is_some_and(|after| partition.as_str() <= after) {
                continue;
            }
            group.move_due(until, *order, locations);
            if group.due.is_empty() {
                continue;
            }
            let (jobs, first) = found.entry(partition).or_default();
            *jobs += group.due.len();
            first.extend(group.due.iter().take(WAITING_SAMPLE).map(|(.., id)| id.clone()));
        }
        let has_more = found.len() > limit;
        let found = found.into_iter().take(limit);
        let found: Vec<WaitingJobs> =
            found.map(|(name, (jobs, first))| (name.to_owned(), jobs, first)).collect();
        let next = found.last().filter(|_| has_more).map(|(name, ..)| name.clone());
        (found, next)
    }
}

impl DueGroup {
    /// Moves what is due at `until` into the queue's order.
    fn move_due(
        &mut self,
        until: Timestamp,
        order: Order,
        locations: &HashMap<JobId, DueLocation>,
    ) {
        while self.later.first().is_some_and(|(at, _)| *at <= until) {
            let (run_at, id) = self.later.pop_first().expect("it was just seen");
            self.due.insert(order.key(locations[&id].priority, run_at, &id));
        }
    }
}

impl SimulationStore {
    /// An empty store whose `queue` has this order. It reports all changes of its jobs to `record`.
    pub fn new(
        queue: QueueName,
        order: Order,
        clock: Arc<dyn Clock>,
        record: Arc<Mutex<Recording>>,
    ) -> Self {
        let index = Index { order, groups: Default::default(), locations: HashMap::new() };
        Self { memory: MemoryStore::new(), clock, queue, index: Mutex::new(index), record }
    }

    fn observe(&self, job: &Job) {
        if job.spec.queue != self.queue {
            return;
        }
        let mut index = self.index.lock();
        index.remove(&job.id);
        if let Some(run_at) = job.life.run_at() {
            index.add(job, run_at);
        }
        self.record.lock().observe(job, self.clock.now());
    }
}

impl StoreLayer for SimulationStore {
    fn inner(&self) -> &dyn JobStore {
        &self.memory
    }

    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        let mut committed = Vec::with_capacity(txns.len());
        for txn in txns {
            let (txn, steps) = flatten(txn);
            let written: Vec<Job> = txn
                .iter()
                .filter_map(|write| match write {
                    Write::AddJob(job) | Write::SetJob { job, .. } => Some(job.clone()),
                    _ => None,
                })
                .collect();
            let outcome: Vec<Committed> = self
                .memory
                .commit(vec![txn])
                .await?
                .into_iter()
                .map(|answer| answer.regrouped(&steps))
                .collect();
            if matches!(outcome[..], [Committed::All]) {
                for job in &written {
                    self.observe(job);
                }
            }
            committed.extend(outcome);
        }
        Ok(committed)
    }

    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        let mut pages = Vec::with_capacity(queries.len());
        for query in queries {
            if query.queue != self.queue {
                pages.extend(self.memory.due(std::slice::from_ref(query)).await?);
                continue;
            }
            let (ids, more, next_due) = self.index.lock().due(query);
            let jobs: Vec<Job> =
                self.memory.get(&ids).await?.into_iter().flatten().flatten().collect();
            let next = jobs.last().filter(|_| more).map(Position::of);
            pages.push(DuePage { jobs, next, next_due });
        }
        Ok(pages)
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
        if *queue != self.queue {
            return self.memory.count_waiting(queue, types, until, after, limit, most).await;
        }
        let (found, next) = self.index.lock().waiting(types, until, after, limit as usize);
        let mut page = WaitingPage { next, ..WaitingPage::default() };
        for (partition, jobs, first) in found {
            page.read += jobs as u64;
            let read = self.memory.get(&first).await?;
            let sample: Vec<Job> = read.into_iter().flatten().flatten().collect();
            let Some(count) = WaitingCount::of(&sample) else { continue };
            let of_sample = sample.len() as u64;
            let counted = u32::try_from(jobs).unwrap_or(u32::MAX).min(most);
            let weight = (count.weight * u64::from(counted) + of_sample / 2) / of_sample;
            let at_least = jobs > counted as usize;
            let count = WaitingCount { jobs: counted, weight, at_least, ..count };
            page.counts.push((partition, count));
        }
        Ok(page)
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
        if *queue != self.queue {
            return self.memory.partitions(queue, types, until, after, limit, skip).await;
        }
        Ok(self.index.lock().partitions(types, until, after, limit as usize))
    }
}
