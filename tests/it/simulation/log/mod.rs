//! A replicated log: two nodes with the SQLite replica of servers, on a bucket with faults. Engines
//! work on the node that leads.
//!
//! | in production | here |
//! |---|---|
//! | a process leads at most once, and its supervisor starts it again | [`Log::restart`] |
//! | an engine lives in the process of its leader | `World::begin_engines` |
//! | a machine crashes, and its disk is lost or lags behind | [`Log::crash`] |
//! | a process is frozen, and another one takes over | [`Executor::freeze`](executor::Executor) |
//! | requests to the bucket fail | [`bucket`] |
//! | the clock of a machine is set | [`Log::set_clock`] |
//!
//! Every record is checked when the first node applies it, by the [`Model`] of all stores, and
//! other nodes must give the same answers to its transactions. At every takeover the database of the
//! new leader must have what the model has ([`Log::check_leader`]).

mod bucket;
mod executor;
mod replica;
mod store;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_backends::{
    bucket_log::{
        Edge, Ended, Handle, LogError, Node, NodeSettings, Pace, Replica, ReplicaError,
        immediate::{Immediate, at_once},
        key::Epoch,
    },
    sqlite::{SqliteReplica, SqliteStore, copy_after_crash},
};
use tidegate_core::{
    job::{JobId, QueueName},
    port::{
        Clock,
        job_store::{Committed, JobStore},
    },
    time::Timestamp,
};

use self::{
    bucket::{Bucket, Connection},
    executor::Executor,
    replica::{History, ObservedReplica},
};
pub use store::LogStore;

use super::{
    model::Model,
    scheduler::{Scheduler, SharedEntropy},
};

pub const NODES: usize = 2;

/// Counts the takeovers after which the database of the new leader was compared.
pub const TAKEOVERS: &str = "takeovers checked";
/// Counts the machines that were lost with their disk.
pub const LOST_DISKS: &str = "lost disks";
/// Counts the clocks that were set.
pub const SET_CLOCKS: &str = "set clocks";

/// By how many milliseconds a clock is set.
const CLOCK_STEPS: [i64; 4] = [-3_600_000, -5_000, 5_000, 3_600_000];

/// A planted bug in the log, or in the store in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogBug {
    /// A record counts as created before its PUT is answered, and the PUT is late.
    PutsUnconfirmed,
    /// A commit is answered before its record is durable and evaluated.
    AnsweredBeforeDurable,
}

impl LogBug {
    /// Every bug, and parts of the faults by which it is found: nodes that differ, or one that cannot go
    /// on; a job that is acknowledged too early.
    pub const ALL: [(Self, &'static [&'static str]); 2] =
        [(Self::PutsUnconfirmed, &["B2: ", "B8: "]), (Self::AnsweredBeforeDurable, &["I5: "])];
}

/// The bounds of a node, small enough to be met often.
fn settings(node: usize) -> NodeSettings {
    NodeSettings {
        address: format!("node {node}"),
        pace: Pace::Latency { interval: Duration::from_millis(20) },
        rollover_records: 60,
        kept_snapshots: 1,
        poll_interval: Duration::from_secs(1),
        patience: (Duration::from_secs(6), Duration::from_secs(12)),
        handover_interval: Duration::from_hours(1),
        ..NodeSettings::default()
    }
}

/// A process of a node.
pub struct Life {
    number: usize,
    handle: Handle<Committed>,
    replica: Arc<ObservedReplica>,
    store: Arc<SqliteStore>,
    is_over: AtomicBool,
}

