//! Reading a whole log as an operator does: without a node or a local state, and without a write.
//!
//! It begins behind the oldest snapshot, because what is before it was removed, and checks what a
//! node would check before it applied the same objects: each is what was written, follows the one
//! before it, and can be unpacked; each snapshot has its parts, and belongs to its seal.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::future::try_join_all;
use tidegate_core::time::Timestamp;

use super::{
    body::{self, StartRecord},
    bucket::Edge,
    create::GetAnswer,
    error::LogError,
    follow::{decode_claim, next_read_ahead},
    identity,
    key::{Epoch, ObjectKey, Slot},
    newest::EpochSearch,
    object::{Hash, Kind, LogId, Object},
    snapshot::Snapshot,
    tail::Tail,
};

/// How often an object is read from a store that does not answer.
const MAX_READS: u32 = 5;
/// More objects behind an empty slot than any leader has under way.
const MAX_UNDER_WAY: u64 = 32;

/// A log that is read from outside.
pub struct LogReader {
    edge: Edge,
    log: LogId,
}

/// A part of the history, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An object of a slot.
    Object {
        /// Where it is.
        slot: Slot,
        /// When it was written.
        time: Timestamp,
        /// How many bytes it has.
        bytes: u64,
        /// What it is.
        what: What,
    },
    /// The snapshot of the state behind the seal of an epoch.
    Snapshot {
        /// The epoch.
        epoch: Epoch,
        /// How many parts it has.
        parts: usize,
        /// The bytes of its parts.
        bytes: u64,
    },
}

/// What an object of a slot is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The start of an epoch, by the leader with this address.
    Start(String),
    /// A record with this number of transactions.
    Record(usize),
    /// The end of an epoch.
    Seal,
}

impl LogReader {
    /// A reader of the log in a bucket; none if the bucket has no log.
    ///
    /// # Errors
    ///
    /// [`LogError::Object`] if the identity of the log cannot be used, or the store does not answer.
    pub async fn open(edge: Edge) -> Result<Option<Self>, LogError> {
        let Some(bytes) = read(&edge, &ObjectKey::Identity).await? else { return Ok(None) };
        let log = identity::parse(&bytes)
            .map_err(|problem| LogError::object(&ObjectKey::Identity, problem))?;
        Ok(Some(Self { edge, log }))
    }

    /// The id of the log.
    pub fn id(&self) -> LogId {
        self.log
    }

    /// Reads the log from the oldest snapshot, or from its beginning, to the end, and passes each
    /// part of it to `on_entry`. It returns the end.
    ///
    /// # Errors
    ///
    /// [`LogError::Object`] names the first object that is damaged, missing or not where it belongs,
    /// or that the store does not return. A leader that removes old records at the same time can make
    /// an object seem to be missing.
    pub async fn read(&self, mut on_entry: impl FnMut(Entry)) -> Result<Tail, LogError> {
        let mut snapshots = self.snapshots().await?;
        let mut tail = Tail::START;
        if let Some((epoch, oldest)) = snapshots.pop_first() {
            on_entry(self.checked(&oldest).await?);
            tail.next = Slot::first_of(epoch.next());
            tail.hash = oldest.seal;
        }
        let mut ahead = 1;
        loop {
            let slots = (0..ahead).map(|add| Slot { seq: tail.next.seq + add, ..tail.next });
            let keys: Vec<ObjectKey> = slots.map(ObjectKey::Slot).collect();
            let found = try_join_all(keys.iter().map(|key| read(&self.edge, key))).await?;
            let bytes = found.iter().flatten().map(Bytes::len).sum();
            for bytes in found {
                let Some(bytes) = bytes else {
                    self.check_end(tail, &snapshots).await?;
                    return Ok(tail);
                };
                let object = tail
                    .read(self.log, bytes)
                    .map_err(|problem| LogError::object(&tail.key(), problem))?;
                let object = object.object();
                on_entry(entry(object)?);
                tail = Tail::after(object);
                if object.header.kind == Kind::Seal {
                    if let Some(snapshot) = snapshots.remove(&object.header.slot.epoch) {
                        on_entry(self.checked_at(&snapshot, tail.hash).await?);
                    }
                    break;
                }
            }
            ahead = next_read_ahead(ahead, bytes);
        }
    }

    /// The snapshots that there are.
    async fn snapshots(&self) -> Result<BTreeMap<Epoch, Snapshot>, LogError> {
        let mut snapshots = BTreeMap::new();
        let Some(newest) = self.newest_epoch().await? else { return Ok(snapshots) };
        let key = ObjectKey::Claim(newest);
        let claim = read(&self.edge, &key).await?;
        let known = decode_claim(self.log, newest, claim)?.snapshot;
        // Epochs between them have none.
        for epoch in (known.max(1)..=newest.number()).rev().filter_map(Epoch::new) {
            let mut next = self.snapshot(epoch).await?;
            while let Some(snapshot) = next {
                next = match snapshot.previous() {
                    Some(previous) => self.snapshot(previous).await?,
                    None => None,
                };
                snapshots.insert(snapshot.epoch, snapshot);
            }
            if !snapshots.is_empty() {
                return Ok(snapshots);
            }
        }
        match Epoch::new(known) {
            Some(known) => Err(LogError::object(&ObjectKey::Manifest(known), "it is gone")),
            None => Ok(snapshots),
        }
    }

