//! Lists and counts: nothing that decides depends on them.
//!
//! A count reads the buckets of the last day, and of each older one the sums that were written down when all its jobs had ended: whoever
//! first counts them does that. So it costs as much as the jobs of a day have, and not as all that are kept.
//!
//! The one thing to know: there is no index by creation, since each job would pay for it. A list goes through the buckets from
//! the latest due time to the earliest. A job is due when it is accepted at the earliest, so once every bucket from some hour on
//! was read, so was every job accepted in or after that hour. A list of old jobs therefore reads past all that are due later.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::{
    DynamoStore,
    key::{self, Hour, Partition},
    row,
    table::{Change, EXPIRES, Item, Val},
};
use crate::blob::{decode, encode};
use tidegate_core::{
    job::{Job, Outcome, QueueName, TypeName},
    port::{
        StoreError,
        job_store::{Depth, ListPage, ListQuery, StateFilter},
        listing::Cursor,
    },
};

/// How long after its hour the jobs of a bucket are counted for good, if all have ended.
const SETTLED: Duration = Duration::from_hours(24);
/// Buckets that are counted side by side.
const MAX_CONCURRENT_READS: usize = 8;

/// How many jobs of a bucket ended how.
type Sums = Vec<(QueueName, TypeName, Outcome, u64)>;

fn place(job: &Job) -> Cursor {
    Cursor { created_at: job.spec.created_at, tie: job.id.to_string() }
}

impl DynamoStore {
    /// The queues that have had jobs.
    async fn queues(&self) -> Result<Vec<QueueName>, StoreError> {
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
    ) -> Result<Vec<Job>, StoreError> {
        let now = self.now();
        let items = self.whole(key::bucket(index_partition, hour, false)).await?;
        let rows =
            items.iter().filter(|item: &&Item| item.key.is_row() && !row::is_over(item, now));
        rows.map(|item| row::shown(item, now)).collect()
    }

    pub(super) async fn list_jobs(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        let after: Option<Cursor> = match &query.cursor {
            None => None,
            Some(text) => match text.parse() {
                Ok(cursor) => Some(cursor),
                Err(_) => return Ok(ListPage::default()),
            },
        };
        let queues = match &query.queue {
            Some(queue) => vec![queue.clone()],
            None => self.queues().await?,
        };
        let most = query.limit as usize;
        let mut found: BTreeMap<Cursor, Job> = BTreeMap::new();
        let mut more = false;
        for (hour, index_partitions) in self.buckets(&queues).await?.into_iter().rev() {
            // What lies in this hour and before was accepted before its end.
            let complete =
                found.keys().rev().take(most + 1).filter(|at| at.created_at >= hour.end()).count();
            if complete > most || query.from.is_some_and(|from| hour.end() <= from) {
                break;
            }
            for index_partition in index_partitions {
                let jobs = self
                    .jobs_in(hour, &index_partition)
                    .await?
                    .into_iter()
                    .filter(|job| query.asks_for(job));
                found.extend(
                    jobs.map(|job| (place(&job), job))
                        .filter(|(at, _)| after.as_ref().is_none_or(|after| at < after)),
                );
            }
            // Only the newest are needed.
            while found.len() > most + 1 {
                found.pop_first();
                more = true;
            }
        }
        let more = more || found.len() > most;
        let jobs: Vec<Job> = found.into_values().rev().take(most).collect();
        let next_cursor = jobs.last().filter(|_| more).map(|job| place(job).to_string());
        Ok(ListPage { jobs, next_cursor })
    }

    pub(super) async fn count_jobs(&self) -> Result<Vec<Depth>, StoreError> {
        let mut counts = BTreeMap::<_, u64>::new();
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
        Ok(counts
            .into_iter()
            .map(|((queue, job_type, state), jobs)| Depth { queue, job_type, state, jobs })
            .collect())
    }

    /// The buckets of a queue that have entries which are not settled.
    async fn open_hours(&self, queue: &QueueName) -> Result<HashSet<String>, StoreError> {
        let mut open = HashSet::new();
        for late in [false, true] {
            open.extend(
                self.whole(key::open(queue, late)).await?.into_iter().map(|item| item.key.s),
            );
        }
        Ok(open)
    }

    /// The jobs of the bucket that `item` registers. What ended a day ago is written down, and forgotten with its jobs.
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
            let sums: Sums = decode(sums, || format!("the sums of {}", item.key.s))?;
            let depth = |(queue, job_type, outcome, jobs)| Depth {
                queue,
                job_type,
                state: StateFilter::Ended(outcome),
                jobs,
            };
            return Ok(sums.into_iter().map(depth).collect());
        }
        let rows = self.whole(key::bucket(&index_partition, hour, false)).await?;
        let mut counts = BTreeMap::<_, u64>::new();
        let mut until = 0;
        for row in rows.iter().filter(|item| item.key.is_row() && !row::is_over(item, now)) {
            let job = row::shown(row, now)?;
            let place = (
                job.spec.queue.clone(),
                job.spec.job_type.clone(),
                StateFilter::from(&job.life.state),
            );
            *counts.entry(place).or_default() += 1;
            until = until.max(row.number(EXPIRES).unwrap_or(u64::MAX));
        }
        let ended = |state: &StateFilter| {
            if let StateFilter::Ended(outcome) = state { Some(*outcome) } else { None }
        };
        let sums: Option<Sums> = counts
            .iter()
            .map(|((queue, job_type, state), jobs)| {
                Some((queue.clone(), job_type.clone(), ended(state)?, *jobs))
            })
            .collect();
        if let Some(sums) =
            sums.filter(|_| hour.end() + SETTLED <= now && !open.contains(&item.key.s))
        {
            // The table forgets the bucket with the last of its jobs.
            let until =
                if until == u64::MAX { None } else { Some((EXPIRES, Val::N(until.max(1)))) };
            let sums = [(row::LIST, Val::B(encode(&sums)?.into()))].into_iter().chain(until);
            let change = Change::Put(Item::new(item.key, sums));
            // This only saves reads: the next count repeats it if it fails.
            if let Err(error) = self.table.write(&[change]).await {
                tracing::debug!(error = %error.chain(), "the counts of a bucket were not stored");
            }
        }
        Ok(counts
            .into_iter()
            .map(|((queue, job_type, state), jobs)| Depth { queue, job_type, state, jobs })
            .collect())
    }
}
