//! Due jobs in the order of their queue, from one index for every order.
//!
//! ```text
//!   jobs_due: (queue, critical, partition, type, priority, run_at, id)
//!              └──────────── one stream ──────────────┘  └ in order ┘
//! ```
//!
//! Every order agrees with (due time, id) within a *stream*, so a page is a merge of streams by
//! [`Order::key`]. Each stream is found by one search in the index past the previous stream.

mod count;
mod count_waiting;
#[cfg(test)]
mod tests;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use rusqlite::{Connection, OptionalExtension, params};

pub(super) use count::{active_queues, count, partitions};
pub(super) use count_waiting::count_waiting;

use super::{
    error::Failure,
    job_store::MAX_UNREADABLE_ROWS,
    names::Names,
    row::{self, RawText, select_jobs},
};
use crate::unreadable::unreadable;
use tidegate_core::{
    job::JobId,
    port::job_store::{DuePage, DueQuery, StoreError},
    queue::order::{Order, OrderKey, Position},
    time::Timestamp,
};

/// The due jobs of one partition, type and priority.
struct Stream {
    partition: RawText,
    job_type: i64,
    priority: i32,
    /// The due time and id of the last job that was read.
    after: (i64, RawText),
    read: VecDeque<Entry>,
    /// Jobs that one statement reads. It doubles each time, because a stream that was used up is
    /// busy.
    chunk: usize,
    exhausted: bool,
}

/// A job of a stream: its key, its due time, and its row.
type Entry = (OrderKey, i64, i64);

/// The first type from a number on. With `(type, priority) > (?, ?)`, SQLite would read every job
/// of the old priority.
const NEXT_TYPE: &str = "SELECT type FROM jobs INDEXED BY jobs_due \
     WHERE state = 0 AND queue = ?1 AND critical = ?2 AND partition = ?3 AND type >= ?4 \
     ORDER BY type LIMIT 1";
/// The first priority of a type after a number.
const NEXT_PRIORITY: &str = "SELECT priority FROM jobs INDEXED BY jobs_due \
     WHERE state = 0 AND queue = ?1 AND critical = ?2 AND partition = ?3 AND type = ?4 \
     AND priority > ?5 ORDER BY priority LIMIT 1";
/// The first due time of a stream after an instant.
const NEXT_DUE: &str = "SELECT run_at FROM jobs INDEXED BY jobs_due \
     WHERE state = 0 AND queue = ?1 AND critical = ?2 AND partition = ?3 AND type = ?4 \
     AND priority = ?5 AND run_at > ?6 ORDER BY run_at LIMIT 1";
/// The jobs of a stream after a due time and id: a range of the index, read from its beginning.
const STREAM: &str = "SELECT run_at, id, n FROM jobs INDEXED BY jobs_due \
     WHERE state = 0 AND queue = ?1 AND critical = ?2 AND partition = ?3 AND type = ?4 \
     AND priority = ?5 AND (run_at, id) > (?6, ?7) AND run_at <= ?8 ORDER BY run_at, id LIMIT ?9";

/// The answer to `query`.
pub(super) fn page(db: &Connection, names: &Names, query: &DueQuery) -> Result<DuePage, Failure> {
    let (Some(queue), types) = (names.queue(&query.queue), names.types(&query.types)) else {
        return Ok(DuePage::default());
    };
    let scan = Scan { db, queue, query };
    let mut streams = scan.streams(&types)?;
    let next_due = scan.next_due(&streams)?;
    let wanted = query.limit as usize + 1;
    let share = (wanted / streams.len().max(1) + 1).clamp(16.min(wanted), wanted);

    let mut heads = BinaryHeap::new();
    for (index, stream) in streams.iter_mut().enumerate() {
        stream.chunk = share;
        heads.extend(scan.next(stream)?.map(|(key, run_at, n)| Reverse((key, index, run_at, n))));
    }
    let mut find = db.prepare_cached(select_jobs!("WHERE n = ?1"))?;
    let mut jobs = Vec::with_capacity(wanted.min(64));
    let (mut last, mut next, mut damaged) = (None, None, 0);
    while let Some(Reverse((key, index, run_at, n))) = heads.pop() {
        if jobs.len() == query.limit as usize || damaged == MAX_UNREADABLE_ROWS {
            next = last;
            break;
        }
        let mut rows = find.query([n])?;
        let row = rows.next()?;
        if row.is_none() {
            let error = StoreError::corrupt("the index of due jobs names it, and it is missing");
            unreadable(format!("in row {n}"), &error);
        }
        match row.map(row::readable).transpose()?.flatten() {
            Some(job) => jobs.push(job),
            // Another job takes its place. Otherwise a query for a single job would find none.
            None => damaged += 1,
        }
        last = Some((index, run_at, key.3));
        let head = scan.next(&mut streams[index])?;
        heads.extend(head.map(|(key, run_at, n)| Reverse((key, index, run_at, n))));
    }
    let next = next.map(|(index, run_at, id)| Position {
        partition: streams[index].partition.shown(),
        priority: streams[index].priority,
        run_at: Timestamp::from_millis(run_at),
        id,
    });
    Ok(DuePage { jobs, next, next_due })
}

struct Scan<'a> {
    db: &'a Connection,
    queue: i64,
    query: &'a DueQuery,
}

