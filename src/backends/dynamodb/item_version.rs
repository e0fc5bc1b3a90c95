//! The versions of items of the configuration, by which writes are conditional.
//!
//! Every claim and every tick requires the configuration of its queue. The item of a queue has one
//! key, and all queues share a partition, which answers 3000 reads a second. So a process remembers
//! the version of an item together with the version of the whole configuration, which has copies.
//! While the latter is unchanged, so is the item: one transaction replaces both.
//!
//! A transaction changes its items one after the other. What is read meanwhile may be a new version
//! of the configuration and an old item, so an item is remembered only under a version that is
//! older than any write in flight.

use std::time::Duration;

use futures_util::future;

use super::{
    DynamoStore, MAX_IN_FLIGHT_WRITE, MAX_KNOWN_RECORDS,
    key::{self, Key},
    row,
    table::Item,
};
use tidegate_core::{
    port::{StoreError, job_store::ItemKind},
    time::Timestamp,
};

/// Random bits of the number of a configuration's version, below its milliseconds.
const CHANGE_BITS: u32 = 22;
const CHANGE_MASK: u64 = (1 << CHANGE_BITS) - 1;
/// The age of a version of the configuration under which items are remembered: a write in flight,
/// and as much for clocks that differ.
const MIN_VERSION_AGE: Duration = Duration::from_secs(2 * MAX_IN_FLIGHT_WRITE.as_secs());

/// The version of an item under a version of the configuration.
#[derive(Clone, Copy)]
pub(super) struct ItemVersion {
    under: u64,
    version: u64,
}

impl DynamoStore {
    /// A number for a new version of the configuration. It is greater than all before it, and
    /// differs from that of another change in the same millisecond. Thousands of changes in one, as
    /// a script makes them, need many bits.
    pub(super) fn next_configuration_version(&self) -> u64 {
        let millis = self.now().millis().max(1) as u64;
        millis << CHANGE_BITS | (self.entropy.bits() as u64 & CHANGE_MASK)
    }

    /// The version of the configuration; 0 if there is none.
    pub(super) async fn configuration_version(&self) -> Result<u64, StoreError> {
        let item = self.copies(&[key::items_version()]).await?.pop().flatten();
        let version = version_of(item.as_ref());
        self.known.lock().configuration = version;
        Ok(version)
    }

    /// The versions of the items of `keys`, in their order; 0 for one that is missing.
    pub(super) async fn item_versions(&self, keys: &[Key]) -> Result<Vec<u64>, StoreError> {
        let (under, known) = self.remembered_versions(keys);
        let is_copied = |key: &Key| key.p == key::items(ItemKind::Type);
        let copied: Vec<Key> = keys.iter().filter(|key| is_copied(key)).cloned().collect();
        let is_unknown =
            |(key, known): &(&Key, &Option<ItemVersion>)| known.is_none() && !is_copied(key);
        let unknown = keys.iter().zip(&known).filter(is_unknown).map(|(key, _)| key.clone());
        let unknown: Vec<Key> = unknown.collect();
        let current = async {
            if known.iter().any(Option::is_some) {
                self.configuration_version().await
            } else {
                Ok(0)
            }
        };
        let (copies, read, current) = future::try_join3(
            self.copied_versions(&copied),
            self.read_versions(&unknown, under),
            current,
        )
        .await?;
        let is_changed =
            |known: &Option<ItemVersion>| known.is_some_and(|known| known.under != current);
        let changed = keys.iter().zip(&known).filter(|(_, known)| is_changed(known));
        let changed: Vec<Key> = changed.map(|(key, _)| key.clone()).collect();
        let changed = self.read_versions(&changed, current).await?;
        let (mut copies, mut read, mut changed) =
            (copies.into_iter(), read.into_iter(), changed.into_iter());
        let version = |(key, known): (&Key, &Option<ItemVersion>)| match known {
            Some(known) if known.under == current => Some(known.version),
            Some(_) => changed.next(),
            None if is_copied(key) => copies.next(),
            None => read.next(),
        };
        Ok(keys.iter().zip(&known).map(version).map(Option::unwrap_or_default).collect())
    }

    /// The version of the configuration that this process has read last, and what it remembers of
    /// `keys`.
    fn remembered_versions(&self, keys: &[Key]) -> (u64, Vec<Option<ItemVersion>>) {
        let known = self.known.lock();
        let items = keys.iter().map(|key| known.item_versions.get(key).copied()).collect();
        (known.configuration, items)
    }

    async fn copied_versions(&self, keys: &[Key]) -> Result<Vec<u64>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.copies(keys).await?.iter().map(|item| version_of(item.as_ref())).collect())
    }

    /// Reads the versions of items, and remembers them under a version of the configuration that
    /// was read before.
    async fn read_versions(&self, keys: &[Key], under: u64) -> Result<Vec<u64>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let began = self.now();
        let items = self.table.get(keys).await?;
        let versions: Vec<u64> = items.iter().map(|item| version_of(item.as_ref())).collect();
        if is_settled(under, began) {
            let mut known = self.known.lock();
            for (key, version) in keys.iter().zip(&versions).filter(|(key, _)| is_required(key)) {
                if known.item_versions.len() >= MAX_KNOWN_RECORDS {
                    known.item_versions.clear();
                }
                known.item_versions.insert(key.clone(), ItemVersion { under, version: *version });
            }
        }
        Ok(versions)
    }
}

fn version_of(item: Option<&Item>) -> u64 {
    item.and_then(|item| item.number(row::VERSION)).unwrap_or(0)
}

/// Whether a read that began at `at` finds every item as it is under this version of the
/// configuration, or as a later one has it.
fn is_settled(version: u64, at: Timestamp) -> bool {
    let made_at = Timestamp::from_millis((version >> CHANGE_BITS) as i64);
    version > 0 && made_at + MIN_VERSION_AGE <= at
}

/// Whether `key` is of an item that claims and ticks require, and that no change replaces without
/// a new version of the configuration.
fn is_required(key: &Key) -> bool {
    [ItemKind::Queue, ItemKind::Plugin]
        .into_iter()
        .any(|kind| kind.is_decided_under() && key.p == key::items(kind))
}
