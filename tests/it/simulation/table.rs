//! The table of a simulated world. At every request other processes may run, the caller may die or
//! be paused, and the answer may be lost. The [`Model`] observes every write, item by item, in
//! order.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tidegate_backends::dynamodb::{
    Key,
    change_decoder::write_of,
    memory::empty_page,
    table::{Change, Exchange, Item, Page, PageQuery, Table, Val},
};
use tidegate_core::port::{Write, job_store::StoreError};

use super::{model::Model, scheduler::Scheduler, store::at_once};

/// The probability of each fault of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableFaults {
    /// The request succeeds and its answer is lost; the client repeats it and gets the answer of
    /// the repeat.
    pub repeated: f64,
    /// The request succeeds and its answer is lost for good.
    pub lost: f64,
    /// The request is refused for lack of capacity.
    pub throttled: f64,
    /// Only some writes of a batch request happen, and no answer is returned.
    pub cut: f64,
    /// A page of a query has no items, although the query goes on.
    pub empty_page: f64,
}

/// The faults during the fault period.
pub const TABLE_FAULTS: TableFaults =
    TableFaults { repeated: 0.03, lost: 0.01, throttled: 0.01, cut: 0.01, empty_page: 0.03 };

/// A planted bug in the protocol of the DynamoDB store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableBug {
    /// A job is rescheduled, but its due entry is not written.
    DueEntriesDropped,
    /// The timer of a job is not written.
    TimersDropped,
    /// Buckets are not registered.
    BucketsDropped,
    /// A low watermark moves to the end of its bucket.
    LowWatermarksTooHigh,
    /// A page without items is taken for the end of its query.
    EmptyPagesEnd,
}

impl TableBug {
    pub const ALL: [Self; 5] = [
        Self::DueEntriesDropped,
        Self::TimersDropped,
        Self::BucketsDropped,
        Self::LowWatermarksTooHigh,
        Self::EmptyPagesEnd,
    ];

    /// The change that is made instead; `None` if the write is only acknowledged.
    fn spoil(self, change: &Change) -> Option<Change> {
        let Key { p, s } = change.key();
        match (self, change) {
            (Self::DueEntriesDropped, Change::Insert(_))
                if p.starts_with("B#") && s.contains('!') =>
            {
                None
            }
            (Self::TimersDropped, Change::Insert(_)) if p.starts_with("T#") => None,
            (Self::BucketsDropped, Change::Insert(_)) if p.starts_with("R#") => None,
            (Self::LowWatermarksTooHigh, Change::Update { key, when, .. })
                if p.starts_with("R#") =>
            {
                let set = vec![(when.0, Val::S("zzzzzzzzzz".into()))];
                Some(Change::Update {
                    key: key.clone(),
                    set,
                    remove: Vec::new(),
                    when: when.clone(),
                })
            }
            (_, change) => Some(change.clone()),
        }
    }
}

/// The table, whose writes are observed.
pub struct ObservedTable {
    pub table: Arc<dyn Table>,
    pub scheduler: Arc<Scheduler>,
    pub model: Arc<Mutex<Model>>,
    pub faults: Mutex<TableFaults>,
    pub bug: Option<TableBug>,
}

/// Counts the pages without items of queries that go on.
pub const EMPTY_PAGES: &str = "empty pages";

enum RequestFault {
    Fine,
    Repeated,
    Lost,
    Throttled,
    Cut,
}

impl ObservedTable {
    fn fate(&self) -> RequestFault {
        let faults = *self.faults.lock();
        if self.scheduler.happens(faults.repeated) {
            RequestFault::Repeated
        } else if self.scheduler.happens(faults.lost) {
            RequestFault::Lost
        } else if self.scheduler.happens(faults.throttled) {
            RequestFault::Throttled
        } else if self.scheduler.happens(faults.cut) {
            RequestFault::Cut
        } else {
            RequestFault::Fine
        }
    }

    fn items(&self, changes: &[Change]) -> Result<Vec<Option<Item>>, StoreError> {
        let keys: Vec<Key> = changes.iter().map(|change| change.key().clone()).collect();
        at_once(self.table.get(&keys))
    }