impl Scan<'_> {
    /// Every stream that has a scheduled job, due or not.
    fn streams(&self, types: &[i64]) -> Result<Vec<Stream>, Failure> {
        let mut streams = Vec::new();
        if types.is_empty() {
            return Ok(streams);
        }
        if let Some(partition) = &self.query.partition {
            self.streams_of(&partition.as_str().into(), types, &mut streams)?;
            return Ok(streams);
        }
        let mut partition = next_partition(self.db, self.queue, self.query.critical, None)?;
        while let Some(name) = partition {
            self.streams_of(&name, types, &mut streams)?;
            partition = next_partition(self.db, self.queue, self.query.critical, Some(&name))?;
        }
        Ok(streams)
    }

    fn streams_of(
        &self,
        partition: &RawText,
        types: &[i64],
        streams: &mut Vec<Stream>,
    ) -> Result<(), Failure> {
        let mut next_type = self.db.prepare_cached(NEXT_TYPE)?;
        let mut next_priority = self.db.prepare_cached(NEXT_PRIORITY)?;
        let mut rest = types;
        while let Some(least) = rest.first() {
            let place = params![self.queue, self.query.critical, partition, least];
            let Some(job_type) = next_type.query_row(place, |row| row.get(0)).optional()? else {
                return Ok(());
            };
            rest = &rest[rest.partition_point(|number| *number < job_type)..];
            if rest.first() != Some(&job_type) {
                continue;
            }
            rest = &rest[1..];
            let mut past = i64::MIN;
            loop {
                let place = params![self.queue, self.query.critical, partition, job_type, past];
                let Some(priority) = next_priority.query_row(place, |row| row.get(0)).optional()?
                else {
                    break;
                };
                past = i64::from(priority);
                let after = start(self.query.order, priority, self.query.after.as_ref());
                streams.push(Stream {
                    partition: partition.clone(),
                    job_type,
                    priority,
                    exhausted: after.is_none(),
                    after: after.unwrap_or_default(),
                    read: VecDeque::new(),
                    chunk: 0,
                });
            }
        }
        Ok(())
    }

    /// The earliest `run_at` after `until` of all streams.
    fn next_due(&self, streams: &[Stream]) -> Result<Option<Timestamp>, Failure> {
        let mut find = self.db.prepare_cached(NEXT_DUE)?;
        let mut least: Option<i64> = None;
        for stream in streams {
            let place = params![
                self.queue,
                self.query.critical,
                stream.partition,
                stream.job_type,
                stream.priority,
                self.query.until.millis()
            ];
            let found: Option<i64> = find.query_row(place, |row| row.get(0)).optional()?;
            least = least.into_iter().chain(found).min();
        }
        Ok(least.map(Timestamp::from_millis))
    }

    /// The next job of `stream`.
    fn next(&self, stream: &mut Stream) -> Result<Option<Entry>, Failure> {
        while stream.read.is_empty() && !stream.exhausted {
            self.read(stream)?;
        }
        Ok(stream.read.pop_front())
    }

    fn read(&self, stream: &mut Stream) -> Result<(), Failure> {
        let mut find = self.db.prepare_cached(STREAM)?;
        let mut rows = find.query(params![
            self.queue,
            self.query.critical,
            stream.partition,
            stream.job_type,
            stream.priority,
            stream.after.0,
            stream.after.1,
            self.query.until.millis(),
            stream.chunk as i64
        ])?;
        let (mut last, mut count) = (None, 0);
        while let Some(row) = rows.next()? {
            let (run_at, id): (i64, RawText) = (row.get(0)?, row.get(1)?);
            let parsed: Option<JobId> =
                std::str::from_utf8(&id.0).ok().and_then(|id| id.parse().ok());
            count += 1;
            // Without a valid id the row cannot be read either.
            if let Some(id) = parsed {
                let due = Timestamp::from_millis(run_at);
                let key = self.query.order.key(stream.priority, due, &id);
                stream.read.push_back((key, run_at, row.get(2)?));
            } else {
                let error = StoreError::corrupt("its id is damaged");
                unreadable(id.shown(), &error);
            }
            last = Some((run_at, id));
        }
        stream.exhausted = count < stream.chunk;
        stream.chunk = (stream.chunk * 2).min(1001);
        if let Some(last) = last {
            stream.after = last;
        }
        Ok(())
    }
}

/// The due time and id in a stream of `priority` behind which all jobs follow `after` in `order`;
/// none if no job does.
///
/// No id is empty, so `(t, "")` precedes all jobs that are due at `t`.
fn start(order: Order, priority: i32, after: Option<&Position>) -> Option<(i64, RawText)> {
    let Some(after) = after else {
        return Some((i64::MIN, RawText::default()));
    };
    let (from, id) = order.stream_start(priority, after)?;
    Some((from.millis(), id.map_or_else(RawText::default, |id| id.as_str().into())))
}

/// The first partition after `after` with a scheduled job of `queue`.
fn next_partition(
    db: &Connection,
    queue: i64,
    critical: bool,
    after: Option<&RawText>,
) -> Result<Option<RawText>, Failure> {
    let sql = match after {
        None => {
            "SELECT partition FROM jobs INDEXED BY jobs_due \
             WHERE state = 0 AND queue = ?1 AND critical = ?2 AND partition >= ?3 \
             ORDER BY partition LIMIT 1"
        }
        Some(_) => {
            "SELECT partition FROM jobs INDEXED BY jobs_due \
             WHERE state = 0 AND queue = ?1 AND critical = ?2 AND partition > ?3 \
             ORDER BY partition LIMIT 1"
        }
    };
    let first = RawText::default();
    let name = params![queue, critical, after.unwrap_or(&first)];
    Ok(db.prepare_cached(sql)?.query_row(name, |row| row.get(0)).optional()?)
}