    async fn snapshot(&self, epoch: Epoch) -> Result<Option<Snapshot>, LogError> {
        let bytes = read(&self.edge, &ObjectKey::Manifest(epoch)).await?;
        bytes.map(|bytes| Snapshot::decode(self.log, epoch, bytes)).transpose()
    }

    async fn newest_epoch(&self) -> Result<Option<Epoch>, LogError> {
        let mut search = EpochSearch::from(None);
        while let Some(epoch) = search.probe() {
            search.note(epoch, read(&self.edge, &ObjectKey::Claim(epoch)).await?.is_some());
        }
        Ok(search.found())
    }

    /// The entry of `snapshot`, whose parts were read and compared with its manifest.
    async fn checked(&self, snapshot: &Snapshot) -> Result<Entry, LogError> {
        let parts = &snapshot.manifest.parts;
        for (index, part) in parts.iter().enumerate() {
            let key = snapshot.part(index);
            let bytes = read(&self.edge, &key).await?;
            let bytes = bytes.ok_or_else(|| LogError::object(&key, "it is gone"))?;
            if Hash::of(&bytes).0 != part.hash {
                return Err(LogError::object(&key, "its hash is not the one of the manifest"));
            }
        }
        let bytes = parts.iter().map(|part| part.bytes).sum();
        Ok(Entry::Snapshot { epoch: snapshot.epoch, parts: parts.len(), bytes })
    }

    /// [`Self::checked`], of a snapshot behind `seal`.
    async fn checked_at(&self, snapshot: &Snapshot, seal: Hash) -> Result<Entry, LogError> {
        if snapshot.seal != seal {
            let problem = "it is a snapshot behind another seal";
            return Err(LogError::object(&ObjectKey::Manifest(snapshot.epoch), problem));
        }
        self.checked(snapshot).await
    }

    /// Checks that the log ends at `tail`, whose slot is empty.
    async fn check_end(
        &self,
        tail: Tail,
        behind: &BTreeMap<Epoch, Snapshot>,
    ) -> Result<(), LogError> {
        // Later epochs begin, and their snapshots exist, only after a seal at the end of this one.
        let next = ObjectKey::Slot(Slot::first_of(tail.next.epoch.next()));
        let is_end = behind.is_empty()
            && read(&self.edge, &next).await?.is_none()
            && !self.goes_on_behind(tail.next).await?;
        if is_end { Ok(()) } else { Err(LogError::object(&tail.key(), "it is gone")) }
    }

    /// Whether the objects behind `gap` show that it was filled. Records that a leader had under way
    /// do not: their PUTs end in any order.
    async fn goes_on_behind(&self, gap: Slot) -> Result<bool, LogError> {
        let slots = (1..=MAX_UNDER_WAY).map(|add| Slot { seq: gap.seq + add, ..gap });
        let keys: Vec<ObjectKey> = slots.map(ObjectKey::Slot).collect();
        let found = try_join_all(keys.iter().map(|key| read(&self.edge, key))).await?;
        let mut is_sealed = false;
        for (key, bytes) in keys.iter().zip(&found) {
            let Some(bytes) = bytes else { continue };
            let object =
                Object::decode(bytes.clone()).map_err(|error| LogError::object(key, error))?;
            is_sealed |= object.header.kind == Kind::Seal;
        }
        Ok(is_sealed || found.iter().all(Option::is_some))
    }
}

fn entry(object: &Object) -> Result<Entry, LogError> {
    let header = &object.header;
    let unreadable = |problem| LogError::object(&ObjectKey::Slot(header.slot), problem);
    let what = match header.kind {
        Kind::Start => {
            let start: StartRecord = body::decode(&object.body).map_err(unreadable)?;
            What::Start(start.address)
        }
        Kind::Record => What::Record(body::unpack(&object.body).map_err(unreadable)?.len()),
        // A tail reads no other kinds.
        Kind::Seal | Kind::Claim | Kind::Manifest => What::Seal,
    };
    let (slot, time, bytes) = (header.slot, header.time, object.bytes().len() as u64);
    Ok(Entry::Object { slot, time, bytes, what })
}

/// Reads an object, if there is one.
async fn read(edge: &Edge, key: &ObjectKey) -> Result<Option<Bytes>, LogError> {
    for reads in 1.. {
        match edge.bucket.read(key).await {
            GetAnswer::Found(bytes) => return Ok(Some(bytes)),
            GetAnswer::Absent => return Ok(None),
            GetAnswer::Unknown if reads == MAX_READS => break,
            GetAnswer::Unknown => edge.pause(edge.retry_delay(reads)).await,
        }
    }
    Err(LogError::object(key, "the store does not return it"))
}
