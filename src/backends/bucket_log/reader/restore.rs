//! The state of a log as of an instant, in a replica that starts empty. The bucket is not changed.
//!
//! ```text
//!   snapshot of epoch 6 ──▶ start of epoch 7 ──▶ record ──▶ record ──┬──▶ record
//!                                                                    at
//! ```
//!
//! The header of each object has the time at which a leader made it, by that leader's clock, in
//! milliseconds. It is never before that of the object before it. The state as of an instant is that
//! after the last object whose time is not after it.
//!
//! A snapshot has the state before the epoch after its own, so the start of that epoch is the earliest
//! instant that can be restored from it. The latest one is the time of the last object: a record that is
//! still to come may have any later time.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream::BoxStream};
use tidegate_core::time::Timestamp;

use super::{
    super::{
        error::LogError,
        follow::{check_schema, next_read_ahead},
        hints::Beat,
        key::{Epoch, ObjectKey, Slot},
        object::Kind,
        parts::in_order,
        replica::{NextPart, Replica, Restored, SnapshotParts},
        snapshot::Snapshot,
        tail::Tail,
        truncate::KEPT_SNAPSHOTS,
    },
    LogReader, MAX_RESTARTS, MIN_RETRY_DELAY, Stop, read,
};

/// Why the state as of an instant cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// A truncation has removed it, or the log began later.
    #[error("the log has no state before {earliest}")]
    TooEarly {
        /// The earliest instant that can be restored.
        earliest: Timestamp,
    },
    /// A record of that instant may still be written.
    #[error("the log ends at {newest}")]
    TooLate {
        /// The latest instant that can be restored.
        newest: Timestamp,
    },
    /// No server has led the log yet.
    #[error("the log has no records")]
    Empty,
    /// An object before the instant is gone, and the newest snapshots do not need it. A truncation that is
    /// under way, or has failed, has removed it, or the bucket has lost it.
    #[error(
        "the object {key} before that instant is gone: a server has removed it, or the bucket has lost it"
    )]
    Removed {
        /// Its name.
        key: String,
    },
    /// The log or the replica cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// What was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredState {
    /// The end of what was applied. Its time is that of the last object.
    pub tail: Tail,
    /// The epoch of the snapshot that it began with; none if it began with the log.
    pub snapshot: Option<Epoch>,
    /// How many records were applied after that.
    pub records: u64,
}

/// Where a restore begins.
enum Base {
    Snapshot(Snapshot),
    BeginningOfLog,
    /// The state is gone. The earliest one is of this instant; none if the log is empty.
    None(Option<Timestamp>),
}

/// The tail of the state of `snapshot`.
fn behind(snapshot: &Snapshot) -> Tail {
    Tail { next: Slot::first_of(snapshot.epoch.next()), hash: snapshot.seal, ..Tail::START }
}

/// The epoch of the snapshot before `snapshot`.
pub(super) fn before(snapshot: &Snapshot) -> Option<Epoch> {
    snapshot.previous().filter(|previous| *previous < snapshot.epoch)
}

/// An object that was found to be gone, and the first epoch of a snapshot that does not need it.
type Gone = (ObjectKey, Epoch);

/// How far the log was applied.
struct Applied {
    records: u64,
    /// Whether the log ends there.
    is_end: bool,
}

impl LogReader {
    /// Replaces the state of `replica` by that of the log as of `at`.
    ///
    /// # Errors
    ///
    /// [`RestoreError`]. The replica has an earlier state of the log then, or the one that it had.
    pub async fn restore<R: Replica>(
        &self,
        replica: &R,
        at: Timestamp,
    ) -> Result<RestoredState, RestoreError> {
        let beat = self.beat().await;
        let mut snapshots = self.kept_snapshots(beat.as_ref()).await?;
        let (mut restarts, mut delay, mut gone) = (0, MIN_RETRY_DELAY, None);
        loop {
            let stop = match self.restore_from(&snapshots, replica, at, beat.as_ref(), gone).await {
                Ok(restored) => return restored,
                Err(stop) => stop,
            };
            let (key, replaced_from) = match stop {
                Stop::Error(error) => return Err(error.into()),
                Stop::Gone { key, replaced_from } => (key, replaced_from),
            };
            snapshots = self.kept_snapshots(beat.as_ref()).await?;
            let is_replaced = snapshots.keys().next().is_some_and(|kept| *kept >= replaced_from);
            if !is_replaced {
                return Err(LogError::gone(&key).into());
            }
            restarts += 1;
            if restarts > MAX_RESTARTS {
                return Err(RestoreError::Removed { key: key.to_string() });
            }
            gone = Some((key, replaced_from));
            // A truncation removes several objects at once, in any order. Those before this one will be
            // gone, too, and then an earlier snapshot is no base any more.
            self.edge.back_off(&mut delay).await;
        }
    }

