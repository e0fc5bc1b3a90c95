//! The bucket, and the way to it: requests are lost, delayed for minutes, answered twice or not at
//! all.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{bugs::Bug, executor::Actor, oracle::one_step, world::World};
use crate::bucket_log::{
    Hint, Hints, LogBucket, Removable,
    create::{GetAnswer, PutAnswer},
    key::{Epoch, ObjectKey, Slot},
    object::{Header, Kind, Object},
};
use tidegate_core::time::Timestamp;

/// How long a client waits for an answer.
const TIMEOUT: i64 = 2_000;
/// The lease of [`Bug::LeaseIsFence`].
const LEASE: i64 = 8_000;

/// The objects.
#[derive(Default)]
pub struct Objects {
    pub now: BTreeMap<ObjectKey, Bytes>,
    /// The first content of each object, whether it was removed or not.
    pub first: BTreeMap<ObjectKey, Bytes>,
    /// The hints, by their names.
    hints: BTreeMap<&'static str, Bytes>,
    /// When a beat was written that differs from the one before.
    pub beats: Vec<i64>,
    /// The newest claimed epoch.
    pub claimed: Option<Epoch>,
    /// How often an emptied slot was filled again.
    pub refilled: u64,
    /// The first broken invariant.
    pub broken: Option<String>,
}

#[derive(Clone)]
enum Request {
    Create(ObjectKey, Bytes),
    Overwrite(ObjectKey, Bytes),
    Read(ObjectKey),
    Remove(ObjectKey),
    WriteHint(Hint, Bytes),
    ReadHint(Hint),
}

#[derive(Clone)]
enum Answer {
    Put(PutAnswer),
    Get(GetAnswer),
    Removed(bool),
}

impl Objects {
    /// The answer to a request that arrives at `now`.
    fn serve(&mut self, request: &Request, now: i64) -> Answer {
        match request {
            Request::Read(key) => {
                let found = self.now.get(key).cloned();
                Answer::Get(found.map_or(GetAnswer::Absent, GetAnswer::Found))
            }
            Request::Remove(key) => {
                self.now.remove(key);
                Answer::Removed(true)
            }
            Request::WriteHint(hint, bytes) => {
                let before = self.hints.insert(hint.name(), bytes.clone());
                if *hint == Hint::Leader && before.as_ref() != Some(bytes) {
                    self.beats.push(now);
                }
                Answer::Put(PutAnswer::Created)
            }
            Request::ReadHint(hint) => {
                let found = self.hints.get(hint.name()).cloned();
                Answer::Get(found.map_or(GetAnswer::Absent, GetAnswer::Found))
            }
            Request::Create(key, _) if self.now.contains_key(key) => Answer::Put(PutAnswer::Exists),
            Request::Create(key, bytes) | Request::Overwrite(key, bytes) => {
                self.put(*key, bytes.clone());
                Answer::Put(PutAnswer::Created)
            }
        }
    }

    fn put(&mut self, key: ObjectKey, bytes: Bytes) {
        let is_part = matches!(key, ObjectKey::Part { .. });
        if let Some(first) = self.first.get(&key).filter(|_| !is_part) {
            self.refilled += 1;
            let is_late_seal = kind(&bytes) == Some(Kind::Seal) && !self.now.contains_key(&key);
            if *first != bytes && !is_late_seal {
                let problem = format!("B1: {key} had two contents");
                self.broken.get_or_insert(problem);
            }
        }
        if let ObjectKey::Claim(epoch) = key {
            self.claimed = self.claimed.max(Some(epoch));
        }
        self.first.entry(key).or_insert_with(|| bytes.clone());
        self.now.insert(key, bytes);
    }
}

fn kind(bytes: &Bytes) -> Option<Kind> {
    Some(Object::decode(bytes.clone()).ok()?.header.kind)
}

