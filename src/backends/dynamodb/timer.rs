//! Timers: when a job must be checked although it is not due, for example at the end of a lease or
//! of its retention.
//!
//! A timer may be too early, never too late. A reader that finds a timer of a job whose time is
//! later by now writes another timer for that time, and then removes the first one, unless the
//! latest change of the job has written one itself.

use std::collections::{BTreeMap, VecDeque};

use futures_util::future;

use super::{
    DynamoStore,
    entry::LOW_WATERMARK_LAG,
    key::{self, FIRST, Key, LAST},
    table::{Change, Item, Page, PageQuery},
    timer_bucket::{OPEN_TIMERS, TimerBucket},
    timer_check::timed_jobs,
};
use tidegate_core::{
    job::{Job, JobId},
    port::StoreError,
    time::Timestamp,
};

/// Timers that are read at once, of all partitions together.
const PAGE_TIMERS: u32 = 200;
/// Timers of a partition that are read first. In most sweeps none is due.
const FIRST_TIMERS: u32 = 1;
/// How much larger each page is than the one before.
const PAGE_GROWTH: u32 = 4;
/// Rows that are read at once, unless the first timer has more jobs. A timer may have hundreds.
const MAX_ROWS: usize = 500;
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
    /// The instant of the next timer, if it is known.
    next_at: Option<Timestamp>,
    is_done: bool,
    /// Whether all timers so far were removed.
    is_empty: bool,
}

impl TimerScan {
    fn new(bucket: TimerBucket) -> Self {
        Self { bucket, after: None, next_at: None, is_done: false, is_empty: true }
    }

    /// Everything before this instant was read.
    fn read_until(&self) -> Timestamp {
        let at = self.after.as_ref().and_then(|after| key::instant_of_timer(&after.s));
        self.next_at.or(at).unwrap_or(self.bucket.hour.start())
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

    /// Goes back to `after`, where the timer `next` follows.
    fn retreat(&mut self, after: Option<Key>, next: &Key) {
        (self.after, self.is_done) = (after, false);
        self.next_at = key::instant_of_timer(&next.s);
    }

    /// The timers of the next page up to `until`, and the instant of the first one after it. Then
    /// the partition was read up to that one.
    fn advance(&mut self, page: Page, until: Timestamp) -> (Vec<Item>, Option<Timestamp>) {
        let Page { mut items, next } = page;
        self.next_at = None;
        let instants = items.iter().map(|item| key::instant_of_timer(&item.key.s));
        let later =
            instants.enumerate().find_map(|(n, at)| Some((n, at.filter(|at| *at > until)?)));
        if let Some((first, _)) = later {
            self.after = Some(items[first].key.clone());
            items.truncate(first);
        } else {
            self.is_done = next.is_none();
            self.after = next;
        }
        (items, later.map(|(_, at)| at))
    }
}

impl DynamoStore {
    /// At most `limit` jobs that must be checked at `until` or earlier, earliest first: live ones
    /// with such a `wake_at`, and ended ones whose objects are to be deleted. Also the earliest
    /// such time after `until`, or an earlier one, unless the page is full: of timers that are not
    /// due only the time is read.
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
                let behind = open().filter(|scan| scan.read_until() <= due_until).count() as u32;
                if let Some(most) = PAGE_TIMERS.checked_div(behind) {
                    self.read_on_timers(&mut scans, due, due_until, began, &mut found).await?;
                    due = (due * PAGE_GROWTH).min(most.max(FIRST_TIMERS));
                } else {
                    // No timer of the hour is due. The first of each partition says when one is.
                    self.read_on_timers(
                        &mut scans,
                        FIRST_TIMERS,
                        Timestamp::MAX,
                        began,
                        &mut found,
                    )
                    .await?;
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

    /// Reads the next page, of at most so many timers, of each open scan that was not read beyond
    /// `up_to`.
    async fn read_on_timers(
        &self,
        scans: &mut [TimerScan],
        page: u32,
        up_to: Timestamp,
        began: Timestamp,
        found: &mut Found,
    ) -> Result<(), StoreError> {
        let is_behind = |scan: &TimerScan| !scan.is_done && scan.read_until() <= up_to;
        let indexes: Vec<usize> =
            (0..scans.len()).filter(|index| is_behind(&scans[*index])).collect();
        let queries: Vec<PageQuery> =
            indexes.iter().map(|index| scans[*index].query(page)).collect();
        let pages =
            future::try_join_all(queries.iter().map(|query| self.table.query(query))).await?;
        let mut timers: Vec<(usize, Item)> = Vec::new();
        let mut positions: BTreeMap<usize, Option<Key>> = BTreeMap::new();
        for (index, page) in indexes.into_iter().zip(pages) {
            positions.insert(index, scans[index].after.clone());
            let (items, later) = scans[index].advance(page, found.until.max(began));
            timers.extend(items.into_iter().map(|item| (index, item)));
            if let Some(later) = later {
                found.later(later);
                scans[index].is_empty = false;
            }
        }
        // The earliest first. A later page has the others again.
        timers.sort_by(|(_, a), (_, b)| a.key.s.cmp(&b.key.s));
        let mut rows = 0;
        let fitting = timers.iter().take_while(|(_, item)| {
            let fits = rows == 0 || rows + timed_jobs(item) <= MAX_ROWS;
            rows += timed_jobs(item);
            fits
        });
        let left = timers.split_off(fitting.count());
        for (index, was) in positions {
            if let Some((_, next)) = left.iter().find(|(of, _)| *of == index) {
                let last = timers.iter().rfind(|(of, _)| *of == index);
                scans[index].retreat(last.map(|(_, item)| item.key.clone()).or(was), &next.key);
            }
        }
        let kept = self.read_timers(&timers, began, found).await?;
        for index in kept {
            scans[index].is_empty = false;
        }
        Ok(())
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
