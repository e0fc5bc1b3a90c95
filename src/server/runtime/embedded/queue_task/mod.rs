//! The task of one queue: it collects messages, runs a tick with them, and distributes the outcome.
//!
//! Read in this order: [`Task::tick`], `batch` (messages become a batch, and its reports get their
//! answers), `demands` (requests for jobs), `leases` (waiting workers), `attempts` (what this
//! process runs itself), `snapshot` (what the queue's status shows).

mod attempts;
mod batch;
mod demands;
mod leases;
mod snapshot;

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering, fence},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use self::{
    batch::{Batch, Unsettled},
    demands::Requester,
    leases::WaitingLease,
};
use crate::runtime::{Inner, StopGuard, StopPhase, WeakServer};
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName, Version},
    port::Clock,
    time::Timestamp,
};
use tidegate_engine::{
    ByteBudget, Catalog, CountedBytes, Error, TickCache, TickOutcome, request::Report,
};

pub(crate) use self::{
    leases::{LeaseCall, QueueWatch},
    snapshot::QueueSnapshot,
};

/// Most messages of one tick.
const MAX_BATCH: usize = 2048;
/// The longest time between two ticks: another process may have written to the store.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The same while workers wait and other servers write to the store, whose notices may be lost.
const WAITING_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The same without takers. Every server may have a task of each queue, and each tick reads the store.
const IDLE_POLL_INTERVAL: Duration = Duration::from_mins(1);
/// How old the latest read of the configuration may be in a tick that lease calls alone cause. Each of
/// them has read it, and waited for the tick under way at most.
const CATALOG_AGE: Duration = Duration::from_millis(20);
/// The wait after a tick that the store failed.
const ERROR_BACKOFF: Duration = Duration::from_millis(250);
/// The value of `idle_under` of a task that is not idle: no version of the configuration.
const NOT_IDLE: u64 = u64::MAX;

/// Most bytes of data that one tick claims, and so of one worker's response. A single larger job is
/// claimed alone.
pub(super) const CLAIMED_BYTES: usize = 64 << 20;

/// A message to a queue's task.
pub(crate) enum TaskMessage {
    /// Jobs may be due.
    Wake,
    /// A job left the version at which it may hold a grant.
    Released(JobId, Version),
    /// Reports of a caller, and where their answers go.
    Reports(Vec<Report>, oneshot::Sender<Vec<Result<Job, Error>>>),
    /// An attempt left its slot. Without a slot: it was leased, and not delivered to its worker.
    Done(Option<ExecutionSlot>, Option<Report>, Option<StopGuard>),
    /// A worker requests jobs.
    Lease(LeaseCall),
    /// A worker that waits for several queues waits for this one too.
    Watch(Weak<QueueWatch>),
}

/// A kind of slot in which this process runs attempts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ExecutionSlot {
    /// A push.
    Push,
    /// A handler of this type.
    Handler(TypeName),
}

impl ExecutionSlot {
    fn handler(&self) -> Option<&TypeName> {
        match self {
            Self::Push => None,
            Self::Handler(name) => Some(name),
        }
    }
}

/// Sends messages to a queue's task, and reads its latest snapshot.
#[derive(Clone)]
pub(crate) struct QueueHandle {
    sender: mpsc::UnboundedSender<TaskMessage>,
    idle_under: Arc<AtomicU64>,
    snapshot: Arc<Mutex<QueueSnapshot>>,
}

impl QueueHandle {
    /// Sends a message. A task that ended with its server ignores it.
    pub(crate) fn send(&self, message: TaskMessage) {
        let _ = self.sender.send(message);
    }

    /// Wakes the task for a new job, accepted under version `catalog` of the configuration. Sends
    /// nothing while the queue's jobs have no taker under that version.
    ///
    /// The fences here and in [`Task::set_idle`] order the two: either the task receives the
    /// message, or its tick finds the job in the store.
    pub(crate) fn on_enqueued(&self, catalog: u64) {
        fence(Ordering::SeqCst);
        if self.idle_under.load(Ordering::Relaxed) != catalog {
            self.send(TaskMessage::Wake);
        }
    }

    /// What the latest tick showed.
    pub(crate) fn snapshot(&self) -> QueueSnapshot {
        self.snapshot.lock().clone()
    }
}

