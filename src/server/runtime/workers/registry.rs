//! The callers that are known to this process, by name; those without a name by what they request.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::of_queue::{QueueWorkers, Taker};
use tidegate_core::{
    job::{QueueName, TypeName},
    port::Clock,
    time::Timestamp,
};
use tidegate_engine::{
    config::drain::Drain,
    request::{LeaseRequest, Registration, Worker},
};

/// How long a worker is listed after its last call.
pub(in crate::runtime) const WORKER_EXPIRY: Duration = Duration::from_mins(10);
/// Most workers known.
const MAX_WORKERS: usize = 10_000;
/// Most of them without a name.
const MAX_UNNAMED: usize = 1000;
/// How often silent workers are removed while as many as possible are known.
const PRUNE_INTERVAL: Duration = Duration::from_secs(1);
/// How often the capacity of a worker that still calls is stored again.
const RENEWAL: Duration = Duration::from_hours(24);
/// Most types that are remembered of a lease request; with more, it counts as one for all types. A
/// registration has no more.
pub(super) const MAX_TYPES: usize = 100;

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
pub(super) struct Takes {
    /// Only of this queue.
    queue: Option<QueueName>,
    /// Only of these types; empty for all.
    pub(super) types: Vec<TypeName>,
}

impl Takes {
    fn of(request: &LeaseRequest) -> Self {
        Self::new(request.queue.as_ref(), &request.types)
    }

    /// What a worker said that it takes, if it said so.
    fn registered(registration: &Registration) -> Option<Self> {
        let Registration { queue, types, .. } = registration;
        (queue.is_some() || !types.is_empty()).then(|| Self::new(queue.as_ref(), types))
    }

    fn new(queue: Option<&QueueName>, types: &[TypeName]) -> Self {
        let types = if types.len() > MAX_TYPES { &[] } else { types };
        Self { queue: queue.cloned(), types: types.to_vec() }
    }

    fn is_of(&self, request: &LeaseRequest) -> bool {
        self.queue == request.queue
            && (self.types == request.types || request.types.len() > MAX_TYPES)
    }

    pub(super) fn has(&self, queue: &QueueName, job_type: &TypeName) -> bool {
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
    /// What its latest lease request or registration was for; none if neither said it.
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

/// Whether someone waits for the answer to a lease call: its worker is still registered, and has
/// not repeated the call. A call whose worker is not recorded never leaves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Presence {
    worker: Option<watch::Receiver<()>>,
    latest: Option<watch::Receiver<()>>,
    forwarder: Option<watch::Receiver<()>>,
}

impl Presence {
    /// The presence of a call that its worker may repeat, until the sender of `latest` is gone.
    pub(in crate::runtime) fn while_latest(self, latest: watch::Receiver<()>) -> Self {
        Self { latest: Some(latest), ..self }
    }

    /// The presence of a call that another server may have forwarded, until its sender is gone.
    pub(in crate::runtime) fn while_forwarded(
        self,
        forwarder: Option<watch::Receiver<()>>,
    ) -> Self {
        Self { forwarder, ..self }
    }

    /// Whether the worker was removed, or has repeated the call, or the server that forwarded it has
    /// left, since the call began.
    pub(in crate::runtime) fn has_left(&self) -> bool {
        let mut parts = [&self.worker, &self.latest, &self.forwarder].into_iter().flatten();
        parts.any(|part| part.has_changed().is_err())
    }

    /// Waits until the worker is removed or repeats the call, or the server that forwarded it leaves.
    pub(in crate::runtime) async fn left(&mut self) {
        async fn end(part: &mut Option<watch::Receiver<()>>) {
            match part {
                Some(part) => while part.changed().await.is_ok() {},
                None => std::future::pending().await,
            }
        }
        tokio::select! {
            () = end(&mut self.worker) => {}
            () = end(&mut self.latest) => {}
            () = end(&mut self.forwarder) => {}
        }
    }
}

/// The workers that are known.
#[derive(Default)]
pub(in crate::runtime) struct Workers(Mutex<Known>);

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
        // What is stored is newer, if the worker has registered with another server since.
        self.restored.get(name).copied().or_else(|| self.of(name)?.capacity)
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
pub(in crate::runtime) struct Poll<'a> {
    workers: &'a Workers,
    caller: Caller,
    polls: u64,
    presence: Presence,
    renewal: Option<u32>,
    clock: &'a dyn Clock,
}

