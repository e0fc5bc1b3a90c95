//! Scans of due jobs: every index partition is read once, by pages, without an order.
//!
//! The partitions that are the furthest behind are read next, so that the scan as a whole advances
//! in time, and at most [`MAX_CONCURRENT_READS`] pages are in memory.

use std::collections::{BTreeMap, VecDeque};

use async_trait::async_trait;
use futures_util::future;

use super::{
    DynamoStore,
    due::PAGE_ENTRIES,
    key::{Hour, Partition},
    partition::{Reader, SeenEntry},
    stream::Stream,
};
use tidegate_core::{
    job::{Job, JobId},
    port::{
        StoreError,
        job_store::{DueScan, ScanPage, ScanQuery},
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
        let (store, ScanQuery { queue, types, from, until }) = (self.store, &self.query);
        if types.is_empty() {
            return Ok(Left { late: VecDeque::new(), streams: Vec::new() });
        }
        let late = store.open(queue, None, None, true).await?;
        let late = late.into_iter().filter(|bucket| bucket.is_of(types));
        let late = late.map(|bucket| Reader::new(store, bucket, None, None)).collect();
        let mut streams: BTreeMap<Partition, Stream<'a>> = BTreeMap::new();
        for bucket in store.open(queue, from.map(Hour::of), Some(Hour::of(*until)), false).await? {
            if bucket.is_of(types) {
                let partition = bucket.index_partition.clone();
                streams
                    .entry(partition)
                    .or_insert_with(|| Stream::of(&bucket, *from, PAGE_ENTRIES))
                    .add(bucket);
            }
        }
        Ok(Left { late, streams: streams.into_values().collect() })
    }

    /// The jobs of the scan among those that were seen.
    fn jobs(&self, seen: impl Iterator<Item = SeenEntry>) -> Vec<Job> {
        let ScanQuery { queue, types, from, until } = &self.query;
        let is_of = |job: &Job| {
            let due = job
                .life
                .run_at()
                .is_some_and(|at| at <= *until && from.is_none_or(|from| from < at));
            due && job.spec.queue == *queue && types.contains(&job.spec.job_type)
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
        let (from, until) = (self.query.from, self.query.until);
        if let Some(mut reader) = left.late.pop_front() {
            let seen = reader.page(PAGE_ENTRIES).await?.unwrap_or_default();
            if !reader.is_done() {
                left.late.push_front(reader);
            }
            self.left = Some(left);
            let read_until = Some(from.unwrap_or(Timestamp::from_millis(i64::MIN)));
            return Ok(Some(ScanPage { jobs: self.jobs(seen.into_iter()), read_until }));
        }
        left.streams.retain(|stream| stream.read_until().is_some());
        if left.streams.is_empty() {
            self.left = Some(left);
            return Ok(None);
        }
        left.streams.sort_by_key(Stream::read_until);
        let store = self.store;
        let behind = left.streams.iter_mut().take(MAX_CONCURRENT_READS);
        let pages = future::try_join_all(behind.map(|stream| stream.read(store, until))).await?;
        let read_until = left.streams.iter().filter_map(Stream::read_until).min();
        let jobs = self.jobs(pages.into_iter().flatten());
        self.left = Some(left);
        Ok(Some(ScanPage { jobs, read_until }))
    }
}
