//! Following the log: what is there is checked, applied, and never skipped.

use bytes::Bytes;
use futures_util::future::join_all;

use super::{
    body::{self, EpochClaim, StartRecord},
    error::LogError,
    key::{Epoch, ObjectKey, Slot},
    newest::EpochSearch,
    node::Node,
    object::{Hash, Kind, LogId, Object},
    planted::PlantedBug,
    replica::Replica,
    snapshot::Snapshot,
    tail::{Durable, NotNext, Tail},
};

/// Most slots that are read at once by a node that is behind.
const MAX_READ_AHEAD: u64 = 32;
/// Bytes of objects read at once, compressed, above which fewer are read next. They are applied
/// together, and a replica decodes one of them at a time.
const MAX_READ_AHEAD_BYTES: usize = 16 << 20;
/// How often in a row the local state may be discarded. More often means that the bucket itself is
/// wrong: a race with a truncation discards it once or twice.
const MAX_DISCARDS: u32 = 10;
/// How often in a row an object may be missing that must exist: a record, a manifest or a part. A
/// race with a truncation hides the snapshot that has taken its place once.
pub(super) const MAX_MISSES: u32 = 3;

/// Where following the log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Followed {
    /// The next slot is empty.
    ToEmptySlot,
    /// The next object follows another one than the local state has: that state is behind a
    /// truncation, or wrong.
    Elsewhere,
}

/// The continuation of the log in bytes that were read from successive slots.
#[derive(Debug, Default)]
struct Continuation {
    objects: Vec<Durable>,
    /// Whether there may be more: every slot that was read had the next object.
    may_go_on: bool,
    is_elsewhere: bool,
}

impl<R: Replica> Node<R> {
    /// Compares the local state with the log before anything is built on it: the object before its
    /// tail must be the one that it has applied.
    pub(super) async fn verify_start(&self) -> Result<(), LogError> {
        let tail = self.replica.tail();
        let Some(before) = self.slot_before(tail).await? else { return Ok(()) };
        let key = ObjectKey::Slot(before);
        let hash = match self.edge.read(&key).await {
            Some(bytes) => {
                let object =
                    Object::decode(bytes).map_err(|error| LogError::object(&key, error))?;
                (object.header.log == self.log).then(|| object.hash())
            }
            None => None,
        };
        // A slot that a truncation has emptied proves nothing, and a snapshot takes its place.
        if hash != Some(tail.hash) {
            tracing::warn!(%before, "the local state is not of this log, or behind a truncation");
            self.replica.clear().await?;
        }
        Ok(())
    }

    async fn slot_before(&self, tail: Tail) -> Result<Option<Slot>, LogError> {
        let Slot { epoch, seq } = tail.next;
        if seq > 0 {
            return Ok(Some(Slot { epoch, seq: seq - 1 }));
        }
        let Some(epoch) = epoch.previous() else {
            return Ok((tail.hash != Hash::NONE).then_some(Slot::FIRST));
        };
        let seals = self.replica.sealed(epoch..=epoch).await?;
        Ok(Some(Slot { epoch, seq: seals.get(&epoch).copied().unwrap_or(0) }))
    }

    /// Brings the local state to the end of the log, over a snapshot where the log is gone.
    pub(super) async fn catch_up(&self) -> Result<(), LogError> {
        self.reach_end().await?;
        self.leadership.set_caught_up(true);
        Ok(())
    }

    async fn reach_end(&self) -> Result<(), LogError> {
        let (mut discards, mut misses, mut missing) = (0, 0, None);
        loop {
            let followed = self.follow(1).await?;
            let here = self.replica.tail().next;
            // A snapshot of this epoch or a later one needs a claim above it, so without one the
            // slot has never been filled. That claim is read after the slot.
            let newest = self.newest_epoch().await;
            if followed == Followed::ToEmptySlot && newest <= Some(here.epoch) {
                return Ok(());
            }
            let snapshot = self.newest_snapshot().await?;
            let gone = match (followed, snapshot) {
                (Followed::ToEmptySlot, Some(snapshot)) if snapshot.epoch >= here.epoch => {
                    self.restore(&snapshot).await?
                }
                (Followed::ToEmptySlot, _) => {
                    if !self.has_start(here.epoch.next()).await {
                        return Ok(());
                    }
                    // The epoch was sealed behind this slot, so the slot was filled before.
                    Some(ObjectKey::Slot(here))
                }
                (Followed::Elsewhere, snapshot) => {
                    discards += 1;
                    if discards > MAX_DISCARDS {
                        let problem = NotNext::Unchained;
                        return Err(LogError::object(&ObjectKey::Slot(here), problem));
                    }
                    self.discard(snapshot).await?;
                    None
                }
            };
            if let Some(gone) = gone {
                misses = if missing.replace(gone) == Some(gone) { misses + 1 } else { 1 };
                if misses > MAX_MISSES {
                    return Err(LogError::gone(&gone));
                }
            }
        }
    }

