//! Reading a whole log as an operator does: without a node or a local state, and without a change but those
//! of [`close`] and [`clean`].
//!
//! It begins after the older of the newest two snapshots, and checks what a node checks before it applies
//! the same objects: each is what was written, follows the one before it, and can be unpacked; each
//! snapshot has its parts, and belongs to its seal. A leader may write and remove objects meanwhile.
//! [`restore`] applies the same objects to a replica, up to an instant, and also from older snapshots.

mod clean;
mod close;
mod restore;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, future::try_join_all, stream};
use tidegate_core::time::Timestamp;

use super::{
    body::{self, StartRecord},
    bucket::{Edge, MIN_RETRY_DELAY},
    create::GetAnswer,
    error::LogError,
    flight::witness,
    follow::{MAX_MISSES, decode_claim, next_read_ahead},
    hints::{Beat, Hint, Hints},
    identity,
    key::{Epoch, ObjectKey, Slot},
    newest::EpochSearch,
    object::{Hash, Kind, LogId, Object},
    snapshot::Snapshot,
    tail::{NotNext, Tail},
    truncate::KEPT_SNAPSHOTS,
};

pub use clean::{Leftover, Leftovers};
pub use close::CloseError;
pub use restore::{RestoreError, RestoredState};

/// How long an object is read from a store that does not answer.
const PATIENCE: Duration = Duration::from_mins(1);
/// How many claims are read at once.
const CLAIMS_AT_ONCE: usize = 32;
/// How often a truncation may remove what is to be read next.
const MAX_RESTARTS: u32 = 10;

/// A log that is read from outside.
pub struct LogReader {
    edge: Edge,
    hints: Arc<dyn Hints>,
    log: LogId,
}

/// A part of the history, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEntry {
    /// An object of a slot.
    Object {
        /// Where it is.
        slot: Slot,
        /// When it was written.
        time: Timestamp,
        /// How many bytes it has.
        bytes: u64,
        /// What it contains.
        content: SlotContent,
    },
    /// The snapshot of the state after the seal of an epoch.
    Snapshot {
        /// The epoch.
        epoch: Epoch,
        /// The bytes of its parts.
        bytes: u64,
    },
}

/// What an object of a slot contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotContent {
    /// The start of an epoch, by the leader with this address.
    Start(String),
    /// A record with this number of transactions.
    Record(usize),
    /// The end of an epoch.
    Seal,
}

/// Why reading cannot go on at a position.
enum Stop {
    /// An object is gone. A truncation may have removed it if a snapshot of `replaced_from` or a later
    /// epoch is the oldest one that is kept.
    Gone { key: ObjectKey, replaced_from: Epoch },
    /// The log cannot be used.
    Error(LogError),
}

impl From<LogError> for Stop {
    fn from(error: LogError) -> Self {
        Self::Error(error)
    }
}

/// Whether the parts of snapshots are read, too.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parts {
    Read,
    Skip,
}

impl LogReader {
    /// A reader of the log in a bucket; none if the bucket has no log.
    ///
    /// # Errors
    ///
    /// [`LogError::Object`] if the identity of the log cannot be used, or was lost.
    /// [`LogError::NoAnswer`] if the store does not answer.
    pub async fn open(edge: Edge, hints: Arc<dyn Hints>) -> Result<Option<Self>, LogError> {
        let key = ObjectKey::Identity;
        let Some(bytes) = read(&edge, &key).await? else {
            let has_log = hints.read(Hint::Leader).await.is_some()
                || read(&edge, &ObjectKey::Claim(Epoch::FIRST)).await?.is_some();
            return if has_log { Err(LogError::gone(&key)) } else { Ok(None) };
        };
        let log = identity::parse(&bytes).map_err(|problem| LogError::object(&key, problem))?;
        Ok(Some(Self { edge, hints, log }))
    }

    /// The id of the log.
    pub fn id(&self) -> LogId {
        self.log
    }

    /// Reads and checks the claims, the newest two snapshots with their parts, and the log from the older
    /// one to its end. A log without a snapshot is read from its beginning. Passes each part of the history
    /// to `on_entry`, and returns where the log ends.
    ///
    /// # Errors
    ///
    /// [`LogError::Object`] names the first object that is damaged, missing or not where it belongs.
    /// [`LogError::NoAnswer`] if the store does not answer for a minute.
    pub async fn verify(&self, on_entry: impl FnMut(LogEntry)) -> Result<Tail, LogError> {
        let beat = self.beat().await;
        if let Some(newest) = self.newest_epoch(beat.as_ref()).await? {
            let claims = (1..=newest.number()).filter_map(Epoch::new);
            let claims = claims.map(|epoch| async move {
                let claim = read(&self.edge, &ObjectKey::Claim(epoch)).await?;
                decode_claim(self.log, epoch, claim).map(drop)
            });
            stream::iter(claims).buffered(CLAIMS_AT_ONCE).try_collect::<()>().await?;
        }
        self.read_all(beat.as_ref(), Parts::Read, on_entry).await
    }