/// What a connection remembers for the sake of a bug, or of a fault.
#[derive(Default)]
struct Memory {
    /// What the node is shown in place of an object.
    shown: BTreeMap<ObjectKey, Bytes>,
    /// Objects that the node sees as those of another process, once.
    lies: BTreeSet<ObjectKey>,
    /// The bytes of the first PUT of each record.
    originals: BTreeMap<ObjectKey, Bytes>,
    /// The newest epoch that the node has claimed.
    claimed: Option<Epoch>,
    /// The newest record that the node has created.
    newest: Option<Slot>,
    /// When the lease ends.
    lease_until: i64,
}

/// The way of one life of a node to the bucket.
pub struct Connection {
    world: Arc<World>,
    node: usize,
    memory: Mutex<Memory>,
}

impl Connection {
    pub fn new(world: Arc<World>, node: usize) -> Self {
        Self { world, node, memory: Mutex::default() }
    }

    fn has(&self, bug: Bug) -> bool {
        self.world.bug == Some(bug)
    }

    async fn send(&self, request: Request) -> Answer {
        self.world.send(request).await
    }

    async fn put(&self, request: Request) -> PutAnswer {
        match self.send(request).await {
            Answer::Put(answer) => answer,
            _ => PutAnswer::Unknown,
        }
    }

    /// Shows the node `bytes` in the place of `key`, although they are not there.
    fn show(&self, key: ObjectKey, bytes: Bytes) -> PutAnswer {
        self.memory.lock().shown.insert(key, bytes);
        PutAnswer::Created
    }

    fn lie(&self, key: ObjectKey) -> PutAnswer {
        self.memory.lock().lies.insert(key);
        PutAnswer::Exists
    }

    /// Freezes the node before its request, sometimes.
    async fn freeze(&self, probability: f64) {
        let executor = &self.world.executor;
        if executor.happens(probability) && self.world.has_faults() {
            executor.freeze(self.node, executor.pick(&[20_000, 60_000]));
            executor.elapse(10).await;
        }
    }

    async fn create_seal(&self, slot: Slot, header: Header, bytes: Bytes) -> PutAnswer {
        let key = ObjectKey::Slot(slot);
        let executor = &self.world.executor;
        // What the chain and the second look for a snapshot prevent is rare.
        self.freeze(if self.has(Bug::ChainAndSnapshotUnchecked) { 0.6 } else { 0.1 }).await;
        let claimed = self.memory.lock().claimed;
        let is_last = claimed.is_some_and(|claimed| slot.epoch.next() == claimed);
        if self.has(Bug::NoSeal) || (self.has(Bug::OneEpochSealed) && !is_last) {
            return self.show(key, bytes);
        }
        if self.has(Bug::SealOverwrites) {
            return self.put(Request::Overwrite(key, bytes)).await;
        }
        let elsewhere = if self.has(Bug::SealLeavesGap) && executor.happens(0.3) {
            Some(slot.next())
        } else if self.has(Bug::SealedAfterList) {
            self.world.highest(slot.epoch).map(Slot::next).filter(|behind| *behind > slot)
        } else {
            None
        };
        if let Some(slot) = elsewhere {
            let moved = Object::new(Header { slot, ..header }, &Bytes::new());
            self.put(Request::Create(ObjectKey::Slot(slot), moved.bytes().clone())).await;
            return self.show(key, bytes);
        }
        self.put(Request::Create(key, bytes)).await
    }