    /// Whether `epoch` has its start record. Then every epoch before it is sealed.
    async fn has_start(&self, epoch: Epoch) -> bool {
        self.edge.read(&ObjectKey::Slot(Slot::first_of(epoch))).await.is_some()
    }

    /// Replaces the local state by `snapshot`, or by the empty state. Readers see the local state
    /// until the snapshot is complete.
    pub(super) async fn discard(&self, snapshot: Option<Snapshot>) -> Result<(), LogError> {
        if let Some(snapshot) = snapshot
            && self.restore(&snapshot).await?.is_none()
        {
            return Ok(());
        }
        self.leadership.set_caught_up(false);
        self.replica.clear().await?;
        self.edge.pause(self.settings.poll_interval / 4).await;
        Ok(())
    }

    /// Applies what continues the log, until a slot is empty. It reads `ahead` slots at once first.
    pub(super) async fn follow(&self, mut ahead: u64) -> Result<Followed, LogError> {
        loop {
            let tail = self.replica.tail();
            let slots = (0..ahead).map(|add| Slot { seq: tail.next.seq + add, ..tail.next });
            let keys: Vec<ObjectKey> = slots.map(ObjectKey::Slot).collect();
            let found = join_all(keys.iter().map(|key| self.edge.read(key))).await;
            let bytes: usize = found.iter().flatten().map(Bytes::len).sum();
            let Continuation { objects, may_go_on, is_elsewhere } =
                self.continuation(tail, found)?;
            if !objects.is_empty() {
                self.replica.apply(objects).await?;
                self.begin_audit().await;
            } else if self.planted.has(PlantedBug::MissingSlotSkipped)
                && let Some(object) = self.behind_gap(tail).await
            {
                self.replica.apply(vec![object]).await?;
                continue;
            }
            if is_elsewhere {
                return Ok(Followed::Elsewhere);
            }
            if !may_go_on {
                return Ok(Followed::ToEmptySlot);
            }
            ahead = next_read_ahead(ahead, bytes);
        }
    }

    fn continuation(
        &self,
        mut tail: Tail,
        found: Vec<Option<Bytes>>,
    ) -> Result<Continuation, LogError> {
        let mut continuation = Continuation { may_go_on: true, ..Continuation::default() };
        for bytes in found {
            let Some(bytes) = bytes else {
                continuation.may_go_on = false;
                break;
            };
            if self.planted.has(PlantedBug::ChainAndSnapshotUnchecked)
                && let Ok(object) = Object::decode(bytes.clone())
            {
                tail.hash = object.header.previous;
            }
            let object = match tail.read(self.log, bytes) {
                Ok(object) => object,
                Err(NotNext::Unchained) => {
                    continuation.is_elsewhere = true;
                    break;
                }
                Err(error) => return Err(LogError::object(&tail.key(), error)),
            };
            check_schema(object.object(), self.replica.schema())?;
            let is_seal = object.object().header.kind == Kind::Seal;
            tail = Tail::after(object.object());
            continuation.objects.push(object);
            if is_seal {
                // What is behind a seal is not in the history. The next epoch goes on.
                break;
            }
        }
        Ok(continuation)
    }

    async fn behind_gap(&self, tail: Tail) -> Option<Durable> {
        let next = tail.next.next();
        let bytes = self.edge.read(&ObjectKey::Slot(next)).await?;
        let hash = Object::decode(bytes.clone()).ok()?.header.previous;
        let object = Tail { next, hash, ..tail }.read(self.log, bytes).ok()?;
        (object.object().header.kind == Kind::Record).then_some(object)
    }

    /// The newest claimed epoch; none if the log is empty.
    pub(super) async fn newest_epoch(&self) -> Option<Epoch> {
        let applied = self.replica.tail().next.epoch.previous();
        let known = (*self.known.lock()).max(applied);
        let mut search = EpochSearch::from(known);
        while let Some(epoch) = search.probe() {
            let is_claimed = self.edge.read(&ObjectKey::Claim(epoch)).await.is_some();
            search.note(epoch, is_claimed);
        }
        let found = search.found();
        let mut known = self.known.lock();
        *known = (*known).max(found);
        found
    }