    /// Reads the same log without the parts of snapshots and without all claims.
    ///
    /// # Errors
    ///
    /// As [`Self::verify`].
    pub async fn list(&self, on_entry: impl FnMut(LogEntry)) -> Result<Tail, LogError> {
        let beat = self.beat().await;
        self.read_all(beat.as_ref(), Parts::Skip, on_entry).await
    }

    /// Reads the objects of an epoch; none if its first one is not there.
    ///
    /// # Errors
    ///
    /// As [`Self::verify`].
    pub async fn list_epoch(
        &self,
        epoch: Epoch,
        mut on_entry: impl FnMut(LogEntry),
    ) -> Result<(), LogError> {
        let beat = self.beat().await;
        let next = Slot::first_of(epoch);
        let key = ObjectKey::Slot(next);
        let Some(bytes) = read(&self.edge, &key).await? else { return Ok(()) };
        let first = Object::decode(bytes).map_err(|error| LogError::object(&key, error))?;
        let mut tail = Tail { next, hash: first.header.previous, ..Tail::START };
        let mut ahead = 1;
        while tail.next.epoch == epoch {
            let none = BTreeMap::new();
            let read = self.read_some(&mut tail, &mut ahead, beat.as_ref(), &none, &mut on_entry);
            match read.await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(Stop::Gone { key, .. }) => return Err(LogError::gone(&key)),
                Err(Stop::Error(error)) => return Err(error),
            }
        }
        Ok(())
    }

    async fn read_all(
        &self,
        beat: Option<&Beat>,
        parts: Parts,
        mut on_entry: impl FnMut(LogEntry),
    ) -> Result<Tail, LogError> {
        let mut tail = Tail::START;
        let mut snapshots = self.kept_snapshots(beat).await?;
        let mut restarts = 0;
        loop {
            if let Some(oldest) = snapshots.values().next() {
                tail = Tail {
                    next: Slot::first_of(oldest.epoch.next()),
                    hash: oldest.seal,
                    ..Tail::START
                };
            }
            let (key, replaced_from) =
                match self.read_on(&mut tail, beat, &snapshots, parts, &mut on_entry).await {
                    Ok(()) => return Ok(tail),
                    Err(Stop::Error(error)) => return Err(error),
                    Err(Stop::Gone { key, replaced_from }) => (key, replaced_from),
                };
            snapshots = self.kept_snapshots(beat).await?;
            let is_replaced = snapshots.keys().next().is_some_and(|kept| *kept >= replaced_from);
            restarts += 1;
            if !is_replaced || restarts > MAX_RESTARTS {
                return Err(LogError::gone(&key));
            }
        }
    }

    /// Reads from `tail`, or from the first of `snapshots`, to the end.
    async fn read_on(
        &self,
        tail: &mut Tail,
        beat: Option<&Beat>,
        snapshots: &BTreeMap<Epoch, Snapshot>,
        parts: Parts,
        on_entry: &mut impl FnMut(LogEntry),
    ) -> Result<(), Stop> {
        if let Some(oldest) = snapshots.values().next() {
            on_entry(self.checked(oldest, parts).await?);
        }
        let mut ahead = 1;
        loop {
            let epoch = tail.next.epoch;
            if self.read_some(tail, &mut ahead, beat, snapshots, on_entry).await? {
                return Ok(());
            }
            if tail.next.epoch != epoch
                && let Some(snapshot) = snapshots.get(&epoch)
            {
                if snapshot.seal != tail.hash {
                    let problem = "it is a snapshot of the state after another seal";
                    return Err(LogError::object(&ObjectKey::Manifest(epoch), problem).into());
                }
                on_entry(self.checked(snapshot, parts).await?);
            }
        }
    }

    /// Reads what follows `tail`, at most to the end of its epoch. Returns whether the log ends there.
    async fn read_some(
        &self,
        tail: &mut Tail,
        ahead: &mut u64,
        beat: Option<&Beat>,
        snapshots: &BTreeMap<Epoch, Snapshot>,
        on_entry: &mut impl FnMut(LogEntry),
    ) -> Result<bool, Stop> {
        let found = self.read_slots(tail.next, 0..*ahead).await?;
        let bytes = found.iter().flatten().map(Bytes::len).sum();
        for bytes in found {
            let Some(bytes) = bytes else { return self.is_end(*tail, beat, snapshots).await };
            let object = tail
                .read(self.log, bytes)
                .map_err(|problem| LogError::object(&tail.key(), problem))?;
            let object = object.object();
            on_entry(entry(object)?);
            *tail = Tail::after(object);
            if object.header.kind == Kind::Seal {
                break;
            }
        }
        *ahead = next_read_ahead(*ahead, bytes);
        Ok(false)
    }

    /// Reads the slots at these distances after `first`.
    async fn read_slots(
        &self,
        first: Slot,
        distances: std::ops::Range<u64>,
    ) -> Result<Vec<Option<Bytes>>, LogError> {
        let keys: Vec<ObjectKey> =
            distances.map(|add| ObjectKey::Slot(Slot { seq: first.seq + add, ..first })).collect();
        try_join_all(keys.iter().map(|key| read(&self.edge, key))).await
    }

    /// Whether the log ends at `tail`, whose slot was empty. If not, a leader has filled the slot since
    /// it was read.
    async fn is_end(
        &self,
        tail: Tail,
        beat: Option<&Beat>,
        snapshots: &BTreeMap<Epoch, Snapshot>,
    ) -> Result<bool, Stop> {
        let slot = tail.next;
        let later_epoch = ObjectKey::Slot(Slot::first_of(slot.epoch.next()));
        let was_filled = beat
            .is_some_and(|beat| beat.is_after(slot) || beat.epoch > slot.epoch.number())
            || snapshots.keys().next_back().is_some_and(|newest| *newest >= slot.epoch)
            || read(&self.edge, &later_epoch).await?.is_some()
            || self.goes_on_after(slot).await?;
        if was_filled {
            if read(&self.edge, &tail.key()).await?.is_some() {
                return Ok(false);
            }
        } else {
            // The leader may have filled the slot since the snapshots were read, and removed it with what
            // followed.
            let newest = self.kept_snapshots(beat).await?.into_keys().next_back();
            if newest.is_none_or(|newest| newest < slot.epoch) {
                return Ok(true);
            }
        }
        Err(Stop::Gone { key: tail.key(), replaced_from: slot.epoch })
    }

    /// Whether the objects after `gap` show that it was filled. Records that a leader had under way do
    /// not: their PUTs end in any order.
    async fn goes_on_after(&self, gap: Slot) -> Result<bool, LogError> {
        let found = self.read_slots(gap, 1..witness(gap).seq - gap.seq + 1).await?;
        let has_witness = found.last().is_some_and(Option::is_some);
        // The process that wrote a seal had read every slot before it.
        let is_seal = |bytes: &Bytes| {
            Object::decode(bytes.clone()).is_ok_and(|object| object.header.kind == Kind::Seal)
        };
        Ok(has_witness || found.iter().flatten().any(is_seal))
    }

    /// The snapshots that every truncation keeps, and no older ones, whose removal may be under way.
    async fn kept_snapshots(
        &self,
        beat: Option<&Beat>,
    ) -> Result<BTreeMap<Epoch, Snapshot>, LogError> {
        let mut misses = 0;
        loop {
            let missing = match self.try_kept_snapshots(beat).await? {
                Ok(kept) => return Ok(kept),
                Err(missing) => missing,
            };
            // Newer snapshots may have replaced it since the newest one was looked for.
            misses += 1;
            if misses > MAX_MISSES {
                return Err(LogError::gone(&ObjectKey::Manifest(missing)));
            }
            self.edge.pause(MIN_RETRY_DELAY).await;
        }
    }

    /// The kept snapshots, or the epoch whose manifest is missing.
    async fn try_kept_snapshots(
        &self,
        beat: Option<&Beat>,
    ) -> Result<Result<BTreeMap<Epoch, Snapshot>, Epoch>, LogError> {
        let mut kept = BTreeMap::new();
        let Some(newest) = self.newest_epoch(beat).await? else { return Ok(Ok(kept)) };
        let claim = read(&self.edge, &ObjectKey::Claim(newest)).await?;
        let known = decode_claim(self.log, newest, claim)?.snapshot;
        let mut next = None;
        for epoch in (known.max(1)..=newest.number()).rev().filter_map(Epoch::new) {
            if let Some(snapshot) = self.snapshot(epoch).await? {
                next = Some(snapshot);
                break;
            }
        }
        if next.is_none()
            && let Some(known) = Epoch::new(known)
        {
            return Ok(Err(known));
        }
        while let Some(snapshot) = next.take() {
            let (epoch, previous) = (snapshot.epoch, snapshot.previous());
            if previous.is_some_and(|previous| previous >= epoch) {
                return Err(LogError::object(&ObjectKey::Manifest(epoch), NotNext::Misplaced));
            }
            kept.insert(epoch, snapshot);
            if kept.len() < KEPT_SNAPSHOTS
                && let Some(previous) = previous
            {
                next = self.snapshot(previous).await?;
                if next.is_none() {
                    return Ok(Err(previous));
                }
            }
        }
        Ok(Ok(kept))
    }

    async fn snapshot(&self, epoch: Epoch) -> Result<Option<Snapshot>, LogError> {
        let bytes = read(&self.edge, &ObjectKey::Manifest(epoch)).await?;
        bytes.map(|bytes| Snapshot::decode(self.log, epoch, bytes)).transpose()
    }

    /// The newest claimed epoch; none if the log is empty.
    async fn newest_epoch(&self, beat: Option<&Beat>) -> Result<Option<Epoch>, LogError> {
        let led = beat.and_then(|beat| Epoch::new(beat.epoch));
        if let Some(led) = led {
            let key = ObjectKey::Claim(led);
            decode_claim(self.log, led, read(&self.edge, &key).await?)?;
        }
        let mut search = EpochSearch::from(led);
        while let Some(epoch) = search.probe() {
            search.note(epoch, read(&self.edge, &ObjectKey::Claim(epoch)).await?.is_some());
        }
        Ok(search.found())
    }

    /// The last beat of a leader. What it names was in the log when it was written.
    async fn beat(&self) -> Option<Beat> {
        Beat::decode(&self.hints.read(Hint::Leader).await?)
    }

    /// The entry of `snapshot`. [`Parts::Read`] compares its parts with its manifest.
    async fn checked(&self, snapshot: &Snapshot, parts: Parts) -> Result<LogEntry, Stop> {
        let epoch = snapshot.epoch;
        let listed = &snapshot.manifest.parts;
        let read_parts = if parts == Parts::Read { listed.as_slice() } else { &[] };
        for (index, part) in read_parts.iter().enumerate() {
            let key = snapshot.part(index);
            let Some(bytes) = read(&self.edge, &key).await? else {
                return Err(Stop::Gone { key, replaced_from: epoch.next() });
            };
            if Hash::of(&bytes).0 != part.hash {
                let problem = "its hash is not the one of the manifest";
                return Err(LogError::object(&key, problem).into());
            }
        }
        let bytes = listed.iter().fold(0_u64, |sum, part| sum.saturating_add(part.bytes));
        Ok(LogEntry::Snapshot { epoch, bytes })
    }
}