impl Poll<'_> {
    /// Tells the call when its worker is removed.
    pub(in crate::runtime) fn presence(&self) -> Presence {
        self.presence.clone()
    }

    /// The worker's capacity, if it is to be stored again.
    pub(in crate::runtime) fn renewal(&self) -> Option<u32> {
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
    pub(in crate::runtime) fn poll<'a>(
        &'a self,
        request: &LeaseRequest,
        clock: &'a dyn Clock,
    ) -> Poll<'a> {
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
        let presence = Presence { worker: presence, ..Presence::default() };
        Poll { workers: self, caller, polls, presence, renewal, clock }
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

    /// Takes over the capacities of workers that registered before the start, or with other
    /// servers.
    pub(in crate::runtime) fn restore(&self, capacities: impl IntoIterator<Item = (String, u32)>) {
        self.0.lock().restored = capacities.into_iter().collect();
    }

    /// Whether any worker has registered how many jobs it runs at once.
    pub(in crate::runtime) fn have_capacities(&self) -> bool {
        let known = self.0.lock();
        !known.restored.is_empty() || known.callers.values().any(|entry| entry.capacity.is_some())
    }

    /// Workers that are known by their registrations alone: name, registration and its instant.
    pub(in crate::runtime) fn of_registrations(
        registrations: impl IntoIterator<Item = (String, Registration, Timestamp)>,
    ) -> Self {
        let callers = registrations.into_iter().map(|(name, registration, seen_at)| {
            let mut entry = RegisteredWorker::new(registration.capacity, seen_at);
            entry.takes = Takes::registered(&registration);
            (Caller::Named(name), entry)
        });
        Self(Mutex::new(Known { callers: callers.collect(), ..Known::default() }))
    }

    /// Whether the capacity of a worker is this one, and was stored lately.
    pub(super) fn is_stored(&self, name: &str, capacity: Option<u32>, now: Timestamp) -> bool {
        self.0
            .lock()
            .of(name)
            .is_some_and(|entry| entry.capacity == capacity && now.since(entry.stored_at) < RENEWAL)
    }

    /// Registers a worker. `stored_at` is when its capacity was stored, if that was now.
    pub(super) fn register(
        &self,
        name: &str,
        registration: &Registration,
        stored_at: Option<Timestamp>,
        now: Timestamp,
    ) {
        self.update(&Caller::Named(name.to_owned()), now, |entry| {
            entry.capacity = registration.capacity;
            entry.stored_at = stored_at.unwrap_or(entry.stored_at);
            if let Some(takes) = Takes::registered(registration) {
                entry.takes = Some(takes);
            }
        });
        self.0.lock().restored.remove(name);
    }

    /// Removes a worker. Returns whether it was known.
    pub(super) fn remove(&self, name: &str) -> bool {
        let mut known = self.0.lock();
        known.restored.remove(name);
        known.callers.remove(&Caller::Named(name.to_owned())).is_some()
    }

    /// Ends the waiting lease calls of a worker without jobs. It stays known.
    pub(super) fn end_calls(&self, name: &str) {
        let mut known = self.0.lock();
        if let Some(entry) = known.callers.get_mut(&Caller::Named(name.to_owned())) {
            entry.presence = watch::Sender::new(());
            // A call whose presence has ended takes nothing back.
            entry.polls = 0;
        }
    }

    /// How many jobs a worker runs at once, if it registered that.
    pub(in crate::runtime) fn capacity(&self, name: &str) -> Option<u32> {
        self.0.lock().capacity(name)
    }

    /// The list at `now`. `running` has the number of jobs that each worker runs, `drains` those
    /// that get no more.
    pub(super) fn list(
        &self,
        running: &BTreeMap<String, u64>,
        drains: &BTreeMap<String, Drain>,
        now: Timestamp,
    ) -> Vec<Worker> {
        let known = self.0.lock();
        let named = known.callers.iter().filter_map(|(caller, entry)| match caller {
            Caller::Named(name) => {
                let takes = entry.takes.clone().unwrap_or_default();
                Some((name, entry.capacity, entry.seen_at, takes))
            }
            Caller::Unnamed(_) => None,
        });
        let silent = drains.iter().filter(|(name, _)| known.of(name).is_none());
        let silent =
            silent.map(|(name, of)| (name, known.capacity(name), of.since(), Takes::default()));
        let worker = |(name, capacity, seen_at, takes): (&String, _, _, Takes)| Worker {
            name: name.clone(),
            capacity,
            running: running.get(name).copied().unwrap_or(0),
            draining: drains.contains_key(name),
            stopping: drains.get(name).is_some_and(|drain| drain.is_stop()),
            seen_at,
            queue: takes.queue,
            types: takes.types,
        };
        let listed = |worker: &Worker| {
            worker.draining || worker.running > 0 || now.since(worker.seen_at) < WORKER_EXPIRY
        };
        named.chain(silent).map(worker).filter(listed).collect()
    }

    /// The callers that take jobs of `queue`, at `now`.
    pub(in crate::runtime) fn of_queue(
        &self,
        queue: &QueueName,
        running: &BTreeMap<String, u64>,
        drains: &BTreeMap<String, Drain>,
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
