//! A table in memory that follows DynamoDB's rules: for tests, and as the reference of the real
//! one.
//!
//! A query may end at any place, and its answer may have no items. Only an answer without a key is
//! the last one. [`MemoryTable::answer_empty_pages`] makes the table use that freedom.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::atomic::{AtomicU32, Ordering},
};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{
    key::Key,
    table::{Change, Exchange, Item, Page, PageQuery, Table},
};
use tidegate_core::port::StoreError;

/// Bytes after which a page ends.
const MAX_PAGE_BYTES: usize = 1 << 20;

/// Maximum bytes of an item.
const MAX_ITEM_BYTES: usize = 400 << 10;

/// Items in a map.
#[derive(Debug, Default)]
pub struct MemoryTable {
    items: Mutex<BTreeMap<Key, Item>>,
    /// How many empty pages there are before each page that has items.
    empty_pages: AtomicU32,
    /// How many empty pages there were since then.
    empty: AtomicU32,
}

impl MemoryTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Every item, by key.
    pub fn items(&self) -> Vec<Item> {
        self.items.lock().values().cloned().collect()
    }

    /// Answers `count` empty pages with a key before each page of a query.
    pub fn answer_empty_pages(&self, count: u32) {
        self.empty_pages.store(count, Ordering::Relaxed);
    }

    fn answers_empty_page(&self) -> bool {
        let answers = self.empty.load(Ordering::Relaxed) < self.empty_pages.load(Ordering::Relaxed);
        let empty = if answers { self.empty.load(Ordering::Relaxed) + 1 } else { 0 };
        self.empty.store(empty, Ordering::Relaxed);
        answers
    }
}

/// An answer to `query` without items after which the query goes on: at the key before its first
/// one, which is not the key of an item.
pub fn empty_page(query: &PageQuery) -> Page {
    let next = query.after.clone().unwrap_or_else(|| {
        let s = if query.backward { format!("{}~", query.to) } else { String::new() };
        Key::new(&*query.p, s)
    });
    Page { items: Vec::new(), next: Some(next) }
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
        let items = self.items.lock();
        Ok(keys.iter().map(|key| items.get(key).cloned()).collect())
    }

    async fn query(&self, query: &PageQuery) -> Result<Page, StoreError> {
        if query.from > query.to {
            return Ok(Page::default());
        }
        if self.answers_empty_page() {
            return Ok(empty_page(query));
        }
        let items = self.items.lock();
        let (from, to) = (Key::new(&*query.p, &*query.from), Key::new(&*query.p, &*query.to));
        let (first, last) = match query.after.clone() {
            Some(after) if query.backward && after <= to => {
                (Bound::Included(from), Bound::Excluded(after))
            }
            Some(after) if !query.backward && after >= from => {
                (Bound::Excluded(after), Bound::Included(to))
            }
            _ => (Bound::Included(from), Bound::Included(to)),
        };
        debug_assert!(query.after.as_ref().is_none_or(|after| after.p == query.p));
        let mut range = items.range((first, last)).map(|(_, item)| item);
        let mut next_item = || if query.backward { range.next_back() } else { range.next() };
        let (mut page, mut bytes) = (Page::default(), 0);
        while let Some(item) = next_item() {
            if page.items.len() >= query.limit.map_or(usize::MAX, |limit| limit as usize)
                || bytes > MAX_PAGE_BYTES
            {
                page.next = page.items.last().map(|last: &Item| last.key.clone());
                break;
            }
            bytes += item.size();
            page.items.push(item.clone());
        }
        Ok(page)
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Page, StoreError> {
        if self.answers_empty_page() {
            let next = after.cloned().unwrap_or_else(|| Key::new("", ""));
            return Ok(Page { items: Vec::new(), next: Some(next) });
        }
        let items = self.items.lock();
        let first = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut range = items.range::<Key, _>((first, Bound::Unbounded));
        let (mut page, mut last) = (Page::default(), None);
        for (key, item) in range.by_ref().take(limit as usize) {
            last = Some(key);
            if key.p.starts_with(prefix) {
                page.items.push(item.clone());
            }
        }
        page.next = range.next().and(last).cloned();
        Ok(page)
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        let mut items = self.items.lock();
        fits(&items, changes)?;
        Ok(changes.iter().map(|change| apply(&mut items, change)).collect())
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        let mut items = self.items.lock();
        fits(&items, changes)?;
        let all = changes.iter().all(|change| change.holds(items.get(change.key())));
        if all {
            for change in changes {
                apply(&mut items, change);
            }
        }
        Ok(all)
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Option<Item>, StoreError> {
        let mut items = self.items.lock();
        let after = exchange.applied(items.get(&exchange.key));
        Ok(items.insert(exchange.key.clone(), after))
    }
}
