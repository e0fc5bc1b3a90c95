//! Due jobs in a queue's order, from one index whatever that order is.
//!
//! ```text
//!   jobs_due: (queue, critical, partition, type, priority, run_at, id)
//!              └──────────── one stream ──────────────┘  └ in order ┘
//! ```
//!
//! Every order agrees with (due time, id) within a *stream*, so a page is a merge of streams by
//! [`Order::key`]. Streams are found by hopping: each is one step down the index past the one before.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
};

use rusqlite::{Connection, OptionalExtension, params};

use super::error::Failure;
use super::{
    names::Names,
    row::{self, select_jobs},
};
use tidegate_core::{
    job::{JobId, QueueName, TypeName},
    port::job_store::{DuePage, DueQuery},
    queue::order::{Order, OrderKey, Position},
    time::Timestamp,
};

/// The jobs of one partition, type and priority that are due.
struct Stream {
    partition: String,
    job_type: i64,
    priority: i32,
    /// The last place that was read.
    after: (i64, String),
    read: VecDeque<(OrderKey, i64)>,
    /// How many are read at once: more each time, since a stream that was used up is a busy one.
    chunk: usize,
    exhausted: bool,
}

/// Most rows that cannot be read which a page steps over.
const DAMAGED: usize = 1000;

/// The first type from a number on. (Asked as `(type, priority) > (?, ?)`, SQLite would walk over every job of the old priority.)
const NEXT_TYPE: &str = "SELECT type FROM jobs INDEXED BY jobs_due WHERE state = 0 AND queue = ?1 AND critical = ?2 AND partition = ?3 \
     AND type >= ?4 ORDER BY type LIMIT 1";
/// The first priority of a type after a number.
const NEXT_PRIORITY: &str = "SELECT priority FROM jobs INDEXED BY jobs_due WHERE state = 0 AND queue = ?1 AND critical = ?2 \
     AND partition = ?3 AND type = ?4 AND priority > ?5 ORDER BY priority LIMIT 1";
/// The first due time of a stream after an instant.
const NEXT_DUE: &str = "SELECT run_at FROM jobs INDEXED BY jobs_due WHERE state = 0 AND queue = ?1 AND critical = ?2 AND partition = ?3 AND type = ?4 \
             AND priority = ?5 AND run_at > ?6 ORDER BY run_at LIMIT 1";
/// The jobs of a stream after a place: a stretch of the index, read from its beginning.
const STREAM: &str = "SELECT run_at, id, n FROM jobs INDEXED BY jobs_due WHERE state = 0 AND queue = ?1 AND critical = ?2 AND partition = ?3 \
             AND type = ?4 AND priority = ?5 AND (run_at, id) > (?6, ?7) AND run_at <= ?8 ORDER BY run_at, id LIMIT ?9";

