//! Scans of due jobs: each of them once or more, in no order, by bounded pages.
//!
//! A page in the order of a queue may depend on every due job. What follows no order needs a scan:
//! each page goes on where the one before it ended, so that a scan reads every job once.

use async_trait::async_trait;

use super::{DueQuery, JobStore, StoreError};
use crate::{
    job::{Job, QueueName, TypeName},
    queue::{Order, config::SCAN_BOUND, order::Position},
    time::Timestamp,
};

/// The jobs of a scan: those of `types` of `queue` that are due in a range, critical ones too.
#[derive(Clone, Debug)]
pub struct ScanQuery {
    /// Their queue.
    pub queue: QueueName,
    /// Their types.
    pub types: Vec<TypeName>,
    /// Due after this instant; none for any.
    pub from: Option<Timestamp>,
    /// Due at this instant or before.
    pub until: Timestamp,
}

/// Some of the jobs of a scan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScanPage {
    /// The jobs: some thousands at most, or none.
    pub jobs: Vec<Job>,
    /// Every job that is due before this instant was on this page or on an earlier one; none if
    /// every job of the scan was.
    pub read_until: Option<Timestamp>,
}

/// A scan that has begun.
#[async_trait]
pub trait DueScan: Send {
    /// The next page; none at the end. A job that cannot be read is left out.
    ///
    /// # Errors
    ///
    /// The store's. The scan is then over.
    async fn next(&mut self) -> Result<Option<ScanPage>, StoreError>;
}

/// A scan by pages of [`JobStore::due`], for a store whose pages begin behind the last job.
pub struct OrderedScan<'a> {
    store: &'a dyn JobStore,
    query: ScanQuery,
    /// Whether critical jobs are read, which are the first; none at the end.
    critical: Option<bool>,
    after: Option<Position>,
}

impl<'a> OrderedScan<'a> {
    /// A scan of `store`.
    pub fn new(store: &'a dyn JobStore, query: ScanQuery) -> Self {
        let after = query.from.map(Position::after_all_due_by);
        Self { store, query, critical: Some(true), after }
    }
}

#[async_trait]
impl DueScan for OrderedScan<'_> {
    async fn next(&mut self) -> Result<Option<ScanPage>, StoreError> {
        let Some(critical) = self.critical.filter(|_| !self.query.types.is_empty()) else {
            return Ok(None);
        };
        let ScanQuery { queue, types, from, until } = &self.query;
        let query = DueQuery {
            queue: queue.clone(),
            critical,
            types: types.clone(),
            partition: None,
            order: Order::Time { step_millis: 0 },
            until: *until,
            after: self.after.take(),
            limit: SCAN_BOUND,
            granted: None,
        };
        let page = self.store.due(&[query]).await?.pop().unwrap_or_default();
        // Ordinary jobs are read after the critical ones.
        let mut read_until = Some(from.unwrap_or(Timestamp::from_millis(i64::MIN)));
        match page.next {
            Some(next) => {
                if !critical {
                    read_until = Some(next.run_at);
                }
                self.after = Some(next);
            }
            None if critical => {
                self.critical = Some(false);
                self.after = from.map(Position::after_all_due_by);
            }
            None => {
                self.critical = None;
                read_until = None;
            }
        }
        Ok(Some(ScanPage { jobs: page.jobs, read_until }))
    }
}