/// Starts the task of `queue`.
pub(crate) fn spawn(inner: &Arc<Inner>, queue: QueueName) -> QueueHandle {
    let (sender, receiver) = mpsc::unbounded_channel();
    let snapshot = Arc::new(Mutex::new(QueueSnapshot::default()));
    let idle_under = Arc::new(AtomicU64::new(NOT_IDLE));
    let handle = QueueHandle {
        sender: sender.clone(),
        idle_under: Arc::clone(&idle_under),
        snapshot: Arc::clone(&snapshot),
    };
    let task = Task {
        server: Arc::downgrade(inner),
        queue,
        receiver,
        sender,
        idle_under,
        snapshot,
        cache: TickCache::default(),
        leases: VecDeque::new(),
        watches: Vec::new(),
        next_at: None,
        scanning: false,
        outdated: false,
        released: Vec::new(),
        unsettled: Vec::new(),
        running: HashMap::new(),
        busy: None,
    };
    let mut stopping = inner.stopping.subscribe();
    // One that starts after a stop ends at once.
    stopping.mark_changed();
    // It ends with a stop, when it has answered the calls that wait.
    inner.tasks.spawn(task.run(stopping));
    handle
}

struct Task {
    server: WeakServer,
    queue: QueueName,
    receiver: mpsc::UnboundedReceiver<TaskMessage>,
    sender: mpsc::UnboundedSender<TaskMessage>,
    /// The version of the configuration under which the queue's jobs have no taker, so that a new
    /// job changes nothing; else [`NOT_IDLE`].
    idle_under: Arc<AtomicU64>,
    snapshot: Arc<Mutex<QueueSnapshot>>,
    cache: TickCache,
    leases: VecDeque<WaitingLease>,
    /// Workers that wait for this queue and others.
    watches: Vec<Weak<QueueWatch>>,
    /// When the next tick is due.
    next_at: Option<Timestamp>,
    /// Whether the next tick only continues the scan of the last one.
    scanning: bool,
    /// Whether the last tick took nothing, because its demands were computed from an older
    /// configuration.
    outdated: bool,
    /// Versions left that no commit has processed yet.
    released: Vec<(JobId, Version)>,
    /// Reports of this process's own attempts that the store has not settled yet.
    unsettled: Vec<Unsettled>,
    /// How many attempts this process runs, by slot.
    running: HashMap<ExecutionSlot, u32>,
    /// Delays a stop during a tick, and until the attempts that it starts are settled.
    busy: Option<StopGuard>,
}

/// A committed tick, and what it was computed from.
struct CommittedTick {
    catalog: Arc<Catalog>,
    requesters: Vec<Requester>,
    outcome: TickOutcome,
    /// Whether the queue changed, so that the tick did more than continue a scan.
    queue_changed: bool,
}

impl Task {
    async fn run(mut self, mut stopping: tokio::sync::watch::Receiver<StopPhase>) {
        loop {
            let Some(clock) =
                self.server.upgrade().map(|inner| Arc::clone(&inner.engine.ports().clock))
            else {
                return;
            };
            let mut inbox = Vec::new();
            let poll_at = clock.now() + self.poll_interval();
            let wake_at = self.next_at.unwrap_or(Timestamp::MAX).min(poll_at);
            tokio::select! {
                biased;
                count = self.receiver.recv_many(&mut inbox, MAX_BATCH) => if count == 0 { return },
                changed = stopping.changed() => {
                    if changed.is_err() || *stopping.borrow() == StopPhase::Stopped {
                        // Waiting calls get the answers to their reports, and no jobs.
                        self.expire_leases(clock.machine_now(), true);
                        self.notify_watches();
                        return;
                    }
                }
                () = clock.sleep_until(wake_at) => {}
            }
            // Callers that are about to send a message get into this tick.
            tokio::task::yield_now().await;
            while let Ok(message) = self.receiver.try_recv() {
                inbox.push(message);
                if inbox.len() >= MAX_BATCH {
                    break;
                }
            }
            let Some(inner) = self.server.upgrade() else {
                return;
            };
            self.busy = inner.busy();
            // A stop that begins later waits for the guard.
            let draining = self.busy.is_none() || *stopping.borrow() != StopPhase::Serving;
            self.next_at = self.tick(&inner, inbox, draining).await;
            self.busy = None;
        }
    }

    /// The longest time between two ticks.
    fn poll_interval(&self) -> Duration {
        if !self.server.upgrade().is_some_and(|inner| inner.shares_store()) {
            POLL_INTERVAL
        } else if !self.leases.is_empty() || !self.watches.is_empty() {
            WAITING_POLL_INTERVAL
        } else if self.idle_under.load(Ordering::Relaxed) == NOT_IDLE {
            POLL_INTERVAL
        } else {
            IDLE_POLL_INTERVAL
        }
    }

