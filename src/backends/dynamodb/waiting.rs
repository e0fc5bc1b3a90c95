//! The partitions of a queue that have due jobs, and the running and the live jobs of queues.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, future, stream};

use super::{
    DynamoStore,
    bucket::Bucket,
    due::PAGE_ENTRIES,
    key::{self, Hour},
    partition::Reader,
    table::{Page, PageQuery},
};
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName},
    port::{
        StoreError,
        job_store::{MAX_LOOKED_AT, PartitionPage, UnreadableJob, WaitingPage},
    },
    queue::waiting::WaitingCount,
    time::Timestamp,
};

/// Partitions that are read at once.
const MAX_CONCURRENT_READS: usize = 16;
/// How much another process's clock may be ahead.
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(5);
/// Registrations that are read to find the next hour with jobs.
const FIRST_BUCKETS: u32 = 8;

/// Jobs that a read unit usually reads.
const JOBS_PER_UNIT: u32 = 4;
/// Jobs that one pass over the partitions of a queue counts: those of 1000 units.
pub(super) const MAX_COUNTED: u32 = 1000 * JOBS_PER_UNIT;
/// How long the next pass waits for each of them: one second for a unit.
pub(super) const COUNT_PAUSE: Duration = Duration::from_millis(1000 / JOBS_PER_UNIT as u64);

impl DynamoStore {
    /// The number of due jobs of `types` that are not critical, by partition: a page of `limit`
    /// partitions after `after`, with at most `most` jobs of each.
    ///
    /// It reads the beginnings of the buckets up to the present hour, not their ends. Everything that
    /// is read on the way counts as read, such as the registrations of all partitions and the rows
    /// of running jobs.
    pub(super) async fn count_waiting_jobs(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        page: (Option<&str>, usize, u32),
    ) -> Result<WaitingPage, StoreError> {
        let (store, reads) = self.counting_reads();
        let page = store.count_page(queue, types, until, page).await?;
        Ok(WaitingPage { read: reads.units() * u64::from(JOBS_PER_UNIT), ..page })
    }

    /// The page, without what it read.
    async fn count_page(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        (after, limit, most): (Option<&str>, usize, u32),
    ) -> Result<WaitingPage, StoreError> {
        let due = self.open(queue, None, Some(Hour::of(until)), false);
        let late = self.open(queue, None, None, true);
        let (due, late) = future::try_join(due, late).await?;
        let mut partitions: BTreeMap<String, Vec<Bucket>> = BTreeMap::new();
        for bucket in due.into_iter().chain(late) {
            let is_after = after.is_none_or(|after| after < bucket.partition.as_str());
            if is_after && bucket.is_of(types) && !bucket.critical {
                partitions.entry(bucket.partition.clone()).or_default().push(bucket);
            }
        }
        let has_more = partitions.len() > limit;
        let counts = partitions.into_iter().take(limit).map(|(name, buckets)| async move {
            let count = self.count_partition(queue, types, &name, (until, most), buckets).await?;
            Ok::<_, StoreError>((name, count))
        });
        let counts: Vec<_> = counts.collect();
        let counts = stream::iter(counts).buffered(MAX_CONCURRENT_READS);
        let mut page = WaitingPage::default();
        for (name, count) in counts.try_collect::<Vec<_>>().await? {
            page.next = Some(name.clone()).filter(|_| has_more);
            page.counts.extend(count.map(|count| (name, count)));
        }
        Ok(page)
    }