    async fn restore_from<R: Replica>(
        &self,
        snapshots: &BTreeMap<Epoch, Snapshot>,
        replica: &R,
        at: Timestamp,
        beat: Option<&Beat>,
        gone: Option<Gone>,
    ) -> Result<Result<RestoredState, RestoreError>, Stop> {
        let snapshot = match self.base(snapshots, at, beat).await? {
            Base::Snapshot(snapshot) => Some(snapshot),
            Base::BeginningOfLog => None,
            Base::None(earliest) => {
                let too_early = |earliest| RestoreError::TooEarly { earliest };
                return Ok(Err(earliest.map_or(RestoreError::Empty, too_early)));
            }
        };
        let first = snapshot.as_ref().map_or(Epoch::FIRST, |snapshot| snapshot.epoch.next());
        if let Some((key, replaced_from)) = gone
            && first <= replaced_from
            && read(&self.edge, &key).await?.is_none()
        {
            // The same object would be missing behind the same snapshot, whose parts may take long.
            return Err(Stop::Gone { key, replaced_from });
        }
        match &snapshot {
            Some(snapshot) => self.download(snapshot, replica).await?,
            None => replica.clear().await.map_err(LogError::from)?,
        }
        let Applied { records, is_end } = self.apply_until(snapshots, replica, at, beat).await?;
        let tail = replica.tail();
        if is_end && tail.time < at {
            return Ok(Err(RestoreError::TooLate { newest: tail.time }));
        }
        let snapshot = snapshot.map(|snapshot| snapshot.epoch);
        Ok(Ok(RestoredState { tail, snapshot, records }))
    }

    /// The newest of `snapshots`, or of older ones, whose state is not after `at`, or the beginning of the
    /// log.
    async fn base(
        &self,
        snapshots: &BTreeMap<Epoch, Snapshot>,
        at: Timestamp,
        beat: Option<&Beat>,
    ) -> Result<Base, Stop> {
        let mut earliest = None;
        for snapshot in snapshots.values().rev() {
            let tail = behind(snapshot);
            let next = tail.next;
            let began = loop {
                if let Some(began) = self.time_at(tail).await? {
                    break began;
                }
                // Claims are never removed, and no epoch is truncated without a later one.
                let later_claim = ObjectKey::Claim(next.epoch.next());
                if read(&self.edge, &later_claim).await?.is_some() {
                    return Err(Stop::Gone { key: tail.key(), replaced_from: next.epoch });
                }
                // No server has led a log since it began with this snapshot.
                if self.is_end(tail, beat, snapshots).await? {
                    return Ok(Base::None(None));
                }
            };
            if began <= at {
                return Ok(Base::Snapshot(snapshot.clone()));
            }
            earliest = Some(began);
        }
        // Servers may keep older ones for a time, or a truncation may be removing them.
        let mut older = snapshots.values().next().cloned();
        while let Some(previous) = older.as_ref().and_then(before)
            && let Some(snapshot) = self.snapshot(previous).await?
            && let Some(began) = self.time_at(behind(&snapshot)).await?
        {
            if began <= at {
                return Ok(Base::Snapshot(snapshot));
            }
            earliest = Some(began);
            older = Some(snapshot);
        }
        // A truncation removes nothing before there are as many snapshots as it keeps.
        let oldest = snapshots.values().next();
        let is_whole = snapshots.len() < KEPT_SNAPSHOTS
            && oldest.is_none_or(|oldest| oldest.previous().is_none());
        if is_whole && let Some(began) = self.time_at(Tail::START).await? {
            if began <= at {
                return Ok(Base::BeginningOfLog);
            }
            earliest = Some(began);
        }
        Ok(Base::None(earliest))
    }

