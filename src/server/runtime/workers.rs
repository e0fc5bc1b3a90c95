//! The pull workers that called recently: their capacity, what they run, and which are drained.
//!
//! A drain is configuration, so it outlasts a restart and holds in every process. A capacity outlasts
//! a restart of an embedded server, see [`super::capacities`]. Everything else is known to this
//! process only, and ends with it.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};
use tidegate_core::error_code::ErrorCode;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::Server;
use tidegate_core::{
    job::{QueueName, TypeName},
    port::{Clock, job_store::ItemKind},
    time::Timestamp,
};
use tidegate_engine::{
    Catalog, Error,
    request::{LeaseRequest, Worker, WorkerStatus},
};

/// How long a worker is listed after its last call.
const WORKER_EXPIRY: Duration = Duration::from_mins(10);
/// How long after its last call an idle worker counts as one that shares a queue.
const ACTIVE_WORKER_AGE: Duration = Duration::from_mins(1);
/// Most workers known.
const MAX_WORKERS: usize = 10_000;
/// Most of them without a name.
const MAX_UNNAMED: usize = 1000;
/// How often silent workers are removed while as many as possible are known.
const PRUNE_INTERVAL: Duration = Duration::from_secs(1);
/// How often the capacity of a worker that still calls is stored again.
const RENEWAL: Duration = Duration::from_hours(24);
/// Most types that are remembered of a lease request; with more, it counts as one for all types.
const MAX_TYPES: usize = 100;
/// Most workers drained at once.
const MAX_DRAINS: usize = 1000;

/// Who sends lease requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Caller {
    /// A worker with a name.
    Named(String),
    /// Workers without one that request the same jobs.
    Unnamed(Takes),
}

/// The jobs that a lease request is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Takes {
    /// Only of this queue.
    queue: Option<QueueName>,
    /// Only of these types; empty for all.
    types: Vec<TypeName>,
}

impl Takes {
    fn of(request: &LeaseRequest) -> Self {
        let types = &request.types[..];
        let types = if types.len() > MAX_TYPES { &[] } else { types };
        Self { queue: request.queue.clone(), types: types.to_vec() }
    }

    fn is_of(&self, request: &LeaseRequest) -> bool {
        self.queue == request.queue
            && (self.types == request.types || request.types.len() > MAX_TYPES)
    }

    fn has(&self, queue: &QueueName, job_type: &TypeName) -> bool {
        self.queue.as_ref().is_none_or(|of| of == queue)
            && (self.types.is_empty() || self.types.contains(job_type))
    }
}

#[derive(Debug)]
struct RegisteredWorker {
    capacity: Option<u32>,
    /// When its capacity was stored by this process.
    stored_at: Timestamp,
    seen_at: Timestamp,
    /// What its latest lease request was for; none if it has sent none.
    takes: Option<Takes>,
    /// How many of its lease requests wait for jobs.
    polls: u64,
    /// Dropped when the worker is removed, which ends its waiting lease calls.
    presence: watch::Sender<()>,
}

impl RegisteredWorker {
    fn new(capacity: Option<u32>, seen_at: Timestamp) -> Self {
        let presence = watch::Sender::new(());
        let stored_at = Timestamp::EPOCH;
        Self { capacity, stored_at, seen_at, takes: None, polls: 0, presence }
    }
}

/// Whether the worker of a lease call is still registered. A call that is not recorded never leaves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Presence(Option<watch::Receiver<()>>);

impl Presence {
    /// Whether the worker was removed since the call began.
    pub(super) fn has_left(&self) -> bool {
        self.0.as_ref().is_some_and(|presence| presence.has_changed().is_err())
    }

    /// Waits until the worker is removed.
    pub(super) async fn left(&mut self) {
        match &mut self.0 {
            Some(presence) => while presence.changed().await.is_ok() {},
            None => std::future::pending().await,
        }
    }
}

/// The workers that are known.
#[derive(Default)]
pub(super) struct Workers(Mutex<Known>);

#[derive(Default)]
struct Known {
    callers: BTreeMap<Caller, RegisteredWorker>,
    /// The capacities of workers that registered before the start, by name.
    restored: HashMap<String, u32>,
    pruned_at: Timestamp,
}

impl Known {
    fn of(&self, name: &str) -> Option<&RegisteredWorker> {
        self.callers.get(&Caller::Named(name.to_owned()))
    }

    fn capacity(&self, name: &str) -> Option<u32> {
        self.of(name).map_or_else(|| self.restored.get(name).copied(), |entry| entry.capacity)
    }

