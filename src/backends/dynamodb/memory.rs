//! A table in memory that follows DynamoDB's rules: for tests, and as the reference of the real
//! one.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{
    key::Key,
    table::{Change, Item, Page, PageQuery, Table},
};
use tidegate_core::port::StoreError;

/// Bytes after which a page ends.
const MAX_PAGE_BYTES: usize = 1 << 20;

/// Maximum bytes of an item.
const MAX_ITEM_BYTES: usize = 400 << 10;

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
    let current = items.get(change.key());
    if !change.holds(current) {
        return false;
    }
    match change.applied(current) {
        Some(item) => items.insert(item.key.clone(), item),
        None => items.remove(change.key()),
    };
    true
}

/// Refuses changes that would make an item too large, before any change happens.
fn fits(items: &BTreeMap<Key, Item>, changes: &[Change]) -> Result<(), StoreError> {
    let size =
        |change: &Change| change.applied(items.get(change.key())).map_or(0, |item| item.size());
    match changes.iter().find(|change| size(change) > MAX_ITEM_BYTES) {
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

    async fn query(&self, query: &PageQuery) -> Result<Page, StoreError> {
        let items = self.0.lock();
        if query.from > query.to {
            return Ok(Page::default());
        }
        let range = items
            .range(Key::new(&*query.p, &*query.from)..=Key::new(&*query.p, &*query.to))
            .map(|(_, item)| item.clone());
        let all: Vec<Item> = if query.backward { range.rev().collect() } else { range.collect() };
        let (mut page, mut bytes) = (Page::default(), 0);
        let count = all.len();
        for item in all {
            if page.items.len() >= query.limit.map_or(usize::MAX, |limit| limit as usize)
                || bytes > MAX_PAGE_BYTES
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
