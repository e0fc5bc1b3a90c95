//! Due jobs in a queue's order, the partitions that have any, and the running jobs.
//!
//! Within an index partition entries are read by instant, and no further than the order needs: in order of time, a step is complete once
//! every index partition was read past it. Orders by priority need every entry that is due. Late buckets are always read as a whole.

use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry};

use futures_util::future;

use super::{
    DynamoStore,
    key::{Hour, Partition},
};
use crate::dynamodb::partition::{Bucket, Reader, SeenPage};
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName},
    port::{
        StoreError,
        job_store::{DuePage, DueQuery},
    },
    queue::Order,
    time::Timestamp,
};

/// Entries that one request reads, where it is not known how many are needed.
const PAGE: u32 = 1000;

/// The open buckets of a queue up to some hour.
struct Open {
    late: Vec<Bucket>,
    due: Vec<Bucket>,
}

/// The buckets of one index partition, in order, and how far they were read.
struct PartitionScan<'a> {
    buckets: VecDeque<Bucket>,
    reader: Option<Reader<'a>>,
    /// Everything before this was read; none once everything was.
    read_until: Option<Timestamp>,
}

/// What one question has found so far.
struct Found<'q> {
    query: &'q DueQuery,
    jobs: BTreeMap<JobId, Job>,
    next_due: Option<Timestamp>,
}

impl Found<'_> {
    fn add(&mut self, seen: Vec<SeenPage>) {
        for job in seen.into_iter().filter_map(|seen| seen.job) {
            let Some(run_at) = asked(self.query, &job) else {
                continue;
            };
            if run_at <= self.query.until {
                self.jobs.insert(job.id.clone(), job);
            } else {
                self.next_due = self.next_due.into_iter().chain([run_at]).min();
            }
        }
    }

    /// The jobs after the page's start of which nobody can come before any more, in order.
    fn complete(&self, read_until: Option<Timestamp>) -> Vec<&Job> {
        let order = self.query.order;
        let key = |job: &Job| {
            order.key(job.spec.priority, job.life.run_at().unwrap_or_default(), &job.id)
        };
        let after =
            self.query.after.as_ref().map(|last| order.key(last.priority, last.run_at, &last.id));
        let is_complete = |job: &Job| {
            read_until.is_none_or(|read| {
                step_end(order, job.life.run_at().unwrap_or_default())
                    .is_some_and(|end| end <= read)
            })
        };
        let mut jobs: Vec<_> =
            self.jobs.values().filter(|job| is_complete(job)).map(|job| (key(job), job)).collect();
        jobs.retain(|(key, _)| after.as_ref().is_none_or(|after| after < key));
        jobs.sort_by(|(a, _), (b, _)| a.cmp(b));
        jobs.into_iter().map(|(_, job)| job).collect()
    }
}

/// The first instant after the step of the order that `run_at` is in; none if only all that is due says who goes first.
fn step_end(order: Order, run_at: Timestamp) -> Option<Timestamp> {
    match order {
        Order::Time { step_millis } => {
            let step = step_millis.max(1) as i64;
            Some(Timestamp::from_millis((run_at.millis().div_euclid(step) + 1) * step))
        }
        Order::Priority { .. } => None,
    }
}

/// When `job` is due, if it is of those that `query` asks for.
fn asked(query: &DueQuery, job: &Job) -> Option<Timestamp> {
    let spec = &job.spec;
    let is_asked = spec.queue == query.queue
        && spec.critical == query.critical
        && query.types.contains(&spec.job_type)
        && query.partition.as_ref().is_none_or(|name| *name == spec.partition);
    job.life.run_at().filter(|_| is_asked)
}

fn holds(query: &DueQuery, bucket: &Bucket) -> bool {
    bucket.critical == query.critical
        && bucket.is_of(&query.types)
        && query.partition.as_ref().is_none_or(|name| *name == bucket.partition)
}

impl DynamoStore {
    pub(super) async fn due_pages(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        // What is open is read once for all questions of one queue.
        let mut known: BTreeMap<(&QueueName, Hour), Open> = BTreeMap::new();
        let mut pages = Vec::with_capacity(queries.len());
        for query in queries {
            let hour = Hour::of(query.until);
            let open = match known.entry((&query.queue, hour)) {
                Entry::Occupied(open) => open.into_mut(),
                Entry::Vacant(place) => {
                    let late = self.open(&query.queue, None, None, true).await?;
                    place.insert(Open {
                        late,
                        due: self.open(&query.queue, None, Some(hour), false).await?,
                    })
                }
            };
            pages.push(self.due_page(query, &open.late, &open.due).await?);
        }
        Ok(pages)
    }

