//! The few questions that the store asks of its table, and the rules by which items are measured.
//!
//! The one thing to know: there is no write of two items that is atomic but [`Table::together`], which costs twice as much.
//! Everything else is one item at a time, each with its own condition, and many to a round trip.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;

use super::key::Key;
use tidegate_core::port::StoreError;

/// The name of an attribute: one letter, since names are paid for with every item.
pub type Name = char;

/// The attribute by which the table forgets items: seconds since the epoch.
pub const EXPIRES: Name = 'x';

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Val {
    /// A text.
    S(String),
    /// A number.
    N(u64),
    /// Bytes.
    B(Bytes),
}

impl Val {
    fn size(&self) -> usize {
        match self {
            Self::S(text) => text.len(),
            Self::N(number) => number.to_string().trim_end_matches('0').len().div_ceil(2) + 1,
            Self::B(bytes) => bytes.len(),
        }
    }
}

/// What lies under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Where.
    pub key: Key,
    /// The attributes other than its key.
    pub attrs: BTreeMap<Name, Val>,
}

impl Item {
    /// An item of these attributes.
    pub fn new(key: Key, attrs: impl IntoIterator<Item = (Name, Val)>) -> Self {
        Self { key, attrs: attrs.into_iter().collect() }
    }

    /// The bytes that are paid for: names and values.
    pub fn size(&self) -> usize {
        2 + self.key.p.len()
            + self.key.s.len()
            + self.attrs.values().map(|value| 1 + value.size()).sum::<usize>()
    }

    pub(super) fn text(&self, name: Name) -> Option<&str> {
        match self.attrs.get(&name) {
            Some(Val::S(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn number(&self, name: Name) -> Option<u64> {
        match self.attrs.get(&name) {
            Some(Val::N(number)) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn bytes(&self, name: Name) -> Option<&Bytes> {
        match self.attrs.get(&name) {
            Some(Val::B(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

/// A write of one item.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Puts it there, whatever stood there.
    Put(Item),
    /// Writes the item if its key is absent.
    Insert(Item),
    /// Changes attributes if one of them has this value.
    Update {
        /// Where.
        key: Key,
        /// The new values.
        set: Vec<(Name, Val)>,
        /// Attributes that go.
        remove: Vec<Name>,
        /// What must stand there.
        when: (Name, Val),
    },
    /// Removes it, if an attribute has this value; without a condition, whatever the item is.
    Delete {
        /// Where.
        key: Key,
        /// What must stand there.
        when: Option<(Name, Val)>,
    },
}

impl Change {
    /// Where it writes.
    pub fn key(&self) -> &Key {
        match self {
            Self::Put(item) | Self::Insert(item) => &item.key,
            Self::Update { key, .. } | Self::Delete { key, .. } => key,
        }
    }

    /// Whether it may be refused.
    pub fn is_conditional(&self) -> bool {
        !matches!(self, Self::Put(_) | Self::Delete { when: None, .. })
    }

    /// Whether its condition holds for the current item.
    pub fn holds(&self, there: Option<&Item>) -> bool {
        match self {
            Self::Put(_) | Self::Delete { when: None, .. } => true,
            Self::Insert(_) => there.is_none(),
            Self::Update { when: (name, value), .. }
            | Self::Delete { when: Some((name, value)), .. } => {
                there.is_some_and(|item| item.attrs.get(name) == Some(value))
            }
        }
    }

    /// The item after the change.
    pub fn applied(&self, there: Option<&Item>) -> Option<Item> {
        match self {
            Self::Put(item) | Self::Insert(item) => Some(item.clone()),
            Self::Delete { .. } => None,
            Self::Update { key, set, remove, .. } => {
                let mut item = there.cloned().unwrap_or_else(|| Item::new(key.clone(), []));
                item.attrs.extend(set.iter().cloned());
                item.attrs.retain(|name, _| !remove.contains(name));
                Some(item)
            }
        }
    }
}

/// A stretch of one partition, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageQuery {
    /// The partition.
    pub p: String,
    /// From this place on.
    pub from: String,
    /// Up to this place.
    pub to: String,
    /// At most this many; none means as many as fit a page of 1 MB.
    pub limit: Option<u32>,
    /// From the end backward.
    pub backward: bool,
}

/// A part of the answer to a [`PageQuery`].
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The items, in order.
    pub items: Vec<Item>,
    /// Whether there may be more after the last of them.
    pub more: bool,
}

/// One table of items. Reads see every write that was answered.
#[async_trait]
pub trait Table: Send + Sync {
    /// What lies under these keys, in their order.
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError>;

    /// A stretch of a partition. A page that has `more` has at least one item.
    async fn query(&self, ask: &PageQuery) -> Result<Page, StoreError>;

    /// Takes each change on its own, in any order; whether its condition held. No two are of one key.
    ///
    /// After [`StoreError::Throttled`] none was taken; after another error each may or may not have been.
    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError>;

    /// Takes all of the changes or none; whether every condition held. At most 100.
    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError>;
}
