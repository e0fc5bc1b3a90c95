//! Lists of jobs.
//!
//! There is no index by creation, because every job would pay for it. A list follows the rows,
//! whose keys contain when their jobs were first due: from the time at which it began back to the
//! earliest, and then those due after it, soonest first. A row never moves, so a job that exists
//! all the time is on one page.
//!
//! ```text
//!   up to MAX_QUEUES queues ─▶ back, then on ─▶ up to MAX_MERGED_BUCKETS buckets of an hour, merged ─▶ rows
//! ```
//!
//! **A page has a bound of what it reads, whatever it finds.** Its [`Position`] says where the next
//! one begins.

use std::collections::{BTreeMap, VecDeque};

use futures_util::future;

use super::{
    DynamoStore,
    key::{self, Hour, Partition},
    list_position::Position,
    row,
    table::{Item, Page, PageQuery},
};
use tidegate_core::{
    job::QueueName,
    port::{
        StoreError,
        job_store::{ListPage, ListQuery, MAX_UNREADABLE},
        listing::Cursor,
    },
};

/// Rows and entries after which a page ends, whatever it has found.
const MAX_EXAMINED: usize = 1000;
/// Requests after which a page ends.
const MAX_REQUESTS: usize = 100;
/// Rows and requests after which a full page is given a cursor without knowing whether it is the
/// last one.
const MAX_PAST_FULL: (usize, usize) = (32, 8);
/// Queues whose buckets are listed together.
const MAX_QUEUES: usize = 32;
/// Buckets of an hour whose rows are merged.
const MAX_MERGED_BUCKETS: usize = 16;
/// Registrations of buckets that one request reads.
const LISTED_BUCKETS: u32 = 32;
/// Rows that the first request of a bucket reads beyond its share of the page.
const MARGIN: usize = 4;

/// A part of a partition of the table, read piece by piece in the direction of the list.
struct Rest {
    query: PageQuery,
    items: VecDeque<Item>,
    is_done: bool,
    /// The key at which it begins, which is not part of it.
    without: String,
}

impl Rest {
    fn new(p: String, (from, to): (String, String), is_later: bool, without: &str) -> Self {
        let query = PageQuery { p, from, to, limit: None, backward: !is_later, after: None };
        Self { query, items: VecDeque::new(), is_done: false, without: without.to_owned() }
    }

    /// Reads on until there is an item, unless there is one. Returns the number of requests.
    async fn fill(&mut self, store: &DynamoStore, limit: u32) -> Result<usize, StoreError> {
        let mut requests = 0;
        while self.items.is_empty() && !self.is_done {
            self.query.limit = Some(limit);
            let Page { items, next } = store.table.query(&self.query).await?;
            self.items.extend(items.into_iter().filter(|item| item.key.s != self.without));
            self.is_done = next.is_none();
            self.query.after = next;
            requests += 1;
        }
        Ok(requests)
    }

    fn first(&self) -> Option<&str> {
        self.items.front().map(|item| item.key.s.as_str())
    }
}

/// Reads on in each of `rests`. Returns the number of requests.
async fn fill(
    store: &DynamoStore,
    rests: &mut Vec<Rest>,
    limit: usize,
) -> Result<usize, StoreError> {
    let limit = limit.clamp(1, MAX_EXAMINED) as u32;
    let requests = future::try_join_all(rests.iter_mut().map(|rest| rest.fill(store, limit)));
    let requests = requests.await?.into_iter().sum();
    rests.retain(|rest| rest.first().is_some());
    Ok(requests)
}

/// The first item of all `rests` in the direction of the list.
fn first(rests: &mut [Rest], is_later: bool) -> Option<&mut Rest> {
    if is_later {
        rests.iter_mut().min_by(|a, b| a.first().cmp(&b.first()))
    } else {
        rests.iter_mut().max_by(|a, b| a.first().cmp(&b.first()))
    }
}

/// A page while it is read.
struct Reading<'a> {
    store: &'a DynamoStore,
    query: &'a ListQuery,
    page: ListPage,
    examined: usize,
    requests: usize,
    /// The position behind the last job of a full page, with what was read until then.
    full: Option<(Position, usize, usize)>,
    /// Whether another job follows a full page.
    more: bool,
}

