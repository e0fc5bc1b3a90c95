//! Three nodes, four clients, and what happens to them.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::{runtime::Runtime, sync::oneshot};

use super::{
    bugs::Bug,
    database::{self, DatabaseReplica, OpenDatabase},
    executor::{Actor, Executor},
    kv::{self, Command, KvReplica, OpenKv, State, Version},
    network::{Connection, Objects},
    oracle::{self, History, Oracle, Read},
};
use crate::bucket_log::{
    Edge, Handle, LogError, LogRefusal, Node, NodeSettings, Pace, Replica, ReplicaError,
    key::Epoch, object::Object,
};
use tidegate_core::{
    port::{Clock, Entropy},
    time::Timestamp,
};

pub const NODES: usize = 3;
const CLIENTS: usize = 4;
const KEYS: i64 = 3;
/// When faults end.
const QUIET_AT: i64 = 260_000;
/// The last PUT that was delayed arrives by then.
const SETTLED_AT: i64 = 470_000;
/// When every client must have finished.
pub const END_AT: i64 = 700_000;
/// The longest timer of a clock, after which it looks at the time.
const MAX_TIMER: Duration = Duration::from_secs(10);
/// The time from the stop of a node to its next start.
const RETIRED_FOR: i64 = 6_000;
/// How long a client waits for an answer of a node.
const CALL_TIMEOUT: i64 = 4_000;

/// The bounds of a node, small enough to be met often. No node is started to replace a leader.
pub fn settings(node: usize) -> NodeSettings {
    NodeSettings {
        address: format!("node {node}"),
        pace: Pace::Latency { interval: Duration::from_millis(20) },
        rollover_records: 6,
        kept_snapshots: 1,
        poll_interval: Duration::from_millis(500),
        patience: (Duration::from_secs(4), Duration::from_secs(10)),
        handover_interval: Duration::from_hours(1),
        ..NodeSettings::default()
    }
}

/// What the nodes of a world are like.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// The bounds of a node, by its number.
    pub settings: fn(usize) -> NodeSettings,
    pub has_hints: bool,
    /// Whether nodes are stopped as servers are, which announce their end.
    pub has_stops: bool,
    /// Whether the replica of each node is a database.
    pub has_databases: bool,
    /// Writes that each client makes.
    pub writes: u64,
}

/// Nodes without hints. A standby tries to lead whenever the leader is idle, so there are many
/// takeovers.
pub const WITHOUT_HINTS: Scenario =
    Scenario { settings, has_hints: false, has_stops: false, has_databases: false, writes: 45 };
/// Nodes with hints.
pub const WITH_HINTS: Scenario = Scenario { has_hints: true, ..WITHOUT_HINTS };
/// Nodes with hints. Some are stopped, and hand over.
pub const STOPPED: Scenario = Scenario { has_stops: true, ..WITH_HINTS };
/// Nodes with hints and databases. A check of them takes longer, so there are fewer writes.
pub const WITH_DATABASES: Scenario = Scenario { has_databases: true, writes: 20, ..WITH_HINTS };

/// A node in one of its lives, once it is open.
#[async_trait]
pub trait OpenNode: Send + Sync {
    /// The epoch that it leads, as far as it knows.
    fn epoch(&self) -> Option<Epoch>;

    /// The epoch of the snapshot that a state has differed from.
    fn difference(&self) -> Option<Epoch>;

    async fn prove_leadership(&self) -> Result<(), LogRefusal>;

    /// Stops it as a server does, which announces its end.
    async fn retire(&self);

    /// Executes `command` in a record: whether it was made.
    async fn submit(&self, command: Command) -> Result<bool, LogRefusal>;

    /// Its local state.
    fn state(&self) -> State;

    /// The rows of its database, if it has one.
    fn rows(&self) -> Vec<String>;

    /// Executes `command` without a record, for a planted bug.
    fn execute_early(&self, command: Command) -> bool;

    /// The machine crashes. In `dir` is what its disk has later: this part of what was written last.
    fn crash(&self, dir: PathBuf, part: f64);
}

/// Stops the node of `handle` as a server does: it leads until a standby waits for its end.
pub async fn retire<A>(handle: &Handle<A>) {
    handle.hurry();
    handle.awaited().await;
    handle.release();
}

struct NodeState {
    open: Mutex<Option<Arc<dyn OpenNode>>>,
    disk: Arc<Mutex<Option<State>>>,
    /// The directory of its database.
    dir: Mutex<PathBuf>,
    /// How far its clock is ahead, in milliseconds.
    skew: AtomicI64,
}

