//! Due jobs in the order of a queue.
//!
//! A page is a merge of streams, one for each index partition. Each is read by small pages, and
//! only while one of its unread jobs may precede a job of the page. A stream of jobs of several
//! priorities is read to the end of the order's step, or to its own end in an order by priority.
//! Late buckets are always read as a whole.

use std::collections::{BTreeMap, HashMap, btree_map::Entry};

use futures_util::{StreamExt, TryStreamExt, future, stream};
use tokio::sync::OnceCell;

use super::{
    DynamoStore,
    bucket::Bucket,
    key::{Hour, Partition},
    partition::{Reader, SeenEntry},
    stream::{Bound, Stream},
};
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName},
    port::{
        StoreError,
        job_store::{DuePage, DueQuery},
    },
    queue::{
        Order,
        order::{OrderKey, Position},
    },
    time::Timestamp,
};

/// Maximum entries that one request reads.
pub(super) const PAGE_ENTRIES: u32 = 1000;
/// Entries that the first page of a stream has beyond its share of the page: some lead to no
/// candidate.
const PAGE_MARGIN: u32 = 8;
/// Streams that are read at once.
const MAX_CONCURRENT_READS: usize = 8;
/// Pages that are read at once.
const MAX_CONCURRENT_PAGES: usize = 8;
/// Jobs that a page holds in memory at most. With more, it consists of those that were read, though
/// unread ones may precede them: this takes as many jobs of one step that share an index partition
/// with jobs of other priorities.
const MAX_FOUND: usize = 50_000;

/// The open buckets of a queue up to an hour.
struct OpenBuckets {
    late: Vec<Bucket>,
    due: Vec<Bucket>,
    /// The first later hour with an open bucket, read by the first query that needs it.
    later: OnceCell<Option<Hour>>,
}

/// The jobs after the start of the page that a query has found so far.
struct Found<'q> {
    query: &'q DueQuery,
    jobs: BTreeMap<OrderKey, Job>,
    keys: HashMap<JobId, OrderKey>,
    after: Option<OrderKey>,
    next_due: Option<Timestamp>,
}

impl<'q> Found<'q> {
    fn new(query: &'q DueQuery) -> Self {
        let key = |last: &Position| query.order.key(last.priority, last.run_at, &last.id);
        let after = query.after.as_ref().map(key);
        Self { query, jobs: BTreeMap::new(), keys: HashMap::new(), after, next_due: None }
    }

    fn add(&mut self, seen: Vec<SeenEntry>) {
        for job in seen.into_iter().filter_map(|seen| seen.job) {
            let Some(run_at) = matching_due_time(self.query, &job) else {
                continue;
            };
            if run_at > self.query.until {
                self.next_due = self.next_due.into_iter().chain([run_at]).min();
                continue;
            }
            let key = self.query.order.key(job.spec.priority, run_at, &job.id);
            // A job may have several entries, and may change between two reads.
            if let Some(before) = self.keys.insert(job.id.clone(), key.clone()) {
                self.jobs.remove(&before);
            }
            if self.after.as_ref().is_none_or(|after| *after < key) {
                self.jobs.insert(key, job);
            }
        }
    }

    /// How many jobs of the page no unread job can precede, up to one more than it may have.
    fn complete(&self, bound: Option<&Bound>) -> usize {
        let precedes = |key: &&OrderKey| bound.is_none_or(|bound| precedes(key, bound));
        self.jobs.keys().take(self.query.limit as usize + 1).take_while(precedes).count()
    }

    /// Whether an unread job behind `bound` may still belong to the page.
    fn needs(&self, bound: &Bound) -> bool {
        let last = self.jobs.keys().nth(self.query.limit as usize);
        last.is_none_or(|last| !precedes(last, bound))
    }

    fn is_full(&self) -> bool {
        self.jobs.len() > MAX_FOUND
    }
}

