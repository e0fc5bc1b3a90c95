//! Items of configuration that cannot be read: what they refuse, and what replaces them.

use std::time::Duration;

use super::catalog::Catalog;
use crate::Error;
use tidegate_core::port::job_store::ItemKind;

/// After this time, a request may find that a newer server can read what this one cannot.
pub(super) const UNREADABLE_RETRY: Duration = Duration::from_secs(10);

/// What a change does with a stored item that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It is refused.
    Refuse,
    /// It replaces the item.
    Replace,
}

/// A stored item that cannot be read.
#[derive(Clone, Debug)]
pub(super) struct UnreadableItem {
    pub version: u64,
    pub reason: String,
}

impl Catalog {
    /// The items that cannot be read: kind, name and reason.
    pub fn unreadable(&self) -> impl Iterator<Item = (ItemKind, &str, &str)> {
        let items = self.unreadable.iter();
        items.map(|((kind, name), item)| (*kind, name.as_str(), item.reason.as_str()))
    }

    /// Whether an item exists and cannot be read.
    pub fn is_unreadable(&self, kind: ItemKind, name: &str) -> bool {
        !self.unreadable.is_empty() && self.unreadable.contains_key(&(kind, name.to_owned()))
    }

    /// The version of an item that exists and cannot be read.
    pub(crate) fn unreadable_version(&self, kind: ItemKind, name: &str) -> Option<u64> {
        self.unreadable.get(&(kind, name.to_owned())).map(|item| item.version)
    }

    /// The version of the item that a change replaces: `readable`, or that of an item that cannot
    /// be read, if it is to be replaced; 0 if there is none.
    ///
    /// # Errors
    ///
    /// As [`Self::refuse_unreadable`], if such an item is not to be replaced.
    pub(crate) fn version_to_replace(
        &self,
        kind: ItemKind,
        name: &str,
        readable: Option<u64>,
        unreadable: Unreadable,
    ) -> Result<u64, Error> {
        if unreadable == Unreadable::Refuse {
            self.refuse_unreadable(kind, name)?;
        }
        Ok(readable.or_else(|| self.unreadable_version(kind, name)).unwrap_or_default())
    }

    /// Refuses an item that exists and cannot be read.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`]: the release that wrote it can read it.
    pub fn refuse_unreadable(&self, kind: ItemKind, name: &str) -> Result<(), Error> {
        // Called for every job.
        if self.unreadable.is_empty() {
            return Ok(());
        }
        match self.unreadable.get(&(kind, name.to_owned())) {
            Some(UnreadableItem { reason, .. }) => Err(Error::unavailable(
                UNREADABLE_RETRY,
                format!(
                    "the configuration of {} {name:?} cannot be read by this release: {reason}",
                    kind.as_str()
                ),
            )),
            None => Ok(()),
        }
    }

    /// Refuses a decision that needs every item of these kinds, if one of them cannot be read.
    ///
    /// # Errors
    ///
    /// As [`Self::refuse_unreadable`].
    pub(crate) fn refuse_partial(&self, kinds: &[ItemKind]) -> Result<(), Error> {
        let first = self.unreadable.keys().find(|(kind, _)| kinds.contains(kind));
        first.map_or(Ok(()), |(kind, name)| self.refuse_unreadable(*kind, name))
    }
}