    /// The claim of `epoch`, which exists, and the process that made it.
    pub(super) async fn claim(&self, epoch: Epoch) -> Result<EpochClaim, LogError> {
        let claim = decode_claim(self.log, epoch, self.edge.read(&ObjectKey::Claim(epoch)).await)?;
        if claim.closes {
            *self.closed.lock() = Some(epoch);
        }
        Ok(claim)
    }

    /// Refuses a log that a claim has closed, as far as this node has read it.
    pub(super) fn refuse_closed(&self) -> Result<(), LogError> {
        match *self.closed.lock() {
            Some(epoch) => Err(LogError::Closed { epoch }),
            None => Ok(()),
        }
    }
}

/// Refuses the start record of a later release, whose records are for other tables than those up to
/// `known`.
pub(super) fn check_schema(object: &Object, known: u64) -> Result<(), LogError> {
    if object.header.kind != Kind::Start {
        return Ok(());
    }
    let key = ObjectKey::Slot(object.header.slot);
    let start: StartRecord =
        body::decode(&object.body).map_err(|error| LogError::object(&key, error))?;
    let schema = start.schema;
    if schema > known {
        let problem = format!(
            "the release that leads has tables {schema}, and this one knows tables up to {known}"
        );
        return Err(LogError::object(&key, problem));
    }
    Ok(())
}

/// The claim of `epoch`, from the bytes that were read.
pub(super) fn decode_claim(
    log: LogId,
    epoch: Epoch,
    bytes: Option<Bytes>,
) -> Result<EpochClaim, LogError> {
    let key = ObjectKey::Claim(epoch);
    let wrong = |problem: String| LogError::object(&key, problem);
    let bytes = bytes.ok_or_else(|| LogError::gone(&key))?;
    let object = Object::decode(bytes).map_err(|error| wrong(error.to_string()))?;
    if object.header.kind != Kind::Claim || object.header.log != log {
        return Err(wrong(NotNext::Misplaced.to_string()));
    }
    body::decode(&object.body).map_err(|error| wrong(error.to_string()))
}

/// How many slots are read next, after `ahead` slots had `bytes` bytes.
pub(super) fn next_read_ahead(ahead: u64, bytes: usize) -> u64 {
    if bytes > MAX_READ_AHEAD_BYTES { (ahead / 2).max(1) } else { (ahead * 2).min(MAX_READ_AHEAD) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use tidegate_core::time::Timestamp;

    use super::*;
    use crate::{
        bucket_log::{
            Edge, NodeSettings, StoreBucket, identify, object::Header, simulation::kv::KvReplica,
        },
        system::{SystemClock, SystemEntropy},
    };

    fn object(kind: Kind, body: &Bytes) -> Object {
        let header = Header {
            kind,
            log: LogId(1),
            slot: Slot::FIRST,
            nonce: 1,
            time: Timestamp::EPOCH,
            previous: Hash::NONE,
        };
        Object::new(header, body)
    }

    fn start(schema: u64) -> Bytes {
        body::encode(&StartRecord { schema, ..StartRecord::default() })
    }

    #[test]
    fn the_start_record_of_a_newer_release_is_refused() {
        for known in [2, 3] {
            check_schema(&object(Kind::Start, &start(2)), known).unwrap();
        }
        let refused = check_schema(&object(Kind::Start, &start(3)), 2).unwrap_err().to_string();
        assert!(refused.contains("tables 3") && refused.contains("up to 2"), "{refused}");
        let damaged = object(Kind::Start, &Bytes::from_static(b"no record"));
        check_schema(&damaged, 2).unwrap_err();
        check_schema(&object(Kind::Record, &start(3)), 2).unwrap();
    }

    #[tokio::test]
    async fn a_node_stops_before_the_records_of_a_newer_release() {
        let bucket = StoreBucket::new(Arc::new(InMemory::new()), "prefix".into());
        let edge = Edge {
            bucket: Arc::new(bucket),
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
        };
        identify(&edge).await.unwrap();
        let replica = Arc::new(KvReplica::new(0, Arc::default(), None));
        let opened = Node::open(edge.clone(), Arc::clone(&replica), NodeSettings::default()).await;
        let (node, _handle) = opened.unwrap();
        let (at, claim) = (Tail::START, body::encode(&EpochClaim::default()));
        let claim = node.object(Kind::Claim, at, &claim);
        edge.create(&ObjectKey::Claim(Epoch::FIRST), claim.bytes()).await;
        let start = node.object(Kind::Start, at, &start(replica.schema() + 1));
        edge.create(&at.key(), start.bytes()).await;
        let error = node.catch_up().await.unwrap_err().to_string();
        let name = at.key().to_string();
        assert!(error.contains(&name) && error.contains("tables 2"), "{error}");
        assert_eq!(replica.tail().next, Slot::FIRST, "nothing was applied");
    }
}
