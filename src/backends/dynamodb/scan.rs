//! Scans of due jobs: every index partition is read once, by pages, without an order.
//!
//! The partitions that are the furthest behind are read next, so that the scan as a whole advances
//! in time, and at most [`MAX_CONCURRENT_READS`] pages are in memory.

use std::collections::{BTreeMap, VecDeque};

use async_trait::async_trait;
use futures_util::future;

use super::{
    DynamoStore,
    bucket::Bucket,
    due::PAGE_ENTRIES,
    key::{Hour, Partition},
    partition::{Reader, SeenEntry},
    stream::Stream,
};
use tidegate_core::{
    job::{Job, JobId},
    port::{
        StoreError,
        job_store::{DueRange, DueScan, ScanPage, ScanQuery},
    },
    time::Timestamp,
};

/// Pages of index partitions that are read at once.
const MAX_CONCURRENT_READS: usize = 8;

/// A scan of the index partitions of a queue.
pub(super) struct TableScan<'a> {
    store: &'a DynamoStore,
    query: ScanQuery,
    /// What is left to read; none before the registry of open buckets was read.
    left: Option<Left<'a>>,
}

/// What a scan has still to read.
struct Left<'a> {
    /// The late buckets, which are read first: their entries may be due at any time.
    late: VecDeque<Reader<'a>>,
    streams: Vec<Stream<'a>>,
}

impl<'a> TableScan<'a> {
    pub(super) fn new(store: &'a DynamoStore, query: ScanQuery) -> Self {
        Self { store, query, left: None }
    }

    async fn begin(&self) -> Result<Left<'a>, StoreError> {
        let (store, ScanQuery { queue, types, ranges, page }) = (self.store, &self.query);
        let (Some(first), Some(last), false) = (ranges.first(), ranges.last(), types.is_empty())
        else {
            return Ok(Left { late: VecDeque::new(), streams: Vec::new() });
        };
        let late = store.open(queue, None, None, true).await?;
        let late = late.into_iter().filter(|bucket| bucket.is_of(types));
        let late = late.map(|bucket| Reader::new(store, bucket, None, None)).collect();
        let mut streams: BTreeMap<Partition, Stream<'a>> = BTreeMap::new();
        let (from, until) = (first.from.map(Hour::of), Some(Hour::of(last.until)));
        for bucket in store.open(queue, from, until, false).await? {
            if !bucket.is_of(types) {
                continue;
            }
            for range in self.ranges_in(&bucket) {
                streams
                    .entry(bucket.index_partition.clone())
                    .or_insert_with(|| Stream::of(&bucket, None, *page))
                    .add_range(bucket.clone(), *range);
            }
        }
        Ok(Left { late, streams: streams.into_values().collect() })
    }

    /// The ranges of the scan that the hour of `bucket` has a part of.
    fn ranges_in(&self, bucket: &Bucket) -> &[DueRange] {
        let ranges = &self.query.ranges;
        let first = ranges.partition_point(|range| range.until < bucket.hour.start());
        let is_before = |range: &DueRange| range.from.is_none_or(|from| from < bucket.hour.end());
        let count = ranges[first..].partition_point(is_before);
        &ranges[first..first + count]
    }

    /// The jobs of the scan among those that were seen.
    fn jobs(&self, seen: impl Iterator<Item = SeenEntry>) -> Vec<Job> {
        let query = &self.query;
        let is_of = |job: &Job| {
            job.life.run_at().is_some_and(|at| query.contains(at))
                && job.spec.queue == query.queue
                && query.types.contains(&job.spec.job_type)
        };
        let found = seen.filter_map(|seen| seen.job).filter(is_of);
        // A job may have several entries.
        let jobs: BTreeMap<JobId, Job> = found.map(|job| (job.id.clone(), job)).collect();
        jobs.into_values().collect()
    }
}

#[async_trait]
impl DueScan for TableScan<'_> {
    async fn next(&mut self) -> Result<Option<ScanPage>, StoreError> {
        let mut left = match self.left.take() {
            Some(left) => left,
            None => self.begin().await?,
        };
        if let Some(mut reader) = left.late.pop_front() {
            let seen = reader.page(PAGE_ENTRIES).await?.unwrap_or_default();
            if !reader.is_done() {
                left.late.push_front(reader);
            }
            self.left = Some(left);
            let from = self.query.ranges.first().and_then(|range| range.from);
            let read_until = Some(from.unwrap_or(Timestamp::from_millis(i64::MIN)));
            return Ok(Some(ScanPage { jobs: self.jobs(seen.into_iter()), read_until }));
        }
        left.streams.retain(|stream| stream.read_until().is_some());
        if left.streams.is_empty() {
            self.left = Some(left);
            return Ok(None);
        }
        left.streams.sort_by_key(Stream::read_until);
        let (store, last) = (self.store, self.query.ranges.last());
        let until = last.map_or(Timestamp::MAX, |range| range.until);
        let behind = left.streams.iter_mut().take(MAX_CONCURRENT_READS);
        let pages = future::try_join_all(behind.map(|stream| stream.read(store, until))).await?;
        let read_until = left.streams.iter().filter_map(Stream::read_until).min();
        let jobs = self.jobs(pages.into_iter().flatten());
        self.left = Some(left);
        Ok(Some(ScanPage { jobs, read_until }))
    }

    async fn leave(self: Box<Self>) {
        let Some(Left { late, streams }) = self.left else { return };
        let late = future::join_all(late.into_iter().map(Reader::leave));
        future::join(late, future::join_all(streams.into_iter().map(Stream::leave))).await;
    }
}