    async fn create_record(&self, slot: Slot, object: Object) -> PutAnswer {
        let (key, bytes) = (ObjectKey::Slot(slot), object.bytes().clone());
        let now = self.world.now_of(self.node);
        if self.has(Bug::LeaseIsFence) {
            if now > self.memory.lock().lease_until {
                return self.lie(key);
            }
            let answer = self.put(Request::Overwrite(key, bytes)).await;
            if answer == PutAnswer::Created {
                self.memory.lock().lease_until = now + LEASE;
            }
            return answer;
        }
        let is_repeat = self.memory.lock().originals.insert(key, bytes.clone()).is_some();
        let bytes = if is_repeat && self.has(Bug::RepeatedWithOtherBytes) {
            let time = Timestamp::from_millis(object.header.time.millis() + 1);
            Object::new(Header { time, ..object.header }, &object.body).bytes().clone()
        } else {
            bytes
        };
        match self.put(Request::Create(key, bytes)).await {
            PutAnswer::Unknown if self.has(Bug::UnknownIsFailed) => self.lie(key),
            PutAnswer::Created => {
                let mut memory = self.memory.lock();
                memory.newest = memory.newest.max(Some(slot));
                PutAnswer::Created
            }
            answer => answer,
        }
    }

    async fn create_part(&self, key: ObjectKey, bytes: Bytes) -> PutAnswer {
        if self.has(Bug::ManifestBeforeParts) {
            return self.show(key, bytes);
        }
        if let ObjectKey::Part { epoch, index: 0, .. } = key
            && self.has(Bug::TruncatedBeforeSnapshot)
        {
            for slot in self.world.records(|slot| slot.epoch <= epoch) {
                self.send(Request::Remove(ObjectKey::Slot(slot))).await;
            }
        }
        self.put(Request::Create(key, bytes)).await
    }

    async fn create_manifest(&self, key: ObjectKey, bytes: Bytes) -> PutAnswer {
        let answer = self.put(Request::Create(key, bytes)).await;
        if self.has(Bug::ManifestBeforeParts) {
            let parts: Vec<(ObjectKey, Bytes)> = {
                let shown = &mut self.memory.lock().shown;
                shown.extract_if(.., |key, _| matches!(key, ObjectKey::Part { .. })).collect()
            };
            let world = Arc::clone(&self.world);
            self.world.executor.spawn(Actor::Node(self.node), async move {
                world.executor.elapse(5_000).await;
                for (key, bytes) in parts {
                    world.send(Request::Create(key, bytes)).await;
                }
            });
        }
        let newest = self.memory.lock().newest;
        if let Some(newest) = newest.filter(|_| self.has(Bug::OpenEpochTruncated)) {
            for slot in
                self.world.records(|slot| slot.epoch == newest.epoch && slot.seq <= newest.seq)
            {
                self.send(Request::Remove(ObjectKey::Slot(slot))).await;
            }
        }
        answer
    }
}

#[async_trait]
impl LogBucket for Connection {
    async fn create(&self, key: &ObjectKey, bytes: Bytes) -> PutAnswer {
        let answer = match *key {
            ObjectKey::Claim(epoch) => {
                self.memory.lock().claimed = Some(epoch);
                match self.put(Request::Create(*key, bytes)).await {
                    PutAnswer::Unknown if self.has(Bug::UnknownClaimIsOwn) => PutAnswer::Created,
                    answer => answer,
                }
            }
            ObjectKey::Slot(slot) => {
                let object = Object::decode(bytes).expect("the node encodes what it creates");
                match object.header.kind {
                    Kind::Seal => {
                        let bytes = object.bytes().clone();
                        self.create_seal(slot, object.header, bytes).await
                    }
                    Kind::Record => self.create_record(slot, object).await,
                    _ => {
                        if self.has(Bug::UnknownClaimIsOwn) {
                            self.freeze(0.6).await;
                        }
                        self.memory.lock().lease_until = self.world.now_of(self.node) + LEASE;
                        self.put(Request::Create(*key, object.bytes().clone())).await
                    }
                }
            }
            ObjectKey::Part { .. } => self.create_part(*key, bytes).await,
            ObjectKey::Manifest(_) => self.create_manifest(*key, bytes).await,
            ObjectKey::Identity | ObjectKey::Probe(_) => {
                self.put(Request::Create(*key, bytes)).await
            }
        };
        let decides = matches!(key, ObjectKey::Claim(_) | ObjectKey::Slot(_));
        match answer {
            PutAnswer::Exists if decides && self.has(Bug::ExistsIsOwn) => PutAnswer::Created,
            PutAnswer::Exists if decides && self.has(Bug::ExistsIsForeign) => self.lie(*key),
            answer => answer,
        }
    }

