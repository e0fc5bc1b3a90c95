//! Snapshots: a state behind a seal, in parts, and the manifest that makes it one.
//!
//! The manifest is created last, after every part was read back. So a manifest that exists has its
//! parts, until a newer one replaces it.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, future::join_all, stream::BoxStream};
use tidegate_core::time::Timestamp;

use super::{
    body::{self, Manifest, SnapshotPart},
    bucket::Edge,
    create::Created,
    error::LogError,
    follow::MAX_MISSES,
    key::{Epoch, ObjectKey, Slot},
    node::Node,
    object::{Hash, Kind, LogId, Object},
    parts::in_order,
    replica::{Frozen, NextPart, Replica, SnapshotParts},
    tail::{NotNext, Tail},
    truncate::Removable,
};

/// How many manifests are read at once in the search for the newest one.
const MAX_PROBES: usize = 8;

/// A snapshot that exists, or did when its manifest was read.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    /// The epoch at whose seal it was made.
    pub epoch: Epoch,
    /// The nonce of the process that made it.
    pub nonce: u128,
    /// About when it was made, by the clock of its leader.
    pub time: Timestamp,
    /// The hash of the seal.
    pub seal: Hash,
    /// The list of its parts.
    pub manifest: Manifest,
}

impl Snapshot {
    /// The snapshot of `epoch`, from the bytes of its manifest.
    pub(super) fn decode(log: LogId, epoch: Epoch, bytes: Bytes) -> Result<Self, LogError> {
        let key = ObjectKey::Manifest(epoch);
        let object = Object::decode(bytes).map_err(|error| LogError::object(&key, error))?;
        let header = &object.header;
        if header.kind != Kind::Manifest || header.log != log || header.slot.epoch != epoch {
            return Err(LogError::object(&key, NotNext::Misplaced));
        }
        let manifest = body::decode(&object.body).map_err(|error| LogError::object(&key, error))?;
        let (nonce, time, seal) = (header.nonce, header.time, header.previous);
        Ok(Self { epoch, nonce, time, seal, manifest })
    }

    /// The key of a part.
    pub(super) fn part(&self, index: usize) -> ObjectKey {
        ObjectKey::Part { epoch: self.epoch, nonce: self.nonce, index: index as u32 }
    }

    /// The epoch of the snapshot before it.
    pub(super) fn previous(&self) -> Option<Epoch> {
        Epoch::new(self.manifest.previous)
    }
}

impl<R: Replica> Node<R> {
    /// The newest snapshot; none if there has never been one.
    pub(super) async fn newest_snapshot(&self) -> Result<Option<Snapshot>, LogError> {
        let (mut misses, mut missed) = (0, 0);
        loop {
            let Some(newest) = self.newest_epoch().await else { return Ok(None) };
            let known = self.claim(newest).await?.snapshot;
            let epochs = (known.max(1)..=newest.number()).rev().filter_map(Epoch::new);
            for probed in epochs.collect::<Vec<_>>().chunks(MAX_PROBES) {
                let found = join_all(probed.iter().map(|epoch| self.snapshot_of(*epoch))).await;
                for snapshot in found {
                    if let Some(snapshot) = snapshot? {
                        return Ok(Some(snapshot));
                    }
                }
            }
            let Some(gone) = Epoch::new(known) else { return Ok(None) };
            // The known one was replaced between two probes, so there is a newer one.
            misses = if std::mem::replace(&mut missed, known) == known { misses + 1 } else { 1 };
            if misses > MAX_MISSES {
                return Err(LogError::gone(&ObjectKey::Manifest(gone)));
            }
            self.edge.pause(self.settings.poll_interval / 4).await;
        }
    }

    /// The snapshot of `epoch`, if there is one.
    pub(super) async fn snapshot_of(&self, epoch: Epoch) -> Result<Option<Snapshot>, LogError> {
        let bytes = self.edge.read(&ObjectKey::Manifest(epoch)).await;
        bytes.map(|bytes| Snapshot::decode(self.log, epoch, bytes)).transpose()
    }