    /// Whether one more caller can be recorded. Removes silent ones if there are too many.
    fn has_space(&mut self, caller: &Caller, now: Timestamp) -> bool {
        let unnamed = Caller::Unnamed(Takes::default())..;
        if matches!(caller, Caller::Unnamed(_))
            && self.callers.range(unnamed).nth(MAX_UNNAMED - 1).is_some()
        {
            return false;
        }
        if self.callers.len() >= MAX_WORKERS && now.since(self.pruned_at) >= PRUNE_INTERVAL {
            self.pruned_at = now;
            self.callers
                .retain(|_, entry| entry.polls > 0 || now.since(entry.seen_at) < WORKER_EXPIRY);
        }
        self.callers.len() < MAX_WORKERS
    }
}

/// A lease request under way, until it is dropped.
pub(super) struct Poll<'a> {
    workers: &'a Workers,
    caller: Caller,
    polls: u64,
    presence: Presence,
    renewal: Option<u32>,
    clock: &'a dyn Clock,
}

impl Poll<'_> {
    /// Tells the call when its worker is removed.
    pub(super) fn presence(&self) -> Presence {
        self.presence.clone()
    }

    /// The worker's capacity, if it is to be stored again.
    pub(super) fn renewal(&self) -> Option<u32> {
        self.renewal
    }
}

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        // After it was removed, a worker of the same name is another one.
        if self.presence.has_left() {
            return;
        }
        if let Some(entry) = self.workers.0.lock().callers.get_mut(&self.caller) {
            entry.polls = entry.polls.saturating_sub(self.polls);
            entry.seen_at = entry.seen_at.max(self.clock.now());
        }
    }
}

impl Workers {
    /// Records a lease request. One that only reports records its worker's name.
    pub(super) fn poll<'a>(&'a self, request: &LeaseRequest, clock: &'a dyn Clock) -> Poll<'a> {
        let polls = u64::from(request.max > 0);
        let caller = match &request.worker {
            Some(name) => Caller::Named(name.clone()),
            None => Caller::Unnamed(Takes::of(request)),
        };
        let now = clock.now();
        let recorded = self.update(&caller, now, |entry| {
            entry.polls += polls;
            // Most requests repeat the one before.
            if polls > 0 && entry.takes.as_ref().is_none_or(|takes| !takes.is_of(request)) {
                entry.takes = Some(Takes::of(request));
            }
            let renewal = entry.capacity.filter(|_| now.since(entry.stored_at) >= RENEWAL);
            if renewal.is_some() {
                entry.stored_at = now;
            }
            (entry.presence.subscribe(), renewal)
        });
        let (presence, renewal) = recorded.map_or((None, None), |(one, two)| (Some(one), two));
        // A call that is not recorded has nothing to take back.
        let polls = if presence.is_some() { polls } else { 0 };
        Poll { workers: self, caller, polls, presence: Presence(presence), renewal, clock }
    }

    /// Changes the entry of a caller that has just called. None if no more callers can be recorded.
    fn update<T>(
        &self,
        caller: &Caller,
        now: Timestamp,
        change: impl FnOnce(&mut RegisteredWorker) -> T,
    ) -> Option<T> {
        let mut known = self.0.lock();
        if let Some(entry) = known.callers.get_mut(caller) {
            entry.seen_at = now;
            return Some(change(entry));
        }
        if !known.has_space(caller, now) {
            return None;
        }
        let capacity = match caller {
            Caller::Named(name) => known.capacity(name),
            Caller::Unnamed(_) => None,
        };
        let mut entry = RegisteredWorker::new(capacity, now);
        let changed = change(&mut entry);
        known.callers.insert(caller.clone(), entry);
        Some(changed)
    }

    /// Takes over the capacities of workers that registered before the start.
    pub(super) fn restore(&self, capacities: impl IntoIterator<Item = (String, u32)>) {
        self.0.lock().restored.extend(capacities);
    }

    /// Registers how many jobs a worker runs at once.
    fn register(&self, name: &str, capacity: Option<u32>, now: Timestamp) {
        self.update(&Caller::Named(name.to_owned()), now, |entry| {
            (entry.capacity, entry.stored_at) = (capacity, now);
        });
        self.0.lock().restored.remove(name);
    }

    /// Removes a worker. Returns whether it was known.
    fn remove(&self, name: &str) -> bool {
        let mut known = self.0.lock();
        known.restored.remove(name);
        known.callers.remove(&Caller::Named(name.to_owned())).is_some()
    }

