//! The billed units of a table, by DynamoDB's rules of size.
//!
//! The meter wraps an empty table and tracks the size of each item. A change is billed by the size
//! of the whole item before or after it, whichever is larger. A refused write is billed too.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Sub,
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::dynamodb::{
    Key,
    table::{Change, Exchange, Item, Page, PageQuery, Table},
};
use tidegate_core::port::StoreError;

/// Statements or unconditional writes of one request.
pub(in crate::testkit) const MAX_BATCH_WRITES: usize = 25;
/// Keys of one request.
pub(in crate::testkit) const MAX_BATCH_KEYS: usize = 100;

/// Billed units.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bill {
    /// Write units.
    pub writes: f64,
    /// The write units of refused writes.
    pub refused: f64,
    /// The write units of jobs' rows.
    pub rows: f64,
    /// Read units.
    pub reads: f64,
    /// Requests.
    pub round_trips: u64,
}

impl Sub for Bill {
    type Output = Self;
    fn sub(self, before: Self) -> Self {
        Self {
            writes: self.writes - before.writes,
            refused: self.refused - before.refused,
            rows: self.rows - before.rows,
            reads: self.reads - before.reads,
            round_trips: self.round_trips - before.round_trips,
        }
    }
}

/// The units for writing an item of `bytes`.
pub(in crate::testkit) fn write_units(bytes: usize) -> f64 {
    bytes.div_ceil(1024).max(1) as f64
}

/// The units for one strongly consistent read of `bytes`.
pub(in crate::testkit) fn read_units(bytes: usize) -> f64 {
    bytes.div_ceil(4096).max(1) as f64
}

/// A table that counts units.
pub struct Metered<T> {
    table: T,
    account: Mutex<Account>,
}

#[derive(Default)]
struct Account {
    bill: Bill,
    /// What the items of each partition key took.
    partitions: BTreeMap<String, Bill>,
    items: HashMap<Key, Item>,
}

impl<T: Table> Metered<T> {
    /// Meters `table`, which is empty.
    pub fn new(table: T) -> Arc<Self> {
        Arc::new(Self { table, account: Mutex::default() })
    }

    /// The units so far.
    pub fn bill(&self) -> Bill {
        self.account.lock().bill
    }

    /// The units of each partition key since the last call.
    pub fn take_partitions(&self) -> BTreeMap<String, Bill> {
        std::mem::take(&mut self.account.lock().partitions)
    }

    /// The table itself.
    pub fn table(&self) -> &T {
        &self.table
    }

    /// The size of the largest item in partitions that start with `prefix`, in bytes.
    pub fn largest(&self, prefix: &str) -> usize {
        self.account
            .lock()
            .items
            .values()
            .filter(|item| item.key.p.starts_with(prefix))
            .map(Item::size)
            .max()
            .unwrap_or(0)
    }
}

impl Account {
    fn add_reads(&mut self, partition: &str, units: f64) {
        self.bill.reads += units;
        self.partitions.entry(partition.to_owned()).or_default().reads += units;
    }

    fn add_writes(&mut self, partition: &str, units: f64) {
        self.bill.writes += units;
        self.partitions.entry(partition.to_owned()).or_default().writes += units;
    }

    /// Records a change that was made, or refused unless `taken`.
    fn changed(&mut self, change: &Change, taken: bool, factor: f64) {
        let current = self.items.get(change.key());
        let after = change.applied(current);
        let larger = current.map_or(0, Item::size).max(after.as_ref().map_or(0, Item::size));
        let units = write_units(larger) * factor;
        self.add_writes(&change.key().p, units);
        if change.key().is_row() {
            self.bill.rows += units;
        }
        if !taken {
            self.bill.refused += units;
            return;
        }
        match after {
            Some(item) => self.items.insert(item.key.clone(), item),
            None => self.items.remove(change.key()),
        };
    }
}

#[async_trait]
impl<T: Table> Table for Metered<T> {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError> {
        let found = self.table.get(keys).await?;
        let account = &mut *self.account.lock();
        let unique: BTreeSet<&Key> = keys.iter().collect();
        account.bill.round_trips += unique.len().div_ceil(MAX_BATCH_KEYS) as u64;
        let mut seen = BTreeSet::new();
        for (key, item) in keys.iter().zip(&found) {
            if seen.insert(key) {
                account.add_reads(&key.p, read_units(item.as_ref().map_or(0, Item::size)));
            }
        }
        Ok(found)
    }

    async fn query(&self, query: &PageQuery) -> Result<Page, StoreError> {
        let page = self.table.query(query).await?;
        let account = &mut *self.account.lock();
        account.bill.round_trips += 1;
        account.add_reads(&query.p, read_units(page.items.iter().map(Item::size).sum()));
        Ok(page)
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Page, StoreError> {
        let page = self.table.scan(prefix, after, limit).await?;
        let account = &mut *self.account.lock();
        account.bill.round_trips += 1;
        account.add_reads(prefix, read_units(page.items.iter().map(Item::size).sum()));
        Ok(page)
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        let taken = self.table.write(changes).await?;
        let account = &mut *self.account.lock();
        let conditional = changes.iter().filter(|change| change.is_conditional()).count();
        account.bill.round_trips += (conditional.div_ceil(MAX_BATCH_WRITES)
            + (changes.len() - conditional).div_ceil(MAX_BATCH_WRITES))
            as u64;
        for (change, taken) in changes.iter().zip(&taken) {
            account.changed(change, *taken, 1.0);
        }
        Ok(taken)
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        let taken = self.table.together(changes).await?;
        let account = &mut *self.account.lock();
        account.bill.round_trips += 1;
        for change in changes {
            account.changed(change, taken, 2.0);
        }
        Ok(taken)
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Option<Item>, StoreError> {
        let before = self.table.exchange(exchange).await?;
        let account = &mut *self.account.lock();
        account.bill.round_trips += 1;
        let after = exchange.applied(before.as_ref());
        let larger = before.as_ref().map_or(0, Item::size).max(after.size());
        account.add_writes(&exchange.key.p, write_units(larger));
        account.items.insert(after.key.clone(), after);
        Ok(before)
    }
}
