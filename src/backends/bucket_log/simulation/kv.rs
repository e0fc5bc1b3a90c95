//! The replica of the simulation: values by key, changed by conditional writes.

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{
    bugs::Bug,
    node::{OpenNode, retire},
    world::World,
};
use crate::bucket_log::{
    Durable, Frozen, Handle, LogRefusal, NextPart, Replica, ReplicaError, Restored, SnapshotParts,
    Tail,
    body::{self, StateDigest},
    key::{Epoch, Slot},
    object::{Hash, Kind, Object},
};
use tidegate_core::time::Timestamp;

/// A conditional write. A repeat of the same write changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Command {
    /// The write, which stays the same when it is repeated.
    pub write: u64,
    /// The attempt to make it.
    pub attempt: u64,
    pub key: u8,
    /// The version that the key must have.
    pub was: u64,
}

impl Command {
    pub fn encode(&self) -> Bytes {
        body::encode(self)
    }
}

/// The commands of an object.
pub fn commands(object: &Object) -> Vec<Command> {
    if object.header.kind != Kind::Record {
        return Vec::new();
    }
    let commands = body::unpack(&object.body).expect("a record has commands");
    commands.iter().map(|command| body::decode(command).expect("it is a command")).collect()
}

/// A version of a key, and the write that made it.
pub type Version = (u64, u64);

/// The state behind a prefix of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub values: BTreeMap<u8, Version>,
    /// Whether each write was made.
    pub done: BTreeMap<u64, bool>,
    pub seals: BTreeMap<Epoch, u64>,
    pub tail: Tail,
}

impl Default for State {
    fn default() -> Self {
        Self {
            values: BTreeMap::new(),
            done: BTreeMap::new(),
            seals: BTreeMap::new(),
            tail: Tail::START,
        }
    }
}

impl State {
    pub fn value(&self, key: u8) -> Version {
        self.values.get(&key).copied().unwrap_or_default()
    }

    pub fn execute(&mut self, command: Command) -> bool {
        if let Some(made) = self.done.get(&command.write) {
            return *made;
        }
        let holds = self.value(command.key).0 == command.was;
        if holds {
            self.values.insert(command.key, (command.was + 1, command.write));
        }
        self.done.insert(command.write, holds);
        holds
    }

    /// Applies the next object: the commands with their answers.
    pub fn apply(&mut self, object: &Object) -> Vec<(Command, bool)> {
        self.apply_commands(object, commands(object))
    }

    /// Applies the next object, which has these commands: they and their answers.
    pub fn apply_commands(
        &mut self,
        object: &Object,
        commands: Vec<Command>,
    ) -> Vec<(Command, bool)> {
        let executed = commands.into_iter().map(|command| (command, self.execute(command)));
        let answers = executed.collect();
        if object.header.kind == Kind::Seal {
            self.seals.insert(object.header.slot.epoch, object.header.slot.seq);
        }
        self.tail = Tail::after(object);
        answers
    }
}

/// The parts of a state in a snapshot.
#[derive(Serialize, Deserialize)]
struct Stored {
    values: BTreeMap<u8, Version>,
    done: BTreeMap<u64, bool>,
    seals: BTreeMap<u64, u64>,
    next: (u64, u64),
    hash: [u8; 32],
    time: Timestamp,
}

impl Stored {
    fn of(state: &State) -> Self {
        let State { values, done, seals, tail } = state.clone();
        Self {
            values,
            done,
            seals: seals.into_iter().map(|(epoch, seq)| (epoch.number(), seq)).collect(),
            next: (tail.next.epoch.number(), tail.next.seq),
            hash: tail.hash.0,
            time: tail.time,
        }
    }

    fn state(self) -> State {
        let epoch = |number| Epoch::new(number).expect("an epoch");
        let next = Slot { epoch: epoch(self.next.0), seq: self.next.1 };
        State {
            values: self.values,
            done: self.done,
            seals: self.seals.into_iter().map(|(number, seq)| (epoch(number), seq)).collect(),
            tail: Tail { next, hash: Hash(self.hash), time: self.time },
        }
    }
}

/// The replica of a node.
pub struct KvReplica {
    pub state: Mutex<State>,
    /// What is left of the state after a crash: a state that was, perhaps some records before.
    pub disk: Arc<Mutex<Option<State>>>,
    /// Whether it fails to freeze its state.
    pub cannot_freeze: AtomicBool,
    node: usize,
    world: Option<Arc<World>>,
}

impl KvReplica {
    /// A replica that starts with what is on its disk. One without a world is for the oracle.
    pub fn new(node: usize, disk: Arc<Mutex<Option<State>>>, world: Option<Arc<World>>) -> Self {
        let state = disk.lock().clone().unwrap_or_default();
        Self { state: state.into(), disk, cannot_freeze: false.into(), node, world }
    }

