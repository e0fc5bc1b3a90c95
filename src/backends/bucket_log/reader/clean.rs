//! What no server needs of the snapshots in a bucket, and none removes.
//!
//! ```text
//!   snap/3   parts: their leader was lost before the manifest         go
//!   snap/4   a manifest that no newer one names, and its parts        go
//!   snap/5   manifest ◀── snap/6: manifest ◀── snap/8: the newest     stay
//!   snap/7   parts                                                    stay until snap/5 and snap/6 have gone
//! ```
//!
//! Servers and restores reach a snapshot from the newest one, along the names of those before. The last one
//! that is there is the oldest that a server keeps, whatever time its settings name. So nothing below its
//! epoch is read again.
//!
//! A list shows what is there, and decides nothing else: which epochs are needed comes from the manifests. A
//! leader that is slow, or was frozen, may still write below that epoch. So an object goes only a day after
//! the last one of its epoch. The store's own times are compared, with that of its newest object as the
//! present: without a server that beats, less is old.

use std::{collections::BTreeMap, time::Duration};

use tidegate_core::time::Timestamp;

use super::{
    super::{
        bucket::{ListedObject, MIN_RETRY_DELAY, StoreBucket},
        error::LogError,
        key::{Epoch, ObjectKey, Slot},
        object::{Kind, Object},
        truncate::Removable,
    },
    LogReader, PATIENCE, read,
    restore::before,
};

/// Where hints are. A server that leads writes one every minute at least, unless its beats are rarer.
const HINTS: &str = "hint";
/// Where snapshots are.
const SNAPSHOTS: &str = "snap";
/// How old the objects of an epoch must be at least. An upload or a removal takes hours at most.
const MIN_AGE: Duration = Duration::from_hours(24);

/// The objects of an epoch below `snap` that no server needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The epoch.
    pub epoch: Epoch,
    /// Their bytes, as the store has them.
    pub bytes: u64,
    /// When the last one of them was written, by the clock of the store.
    pub written_at: Timestamp,
    /// A manifest before parts.
    keys: Vec<ObjectKey>,
}

impl Leftover {
    /// Whether they have a manifest: they are a snapshot that no newer one names. Otherwise they are what an
    /// upload has left.
    pub fn is_snapshot(&self) -> bool {
        self.keys.iter().any(|key| matches!(key, ObjectKey::Manifest(_)))
    }

    /// How many objects there are.
    pub fn objects(&self) -> usize {
        self.keys.len()
    }

    /// Their names, a manifest before parts.
    pub(in crate::bucket_log) fn keys(&self) -> &[ObjectKey] {
        &self.keys
    }
}

/// What no server needs of the snapshots in a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// What can be removed, by epochs.
    pub removable: Vec<Leftover>,
    /// How many other epochs have objects that are too young.
    pub young: usize,
}

impl LogReader {
    /// Finds what no server needs of the snapshots in `bucket`, that of this reader. Nothing is written.
    ///
    /// # Errors
    ///
    /// [`LogError::Object`] if a snapshot that servers keep is damaged or was lost. [`LogError::NoAnswer`] if
    /// the store does not answer for a minute.
    pub async fn leftovers(&self, bucket: &StoreBucket) -> Result<Leftovers, LogError> {
        let mut listed = self.list_folder(bucket, SNAPSHOTS).await?;
        listed.extend(self.list_folder(bucket, HINTS).await?);
        let oldest = self.oldest_kept().await?;
        Ok(oldest.map_or_else(Leftovers::default, |oldest| leftovers(&listed, oldest)))
    }

    /// Removes what [`Self::leftovers`] has found. What a call that failed has left is found again.
    ///
    /// # Errors
    ///
    /// [`LogError::Object`] if the store does not remove an object, or [`LogError::NoAnswer`].
    pub async fn remove(&self, leftover: &Leftover) -> Result<(), LogError> {
        let (manifests, parts): (Vec<_>, Vec<_>) = Removable::leftover(leftover)
            .partition(|object| matches!(object.key(), ObjectKey::Manifest(_)));
        for manifest in manifests {
            // A manifest that is there has its parts.
            self.edge.remove(&manifest).await?;
            let key = manifest.key();
            if read(&self.edge, &key).await?.is_some() {
                return Err(LogError::object(&key, "the store does not remove it"));
            }
        }
        self.edge.remove_all(parts.into_iter()).await
    }

    async fn list_folder(
        &self,
        bucket: &StoreBucket,
        folder: &str,
    ) -> Result<Vec<ListedObject>, LogError> {
        let (began, mut delay) = (self.edge.clock.now(), MIN_RETRY_DELAY);
        loop {
            if let Some(listed) = bucket.list(folder).await {
                return Ok(listed);
            }
            if self.edge.clock.now().since(began) >= PATIENCE {
                return Err(LogError::NoAnswer { key: folder.to_owned() });
            }
            self.edge.back_off(&mut delay).await;
        }
    }

    /// The epoch of the oldest snapshot that servers keep and restores begin with; none without a snapshot.
    async fn oldest_kept(&self) -> Result<Option<Epoch>, LogError> {
        let beat = self.beat().await;
        let kept = self.kept_snapshots(beat.as_ref()).await?;
        let Some(mut oldest) = kept.into_values().next() else { return Ok(None) };
        while let Some(previous) = before(&oldest) {
            let Some(snapshot) = self.snapshot(previous).await? else {
                self.check_removed(previous, oldest.epoch).await?;
                break;
            };
            oldest = snapshot;
        }
        Ok(Some(oldest.epoch))
    }

    /// Checks that servers have removed the snapshot of `gone`, the one before that of `next`. If the bucket
    /// has lost it, the older ones are needed once it is back.
    async fn check_removed(&self, gone: Epoch, next: Epoch) -> Result<(), LogError> {
        for epoch in (gone.number() + 1..=next.number()).filter_map(Epoch::new) {
            let first = read(&self.edge, &ObjectKey::Slot(Slot::first_of(epoch))).await?;
            // A seal stays.
            let is_start =
                |bytes| Object::decode(bytes).is_ok_and(|first| first.header.kind == Kind::Start);
            if first.is_some_and(is_start) {
                // A truncation would have removed it before the manifest.
                return Err(LogError::gone(&ObjectKey::Manifest(gone)));
            }
        }
        Ok(())
    }
}

/// What of `listed` no server needs that keeps no snapshot before that of `oldest`.
fn leftovers(listed: &[ListedObject], oldest: Epoch) -> Leftovers {
    let Some(now) = listed.iter().map(|object| object.written_at).max() else {
        return Leftovers::default();
    };
    let mut epochs = BTreeMap::<Epoch, Leftover>::new();
    for ListedObject { name, bytes, written_at } in listed {
        let Some(key) = ObjectKey::of_snapshot(name) else { continue };
        let (ObjectKey::Manifest(epoch) | ObjectKey::Part { epoch, .. }) = key else { continue };
        if epoch >= oldest {
            continue;
        }
        let leftover = epochs.entry(epoch).or_insert_with(|| Leftover {
            epoch,
            bytes: 0,
            written_at: *written_at,
            keys: Vec::new(),
        });
        leftover.bytes += bytes;
        leftover.written_at = leftover.written_at.max(*written_at);
        leftover.keys.push(key);
    }
    let (mut removable, young): (Vec<_>, Vec<_>) =
        epochs.into_values().partition(|leftover| now.since(leftover.written_at) > MIN_AGE);
    for leftover in &mut removable {
        leftover.keys.sort_unstable();
    }
    Leftovers { removable, young: young.len() }
}

#[cfg(test)]
mod tests;
