//! How many jobs are due, and which queues and partitions have due jobs.

use std::collections::{BTreeMap, BTreeSet};

use super::{MAX_STREAMS, STREAMS, Stream, stream, stream_columns, streams_behind};
use crate::postgres::{PostgresStore, connect::Param, row, text};
use tidegate_core::{
    job::{QueueName, TypeName},
    port::{
        StoreError,
        job_store::{MAX_LOOKED_AT, PartitionPage},
    },
    time::Timestamp,
};

/// Streams that one statement counts. Counting stops after the one that reaches the bound.
const COUNTED_STREAMS: usize = 16;

/// How many jobs of each stream are due, up to a bound.
pub(in crate::postgres) const COUNT: &str = "SELECT w.type, c.jobs \
     FROM unnest($3::text[], $4::int[], $5::int[]) w(partition, type, priority) \
     CROSS JOIN LATERAL (SELECT count(*) AS jobs FROM (SELECT 1 FROM jobs \
     WHERE state = 0 AND queue = $1 AND critical = $2 AND partition = w.partition \
     AND type = w.type AND priority = w.priority AND run_at <= $6 LIMIT $7) d) c";

/// The streams behind a place, each with its earliest due time.
pub(in crate::postgres) const FIRST_DUE: &str = "WITH RECURSIVE s(partition, type, priority, run_at) AS ( \
     (SELECT partition, type, priority, run_at FROM jobs \
     WHERE state = 0 AND queue = $1 AND critical = $2 \
     AND (partition, type, priority) > ($3::text, $4::int, $5::int) \
     ORDER BY partition, type, priority, run_at LIMIT 1) \
     UNION ALL SELECT n.* FROM s CROSS JOIN LATERAL ( \
     SELECT partition, type, priority, run_at FROM jobs \
     WHERE state = 0 AND queue = $1 AND critical = $2 \
     AND (partition, type, priority) > (s.partition, s.type, s.priority) \
     ORDER BY partition, type, priority, run_at LIMIT 1) n) \
     SELECT partition, type, priority, run_at FROM s LIMIT $6";

/// The queues with scheduled or running jobs.
pub(in crate::postgres) const ACTIVE: &str = "WITH RECURSIVE s(queue) AS ( \
     (SELECT queue FROM jobs WHERE state = 0 ORDER BY queue LIMIT 1) \
     UNION ALL SELECT n.queue FROM s CROSS JOIN LATERAL ( \
     SELECT queue FROM jobs WHERE state = 0 AND queue > s.queue ORDER BY queue LIMIT 1) n), \
     r(queue) AS ((SELECT queue FROM jobs WHERE state = 1 ORDER BY queue LIMIT 1) \
     UNION ALL SELECT n.queue FROM r CROSS JOIN LATERAL ( \
     SELECT queue FROM jobs WHERE state = 1 AND queue > r.queue ORDER BY queue LIMIT 1) n) \
     SELECT queue FROM s UNION SELECT queue FROM r";

/// The partitions that one walk through the streams has found, with their earliest due times.
struct Walk {
    critical: bool,
    last: Stream,
    found: BTreeMap<String, Timestamp>,
    /// Whether there are no more streams.
    ended: bool,
}

