//! What expires by itself, and is kept while a job needs it.
//!
//! An index entry expires some time after its instant: most are settled within seconds, and a
//! deletion would cost as much as the entry. The registration of a bucket for lists expires some time
//! after its hour. A job may wait longer than either, for example in a paused queue. Its bucket is
//! still open then: so the upkeep reads the old ones among the open buckets, renews their entries,
//! and makes the registrations of their jobs lasting. It finds them by the list of queues with open
//! buckets, which is sorted by hour: usually it has no old one, however many queues there are.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    DynamoStore, MAX_KNOWN_RECORDS,
    due::PAGE_ENTRIES,
    key::{self, FIRST, Hour, JobLocation, Key, LAST, SortKey},
    row,
    table::{Change, EXPIRES, Item, Name, Page, PageQuery, Val},
};
use tidegate_core::{
    job::{Job, JobId, QueueName, State},
    port::StoreError,
    time::Timestamp,
};

/// How long after its instant an index entry expires.
const ENTRY_LIFE: Duration = Duration::from_hours(400 * 24);
/// How long after its hour the registration of a bucket expires.
const LISTING_LIFE: Duration = Duration::from_hours(500 * 24);
/// How long after its hour a job may be listed by a registration that expires. The rest of
/// [`LISTING_LIFE`] is for attempts and retries.
const MAX_LISTED: Duration = Duration::from_hours(400 * 24);
/// Age from which open buckets are kept, and the time that a renewed entry has at least. Both
/// together are shorter than [`ENTRY_LIFE`] by more than the time from one upkeep to the next.
const OLD: Duration = Duration::from_hours(190 * 24);
/// Maximum pages that one step reads. Most steps read a page with entries, and one before it.
const MAX_STEP_PAGES: usize = 20;

/// How far the upkeep has come. The sort keys are those after which it goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct UpkeepCursor {
    /// The queue and the hour that it has come to, in the list of queues with open buckets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    listed: Option<String>,
    /// Whether it reads the late buckets of that hour.
    #[serde(default)]
    late: bool,
    /// The bucket that it has come to, in the registry of the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bucket: Option<String>,
    /// The entry that it has come to, unless the bucket is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entry: Option<String>,
}

fn expires(at: Timestamp) -> (Name, Val) {
    (EXPIRES, Val::N(at.millis().max(0) as u64 / 1000))
}

/// When an entry at `at` expires.
pub(super) fn entry_expiry(at: Timestamp) -> (Name, Val) {
    expires(at + ENTRY_LIFE)
}

fn listing_key(queue: &QueueName, home: &JobLocation) -> Key {
    let registered = key::registered(Hour::of(home.at), &home.index_partition);
    Key::new(key::all(queue), registered)
}

/// The registration, for lists, of the bucket with the rows at `home`.
pub(super) fn listing(queue: &QueueName, home: &JobLocation) -> Item {
    let until = Hour::of(home.at).end() + LISTING_LIFE;
    Item::new(listing_key(queue, home), [expires(until)])
}

/// The same without an expiry.
pub(super) fn lasting_listing(queue: &QueueName, home: &JobLocation) -> Item {
    Item::new(listing_key(queue, home), [])
}

/// Whether `job`, whose row is at `home`, may be listed for longer than [`listing`] lasts.
pub(super) fn is_listed_long(job: &Job, home: &JobLocation) -> bool {
    let at = match &job.life.state {
        State::Scheduled { run_at, .. } => *run_at,
        State::Running(_) => return false,
        State::Ended { at, .. } => *at,
    };
    at + job.spec.retention.duration() > home.at + MAX_LISTED
}

/// Whether a new job with its row at `home` is listed too late for a registration that expires: it was
/// moved from another store, or its id was used before.
pub(super) fn is_listed_late(home: &JobLocation, now: Timestamp) -> bool {
    home.at + MAX_LISTED < now
}

impl DynamoStore {
    /// Makes registrations lasting, unless this process has done so.
    pub(super) async fn keep_listed(&self, listings: Vec<Item>) -> Result<(), StoreError> {
        let mut fresh: Vec<Item> = {
            let known = self.known.lock();
            listings.into_iter().filter(|item| !known.lasting.contains(&item.key)).collect()
        };
        if fresh.is_empty() {
            return Ok(());
        }
        fresh.sort_by(|a, b| a.key.cmp(&b.key));
        fresh.dedup_by(|a, b| a.key == b.key);
        let changes: Vec<Change> = fresh.into_iter().map(Change::Put).collect();
        self.table.write(&changes).await?;
        let lasting = &mut self.known.lock().lasting;
        if lasting.len() >= MAX_KNOWN_RECORDS {
            lasting.clear();
        }
        lasting.extend(changes.iter().map(|change| change.key().clone()));
        Ok(())
    }

