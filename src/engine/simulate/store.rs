//! The store of a simulation: the memory store with an index over its due jobs. It reports every
//! committed job to the [`Recording`].
//!
//! The memory store scans every scheduled job for each page of candidates. With a hundred thousand
//! waiting jobs, a simulation would do little else. This store keeps due jobs in their queue's order.

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
        job_store::{DuePage, DueQuery, flatten},
    },
    queue::order::{self, Order},
    time::Timestamp,
};

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
    lanes: [BTreeMap<(String, TypeName), DueLane>; 2],
    /// The location of each job in `lanes`.
    places: HashMap<JobId, DuePlace>,
}

/// The jobs of one partition and type.
#[derive(Default)]
struct DueLane {
    /// Those that were due at the last query, in the queue's order.
    due: BTreeSet<order::OrderKey>,
    /// The others, by due time.
    later: BTreeSet<(Timestamp, JobId)>,
}

struct DuePlace {
    critical: bool,
    lane: (String, TypeName),
    priority: i32,
    run_at: Timestamp,
}

impl Index {
    fn remove(&mut self, id: &JobId) {
        let Some(place) = self.places.remove(id) else {
            return;
        };
        let lanes = &mut self.lanes[usize::from(place.critical)];
        let lane = lanes.get_mut(&place.lane).expect("a location names a partition");
        if !lane.later.remove(&(place.run_at, id.clone())) {
            lane.due.remove(&self.order.key(place.priority, place.run_at, id));
        }
        if lane.later.is_empty() && lane.due.is_empty() {
            lanes.remove(&place.lane);
        }
    }

    fn add(&mut self, job: &Job, run_at: Timestamp) {
        let spec = &job.spec;
        let lane = (spec.partition.clone(), spec.job_type.clone());
        self.lanes[usize::from(spec.critical)]
            .entry(lane.clone())
            .or_default()
            .later
            .insert((run_at, job.id.clone()));
        let place = DuePlace { critical: spec.critical, lane, priority: spec.priority, run_at };
        self.places.insert(job.id.clone(), place);
    }

    /// The ids that answer `query`, whether there are more, and when the next one is due.
    fn due(&mut self, query: &DueQuery) -> (Vec<JobId>, bool, Option<Timestamp>) {
        let Self { order, lanes, places } = self;
        let lanes = &mut lanes[usize::from(query.critical)];
        let asked: Vec<&mut DueLane> = lanes
            .iter_mut()
            .filter(|((partition, job_type), _)| {
                query.partition.as_ref().is_none_or(|name| name == partition)
                    && query.types.contains(job_type)
            })
            .map(|(_, lane)| lane)
            .collect();
        let after =
            query.after.as_ref().map(|last| order.key(last.priority, last.run_at, &last.id));
        let most = query.limit as usize;
        let mut keys: Vec<&order::OrderKey> = Vec::new();
        let mut next: Option<Timestamp> = None;
        for lane in asked {
            while lane.later.first().is_some_and(|(at, _)| *at <= query.until) {
                let (run_at, id) = lane.later.pop_first().expect("it was just seen");
                lane.due.insert(order.key(places[&id].priority, run_at, &id));
            }
            next = next.into_iter().chain(lane.later.first().map(|(at, _)| *at)).min();
            match &after {
                Some(after) => keys.extend(
                    lane.due.range((Bound::Excluded(after), Bound::Unbounded)).take(most + 1),
                ),
                None => keys.extend(lane.due.iter().take(most + 1)),
            }
        }
        keys.sort_unstable();
        let more = keys.len() > most;
        keys.truncate(most);
        (keys.into_iter().map(|(.., id)| id.clone()).collect(), more, next)
    }

    /// The partitions with jobs of `types`, in their order.
    fn partitions(&self, types: &[TypeName], after: Option<&str>, limit: usize) -> Vec<String> {
        let names = self.lanes.iter().flat_map(BTreeMap::keys).filter(|(partition, job_type)| {
            types.contains(job_type) && after.is_none_or(|after| after < partition.as_str())
        });
        let names: BTreeSet<&str> = names.map(|(partition, _)| partition.as_str()).collect();
        names.into_iter().take(limit).map(str::to_owned).collect()
    }
}

impl SimulationStore {
    /// An empty store whose `queue` has this order, and which shows `record` all that becomes of its jobs.
    pub fn new(
        queue: QueueName,
        order: Order,
        clock: Arc<dyn Clock>,
        record: Arc<Mutex<Recording>>,
    ) -> Self {
        let index = Index { order, lanes: Default::default(), places: HashMap::new() };
        Self { memory: MemoryStore::new(), clock, queue, index: Mutex::new(index), record }
    }

    fn see(&self, job: &Job) {
        if job.spec.queue != self.queue {
            return;
        }
        let mut index = self.index.lock();
        index.remove(&job.id);
        if let Some(run_at) = job.life.run_at() {
            index.add(job, run_at);
        }
        self.record.lock().see(job, self.clock.now());
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
                    self.see(job);
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
            let jobs = self.memory.get(&ids).await?.into_iter().flatten().collect();
            pages.push(DuePage { jobs, more, next_due });
        }
        Ok(pages)
    }

    async fn partitions(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        if *queue != self.queue {
            return self.memory.partitions(queue, types, after, limit).await;
        }
        Ok(self.index.lock().partitions(types, after, limit as usize))
    }
}