    pub(super) async fn count_due_jobs(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        most: u32,
    ) -> Result<BTreeMap<TypeName, u64>, StoreError> {
        let mut counts = BTreeMap::new();
        let mut left = most;
        for critical in [true, false] {
            let (order, types) = (Order::Time { step_millis: 0 }, types.to_vec());
            let query = DueQuery {
                queue: queue.clone(),
                critical,
                types,
                partition: None,
                order,
                until,
                after: None,
                limit: left,
            };
            for job in self.due_pages(&[query]).await?.into_iter().flat_map(|page| page.jobs) {
                *counts.entry(job.spec.job_type.clone()).or_default() += 1;
                left -= 1;
            }
            if left == 0 {
                break;
            }
        }
        Ok(counts)
    }

    async fn due_page(
        &self,
        query: &DueQuery,
        late: &[Bucket],
        open: &[Bucket],
    ) -> Result<DuePage, StoreError> {
        if query.types.is_empty() {
            return Ok(DuePage::default());
        }
        let mut found = Found { query, jobs: BTreeMap::new(), next_due: None };
        let late = late.iter().filter(|bucket| holds(query, bucket));
        let pages = future::try_join_all(
            late.map(|bucket| self.read_whole(Reader::new(self, bucket.clone(), None, None))),
        )
        .await?;
        for seen in pages {
            found.add(seen);
        }
        // What comes before the step of the page's start was on an earlier page.
        let from = query.after.as_ref().and_then(|after| match query.order {
            Order::Time { step_millis } => {
                let step = step_millis.max(1) as i64;
                Some(Timestamp::from_millis(after.run_at.millis().div_euclid(step) * step))
            }
            Order::Priority { .. } => None,
        });
        let mut index_partitions: BTreeMap<&Partition, PartitionScan<'_>> = BTreeMap::new();
        for bucket in open.iter().filter(|bucket| {
            holds(query, bucket) && from.is_none_or(|from| bucket.hour >= Hour::of(from))
        }) {
            let start = Some(bucket.hour.start());
            let index_partition =
                index_partitions.entry(&bucket.index_partition).or_insert_with(|| PartitionScan {
                    buckets: VecDeque::new(),
                    reader: None,
                    read_until: start,
                });
            index_partition.buckets.push_back(bucket.clone());
        }
        let page = (query.limit + 64).min(PAGE);
        loop {
            let read_until = index_partitions
                .values()
                .filter_map(|index_partition| index_partition.read_until)
                .min();
            if read_until.is_none() || found.complete(read_until).len() > query.limit as usize {
                let complete = found.complete(read_until);
                let more = complete.len() > query.limit as usize;
                let jobs = complete.into_iter().take(query.limit as usize).cloned().collect();
                let next_due = self.next_due(query, open, found.next_due).await?;
                return Ok(DuePage { jobs, more, next_due });
            }
            let behind = index_partitions
                .values_mut()
                .filter(|index_partition| index_partition.read_until == read_until);
            let pages = future::try_join_all(
                behind
                    .map(|index_partition| self.read_on(index_partition, from, query.until, page)),
            )
            .await?;
            for seen in pages {
                found.add(seen);
            }
        }
    }

    /// Everything that `reader` comes by.
    async fn read_whole(&self, mut reader: Reader<'_>) -> Result<Vec<SeenPage>, StoreError> {
        let mut all = Vec::new();
        while let Some(seen) = reader.page(PAGE).await? {
            all.extend(seen);
        }
        Ok(all)
    }