impl Life {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct NodeState {
    /// Its process, once its database is open.
    life: Mutex<Option<Arc<Life>>>,
    /// The directory of its database.
    dir: Mutex<PathBuf>,
    /// How far the clock of its machine is ahead, in milliseconds.
    skew: Arc<AtomicI64>,
}

/// The nodes of a log.
pub struct Log {
    pub executor: Arc<Executor>,
    pub bucket: Arc<Bucket>,
    history: Mutex<History>,
    model: Arc<Mutex<Model>>,
    nodes: [NodeState; NODES],
    /// The newest epoch that a node was seen to lead, and its process.
    leading: Mutex<Option<(Epoch, Arc<Life>)>>,
    dir: PathBuf,
    next_dir: AtomicUsize,
    bug: Option<LogBug>,
}

impl Log {
    /// A log whose nodes have their databases in `dir`. None of them runs yet.
    pub fn new(
        scheduler: &Arc<Scheduler>,
        model: &Arc<Mutex<Model>>,
        dir: &Path,
        bug: Option<LogBug>,
    ) -> Arc<Self> {
        let log = Arc::new(Self {
            executor: Arc::new(Executor::new(Arc::clone(scheduler))),
            bucket: Arc::default(),
            history: Mutex::default(),
            model: Arc::clone(model),
            nodes: std::array::from_fn(|_| NodeState::default()),
            leading: Mutex::default(),
            dir: dir.to_owned(),
            next_dir: AtomicUsize::new(0),
            bug,
        });
        for node in &log.nodes {
            *node.dir.lock() = log.empty_dir();
        }
        log
    }

