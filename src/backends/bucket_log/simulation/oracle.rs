//! The invariants of the log, checked over everything that a run did: at each claim, and at the end.
//!
//! | | |
//! |---|---|
//! | B1 | a slot never has two records (checked by the bucket itself) |
//! | B2 | what any node applied is part of one history |
//! | B3 | every acknowledged write is in it, with the acknowledged outcome |
//! | B4 | what was answered "not executed" is not in it |
//! | B5 | no effect without its record in it |
//! | B6 | a consistent read sees all that was acknowledged before it; any read sees a past state |
//! | B7 | an empty machine restores the whole history from what is left in the bucket |
//! | B8 | when faults end, some node leads within 30 seconds, and every client finishes |
//! | B9 | two nodes at one position have the same state, row by row, wherever they began to apply |

use std::{
    collections::{BTreeMap, BTreeSet},
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use async_trait::async_trait;

use super::{
    bugs::Bug,
    database::DatabaseReplica,
    kv::{Command, KvReplica, State, Version},
    network::{Direct, Objects},
    node::{OpenNode, RunEntropy},
    scenario::settings,
    world::World,
};
use crate::bucket_log::{
    Edge, Node, Replica, Tail,
    hints::SLOW_INTERVAL,
    key::{Epoch, ObjectKey, Slot},
    object::{Hash, Kind, Object},
};
use tidegate_core::{port::Clock, time::Timestamp};

/// The longest time, in milliseconds, without a leader after the faults, if no beat says that a leader
/// may be silent for longer.
const MAX_LEADERLESS: i64 = 30_000;
/// Most steps of a restore from the bucket.
const MAX_RESTORE_STEPS: u32 = 20_000;

/// An acknowledged write.
#[derive(Debug)]
struct Acknowledged {
    command: Command,
    made: bool,
    at: i64,
    node: usize,
}

/// A read.
#[derive(Debug)]
pub struct Read {
    pub key: u8,
    pub version: Version,
    pub began: i64,
    pub is_consistent: bool,
}

/// What happened in a run.
#[derive(Debug, Default)]
pub struct Oracle {
    acknowledged: BTreeMap<u64, Acknowledged>,
    pub refused: Vec<u64>,
    pub effects: Vec<u64>,
    pub reads: Vec<Read>,
    /// When the faults ended.
    pub calm_at: Option<i64>,
    /// When a node led for the first time after that.
    led_at: Option<i64>,
    applied: Vec<(usize, Slot, Hash)>,
}

/// The history: the records before the first seal of each epoch.
#[derive(Default)]
pub struct History {
    hashes: BTreeMap<Slot, Hash>,
    outcomes: BTreeMap<u64, bool>,
    versions: BTreeSet<(u8, Version)>,
    end: State,
}

impl History {
    /// Adds what is new. The first content of a slot never changes.
    fn advance(&mut self, world: &World) -> Result<(), String> {
        let objects: &Objects = &world.objects.lock();
        while let Some(bytes) = objects.first.get(&ObjectKey::Slot(self.end.tail.next)) {
            let slot = self.end.tail.next;
            let object = Object::decode(bytes.clone()).map_err(|error| error.to_string())?;
            if object.header.kind == Kind::Record {
                self.hashes.insert(slot, object.hash());
            }
            for (command, made) in self.end.apply_commands(&object, world.commands(&object)) {
                self.outcomes.insert(command.attempt, made);
                self.versions.insert((command.key, self.end.value(command.key)));
            }
        }
        Ok(())
    }
}

/// The longest time between two of `instants` after `from`, up to `until`.
pub fn longest_gap(from: i64, until: i64, instants: impl Iterator<Item = i64>) -> i64 {
    let mut times: Vec<i64> = instants.filter(|at| *at > from).chain([from, until]).collect();
    times.sort_unstable();
    times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
}

impl Oracle {
    pub fn note_applied(&mut self, node: usize, object: &Object) {
        if object.header.kind == Kind::Record {
            self.applied.push((node, object.header.slot, object.hash()));
        }
    }

    pub fn note_acknowledged(&mut self, node: usize, command: Command, made: bool, at: i64) {
        let acknowledged = Acknowledged { command, made, at, node };
        self.acknowledged.entry(command.attempt).or_insert(acknowledged);
        if made {
            self.effects.push(command.attempt);
        }
    }

    /// How many writes were acknowledged.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged.len()
    }

    /// The longest time between two acknowledgements after `from`, up to `until`.
    pub fn longest_silence(&self, from: i64, until: i64) -> i64 {
        longest_gap(from, until, self.acknowledged.values().map(|one| one.at))
    }

    fn check(&self, history: &History) -> Result<(), String> {
        for (node, slot, hash) in &self.applied {
            if history.hashes.get(slot) != Some(hash) {
                return Err(format!("B2: node {node} applied {slot}, not of the history"));
            }
        }
        for (attempt, acknowledged) in &self.acknowledged {
            let Acknowledged { command, made, node, .. } = acknowledged;
            match history.outcomes.get(attempt) {
                None => return Err(format!("B3: node {node} acknowledged and lost {command:?}")),
                Some(outcome) if outcome != made => {
                    return Err(format!("B3: node {node} answered {made} for {command:?}"));
                }
                Some(_) => {}
            }
        }
        if let Some(attempt) = self.refused.iter().find(|one| history.outcomes.contains_key(one)) {
            return Err(format!("B4: attempt {attempt} was refused and executed"));
        }
        let made = |attempt: &u64| history.outcomes.get(attempt) == Some(&true);
        if let Some(attempt) = self.effects.iter().find(|one| !made(one)) {
            return Err(format!("B5: attempt {attempt} had an effect and no record"));
        }
        self.check_reads(history)
    }

    fn check_reads(&self, history: &History) -> Result<(), String> {
        let written: BTreeMap<u64, (u8, u64)> = history
            .versions
            .iter()
            .map(|(key, (version, write))| (*write, (*key, *version)))
            .collect();
        let mut acknowledged: BTreeMap<u8, Vec<(i64, u64)>> = BTreeMap::new();
        for Acknowledged { command, made, at, .. } in self.acknowledged.values() {
            if let Some((key, version)) = written.get(&command.write).filter(|_| *made) {
                acknowledged.entry(*key).or_default().push((*at, *version));
            }
        }
        for read in &self.reads {
            let Read { key, version, began, is_consistent } = read;
            if version.0 > 0 && !history.versions.contains(&(*key, *version)) {
                return Err(format!("B6: {read:?} saw a state that never was"));
            }
            let before = acknowledged.get(key).into_iter().flatten();
            let newest = before.filter(|(at, _)| at < began).map(|(_, version)| *version).max();
            if *is_consistent && newest > Some(version.0) {
                return Err(format!("B6: {read:?} did not see {newest:?}"));
            }
        }
        Ok(())
    }
}

