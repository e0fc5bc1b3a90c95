//! A table in memory that follows DynamoDB's rules: for tests, and as what the real one is compared with.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{
    key::Key,
    table::{Change, Item, Page, PageQuery, Table},
};
use tidegate_core::port::StoreError;

/// Bytes after which a page ends.
const PAGE_BYTES: usize = 1 << 20;

/// The most bytes of an item.
const ITEM_BYTES: usize = 400 << 10;

/// Items in a map.
#[derive(Debug, Default)]
pub struct MemoryTable(Mutex<BTreeMap<Key, Item>>);

impl MemoryTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Every item, by key.
    pub fn items(&self) -> Vec<Item> {
        self.0.lock().values().cloned().collect()
    }
}

fn apply(items: &mut BTreeMap<Key, Item>, change: &Change) -> bool {
    let there = items.get(change.key());
    if !change.holds(there) {
        return false;
    }
    match change.applied(there) {
        Some(item) => items.insert(item.key.clone(), item),
        None => items.remove(change.key()),
    };
    true
}

/// Refuses changes that would make an item too large, before any is taken.
fn fits(items: &BTreeMap<Key, Item>, changes: &[Change]) -> Result<(), StoreError> {
    let size =
        |change: &Change| change.applied(items.get(change.key())).map_or(0, |item| item.size());
    match changes.iter().find(|change| size(change) > ITEM_BYTES) {
        Some(change) => Err(StoreError::corrupt(format!(
            "the size of item {} {} is over 400 KB",
            change.key().p,
            change.key().s
        ))),
        None => Ok(()),
    }
}

#[async_trait]
impl Table for MemoryTable {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError> {
        let items = self.0.lock();
        Ok(keys.iter().map(|key| items.get(key).cloned()).collect())
    }

    async fn query(&self, ask: &PageQuery) -> Result<Page, StoreError> {
        let items = self.0.lock();
        if ask.from > ask.to {
            return Ok(Page::default());
        }
        let range = items
            .range(Key::new(&*ask.p, &*ask.from)..=Key::new(&*ask.p, &*ask.to))
            .map(|(_, item)| item.clone());
        let all: Vec<Item> = if ask.backward { range.rev().collect() } else { range.collect() };
        let (mut page, mut bytes) = (Page::default(), 0);
        let count = all.len();
        for item in all {
            if page.items.len() >= ask.limit.map_or(usize::MAX, |limit| limit as usize)
                || bytes > PAGE_BYTES
            {
                break;
            }
            bytes += item.size();
            page.items.push(item);
        }
        page.more = page.items.len() < count;
        Ok(page)
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        let mut items = self.0.lock();
        fits(&items, changes)?;
        Ok(changes.iter().map(|change| apply(&mut items, change)).collect())
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        let mut items = self.0.lock();
        fits(&items, changes)?;
        let all = changes.iter().all(|change| change.holds(items.get(change.key())));
        if all {
            for change in changes {
                apply(&mut items, change);
            }
        }
        Ok(all)
    }
}