    async fn read(&self, key: &ObjectKey) -> GetAnswer {
        {
            let mut memory = self.memory.lock();
            if memory.lies.remove(key) {
                return GetAnswer::Found(Bytes::from_static(b"another object"));
            }
            if let Some(bytes) = memory.shown.get(key) {
                return GetAnswer::Found(bytes.clone());
            }
        }
        match self.send(Request::Read(*key)).await {
            Answer::Get(GetAnswer::Found(found)) if self.has(Bug::RepeatedWithOtherBytes) => {
                let memory = self.memory.lock();
                let decode = |bytes: &Bytes| Object::decode(bytes.clone()).ok();
                let original = memory.originals.get(key).filter(|original| {
                    decode(original).zip(decode(&found)).is_some_and(|(original, found)| {
                        original.header.nonce == found.header.nonce && original.body == found.body
                    })
                });
                GetAnswer::Found(original.cloned().unwrap_or(found))
            }
            Answer::Get(answer) => answer,
            _ => GetAnswer::Unknown,
        }
    }

    async fn remove(&self, object: &Removable) -> bool {
        let key = object.key();
        if let ObjectKey::Slot(slot) = key
            && self.has(Bug::SealsRemoved)
        {
            for seal in self.world.seals(slot.epoch) {
                self.send(Request::Remove(ObjectKey::Slot(seal))).await;
            }
        }
        matches!(self.send(Request::Remove(key)).await, Answer::Removed(true))
    }
}

/// An older hint may replace a newer one, because a request may arrive late.
#[async_trait]
impl Hints for Connection {
    async fn write(&self, hint: Hint, bytes: Bytes) -> bool {
        self.put(Request::WriteHint(hint, bytes)).await == PutAnswer::Created
    }

