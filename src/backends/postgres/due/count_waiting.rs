//! How many jobs wait in each partition.

use super::{MAX_STREAMS, STREAMS, Stream, stream_columns, streams_behind};
use crate::postgres::{PostgresStore, connect::Param, row, row::job_columns, text};
use tidegate_core::{
    job::{QueueName, TypeName},
    port::{StoreError, job_store::WaitingPage},
    queue::waiting::WaitingCount,
    time::Timestamp,
};

/// Jobs of a stream that are read. The weight of the others is the mean of theirs.
const SAMPLE: i64 = 4;

/// How many jobs of each stream are due, up to a bound, and the earliest due time.
pub(in crate::postgres) const COUNT: &str = "SELECT w.n, c.jobs, c.first \
     FROM unnest($2::int[], $3::text[], $4::int[], $5::int[]) w(n, partition, type, priority) \
     CROSS JOIN LATERAL (SELECT count(*) AS jobs, min(run_at) AS first FROM (SELECT run_at \
     FROM jobs WHERE state = 0 AND queue = $1 AND NOT critical AND partition = w.partition \
     AND type = w.type AND priority = w.priority AND run_at <= $6 ORDER BY run_at LIMIT $7) d) c";

/// The earliest due jobs of each stream.
pub(in crate::postgres) const FIRST: &str = concat!(
    "SELECT ",
    job_columns!("j"),
    ", w.n FROM unnest($2::int[], $3::text[], $4::int[], $5::int[]) \
     w(n, partition, type, priority) \
     CROSS JOIN LATERAL (SELECT id, spec, life, data_kind, data_bytes, data FROM jobs \
     WHERE state = 0 AND queue = $1 AND NOT critical AND partition = w.partition \
     AND type = w.type AND priority = w.priority AND run_at <= $6 ORDER BY run_at LIMIT $7) j"
);

/// What is known about a stream.
#[derive(Clone, Copy, Default)]
struct Counted {
    jobs: i64,
    first: Option<i64>,
    /// The weight of the jobs that were read, and their number.
    sample: (u64, u64),
}

impl PostgresStore {
    /// A page of the partitions with due jobs. It counts index entries, and reads a few jobs of
    /// each partition.
    pub(in crate::postgres) async fn waiting_counts(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        (until, after, limit): (Timestamp, Option<&str>, u32),
        most: u32,
    ) -> Result<WaitingPage, StoreError> {
        let names = self.names.with(&self.readers, [queue], types).await?;
        let (Some(queue), types) = (names.queue(queue), names.types(types)) else {
            return Ok(WaitingPage::default());
        };
        let mut page = WaitingPage::default();
        // Behind every stream of the partition.
        let edge = if after.is_some() { i32::MAX } else { i32::MIN };
        let start = after.map(text::stored).unwrap_or_default().into_owned();
        let mut last = Stream { partition: start, job_type: edge, priority: edge };
        let mut partitions: Vec<(String, Vec<Stream>)> = Vec::new();
        // One more than the page has shows whether there are more.
        while partitions.len() <= limit as usize {
            let streams = streams_behind(self, STREAMS, queue, false, &last).await?;
            let is_last = streams.len() < MAX_STREAMS as usize;
            page.read += streams.len() as u64;
            for stream in streams {
                last = stream.clone();
                if partitions.last().is_none_or(|(name, _)| *name != stream.partition) {
                    partitions.push((stream.partition.clone(), Vec::new()));
                }
                let is_of = types.contains(&stream.job_type);
                if let Some((_, streams)) = partitions.last_mut().filter(|_| is_of) {
                    streams.push(stream);
                }
            }
            if is_last {
                break;
            }
        }
        if partitions.len() > limit as usize {
            partitions.truncate(limit as usize);
            let name = partitions.last().map(|(name, _)| name);
            page.next = name.map(|name| text::original(name).into_owned());
        }
        let streams: Vec<Stream> =
            partitions.iter().flat_map(|(_, streams)| streams).cloned().collect();
        let counted = self.counted(queue, &streams, until, most).await?;
        let mut rest = &counted[..];
        for (name, streams) in &partitions {
            let (own, others) = rest.split_at(streams.len());
            rest = others;
            if let Some(count) = sum(own, most) {
                page.read += u64::from(count.jobs);
                page.counts.push((text::original(name).into_owned(), count));
            }
        }
        Ok(page)
    }

    async fn counted(
        &self,
        queue: i32,
        streams: &[Stream],
        until: Timestamp,
        most: u32,
    ) -> Result<Vec<Counted>, StoreError> {
        let mut counted = vec![Counted::default(); streams.len()];
        let numbers: Vec<i32> = (0..streams.len() as i32).collect();
        let (partitions, types, priorities) = stream_columns(streams);
        // One more shows whether there are more.
        let (until, bound) = (until.millis(), i64::from(most) + 1);
        let params: [Param<'_>; 7] =
            [&queue, &numbers, &partitions, &types, &priorities, &until, &bound];
        for row in self.readers.query(COUNT, &params).await? {
            let n: i32 = row::column(&row, 0)?;
            let counted = &mut counted[n as usize];
            (counted.jobs, counted.first) = (row::column(&row, 1)?, row::column(&row, 2)?);
        }
        let params: [Param<'_>; 7] =
            [&queue, &numbers, &partitions, &types, &priorities, &until, &SAMPLE];
        let now = self.clock.now();
        for row in self.readers.query(FIRST, &params).await? {
            let n: i32 = row::column(&row, 6)?;
            if let Ok(job) = row::stored(&row, now) {
                let (weight, jobs) = &mut counted[n as usize].sample;
                (*weight, *jobs) = (*weight + u64::from(job.spec.weight), *jobs + 1);
            }
        }
        Ok(counted)
    }
}

/// The sum of the streams of one partition, at most `most` jobs.
fn sum(streams: &[Counted], most: u32) -> Option<WaitingCount> {
    let mut sum: Option<WaitingCount> = None;
    let mut left = i64::from(most);
    for stream in streams {
        let Some(first) = stream.first else { continue };
        let oldest_due_at = Timestamp::from_millis(first);
        let (at_least, jobs) = (stream.jobs > left, stream.jobs.min(left));
        left -= jobs;
        if jobs == 0 {
            if let Some(sum) = &mut sum {
                sum.at_least |= at_least;
                sum.oldest_due_at = sum.oldest_due_at.min(oldest_due_at);
            }
            continue;
        }
        let (weight, read) = stream.sample;
        let number = jobs.unsigned_abs();
        // Of jobs that cannot be read, each counts as one.
        let weight = (weight * number + read / 2).checked_div(read).unwrap_or(number);
        let jobs = u32::try_from(jobs).unwrap_or(u32::MAX);
        let count = WaitingCount { jobs, weight, oldest_due_at, at_least };
        match &mut sum {
            Some(sum) => *sum += count,
            None => sum = Some(count),
        }
    }
    sum
}
