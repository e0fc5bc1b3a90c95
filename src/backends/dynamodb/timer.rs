//! Timers: when a job must be checked although it is not due, for example at the end of a lease or
//! of its retention.
//!
//! A timer may be too early, never too late. A reader that finds a timer of a job whose time is
//! later by now writes another timer for that time, and then removes the first one. A heartbeat
//! that extends a lease therefore writes no timer.

use std::collections::{BTreeMap, VecDeque};

use futures_util::future;

use super::{
    DynamoStore,
    entry::LOW_WATERMARK_LAG,
    key::{self, FIRST, Key, LAST},
    table::{Change, Item, Page, PageQuery},
    timer_bucket::{OPEN_TIMERS, TimerBucket},
};
use tidegate_core::{
    job::{Job, JobId},
    port::StoreError,
    time::Timestamp,
};

/// Timers that are read at once.
const PAGE_TIMERS: u32 = 200;
/// Timers of a partition that are read first.
const FIRST_TIMERS: u32 = 16;
/// Timers of a partition that are read first for the next instant at which a job is overdue.
const FIRST_LATER_TIMERS: u32 = 1;
/// Timers of a partition that are read at once for that instant. With the pages before, it bounds
/// what an idle sweep reads.
const MAX_LATER_TIMERS: u32 = 4;
/// Registered partitions that are read at once.
const PAGE_BUCKETS: u32 = 100;

/// Ended jobs whose remains one call removes, except for those of the page that exceeds the number.
/// The caller's time is limited, and live jobs wait behind them.
const MAX_PURGED_JOBS: usize = 2000;

/// The overdue jobs that were found, and the earliest time after `until`.
pub(super) struct Found {
    pub until: Timestamp,
    pub overdue: BTreeMap<(Timestamp, JobId), Job>,
    next: Option<Timestamp>,
    /// How many ended jobs have nothing left.
    pub purged: usize,
}

/// How far a partition of timers was read.
struct TimerScan {
    bucket: TimerBucket,
    after: Option<Key>,
    is_done: bool,
    /// Whether all timers so far were removed.
    is_empty: bool,
}

impl TimerScan {
    fn new(bucket: TimerBucket) -> Self {
        Self { bucket, after: None, is_done: false, is_empty: true }
    }

    /// Everything before this instant was read.
    fn read_until(&self) -> Timestamp {
        let at = self.after.as_ref().and_then(|after| key::instant_of_timer(&after.s));
        at.unwrap_or(self.bucket.hour.start())
    }

    fn query(&self, limit: u32) -> PageQuery {
        PageQuery {
            p: self.bucket.partition(),
            from: FIRST.to_string(),
            to: LAST.to_string(),
            limit: Some(limit),
            backward: false,
            after: self.after.clone(),
        }
    }

    /// The timers of the next page: those up to `until`, and at most `later` of the others.
    fn advance(&mut self, page: Page, until: Timestamp, later: usize) -> Vec<Item> {
        let Page { mut items, next } = page;
        let is_due = |item: &&Item| key::instant_of_timer(&item.key.s).is_none_or(|at| at <= until);
        let kept = items.iter().take_while(is_due).count() + later;
        if kept < items.len() {
            items.truncate(kept);
            self.after = items.last().map(|item| item.key.clone());
        } else {
            self.is_done = next.is_none();
            self.after = next;
        }
        items
    }
}

