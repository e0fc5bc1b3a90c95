//! The lives of a node: it is started with what its disk has, and killed, stopped or wiped.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{
    bugs::Bug,
    database::{DatabaseReplica, OpenDatabase},
    executor::Actor,
    kv::{Command, KvReplica, OpenKv, State},
    network::Connection,
    scenario::Scenario,
    world::World,
};
use crate::bucket_log::{
    Edge, Handle, LogError, LogRefusal, Node, Replica, ReplicaError, key::Epoch,
};
use tidegate_core::{
    port::{Clock, Entropy},
    time::Timestamp,
};

/// The longest timer of a clock, after which it looks at the time.
const MAX_TIMER: Duration = Duration::from_secs(10);
/// The time from the stop of a node to its next start.
const RETIRED_FOR: i64 = 6_000;

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

/// A node, whether it is open or not.
pub struct NodeState {
    pub open: Mutex<Option<Arc<dyn OpenNode>>>,
    pub disk: Arc<Mutex<Option<State>>>,
    /// The directory of its database.
    pub dir: Mutex<PathBuf>,
    /// How far its clock is ahead, in milliseconds.
    pub skew: AtomicI64,
}

impl World {
    /// The time of a node's clock.
    pub fn now_of(&self, node: usize) -> i64 {
        self.executor.now() + self.nodes[node].skew.load(Ordering::Relaxed)
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

    pub fn kill(self: &Arc<Self>, node: usize, is_wiped: bool) {
        self.stop(node);
        if is_wiped {
            *self.nodes[node].disk.lock() = None;
            *self.nodes[node].dir.lock() = self.empty_dir();
        }
        self.boot(node);
    }

    /// Stops a node as a server does, and starts it again later.
    pub fn retire(self: &Arc<Self>, node: usize) {
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

    pub fn open(&self, node: usize) -> Option<Arc<dyn OpenNode>> {
        self.nodes[node].open.lock().clone()
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

    fn monotonic_now(&self) -> Duration {
        Timestamp::from_millis(self.world.executor.now()).since(Timestamp::EPOCH)
    }
}

/// The random numbers of a run.
pub struct RunEntropy(pub Arc<World>);

impl Entropy for RunEntropy {
    fn bits(&self) -> u128 {
        self.0.executor.bits()
    }
}
