//! What expires by itself, and is kept while a job needs it.
//!
//! An index entry expires some time after its instant: most are settled within seconds, and a
//! deletion would cost as much as the entry. The registration of a bucket for lists expires some time
//! after its hour. A job may wait longer than either, for example in a paused queue. Its bucket is
//! still open then: so the upkeep reads the old ones among the open buckets, renews their entries,
//! and makes the registrations of their jobs lasting.

use std::time::Duration;

use super::{
    DynamoStore, MAX_KNOWN_RECORDS,
    due::PAGE_ENTRIES,
    key::{self, FIRST, Hour, JobLocation, Key, LAST, SortKey},
    row,
    table::{Change, EXPIRES, Item, Name, PageQuery, Val},
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

    /// Keeps what the jobs in old open buckets need.
    pub(super) async fn keep_waiting_jobs(&self) -> Result<(), StoreError> {
        let before = Hour::of(self.now() - OLD);
        for queue in self.queues().await? {
            for late in [false, true] {
                for bucket in self.open(&queue, None, Some(before), late).await? {
                    let p = key::bucket(&bucket.index_partition, bucket.hour, late);
                    self.keep_bucket(p).await?;
                }
            }
        }
        Ok(())
    }

    async fn keep_bucket(&self, p: String) -> Result<(), StoreError> {
        let mut query = PageQuery {
            p,
            from: FIRST.to_string(),
            to: LAST.to_string(),
            limit: Some(PAGE_ENTRIES),
            backward: false,
            after: None,
        };
        loop {
            let page = self.table.query(&query).await?;
            self.keep_page(page.items).await?;
            query.after = page.next;
            if query.after.is_none() {
                return Ok(());
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