    /// The next entries of an index partition.
    async fn read_on<'a>(
        &'a self,
        index_partition: &mut PartitionScan<'a>,
        from: Option<Timestamp>,
        until: Timestamp,
        page: u32,
    ) -> Result<Vec<SeenPage>, StoreError> {
        if index_partition.reader.is_none() {
            let Some(bucket) = index_partition.buckets.pop_front() else {
                index_partition.read_until = None;
                return Ok(Vec::new());
            };
            // A whole hour that is over is read to its end, so that it can be closed.
            let until = Some(until).filter(|until| *until < bucket.hour.end());
            index_partition.reader = Some(Reader::new(self, bucket, from, until));
        }
        let reader = index_partition.reader.as_mut().expect("it was just made");
        match reader.page(page).await? {
            Some(seen) if !reader.is_done() => {
                index_partition.read_until = Some(reader.read_until());
                Ok(seen)
            }
            seen => {
                index_partition.reader = None;
                index_partition.read_until =
                    index_partition.buckets.front().map(|bucket| bucket.hour.start());
                Ok(seen.unwrap_or_default())
            }
        }
    }

    /// The earliest due time after the question's `until`, given the earliest that was met on the way.
    async fn next_due(
        &self,
        query: &DueQuery,
        open: &[Bucket],
        mut next: Option<Timestamp>,
    ) -> Result<Option<Timestamp>, StoreError> {
        let hour = Hour::of(query.until);
        let present = open.iter().filter(|bucket| bucket.hour == hour && holds(query, bucket));
        let first =
            future::try_join_all(present.map(|bucket| self.first_due(query, bucket, next))).await?;
        next = first.into_iter().flatten().chain(next).min();
        if next.is_some_and(|next| next < hour.end()) {
            return Ok(next);
        }
        for bucket in self.open(&query.queue, Some(hour.next()), None, false).await? {
            if next.is_some_and(|next| next < bucket.hour.start()) {
                break;
            }
            if holds(query, &bucket) {
                next = self.first_due(query, &bucket, next).await?;
            }
        }
        Ok(next)
    }

    /// The same, with what one bucket has after `until`.
    async fn first_due(
        &self,
        query: &DueQuery,
        bucket: &Bucket,
        mut next: Option<Timestamp>,
    ) -> Result<Option<Timestamp>, StoreError> {
        let after = Timestamp::from_millis(query.until.millis() + 1);
        let mut reader = Reader::new(self, bucket.clone(), Some(after), None);
        let mut size = 8;
        while let Some(seen) = reader.page(size).await? {
            let due = seen
                .iter()
                .filter_map(|seen| asked(query, seen.job.as_ref()?))
                .filter(|run_at| *run_at > query.until);
            next = next.into_iter().chain(due).min();
            if next.is_some_and(|next| next < reader.read_until()) {
                break;
            }
            size = (size * 4).min(PAGE);
        }
        Ok(next)
    }

    pub(super) async fn waiting_partitions(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        let mut buckets = self.open(queue, None, None, false).await?;
        buckets.extend(self.open(queue, None, None, true).await?);
        buckets.retain(|bucket| {
            bucket.is_of(types) && after.is_none_or(|after| after < bucket.partition.as_str())
        });
        let names: BTreeSet<String> =
            buckets.iter().map(|bucket| bucket.partition.clone()).collect();
        let mut waiting = Vec::new();
        for name in names {
            if waiting.len() >= limit {
                break;
            }
            if self
                .has_waiting(
                    queue,
                    types,
                    &name,
                    buckets.iter().filter(|bucket| bucket.partition == name),
                )
                .await?
            {
                waiting.push(name);
            }
        }
        Ok(waiting)
    }

    /// Whether a job waits in one of `buckets`, which are of a partition.
    async fn has_waiting(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        partition: &str,
        buckets: impl Iterator<Item = &Bucket>,
    ) -> Result<bool, StoreError> {
        for bucket in buckets {
            let mut reader = Reader::new(self, bucket.clone(), None, None);
            let mut size = 8;
            while let Some(seen) = reader.page(size).await? {
                let waits = |job: &Job| {
                    job.life.run_at().is_some()
                        && job.spec.queue == *queue
                        && types.contains(&job.spec.job_type)
                        && job.spec.partition == partition
                };
                if seen.iter().filter_map(|seen| seen.job.as_ref()).any(waits) {
                    return Ok(true);
                }
                size = (size * 4).min(PAGE);
            }
        }
        Ok(false)
    }

    pub(super) async fn running_jobs(
        &self,
        queue: &QueueName,
        after: Option<&JobId>,
        limit: usize,
    ) -> Result<Vec<Job>, StoreError> {
        let mut buckets = self.open(queue, None, None, false).await?;
        buckets.extend(self.open(queue, None, None, true).await?);
        let mut running: BTreeMap<JobId, Job> = BTreeMap::new();
        for bucket in buckets {
            let reader = Reader::new(self, bucket, None, None).with_running();
            let jobs = self.read_whole(reader).await?.into_iter().filter_map(|seen| seen.job);
            let jobs = jobs.filter(|job| job.life.running().is_some() && job.spec.queue == *queue);
            running.extend(
                jobs.filter(|job| after.is_none_or(|after| *after < job.id))
                    .map(|job| (job.id.clone(), job)),
            );
        }
        Ok(running.into_values().take(limit).collect())
    }
}
