//! The table of a simulated world: at every request others go on, the one who asks may die or be paused, and the answer may be
//! lost. What is really written is shown to the [`Model`], item by item, in the order in which it happens.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tidegate_backends::dynamodb::{
    Key,
    change_decoder::write_of,
    table::{Change, Item, Page, PageQuery, Table, Val},
};
use tidegate_core::port::{Write, job_store::StoreError};

use super::{model::Model, scheduler::Scheduler, store::at_once};

/// How often what goes wrong with a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trouble {
    /// The request is taken and its answer lost; the client sends it again, and gets the answer of the repeat.
    pub repeated: f64,
    /// The request is taken and the answer lost for good.
    pub lost: f64,
    /// The request is not taken, for lack of capacity.
    pub throttled: f64,
    /// Of a request of many writes only some are taken, and no answer comes.
    pub cut: f64,
}

/// What goes wrong while faults happen.
pub const TROUBLE: Trouble = Trouble { repeated: 0.03, lost: 0.01, throttled: 0.01, cut: 0.01 };

/// A way to break the store's own protocol from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableBug {
    /// Jobs are given another time, and nothing is written there.
    EntriesForgotten,
    /// Nothing says when a job must be looked at.
    TimersForgotten,
    /// Buckets are not registered.
    BucketsForgotten,
    /// A floor goes to the end of its bucket.
    FloorsTooFar,
}

impl TableBug {
    pub const ALL: [Self; 4] =
        [Self::EntriesForgotten, Self::TimersForgotten, Self::BucketsForgotten, Self::FloorsTooFar];

    /// The change that is taken instead; none if it is only said to be.
    fn spoil(self, change: &Change) -> Option<Change> {
        let Key { p, s } = change.key();
        match (self, change) {
            (Self::EntriesForgotten, Change::Insert(_))
                if p.starts_with("B#") && s.contains('!') =>
            {
                None
            }
            (Self::TimersForgotten, Change::Insert(_)) if p.starts_with("T#") => None,
            (Self::BucketsForgotten, Change::Insert(_)) if p.starts_with("R#") => None,
            (Self::FloorsTooFar, Change::Update { key, when, .. }) if p.starts_with("R#") => {
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

/// The table, watched.
pub struct WatchedTable {
    pub table: Arc<dyn Table>,
    pub scheduler: Arc<Scheduler>,
    pub model: Arc<Mutex<Model>>,
    pub trouble: Mutex<Trouble>,
    pub bug: Option<TableBug>,
}

enum Fate {
    Fine,
    Repeated,
    Lost,
    Throttled,
    Cut,
}

impl WatchedTable {
    fn fate(&self) -> Fate {
        let trouble = *self.trouble.lock();
        if self.scheduler.happens(trouble.repeated) {
            Fate::Repeated
        } else if self.scheduler.happens(trouble.lost) {
            Fate::Lost
        } else if self.scheduler.happens(trouble.throttled) {
            Fate::Throttled
        } else if self.scheduler.happens(trouble.cut) {
            Fate::Cut
        } else {
            Fate::Fine
        }
    }

    fn items(&self, changes: &[Change]) -> Result<Vec<Option<Item>>, StoreError> {
        let keys: Vec<Key> = changes.iter().map(|change| change.key().clone()).collect();
        at_once(self.table.get(&keys))
    }

    /// Shows what was written to the model.
    fn show(&self, before: &[Option<Item>], after: &[Option<Item>]) -> Result<(), StoreError> {
        let mut writes: Vec<Write> = Vec::new();
        for (before, after) in before.iter().zip(after).filter(|(before, after)| before != after) {
            writes.extend(write_of(before.as_ref(), after.as_ref())?);
        }
        self.model.lock().see(&writes, self.scheduler.now());
        Ok(())
    }

    /// Takes one change.
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
impl Table for WatchedTable {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError> {
        self.scheduler.step().await;
        at_once(self.table.get(keys))
    }

    async fn query(&self, ask: &PageQuery) -> Result<Page, StoreError> {
        self.scheduler.step().await;
        at_once(self.table.query(ask))
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        self.scheduler.step().await;
        let fate = self.fate();
        if let Fate::Throttled = fate {
            return Err(throttled());
        }
        let times = if let Fate::Repeated = fate { 2 } else { 1 };
        let some = if let Fate::Cut = fate {
            self.scheduler.draw(changes.len().max(1))
        } else {
            changes.len()
        };
        let mut taken = Vec::new();
        for _ in 0..times {
            taken.clear();
            for (n, change) in changes[..some].iter().enumerate() {
                // The statements of a request are not one: others come between them.
                if n > 0 {
                    self.scheduler.step().await;
                }
                taken.push(self.take(change)?);
            }
        }
        self.scheduler.step().await;
        if matches!(fate, Fate::Cut | Fate::Lost) { Err(lost()) } else { Ok(taken) }
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        self.scheduler.step().await;
        let fate = self.fate();
        if let Fate::Throttled | Fate::Cut = fate {
            return Err(throttled());
        }
        // A repeat has the token of the first, and gets its answer.
        let taken = self.take_together(changes)?;
        self.scheduler.step().await;
        if matches!(fate, Fate::Lost) { Err(lost()) } else { Ok(taken) }
    }
}