    /// Runs one tick and distributes its outcome. Returns when the next tick is due.
    async fn tick(
        &mut self,
        inner: &Arc<Inner>,
        inbox: Vec<TaskMessage>,
        draining: bool,
    ) -> Option<Timestamp> {
        let clock = &inner.engine.ports().clock;
        let (began, began_on_machine) = (clock.now(), clock.machine_now());
        let mut batch = self.collect(inbox);
        let notify = batch.may_free_capacity;
        let committed = match self.commit(inner, &mut batch, draining).await {
            Ok(committed) => committed,
            Err(error) => return Some(self.on_tick_failed(inner, &error, batch, draining)),
        };
        let ended = inner.engine.now();
        let CommittedTick { catalog, requesters, outcome, queue_changed } = committed;
        inner.count_tick(&self.queue, &outcome, began, ended.since(began));
        // A scan that claims nothing leaves half of the processor time to other tasks.
        let pause = if queue_changed || !outcome.claimed.is_empty() {
            Duration::ZERO
        } else {
            ended.since(began)
        };
        self.outdated = outcome.outdated;
        self.scanning = outcome.again && !self.outdated;
        let due_at = outcome.next_at;
        let claimed: usize = outcome.claimed.iter().map(|claimed| claimed.job.input_bytes()).sum();
        // A due job may have been left because it did not fit.
        let may_be_full = claimed + inner.engine.rules().max_data_bytes > CLAIMED_BYTES;
        self.distribute(inner, outcome, &catalog, &requesters, batch.recipients((began, ended)));
        if !self.outdated {
            self.expire_leases(began_on_machine, draining);
        }
        self.update_snapshot(inner);
        if notify {
            self.notify_watches();
        }
        if self.scanning || self.outdated || (may_be_full && claimed > 0) {
            Some(ended + pause)
        } else {
            self.next_tick_at(due_at, &**clock, began)
        }
    }

    /// Commits a tick: the batch's reports, and grants for the demands of this moment.
    async fn commit(
        &mut self,
        inner: &Inner,
        batch: &mut Batch,
        draining: bool,
    ) -> Result<CommittedTick, Error> {
        // The tick reads the current one, and each read may cost a round trip. If that is another one,
        // the tick takes nothing, and the next one is computed from a read. It takes jobs in any case:
        // the configuration may change all the time.
        let catalog = if self.outdated {
            inner.engine.catalog().await?
        } else {
            inner.engine.known_catalog().await?
        };
        let (mut input, requesters) = if draining {
            Default::default()
        } else {
            self.demands(inner, &catalog, &batch.reports)
        };
        input.catalog_version = (!self.outdated && !draining).then_some(catalog.version);
        let was_idle = self.idle_under.load(Ordering::Relaxed) != NOT_IDLE;
        self.set_idle(&input.demands, &catalog);
        if batch.has_only_lease_calls && !self.outdated {
            // An idle task gets no message about a new job.
            input.unchanged = !was_idle;
            input.catalog_age = Some(CATALOG_AGE);
        }
        let queue_changed = batch.has_messages || !self.scanning;
        input.reports = std::mem::take(&mut batch.reports);
        input.released.clone_from(&self.released);
        input.queue_changed = queue_changed;
        let (left, most, counts) = (CLAIMED_BYTES, CLAIMED_BYTES, CountedBytes::Data);
        input.byte_budget = Some(ByteBudget { left, most, counts });
        let mut outcome = inner.engine.tick(&self.queue, &mut self.cache, input).await?;
        self.released.clone_from(&outcome.left);
        if outcome.pending {
            inner.pending.notify_one();
        }
        inner.record_throttling(
            &self.queue,
            std::mem::take(&mut outcome.shadowed_calls),
            std::mem::take(&mut outcome.faults),
        );
        Ok(CommittedTick { catalog, requesters, outcome, queue_changed })
    }

    /// When the next tick is due, if the one that began at `now` found nothing due before `due_at`.
    fn next_tick_at(
        &self,
        due_at: Option<Timestamp>,
        clock: &dyn Clock,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let retry_at = (!self.unsettled.is_empty()).then_some(now + ERROR_BACKOFF);
        let lease_end = self.leases.iter().map(|waiting| waiting.call.until).min();
        let lease_end = lease_end.map(|until| clock.at_machine_time(until));
        // This tick scanned for some types only: keep what an earlier one found for the watches.
        let watched = self.next_at.filter(|at| !self.watches.is_empty() && *at > now);
        [due_at, retry_at, lease_end, watched].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