    /// How many jobs a worker runs at once, if it registered that.
    pub(super) fn capacity(&self, name: &str) -> Option<u32> {
        self.0.lock().capacity(name)
    }

    /// The list at `now`. `running` has the number of jobs that each worker runs, `drains` the
    /// start of each drain.
    fn list(
        &self,
        running: &BTreeMap<String, u64>,
        drains: &BTreeMap<String, Timestamp>,
        now: Timestamp,
    ) -> Vec<Worker> {
        let known = self.0.lock();
        let named = known.callers.iter().filter_map(|(caller, entry)| match caller {
            Caller::Named(name) => Some((name, entry.capacity, entry.seen_at)),
            Caller::Unnamed(_) => None,
        });
        let silent = drains.iter().filter(|(name, _)| known.of(name).is_none());
        let silent = silent.map(|(name, since)| (name, known.capacity(name), *since));
        let worker = |(name, capacity, seen_at): (&String, Option<u32>, Timestamp)| Worker {
            name: name.clone(),
            capacity,
            running: running.get(name).copied().unwrap_or(0),
            draining: drains.contains_key(name),
            seen_at,
        };
        let listed = |worker: &Worker| {
            worker.draining || worker.running > 0 || now.since(worker.seen_at) < WORKER_EXPIRY
        };
        named.chain(silent).map(worker).filter(listed).collect()
    }

    /// The callers that take jobs of `queue`, at `now`.
    pub(super) fn of_queue(
        &self,
        queue: &QueueName,
        running: &BTreeMap<String, u64>,
        drains: &BTreeMap<String, Timestamp>,
        now: Timestamp,
    ) -> QueueWorkers {
        let known = self.0.lock();
        let takers = known.callers.iter().filter_map(|(caller, entry)| {
            let takes = entry.takes.clone()?;
            if takes.queue.as_ref().is_some_and(|of| of != queue) {
                return None;
            }
            let (named, draining, runs) = match caller {
                Caller::Named(name) => {
                    (true, drains.contains_key(name), running.get(name).copied().unwrap_or(0))
                }
                Caller::Unnamed(_) => (false, false, 0),
            };
            let is_recent = now.since(entry.seen_at) < WORKER_EXPIRY;
            (is_recent || entry.polls > 0 || runs > 0).then_some(Taker {
                takes,
                capacity: entry.capacity,
                seen_at: entry.seen_at,
                polls: entry.polls,
                named,
                draining,
                runs,
            })
        });
        QueueWorkers { queue: queue.clone(), takers: takers.collect() }
    }
}

/// A caller that takes jobs of a queue.
struct Taker {
    takes: Takes,
    capacity: Option<u32>,
    seen_at: Timestamp,
    /// How many of its requests wait for jobs.
    polls: u64,
    named: bool,
    draining: bool,
    /// How many jobs it runs.
    runs: u64,
}

impl Taker {
    /// How many workers it is.
    fn count(&self) -> u64 {
        if self.named { 1 } else { self.polls.max(1) }
    }
}

/// The callers that take jobs of one queue.
pub(super) struct QueueWorkers {
    queue: QueueName,
    takers: Vec<Taker>,
}

impl QueueWorkers {
    /// How many of them wait for jobs, run some, or called within a minute.
    pub(super) fn active(&self, catalog: &Catalog, now: Timestamp) -> u64 {
        let is_of_queue = |name: &TypeName| {
            catalog.types.get(name).is_some_and(|item| item.config.queue == self.queue)
        };
        let is_active = |taker: &&Taker| {
            let is_recent = now.since(taker.seen_at) < ACTIVE_WORKER_AGE;
            let types = &taker.takes.types;
            (types.is_empty() || types.iter().any(is_of_queue))
                && !taker.draining
                && (taker.polls > 0 || taker.runs > 0 || is_recent)
        };
        self.takers.iter().filter(is_active).map(Taker::count).sum()
    }

