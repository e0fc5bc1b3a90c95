//! Counting jobs, as a part of the sweep.
//!
//! | jobs | are found in | are read |
//! |---|---|---|
//! | live, due in this hour or before | open buckets, from their low watermarks on, up to [`MAX_LIVE`] | again after [`LIVE_WAIT`] for each that was read |
//! | live, due in a later hour | open buckets of later hours | again after a second for each that was read, at least [`MIN_LATER_AGE`] |
//! | ended | buckets of hours that have begun, by rows | see [`super::recount_ended`] |
//!
//! A sweep counts the queues that have open buckets up to this hour, a few of those with later ones,
//! in turns, and those with a bucket whose time has come. An idle queue is not read.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};

use super::{
    DynamoStore,
    bucket::Bucket,
    count::{LaterCount, QueueCounts, Tallies, stored},
    due::PAGE_ENTRIES,
    key::{self, Hour, Key},
    partition::Reader,
    row,
    table::{Change, Item, Page, PageQuery, Val},
};
use tidegate_core::{
    job::{Job, Phase, QueueName, State, TypeName},
    port::StoreError,
    time::Timestamp,
};

/// Rows and entries that a sweep reads to count jobs. A request counts as [`REQUEST_ROWS`] at
/// least.
const MAX_ROWS: u64 = 10_000;
const REQUEST_ROWS: u64 = 4;
/// Rows that the job of an entry counts as: it is read by itself.
const ENTRY_ROWS: u64 = 4;
/// Queues that a sweep counts.
const MAX_QUEUES: usize = 100;
/// Queues among them that have no job before the next hour.
const MAX_LATER_QUEUES: usize = 10;
/// Queues that are counted at once.
const MAX_CONCURRENT_QUEUES: usize = 8;
/// Queues with a bucket to count again that are remembered.
const MAX_PENDING: usize = 200;
/// Live jobs of a queue that a sweep reads, with the entries between them.
const MAX_LIVE: u32 = 2000;
/// How long the live jobs of a queue are not counted again, for each row that counting them read. So
/// a long backlog is counted less often, and no queue costs more than one unit a second.
const LIVE_WAIT: Duration = Duration::from_millis(250);
/// Later buckets of a queue that are counted, and the entries that are read of each.
const MAX_LATER: u32 = 64;
const MAX_LATER_ENTRIES: u32 = 1000;
/// Age at which a later bucket is counted again.
const MIN_LATER_AGE: Duration = Duration::from_secs(50);

/// What one sweep leaves to the next.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct CountCursor {
    /// The queue that was counted last.
    #[serde(default)]
    after: String,
    /// The last listing of a later hour that was looked at.
    #[serde(default)]
    later: String,
    /// Queues with a bucket to count again, and when, in milliseconds.
    #[serde(default)]
    pending: BTreeMap<QueueName, i64>,
}

/// What a sweep may still read.
pub(super) struct Budget(AtomicU64);