/// Everything of a run.
pub struct World {
    pub executor: Arc<Executor>,
    pub objects: Mutex<Objects>,
    pub oracle: Mutex<Oracle>,
    pub history: Mutex<History>,
    pub bug: Option<Bug>,
    scenario: Scenario,
    nodes: Vec<NodeState>,
    /// Writes that the clients still have to make.
    left: AtomicU64,
    attempts: AtomicU64,
    pub faults: AtomicU64,
    /// The directories of the databases.
    dirs: Option<TempDir>,
    next_dir: AtomicU64,
}

/// What a run reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub acknowledged: usize,
    pub epochs: u64,
    pub objects: usize,
    pub refilled: u64,
    pub faults: u64,
    pub reads: usize,
}

impl World {
    fn new(seed: u64, bug: Option<Bug>, scenario: Scenario) -> Arc<Self> {
        let dirs = scenario.has_databases.then(|| tempfile::tempdir().expect("a directory"));
        let node = || NodeState {
            open: Mutex::default(),
            disk: Arc::default(),
            dir: Mutex::default(),
            skew: 0.into(),
        };
        let world = Arc::new(Self {
            executor: Executor::new(seed),
            objects: Mutex::default(),
            oracle: Mutex::default(),
            history: Mutex::default(),
            bug,
            scenario,
            nodes: std::iter::repeat_with(node).take(NODES).collect(),
            left: (CLIENTS as u64 * scenario.writes).into(),
            attempts: 0.into(),
            faults: 0.into(),
            dirs,
            next_dir: 0.into(),
        });
        world.nodes.iter().for_each(|node| *node.dir.lock() = world.empty_dir());
        world
    }

    /// A directory that is not used yet.
    pub fn empty_dir(&self) -> PathBuf {
        let number = self.next_dir.fetch_add(1, Ordering::Relaxed);
        self.dirs.as_ref().map(|dirs| dirs.path().join(number.to_string())).unwrap_or_default()
    }

    pub fn has_databases(&self) -> bool {
        self.scenario.has_databases
    }

    /// The commands of an object.
    pub fn commands(&self, object: &Object) -> Vec<Command> {
        if self.has_databases() { database::commands(object) } else { kv::commands(object) }
    }

    /// Runs a world: what it reached, or the invariant that broke.
    pub fn run(seed: u64, bug: Option<Bug>, scenario: Scenario) -> Result<Summary, String> {
        // A database reads and writes the parts of snapshots on threads of a runtime.
        let runtime = scenario.has_databases.then(|| Runtime::new().expect("a runtime"));
        let _inside = runtime.as_ref().map(Runtime::enter);
        let world = Self::new(seed, bug, scenario);
        (0..NODES).for_each(|node| world.boot(node));
        for _ in 0..CLIENTS {
            world.executor.spawn(Actor::Client, Arc::clone(&world).client());
        }
        let faults = Arc::clone(&world);
        world.executor.spawn(Actor::Client, async move { faults.inject().await });
        let (over, mut claimed) = (Arc::clone(&world), None);
        world.executor.run(END_AT, || {
            let newest = over.objects.lock().claimed;
            oracle::note_leader(&over);
            if std::mem::replace(&mut claimed, newest) != newest
                && let Err(problem) = oracle::check_so_far(&over)
            {
                over.break_with(problem);
            }
            let is_settled = over.executor.now() > SETTLED_AT && over.clients_left() == 0;
            is_settled || over.objects.lock().broken.is_some()
        });
        let checked = oracle::check(&world);
        let summary = world.summary();
        world.end();
        checked.map(|()| summary)
    }

    /// Freezes a leader that has no clients, until others lead. Returns the epoch that it led, and
    /// the one that it counts as leading a while after it goes on. There are no other faults.
    pub fn freeze_idle_leader(seed: u64) -> (u64, Option<u64>) {
        let world = Self::without_faults(seed, None, WITHOUT_HINTS);
        (0..NODES).for_each(|node| world.boot(node));
        world.run_until(QUIET_AT + 30_000);
        // Without hints, an idle leader is often taken over from. Then no node leads for a moment.
        world.executor.run(END_AT, || world.leader().is_some());
        let (epoch, leader) = world.leader().expect("a node leads");
        let frozen_at = world.executor.now();
        world.executor.freeze(leader, 120_000);
        world.run_until(frozen_at + 170_000);
        let later = world.led_by(leader);
        world.end();
        (epoch, later)
    }