impl PostgresStore {
    /// How many jobs of each of `types` are due, at most `most` in all. It counts index entries
    /// and reads no job.
    pub(in crate::postgres) async fn due_counts(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        until: Timestamp,
        most: u32,
    ) -> Result<BTreeMap<TypeName, u64>, StoreError> {
        let names = self.names.with(&self.readers, [queue], types).await?;
        let mut counts = BTreeMap::new();
        let (Some(queue), numbers) = (names.queue(queue), names.types(types)) else {
            return Ok(counts);
        };
        let (mut left, until) = (u64::from(most), until.millis());
        for critical in [true, false] {
            let mut last =
                Stream { partition: String::new(), job_type: i32::MIN, priority: i32::MIN };
            loop {
                let streams = streams_behind(self, STREAMS, queue, critical, &last).await?;
                let is_last = streams.len() < MAX_STREAMS as usize;
                if let Some(stream) = streams.last() {
                    last = stream.clone();
                }
                let streams: Vec<Stream> = streams
                    .into_iter()
                    .filter(|stream| numbers.contains(&stream.job_type))
                    .collect();
                for some in streams.chunks(COUNTED_STREAMS) {
                    let (partitions, types, priorities) = stream_columns(some);
                    let bound = left as i64;
                    let params: [Param<'_>; 7] =
                        [&queue, &critical, &partitions, &types, &priorities, &until, &bound];
                    for row in self.readers.query(COUNT, &params).await? {
                        let (job_type, jobs): (i32, i64) =
                            (row::column(&row, 0)?, row::column(&row, 1)?);
                        let jobs = jobs.unsigned_abs().min(left);
                        left -= jobs;
                        if let Some(name) = names.type_name(job_type).filter(|_| jobs > 0) {
                            *counts.entry(name.clone()).or_default() += jobs;
                        }
                    }
                    if left == 0 {
                        return Ok(counts);
                    }
                }
                if is_last {
                    break;
                }
            }
        }
        Ok(counts)
    }

    /// The queues with running jobs or scheduled ones, due or not.
    pub(in crate::postgres) async fn queues_with_jobs(
        &self,
    ) -> Result<BTreeSet<QueueName>, StoreError> {
        let rows = self.readers.query(ACTIVE, &[]).await?;
        let numbers: Vec<i32> =
            rows.iter().map(|row| row::column(row, 0)).collect::<Result<_, _>>()?;
        let mut names = self.names.known();
        if numbers.iter().any(|number| names.queue_name(*number).is_none()) {
            names = self.names.refresh(&self.readers).await?;
        }
        Ok(numbers.into_iter().filter_map(|number| names.queue_name(number).cloned()).collect())
    }

    /// The partitions with jobs of `types` that are due at `until`.
    pub(in crate::postgres) async fn due_partitions(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        (until, after, limit): (Timestamp, Option<&str>, u32),
        skip: &BTreeSet<String>,
    ) -> Result<PartitionPage, StoreError> {
        let names = self.names.with(&self.readers, [queue], types).await?;
        let (Some(queue), types) = (names.queue(queue), names.types(types)) else {
            return Ok(PartitionPage::default());
        };
        let limit = limit as usize;
        // Behind every stream of the partition.
        let last = Stream {
            partition: after.map(text::stored).unwrap_or_default().into_owned(),
            job_type: if after.is_some() { i32::MAX } else { i32::MIN },
            priority: if after.is_some() { i32::MAX } else { i32::MIN },
        };
        let mut walks = [false, true].map(|critical| Walk {
            critical,
            last: last.clone(),
            found: BTreeMap::new(),
            ended: false,
        });
        // One more than the page has shows whether there are more.
        let wanted = limit * MAX_LOOKED_AT + 1;
        for walk in &mut walks {
            while !walk.ended && walk.found.len() <= wanted {
                self.walk_on(walk, queue, &types, skip).await?;
            }
        }
        // Partitions behind the last one of a walk that has not ended may be incomplete.
        let end = walks.iter().filter(|walk| !walk.ended).map(|walk| walk.last.partition.clone());
        let end = end.min();
        let mut found: BTreeMap<String, Timestamp> = BTreeMap::new();
        for walk in walks {
            for (name, at) in walk.found {
                if end.as_ref().is_none_or(|end| name < *end) {
                    let first = found.entry(name).or_insert(at);
                    *first = at.min(*first);
                }
            }
        }
        let found: Vec<(String, Timestamp)> =
            found.into_iter().map(|(name, at)| (text::original(&name).into_owned(), at)).collect();
        let due = found.iter().map(|(name, at)| (name.as_str(), *at));
        Ok(PartitionPage::of(due, until, limit))
    }

    async fn walk_on(
        &self,
        walk: &mut Walk,
        queue: i32,
        types: &[i32],
        skip: &BTreeSet<String>,
    ) -> Result<(), StoreError> {
        let Stream { partition, job_type, priority } = &walk.last;
        let params: [Param<'_>; 6] =
            [&queue, &walk.critical, partition, job_type, priority, &MAX_STREAMS];
        let rows = self.readers.query(FIRST_DUE, &params).await?;
        walk.ended = rows.len() < MAX_STREAMS as usize;
        for row in &rows {
            walk.last = stream(row)?;
            let Stream { partition, job_type, .. } = &walk.last;
            if !types.contains(job_type) || skip.contains(&*text::original(partition)) {
                continue;
            }
            let at = Timestamp::from_millis(row::column(row, 3)?);
            let first = walk.found.entry(partition.clone()).or_insert(at);
            *first = at.min(*first);
        }
        Ok(())
    }
}
