//! Truncation: which objects a newer snapshot has replaced, and no others.
//!
//! Claims and seals are never removed. A seal is the fence of its epoch: without it, a leader that
//! has been frozen since then could fill the slot, and acknowledge.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use futures_util::{StreamExt as _, stream};

use super::{
    bucket::Edge,
    error::LogError,
    key::{Epoch, ObjectKey, Slot},
    node::{Node, NodeSettings},
    reader::Leftover,
    replica::Replica,
    snapshot::Snapshot,
};

/// How many snapshots servers keep, and all records after the oldest of them.
pub(super) const KEPT_SNAPSHOTS: usize = 2;
/// Most objects that are removed at once.
const MAX_REMOVALS_AT_ONCE: usize = 32;
/// How often an object may be found again that the store has removed.
const MAX_READ_REMOVALS: u32 = 10;

/// An object that may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removable(ObjectKey);

impl Removable {
    /// Its key.
    pub fn key(&self) -> ObjectKey {
        self.0
    }

    /// The records of the sealed epochs up to that of a snapshot that exists, oldest first. `sealed`
    /// has the number of records of each epoch: the next slot has its seal.
    fn records(
        snapshot: &Snapshot,
        sealed: &BTreeMap<Epoch, u64>,
    ) -> impl Iterator<Item = Self> + use<> {
        let replaced: Vec<_> = sealed.range(..=snapshot.epoch).map(|(e, n)| (*e, *n)).collect();
        replaced.into_iter().flat_map(|(epoch, records)| {
            (0..records).map(move |seq| Self(ObjectKey::Slot(Slot { epoch, seq })))
        })
    }

    /// The manifest of a replaced snapshot.
    fn manifest(replaced: &Snapshot) -> Self {
        Self(ObjectKey::Manifest(replaced.epoch))
    }

    /// A probe of the store.
    pub(super) fn probe(nonce: u128) -> Self {
        Self(ObjectKey::Probe(nonce))
    }

    /// A part of a snapshot without a manifest.
    pub(super) fn part(snapshot: &Snapshot, index: usize) -> Self {
        Self(snapshot.part(index))
    }

    /// What no server needs of the snapshots of an epoch, a manifest before parts.
    pub(super) fn leftover(leftover: &Leftover) -> impl Iterator<Item = Self> {
        leftover.keys().iter().copied().map(Self)
    }
}

/// What a new snapshot replaces.
#[derive(Debug)]
struct Replaced {
    /// The oldest snapshot that is kept.
    oldest_kept: Snapshot,
    /// The epochs whose records may still be there, and are no longer needed.
    epochs: RangeInclusive<Epoch>,
    /// The snapshots that are no longer needed, oldest first.
    snapshots: Vec<Snapshot>,
}

impl Replaced {
    /// What can go if `chain` are the snapshots, newest first, each the one before the last. `kept` of
    /// them are kept, or as many as a restore needs that reaches back from the newest one for `history`.
    fn by(mut chain: Vec<Snapshot>, kept: usize, history: Duration) -> Option<Self> {
        // A restore to an instant needs the newest snapshot before it.
        let newest = chain.first()?.time;
        let is_recent = |snapshot: &&Snapshot| newest.since(snapshot.time) < history;
        let kept = kept.max(chain.iter().take_while(is_recent).count() + 1);
        // When a manifest was removed, the records up to its epoch had gone before.
        let first = chain.last()?.previous().map_or(Epoch::FIRST, Epoch::next);
        let mut snapshots = chain.split_off(kept.min(chain.len()));
        snapshots.reverse();
        let oldest_kept = chain.pop().filter(|_| chain.len() + 1 >= kept)?;
        let epochs = first..=oldest_kept.epoch;
        Some(Self { oldest_kept, epochs, snapshots })
    }
}

impl<R: Replica> Node<R> {
    /// Removes what `newest`, a snapshot that exists, and the kept ones before it replace.
    pub(super) async fn truncate(&self, newest: Snapshot) -> Result<(), LogError> {
        let mut chain = vec![newest];
        // The chain leads to older snapshots alone, so no newer one can be removed.
        while let Some(last) = chain.last()
            && let Some(previous) = last.previous().filter(|previous| *previous < last.epoch)
            && let Some(snapshot) = self.snapshot_of(previous).await?
        {
            chain.push(snapshot);
        }
        let NodeSettings { kept_snapshots: kept, history, .. } = self.settings;
        let Some(replaced) = Replaced::by(chain, kept, history) else {
            return Ok(());
        };
        let epochs = replaced.epochs.end().number() + 1 - replaced.epochs.start().number();
        let sealed = self.replica.sealed(replaced.epochs).await?;
        if sealed.len() as u64 != epochs {
            // The local state was discarded meanwhile. A later truncation removes these objects.
            return Ok(());
        }
        self.edge.remove_all(Removable::records(&replaced.oldest_kept, &sealed)).await?;
        for snapshot in replaced.snapshots {
            // Each is gone before the next one: a reader that meets a manifest meets the newest.
            self.remove_surely(&Removable::manifest(&snapshot)).await?;
            let parts = 0..snapshot.manifest.parts.len();
            let parts = parts.map(|index| Removable::part(&snapshot, index));
            self.edge.remove_all(parts).await?;
        }
        Ok(())
    }