    /// Keeps what the jobs in old open buckets need: one step after `cursor`. Returns the cursor of
    /// the next one.
    pub(super) async fn keep_waiting_jobs(
        &self,
        cursor: Option<&str>,
    ) -> Result<Option<String>, StoreError> {
        let mut cursor: UpkeepCursor = match cursor.map(serde_json::from_str) {
            Some(Ok(cursor)) => cursor,
            // One of another release starts the upkeep again.
            Some(Err(_)) | None => UpkeepCursor::default(),
        };
        if cursor.listed.is_none() {
            self.complete_list().await?;
        }
        for _ in 0..MAX_STEP_PAGES {
            let Some((hour, queue)) = cursor.listed.as_deref().and_then(key::active_of) else {
                match self.next_listed(&cursor).await? {
                    Some(listed) => cursor.listed = Some(listed),
                    None => return Ok(None),
                }
                continue;
            };
            if self.keep_next_page(&mut cursor, hour, &queue).await? {
                break;
            }
            if cursor.late {
                match self.next_listed(&cursor).await? {
                    Some(listed) => {
                        cursor = UpkeepCursor { listed: Some(listed), ..UpkeepCursor::default() };
                    }
                    None => return Ok(None),
                }
            } else {
                cursor.late = true;
                cursor.bucket = None;
            }
        }
        Ok(serde_json::to_string(&cursor).ok())
    }

    /// The sort key of the next queue with old open buckets.
    async fn next_listed(&self, cursor: &UpkeepCursor) -> Result<Option<String>, StoreError> {
        let last = format!("{}{LAST}", Hour::of(self.now() - OLD).text());
        let page =
            self.next_item(key::ACTIVE.into(), (FIRST.to_string(), last), cursor.listed.as_deref());
        Ok(page.await?.map(|item| item.key.s))
    }

    /// Keeps a page of the entries that follow the cursor in buckets of `queue`. False if none
    /// follow.
    async fn keep_next_page(
        &self,
        cursor: &mut UpkeepCursor,
        hour: Hour,
        queue: &QueueName,
    ) -> Result<bool, StoreError> {
        if cursor.entry.is_none() {
            let (p, text) = (key::open(queue, cursor.late), hour.text());
            let of_hour = (text.clone(), format!("{text}{LAST}"));
            let Some(registration) = self.next_item(p, of_hour, cursor.bucket.as_deref()).await?
            else {
                return Ok(false);
            };
            cursor.bucket = Some(registration.key.s);
        }
        let bucket = cursor.bucket.as_deref().and_then(key::registered_of);
        let Some((hour, index_partition)) = bucket else { return Ok(true) };
        let p = key::bucket(&index_partition, hour, cursor.late);
        let after = cursor.entry.take().map(|s| Key::new(p.clone(), s));
        let mut query = PageQuery {
            p,
            from: FIRST.to_string(),
            to: LAST.to_string(),
            limit: Some(PAGE_ENTRIES),
            backward: false,
            after,
        };
        let mut page = self.table.query(&query).await?;
        while page.items.is_empty() && page.next.is_some() {
            query.after = page.next;
            page = self.table.query(&query).await?;
        }
        let Page { items, next } = page;
        self.keep_page(items).await?;
        cursor.entry = next.map(|key| key.s);
        Ok(true)
    }

    /// The first item of a range of `p` after the sort key `after`.
    async fn next_item(
        &self,
        p: String,
        (from, to): (String, String),
        after: Option<&str>,
    ) -> Result<Option<Item>, StoreError> {
        let after = after.map(|s| Key::new(p.clone(), s));
        let mut query = PageQuery { p, from, to, limit: Some(1), backward: false, after };
        loop {
            let Page { items, next } = self.table.query(&query).await?;
            if let Some(item) = items.into_iter().next() {
                return Ok(Some(item));
            }
            query.after = next;
            if query.after.is_none() {
                return Ok(None);
            }
        }
    }

    async fn keep_page(&self, items: Vec<Item>) -> Result<(), StoreError> {
        let now = self.now();
        let soon = (now + OLD).millis().max(0) as u64 / 1000;
        let mut entries: Vec<(Key, JobId)> = Vec::new();
        let mut jobs: Vec<Job> = Vec::new();
        for item in items {
            match SortKey::parse(&item.key.s) {
                Some(SortKey::Row(_)) if !row::is_over(&item, now) => {
                    jobs.extend(row::readable(&item, now));
                }
                // Entries of earlier releases do not expire.
                Some(SortKey::Entry(_, id, _))
                    if item.number(EXPIRES).is_some_and(|at| at < soon) =>
                {
                    entries.push((item.key, id));
                }
                _ => {}
            }
        }
        let ids: Vec<&JobId> = entries.iter().map(|(_, id)| id).collect();
        let found = self.found(&ids).await?;
        let mut renewed = Vec::new();
        for ((key, _), job) in entries.into_iter().zip(found) {
            let is_needed = match &job {
                Ok(job) => job.as_ref().is_some_and(|job| job.life.ended().is_none()),
                // What it needs is not known.
                Err(_) => true,
            };
            if is_needed {
                renewed.push(Change::Put(Item::new(key, [entry_expiry(now)])));
                jobs.extend(job.ok().flatten());
            }
        }
        if !renewed.is_empty() {
            self.table.write(&renewed).await?;
        }
        jobs.retain(|job| job.life.ended().is_none());
        let ids: Vec<&JobId> = jobs.iter().map(|job| &job.id).collect();
        let homes = self.locations(&ids).await?;
        let listings = jobs.iter().zip(homes);
        let listings = listings.filter_map(|(job, home)| Some((&job.spec.queue, home?)));
        let listings = listings.map(|(queue, home)| lasting_listing(queue, &home));
        self.keep_listed(listings.collect()).await
    }
}
