//! Objects that no version of a plugin names: deleted when they have been without a version for a day.
//!
//! An object is stored under the hash of its bytes. So a push may need an object that another push
//! stored long ago, and the age of an object does not tell whether a push is under way. A record has
//! the objects that no version names, and since when. A push removes its own objects from it before it
//! stores them, so that no sweep deletes them within a day, and then writes the version that names
//! them. A push that needs an object which a sweep deletes at that moment is refused, and can be
//! repeated.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Duration,
};

use futures_util::StreamExt;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::{
    Engine, Error, SweptObjects,
    config::configure::{MAX_CONFLICT_RETRIES, bytes, contended},
};
use tidegate_core::{
    error_chain::ErrorChain,
    port::{
        Committed, Write,
        job_store::{Item, ItemKind},
    },
    queue::plugin::PluginVersion,
    stored::UnknownNames,
    time::Timestamp,
};

/// The folder of all objects of plugins.
const PLUGIN_OBJECTS: &str = "plugins";
/// The name of the record.
const RECORD_NAME: &str = "plugin-objects";
/// How long no version names an object before it is deleted. A push takes minutes.
const MIN_UNNAMED_TIME: Duration = Duration::from_hours(24);
/// When the deletions of a sweep have ended, even if its process died or it got no answer. Clients of
/// object stores repeat a request for some minutes.
const MAX_DELETION_TIME: Duration = Duration::from_mins(15);
/// Most objects in the record, in addition to those that another sweep deletes. Further ones follow when
/// these were deleted.
const MAX_RECORDED: usize = 1000;
/// When a push that was refused because of a deletion may be repeated.
const DELETION_RETRY: Duration = Duration::from_secs(10);

/// The objects that no version names, by key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct UnnamedObjects {
    objects: BTreeMap<String, UnnamedObject>,
    #[serde(flatten)]
    unknown: UnknownNames,
}

/// An object that no version names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct UnnamedObject {
    /// When it was first found without a version.
    since: Timestamp,
    /// When a sweep began to delete it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deleting_since: Option<Timestamp>,
}

/// A sweep deletes an object that a push needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deleting;

impl UnnamedObject {
    /// Whether a request to delete it may still reach the object store after `now`.
    fn is_being_deleted(&self, now: Timestamp) -> bool {
        self.deleting_since.is_some_and(|began| now < began + MAX_DELETION_TIME)
    }
}

impl UnnamedObjects {
    /// Replaces the objects by `found`, those without a version at `now`. Returns the ones to delete,
    /// which are marked as such.
    ///
    /// Those that another sweep deletes stay as they are, also if they are not found: if this sweep
    /// removed them, a push would store them again, and a late request of the other one delete them.
    fn update(&mut self, found: BTreeSet<String>, now: Timestamp) -> Vec<String> {
        let mut due = Vec::new();
        let before = std::mem::take(&mut self.objects);
        for key in found {
            let known = before.get(&key).copied();
            let mut object = known.unwrap_or(UnnamedObject { since: now, deleting_since: None });
            if !object.is_being_deleted(now) && object.since + MIN_UNNAMED_TIME <= now {
                object.deleting_since = Some(now);
                due.push(key.clone());
            }
            self.objects.insert(key, object);
        }
        let of_others = before.into_iter().filter(|(_, object)| object.is_being_deleted(now));
        self.objects.extend(of_others);
        due
    }

    /// Removes the objects of `keys`, and returns whether there was one.
    ///
    /// # Errors
    ///
    /// [`Deleting`] if a sweep deletes one of them at `now`. Nothing was removed.
    fn claim(&mut self, keys: &[String], now: Timestamp) -> Result<bool, Deleting> {
        let is_deleted =
            |key: &String| self.objects.get(key).is_some_and(|object| object.is_being_deleted(now));
        if keys.iter().any(is_deleted) {
            return Err(Deleting);
        }
        let before = self.objects.len();
        self.objects.retain(|key, _| !keys.contains(key));
        Ok(self.objects.len() < before)
    }
}

impl Engine {
    /// Keeps every sweep from deleting the objects of `version` for a day. The caller then stores
    /// them, and after that the version that names them.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if a sweep deletes one of them now; the store's.
    pub(super) async fn claim_objects(&self, version: &PluginVersion) -> Result<(), Error> {
        let keys: Vec<String> = version.object_keys().collect();
        for _ in 0..MAX_CONFLICT_RETRIES {
            let (was, record) = self.unnamed_record().await?;
            let mut record = record.map_err(|error| {
                let message =
                    format!("the record of unnamed objects of plugins cannot be read: {error}");
                Error::unavailable(Duration::from_mins(1), message)
            })?;
            let claimed = record.claim(&keys, self.now()).map_err(|Deleting| {
                let message = "an old object with the same bytes is being deleted";
                Error::unavailable(DELETION_RETRY, message)
            })?;
            if !claimed || self.set_unnamed_record(was, &record).await? {
                return Ok(());
            }
        }
        Err(contended(RECORD_NAME))
    }

    /// Deletes the objects of plugins that no version has named for a day, and records the others that
    /// no version names.
    ///
    /// # Errors
    ///
    /// Those of the stores. A repeat is harmless.
    pub(crate) async fn sweep_plugin_objects(&self, swept: &mut SweptObjects) -> Result<(), Error> {
        // The record is read before the versions: a push that ends in between has changed it, or its
        // version is read.
        let (was, record) = self.unnamed_record().await?;
        let before = record.inspect_err(|error| {
            tracing::warn!(%error, "the record of unnamed objects of plugins begins again");
        });
        let Some(found) = self.unnamed_objects(swept).await? else { return Ok(()) };
        let mut record = before.clone().unwrap_or_default();
        let due = record.update(found, self.now());
        let is_unchanged = before.as_ref() == Ok(&record);
        if is_unchanged || !self.set_unnamed_record(was, &record).await? || due.is_empty() {
            return Ok(());
        }
        let failed = swept.failed;
        self.delete_orphans(due.iter().map(|key| Path::from(key.as_str())).collect(), swept).await;
        if swept.failed == failed {
            record.objects.retain(|key, _| !due.contains(key));
            // If it is refused, the next sweep finds that they are gone.
            self.set_unnamed_record(was + 1, &record).await?;
        }
        Ok(())
    }

