//! A move into a table that dies at any of its writes, and goes on in another process.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use tidegate_backends::dynamodb::{
    Key,
    memory::MemoryTable,
    table::{Change, Exchange, Item, Page, PageQuery, Table},
};
use tidegate_core::port::{StoreError, job_store::JobStore as _};
use tidegate_engine::{
    memory::FakeClock,
    moves::Side,
    testkit::builders::{at, name},
};

use super::{of, process};
use crate::moves::{NOW, filled, moved, side};

/// A table to which no more than so many writes get through.
struct CutTable {
    table: Arc<MemoryTable>,
    left: AtomicUsize,
}

impl CutTable {
    fn after(table: &Arc<MemoryTable>, writes: usize) -> Self {
        Self { table: Arc::clone(table), left: AtomicUsize::new(writes) }
    }

    /// Takes `wanted` writes, or as many as are left.
    fn take(&self, wanted: usize) -> usize {
        let left = self.left.load(Ordering::SeqCst);
        let taken = wanted.min(left);
        self.left.store(left - taken, Ordering::SeqCst);
        taken
    }
}

fn cut() -> StoreError {
    StoreError::unavailable("the network is gone")
}

#[async_trait]
impl Table for CutTable {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError> {
        self.table.get(keys).await
    }

    async fn query(&self, query: &PageQuery) -> Result<Page, StoreError> {
        self.table.query(query).await
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Page, StoreError> {
        self.table.scan(prefix, after, limit).await
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        let count = self.take(changes.len());
        let done = self.table.write(&changes[..count]).await?;
        if count < changes.len() { Err(cut()) } else { Ok(done) }
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        if self.take(1) == 0 { Err(cut()) } else { self.table.together(changes).await }
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Option<Item>, StoreError> {
        if self.take(1) == 0 { Err(cut()) } else { self.table.exchange(exchange).await }
    }
}

#[tokio::test]
async fn a_move_into_a_table_that_dies_at_any_write_goes_on() {
    for writes in 0.. {
        let clock = Arc::new(FakeClock::new(at(NOW)));
        let (from, table) = (filled().await, Arc::new(MemoryTable::new()));
        let dying = CutTable::after(&table, writes);
        let first = side(process(Arc::new(dying), &clock, 1), "the table");
        let was_whole = moved(&of(&from, &first, &clock), "one").await.is_ok();
        let store = process(table, &clock, 2);
        let second = Side { store: Arc::clone(&store) as _, ..first };
        if was_whole {
            assert!(writes > 100, "the jobs alone need more writes: {writes}");
            return;
        }
        let comparison = moved(&of(&from, &second, &clock), "two").await;
        let comparison = comparison.unwrap_or_else(|error| panic!("{writes}: {error:?}"));
        assert!(comparison.is_equal(), "{writes}: {comparison:?}");
        let running = store.running(&name("mail"), None, 10).await.unwrap();
        assert_eq!(running.len(), 1, "{writes}: the running job is found");
    }
}