impl Reading<'_> {
    /// Whether the page ends here, although it is not known that another job follows.
    fn is_spent(&self) -> bool {
        let past_full = |(_, examined, requests): &(Position, usize, usize)| {
            self.examined >= examined + MAX_PAST_FULL.0
                || self.requests >= requests + MAX_PAST_FULL.1
        };
        self.more
            || self.examined >= MAX_EXAMINED
            || self.requests >= MAX_REQUESTS
            || self.full.as_ref().is_some_and(past_full)
    }

    /// Reads the page from `at` on. Returns where it ends, unless it is the last one.
    async fn read(
        &mut self,
        mut at: Position,
        queues: &BTreeMap<String, QueueName>,
    ) -> Result<Option<Position>, StoreError> {
        loop {
            let after = queues.range(at.queues.after.clone()..);
            let after = after.filter(|(digest, _)| **digest > at.queues.after);
            let to = at.queues.to.clone();
            let some: Vec<(&String, &QueueName)> = match &to {
                Some(to) => after.take_while(|(digest, _)| *digest <= to).collect(),
                None => after.take(MAX_QUEUES).collect(),
            };
            let Some((last, _)) = some.last() else {
                if to.is_none() {
                    return Ok(None);
                }
                // The queues of the cursor have gone.
                at.is_later = true;
                at.next_direction();
                continue;
            };
            if to.is_none() {
                at.queues.to = Some((*last).clone());
            }
            let registered =
                |queue| Rest::new(key::all(queue), at.registered(), at.is_later, &at.buckets.after);
            let mut registries: Vec<Rest> =
                some.iter().map(|(_, queue)| registered(queue)).collect();
            while let Some(buckets) = self.take_buckets(&mut registries, &mut at).await? {
                // No job is accepted after it was first due.
                let from = self.query.filter.created.from;
                let is_before = from.is_some_and(|from| buckets.0.end() <= from);
                if is_before && !at.is_later {
                    break;
                }
                if !is_before && let Some(row) = self.read_buckets(&buckets, &at).await? {
                    at.row = row;
                    return Ok(Some(at));
                }
                at.next_buckets();
                if self.is_spent() {
                    return Ok(Some(at));
                }
            }
            at.next_direction();
            if self.is_spent() {
                return Ok(Some(at));
            }
        }
    }

    /// The next buckets: several of one hour, which `at` then names.
    async fn take_buckets(
        &mut self,
        registries: &mut Vec<Rest>,
        at: &mut Position,
    ) -> Result<Option<(Hour, Vec<Partition>)>, StoreError> {
        let (now, mut last) = (self.store.now(), None);
        let mut taken: Option<(Hour, Vec<Partition>)> = None;
        loop {
            self.requests += fill(self.store, registries, LISTED_BUCKETS as usize).await?;
            let Some(next) = first(registries, at.is_later) else { break };
            let Some(item) = next.items.front() else { break };
            let bucket = key::registered_of(&item.key.s).filter(|_| !row::is_over(item, now));
            let s = item.key.s.clone();
            let is_behind = |to: &String| if at.is_later { s > *to } else { s < *to };
            match &at.buckets.to {
                Some(to) if is_behind(to) && taken.is_some() => break,
                // The buckets of the cursor have gone.
                Some(to) if is_behind(to) => {
                    at.next_buckets();
                    continue;
                }
                // A bucket of another hour is new since the page before.
                Some(to) if s.get(..key::HOUR_DIGITS) != to.get(..key::HOUR_DIGITS) => {
                    next.items.pop_front();
                    continue;
                }
                Some(_) => {}
                None => {
                    let is_other = |hour: &Hour| bucket.as_ref().is_some_and(|(of, _)| of != hour);
                    let belongs = taken.as_ref().is_none_or(|(hour, partitions)| {
                        partitions.len() < MAX_MERGED_BUCKETS && !is_other(hour)
                    });
                    if !belongs {
                        break;
                    }
                }
            }
            next.items.pop_front();
            last = Some(s);
            if let Some((hour, partition)) = bucket {
                taken.get_or_insert_with(|| (hour, Vec::new())).1.push(partition);
            }
        }
        if at.buckets.to.is_none() {
            at.buckets.to = last;
        }
        Ok(taken)
    }

    /// Reads the rows of these buckets of an hour. Returns where the page ends if it ends there.
    async fn read_buckets(
        &mut self,
        (hour, partitions): &(Hour, Vec<Partition>),
        at: &Position,
    ) -> Result<Option<String>, StoreError> {
        let rest = |partition| {
            let p = key::bucket(partition, *hour, false);
            Rest::new(p, at.rows(*hour), at.is_later, &at.row)
        };
        let mut rests: Vec<Rest> = partitions.iter().map(rest).collect();
        let mut last = String::new();
        loop {
            let wanted = (self.query.limit as usize).saturating_sub(self.page.jobs.len());
            // The longer it finds little, the more it reads at once.
            let share = wanted.max(self.examined) / rests.len().max(1) + MARGIN;
            self.requests += fill(self.store, &mut rests, share).await?;
            let Some(next) = first(&mut rests, at.is_later) else { return Ok(None) };
            let Some(item) = next.items.front() else { return Ok(None) };
            if self.is_spent()
                && !last.is_empty()
                && let Some(end) = self.end_between(&last, &item.key.s, at.is_later)
            {
                return Ok(Some(end));
            }
            if let Some(item) = next.items.pop_front() {
                self.examine(&item, at);
                last = item.key.s;
            }
        }
    }

    /// The sort key between two rows at which a page may end. A caller with bounds must learn
    /// nothing of a job that it does not see, so its page ends between two instants.
    fn end_between(&self, last: &str, next: &str, is_later: bool) -> Option<String> {
        if self.query.within_types.is_none() || self.full.is_some() {
            return Some(last.to_owned());
        }
        let instant = |s: &str| s.get(..key::INSTANT_DIGITS).map(str::to_owned);
        let end = instant(last)?;
        let is_between = instant(next).is_some_and(|next| next != end);
        is_between.then(|| if is_later { format!("{end}{}", key::LAST) } else { end })
    }

    fn examine(&mut self, item: &Item, at: &Position) {
        self.examined += 1;
        let now = self.store.now();
        if !item.key.is_row() || row::is_over(item, now) {
            return;
        }
        match row::stored(item, now) {
            Ok(job) if !self.query.asks_for(&job) => {}
            Ok(_) if self.full.is_some() => self.more = true,
            Ok(job) => {
                self.page.jobs.push(job);
                if self.page.jobs.len() == self.query.limit as usize {
                    let end = Position { row: item.key.s.clone(), ..at.clone() };
                    self.full = Some((end, self.examined, self.requests));
                }
            }
            Err(job) if self.page.unreadable.len() < MAX_UNREADABLE => {
                self.page.unreadable.push(job);
            }
            Err(_) => {}
        }
    }
}