impl DynamoStore {
    /// At most `limit` jobs that must be checked at `until` or earlier, earliest first: live ones
    /// with such a `wake_at`, and ended ones whose objects are to be deleted. Also the earliest
    /// such time after `until`, or an earlier one if many jobs have ended, unless the page is full.
    ///
    /// What else an ended job leaves behind is removed here. If there is much of it, the call ends
    /// early, and the time is `until`.
    pub(super) async fn overdue_jobs(
        &self,
        until: Timestamp,
        limit: usize,
    ) -> Result<(Vec<Job>, Option<Timestamp>), StoreError> {
        let mut found = Found::new(until);
        let mut registry = Registry::new();
        let mut later = FIRST_LATER_TIMERS;
        while let Some(hour) = registry.next_hour(self).await? {
            let began = self.now();
            // A late timer is later than its job's time.
            let due_until = until.max(began);
            let mut scans: Vec<TimerScan> = hour.into_iter().map(TimerScan::new).collect();
            let mut due = FIRST_TIMERS;
            loop {
                let open = || scans.iter().filter(|scan| !scan.is_done);
                let Some(read_until) = open().map(TimerScan::read_until).min() else { break };
                if found.purged >= MAX_PURGED_JOBS {
                    return Ok((found.first(limit), Some(until)));
                }
                // A timer is never later than its job's time, so everything before this instant is
                // complete.
                if found.overdue.keys().filter(|(at, _)| *at <= read_until).count() >= limit {
                    return Ok((found.first(limit), None));
                }
                if read_until > due_until && found.next.is_some_and(|next| next <= read_until) {
                    return Ok((found.first(limit), found.next));
                }
                let most = (PAGE_TIMERS / open().count() as u32).max(FIRST_TIMERS);
                if read_until > due_until {
                    if later > MAX_LATER_TIMERS {
                        // No later job is overdue before the timers that were not read.
                        let next = found.next.map_or(read_until, |next| next.min(read_until));
                        return Ok((found.first(limit), Some(next)));
                    }
                    if self.read_on_timers(&mut scans, (later, later), began, &mut found).await? {
                        later *= 4;
                    }
                } else {
                    self.read_on_timers(&mut scans, (due, later), began, &mut found).await?;
                    due = (due * 4).min(most);
                }
            }
            let is_over = |scan: &&TimerScan| {
                scan.is_empty && scan.bucket.hour.end() + LOW_WATERMARK_LAG <= began
            };
            let closed = scans.iter().filter(is_over).map(|scan| scan.bucket.registered());
            let closed: Vec<Change> =
                closed.map(|key| Change::Delete { key, when: None }).collect();
            if !closed.is_empty() {
                self.table.write(&closed).await?;
            }
        }
        let next = found.next;
        Ok((found.first(limit), next))
    }

    /// Reads the next page of each open scan: at most so many timers, and so many later ones.
    /// Returns whether there were any.
    async fn read_on_timers(
        &self,
        scans: &mut [TimerScan],
        (page, later): (u32, u32),
        began: Timestamp,
        found: &mut Found,
    ) -> Result<bool, StoreError> {
        let open = || (0..scans.len()).filter(|index| !scans[*index].is_done);
        let indexes: Vec<usize> = open().collect();
        let queries: Vec<PageQuery> = open().map(|index| scans[index].query(page)).collect();
        let pages =
            future::try_join_all(queries.iter().map(|query| self.table.query(query))).await?;
        let mut timers: Vec<(usize, Item)> = Vec::new();
        for (index, page) in indexes.into_iter().zip(pages) {
            let items = scans[index].advance(page, found.until.max(began), later as usize);
            timers.extend(items.into_iter().map(|item| (index, item)));
        }
        let kept = self.read_timers(&timers, began, found).await?;
        for index in kept {
            scans[index].is_empty = false;
        }
        Ok(!timers.is_empty())
    }
}

impl Found {
    fn new(until: Timestamp) -> Self {
        Self { until, overdue: BTreeMap::new(), next: None, purged: 0 }
    }

    /// A job must be checked at `at`, which is after `until`.
    pub(super) fn later(&mut self, at: Timestamp) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// The first `limit` jobs. The next call finds the rest.
    fn first(&mut self, limit: usize) -> Vec<Job> {
        std::mem::take(&mut self.overdue).into_values().take(limit).collect()
    }
}

/// The open partitions of timers, by hour.
struct Registry {
    read: VecDeque<TimerBucket>,
    after: Option<Key>,
    is_done: bool,
}

impl Registry {
    fn new() -> Self {
        Self { read: VecDeque::new(), after: None, is_done: false }
    }

    /// The open partitions of the next hour.
    async fn next_hour(
        &mut self,
        store: &DynamoStore,
    ) -> Result<Option<Vec<TimerBucket>>, StoreError> {
        let is_whole = |read: &VecDeque<TimerBucket>| {
            read.front().zip(read.back()).is_some_and(|(first, last)| first.hour != last.hour)
        };
        while !self.is_done && !is_whole(&self.read) {
            let query = PageQuery {
                p: OPEN_TIMERS.to_owned(),
                from: FIRST.to_string(),
                to: LAST.to_string(),
                limit: Some(PAGE_BUCKETS),
                backward: false,
                after: self.after.take(),
            };
            let page = store.table.query(&query).await?;
            self.read.extend(page.items.iter().filter_map(|item| TimerBucket::parse(&item.key.s)));
            self.after = page.next;
            self.is_done = self.after.is_none();
        }
        let Some(first) = self.read.front().map(|bucket| bucket.hour) else { return Ok(None) };
        let count = self.read.iter().take_while(|bucket| bucket.hour == first).count();
        Ok(Some(self.read.drain(..count).collect()))
    }
}
