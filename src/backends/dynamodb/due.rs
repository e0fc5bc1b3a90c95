//! Due jobs in the order of a queue.
//!
//! The entries of an index partition are read by instant, only as far as the order requires. In an
//! order by time, a step is complete once every index partition was read past it. An order by
//! priority requires every due entry. Late buckets are always read as a whole.

use std::collections::{BTreeMap, VecDeque, btree_map::Entry};

use futures_util::future;

use super::{
    DynamoStore,
    bucket::Bucket,
    key::{Hour, Partition},
    partition::{Reader, SeenEntry},
};
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName},
    port::{
        StoreError,
        job_store::{DuePage, DueQuery},
    },
    queue::{Order, order::Position},
    time::Timestamp,
};

/// Maximum entries that one request reads.
pub(super) const PAGE_ENTRIES: u32 = 1000;

/// The open buckets of a queue up to an hour.
struct OpenBuckets {
    late: Vec<Bucket>,
    due: Vec<Bucket>,
}

/// The buckets of one index partition in order, and how far they were read.
pub(super) struct PartitionScan<'a> {
    buckets: VecDeque<Bucket>,
    reader: Option<Reader<'a>>,
    read_until: Option<Timestamp>,
}

impl PartitionScan<'_> {
    /// A scan that begins with `first`, which has still to be added.
    pub(super) fn at(first: &Bucket) -> Self {
        let read_until = Some(first.hour.start());
        Self { buckets: VecDeque::new(), reader: None, read_until }
    }

    /// Adds the next bucket.
    pub(super) fn add(&mut self, bucket: Bucket) {
        self.buckets.push_back(bucket);
    }

    /// Everything before this instant was read; none if everything was.
    pub(super) fn read_until(&self) -> Option<Timestamp> {
        self.read_until
    }
}

/// The jobs that a query has found so far.
struct Found<'q> {
    query: &'q DueQuery,
    jobs: BTreeMap<JobId, Job>,
    next_due: Option<Timestamp>,
}

impl Found<'_> {
    fn add(&mut self, seen: Vec<SeenEntry>) {
        for job in seen.into_iter().filter_map(|seen| seen.job) {
            let Some(run_at) = matching_due_time(self.query, &job) else {
                continue;
            };
            if run_at <= self.query.until {
                self.jobs.insert(job.id.clone(), job);
            } else {
                self.next_due = self.next_due.into_iter().chain([run_at]).min();
            }
        }
    }

    /// The jobs after the start of the page, in order, as far as no unread job can precede them.
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

/// The first instant after the order's step that contains `run_at`; none if the order depends on
/// all due jobs.
fn step_end(order: Order, run_at: Timestamp) -> Option<Timestamp> {
    match order {
        Order::Time { step_millis } => {
            let step = step_millis.max(1) as i64;
            Some(Timestamp::from_millis((run_at.millis().div_euclid(step) + 1) * step))
        }
        Order::Priority { .. } => None,
    }
}

/// When `job` is due, if it matches `query`.
fn matching_due_time(query: &DueQuery, job: &Job) -> Option<Timestamp> {
    let spec = &job.spec;
    let matches = spec.queue == query.queue
        && spec.critical == query.critical
        && query.types.contains(&spec.job_type)
        && query.partition.as_ref().is_none_or(|name| *name == spec.partition);
    job.life.run_at().filter(|_| matches)
}

/// Whether `bucket` may have jobs that match `query`.
fn may_hold(query: &DueQuery, bucket: &Bucket) -> bool {
    bucket.critical == query.critical
        && bucket.is_of(&query.types)
        && query.partition.as_ref().is_none_or(|name| *name == bucket.partition)
}

/// The start of the order's step in which the page begins; earlier steps were on earlier pages.
fn page_start(query: &DueQuery) -> Option<Timestamp> {
    query.after.as_ref().and_then(|after| match query.order {
        Order::Time { step_millis } => {
            let step = step_millis.max(1) as i64;
            Some(Timestamp::from_millis(after.run_at.millis().div_euclid(step) * step))
        }
        Order::Priority { .. } => None,
    })
}

/// A scan of each index partition in `open` that may have jobs for the page, from `from` on.
fn scans<'a>(query: &DueQuery, open: &[Bucket], from: Option<Timestamp>) -> Vec<PartitionScan<'a>> {
    let mut scans: BTreeMap<&Partition, PartitionScan<'_>> = BTreeMap::new();
    let is_needed = |bucket: &&Bucket| {
        may_hold(query, bucket) && from.is_none_or(|from| bucket.hour >= Hour::of(from))
    };
    for bucket in open.iter().filter(is_needed) {
        let scan =
            scans.entry(&bucket.index_partition).or_insert_with(|| PartitionScan::at(bucket));
        scan.add(bucket.clone());
    }
    scans.into_values().collect()
}