impl DynamoStore {
    pub(super) async fn list_jobs(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        let at = match query.cursor.as_deref().map(str::parse::<Cursor>) {
            None => None,
            Some(Ok(cursor)) => Position::of(&cursor),
            Some(Err(_)) => return Ok(ListPage::default()),
        };
        let at = at.unwrap_or_else(|| Position::first(self.now()));
        let mut queues = match (&query.filter.queue, &query.within_queues) {
            (Some(queue), _) => vec![queue.clone()],
            (None, Some(queues)) => queues.iter().cloned().collect(),
            (None, None) => self.queues().await?,
        };
        queues.retain(|queue| query.asks_for_queue(queue));
        let digest = |queue: QueueName| (row::digest(queue.as_str().as_bytes()), queue);
        let queues: BTreeMap<String, QueueName> = queues.into_iter().map(digest).collect();
        let mut reading = Reading {
            store: self,
            query,
            page: ListPage::default(),
            examined: 0,
            requests: 0,
            full: None,
            more: false,
        };
        let end = reading.read(at, &queues).await?;
        let end = end.map(|end| reading.full.take().map_or(end, |(full, ..)| full));
        let next_cursor = end.map(|end| end.cursor()).transpose()?.map(|cursor| cursor.to_string());
        Ok(ListPage { next_cursor, ..reading.page })
    }
}