    /// Removes `object`, and reads that it is gone.
    async fn remove_surely(&self, object: &Removable) -> Result<(), LogError> {
        for _ in 0..MAX_READ_REMOVALS {
            if self.edge.read(&object.key()).await.is_none() {
                return Ok(());
            }
            self.edge.remove(object).await?;
        }
        Err(LogError::object(&object.key(), "the store does not remove it"))
    }
}

impl Edge {
    /// Removes `objects` in any order.
    pub(super) async fn remove_all(
        &self,
        objects: impl Iterator<Item = Removable> + Send,
    ) -> Result<(), LogError> {
        let mut removals = stream::iter(objects)
            .map(|object| async move { self.remove(&object).await })
            .buffer_unordered(MAX_REMOVALS_AT_ONCE);
        while let Some(removed) = removals.next().await {
            removed?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use tidegate_core::time::Timestamp;

    use super::*;
    use crate::bucket_log::{body::Manifest, object::Hash};

    fn epoch(number: u64) -> Epoch {
        Epoch::new(number).unwrap()
    }

    fn snapshot(number: u64, previous: u64) -> Snapshot {
        let manifest = Manifest { previous, ..Manifest::default() };
        let time = Timestamp::from_millis(number as i64 * 1_000);
        Snapshot { epoch: epoch(number), nonce: 1, time, seal: Hash::NONE, manifest }
    }

    #[test]
    fn the_kept_snapshots_and_the_log_behind_them_stay() {
        let chain = || vec![snapshot(9, 7), snapshot(7, 4), snapshot(4, 2)];
        for (kept, oldest, replaced) in
            [(1, Some(9), &[4, 7][..]), (2, Some(7), &[4]), (3, Some(4), &[]), (4, None, &[])]
        {
            let found = Replaced::by(chain(), kept, Duration::ZERO);
            assert_eq!(found.as_ref().map(|found| found.oldest_kept.epoch.number()), oldest);
            let Some(found) = found else { continue };
            assert_eq!(found.epochs, epoch(3)..=found.oldest_kept.epoch);
            let gone: Vec<u64> = found.snapshots.iter().map(|one| one.epoch.number()).collect();
            assert_eq!(gone, replaced, "oldest first");
        }
        assert!(Replaced::by(Vec::new(), 1, Duration::ZERO).is_none());
    }

    #[test]
    fn a_restore_reaches_back_for_the_set_time() {
        // The snapshots were made 2 and 5 seconds before the newest one.
        let chain = || vec![snapshot(9, 7), snapshot(7, 4), snapshot(4, 2)];
        for (seconds, oldest) in [(0, Some(9)), (2, Some(7)), (3, Some(4)), (5, Some(4)), (6, None)]
        {
            let found = Replaced::by(chain(), 1, Duration::from_secs(seconds));
            let found = found.map(|found| found.oldest_kept.epoch.number());
            assert_eq!(found, oldest, "{seconds} s");
        }
        let found = Replaced::by(chain(), 2, Duration::ZERO).unwrap();
        assert_eq!(found.oldest_kept.epoch, epoch(7), "the number counts, too");
    }

    proptest! {
        #[test]
        fn only_records_of_replaced_epochs_are_removable(
            sealed in prop::collection::btree_map(1..9u64, 0..5u64, 0..8),
            at in 1..9u64,
        ) {
            let sealed: BTreeMap<Epoch, u64> =
                sealed.into_iter().map(|(number, records)| (epoch(number), records)).collect();
            let standing = snapshot(at, 0);
            let removable: Vec<Removable> = Removable::records(&standing, &sealed).collect();
            for record in &removable {
                let ObjectKey::Slot(slot) = record.key() else { panic!("{record:?} is no record") };
                prop_assert!(slot.epoch <= standing.epoch);
                prop_assert!(slot.seq < sealed[&slot.epoch], "the seal is kept");
            }
            let records: u64 = sealed.range(..=standing.epoch).map(|(_, records)| records).sum();
            prop_assert_eq!(removable.len() as u64, records);
        }
    }
}
