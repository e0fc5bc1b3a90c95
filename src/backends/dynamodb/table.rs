//! The few requests that the store sends to its table, and the rules by which the size of items
//! counts.
//!
//! Only [`Table::together`] writes several items atomically, and it costs twice as much. All other
//! writes change single items, each with its own condition, many in a round trip.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use bytes::Bytes;

use super::key::Key;
use tidegate_core::port::StoreError;

/// The name of an attribute: one letter, because names count into the billed size of every item.
pub type Name = char;

/// The attribute by which the table expires items, in seconds since the epoch.
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
    /// A set of bytes; never empty.
    Set(BTreeSet<Bytes>),
}

impl Val {
    fn size(&self) -> usize {
        match self {
            Self::S(text) => text.len(),
            Self::N(number) => number.to_string().trim_end_matches('0').len().div_ceil(2) + 1,
            Self::B(bytes) => bytes.len(),
            Self::Set(elements) => elements.iter().map(Bytes::len).sum(),
        }
    }
}

/// An item of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key.
    pub key: Key,
    /// The attributes other than its key.
    pub attrs: BTreeMap<Name, Val>,
}

impl Item {
    /// An item of these attributes.
    pub fn new(key: Key, attrs: impl IntoIterator<Item = (Name, Val)>) -> Self {
        Self { key, attrs: attrs.into_iter().collect() }
    }

    /// The billed bytes: names and values.
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

    pub(super) fn set(&self, name: Name) -> Option<&BTreeSet<Bytes>> {
        match self.attrs.get(&name) {
            Some(Val::Set(elements)) => Some(elements),
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
    /// Writes the item, and replaces any item with its key.
    Put(Item),
    /// Writes the item if its key is absent.
    Insert(Item),
    /// Changes attributes if one of them has a given value.
    Update {
        /// The key.
        key: Key,
        /// The new values.
        set: Vec<(Name, Val)>,
        /// The removed attributes.
        remove: Vec<Name>,
        /// The attribute and value that the current item must have.
        when: (Name, Val),
    },
    /// Deletes an item if an attribute has a given value, or unconditionally.
    Delete {
        /// The key.
        key: Key,
        /// The attribute and value that the current item must have, if any.
        when: Option<(Name, Val)>,
    },
}

impl Change {
    /// The key of the item.
    pub fn key(&self) -> &Key {
        match self {
            Self::Put(item) | Self::Insert(item) => &item.key,
            Self::Update { key, .. } | Self::Delete { key, .. } => key,
        }
    }

    /// Whether the change has a condition.
    pub(crate) fn is_conditional(&self) -> bool {
        !matches!(self, Self::Put(_) | Self::Delete { when: None, .. })
    }

    /// Whether its condition holds for the current item.
    pub fn holds(&self, current: Option<&Item>) -> bool {
        match self {
            Self::Put(_) | Self::Delete { when: None, .. } => true,
            Self::Insert(_) => current.is_none(),
            Self::Update { when: (name, value), .. }
            | Self::Delete { when: Some((name, value)), .. } => {
                current.is_some_and(|item| item.attrs.get(name) == Some(value))
            }
        }
    }

    /// The item after the change.
    pub fn applied(&self, current: Option<&Item>) -> Option<Item> {
        match self {
            Self::Put(item) | Self::Insert(item) => Some(item.clone()),
            Self::Delete { .. } => None,
            Self::Update { key, set, remove, .. } => {
                let mut item = current.cloned().unwrap_or_else(|| Item::new(key.clone(), []));
                item.attrs.extend(set.iter().cloned());
                item.attrs.retain(|name, _| !remove.contains(name));
                Some(item)
            }
        }
    }
}

/// An unconditional write of one item that returns the item as it was before. It creates a missing
/// item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The key.
    pub key: Key,
    /// What it does.
    pub step: ExchangeStep,
}

/// What an [`Exchange`] does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExchangeStep {
    /// Adds elements to the set of an attribute, and sets other attributes.
    Add {
        /// The attribute and the elements; there may be none.
        elements: (Name, BTreeSet<Bytes>),
        /// An attribute that gets this value if it has none.
        first: (Name, Val),
        /// Attributes that get these values; at least one.
        set: Vec<(Name, Val)>,
    },
    /// Moves the value of one attribute to another, sets others, and removes a third one.
    Move {
        /// The attribute that loses its value.
        from: Name,
        /// The attribute that gets it; the number 0 if there is none.
        to: Name,
        /// Attributes that get these values.
        set: Vec<(Name, Val)>,
        /// The removed attribute.
        remove: Name,
    },
}

impl Exchange {
    /// The item after it.
    pub fn applied(&self, current: Option<&Item>) -> Item {
        let mut item = current.cloned().unwrap_or_else(|| Item::new(self.key.clone(), []));
        match &self.step {
            ExchangeStep::Add { elements: (name, added), first, set } => {
                if !added.is_empty() {
                    let mut all = item.set(*name).cloned().unwrap_or_default();
                    all.extend(added.iter().cloned());
                    item.attrs.insert(*name, Val::Set(all));
                }
                item.attrs.entry(first.0).or_insert_with(|| first.1.clone());
                item.attrs.extend(set.iter().cloned());
            }
            ExchangeStep::Move { from, to, set, remove } => {
                let moved = item.attrs.remove(from).unwrap_or(Val::N(0));
                item.attrs.insert(*to, moved);
                item.attrs.extend(set.iter().cloned());
                item.attrs.remove(remove);
            }
        }
        item
    }
}

/// A query for a range of one partition, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageQuery {
    /// The partition.
    pub p: String,
    /// The first sort key.
    pub from: String,
    /// The last sort key.
    pub to: String,
    /// Maximum items; none for as many as fit into a page of 1 MB.
    pub limit: Option<u32>,
    /// Whether to read from the end backwards.
    pub backward: bool,
    /// The key after which the page begins: [`Page::next`] of the page before it.
    pub after: Option<Key>,
}

/// A part of the answer to a [`PageQuery`].
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The items, in order.
    pub items: Vec<Item>,
    /// The key after which the next page begins, chosen by the table; none at the end of the range.
    ///
    /// A page may have this key and no items. Only a page without it is the last one.
    pub next: Option<Key>,
}

/// A table of items. Reads see every write that was answered.
#[async_trait]
pub trait Table: Send + Sync {
    /// The items of these keys, in their order.
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError>;

    /// A page of a range.
    async fn query(&self, query: &PageQuery) -> Result<Page, StoreError>;

    /// A page of the whole table, in an order of the table that never changes: of the next `limit`
    /// items after the key `after`, those whose partition begins with `prefix`. It takes the units of
    /// all of them. [`Page::next`] is as for [`Self::query`].
    async fn scan(&self, prefix: &str, after: Option<&Key>, limit: u32)
    -> Result<Page, StoreError>;

    /// Makes each change on its own, in any order, and returns whether its condition held. No two
    /// changes have the same key.
    ///
    /// After [`StoreError::Throttled`] nothing was written. After another error, each change may or
    /// may not have happened.
    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError>;

    /// Makes all changes or none, and returns whether every condition held. At most 100 changes.
    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError>;

    /// Changes an item, and returns it as it was before. It may be made twice; then the answer is
    /// that of the second time.
    async fn exchange(&self, exchange: &Exchange) -> Result<Option<Item>, StoreError>;
}