    /// The time of the object that continues the log at `tail`, if there is one.
    async fn time_at(&self, tail: Tail) -> Result<Option<Timestamp>, LogError> {
        let key = tail.key();
        let Some(bytes) = read(&self.edge, &key).await? else { return Ok(None) };
        let object =
            tail.read(self.log, bytes).map_err(|problem| LogError::object(&key, problem))?;
        Ok(Some(object.object().header.time))
    }

    async fn download<R: Replica>(&self, snapshot: &Snapshot, replica: &R) -> Result<(), Stop> {
        let edge = &self.edge;
        let reading =
            move |index| async move { (index, read(edge, &snapshot.part(index)).await) }.boxed();
        let found = in_order(snapshot.manifest.parts.len(), reading);
        let mut parts = Download { snapshot, found, stop: None };
        let restored = replica.restore(&mut parts).await;
        if let Some(stop) = parts.stop {
            return Err(stop);
        }
        match restored.map_err(LogError::from)? {
            Restored::Done => Ok(()),
            Restored::Gone => Err(LogError::gone(&ObjectKey::Manifest(snapshot.epoch)).into()),
        }
    }

    /// Applies what continues the log at the tail of `replica` and is not after `at`.
    async fn apply_until<R: Replica>(
        &self,
        snapshots: &BTreeMap<Epoch, Snapshot>,
        replica: &R,
        at: Timestamp,
        beat: Option<&Beat>,
    ) -> Result<Applied, Stop> {
        let (mut ahead, mut records) = (1, 0);
        loop {
            let mut tail = replica.tail();
            let found = self.read_slots(tail.next, 0..ahead).await?;
            let bytes = found.iter().flatten().map(Bytes::len).sum();
            let (mut objects, mut is_empty, mut is_over) = (Vec::new(), false, false);
            for bytes in found {
                let Some(bytes) = bytes else {
                    is_empty = true;
                    break;
                };
                let durable = tail
                    .read(self.log, bytes)
                    .map_err(|problem| LogError::object(&tail.key(), problem))?;
                let object = durable.object();
                if object.header.time > at {
                    is_over = true;
                    break;
                }
                check_schema(object, replica.schema())?;
                let kind = object.header.kind;
                tail = Tail::after(object);
                records += u64::from(kind == Kind::Record);
                objects.push(durable);
                if kind == Kind::Seal {
                    break;
                }
            }
            if !objects.is_empty() {
                replica.apply(objects).await.map_err(LogError::from)?;
            }
            if is_over {
                return Ok(Applied { records, is_end: false });
            }
            if is_empty && self.is_end(tail, beat, snapshots).await? {
                return Ok(Applied { records, is_end: true });
            }
            ahead = next_read_ahead(ahead, bytes);
        }
    }
}

/// The parts of a snapshot in order, each compared with its manifest.
struct Download<'a> {
    snapshot: &'a Snapshot,
    /// What is in the bucket for each part, with its number.
    found: BoxStream<'a, (usize, Result<Option<Bytes>, LogError>)>,
    stop: Option<Stop>,
}

impl Download<'_> {
    fn fail(&mut self, stop: impl Into<Stop>) -> NextPart {
        self.stop = Some(stop.into());
        NextPart::Gone
    }
}

#[async_trait]
impl SnapshotParts for Download<'_> {
    async fn next(&mut self) -> NextPart {
        let Some((index, found)) = self.found.next().await else { return NextPart::End };
        let key = self.snapshot.part(index);
        match found {
            Ok(Some(bytes)) if self.snapshot.has(index, &bytes) => NextPart::Part(bytes),
            Ok(Some(_)) => {
                self.fail(LogError::object(&key, "its hash is not the one of the manifest"))
            }
            Ok(None) => {
                let replaced_from = self.snapshot.epoch.next();
                self.fail(Stop::Gone { key, replaced_from })
            }
            Err(error) => self.fail(error),
        }
    }

    fn accepts(&mut self, tail: &Tail) -> bool {
        let Snapshot { epoch, seal, .. } = *self.snapshot;
        let is_right = (tail.next, tail.hash) == (Slot::first_of(epoch.next()), seal);
        if !is_right {
            let problem = "its parts are the state of another slot";
            self.fail(LogError::object(&ObjectKey::Manifest(epoch), problem));
        }
        is_right
    }
}

#[cfg(test)]
pub(super) mod tests;