/// Whether a job with this key comes before every job behind `bound`.
fn precedes(key: &OrderKey, (rank, tie): &Bound) -> bool {
    ((key.0, key.1, key.2), key.3.as_str()) < (*rank, tie.as_str())
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

/// The start of the order's step in which the page begins: every job of an earlier step was on an
/// earlier page.
fn page_start(query: &DueQuery) -> Option<Timestamp> {
    query.after.as_ref().and_then(|after| match query.order {
        Order::Time { step_millis } => {
            let step = step_millis.max(1) as i64;
            Some(Timestamp::from_millis(after.run_at.millis().div_euclid(step) * step))
        }
        Order::Priority { .. } => None,
    })
}

/// The instant from which the jobs of a stream may be on the page; none if it has no job of it.
fn stream_start(query: &DueQuery, priority: Option<i32>) -> Option<Timestamp> {
    let first = Timestamp::from_millis(i64::MIN);
    match (priority, &query.after) {
        (_, None) => Some(first),
        (None, Some(_)) => Some(page_start(query).unwrap_or(first)),
        (Some(priority), Some(after)) => Some(query.order.stream_start(priority, after)?.0),
    }
}

/// The streams of `open` that may have jobs of the page.
fn streams<'a>(query: &DueQuery, open: &[Bucket]) -> Vec<Stream<'a>> {
    let mut streams: BTreeMap<&Partition, (Timestamp, Vec<&Bucket>)> = BTreeMap::new();
    for bucket in open.iter().filter(|bucket| may_hold(query, bucket)) {
        let Some(from) = stream_start(query, bucket.priority) else { continue };
        if bucket.hour >= Hour::of(from) {
            let (_, buckets) =
                streams.entry(&bucket.index_partition).or_insert_with(|| (from, Vec::new()));
            buckets.push(bucket);
        }
    }
    let page = query.limit / streams.len().max(1) as u32 + PAGE_MARGIN;
    let stream = |(from, buckets): (Timestamp, Vec<&Bucket>)| {
        let from = Some(from).filter(|from| from.millis() > i64::MIN);
        let mut stream = Stream::of(buckets[0], from, page).of_candidates(&query.granted);
        for bucket in buckets {
            stream.add(bucket.clone());
        }
        stream
    };
    streams.into_values().map(stream).collect()
}

impl DynamoStore {
    pub(super) async fn due_pages(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        // Open buckets are read once for all queries of a queue.
        let mut known: BTreeMap<(&QueueName, Hour), OpenBuckets> = BTreeMap::new();
        for query in queries.iter().filter(|query| !query.types.is_empty()) {
            let hour = Hour::of(query.until);
            if let Entry::Vacant(place) = known.entry((&query.queue, hour)) {
                let late = self.open(&query.queue, None, None, true);
                let due = self.open(&query.queue, None, Some(hour), false);
                let (late, due) = future::try_join(late, due).await?;
                place.insert(OpenBuckets { late, due, later: OnceCell::new() });
            }
        }
        let pages = queries.iter().map(|query| {
            let open = known.get(&(&query.queue, Hour::of(query.until)));
            async move {
                match open.filter(|_| !query.types.is_empty()) {
                    Some(open) => self.due_page(query, open).await,
                    None => Ok(DuePage::default()),
                }
            }
        });
        let pages: Vec<_> = pages.collect();
        stream::iter(pages).buffered(MAX_CONCURRENT_PAGES).try_collect().await
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
                granted: None,
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

    async fn due_page(&self, query: &DueQuery, open: &OpenBuckets) -> Result<DuePage, StoreError> {
        let mut found = Found::new(query);
        let late = open.late.iter().filter(|bucket| may_hold(query, bucket));
        let late = late.map(|bucket| {
            let reader = Reader::new(self, bucket.clone(), None, None).behind_passed();
            reader.leaving_out(query.granted.clone())
        });
        for seen in future::try_join_all(late.map(|reader| self.read_whole(reader))).await? {
            found.add(seen);
        }
        let mut streams = streams(query, &open.due);
        loop {
            streams.sort_by_cached_key(|stream| {
                (stream.read_until().is_none(), stream.bound(query.order))
            });
            let bound = streams.first().and_then(|stream| stream.bound(query.order));
            let complete = found.complete(bound.as_ref());
            if bound.is_none() || complete > query.limit as usize || found.is_full() {
                break;
            }
            let is_needed = |stream: &&mut Stream<'_>| {
                stream.bound(query.order).is_some_and(|bound| found.needs(&bound))
            };
            let behind = streams.iter_mut().take_while(is_needed).take(MAX_CONCURRENT_READS);
            let pages =
                future::try_join_all(behind.map(|stream| stream.read(self, query.until))).await?;
            for seen in pages {
                found.add(seen);
            }
        }
        future::join_all(streams.into_iter().map(Stream::leave)).await;
        let more = found.jobs.len() > query.limit as usize;
        let jobs: Vec<Job> = found.jobs.into_values().take(query.limit as usize).collect();
        let next = jobs.last().filter(|_| more).map(Position::of);
        let next_due = match next {
            Some(_) => None,
            None => self.next_due(query, open, found.next_due).await?,
        };
        Ok(DuePage { jobs, next, next_due })
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

    /// The earliest due time after the query's `until`; `next` is the earliest one found so far. If
    /// it is in a later hour, that hour's start: a queue may have very many buckets there.
    async fn next_due(
        &self,
        query: &DueQuery,
        open: &OpenBuckets,
        mut next: Option<Timestamp>,
    ) -> Result<Option<Timestamp>, StoreError> {
        let hour = Hour::of(query.until);
        let present =
            open.due.iter().filter(|bucket| bucket.hour == hour && may_hold(query, bucket));
        next = self.first_due(query, present.cloned().collect(), next).await?;
        if next.is_some_and(|next| next < hour.end()) {
            return Ok(next);
        }
        let later = open.later.get_or_try_init(|| self.next_hour(&query.queue, hour)).await?;
        Ok(next.into_iter().chain(later.map(Hour::start)).min())
    }

    /// The earliest of `next` and the due times in `buckets` after the query's `until`.
    async fn first_due(
        &self,
        query: &DueQuery,
        buckets: Vec<Bucket>,
        next: Option<Timestamp>,
    ) -> Result<Option<Timestamp>, StoreError> {
        let first = buckets.into_iter().map(|bucket| self.first_due_in(query, bucket));
        let first: Vec<_> = first.collect();
        let first = stream::iter(first).buffer_unordered(MAX_CONCURRENT_READS);
        let first: Vec<Option<Timestamp>> = first.try_collect().await?;
        Ok(first.into_iter().flatten().chain(next).min())
    }

    /// The earliest due time in `bucket` after the query's `until`. It is that of a job's row or of
    /// an entry, whose job may have moved since: a caller that waits for it looks again for nothing.
    async fn first_due_in(
        &self,
        query: &DueQuery,
        bucket: Bucket,
    ) -> Result<Option<Timestamp>, StoreError> {
        let after = Timestamp::from_millis(query.until.millis() + 1);
        let mut reader = Reader::new(self, bucket, Some(after), None).for_times();
        let mut size = 1;
        while let Some(seen) = reader.page(size).await? {
            let due = |seen: &SeenEntry| match &seen.job {
                _ if seen.is_known_exhausted() => None,
                None => seen.is_entry().then_some(seen.at),
                Some(job) => matching_due_time(query, job).filter(|run_at| *run_at == seen.at),
            };
            let first = seen.iter().filter_map(due).find(|at| *at > query.until);
            if first.is_some() {
                return Ok(first);
            }
            size = (size * 8).min(PAGE_ENTRIES);
        }
        Ok(None)
    }
}
