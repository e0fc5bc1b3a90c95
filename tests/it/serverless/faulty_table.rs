//! A table whose requests take time, are throttled, and lose their answers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rand::{RngExt, rngs::StdRng};
use tidegate_backends::dynamodb::{
    Key,
    memory::MemoryTable,
    table::{Change, Exchange, Item, Page, PageQuery, Table, Val},
};
use tidegate_core::{
    port::{Clock, StoreError},
    time::Timestamp,
};

use super::time::Virtual;

/// The table as one process reaches it: its requests take time, and may fail.
pub struct FaultyTable {
    pub table: Arc<MemoryTable>,
    pub time: Arc<Virtual>,
    pub chance: Mutex<StdRng>,
    /// How often a request is refused for lack of capacity.
    pub throttled: f64,
    /// Until when requests fail; none before the start, when they take no time either.
    pub until: Arc<Mutex<Option<Timestamp>>>,
    /// How many demands were answered with offers.
    pub offers: Arc<AtomicUsize>,
}

impl FaultyTable {
    fn happens(&self, probability: f64) -> bool {
        let fails = self.until.lock().is_some_and(|until| self.time.now() < until);
        fails && self.chance.lock().random::<f64>() < probability
    }

    async fn pass(&self) {
        if self.until.lock().is_none() {
            return;
        }
        let millis = {
            let mut chance = self.chance.lock();
            let slow = chance.random::<f64>() < 0.02;
            chance.random_range(2..=5) + if slow { chance.random_range(0..400) } else { 0 }
        };
        self.time.sleep_until(self.time.now() + Duration::from_millis(millis)).await;
    }

    /// A request that is refused, or one whose answer is lost after its effect.
    fn refused(&self) -> Result<(), StoreError> {
        if self.happens(self.throttled) {
            return Err(StoreError::Throttled {
                retry_after: Duration::from_millis(100),
                message: "too much at once".into(),
            });
        }
        Ok(())
    }

    fn lost(&self) -> Result<(), StoreError> {
        if self.happens(0.02) {
            return Err(StoreError::unavailable("the answer was lost"));
        }
        Ok(())
    }
}

/// Whether a change answers a demand with offers.
fn is_offer(change: &Change) -> bool {
    let Change::Put(item) = change else { return false };
    let mark = br#""offers":[{"#;
    item.attrs.values().any(|value| {
        matches!(value, Val::B(bytes) if bytes.windows(mark.len()).any(|part| part == mark))
    })
}

#[async_trait]
impl Table for FaultyTable {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError> {
        self.pass().await;
        self.refused()?;
        let found = self.table.get(keys).await;
        self.pass().await;
        found
    }

    async fn query(&self, query: &PageQuery) -> Result<Page, StoreError> {
        self.pass().await;
        self.refused()?;
        let page = self.table.query(query).await;
        self.pass().await;
        page
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Page, StoreError> {
        self.pass().await;
        self.refused()?;
        let page = self.table.scan(prefix, after, limit).await;
        self.pass().await;
        page
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        let offers = changes.iter().filter(|change| is_offer(change)).count();
        self.offers.fetch_add(offers, Ordering::Relaxed);
        self.pass().await;
        self.refused()?;
        let is_repeated = self.happens(0.02);
        let is_cut = self.happens(0.02);
        let some =
            if is_cut { self.chance.lock().random_range(0..=changes.len()) } else { changes.len() };
        let mut taken = self.table.write(&changes[..some]).await?;
        if is_repeated {
            // The client repeats a request without an answer.
            self.pass().await;
            taken = self.table.write(&changes[..some]).await?;
        }
        self.pass().await;
        self.lost()?;
        if is_cut { Err(StoreError::unavailable("the request was cut")) } else { Ok(taken) }
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        self.pass().await;
        self.refused()?;
        let taken = self.table.together(changes).await?;
        self.pass().await;
        self.lost()?;
        Ok(taken)
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Option<Item>, StoreError> {
        self.pass().await;
        self.refused()?;
        if self.happens(0.02) {
            self.table.exchange(exchange).await?;
            self.pass().await;
        }
        let before = self.table.exchange(exchange).await?;
        self.pass().await;
        self.lost()?;
        Ok(before)
    }
}