    /// The number of due jobs in `buckets`, which are those of one partition.
    async fn count_partition(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        partition: &str,
        (until, most): (Timestamp, u32),
        buckets: Vec<Bucket>,
    ) -> Result<Option<WaitingCount>, StoreError> {
        let is_counted = |job: &Job| {
            job.spec.queue == *queue
                && types.contains(&job.spec.job_type)
                && job.spec.partition == partition
                && !job.spec.critical
                && job.life.run_at().is_some_and(|at| at <= until)
        };
        let (mut jobs, mut seen, mut read) = (Vec::new(), BTreeSet::new(), 0);
        let mut at_least = false;
        for bucket in buckets {
            let late = bucket.late;
            let to = (!late).then_some(until);
            let mut reader = Reader::new(self, bucket, None, to).behind_passed();
            loop {
                let left = most.saturating_sub(read);
                if left == 0 {
                    at_least = true;
                    break;
                }
                let Some(entries) = reader.page(left.min(PAGE_ENTRIES)).await? else { break };
                read += entries.len().max(1) as u32;
                for job in entries.into_iter().filter_map(|entry| entry.job) {
                    if is_counted(&job) && seen.insert(job.id.to_string()) {
                        jobs.push(job);
                    }
                }
                if reader.is_done() {
                    break;
                }
            }
        }
        let count = WaitingCount::of(&jobs).map(|count| WaitingCount { at_least, ..count });
        // Of a long partition, the first entries may all be of running jobs.
        let unseen = || WaitingCount { jobs: 0, weight: 0, oldest_due_at: until, at_least: true };
        Ok(count.or_else(|| at_least.then(unseen)))
    }

    /// The partitions with jobs of `types` that are due at `until`.
    ///
    /// Only the buckets of the present hour and of past ones are read, one page of each that has no
    /// due job. For a later hour it is enough to know that it has a bucket.
    pub(super) async fn partitions_with_due_jobs(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        after: Option<&str>,
        limit: usize,
        skip: &BTreeSet<String>,
    ) -> Result<PartitionPage, StoreError> {
        let hour = Hour::of(until);
        let due = self.open(queue, None, Some(hour), false);
        let late = self.open(queue, None, None, true);
        let (due, late) = future::try_join(due, late).await?;
        let mut partitions: BTreeMap<String, Vec<Bucket>> = BTreeMap::new();
        for bucket in due.into_iter().chain(late) {
            let is_after = after.is_none_or(|after| after < bucket.partition.as_str());
            if is_after && bucket.is_of(types) && !skip.contains(&bucket.partition) {
                partitions.entry(bucket.partition.clone()).or_default().push(bucket);
            }
        }
        let count = partitions.len();
        let looks = partitions.into_iter().take(limit * MAX_LOOKED_AT);
        let looks = looks.map(|(name, buckets)| async move {
            let first = self.first_scheduled(queue, types, &name, until, buckets).await?;
            Ok::<_, StoreError>((name, first))
        });
        let looks: Vec<_> = looks.collect();
        let mut looks = pin!(stream::iter(looks).buffered(MAX_CONCURRENT_READS));
        let (mut page, mut looked_at) = (PartitionPage::default(), 0);
        while page.names.len() < limit
            && let Some((name, first)) = looks.try_next().await?
        {
            looked_at += 1;
            page.next = Some(name.clone()).filter(|_| looked_at < count);
            match first {
                Some(at) if at <= until => page.names.push(name),
                later => page.next_due = page.next_due.into_iter().chain(later).min(),
            }
        }
        if page.next_due.is_none() {
            page.next_due = self.next_hour(queue, hour).await?.map(Hour::start);
        }
        Ok(page)
    }

    /// The earliest due time of the jobs in `buckets`, which are the buckets of `partition`. If that
    /// is `until` or before, any such time.
    async fn first_scheduled(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        partition: &str,
        until: Timestamp,
        buckets: Vec<Bucket>,
    ) -> Result<Option<Timestamp>, StoreError> {
        let mut first: Option<Timestamp> = None;
        for bucket in buckets {
            let is_late = bucket.late;
            let mut reader = Reader::new(self, bucket, None, None).behind_passed();
            let mut size = 8;
            while let Some(seen) = reader.page(size).await? {
                let waits = |job: &&Job| {
                    job.spec.queue == *queue
                        && types.contains(&job.spec.job_type)
                        && job.spec.partition == partition
                };
                for (seen_at, job) in
                    seen.iter().filter_map(|seen| Some((seen.at, seen.job.as_ref()?)))
                {
                    let Some(at) = Some(job).filter(waits).and_then(|job| job.life.run_at()) else {
                        continue;
                    };
                    first = first.into_iter().chain([at]).min();
                    if at <= until {
                        return Ok(first);
                    }
                    // The entries of a bucket come in order, except in a late one.
                    if !is_late && at <= seen_at {
                        break;
                    }
                }
                let last = seen.last().map(|seen| seen.at);
                if !is_late && first.is_some_and(|first| last.is_some_and(|last| first <= last)) {
                    break;
                }
                size = (size * 4).min(PAGE_ENTRIES);
            }
        }
        Ok(first)
    }