/// How many jobs of a stream are due, up to a bound.
const COUNT: &str = "SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_due WHERE state = 0 AND queue = ?1 AND critical = ?2 AND partition = ?3 \
             AND type = ?4 AND priority = ?5 AND run_at <= ?6 LIMIT ?7)";

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
        heads.extend(scan.next(stream)?.map(|(key, n)| Reverse((key, index, n))));
    }
    let mut find = db.prepare_cached(select_jobs!("WHERE n = ?1"))?;
    let mut jobs = Vec::with_capacity(wanted.min(64));
    let (mut more, mut damaged) = (false, 0);
    while let Some(Reverse((_, index, n))) = heads.pop() {
        if jobs.len() == query.limit as usize || damaged == DAMAGED {
            // A page in which nothing can be read has no end to go on from.
            more = !jobs.is_empty();
            break;
        }
        let mut rows = find.query([n])?;
        let row = rows.next()?.ok_or_else(|| {
            Failure::corrupt(format!("the index of due jobs names row {n}, which is not there"))
        })?;
        match row::readable(row)? {
            Some(job) => jobs.push(job),
            // Others take its place in the page, or whoever wants a single job would never see them.
            None => damaged += 1,
        }
        heads.extend(scan.next(&mut streams[index])?.map(|(key, n)| Reverse((key, index, n))));
    }
    Ok(DuePage { jobs, more, next_due })
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
            self.streams_of(partition, types, &mut streams)?;
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
        partition: &str,
        types: &[i64],
        streams: &mut Vec<Stream>,
    ) -> Result<(), Failure> {
        let mut next_type = self.db.prepare_cached(NEXT_TYPE)?;
        let mut next_priority = self.db.prepare_cached(NEXT_PRIORITY)?;
        let mut asked = types;
        while let Some(least) = asked.first() {
            let place = params![self.queue, self.query.critical, partition, least];
            let Some(job_type) = next_type.query_row(place, |row| row.get(0)).optional()? else {
                return Ok(());
            };
            asked = &asked[asked.partition_point(|number| *number < job_type)..];
            if asked.first() != Some(&job_type) {
                continue;
            }
            asked = &asked[1..];
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
                    partition: partition.to_owned(),
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

    /// The least `run_at` after `until` of all streams.
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

    /// The next job of `stream`: its key and its row.
    fn next(&self, stream: &mut Stream) -> Result<Option<(OrderKey, i64)>, Failure> {
        if stream.read.is_empty() && !stream.exhausted {
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
        let mut last = None;
        while let Some(row) = rows.next()? {
            let (run_at, id): (i64, _) = (row.get(0)?, row::text(row, 1)?);
            let id: JobId = id
                .parse()
                .map_err(|_| Failure::corrupt(format!("{id:?} is not the id of a job")))?;
            stream.read.push_back((
                self.query.order.key(stream.priority, Timestamp::from_millis(run_at), &id),
                row.get(2)?,
            ));
            last = Some((run_at, id));
        }
        stream.exhausted = stream.read.len() < stream.chunk;
        stream.chunk = (stream.chunk * 2).min(1001);
        if let Some((run_at, id)) = last {
            stream.after = (run_at, id.to_string());
        }
        Ok(())
    }
}

/// The place in a stream of `priority` after which everything comes after `after` in `order`; none if nothing does.
///
/// No id is empty, so `(t, "")` is the place right before all that is due at `t`.
fn start(order: Order, priority: i32, after: Option<&Position>) -> Option<(i64, String)> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let Some(after) = after else {
        return Some((i64::MIN, String::new()));
    };
    let at = after.run_at.millis();
    // The least due time that may follow, seen from a higher priority number and from a lower one.
    let (higher, lower) = match order {
        Order::Time { step_millis: 0 } => (i128::from(at), i128::from(at) + 1),
        Order::Time { step_millis } => {
            let step = i128::from(step_millis);
            let begin = i128::from(at).div_euclid(step) * step;
            (begin, begin + step)
        }
        Order::Priority { ageing_millis: None | Some(0) } => (i128::from(i64::MIN), i128::MAX),
        Order::Priority { ageing_millis: Some(step) } => {
            let same_rank = i128::from(at)
                + (i128::from(after.priority) - i128::from(priority)) * i128::from(step);
            (same_rank, same_rank + 1)
        }
    };
    let from = match priority.cmp(&after.priority) {
        Equal => return Some((at, after.id.to_string())),
        Greater => higher,
        Less => lower,
    };
    if from > i128::from(i64::MAX) {
        None
    } else {
        Some((from.max(i64::MIN.into()) as i64, String::new()))
    }
}

/// The first partition after `after` in which a job of `queue` is scheduled.
fn next_partition(
    db: &Connection,
    queue: i64,
    critical: bool,
    after: Option<&str>,
) -> Result<Option<String>, Failure> {
    let sql = match after {
        None => {
            "SELECT partition FROM jobs INDEXED BY jobs_due WHERE state = 0 AND queue = ?1 AND critical = ?2 AND partition >= ?3 \
             ORDER BY partition LIMIT 1"
        }
        Some(_) => {
            "SELECT partition FROM jobs INDEXED BY jobs_due WHERE state = 0 AND queue = ?1 AND critical = ?2 AND partition > ?3 \
             ORDER BY partition LIMIT 1"
        }
    };
    let name = params![queue, critical, after.unwrap_or_default()];
    Ok(db.prepare_cached(sql)?.query_row(name, |row| row.get(0)).optional()?)
}

/// How many jobs of each of `types` are due, no more than `most` in all: stretches of the index, of which no job is read.
pub(super) fn count(
    db: &Connection,
    names: &Names,
    queue: &QueueName,
    types: &[TypeName],
    until: Timestamp,
    most: u32,
) -> Result<BTreeMap<TypeName, u64>, Failure> {
    let mut counts = BTreeMap::new();
    let (Some(number), numbers) = (names.queue(queue), names.types(types)) else {
        return Ok(counts);
    };
    let mut find = db.prepare_cached(COUNT)?;
    let mut left = u64::from(most);
    for critical in [true, false] {
        let (order, types) = (Order::Time { step_millis: 0 }, types.to_vec());
        let query = &DueQuery {
            queue: queue.clone(),
            critical,
            types,
            partition: None,
            order,
            until,
            after: None,
            limit: most,
        };
        for stream in (Scan { db, queue: number, query }).streams(&numbers)? {
            let place = params![
                number,
                critical,
                stream.partition,
                stream.job_type,
                stream.priority,
                until.millis(),
                left as i64
            ];
            let found = find.query_row(place, |row| row.get::<_, i64>(0))? as u64;
            if let Some(name) = names.type_name(stream.job_type).filter(|_| found > 0) {
                *counts.entry(name.clone()).or_default() += found;
            }
            left -= found;
            if left == 0 {
                return Ok(counts);
            }
        }
    }
    Ok(counts)
}

/// The partitions in which jobs of `types` are scheduled.
pub(super) fn partitions(
    db: &Connection,
    names: &Names,
    queue: &QueueName,
    types: &[TypeName],
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<String>, Failure> {
    let (Some(queue), types) = (names.queue(queue), names.types(types)) else {
        return Ok(Vec::new());
    };
    let mut holds = db.prepare_cached(
        "SELECT 1 FROM jobs INDEXED BY jobs_due WHERE state = 0 AND queue = ?1 AND critical = ?2 AND partition = ?3 AND type = ?4 LIMIT 1",
    )?;
    let mut after = after.map(str::to_owned);
    let mut found = Vec::new();
    while found.len() < limit as usize {
        let next = |critical| next_partition(db, queue, critical, after.as_deref());
        let Some(partition) = next(false)?.into_iter().chain(next(true)?).min() else {
            break;
        };
        'one: for critical in [false, true] {
            for job_type in &types {
                if holds.exists(params![queue, critical, partition, job_type])? {
                    found.push(partition.clone());
                    break 'one;
                }
            }
        }
        after = Some(partition);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;
    use crate::sqlite::SqliteStore;
    use tidegate_core::port::job_store::{JobStore as _, Write};
    use tidegate_engine::testkit::{
        builders::{at, job, name},
        conformance::run,
    };

    /// How many steps SQLite's machine takes for the first ten due jobs, with jobs of each of three
    /// priorities and two types due, and as many waiting for later.
    fn steps(jobs: i64) -> i32 {
        let store = SqliteStore::open_temporary().unwrap();
        let add = |n: i64| {
            let (kind, due) = (["x", "y"][n as usize % 2], if n % 3 == 0 { 5 } else { 1_000_000 });
            vec![Write::AddJob(
                job(&format!("job-{n}")).of_type(kind).priority(n as i32 % 5).due(due).build(),
            )]
        };
        run(async { store.commit((0..jobs).map(add).collect()).await.map(drop).unwrap() });
        let query = DueQuery {
            queue: name("default"),
            critical: false,
            types: vec![name("x"), name("y")],
            partition: None,
            order: Order::Time { step_millis: 60_000 },
            until: at(10),
            after: None,
            limit: 10,
        };
        let read = |db: &Connection| {
            assert_eq!(page(db, &store.names(), &query)?.jobs.len(), 10);
            let mut steps = 0;
            for sql in [NEXT_TYPE, NEXT_PRIORITY, NEXT_DUE, STREAM] {
                steps += db.prepare_cached(sql)?.get_status(StatementStatus::VmStep);
            }
            Ok(steps)
        };
        store.readers.read(read).unwrap()
    }

    #[test]
    fn a_statement_is_planned_once_whatever_it_is_asked() {
        let store = SqliteStore::open_temporary().unwrap();
        let read = |db: &Connection| {
            for sql in [NEXT_TYPE, NEXT_PRIORITY, NEXT_DUE, STREAM] {
                for value in [1, 2, 3] {
                    let mut statement = db.prepare_cached(sql)?;
                    let values = vec![value; statement.parameter_count()];
                    let _ = statement.query(rusqlite::params_from_iter(values))?.next()?;
                }
                assert_eq!(
                    db.prepare_cached(sql)?.get_status(StatementStatus::RePrepare),
                    0,
                    "{sql}"
                );
            }
            Ok(())
        };
        store.readers.read(read).unwrap();
    }

    #[test]
    fn jobs_that_wait_cost_nothing() {
        let (few, many) = (steps(600), steps(6_000));
        assert!(few > 100 && many <= few + few / 10, "{few} steps among few, {many} among many");
    }
}
