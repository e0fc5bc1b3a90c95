//! Lists and counts, on which no decision depends.
//!
//! A count reads the jobs of the last day. For an older bucket whose jobs have all ended it reads
//! stored sums, which the first count after that writes. So its cost depends on the jobs of a day,
//! not on all stored jobs.
//!
//! There is no index by creation, because every job would pay for it. A list reads the buckets from
//! the latest due time to the earliest. No job is due before it was accepted, so once every bucket
//! from some hour on was read, so was every job accepted in or after that hour. A list of old jobs
//! therefore reads all jobs that are due later.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::{
    DynamoStore,
    key::{self, Hour, Key, Partition},
    row,
    table::{Change, EXPIRES, Item, Val},
};
use crate::blob::{decode, encode};
use tidegate_core::{
    job::{Job, Outcome, QueueName, TypeName},
    port::{
        StoreError,
        job_store::{Depth, ListPage, ListQuery, MAX_UNREADABLE, StateFilter, UnreadableJob},
        listing::Cursor,
    },
};

/// Age after its hour at which the sums of a bucket are stored, if all its jobs have ended.
const MIN_SETTLED_AGE: Duration = Duration::from_hours(24);
/// Buckets that are counted concurrently.
const MAX_CONCURRENT_READS: usize = 8;

/// The jobs of a bucket by outcome.
type Sums = Vec<(QueueName, TypeName, Outcome, u64)>;

/// The number of jobs by queue, type and state.
type Counts = BTreeMap<(QueueName, TypeName, StateFilter), u64>;

fn cursor_of(job: &Job) -> Cursor {
    Cursor { created_at: job.spec.created_at, tie: job.id.to_string() }
}

impl DynamoStore {
    /// The queues that have had jobs.
    pub(super) async fn queues(&self) -> Result<Vec<QueueName>, StoreError> {
        let items = self.whole(key::QUEUES).await?;
        Ok(items.iter().filter_map(|item| item.key.s.parse().ok()).collect())
    }

    /// The buckets that have had jobs of these queues, by hour.
    async fn buckets(
        &self,
        queues: &[QueueName],
    ) -> Result<BTreeMap<Hour, Vec<Partition>>, StoreError> {
        let mut buckets: BTreeMap<Hour, Vec<Partition>> = BTreeMap::new();
        for queue in queues {
            let (items, now) = (self.whole(key::all(queue)).await?, self.now());
            for (hour, index_partition) in items
                .iter()
                .filter(|item| !row::is_over(item, now))
                .filter_map(|item| key::registered_of(&item.key.s))
            {
                buckets.entry(hour).or_default().push(index_partition);
            }
        }
        for index_partitions in buckets.values_mut() {
            index_partitions.sort_unstable();
            index_partitions.dedup();
        }
        Ok(buckets)
    }

    /// The jobs of a bucket.
    async fn jobs_in(
        &self,
        hour: Hour,
        index_partition: &Partition,
    ) -> Result<Vec<Result<Job, UnreadableJob>>, StoreError> {
        let now = self.now();
        let items = self.whole(key::bucket(index_partition, hour, false)).await?;
        let rows =
            items.iter().filter(|item: &&Item| item.key.is_row() && !row::is_over(item, now));
        Ok(rows.map(|item| row::stored(item, now)).collect())
    }

    pub(super) async fn list_jobs(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        let after: Option<Cursor> = match &query.cursor {
            None => None,
            Some(text) => match text.parse() {
                Ok(cursor) => Some(cursor),
                Err(_) => return Ok(ListPage::default()),
            },
        };
        let mut queues = match (&query.queue, &query.within_queues) {
            (Some(queue), _) => vec![queue.clone()],
            (None, Some(queues)) => queues.iter().cloned().collect(),
            (None, None) => self.queues().await?,
        };
        queues.retain(|queue| query.asks_for_queue(queue));
        let limit = query.limit as usize;
        let mut found: BTreeMap<Cursor, Job> = BTreeMap::new();
        let (mut more, mut unreadable) = (false, Vec::new());
        for (hour, index_partitions) in self.buckets(&queues).await?.into_iter().rev() {
            // Jobs of this hour and earlier ones were accepted before the end of this hour.
            let complete =
                found.keys().rev().take(limit + 1).filter(|at| at.created_at >= hour.end()).count();
            if complete > limit || query.from.is_some_and(|from| hour.end() <= from) {
                break;
            }
            for index_partition in index_partitions {
                for job in self.jobs_in(hour, &index_partition).await? {
                    match job {
                        Ok(job) if query.asks_for(&job) => {
                            found.insert(cursor_of(&job), job);
                        }
                        Err(job) if unreadable.len() < MAX_UNREADABLE => unreadable.push(job),
                        Ok(_) | Err(_) => {}
                    }
                }
                found.retain(|at, _| after.as_ref().is_none_or(|after| at < after));
            }
            // Only the newest are needed.
            while found.len() > limit + 1 {
                found.pop_first();
                more = true;
            }
        }
        let more = more || found.len() > limit;
        let jobs: Vec<Job> = found.into_values().rev().take(limit).collect();
        let next_cursor = jobs.last().filter(|_| more).map(|job| cursor_of(job).to_string());
        Ok(ListPage { jobs, unreadable, next_cursor })
    }