    async fn read(&self, hint: Hint) -> Option<Bytes> {
        match self.send(Request::ReadHint(hint)).await {
            Answer::Get(GetAnswer::Found(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

impl World {
    /// Sends a request through the network: an answer, or silence until the timeout.
    async fn send(self: &Arc<Self>, request: Request) -> Answer {
        let unknown = match request {
            Request::Create(..) | Request::Overwrite(..) | Request::WriteHint(..) => {
                Answer::Put(PutAnswer::Unknown)
            }
            Request::Read(_) | Request::ReadHint(_) => Answer::Get(GetAnswer::Unknown),
            Request::Remove(_) => Answer::Removed(false),
        };
        let (reply, answer) = oneshot::channel();
        self.deliver(&request, unknown.clone(), &Arc::new(Mutex::new(Some(reply))));
        answer.await.unwrap_or(unknown)
    }

    fn deliver(self: &Arc<Self>, request: &Request, unknown: Answer, reply: &ReplySlot) {
        let executor = &self.executor;
        let (mut drawn, fast) = (executor.fraction(), executor.between(20, 80));
        let has_faults = self.has_faults();
        let is_write = !matches!(request, Request::Read(_) | Request::ReadHint(_));
        // What these bugs need is rare: a write that arrives in the next life of its process, and a claim
        // whose answer is lost.
        let needed = match (self.bug, request) {
            (Some(Bug::EpochReused), _) if is_write => Some(0.93),
            (Some(Bug::UnknownClaimIsOwn), Request::Create(ObjectKey::Claim(_), _)) => Some(0.91),
            _ => None,
        };
        drawn = needed.filter(|_| drawn < 0.3).unwrap_or(drawn);
        let answer = |delay: i64, answer: Answer| {
            let reply = Arc::clone(reply);
            executor.after(delay, move || respond(&reply, answer));
        };
        let arrive = |delay: i64, is_answered: bool| {
            let (world, request, reply) = (Arc::clone(self), request.clone(), Arc::clone(reply));
            executor.after(delay, move || {
                let served = world.objects.lock().serve(&request, world.executor.now());
                if is_answered {
                    let back = Arc::clone(&world);
                    back.executor.after(fast, move || respond(&reply, served));
                }
            });
        };
        match drawn {
            _ if !has_faults => arrive(fast, true),
            ..0.82 => arrive(fast, true),
            // Slow.
            ..0.87 => arrive(fast + executor.between(0, 1_500), true),
            // The request is lost.
            ..0.90 => answer(TIMEOUT, unknown),
            // The answer is lost.
            ..0.925 => {
                arrive(fast, false);
                answer(TIMEOUT, unknown);
            }
            // It arrives long after its client has given up.
            ..0.95 => {
                arrive(executor.between(2_000, 150_000), false);
                answer(TIMEOUT, unknown);
            }
            // It is repeated within the client: one's own object exists.
            ..0.98 => {
                arrive(fast, false);
                arrive(2 * fast, true);
            }
            // A conflict: nothing was written.
            ..0.99 if matches!(request, Request::Create(..)) => {
                answer(fast, Answer::Put(PutAnswer::Exists));
            }
            // An error of the store, before or after the write.
            _ => {
                answer(fast, unknown);
                if executor.happens(0.5) {
                    arrive(fast, false);
                }
            }
        }
        if is_write && has_faults && executor.happens(0.03) {
            arrive(executor.between(3_000, 200_000), false);
        }
    }

    /// The highest slot of an epoch in a list of objects, which lags behind.
    fn highest(&self, epoch: Epoch) -> Option<Slot> {
        let all = self.records(|slot| slot.epoch == epoch);
        let lag = usize::from(self.executor.happens(0.3));
        all.len().checked_sub(1 + lag).map(|index| all[index])
    }

    fn slots(&self, selects: impl Fn(Kind, Slot) -> bool) -> Vec<Slot> {
        let objects = self.objects.lock();
        let slots = objects.now.iter().filter_map(|(key, bytes)| match key {
            ObjectKey::Slot(slot) => Some((*slot, kind(bytes)?)),
            _ => None,
        });
        slots.filter(|(slot, kind)| selects(*kind, *slot)).map(|(slot, _)| slot).collect()
    }

    fn records(&self, selects: impl Fn(Slot) -> bool) -> Vec<Slot> {
        self.slots(|kind, slot| kind != Kind::Seal && selects(slot))
    }

    fn seals(&self, epoch: Epoch) -> Vec<Slot> {
        self.slots(|kind, slot| kind == Kind::Seal && slot.epoch == epoch)
    }
}

type ReplySlot = Arc<Mutex<Option<oneshot::Sender<Answer>>>>;

/// Answers a request once. A client that gave up, or was killed, gets no answer.
fn respond(reply: &ReplySlot, answer: Answer) {
    if let Some(reply) = reply.lock().take() {
        let _ = reply.send(answer);
    }
}

/// The bucket without a network, for the oracle.
pub struct Direct {
    pub world: Arc<World>,
    /// Whether it has every object that there ever was.
    pub has_all: bool,
}

#[async_trait]
impl LogBucket for Direct {
    async fn create(&self, _: &ObjectKey, _: Bytes) -> PutAnswer {
        unreachable!("the oracle only reads")
    }

    async fn read(&self, key: &ObjectKey) -> GetAnswer {
        one_step().await;
        let objects = self.world.objects.lock();
        let found = if self.has_all { objects.first.get(key) } else { objects.now.get(key) };
        found.cloned().map_or(GetAnswer::Absent, GetAnswer::Found)
    }

    async fn remove(&self, _: &Removable) -> bool {
        unreachable!("the oracle only reads")
    }
}