/// Checks every invariant that must hold at any time: at each claim, in the middle of a takeover.
pub fn check_so_far(world: &Arc<World>) -> Result<(), String> {
    if let Some(broken) = world.objects.lock().broken.clone() {
        return Err(broken);
    }
    let history = &mut *world.history.lock();
    history.advance(world)?;
    world.oracle.lock().check(history)?;
    let restored = replay(world, &Source::Bucket)?;
    let mut expected = history.end.clone();
    if world.has_databases() {
        // A refused command leaves no row.
        expected.done.retain(|_, made| *made);
    }
    if restored.state != expected {
        let (found, end) = (restored.state.tail.next, expected.tail.next);
        return Err(format!("B7: a restore reached {found} of {end}"));
    }
    let mut copies = BTreeMap::from([(restored.state.tail.next, restored)]);
    for node in world.all_open() {
        let copy = LocalState { state: node.state(), rows: node.rows() };
        let at = copy.state.tail.next;
        if *copies.entry(at).or_insert_with(|| copy.clone()) != copy {
            return Err(format!("B9: two nodes at {at} differ"));
        }
    }
    Ok(())
}

/// Notes whether a node leads for the first time after the faults.
pub fn note_leader(world: &World) {
    let is_awaited = {
        let oracle = world.oracle.lock();
        oracle.calm_at.is_some() && oracle.led_at.is_none()
    };
    if is_awaited && has_leader(world) {
        world.oracle.lock().led_at = Some(world.executor.now());
    }
}

/// Whether a node leads the last epoch of the history. One whose epoch was sealed only believes that it
/// leads.
fn has_leader(world: &World) -> bool {
    let Some((led, _)) = world.leader() else { return false };
    let history = &mut *world.history.lock();
    let advanced = history.advance(world);
    advanced.is_ok() && history.end.tail.next.epoch.number() == led
}