    /// The epoch that a node leads when nodes with hints have been idle for a while, and the one some
    /// minutes later. There are no faults.
    pub fn stay_idle(seed: u64) -> (Option<u64>, Option<u64>) {
        let world = Self::without_faults(seed, None, WITH_HINTS);
        (0..NODES).for_each(|node| world.boot(node));
        let epoch_at = |at| {
            world.run_until(at);
            world.leader().map(|(epoch, _)| epoch)
        };
        let epochs = (epoch_at(QUIET_AT + 90_000), epoch_at(QUIET_AT + 400_000));
        world.end();
        epochs
    }

    /// Checks a world whose nodes are all lost when its faults end.
    ///
    /// # Errors
    ///
    /// The invariant that broke.
    pub fn lose_all_nodes(seed: u64) -> Result<(), String> {
        let world = Self::without_faults(seed, None, WITHOUT_HINTS);
        (0..NODES).for_each(|node| world.boot(node));
        world.executor.run(END_AT, || world.leader().is_some());
        (0..NODES).for_each(|node| world.stop(node));
        world.oracle.lock().calm_at = Some(world.executor.now());
        world.executor.run(END_AT, || {
            oracle::note_leader(&world);
            false
        });
        let checked = oracle::check(&world);
        world.end();
        checked
    }

    /// Ends a run: tasks and replicas hold the world, which holds them.
    pub fn end(&self) {
        self.executor.clear();
        self.nodes.iter().for_each(|node| drop(node.open.lock().take()));
    }

    /// A world without faults, in which no node runs yet.
    pub fn without_faults(seed: u64, bug: Option<Bug>, scenario: Scenario) -> Arc<Self> {
        let world = Self::new(seed, bug, scenario);
        world.executor.after(QUIET_AT, || ());
        world.run_until(QUIET_AT);
        world
    }

    pub fn run_until(&self, at: i64) {
        self.executor.run(END_AT, || self.executor.now() >= at);
    }

    /// The newest epoch that a node leads, as far as it knows, and the node.
    pub fn leader(&self) -> Option<(u64, usize)> {
        (0..NODES).filter_map(|node| Some((self.led_by(node)?, node))).max()
    }

    /// The epoch that a node leads, as far as it knows.
    pub fn led_by(&self, node: usize) -> Option<u64> {
        Some(self.open(node)?.epoch()?.number())
    }

    fn summary(&self) -> Summary {
        let (oracle, objects) = (self.oracle.lock(), self.objects.lock());
        Summary {
            acknowledged: oracle.acknowledged(),
            epochs: self.states().map(|state| state.tail.next.epoch.number()).max().unwrap_or(0),
            objects: objects.first.len(),
            refilled: objects.refilled,
            faults: self.faults.load(Ordering::Relaxed),
            reads: oracle.reads.len(),
        }
    }

    pub fn has_faults(&self) -> bool {
        self.executor.now() < QUIET_AT
    }

    pub fn has_hints(&self) -> bool {
        self.scenario.has_hints
    }

    pub fn clients_left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// The nodes that are open.
    pub fn all_open(&self) -> Vec<Arc<dyn OpenNode>> {
        (0..NODES).filter_map(|node| self.open(node)).collect()
    }

    /// The present states of the nodes.
    pub fn states(&self) -> impl Iterator<Item = State> {
        self.all_open().into_iter().map(|node| node.state())
    }

    /// The time of a node's clock.
    pub fn now_of(&self, node: usize) -> i64 {
        self.executor.now() + self.nodes[node].skew.load(Ordering::Relaxed)
    }

    fn break_with(&self, problem: String) {
        self.objects.lock().broken.get_or_insert(problem);
    }

    pub fn boot(self: &Arc<Self>, node: usize) {
        let world = Arc::clone(self);
        let delay = self.executor.between(0, 1_000);
        self.executor.spawn(Actor::Node(node), async move {
            world.executor.elapse(delay).await;
            let error = world.live(node).await;
            world.break_with(format!("B8: node {node} stopped: {error}"));
        });
    }

