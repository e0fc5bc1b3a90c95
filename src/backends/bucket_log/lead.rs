//! Becoming the leader. A start, a takeover and a roll-over are this one procedure.
//!
//! ```text
//!   claim n+1 ──▶ for each epoch up to n: read to its first empty slot, seal that ──▶ start record
//! ```
//!
//! A claim alone gives no right. A seal is the fence: it is in the slot that the old leader would
//! fill next, so that leader can acknowledge nothing after it.

use bytes::Bytes;

use super::{
    body::{self, EpochClaim, StartRecord},
    create::Created,
    error::LogError,
    flight::witness,
    handover::Intent,
    hints::Beat,
    key::{Epoch, ObjectKey, Slot},
    node::Node,
    object::{Hash, Kind},
    planted::PlantedBug,
    replica::{Frozen, Replica},
    tail::Tail,
};
use tidegate_core::time::Timestamp;

/// A leadership that has begun. Its epoch is that of the replica's tail.
pub(super) struct Leading {
    /// The state behind the last seal, for a snapshot.
    pub base: Option<Box<dyn Frozen>>,
}

impl<R: Replica> Node<R> {
    /// Tries to lead; none if another node was faster, or has led since this leader did.
    ///
    /// # Errors
    ///
    /// [`LogError::Object`] names an object that the log had and has no longer. Leading would make the
    /// loss final, and an operator can restore the object. [`LogError::Closed`] if the log was closed.
    pub(super) async fn lead(&self, intent: Intent) -> Result<Option<Leading>, LogError> {
        // What it names was in the log before the log is read.
        let beat = self.read_beat().await;
        self.catch_up().await?;
        let newest = self.newest_epoch().await;
        if let Some(claimed) = beat.as_ref().and_then(|beat| Epoch::new(beat.epoch))
            && newest < Some(claimed)
        {
            return Err(LogError::gone(&ObjectKey::Claim(claimed)));
        }
        if self.planted.has(PlantedBug::EpochReused)
            && let Some(epoch) = newest
            && self.leadership.epoch().is_none()
            && self.claim(epoch).await?.address == self.settings.address
        {
            return self.lead_again(epoch).await;
        }
        if self.is_overtaken().await? {
            return Ok(None);
        }
        self.lead_from(newest.map_or(Epoch::FIRST, Epoch::next), intent, beat.as_ref()).await
    }

    /// Tries to lead the epoch after `ended`, whose seal is the end of the local state; none if another node
    /// was faster. A leader that ends its epoch is waited for, so this takes few requests: the log was read
    /// up to that seal, and no other epoch is to be sealed.
    ///
    /// # Errors
    ///
    /// As [`Self::lead`].
    pub(super) async fn succeed(&self, ended: Epoch) -> Result<Option<Leading>, LogError> {
        self.lead_from(ended.next(), Intent::Succeed, None).await
    }

    /// Claims `epoch` or a later one, seals all before it, and starts it. `beat` was read before the log.
    async fn lead_from(
        &self,
        mut epoch: Epoch,
        intent: Intent,
        beat: Option<&Beat>,
    ) -> Result<Option<Leading>, LogError> {
        while !self.claims(epoch, intent).await? {
            if self.leadership.epoch().is_none() {
                return Ok(None);
            }
            // That process does not lead yet, and it may be lost. A leader that stopped for it would
            // leave the log without one.
            epoch = epoch.next();
        }
        while self.replica.tail().next.epoch < epoch {
            self.seal(beat).await?;
            if self.is_overtaken().await? {
                return Ok(None);
            }
        }
        if self.replica.tail().next != Slot::first_of(epoch) {
            return Ok(None);
        }
        let base = match epoch.previous() {
            Some(_) => Some(self.replica.freeze().await?),
            None => None,
        };
        let started = self.starts(Kind::Start).await?;
        Ok(started.then_some(Leading { base }))
    }