    /// Reports the writes to the model.
    fn show(&self, before: &[Option<Item>], after: &[Option<Item>]) -> Result<(), StoreError> {
        let mut writes: Vec<Write> = Vec::new();
        for (before, after) in before.iter().zip(after).filter(|(before, after)| before != after) {
            writes.extend(write_of(before.as_ref(), after.as_ref())?);
        }
        self.model.lock().observe(&writes, self.scheduler.now());
        Ok(())
    }

    /// Makes one change.
    fn take(&self, change: &Change) -> Result<bool, StoreError> {
        let spoilt = self.bug.map(|bug| bug.spoil(change));
        let change = match &spoilt {
            None => change,
            Some(Some(change)) => change,
            Some(None) => return Ok(true),
        };
        let one = std::slice::from_ref(change);
        let before = self.items(one)?;
        let taken = at_once(self.table.write(one))?[0];
        self.show(&before, &self.items(one)?)?;
        Ok(taken)
    }

    fn take_together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        let before = self.items(changes)?;
        let taken = at_once(self.table.together(changes))?;
        self.show(&before, &self.items(changes)?)?;
        Ok(taken)
    }
}

fn lost() -> StoreError {
    StoreError::unavailable("the answer was lost")
}

fn throttled() -> StoreError {
    StoreError::Throttled {
        retry_after: std::time::Duration::from_millis(100),
        message: "too much at once".into(),
    }
}

#[async_trait]
impl Table for ObservedTable {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError> {
        self.scheduler.step().await;
        at_once(self.table.get(keys))
    }

    async fn query(&self, ask: &PageQuery) -> Result<Page, StoreError> {
        self.scheduler.step().await;
        let probability = self.faults.lock().empty_page;
        if probability > 0.0 && self.scheduler.happens(probability) {
            let page = empty_page(ask);
            self.model.lock().count(EMPTY_PAGES);
            let ends = self.bug == Some(TableBug::EmptyPagesEnd);
            return Ok(Page { next: page.next.filter(|_| !ends), ..page });
        }
        at_once(self.table.query(ask))
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Page, StoreError> {
        self.scheduler.step().await;
        at_once(self.table.scan(prefix, after, limit))
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        self.scheduler.step().await;
        let fate = self.fate();
        if let RequestFault::Throttled = fate {
            return Err(throttled());
        }
        let times = if let RequestFault::Repeated = fate { 2 } else { 1 };
        let some = if let RequestFault::Cut = fate {
            self.scheduler.draw(changes.len().max(1))
        } else {
            changes.len()
        };
        let mut taken = Vec::new();
        for _ in 0..times {
            taken.clear();
            for (n, change) in changes[..some].iter().enumerate() {
                // The statements of a request are not atomic: other writes may happen between them.
                if n > 0 {
                    self.scheduler.step().await;
                }
                taken.push(self.take(change)?);
            }
        }
        self.scheduler.step().await;
        if matches!(fate, RequestFault::Cut | RequestFault::Lost) { Err(lost()) } else { Ok(taken) }
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        self.scheduler.step().await;
        let fate = self.fate();
        if let RequestFault::Throttled | RequestFault::Cut = fate {
            return Err(throttled());
        }
        // A repeat has the same token, and gets the same answer.
        let taken = self.take_together(changes)?;
        self.scheduler.step().await;
        if matches!(fate, RequestFault::Lost) { Err(lost()) } else { Ok(taken) }
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Option<Item>, StoreError> {
        self.scheduler.step().await;
        let fate = self.fate();
        if let RequestFault::Throttled | RequestFault::Cut = fate {
            return Err(throttled());
        }
        let mut before = at_once(self.table.exchange(exchange))?;
        if let RequestFault::Repeated = fate {
            self.scheduler.step().await;
            before = at_once(self.table.exchange(exchange))?;
        }
        self.scheduler.step().await;
        if matches!(fate, RequestFault::Lost) { Err(lost()) } else { Ok(before) }
    }
}