    /// A life of a node, which ends only by a fault.
    async fn live(self: &Arc<Self>, number: usize) -> LogError {
        let world = Some(Arc::clone(self));
        if !self.has_databases() {
            let disk = Arc::clone(&self.nodes[number].disk);
            let replica = Arc::new(KvReplica::new(number, disk, world));
            let open = |handle, replica| Arc::new(OpenKv { handle, replica }) as Arc<dyn OpenNode>;
            return self.live_with(number, replica, open).await;
        }
        let dir = self.nodes[number].dir.lock().clone();
        match DatabaseReplica::open(number, &dir, world) {
            Ok(replica) => {
                let open = |handle, replica| {
                    Arc::new(OpenDatabase::new(handle, replica)) as Arc<dyn OpenNode>
                };
                self.live_with(number, Arc::new(replica), open).await
            }
            Err(error) => ReplicaError::new(error).into(),
        }
    }

    async fn live_with<R: Replica + 'static>(
        self: &Arc<Self>,
        number: usize,
        replica: Arc<R>,
        open: impl FnOnce(Handle<R::Answer>, Arc<R>) -> Arc<dyn OpenNode> + Send,
    ) -> LogError {
        let connection = Arc::new(Connection::new(Arc::clone(self), number));
        let edge = Edge {
            bucket: Arc::clone(&connection) as _,
            clock: Arc::new(NodeClock { world: Arc::clone(self), node: number }),
            entropy: Arc::new(RunEntropy(Arc::clone(self))),
        };
        let Scenario { settings, has_hints, .. } = self.scenario;
        let opened = Node::open(edge, Arc::clone(&replica), settings(number)).await;
        let (mut node, handle) = match opened {
            Ok((node, handle)) => (node.with(self.bug.and_then(Bug::within)), handle),
            Err(error) => return error,
        };
        if has_hints {
            node = node.with_hints(connection);
        }
        *self.nodes[number].open.lock() = Some(open(handle, replica));
        let ended = node.run().await;
        match ended {
            Err(error) => error,
        }
    }

    fn kill(self: &Arc<Self>, node: usize, is_wiped: bool) {
        self.stop(node);
        if is_wiped {
            *self.nodes[node].disk.lock() = None;
            *self.nodes[node].dir.lock() = self.empty_dir();
        }
        self.boot(node);
    }

    /// Stops a node as a server does, and starts it again later.
    fn retire(self: &Arc<Self>, node: usize) {
        let Some(open) = self.open(node) else { return };
        let world = Arc::clone(self);
        self.executor.spawn(Actor::Client, async move {
            open.retire().await;
            drop(open);
            world.executor.elapse(RETIRED_FOR).await;
            world.kill(node, false);
        });
    }

    /// Ends the life of a node. Its requests that are under way arrive.
    pub fn stop(&self, node: usize) {
        self.executor.kill(node);
        let open = self.nodes[node].open.lock().take();
        if let Some(open) = open.filter(|_| self.has_databases()) {
            let part = if self.executor.happens(0.5) { 1.0 } else { self.executor.fraction() };
            let left = self.empty_dir();
            open.crash(left.clone(), part);
            *self.nodes[node].dir.lock() = left;
        }
    }

    async fn inject(self: Arc<Self>) {
        let executor = &self.executor;
        executor.elapse(5_000).await;
        while self.has_faults() {
            let (node, drawn) = (executor.between(0, NODES as i64) as usize, executor.fraction());
            match drawn {
                ..0.35 => executor.freeze(node, executor.pick(&[3_000, 12_000, 40_000, 90_000])),
                ..0.65 => self.kill(node, executor.happens(0.5)),
                ..0.80 => {
                    let skew = executor.pick(&[-3_600_000, -5_000, 5_000, 3_600_000]);
                    self.nodes[node].skew.fetch_add(skew, Ordering::Relaxed);
                }
                ..0.95 if self.scenario.has_stops => self.retire(node),
                _ => {}
            }
            self.faults.fetch_add(1, Ordering::Relaxed);
            executor.elapse(executor.between(4_000, 16_000)).await;
        }
        executor.thaw_all();
        self.oracle.lock().calm_at = Some(executor.now());
    }

    async fn client(self: Arc<Self>) {
        let executor = &self.executor;
        executor.elapse(executor.between(0, 3_000)).await;
        let (mut target, mut made) = (0, 0);
        while made < self.scenario.writes {
            let (key, began) = (executor.between(0, KEYS) as u8, executor.now());
            let is_consistent = executor.happens(0.5);
            let world = Arc::clone(&self);
            let read = self.call(&mut target, move |node| async move {
                world.read(node, key, is_consistent).await
            });
            let Some(version) = read.await else {
                executor.elapse(300).await;
                continue;
            };
            self.oracle.lock().reads.push(Read { key, version, began, is_consistent });
            let write = self.next_attempt();
            made += u64::from(self.write(&mut target, write, key, version.0).await);
            let pause = if self.has_faults() { executor.between(0, 4_000) } else { 50 };
            executor.elapse(pause).await;
        }
    }

    /// Repeats a write until its outcome is known.
    async fn write(self: &Arc<Self>, target: &mut usize, write: u64, key: u8, was: u64) -> bool {
        loop {
            let attempt = self.next_attempt();
            let command = Command { write, attempt, key, was };
            let world = Arc::clone(self);
            let executed =
                self.call(target, move |node| async move { world.execute(node, command).await });
            if let Some(made) = executed.await {
                if made {
                    self.left.fetch_sub(1, Ordering::Relaxed);
                }
                return made;
            }
            self.executor.elapse(300).await;
        }
    }

    /// The number of a write, or of an attempt to make one.
    pub fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Calls a node: its answer, if there is one in time.
    async fn call<T: Send + 'static, F: Future<Output = Option<T>> + Send + 'static>(
        &self,
        target: &mut usize,
        serve: impl FnOnce(usize) -> F + Send + 'static,
    ) -> Option<T> {
        let executor = &self.executor;
        let any = || executor.between(0, NODES as i64) as usize;
        if executor.happens(0.3) {
            *target = any();
        }
        let (node, loses_answer) = (*target, self.has_faults() && executor.happens(0.03));
        let (reply, answer) = oneshot::channel();
        let reply = Arc::new(Mutex::new(Some(reply)));
        let timeout = Arc::clone(&reply);
        executor.after(CALL_TIMEOUT, move || drop(timeout.lock().take()));
        let runner = Arc::clone(executor);
        executor.after(10, move || {
            let back = Arc::clone(&runner);
            runner.spawn(Actor::Node(node), async move {
                let served = serve(node).await;
                if !loses_answer {
                    back.after(10, move || {
                        if let Some(reply) = reply.lock().take() {
                            let _ = reply.send(served);
                        }
                    });
                }
            });
        });
        let answered = answer.await.ok().flatten();
        if answered.is_none() {
            *target = any();
        }
        answered
    }

    fn open(&self, node: usize) -> Option<Arc<dyn OpenNode>> {
        self.nodes[node].open.lock().clone()
    }

    async fn read(&self, node: usize, key: u8, is_consistent: bool) -> Option<Version> {
        let open = self.open(node)?;
        if is_consistent {
            open.epoch()?;
            if self.bug != Some(Bug::ReadWithoutProof) {
                open.prove_leadership().await.ok()?;
            }
        }
        Some(open.state().value(key))
    }

    pub async fn execute(&self, node: usize, command: Command) -> Option<bool> {
        let open = self.open(node)?;
        let early = open.epoch().and(self.bug).map(|bug| match bug {
            Bug::AppliedBeforeDurable => open.execute_early(command),
            _ => open.state().execute(command),
        });
        if self.bug == Some(Bug::EffectBeforeDurable) && early == Some(true) {
            self.oracle.lock().effects.push(command.attempt);
        }
        let submitted = open.submit(command).await;
        let mut oracle = self.oracle.lock();
        match submitted {
            Ok(made) => {
                let made = match (self.bug, early) {
                    (Some(Bug::EvaluatedBeforeDurable), Some(early)) => early,
                    _ => made,
                };
                oracle.note_acknowledged(node, command, made, self.executor.now());
                Some(made)
            }
            Err(LogRefusal::NotLeader) => {
                oracle.refused.push(command.attempt);
                None
            }
            Err(LogRefusal::OutcomeUnknown | LogRefusal::TooLarge) => None,
        }
    }
}

/// The clock of a node, which may be wrong and jump.
struct NodeClock {
    world: Arc<World>,
    node: usize,
}

#[async_trait]
impl Clock for NodeClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.world.now_of(self.node))
    }

    /// Like the clock of a machine: it looks at the time now and then, so a step back makes the
    /// wait longer.
    async fn sleep_until(&self, at: Timestamp) {
        while at > self.now() {
            self.sleep(at.since(self.now()).min(MAX_TIMER)).await;
        }
    }

    async fn sleep(&self, span: Duration) {
        self.world.executor.elapse(span.as_millis() as i64).await;
    }
}

/// The random numbers of a run.
pub struct RunEntropy(pub Arc<World>);

impl Entropy for RunEntropy {
    fn bits(&self) -> u128 {
        self.0.executor.bits()
    }
}