    /// The first hour after `hour` in which jobs of `queue` may be due.
    pub(super) async fn next_hour(
        &self,
        queue: &QueueName,
        hour: Hour,
    ) -> Result<Option<Hour>, StoreError> {
        let mut query = PageQuery {
            p: key::open(queue, false),
            from: hour.next().text(),
            to: key::LAST.to_string(),
            limit: Some(FIRST_BUCKETS),
            backward: false,
            after: None,
        };
        loop {
            let Page { items, next } = self.table.query(&query).await?;
            if let Some(bucket) = items.iter().find_map(|item| Bucket::read(item, false)) {
                return Ok(Some(bucket.hour));
            }
            query.after = next;
            if query.after.is_none() {
                return Ok(None);
            }
        }
    }

    pub(super) async fn running_jobs(
        &self,
        queue: &QueueName,
        after: Option<&JobId>,
        limit: usize,
    ) -> Result<Vec<Result<Job, UnreadableJob>>, StoreError> {
        // A running job keeps the entry at which it was due. Its process may have been ahead in time.
        let last = Hour::of(self.now() + MAX_CLOCK_SKEW);
        let mut buckets = self.open(queue, None, Some(last), false).await?;
        buckets.extend(self.open(queue, None, None, true).await?);
        let mut running: BTreeMap<String, Result<Job, UnreadableJob>> = BTreeMap::new();
        for bucket in buckets {
            let reader = Reader::new(self, bucket, None, None).with_running();
            for seen in self.read_whole(reader).await? {
                let runs = |job: &Job| job.life.running().is_some() && job.spec.queue == *queue;
                if let Some(job) = seen.job.filter(runs) {
                    running.insert(job.id.to_string(), Ok(job));
                }
                // Neither its state nor its queue is known.
                if let Some(unreadable) = seen.unreadable {
                    running.insert(unreadable.id.clone(), Err(unreadable));
                }
            }
        }
        running.retain(|id, _| after.is_none_or(|after| after.as_str() < id.as_str()));
        Ok(running.into_values().take(limit).collect())
    }

    /// A job that has not ended. Each has an entry in an open bucket, which is of its type.
    pub(super) async fn any_live_job(
        &self,
        job_type: Option<&TypeName>,
        queue: Option<&QueueName>,
    ) -> Result<Option<Result<Job, UnreadableJob>>, StoreError> {
        let queues: BTreeSet<QueueName> = if let Some(queue) = queue {
            [queue.clone()].into()
        } else {
            self.open_queues().await?
        };
        let is_one = |job: &Job| {
            job.life.ended().is_none()
                && job_type.is_none_or(|name| *name == job.spec.job_type)
                && queue.is_none_or(|name| *name == job.spec.queue)
        };
        for queue in queues {
            for late in [false, true] {
                let mut open = self.open(&queue, None, None, late).await?;
                open.retain(|bucket| job_type.is_none_or(|name| name.as_str() == bucket.job_type));
                for bucket in open {
                    let mut reader = Reader::new(self, bucket, None, None).with_running();
                    let mut size = 8;
                    while let Some(seen) = reader.page(size).await? {
                        for one in seen {
                            if let Some(unreadable) = one.unreadable {
                                return Ok(Some(Err(unreadable)));
                            }
                            if let Some(job) = one.job.filter(is_one) {
                                return Ok(Some(Ok(job)));
                            }
                        }
                        size = (size * 4).min(PAGE_ENTRIES);
                    }
                }
            }
        }
        Ok(None)
    }
}