impl Budget {
    pub(super) fn spend(&self, rows: u64) {
        let rows = rows.max(REQUEST_ROWS);
        let spend = |left: u64| Some(left.saturating_sub(rows));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend);
    }

    pub(super) fn is_spent(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// Whether what was counted at `at` is not counted again for `wait`. After a step back of the clock
/// it is.
fn is_recent(at: Timestamp, wait: Duration, now: Timestamp) -> bool {
    at < now && now < at + wait
}

impl DynamoStore {
    /// Counts the jobs of the queues whose turn it is, until `until`.
    pub(super) async fn recount(&self, until: Timestamp) -> Result<(), StoreError> {
        self.complete_list().await?;
        let stored = self.table.get(&[key::count_cursor()]).await?.pop().flatten();
        let before = stored.as_ref().and_then(|item| item.text(row::RECORD));
        let mut cursor: CountCursor =
            before.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let queues = self.queues_to_count(&mut cursor).await?;
        let keys: Vec<Key> = queues.iter().map(key::counts).collect();
        let known = if keys.is_empty() { Vec::new() } else { self.table.get(&keys).await? };
        let budget = &Budget(AtomicU64::new(MAX_ROWS));
        let counts = queues.into_iter().zip(known).map(|(queue, known)| async move {
            if budget.is_spent() || self.now() >= until {
                return None;
            }
            let known = known.as_ref().map_or_else(QueueCounts::new, QueueCounts::read);
            match self.count_queue(&queue, known, budget).await {
                Ok(next_at) => Some((queue, next_at)),
                // The others are counted. The next sweep repeats this one.
                Err(error) => {
                    tracing::warn!(%queue, error = %error.chain(), "a queue was not counted");
                    None
                }
            }
        });
        let counts: Vec<_> = counts.collect();
        let counts = stream::iter(counts).buffered(MAX_CONCURRENT_QUEUES);
        for (queue, next_at) in counts.collect::<Vec<_>>().await.into_iter().flatten() {
            match next_at {
                Some(at) if cursor.pending.len() < MAX_PENDING => {
                    cursor.pending.insert(queue, at.millis());
                }
                _ => drop(cursor.pending.remove(&queue)),
            }
        }
        let text = serde_json::to_string(&cursor)
            .map_err(|error| StoreError::corrupt_in("a value cannot be encoded", error))?;
        if before == Some(text.as_str()) {
            return Ok(());
        }
        let item = Item::new(key::count_cursor(), [(row::RECORD, Val::S(text))]);
        self.table.write(&[Change::Put(item)]).await.map(drop)
    }

    /// The queues whose turn it is, in order.
    async fn queues_to_count(
        &self,
        cursor: &mut CountCursor,
    ) -> Result<Vec<QueueName>, StoreError> {
        let now = self.now();
        let hour = Hour::of(now);
        let last = format!("{}{}", hour.text(), key::LAST);
        let listed = self.all(key::ACTIVE.into(), key::FIRST.into(), last.clone()).await?;
        let listed = listed.iter().filter_map(|item| key::active_of(&item.key.s));
        let mut queues: BTreeSet<QueueName> = listed.map(|(_, queue)| queue).collect();
        let is_due = |(_, at): &(&QueueName, &i64)| **at <= now.millis();
        queues.extend(cursor.pending.iter().filter(is_due).map(|(queue, _)| queue.clone()));
        // In turns, if there are too many.
        let (front, behind): (Vec<_>, Vec<_>) =
            queues.into_iter().partition(|queue| queue.as_str() <= cursor.after.as_str());
        let mut queues: Vec<QueueName> = behind.into_iter().chain(front).collect();
        queues.truncate(MAX_QUEUES - MAX_LATER_QUEUES);
        if let Some(last) = queues.last() {
            cursor.after = last.to_string();
        }
        let from = if cursor.later > last { cursor.later.clone() } else { last };
        let query = PageQuery {
            p: key::ACTIVE.into(),
            from: from.clone(),
            to: key::LAST.into(),
            limit: Some(4 * MAX_LATER_QUEUES as u32),
            backward: false,
            after: None,
        };
        let Page { items, next } = self.table.query(&query).await?;
        let (mut later, mut is_whole) = (Vec::new(), next.is_none());
        for item in items.iter().filter(|item| item.key.s != from) {
            let Some((_, queue)) = key::active_of(&item.key.s) else { continue };
            if later.len() == MAX_LATER_QUEUES {
                is_whole = false;
                break;
            }
            cursor.later.clone_from(&item.key.s);
            if !later.contains(&queue) && !queues.contains(&queue) {
                later.push(queue);
            }
        }
        if is_whole {
            cursor.later.clear();
        }
        queues.extend(later);
        Ok(queues)
    }

    /// Counts the jobs of `queue`, whose last counts were `counts`. Returns when to count it again
    /// even if it has no open bucket.
    async fn count_queue(
        &self,
        queue: &QueueName,
        mut counts: QueueCounts,
        budget: &Budget,
    ) -> Result<Option<Timestamp>, StoreError> {
        let now = self.now();
        let wait = LIVE_WAIT * u32::try_from(counts.live_read).unwrap_or(u32::MAX);
        // An hour that has begun makes later jobs those of this one.
        let is_new_hour = Hour::of(counts.live_at) != Hour::of(now);
        if is_new_hour || !is_recent(counts.live_at, wait, now) {
            self.count_live(queue, &mut counts, budget).await?;
        }
        self.count_later(queue, &mut counts, budget).await?;
        self.count_ended(queue, &mut counts, budget).await?;
        counts.at = now;
        self.table.write(&[Change::Put(counts.item(key::counts(queue))?)]).await?;
        // Until its hour is over, a bucket with jobs is open.
        Ok(counts.homes.iter().map(|home| home.next_at.max(home.final_at())).min())
    }

    /// Counts the live jobs that are due in this hour or before.
    async fn count_live(
        &self,
        queue: &QueueName,
        counts: &mut QueueCounts,
        budget: &Budget,
    ) -> Result<(), StoreError> {
        let now = self.now();
        let hour = Hour::of(now);
        let mut open = self.open(queue, None, Some(hour), false).await?;
        open.extend(self.open(queue, None, None, true).await?);
        let belongs = |job: &Job| match &job.life.state {
            State::Scheduled { run_at, .. } => {
                Hour::of(*run_at) <= hour || job.life.awaits_retry_decision()
            }
            State::Running(_) => true,
            State::Ended { .. } => false,
        };
        let (mut tallies, mut weight, mut seen) = (Tallies::new(), 0, HashSet::new());
        let (mut left, mut read, mut is_whole) = (MAX_LIVE, 0, true);
        for bucket in open {
            // It counts as running, so that it is not forgotten.
            let of_unreadable = bucket.job_type.parse::<TypeName>().ok();
            let mut reader = Reader::new(self, bucket, None, None).with_running();
            while left > 0
                && let Some(entries) = reader.page(left.min(PAGE_ENTRIES)).await?
            {
                left -= left.min(entries.len() as u32);
                let of_entries = entries.iter().filter(|entry| entry.is_entry()).count() as u64;
                let rows = entries.len() as u64 + of_entries * (ENTRY_ROWS - 1);
                budget.spend(rows);
                read += rows;
                for entry in entries {
                    if let Some(job) = entry.job.filter(|job| job.spec.queue == *queue)
                        && belongs(&job)
                        && seen.insert(job.id.to_string())
                    {
                        let phase = Phase::of(&job.life, now);
                        if phase == Phase::Running && !job.spec.critical {
                            weight += u64::from(job.spec.weight);
                        }
                        *tallies.entry((job.spec.job_type.clone(), phase)).or_default() += 1;
                    }
                    if let Some((job, job_type)) = entry.unreadable.zip(of_unreadable.as_ref())
                        && seen.insert(job.id)
                    {
                        *tallies.entry((job_type.clone(), Phase::Running)).or_default() += 1;
                    }
                }
            }
            is_whole &= reader.is_done();
            reader.leave().await;
        }
        (counts.live, counts.running_weight) = (stored(tallies), weight);
        (counts.live_at, counts.live_read, counts.at_least[0]) = (now, read, !is_whole);
        Ok(())
    }

    /// Counts the jobs that are due in later hours.
    async fn count_later(
        &self,
        queue: &QueueName,
        counts: &mut QueueCounts,
        budget: &Budget,
    ) -> Result<(), StoreError> {
        let now = self.now();
        let query = PageQuery {
            p: key::open(queue, false),
            from: Hour::of(now).next().text(),
            to: key::LAST.into(),
            limit: Some(MAX_LATER),
            backward: false,
            after: None,
        };
        let Page { items, next } = self.table.query(&query).await?;
        counts.at_least[1] = next.is_some();
        let mut known: BTreeMap<String, LaterCount> =
            counts.later.drain(..).map(|one| (one.bucket.clone(), one)).collect();
        for bucket in items.iter().filter_map(|item| Bucket::read(item, false)) {
            let one = known.remove(&bucket.registered.s);
            let is_known = one.as_ref().is_some_and(|one| {
                is_recent(one.at, MIN_LATER_AGE.max(Duration::from_secs(one.read)), now)
            });
            let one = match one {
                Some(one) if is_known || budget.is_spent() => one,
                _ => self.count_later_bucket(queue, bucket, budget).await?,
            };
            counts.at_least[1] |= one.read >= u64::from(MAX_LATER_ENTRIES);
            counts.later.push(one);
        }
        Ok(())
    }

    async fn count_later_bucket(
        &self,
        queue: &QueueName,
        bucket: Bucket,
        budget: &Budget,
    ) -> Result<LaterCount, StoreError> {
        let (at, name, hour) = (self.now(), bucket.registered.s.clone(), bucket.hour);
        let mut reader = Reader::new(self, bucket, None, None);
        let (mut tallies, mut seen, mut read) = (Tallies::new(), HashSet::new(), 0);
        while read < MAX_LATER_ENTRIES
            && let Some(entries) = reader.page(MAX_LATER_ENTRIES - read).await?
        {
            budget.spend(entries.len() as u64);
            read += entries.len() as u32;
            for job in entries.into_iter().filter_map(|entry| entry.job) {
                let is_of = |at| Hour::of(at) == hour && !job.life.awaits_retry_decision();
                if job.spec.queue == *queue
                    && job.life.run_at().is_some_and(is_of)
                    && seen.insert(job.id.clone())
                {
                    let phase = Phase::of(&job.life, at);
                    *tallies.entry((job.spec.job_type.clone(), phase)).or_default() += 1;
                }
            }
        }
        Ok(LaterCount { bucket: name, at, read: read.into(), tallies: stored(tallies) })
    }
}