fn entry(object: &Object) -> Result<LogEntry, LogError> {
    let header = &object.header;
    let unreadable = |problem| LogError::object(&ObjectKey::Slot(header.slot), problem);
    let content = match header.kind {
        Kind::Start => {
            let start: StartRecord = body::decode(&object.body).map_err(unreadable)?;
            SlotContent::Start(start.address)
        }
        Kind::Record => SlotContent::Record(body::unpack(&object.body).map_err(unreadable)?.len()),
        // A tail reads no other kinds.
        Kind::Seal | Kind::Claim | Kind::Manifest => SlotContent::Seal,
    };
    let (slot, time, bytes) = (header.slot, header.time, object.bytes().len() as u64);
    Ok(LogEntry::Object { slot, time, bytes, content })
}

/// Reads an object, if there is one.
async fn read(edge: &Edge, key: &ObjectKey) -> Result<Option<Bytes>, LogError> {
    let (began, mut delay) = (edge.clock.now(), MIN_RETRY_DELAY);
    loop {
        match edge.bucket.read(key).await {
            GetAnswer::Found(bytes) => return Ok(Some(bytes)),
            GetAnswer::Absent => return Ok(None),
            GetAnswer::Unknown if edge.clock.now().since(began) < PATIENCE => {
                edge.back_off(&mut delay).await;
            }
            GetAnswer::Unknown => return Err(LogError::NoAnswer { key: key.to_string() }),
        }
    }
}

#[cfg(test)]
mod tests;
