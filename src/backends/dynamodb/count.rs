//! Counts of jobs, on which no decision depends.
//!
//! A count reads the jobs of the last day. For an older bucket whose jobs have all ended it reads
//! stored sums, which the first count after that writes. So its cost depends on the jobs of a day,
//! not on all stored jobs.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::{
    DynamoStore,
    key::{self, Key},
    row,
    table::{Change, EXPIRES, Item, Val},
};
use crate::blob::{decode, encode};
use tidegate_core::{
    job::{Outcome, QueueName, TypeName},
    port::{
        StoreError,
        job_store::{Depth, StateFilter},
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

impl DynamoStore {
    /// The queues that have had jobs.
    pub(super) async fn queues(&self) -> Result<Vec<QueueName>, StoreError> {
        let items = self.whole(key::QUEUES).await?;
        Ok(items.iter().filter_map(|item| item.key.s.parse().ok()).collect())
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