    /// The status of those that take jobs of a type. `unnamed` is how many of its jobs run at
    /// workers without a name.
    pub(super) fn status(&self, job_type: &TypeName, unnamed: u64) -> WorkerStatus {
        let mut status = WorkerStatus { in_use: unnamed, ..WorkerStatus::default() };
        let [mut known, mut polling, mut busy, mut draining] = [0; 4];
        let mut capacity = Some(0);
        for taker in self.takers.iter().filter(|taker| taker.takes.has(&self.queue, job_type)) {
            let Taker { capacity: most, polls, named, draining: is_draining, runs, .. } = taker;
            let count = taker.count();
            known += count;
            status.in_use += runs;
            status.last_seen_at = status.last_seen_at.max(Some(taker.seen_at));
            if *is_draining {
                draining += count;
                continue;
            }
            let room = most.map(|most| u64::from(most).saturating_sub(*runs));
            capacity = capacity.zip(*most).map(|(sum, most)| sum + u64::from(most));
            let runs_some = *runs > 0 || (!named && unnamed > 0);
            if room == Some(0) || (runs_some && *polls == 0 && room.is_none()) {
                busy += count;
            } else if *polls > 0 {
                polling += count;
            }
        }
        status.capacity = capacity.filter(|_| known > draining);
        WorkerStatus {
            known: Some(known),
            polling: Some(polling),
            busy: Some(busy),
            draining: Some(draining),
            ..status
        }
    }
}

/// Whether a worker gets no more jobs.
pub(super) fn is_drained(catalog: &Catalog, name: Option<&str>) -> bool {
    name.is_some_and(|name| catalog.drains.contains_key(name))
}

/// Checks the name of a worker.
pub(super) fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > 128 {
        return Err(Error::invalid("worker", "must be 1 to 128 bytes"));
    }
    Ok(())
}

impl Server {
    /// Registers how many jobs a pull worker runs at once.
    ///
    /// # Errors
    ///
    /// 400 for a bad name or capacity.
    pub async fn register_worker(
        &self,
        name: &str,
        capacity: Option<u32>,
    ) -> Result<Worker, Error> {
        check_name(name)?;
        if capacity == Some(0) {
            return Err(Error::invalid("capacity", "must be at least 1"));
        }
        self.keep_capacity(name, capacity).await?;
        self.inner.workers.register(name, capacity, self.now());
        self.inner.wake_known();
        self.worker(name).await
    }

    /// The pull workers that called in the last 10 minutes, run a job, or are drained.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn workers(&self) -> Result<Vec<Worker>, Error> {
        let catalog = self.inner.engine.catalog().await?;
        let running = self.inner.engine.running_by_worker(&[]);
        Ok(self.inner.workers.list(&running, &catalog.drains, self.now()))
    }

    async fn worker(&self, name: &str) -> Result<Worker, Error> {
        let missing =
            || Error::NotFound { code: ErrorCode::WorkerNotFound, what: format!("worker {name}") };
        self.workers().await?.into_iter().find(|worker| worker.name == name).ok_or_else(missing)
    }

    /// Drains a worker (it gets no more jobs), or ends its drain. A
    /// [serverless](super::Builder::serverless) server drains unknown workers too, because each of
    /// its processes knows only some.
    ///
    /// # Errors
    ///
    /// 404 `worker_not_found`; 409 `too_many_drains`; 400 for a bad name.
    pub async fn drain_worker(&self, name: &str, draining: bool) -> Result<Worker, Error> {
        check_name(name)?;
        let worker = match self.worker(name).await {
            Err(Error::NotFound { .. }) if draining && self.inner.is_serverless() => Worker {
                name: name.to_owned(),
                capacity: None,
                running: 0,
                draining: false,
                seen_at: self.now(),
            },
            known => known?,
        };
        if worker.draining != draining {
            let drains = self.inner.engine.catalog().await?.drains.len();
            if draining && drains >= MAX_DRAINS {
                let message = format!("{drains} workers are drained: delete those that are gone");
                return Err(Error::Conflict {
                    code: ErrorCode::TooManyDrains,
                    message,
                    holder: None,
                });
            }
            self.set_drain(name, draining).await?;
        }
        Ok(Worker { draining, ..worker })
    }

    async fn set_drain(&self, name: &str, draining: bool) -> Result<(), Error> {
        let since =
            serde_json::to_vec(&self.now()).map_err(|error| Error::Internal(error.to_string()))?;
        self.inner.engine.put_item(ItemKind::Drain, name, draining.then_some(since)).await?;
        self.inner.wake_known();
        Ok(())
    }

    /// Removes a worker from the list, and ends its drain unless `keep_drain`. Its leases
    /// continue, and its waiting lease calls in this process end without jobs.
    ///
    /// # Errors
    ///
    /// 404 `worker_not_found`.
    pub async fn forget_worker(&self, name: &str, keep_drain: bool) -> Result<(), Error> {
        if self.worker(name).await?.draining && !keep_drain {
            self.set_drain(name, false).await?;
        }
        self.keep_capacity(name, None).await?;
        if self.inner.workers.remove(name) {
            self.inner.wake_known();
        }
        Ok(())
    }
}
