//! A run: three nodes, four clients, and what happens to them.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::{
    bugs::Bug,
    database,
    executor::{Actor, Executor},
    kv::{self, Command, State},
    network::Objects,
    node::{NodeState, OpenNode},
    oracle::{self, History, Oracle},
    scenario::Scenario,
};
use crate::bucket_log::object::Object;

pub const NODES: usize = 3;
const CLIENTS: usize = 4;
/// When faults end.
pub const QUIET_AT: i64 = 260_000;
/// The last PUT that was delayed arrives by then.
const SETTLED_AT: i64 = 470_000;
/// When every client must have finished.
pub const END_AT: i64 = 700_000;

/// Everything of a run.
pub struct World {
    pub executor: Arc<Executor>,
    pub objects: Mutex<Objects>,
    pub oracle: Mutex<Oracle>,
    pub history: Mutex<History>,
    pub bug: Option<Bug>,
    pub scenario: Scenario,
    pub nodes: Vec<NodeState>,
    /// Writes that the clients still have to make.
    pub left: AtomicU64,
    pub attempts: AtomicU64,
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

    pub fn break_with(&self, problem: String) {
        self.objects.lock().broken.get_or_insert(problem);
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
}