    /// Replaces the local state by `snapshot`. It returns the part that is gone, if one is: then the
    /// state is what it was. Usually a newer snapshot has replaced this one, so the caller looks
    /// again.
    pub(super) async fn restore(&self, snapshot: &Snapshot) -> Result<Option<ObjectKey>, LogError> {
        let edge = &self.edge;
        let read =
            move |index| async move { (index, edge.read(&snapshot.part(index)).await) }.boxed();
        let found = in_order(snapshot.manifest.parts.len(), read);
        let mut parts = Download { snapshot, found, gone: None, problem: None };
        let restored = self.replica.restore(&mut parts).await;
        if let Some((key, problem)) = parts.problem {
            return Err(LogError::object(&key, problem));
        }
        restored?;
        if parts.gone.is_some() {
            self.edge.pause(self.settings.poll_interval / 4).await;
        }
        Ok(parts.gone)
    }

    /// Makes a snapshot of `base`, the state behind a seal; none if there is one already.
    pub(super) async fn snapshot(
        &self,
        mut base: Box<dyn Frozen>,
    ) -> Result<Option<Snapshot>, LogError> {
        let Tail { next, hash, time } = base.tail();
        let Some(epoch) = next.epoch.previous() else { return Ok(None) };
        let newest = self.newest_snapshot().await?.map(|newest| newest.epoch);
        if newest >= Some(epoch) {
            // A later leader was faster. This snapshot would take the place of a newer one.
            return Ok(None);
        }
        let previous = newest.map_or(0, Epoch::number);
        let manifest = Manifest { previous, ..Manifest::default() };
        let mut snapshot = Snapshot { epoch, nonce: self.nonce, time, seal: hash, manifest };
        upload_parts(&self.edge, &mut snapshot, &mut *base).await?;
        let at = Tail { next: Slot::first_of(epoch), hash, time };
        let object = self.object(Kind::Manifest, at, &body::encode(&snapshot.manifest));
        match self.edge.create(&ObjectKey::Manifest(epoch), object.bytes()).await {
            Created::Own => Ok(Some(snapshot)),
            // Another process has made a snapshot of the same state.
            Created::Other(bytes) => {
                let other = Snapshot::decode(self.log, epoch, bytes)?;
                let digests = other.manifest.digest.zip(snapshot.manifest.digest.as_ref());
                if other.seal == hash && digests.is_some_and(|(other, own)| other.differs(own)) {
                    self.note_difference(epoch);
                }
                for index in 0..snapshot.manifest.parts.len() {
                    self.edge.remove(&Removable::part(&snapshot, index)).await?;
                }
                Ok(None)
            }
        }
    }
}

/// Creates the parts of `base`, and adds them and the digest to the manifest of `snapshot`. Each part is
/// read back.
pub(super) async fn upload_parts(
    edge: &Edge,
    snapshot: &mut Snapshot,
    base: &mut dyn Frozen,
) -> Result<(), LogError> {
    while let Some(bytes) = base.next().await? {
        let key = snapshot.part(snapshot.manifest.parts.len());
        let hash = Hash::of(&bytes).0;
        let part = SnapshotPart { hash, bytes: bytes.len() as u64, ..SnapshotPart::default() };
        snapshot.manifest.parts.push(part);
        let created = edge.create(&key, &bytes).await;
        let stored = edge.read(&key).await;
        if created != Created::Own || stored.is_none_or(|stored| Hash::of(&stored).0 != hash) {
            return Err(LogError::object(&key, "it is not what was written"));
        }
    }
    snapshot.manifest.digest = base.digest().await?;
    Ok(())
}

/// The parts of a snapshot in order, each compared with the manifest.
struct Download<'a> {
    snapshot: &'a Snapshot,
    /// What is in the bucket for each part, with its number.
    found: BoxStream<'a, (usize, Option<Bytes>)>,
    /// The part that is gone.
    gone: Option<ObjectKey>,
    problem: Option<(ObjectKey, &'static str)>,
}

#[async_trait]
impl SnapshotParts for Download<'_> {
    async fn next(&mut self) -> NextPart {
        let Some((index, found)) = self.found.next().await else { return NextPart::End };
        match found {
            Some(bytes) if self.snapshot.has(index, &bytes) => return NextPart::Part(bytes),
            Some(_) => {
                let problem = "its hash is not the one of the manifest";
                self.problem = Some((self.snapshot.part(index), problem));
            }
            None => self.gone = Some(self.snapshot.part(index)),
        }
        NextPart::Gone
    }

    fn accepts(&mut self, tail: &Tail) -> bool {
        let Snapshot { epoch, seal, .. } = *self.snapshot;
        let is_right = (tail.next, tail.hash) == (Slot::first_of(epoch.next()), seal);
        if !is_right {
            let problem = "its parts are the state of another slot";
            self.problem = Some((ObjectKey::Manifest(epoch), problem));
        }
        is_right
    }
}
