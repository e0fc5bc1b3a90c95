//! The read units of some requests, by DynamoDB's rules of size.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use async_trait::async_trait;

use super::{
    DynamoStore, Key,
    table::{Change, Exchange, Item, Page, PageQuery, Table},
};
use tidegate_core::port::StoreError;

/// The bytes that one unit reads with strong consistency.
const UNIT_BYTES: usize = 4096;

/// A table that counts the units of its reads. It does not count what writes take.
pub(super) struct CountedReads {
    table: Arc<dyn Table>,
    units: AtomicU64,
}

impl CountedReads {
    /// The units so far.
    pub(super) fn units(&self) -> u64 {
        self.units.load(Ordering::Relaxed)
    }

    /// Counts one read of `bytes`, which takes a unit even if it finds nothing.
    fn add(&self, bytes: usize) {
        let units = bytes.div_ceil(UNIT_BYTES).max(1);
        self.units.fetch_add(units as u64, Ordering::Relaxed);
    }
}

impl DynamoStore {
    /// This store, and the count of what is read through it.
    pub(super) fn counting_reads(&self) -> (Self, Arc<CountedReads>) {
        let table = Arc::clone(&self.table);
        let reads = Arc::new(CountedReads { table, units: AtomicU64::new(0) });
        let store = Self {
            table: Arc::clone(&reads) as _,
            clock: Arc::clone(&self.clock),
            entropy: Arc::clone(&self.entropy),
            shards: self.shards,
            low_watermarks: self.low_watermarks,
            known: Arc::clone(&self.known),
            timer_shard: self.timer_shard.clone(),
        };
        (store, reads)
    }
}

#[async_trait]
impl Table for CountedReads {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError> {
        let found = self.table.get(keys).await?;
        for item in &found {
            self.add(item.as_ref().map_or(0, Item::size));
        }
        Ok(found)
    }

    async fn query(&self, query: &PageQuery) -> Result<Page, StoreError> {
        let page = self.table.query(query).await?;
        self.add(page.items.iter().map(Item::size).sum());
        Ok(page)
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Page, StoreError> {
        // What was read and does not begin with `prefix` is not known here.
        let page = self.table.scan(prefix, after, limit).await?;
        self.add(page.items.iter().map(Item::size).sum());
        Ok(page)
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        self.table.write(changes).await
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        self.table.together(changes).await
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Option<Item>, StoreError> {
        self.table.exchange(exchange).await
    }
}