    fn sync(&self) {
        if self.world.as_ref().is_none_or(|world| world.executor.happens(0.5)) {
            *self.disk.lock() = Some(self.state.lock().clone());
        }
    }
}

#[async_trait]
impl Replica for KvReplica {
    type Answer = bool;

    fn schema(&self) -> u64 {
        1
    }

    fn tail(&self) -> Tail {
        self.state.lock().tail
    }

    fn bytes(&self) -> u64 {
        0
    }

    async fn apply(&self, objects: Vec<Durable>) -> Result<Vec<Vec<bool>>, ReplicaError> {
        let mut answers = Vec::new();
        for object in objects {
            let object = object.object();
            let applied = self.state.lock().apply(object);
            if let Some(world) = &self.world {
                world.oracle.lock().note_applied(self.node, object);
            }
            answers.push(applied.into_iter().map(|(_, made)| made).collect());
        }
        self.sync();
        Ok(answers)
    }

    async fn sealed(
        &self,
        epochs: RangeInclusive<Epoch>,
    ) -> Result<BTreeMap<Epoch, u64>, ReplicaError> {
        Ok(self.state.lock().seals.range(epochs).map(|(epoch, seq)| (*epoch, *seq)).collect())
    }

    async fn freeze(&self) -> Result<Box<dyn Frozen>, ReplicaError> {
        if self.cannot_freeze.load(Ordering::Relaxed) {
            return Err(ReplicaError::new("the disk does not answer"));
        }
        let mut state = self.state.lock().clone();
        let is_mislabelled =
            self.world.as_ref().is_some_and(|world| world.bug == Some(Bug::SnapshotMislabelled));
        let tail = state.tail;
        if is_mislabelled {
            state.values.pop_last();
        }
        let content = Hash::of(&body::encode(&(&state.values, &state.done)));
        // A planted bug must not be repaired before an invariant finds it.
        let has_bug = self.world.as_ref().is_some_and(|world| world.bug.is_some());
        let digest = StateDigest { form: "values".into(), hash: content.0 };
        let part = body::encode(&Stored::of(&state));
        Ok(Box::new(FrozenKv {
            tail,
            digest: Some(digest).filter(|_| !has_bug),
            parts: vec![part.slice(part.len() / 2..), part.slice(..part.len() / 2)],
        }))
    }

    async fn restore(&self, parts: &mut dyn SnapshotParts) -> Result<Restored, ReplicaError> {
        let mut whole = Vec::new();
        loop {
            match parts.next().await {
                NextPart::Part(bytes) => whole.extend(bytes),
                NextPart::End => break,
                NextPart::Gone => return Ok(Restored::Gone),
            }
        }
        let stored: Stored = body::decode(&whole).map_err(ReplicaError::new)?;
        let state = stored.state();
        if !parts.accepts(&state.tail) {
            return Ok(Restored::Gone);
        }
        *self.state.lock() = state;
        self.sync();
        Ok(Restored::Done)
    }

    async fn clear(&self) -> Result<(), ReplicaError> {
        *self.state.lock() = State::default();
        self.sync();
        Ok(())
    }
}

struct FrozenKv {
    tail: Tail,
    digest: Option<StateDigest>,
    /// The parts, last first.
    parts: Vec<Bytes>,
}

#[async_trait]
impl Frozen for FrozenKv {
    fn tail(&self) -> Tail {
        self.tail
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ReplicaError> {
        Ok(self.parts.pop())
    }

    async fn digest(&mut self) -> Result<Option<StateDigest>, ReplicaError> {
        Ok(self.digest.clone())
    }
}

/// A node with such a replica.
pub struct OpenKv {
    pub handle: Handle<bool>,
    pub replica: Arc<KvReplica>,
}

#[async_trait]
impl OpenNode for OpenKv {
    fn epoch(&self) -> Option<Epoch> {
        self.handle.epoch()
    }

    fn difference(&self) -> Option<Epoch> {
        self.handle.difference()
    }

    async fn prove_leadership(&self) -> Result<(), LogRefusal> {
        self.handle.prove_leadership().await
    }

    async fn retire(&self) {
        retire(&self.handle).await;
    }

    async fn submit(&self, command: Command) -> Result<bool, LogRefusal> {
        self.handle.submit(vec![command.encode()]).await.map(|answers| answers[0])
    }

    fn state(&self) -> State {
        self.replica.state.lock().clone()
    }

    fn rows(&self) -> Vec<String> {
        Vec::new()
    }

    fn execute_early(&self, command: Command) -> bool {
        self.replica.state.lock().execute(command)
    }

    /// The replica itself keeps what is left.
    fn crash(&self, _: PathBuf, _: f64) {}
}
