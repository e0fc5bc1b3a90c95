//! How many jobs wait in each partition.

use rusqlite::{Connection, params};

use super::{Scan, Stream, next_partition};
use crate::sqlite::{
    error::Failure,
    names::Names,
    row::{self, RawText, select_jobs},
};
use tidegate_core::{
    job::{QueueName, TypeName},
    port::job_store::{DueQuery, WaitingPage},
    queue::{order::Order, waiting::WaitingCount},
    time::Timestamp,
};

/// Jobs of a stream that are read. The weight of the others is the mean of theirs.
const SAMPLE: i64 = 4;

/// How many jobs of a stream are due, up to a bound, and the earliest due time.
const COUNT: &str = "SELECT count(*), min(run_at) FROM ( \
     SELECT run_at FROM jobs INDEXED BY jobs_due \
     WHERE state = 0 AND queue = ?1 AND critical = 0 AND partition = ?2 AND type = ?3 \
     AND priority = ?4 AND run_at <= ?5 ORDER BY run_at LIMIT ?6)";
/// The earliest jobs of a stream.
const FIRST: &str = "SELECT n FROM jobs INDEXED BY jobs_due \
     WHERE state = 0 AND queue = ?1 AND critical = 0 AND partition = ?2 AND type = ?3 \
     AND priority = ?4 AND run_at <= ?5 ORDER BY run_at LIMIT ?6";

/// A page of the partitions with due jobs. It counts index entries, and reads a few jobs of each
/// partition.
pub(in crate::sqlite) fn count_waiting(
    db: &Connection,
    names: &Names,
    queue: &QueueName,
    types: &[TypeName],
    (until, after, limit): (Timestamp, Option<&str>, u32),
    most: u32,
) -> Result<WaitingPage, Failure> {
    let (Some(number), numbers) = (names.queue(queue), names.types(types)) else {
        return Ok(WaitingPage::default());
    };
    let query = &DueQuery {
        queue: queue.clone(),
        critical: false,
        types: types.to_vec(),
        partition: None,
        order: Order::Time { step_millis: 0 },
        until,
        after: None,
        limit,
        granted: None,
    };
    let scan = Scan { db, queue: number, query };
    let (mut page, mut looked_at) = (WaitingPage::default(), 0);
    let mut last = after.map(RawText::from);
    while let Some(partition) = next_partition(db, number, false, last.as_ref())? {
        if looked_at == limit {
            page.next = last.map(|name| name.shown());
            break;
        }
        looked_at += 1;
        let mut streams = Vec::new();
        scan.streams_of(&partition, &numbers, &mut streams)?;
        page.read += streams.len() as u64 + 1;
        if let Some(count) = of_streams(&scan, &streams, most)? {
            page.read += u64::from(count.jobs);
            page.counts.push((partition.shown(), count));
        }
        last = Some(partition);
    }
    Ok(page)
}

/// How many jobs of `streams`, which are those of one partition, are due.
fn of_streams(
    scan: &Scan<'_>,
    streams: &[Stream],
    most: u32,
) -> Result<Option<WaitingCount>, Failure> {
    let (db, until) = (scan.db, scan.query.until.millis());
    let mut find = db.prepare_cached(COUNT)?;
    let mut sum: Option<WaitingCount> = None;
    let mut left = i64::from(most);
    for stream in streams {
        let place = params![
            scan.queue,
            stream.partition,
            stream.job_type,
            stream.priority,
            until,
            // One more shows whether there are more.
            left + 1
        ];
        let (found, oldest): (i64, Option<i64>) =
            find.query_row(place, |row| Ok((row.get(0)?, row.get(1)?)))?;
        let Some(oldest) = oldest else { continue };
        let (at_least, jobs) = (found > left, found.min(left));
        if jobs > 0 {
            let mut weights = db.prepare_cached(FIRST)?;
            let of = params![
                scan.queue,
                stream.partition,
                stream.job_type,
                stream.priority,
                until,
                jobs.min(SAMPLE)
            ];
            let numbers = weights.query_map(of, |row| row.get(0))?;
            let weight = weight_of(db, &numbers.collect::<Result<Vec<i64>, _>>()?, jobs)?;
            let jobs = u32::try_from(jobs).unwrap_or(u32::MAX);
            let oldest_due_at = Timestamp::from_millis(oldest);
            let count = WaitingCount { jobs, weight, oldest_due_at, at_least };
            match &mut sum {
                Some(sum) => *sum += count,
                None => sum = Some(count),
            }
        } else if let Some(sum) = &mut sum {
            sum.at_least |= at_least;
            sum.oldest_due_at = sum.oldest_due_at.min(Timestamp::from_millis(oldest));
        }
        left -= jobs;
    }
    Ok(sum)
}

/// The weight of `jobs` jobs. These rows are a sample of them.
fn weight_of(db: &Connection, sample: &[i64], jobs: i64) -> Result<u64, Failure> {
    let mut find = db.prepare_cached(select_jobs!("WHERE n = ?1"))?;
    let (mut weight, mut read) = (0, 0);
    for n in sample {
        let mut rows = find.query([n])?;
        if let Some(job) = rows.next()?.map(row::readable).transpose()?.flatten() {
            (weight, read) = (weight + u64::from(job.spec.weight), read + 1);
        }
    }
    let jobs = jobs.unsigned_abs();
    // Of jobs that cannot be read, each counts as one.
    Ok((weight * jobs + read / 2).checked_div(read).unwrap_or(jobs))
}