    pub(super) async fn count_jobs(&self) -> Result<Vec<Depth>, StoreError> {
        let mut counts = Counts::new();
        for queue in self.queues().await? {
            let (registered, open) =
                (self.whole(key::all(&queue)).await?, self.open_hours(&queue).await?);
            let counted = registered.into_iter().map(|item| self.count_bucket(item, &open));
            let counted: Vec<Vec<Depth>> =
                stream::iter(counted).buffered(MAX_CONCURRENT_READS).try_collect().await?;
            for Depth { queue, job_type, state, jobs } in counted.into_iter().flatten() {
                *counts.entry((queue, job_type, state)).or_default() += jobs;
            }
        }
        Ok(depths(counts))
    }

    /// The registered sort keys of the open buckets of a queue.
    async fn open_hours(&self, queue: &QueueName) -> Result<HashSet<String>, StoreError> {
        let mut open = HashSet::new();
        for late in [false, true] {
            open.extend(
                self.whole(key::open(queue, late)).await?.into_iter().map(|item| item.key.s),
            );
        }
        Ok(open)
    }

    /// The number of jobs in the bucket that `item` registers. Stores its sums if all its jobs have
    /// ended, a day after its hour.
    async fn count_bucket(
        &self,
        item: Item,
        open: &HashSet<String>,
    ) -> Result<Vec<Depth>, StoreError> {
        let Some((hour, index_partition)) = key::registered_of(&item.key.s) else {
            return Ok(Vec::new());
        };
        let now = self.now();
        if let Some(sums) = item.bytes(row::LIST) {
            if row::is_over(&item, now) {
                return Ok(Vec::new());
            }
            match stored_sums(&item, sums) {
                Ok(depths) => return Ok(depths),
                Err(error) => tracing::warn!(error = %error.chain(), "counting a bucket again"),
            }
        }
        let rows = self.whole(key::bucket(&index_partition, hour, false)).await?;
        let mut counts = Counts::new();
        let (mut until, mut is_whole) = (0, true);
        for row in rows.iter().filter(|item| item.key.is_row() && !row::is_over(item, now)) {
            let Some(job) = row::readable(row, now) else {
                is_whole = false;
                // It counts as running, so that nothing that it needs is deleted.
                if let Some(spec) = row::spec_alone(row) {
                    *counts
                        .entry((spec.queue, spec.job_type, StateFilter::Running))
                        .or_default() += 1;
                }
                continue;
            };
            let (queue, job_type) = (job.spec.queue.clone(), job.spec.job_type.clone());
            *counts.entry((queue, job_type, StateFilter::from(&job.life.state))).or_default() += 1;
            until = until.max(row::hidden_from(row).unwrap_or(u64::MAX));
        }
        let is_settled =
            is_whole && hour.end() + MIN_SETTLED_AGE <= now && !open.contains(&item.key.s);
        if let Some(sums) = ended_sums(&counts).filter(|_| is_settled) {
            self.store_sums(item.key, &sums, until).await?;
        }
        Ok(depths(counts))
    }

    /// Stores the sums of a bucket. The table expires them at `until`, with the last job of the
    /// bucket.
    async fn store_sums(&self, key: Key, sums: &Sums, until: u64) -> Result<(), StoreError> {
        let until = if until == u64::MAX { None } else { Some((EXPIRES, Val::N(until.max(1)))) };
        let sums = [(row::LIST, Val::B(encode(sums, &key.s)?.into()))].into_iter().chain(until);
        // It only saves reads, so a failure is ignored: the next count repeats it.
        if let Err(error) = self.table.write(&[Change::Put(Item::new(key, sums))]).await {
            tracing::debug!(error = %error.chain(), "cannot store the counts of a bucket");
        }
        Ok(())
    }
}

/// The sums that an earlier count has stored in `item`.
fn stored_sums(item: &Item, sums: &[u8]) -> Result<Vec<Depth>, StoreError> {
    let sums: Sums = decode(sums, &item.key.s, || format!("the sums of {}", item.key.s))?;
    let depth = |(queue, job_type, outcome, jobs)| Depth {
        queue,
        job_type,
        state: StateFilter::Ended(outcome),
        jobs,
    };
    Ok(sums.into_iter().map(depth).collect())
}

/// The sums of `counts`, if all jobs have ended.
fn ended_sums(counts: &Counts) -> Option<Sums> {
    let sum = |((queue, job_type, state), jobs): (&(QueueName, TypeName, StateFilter), &u64)| {
        let StateFilter::Ended(outcome) = state else { return None };
        Some((queue.clone(), job_type.clone(), *outcome, *jobs))
    };
    counts.iter().map(sum).collect()
}

fn depths(counts: Counts) -> Vec<Depth> {
    let depth = |((queue, job_type, state), jobs)| Depth { queue, job_type, state, jobs };
    counts.into_iter().map(depth).collect()
}
