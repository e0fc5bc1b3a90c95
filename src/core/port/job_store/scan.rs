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

/// How much larger each page of an [`OrderedScan`] is than the one before.
const PAGE_GROWTH: u32 = 4;

/// The first instant, at which no job is due.
const FIRST: Timestamp = Timestamp::from_millis(i64::MIN);

/// The jobs of a scan: those of `types` of `queue` that are due in one of the ranges, critical ones
/// too.
#[derive(Clone, Debug)]
pub struct ScanQuery {
    /// Their queue.
    pub queue: QueueName,
    /// Their types.
    pub types: Vec<TypeName>,
    /// The ranges of their due times, the earliest first. None of them overlaps another one.
    pub ranges: Vec<DueRange>,
    /// About how many jobs the first page has, or each part of it that a store reads at once. Later
    /// pages have more.
    pub page: u32,
}

/// A range of due times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueRange {
    /// After this instant; none for any.
    pub from: Option<Timestamp>,
    /// At this instant or before.
    pub until: Timestamp,
}

impl DueRange {
    /// Whether `at` is in it.
    pub fn contains(self, at: Timestamp) -> bool {
        at <= self.until && self.from.is_none_or(|from| from < at)
    }
}

impl ScanQuery {
    /// Whether a job that is due at `at` is in one of the ranges.
    pub fn contains(&self, at: Timestamp) -> bool {
        let range = self.ranges.partition_point(|range| range.until < at);
        self.ranges.get(range).is_some_and(|range| range.contains(at))
    }

    /// The instant before which nothing is due in the ranges from the `index`-th one on; none if
    /// there is no such range.
    fn start(&self, index: usize) -> Option<Timestamp> {
        self.ranges.get(index).map(|range| range.from.unwrap_or(FIRST))
    }
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

    /// Ends the scan before its end. A store may note how far it has read, so that a later scan does
    /// not read again what leads to no job.
    async fn leave(self: Box<Self>);
}

/// A scan by pages of [`JobStore::due`], for a store whose pages begin behind the last job.
pub struct OrderedScan<'a> {
    store: &'a dyn JobStore,
    query: ScanQuery,
    /// The index of the range that is read.
    range: usize,
    /// Whether critical jobs are read, which are the first of each range.
    critical: bool,
    after: Option<Position>,
}

impl<'a> OrderedScan<'a> {
    /// A scan of `store`.
    pub fn new(store: &'a dyn JobStore, query: ScanQuery) -> Self {
        Self { store, query, range: 0, critical: true, after: None }
    }
}

#[async_trait]
impl DueScan for OrderedScan<'_> {
    async fn next(&mut self) -> Result<Option<ScanPage>, StoreError> {
        let Some(range) = self.query.ranges.get(self.range).copied() else {
            return Ok(None);
        };
        if self.query.types.is_empty() {
            return Ok(None);
        }
        let limit = self.query.page.clamp(1, SCAN_BOUND);
        self.query.page = limit * PAGE_GROWTH;
        let query = DueQuery {
            queue: self.query.queue.clone(),
            critical: self.critical,
            types: self.query.types.clone(),
            partition: None,
            order: Order::Time { step_millis: 0 },
            until: range.until,
            after: self.after.take().or_else(|| range.from.map(Position::after_all_due_by)),
            limit,
            granted: None,
        };
        let page = self.store.due(&[query]).await?.pop().unwrap_or_default();
        let read_until = match page.next {
            Some(next) => {
                let next = self.after.insert(next).run_at;
                // Ordinary jobs are read after the critical ones.
                if self.critical { self.query.start(self.range) } else { Some(next) }
            }
            None if self.critical => {
                self.critical = false;
                self.query.start(self.range)
            }
            None => {
                (self.range, self.critical) = (self.range + 1, true);
                self.query.start(self.range)
            }
        };
        Ok(Some(ScanPage { jobs: page.jobs, read_until }))
    }

    async fn leave(self: Box<Self>) {}
}