    /// Claims `epoch`; false if another process has.
    async fn claims(&self, epoch: Epoch, intent: Intent) -> Result<bool, LogError> {
        // The search for it reads the newest claim.
        let snapshot = self.newest_snapshot().await?;
        self.refuse_closed()?;
        if *self.known.lock() >= Some(epoch) {
            return Ok(false);
        }
        let claim = EpochClaim {
            address: self.settings.address.clone(),
            snapshot: snapshot.map_or(0, |snapshot| snapshot.epoch.number()),
            replaces: intent == Intent::Replace,
            ..EpochClaim::default()
        };
        let at = Tail { next: Slot::first_of(epoch), hash: Hash::NONE, time: Timestamp::EPOCH };
        let object = self.object(Kind::Claim, at, &body::encode(&claim));
        let created = self.edge.create(&ObjectKey::Claim(epoch), object.bytes()).await;
        Ok(created == Created::Own)
    }

    /// Seals the epoch of the tail, unless it is sealed already. `beat` was read before the log.
    async fn seal(&self, beat: Option<&Beat>) -> Result<(), LogError> {
        let target = self.replica.tail().next.epoch;
        self.catch_up().await?;
        let tail = self.replica.tail();
        if tail.next.epoch != target || self.is_overtaken().await? {
            return Ok(());
        }
        if self.was_filled(tail.next, beat).await {
            if self.edge.read(&tail.key()).await.is_some() {
                // A leader has filled the slot meanwhile. Then following goes on.
                return Ok(());
            }
            let snapshot = self.newest_snapshot().await?;
            return match snapshot.filter(|snapshot| snapshot.epoch >= target) {
                // A truncation has emptied the slot.
                Some(snapshot) => self.discard(Some(snapshot)).await,
                None => Err(LogError::gone(&tail.key())),
            };
        }
        let seal = self.object(Kind::Seal, tail, &Bytes::new());
        // A record of the old leader, or another seal, may be there. Then following goes on.
        self.edge.create(&tail.key(), seal.bytes()).await;
        // This process may have been frozen before its PUT, and a truncation may have emptied the
        // slot since. A snapshot precedes every truncation.
        let snapshot = self.newest_snapshot().await?;
        match snapshot.filter(|snapshot| snapshot.epoch >= target) {
            Some(snapshot) if !self.planted.has(PlantedBug::ChainAndSnapshotUnchecked) => {
                self.discard(Some(snapshot)).await
            }
            _ => Ok(()),
        }
    }

    /// Whether the slot `empty` was filled: the leader has said so, or no leader could have filled a
    /// later one otherwise.
    async fn was_filled(&self, empty: Slot, beat: Option<&Beat>) -> bool {
        if self.planted.has(PlantedBug::ChainAndSnapshotUnchecked) {
            return false;
        }
        beat.is_some_and(|beat| beat.is_after(empty))
            || self.edge.read(&ObjectKey::Slot(witness(empty))).await.is_some()
    }

    /// Creates the start record of the epoch of the tail: the proof that no other process has sealed
    /// it. False if one has.
    async fn starts(&self, kind: Kind) -> Result<bool, LogError> {
        let tail = self.replica.tail();
        let start = StartRecord {
            address: self.settings.address.clone(),
            schema: self.replica.schema(),
            ..StartRecord::default()
        };
        let object = match kind {
            Kind::Start => self.object(kind, tail, &body::encode(&start)),
            _ => self.object(kind, tail, &body::pack(&[])),
        };
        match self.edge.create(&tail.key(), object.bytes()).await {
            Created::Own => {
                self.replica.apply(vec![tail.own(object)]).await?;
                self.leadership.set(Some(tail.next.epoch));
                Ok(true)
            }
            Created::Other(_) => Ok(false),
        }
    }

    /// Goes on in an epoch of an earlier life: a planted bug.
    async fn lead_again(&self, epoch: Epoch) -> Result<Option<Leading>, LogError> {
        let tail = self.replica.tail();
        if tail.next.epoch != epoch || tail.next.seq == 0 {
            return Ok(None);
        }
        let started = self.starts(Kind::Record).await?;
        Ok(started.then_some(Leading { base: None }))
    }
}