    /// A directory that is not used yet.
    fn empty_dir(&self) -> PathBuf {
        self.dir.join(self.next_dir.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Starts the process of a node.
    pub fn boot(self: &Arc<Self>, number: usize) {
        let log = Arc::clone(self);
        let delay = self.executor.scheduler.span(1.0);
        self.executor.spawn(number, async move {
            log.executor.elapse(delay).await;
            match log.live(number).await {
                Ok(_) => log.restart(number),
                Err(error) => {
                    log.model.lock().fault(format!("B8: node {number} stopped: {error}"));
                }
            }
        });
    }

    /// Runs a process of a node until its leadership has ended.
    async fn live(self: &Arc<Self>, number: usize) -> Result<Ended, LogError> {
        let dir = self.nodes[number].dir.lock().clone();
        let inner = Immediate(SqliteReplica::open(&dir).map_err(ReplicaError::new)?);
        let replica = Arc::new(ObservedReplica { inner, node: number, log: Arc::clone(self) });
        let (bucket, executor) = (Arc::clone(&self.bucket), Arc::clone(&self.executor));
        let connection = Arc::new(Connection { bucket, executor, bug: self.bug });
        let edge = Edge {
            bucket: Arc::clone(&connection) as _,
            clock: Arc::new(NodeClock {
                executor: Arc::clone(&self.executor),
                skew: Arc::clone(&self.nodes[number].skew),
            }),
            entropy: Arc::new(SharedEntropy(Arc::clone(&self.executor.scheduler))),
        };
        let (node, handle) = Node::open(edge, Arc::clone(&replica), settings(number)).await?;
        replica.inner.0.connect(handle.clone());
        let (store, is_over) = (replica.inner.0.store(), AtomicBool::new(false));
        let life = Life { number, handle, replica, store, is_over };
        *self.nodes[number].life.lock() = Some(Arc::new(life));
        node.with_hints(connection).run_once().await
    }

    /// Starts a process again that has ended by itself.
    fn restart(self: &Arc<Self>, number: usize) {
        self.end_life(number, Some(1.0));
        self.boot(number);
    }

    /// Crashes the machine of a node, and starts it again. Its disk has what was written, up to some
    /// end of it, or is lost.
    pub fn crash(self: &Arc<Self>, number: usize) {
        let scheduler = &self.executor.scheduler;
        let part = if scheduler.happens(0.5) {
            Some(if scheduler.happens(0.5) { 1.0 } else { scheduler.draw(100) as f64 / 100.0 })
        } else {
            self.model.lock().count(LOST_DISKS);
            None
        };
        self.executor.kill(number);
        self.end_life(number, part);
        self.boot(number);
    }

    /// Sets the clock of a node's machine, forward or back. Its processes go on.
    pub fn set_clock(&self, number: usize) {
        let step = self.executor.scheduler.pick(&CLOCK_STEPS);
        self.nodes[number].skew.fetch_add(step, Ordering::Relaxed);
        self.model.lock().count(SET_CLOCKS);
    }

    /// Ends the process of a node. This part of what its database has written last is kept, or nothing at
    /// all. Engines may still have the database open, so the next process has a copy.
    fn end_life(&self, number: usize, part: Option<f64>) {
        let life = self.nodes[number].life.lock().take();
        if life.is_none() && part.is_some() {
            return;
        }
        let next = self.empty_dir();
        if let Some(life) = &life {
            life.is_over.store(true, Ordering::Relaxed);
            if let Some(part) = part {
                let copied = copy_after_crash(life.store.file(), &next, part);
                copied.expect("a copy of the database");
            }
        }
        *self.nodes[number].dir.lock() = next;
    }

    /// The process that led last, as far as the nodes know. There was one.
    fn leading(&self) -> Arc<Life> {
        let leading = self.leading.lock();
        Arc::clone(&leading.as_ref().expect("a node has led").1)
    }

    /// Whether a node has led.
    pub fn has_led(&self) -> bool {
        self.leading.lock().is_some()
    }

    /// Notes which process leads. Returns whether it is another one than at the last call.
    pub fn note_leader(&self) -> bool {
        let lives = self.nodes.iter().filter_map(|node| node.life.lock().clone());
        let led = lives.filter_map(|life| Some((life.handle.epoch()?, life)));
        let Some((epoch, life)) = led.max_by_key(|(epoch, _)| *epoch) else { return false };
        let mut leading = self.leading.lock();
        if leading.as_ref().is_some_and(|(newest, _)| *newest >= epoch) {
            return false;
        }
        let before = leading.replace((epoch, Arc::clone(&life)));
        before.is_none_or(|(_, before)| !Arc::ptr_eq(&before, &life))
    }

    /// Checks that the database of the leader has the jobs and the ledger that the model has, unless
    /// another node has gone on since.
    pub fn check_leader(&self, queue: &QueueName) {
        let life = self.leading();
        let (history, mut model) = (self.history.lock(), self.model.lock());
        if life.is_over() || life.replica.tail() != history.tail {
            return;
        }
        model.count(TAKEOVERS);
        let mut ids: Vec<JobId> = model.jobs.keys().cloned().collect();
        ids.sort_unstable();
        let found = at_once(life.store.get(&ids)).expect("the database can be read");
        let differs = ids.into_iter().zip(found).find_map(|(id, found)| {
            let there = found.ok().flatten().map(|job| job.life.revision);
            (there != model.jobs.get(&id).map(|job| job.life.revision)).then_some(id)
        });
        let ledger = at_once(life.store.newer_ledger(queue, 0)).expect("a ledger can be read");
        let version = ledger.map(|(ledger, _)| ledger.version);
        let expected = model.ledgers.get(queue).map(|ledger| ledger.version);
        if let Some(id) = differs {
            model.fault(format!("I5: {id} is not what it was before the takeover"));
        }
        if version != expected {
            model.fault(format!("I1: the ledger was at {expected:?}, and is at {version:?}"));
        }
    }

    /// Ends every process: tasks and replicas hold the log, which holds them.
    pub fn end(&self) {
        self.executor.clear();
        self.nodes.iter().for_each(|node| drop(node.life.lock().take()));
        drop(self.leading.lock().take());
    }
}

/// The clock of a node's machine, which may be wrong and is set while its processes run.
struct NodeClock {
    executor: Arc<Executor>,
    skew: Arc<AtomicI64>,
}

#[async_trait::async_trait]
impl Clock for NodeClock {
    fn now(&self) -> Timestamp {
        let skew = self.skew.load(Ordering::Relaxed);
        Timestamp::from_millis(self.executor.scheduler.now().millis() + skew)
    }

    async fn sleep_until(&self, at: Timestamp) {
        while at > self.now() {
            self.executor.elapse(at.since(self.now())).await;
        }
    }

    async fn sleep(&self, span: Duration) {
        self.executor.elapse(span).await;
    }

    fn monotonic_now(&self) -> Duration {
        self.executor.scheduler.now().since(Timestamp::EPOCH)
    }
}