/// Checks every invariant at the end of a run.
pub fn check(world: &Arc<World>) -> Result<(), String> {
    check_so_far(world)?;
    let (calm_at, led_at) = {
        let oracle = world.oracle.lock();
        (oracle.calm_at, oracle.led_at)
    };
    if let Some(calm_at) = calm_at {
        // The last beat before a leader was lost may have said that the next one comes late, and a late
        // copy of such a beat is a sign of life, too.
        let silence = if world.has_hints() { 2 * SLOW_INTERVAL.as_millis() as i64 } else { 0 };
        let most = MAX_LEADERLESS + silence;
        if led_at.is_none_or(|led_at| led_at - calm_at > most) {
            let led_after = led_at.map(|led_at| led_at - calm_at);
            return Err(format!(
                "B8: no node led in time after the faults: {led_after:?} of {most}"
            ));
        }
    }
    if let Some(epoch) = world.all_open().iter().find_map(|node| node.difference()) {
        return Err(format!("B9: a state differs from the snapshot of epoch {epoch}"));
    }
    if world.has_databases() {
        check_replays(world)?;
    }
    let left = world.clients_left();
    if left > 0 {
        return Err(format!("B8: {left} writes of clients are left"));
    }
    Ok(())
}

/// Checks that every part of the log gives the same rows: all records that there ever were, and those
/// behind each snapshot.
fn check_replays(world: &Arc<World>) -> Result<(), String> {
    let snapshots: Vec<Epoch> = {
        let objects = world.objects.lock();
        let of_manifest = |key: &ObjectKey| match key {
            ObjectKey::Manifest(epoch) => Some(*epoch),
            _ => None,
        };
        objects.first.keys().filter_map(of_manifest).collect()
    };
    let whole = replay(world, &Source::FirstRecord)?;
    for epoch in snapshots {
        if replay(world, &Source::Snapshot(epoch))? != whole {
            return Err(format!("B9: a replay from the snapshot of epoch {epoch} differs"));
        }
    }
    let is_other = |node: &Arc<dyn OpenNode>| {
        node.state().tail == whole.state.tail && node.rows() != whole.rows
    };
    if world.all_open().iter().any(is_other) {
        return Err("B9: a replay of the whole log differs from a node".into());
    }
    Ok(())
}

/// A local state, with the rows of its database if it has one.
#[derive(Clone, PartialEq)]
struct LocalState {
    state: State,
    rows: Vec<String>,
}

/// What an empty machine reads.
enum Source {
    /// What is in the bucket.
    Bucket,
    /// Every record that there ever was.
    FirstRecord,
    /// The snapshot of an epoch, and every record behind it.
    Snapshot(Epoch),
}

/// The state of an empty machine after it has caught up.
fn replay(world: &Arc<World>, source: &Source) -> Result<LocalState, String> {
    if world.has_databases() {
        let opened = DatabaseReplica::open(usize::MAX, &world.empty_dir(), None);
        let replica = Arc::new(opened.map_err(|error| format!("B7: {error}"))?);
        catch_up(world, source, Arc::clone(&replica))?;
        Ok(LocalState { state: replica.state(), rows: replica.rows() })
    } else {
        let replica = Arc::new(KvReplica::new(usize::MAX, Arc::default(), None));
        catch_up(world, source, Arc::clone(&replica))?;
        let state = replica.state.lock().clone();
        Ok(LocalState { state, rows: Vec::new() })
    }
}

fn catch_up<R: Replica>(
    world: &Arc<World>,
    source: &Source,
    replica: Arc<R>,
) -> Result<(), String> {
    let has_all = !matches!(source, Source::Bucket);
    let edge = Edge {
        bucket: Arc::new(Direct { world: Arc::clone(world), has_all }),
        clock: Arc::new(ImpatientClock),
        entropy: Arc::new(RunEntropy(Arc::clone(world))),
    };
    let mut catch_up = pin!(async {
        let (node, _) = Node::open(edge, replica, settings(9)).await?;
        let node = node.with(world.bug.and_then(Bug::within));
        if let Source::Snapshot(epoch) = source
            && let Some(snapshot) = node.snapshot_of(*epoch).await?
        {
            let gone = node.restore(&snapshot).await?;
            assert_eq!(gone, None, "every part that there ever was is there");
        }
        node.catch_up().await
    });
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..MAX_RESTORE_STEPS {
        match catch_up.as_mut().poll(&mut context) {
            Poll::Pending => {}
            Poll::Ready(Err(error)) => return Err(format!("B7: a restore fails: {error}")),
            Poll::Ready(Ok(())) => return Ok(()),
        }
    }
    Err("B7: a restore does not end".into())
}

/// Returns pending once.
pub async fn one_step() {
    let mut is_over = false;
    poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut is_over, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// A clock whose waits take one step.
struct ImpatientClock;

#[async_trait]
impl Clock for ImpatientClock {
    fn now(&self) -> Timestamp {
        Tail::START.time
    }

    async fn sleep_until(&self, _: Timestamp) {
        one_step().await;
    }

    async fn sleep(&self, _: Duration) {
        one_step().await;
    }
}
