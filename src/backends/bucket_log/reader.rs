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
    bucket::{Edge, MIN_RETRY_DELAY},
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
    /// part of it to `on_entry`.
    ///
    /// # Errors
    ///
    /// [`LogError::Object`] names the first object that is damaged, missing or not where it belongs,
    /// or that the store does not return. A leader that removes old records at the same time can make
    /// an object seem to be missing.
    pub async fn read(&self, mut on_entry: impl FnMut(Entry)) -> Result<(), LogError> {
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
                    if self.is_end(tail, &snapshots).await? {
                        return Ok(());
                    }
                    break;
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
        Ok(Entry::Snapshot { epoch: snapshot.epoch, bytes })
    }

    /// [`Self::checked`], of a snapshot behind `seal`.
    async fn checked_at(&self, snapshot: &Snapshot, seal: Hash) -> Result<Entry, LogError> {
        if snapshot.seal != seal {
            let problem = "it is a snapshot behind another seal";
            return Err(LogError::object(&ObjectKey::Manifest(snapshot.epoch), problem));
        }
        self.checked(snapshot).await
    }

    /// Whether the log ends at `tail`, whose slot was empty. If not, a leader has filled the slot
    /// since it was read.
    async fn is_end(
        &self,
        tail: Tail,
        behind: &BTreeMap<Epoch, Snapshot>,
    ) -> Result<bool, LogError> {
        // Later epochs begin, and their snapshots exist, only after a seal at the end of this one.
        let next = ObjectKey::Slot(Slot::first_of(tail.next.epoch.next()));
        let is_end = behind.is_empty()
            && read(&self.edge, &next).await?.is_none()
            && !self.goes_on_behind(tail.next).await?;
        if is_end || read(&self.edge, &tail.key()).await?.is_some() {
            return Ok(is_end);
        }
        Err(LogError::object(&tail.key(), "it is gone"))
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
    let mut delay = MIN_RETRY_DELAY;
    for _ in 0..MAX_READS {
        match edge.bucket.read(key).await {
            GetAnswer::Found(bytes) => return Ok(Some(bytes)),
            GetAnswer::Absent => return Ok(None),
            GetAnswer::Unknown => edge.back_off(&mut delay).await,
        }
    }
    Err(LogError::object(key, "the store does not return it"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::{
        bucket_log::{LogBucket, Removable, create::PutAnswer, object::Header},
        system::{SystemClock, SystemEntropy},
    };

    const LOG: LogId = LogId(0xabc);

    /// The objects of a log. The object `late` is absent until it was read this often.
    #[derive(Default)]
    struct Objects {
        objects: BTreeMap<String, Bytes>,
        late: Mutex<Option<(ObjectKey, u32)>>,
    }

    #[async_trait]
    impl LogBucket for Objects {
        async fn create(&self, key: &ObjectKey, _: Bytes) -> PutAnswer {
            panic!("a reader writes {key}")
        }

        async fn read(&self, key: &ObjectKey) -> GetAnswer {
            if let Some((late, reads)) = &mut *self.late.lock()
                && late == key
                && *reads > 0
            {
                *reads -= 1;
                return GetAnswer::Absent;
            }
            let found = self.objects.get(&key.to_string()).cloned();
            found.map_or(GetAnswer::Absent, GetAnswer::Found)
        }

        async fn remove(&self, object: &Removable) -> bool {
            panic!("a reader removes {}", object.key())
        }
    }

    /// A log with one epoch: a start record, a record and a seal.
    fn sealed_log() -> Objects {
        let mut objects = Objects::default();
        let id = format!("{:032x}", LOG.0);
        let sum = tidegate_core::checksum::checksum(&[id.as_bytes(), &1_u32.to_be_bytes()]);
        let identity = json!({"log": id, "format": 1, "sum": sum}).to_string();
        objects.objects.insert(ObjectKey::Identity.to_string(), identity.into());
        let mut tail = Tail::START;
        for (kind, body) in [
            (Kind::Start, body::encode(&StartRecord::default())),
            (Kind::Record, body::pack(&[Bytes::from_static(b"a transaction")])),
            (Kind::Seal, Bytes::new()),
        ] {
            let (slot, time, previous) = (tail.next, tail.time, tail.hash);
            let header = Header { kind, log: LOG, slot, nonce: 1, time, previous };
            let object = Object::new(header, &body);
            objects.objects.insert(tail.key().to_string(), object.bytes().clone());
            tail = Tail::after(&object);
        }
        objects
    }

    /// How many parts of a log are read when one object is absent for some reads.
    async fn read_with(late: ObjectKey, reads: u32) -> Result<usize, String> {
        let bucket = Arc::new(Objects { late: Mutex::new(Some((late, reads))), ..sealed_log() });
        let edge = Edge { bucket, clock: Arc::new(SystemClock), entropy: Arc::new(SystemEntropy) };
        let reader = LogReader::open(edge).await.unwrap().expect("there is a log");
        let mut entries = 0;
        let read = reader.read(|_| entries += 1).await;
        read.map(|()| entries).map_err(|problem| problem.to_string())
    }

    #[tokio::test]
    async fn a_slot_that_a_leader_fills_during_the_read_is_read() {
        for seq in 0..3 {
            let key = ObjectKey::Slot(Slot { seq, ..Slot::FIRST });
            let read = read_with(key, 1).await;
            // Nothing is behind the last one.
            assert_eq!(read, Ok(if seq == 2 { 2 } else { 3 }), "{key}");
        }
    }

    #[tokio::test]
    async fn a_record_before_a_seal_is_missing_if_it_stays_absent() {
        let record = ObjectKey::Slot(Slot { seq: 1, ..Slot::FIRST });
        let problem = read_with(record, u32::MAX).await.unwrap_err();
        assert!(problem.contains("log/0000000001/000000000001"), "{problem}");
    }
}
