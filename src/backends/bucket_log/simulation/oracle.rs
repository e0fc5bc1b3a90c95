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
//! | B9 | two nodes at one position have the same state |

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
    kv::{Command, KvReplica, State, Version},
    network::{Direct, Objects},
    world::{RunEntropy, World, settings},
};
use crate::bucket_log::{
    Edge, Node, Tail,
    hints::SLOW_INTERVAL,
    key::{ObjectKey, Slot},
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
    fn advance(&mut self, objects: &Objects) -> Result<(), String> {
        while let Some(bytes) = objects.first.get(&ObjectKey::Slot(self.end.tail.next)) {
            let slot = self.end.tail.next;
            let object = Object::decode(bytes.clone()).map_err(|error| error.to_string())?;
            if object.header.kind == Kind::Record {
                self.hashes.insert(slot, object.hash());
            }
            for (command, made) in self.end.apply(&object) {
                self.outcomes.insert(command.attempt, made);
                self.versions.insert((command.key, self.end.value(command.key)));
            }
        }
        Ok(())
    }
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
        let after = self.acknowledged.values().map(|one| one.at).filter(|at| *at > from);
        let mut times: Vec<i64> = after.chain([from, until]).collect();
        times.sort_unstable();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
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
    history.advance(&world.objects.lock())?;
    world.oracle.lock().check(history)?;
    let restored = restored(world)?;
    if restored != history.end {
        let (found, end) = (restored.tail.next, history.end.tail.next);
        return Err(format!("B7: a restore reached {found} of {end}"));
    }
    let mut states: BTreeMap<Slot, State> = BTreeMap::new();
    for state in world.states() {
        let first = states.entry(state.tail.next).or_insert_with(|| state.clone());
        if *first != state {
            return Err(format!("B9: two nodes at {} differ", state.tail.next));
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
    let advanced = history.advance(&world.objects.lock());
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
    let left = world.clients_left();
    if left > 0 {
        return Err(format!("B8: {left} writes of clients are left"));
    }
    Ok(())
}

/// The state of an empty machine after it has caught up from the bucket.
fn restored(world: &Arc<World>) -> Result<State, String> {
    let replica = Arc::new(KvReplica::new(usize::MAX, Arc::default(), None));
    let edge = Edge {
        bucket: Arc::new(Direct(Arc::clone(world))),
        clock: Arc::new(ImpatientClock),
        entropy: Arc::new(RunEntropy(Arc::clone(world))),
    };
    let mut catch_up = pin!(async {
        let (node, _) = Node::open(edge, Arc::clone(&replica), settings(9)).await?;
        node.with(world.bug.and_then(Bug::within)).catch_up().await
    });
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..MAX_RESTORE_STEPS {
        match catch_up.as_mut().poll(&mut context) {
            Poll::Pending => {}
            Poll::Ready(Err(error)) => return Err(format!("B7: a restore fails: {error}")),
            Poll::Ready(Ok(())) => return Ok(replica.state.lock().clone()),
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