    /// The first objects of plugins that no version names, in the order of their keys. None while a
    /// plugin cannot be read, because what it names is not known.
    async fn unnamed_objects(
        &self,
        swept: &mut SweptObjects,
    ) -> Result<Option<BTreeSet<String>>, Error> {
        let catalog = self.catalog().await?;
        if catalog.refuse_partial(&[ItemKind::Plugin]).is_err() {
            return Ok(None);
        }
        let versions = catalog.plugins.values().flat_map(|plugin| &plugin.versions);
        let named: HashSet<String> = versions.flat_map(|version| version.object_keys()).collect();
        let mut listing = self.ports.objects.list(Some(&Path::from(PLUGIN_OBJECTS)));
        let mut unnamed = BTreeSet::new();
        while let Some(object) = listing.next().await {
            let location = object.map_err(|error| unlisted(&error))?.location;
            swept.listed += 1;
            let is_of_plugin = matches!(location.extension(), Some("wasm" | "cwasm"));
            let key = location.to_string();
            if is_of_plugin && !named.contains(&key) {
                unnamed.insert(key);
                if unnamed.len() > MAX_RECORDED {
                    unnamed.pop_last();
                }
            }
        }
        Ok(Some(unnamed))
    }

    /// The version of the record, 0 if there is none, and the record, or why it cannot be read.
    async fn unnamed_record(&self) -> Result<(u64, Result<UnnamedObjects, String>), Error> {
        let items = self.ports.store.items(ItemKind::Horizon).await?;
        let record: Option<Item> = items.into_iter().find(|item| item.name == RECORD_NAME);
        Ok(record.map_or_else(
            || (0, Ok(UnnamedObjects::default())),
            |record| (record.version, record.read()),
        ))
    }

    /// Writes the record if the stored one has the version `was`, and returns whether it has.
    async fn set_unnamed_record(&self, was: u64, record: &UnnamedObjects) -> Result<bool, Error> {
        let write = Write::SetItem {
            kind: ItemKind::Horizon,
            name: RECORD_NAME.into(),
            was,
            version: was + 1,
            bytes: Some(bytes(record)?),
        };
        let committed = self.ports.store.commit(vec![vec![write]]).await?;
        Ok(matches!(committed[..], [Committed::All]))
    }
}

fn unlisted(error: &object_store::Error) -> Error {
    let message = format!("the objects of plugins cannot be listed: {}", ErrorChain(error));
    Error::unavailable(Duration::from_mins(1), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn keys<const N: usize>(keys: [&str; N]) -> BTreeSet<String> {
        keys.map(str::to_owned).into()
    }

    #[test]
    fn an_object_is_deleted_after_a_day_without_a_version() {
        let (mut record, start) = (UnnamedObjects::default(), Timestamp::from_millis(0));
        assert!(record.update(keys(["a", "b", "c"]), start).is_empty());
        // A version names `b` for a while.
        assert!(record.update(keys(["a", "c"]), start + HOUR * 6).is_empty());
        assert!(record.update(keys(["a", "b", "c"]), start + HOUR * 12).is_empty());
        assert_eq!(record.update(keys(["a", "b", "c"]), start + HOUR * 24), ["a", "c"]);
        // `a` could not be deleted.
        assert_eq!(record.update(keys(["a", "b"]), start + HOUR * 30), ["a"]);
        assert_eq!(record.update(keys(["b"]), start + HOUR * 36), ["b"]);
    }

    #[test]
    fn an_object_that_another_sweep_deletes_is_left_to_it() {
        let (mut record, start) = (UnnamedObjects::default(), Timestamp::from_millis(0));
        record.update(keys(["a"]), start);
        let began = start + HOUR * 24;
        assert_eq!(record.update(keys(["a"]), began), ["a"]);
        let later = began + Duration::from_mins(10);
        // It may be gone, and a repeated request for it under way.
        for found in [keys(["a"]), keys([])] {
            assert!(record.update(found, later).is_empty());
            assert_eq!(record.claim(&["a".to_owned()], later), Err(Deleting));
        }
        assert_eq!(record.update(keys(["a"]), began + MAX_DELETION_TIME), ["a"]);
    }

    #[test]
    fn a_claimed_object_has_another_day_unless_it_is_deleted() {
        let (mut record, start) = (UnnamedObjects::default(), Timestamp::from_millis(0));
        let (a, b) = (["a".to_owned()], ["b".to_owned()]);
        record.update(keys(["a", "b"]), start);
        assert_eq!(record.claim(&a, start + HOUR * 23), Ok(true));
        assert_eq!(record.claim(&a, start + HOUR * 23), Ok(false));
        assert_eq!(record.update(keys(["a", "b"]), start + HOUR * 24), ["b"]);
        let both = [a[0].clone(), b[0].clone()];
        assert_eq!(record.claim(&both, start + HOUR * 24), Err(Deleting));
        assert_eq!(record.objects.len(), 2);
        // The process of that sweep died.
        assert_eq!(record.claim(&b, start + HOUR * 25), Ok(true));
        assert!(record.update(keys(["a", "b"]), start + HOUR * 47).is_empty());
        assert_eq!(record.update(keys(["a", "b"]), start + HOUR * 48), ["a"]);
    }
}