impl DynamoStore {
    pub(super) async fn due_pages(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        // Open buckets are read once for all queries of a queue.
        let mut known: BTreeMap<(&QueueName, Hour), OpenBuckets> = BTreeMap::new();
        let mut pages = Vec::with_capacity(queries.len());
        for query in queries {
            let hour = Hour::of(query.until);
            let open = match known.entry((&query.queue, hour)) {
                Entry::Occupied(open) => open.into_mut(),
                Entry::Vacant(place) => {
                    let late = self.open(&query.queue, None, None, true).await?;
                    place.insert(OpenBuckets {
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
        let late = late.iter().filter(|bucket| may_hold(query, bucket));
        let pages = future::try_join_all(
            late.map(|bucket| self.read_whole(Reader::new(self, bucket.clone(), None, None))),
        )
        .await?;
        for seen in pages {
            found.add(seen);
        }
        let from = page_start(query);
        let mut scans = scans(query, open, from);
        let page = (query.limit + 64).min(PAGE_ENTRIES);
        loop {
            let read_until = scans.iter().filter_map(|scan| scan.read_until).min();
            if read_until.is_none() || found.complete(read_until).len() > query.limit as usize {
                let complete = found.complete(read_until);
                let more = complete.len() > query.limit as usize;
                let jobs: Vec<Job> =
                    complete.into_iter().take(query.limit as usize).cloned().collect();
                let next = jobs.last().filter(|_| more).map(Position::of);
                let next_due = self.next_due(query, open, found.next_due).await?;
                return Ok(DuePage { jobs, next, next_due });
            }
            let behind = scans.iter_mut().filter(|scan| scan.read_until == read_until);
            let pages = future::try_join_all(
                behind.map(|scan| self.read_on(scan, from, query.until, page)),
            )
            .await?;
            for seen in pages {
                found.add(seen);
            }
        }
    }

    /// All entries of `reader`.
    pub(super) async fn read_whole(
        &self,
        mut reader: Reader<'_>,
    ) -> Result<Vec<SeenEntry>, StoreError> {
        let mut all = Vec::new();
        while let Some(seen) = reader.page(PAGE_ENTRIES).await? {
            all.extend(seen);
        }
        Ok(all)
    }

    /// The next entries of an index partition.
    pub(super) async fn read_on<'a>(
        &'a self,
        scan: &mut PartitionScan<'a>,
        from: Option<Timestamp>,
        until: Timestamp,
        page: u32,
    ) -> Result<Vec<SeenEntry>, StoreError> {
        if scan.reader.is_none() {
            let Some(bucket) = scan.buckets.pop_front() else {
                scan.read_until = None;
                return Ok(Vec::new());
            };
            // A past hour is read to its end, so that its bucket can be closed.
            let until = Some(until).filter(|until| *until < bucket.hour.end());
            scan.reader = Some(Reader::new(self, bucket, from, until));
        }
        let reader = scan.reader.as_mut().expect("a reader was created above");
        match reader.page(page).await? {
            Some(seen) if !reader.is_done() => {
                scan.read_until = Some(reader.read_until());
                Ok(seen)
            }
            seen => {
                scan.reader = None;
                scan.read_until = scan.buckets.front().map(|bucket| bucket.hour.start());
                Ok(seen.unwrap_or_default())
            }
        }
    }

    /// The earliest due time after the query's `until`; `next` is the earliest one found so far.
    async fn next_due(
        &self,
        query: &DueQuery,
        open: &[Bucket],
        mut next: Option<Timestamp>,
    ) -> Result<Option<Timestamp>, StoreError> {
        let hour = Hour::of(query.until);
        let present = open.iter().filter(|bucket| bucket.hour == hour && may_hold(query, bucket));
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
            if may_hold(query, &bucket) {
                next = self.first_due(query, &bucket, next).await?;
            }
        }
        Ok(next)
    }

    /// The earlier of `next` and the earliest due time in `bucket` after the query's `until`.
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
                .filter_map(|seen| matching_due_time(query, seen.job.as_ref()?))
                .filter(|run_at| *run_at > query.until);
            next = next.into_iter().chain(due).min();
            if next.is_some_and(|next| next < reader.read_until()) {
                break;
            }
            size = (size * 4).min(PAGE_ENTRIES);
        }
        Ok(next)
    }
}
