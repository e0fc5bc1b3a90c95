//! Due jobs in the order of their queue, from one index for every order.
//!
//! ```text
//!   jobs_due: (queue, critical, partition, type, priority, run_at, id)
//!              └──────────── one stream ──────────────┘  └ in order ┘
//! ```
//!
//! Every order agrees with (due time, id) within a *stream*, so a page is a merge of streams by
//! [`Order::key`]. One statement hops from stream to stream through the index, and another one
//! reads the first jobs of each.

mod count;
mod count_waiting;
mod positions;
mod unsent;

use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::Arc,
};

use futures_util::future::try_join_all;
use tokio::time::Instant;
use tokio_postgres::Row;

pub(super) use positions::{DuePlace, FRONT, Place, Positions, WAKES};
use positions::{Start, ViewOf};
pub(super) use unsent::{Unsent, sent_places};

use super::{
    PostgresStore,
    connect::Param,
    error::is_slow,
    names::Known,
    read::MAX_UNREADABLE_ROWS,
    row::{self, job_columns},
    text,
};
use tidegate_core::{
    job::JobId,
    port::{
        StoreError,
        job_store::{DuePage, DueQuery},
    },
    queue::order::{Order, OrderKey, Position},
    time::Timestamp,
};

/// Most streams that one statement finds.
const MAX_STREAMS: i64 = 1000;
/// Fewest jobs of a stream that a statement reads.
const MIN_CHUNK: usize = 4;

/// The streams of a queue behind a place.
pub(super) const STREAMS: &str = "WITH RECURSIVE s(partition, type, priority) AS ( \
     (SELECT partition, type, priority FROM jobs WHERE state = 0 AND queue = $1 AND critical = $2 \
     AND (partition, type, priority) > ($3::text, $4::int, $5::int) \
     ORDER BY partition, type, priority LIMIT 1) \
     UNION ALL SELECT n.* FROM s CROSS JOIN LATERAL (SELECT partition, type, priority FROM jobs \
     WHERE state = 0 AND queue = $1 AND critical = $2 \
     AND (partition, type, priority) > (s.partition, s.type, s.priority) \
     ORDER BY partition, type, priority LIMIT 1) n) \
     SELECT partition, type, priority FROM s LIMIT $6";

/// The streams of one partition of a queue behind a place.
pub(super) const STREAMS_OF_PARTITION: &str = "WITH RECURSIVE s(partition, type, priority) AS ( \
     (SELECT partition, type, priority FROM jobs WHERE state = 0 AND queue = $1 AND critical = $2 \
     AND partition = $3 AND (type, priority) > ($4::int, $5::int) \
     ORDER BY type, priority LIMIT 1) \
     UNION ALL SELECT n.* FROM s CROSS JOIN LATERAL (SELECT partition, type, priority FROM jobs \
     WHERE state = 0 AND queue = $1 AND critical = $2 AND partition = $3 \
     AND (type, priority) > (s.type, s.priority) ORDER BY type, priority LIMIT 1) n) \
     SELECT partition, type, priority FROM s LIMIT $6";

/// The jobs of streams, each from a due time and id on: a range of the index.
pub(super) const JOBS: &str = concat!(
    "SELECT ",
    job_columns!("j"),
    ", w.n, j.run_at FROM unnest($3::int[], $4::text[], $5::int[], $6::int[], $7::bigint[], \
     $8::text[]) w(n, partition, type, priority, from_at, from_id) \
     CROSS JOIN LATERAL (SELECT id, spec, life, data_kind, data_bytes, data, run_at FROM jobs \
     WHERE state = 0 AND queue = $1 AND critical = $2 AND partition = w.partition \
     AND type = w.type AND priority = w.priority AND (run_at, id) >= (w.from_at, w.from_id) \
     AND run_at <= $9 ORDER BY run_at, id LIMIT $10) j"
);

/// The earliest due time of streams after an instant.
pub(super) const NEXT_DUE: &str = "SELECT min(j.run_at) \
     FROM unnest($3::text[], $4::int[], $5::int[]) w(partition, type, priority) \
     CROSS JOIN LATERAL (SELECT run_at FROM jobs WHERE state = 0 AND queue = $1 AND critical = $2 \
     AND partition = w.partition AND type = w.type AND priority = w.priority AND run_at > $6 \
     ORDER BY run_at LIMIT 1) j";

/// The statements of this module and of those below, whose plans are tested.
#[cfg(test)]
pub(super) const ALL: [&str; 9] = [
    STREAMS,
    STREAMS_OF_PARTITION,
    JOBS,
    NEXT_DUE,
    count::COUNT,
    count::FIRST_DUE,
    count::ACTIVE,
    count_waiting::COUNT,
    count_waiting::FIRST,
];

/// The due jobs of one partition, type and priority.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stream {
    /// As it is stored.
    pub partition: String,
    pub job_type: i32,
    pub priority: i32,
}

/// How far a page has read a stream.
struct Reading {
    stream: Stream,
    /// Where it is read on.
    from: Place,
    /// The place of the first job that was read.
    first: Option<Place>,
    read: VecDeque<Entry>,
    exhausted: bool,
}

/// A job of a stream. It is decoded when it comes into the page: of many streams, few jobs do.
struct Entry {
    key: OrderKey,
    run_at: i64,
    row: Row,
}

/// A query whose names have numbers.
struct Scan<'a> {
    store: &'a PostgresStore,
    queue: i32,
    types: Vec<i32>,
    query: &'a DueQuery,
    /// The only partition that is read, as it is stored.
    partition: Option<Cow<'a, str>>,
}

impl PostgresStore {
    pub(super) async fn due_pages(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        let queues = queries.iter().map(|query| &query.queue).collect::<Vec<_>>();
        let types = queries.iter().flat_map(|query| &query.types).collect::<Vec<_>>();
        let names = self.names.with(&self.readers, queues, types).await?;
        try_join_all(queries.iter().map(|query| self.due_page(Arc::clone(&names), query))).await
    }

    async fn due_page(&self, names: Arc<Known>, query: &DueQuery) -> Result<DuePage, StoreError> {
        let (Some(queue), types) = (names.queue(&query.queue), names.types(&query.types)) else {
            return Ok(DuePage::default());
        };
        if types.is_empty() {
            return Ok(DuePage::default());
        }
        let partition = query.partition.as_deref().map(text::stored);
        let scan = Scan { store: self, queue, types, query, partition };
        let (began, start) = scan.start();
        let is_from_front = start.is_from_front() && start.streams.is_some();
        let error = match scan.page(began, start).await {
            Err(error) if is_from_front && is_slow(&error) => error,
            page => return page,
        };
        tracing::warn!(%error, queue = %query.queue, "cannot read due jobs from the front");
        self.shared.positions.keep(scan.view(), (began, Instant::now()));
        let (began, start) = scan.start();
        if start.is_from_front() { Err(error) } else { scan.page(began, start).await }
    }
}

impl Scan<'_> {
    fn view(&self) -> ViewOf {
        (self.queue, self.query.critical)
    }

    fn is_read(&self, stream: &Stream) -> bool {
        self.types.contains(&stream.job_type)
            && self.partition.as_ref().is_none_or(|name| *name == stream.partition)
    }

    fn start(&self) -> (Instant, Start) {
        let began = Instant::now();
        let positions = &self.store.shared.positions;
        (began, positions.start(self.view(), began, |stream| self.is_read(stream)))
    }

    async fn page(&self, began: Instant, mut start: Start) -> Result<DuePage, StoreError> {
        let streams = self.streams(began, &mut start).await?;
        if streams.is_empty() {
            return Ok(DuePage::default());
        }
        let mut page = self.merged(&start, &streams).await?;
        // A page that is not the last one need not say what comes later.
        if page.next.is_none() {
            page.next_due = self.next_due(&streams).await?;
        }
        Ok(page)
    }

    /// Every stream of the query that has a scheduled job, due or not, and where it is read first.
    async fn streams(
        &self,
        began: Instant,
        start: &mut Start,
    ) -> Result<Vec<(Stream, Place)>, StoreError> {
        let found = if start.is_look {
            let found = self.walk(STREAMS, "").await?;
            let ended = (began, Instant::now());
            self.store.shared.positions.look(self.view(), start, &found, ended);
            found
        } else if let Some(known) = start.streams.take() {
            return Ok(known);
        } else if let Some(partition) = &self.partition {
            self.walk(STREAMS_OF_PARTITION, partition).await?
        } else {
            self.walk(STREAMS, "").await?
        };
        let read = found.into_iter().filter(|stream| self.is_read(stream));
        Ok(read.map(|stream| (stream, FRONT)).collect())
    }

    /// The streams that a statement finds from `partition` on.
    async fn walk(&self, sql: &'static str, partition: &str) -> Result<Vec<Stream>, StoreError> {
        let mut last =
            Stream { partition: partition.to_owned(), job_type: i32::MIN, priority: i32::MIN };
        let mut streams = Vec::new();
        loop {
            let found = streams_behind(self.store, sql, self.queue, self.query.critical, &last);
            let found = found.await?;
            let is_last = found.len() < MAX_STREAMS as usize;
            if let Some(stream) = found.last() {
                last = stream.clone();
            }
            streams.extend(found);
            if is_last {
                return Ok(streams);
            }
        }
    }

    /// The earliest `run_at` after `until` of all streams.
    async fn next_due(&self, streams: &[(Stream, Place)]) -> Result<Option<Timestamp>, StoreError> {
        let (partitions, types, priorities) = stream_columns(streams.iter().map(|(it, _)| it));
        let (queue, critical, until) = (self.queue, self.query.critical, self.query.until.millis());
        let params: [Param<'_>; 6] = [&queue, &critical, &partitions, &types, &priorities, &until];
        let rows = self.store.readers.query(NEXT_DUE, &params).await?;
        let next: Option<i64> = rows.first().map_or(Ok(None), |row| row::column(row, 0))?;
        Ok(next.map(Timestamp::from_millis))
    }

    /// The first jobs of all streams, in order.
    async fn merged(
        &self,
        start: &Start,
        streams: &[(Stream, Place)],
    ) -> Result<DuePage, StoreError> {
        let limit = self.query.limit as usize;
        let mut readings: Vec<Reading> =
            streams.iter().map(|(stream, place)| self.reading(stream, place)).collect();
        // One more than the page has shows whether there are more.
        let wanted = limit + 1;
        let mut chunk = (wanted / readings.len() + 1).clamp(MIN_CHUNK.min(wanted), wanted);
        self.fill(&mut readings, chunk).await?;
        if self.query.after.is_none() {
            // Whatever was not read is due later.
            let nothing = (self.query.until.millis().saturating_add(1), String::new());
            let first = readings.iter().map(|reading| {
                (reading.stream.clone(), reading.first.clone().unwrap_or_else(|| nothing.clone()))
            });
            self.store.shared.positions.learn(self.view(), start, first);
        }
        let mut heads: BinaryHeap<Reverse<(OrderKey, usize)>> = BinaryHeap::new();
        for (index, reading) in readings.iter().enumerate() {
            heads.extend(reading.read.front().map(|entry| Reverse((entry.key.clone(), index))));
        }
        let (mut page, mut last, mut damaged) = (DuePage::default(), None, 0);
        let now = self.store.clock.now();
        while let Some(Reverse((key, index))) = heads.pop() {
            if page.jobs.len() == limit || damaged == MAX_UNREADABLE_ROWS {
                page.next = last;
                break;
            }
            let entry = readings[index].read.pop_front().expect("its key is in the heap");
            let stream = &readings[index].stream;
            last = Some(Position {
                partition: text::original(&stream.partition).into_owned(),
                priority: stream.priority,
                run_at: Timestamp::from_millis(entry.run_at),
                id: key.3,
            });
            match row::stored(&entry.row, now) {
                Ok(job) => page.jobs.push(job),
                // Another job takes its place. Otherwise a query for a single job would find none.
                Err(_) => damaged += 1,
            }
            if readings[index].read.is_empty() && !readings[index].exhausted {
                // A stream that was used up is busy, and so are others that are almost used up.
                chunk = (chunk * 2).min(1001);
                let before: Vec<bool> =
                    readings.iter().map(|reading| reading.read.is_empty()).collect();
                self.fill(&mut readings, chunk).await?;
                for (index, _) in before.iter().enumerate().filter(|(_, was_empty)| **was_empty) {
                    let head = readings[index].read.front();
                    heads.extend(head.map(|entry| Reverse((entry.key.clone(), index))));
                }
            } else {
                let head = readings[index].read.front();
                heads.extend(head.map(|entry| Reverse((entry.key.clone(), index))));
            }
        }
        Ok(page)
    }

    /// The start of a stream for this query. Nothing of it is scheduled before `place`.
    fn reading(&self, stream: &Stream, place: &Place) -> Reading {
        let from = start(self.query.order, stream.priority, self.query.after.as_ref());
        Reading {
            stream: stream.clone(),
            exhausted: from.is_none(),
            from: from.unwrap_or(FRONT).max(place.clone()),
            first: None,
            read: VecDeque::new(),
        }
    }

    /// Reads on in each stream whose jobs are used up, until it has one that can be read, or ends.
    async fn fill(&self, readings: &mut [Reading], chunk: usize) -> Result<(), StoreError> {
        loop {
            let empty: Vec<usize> = (0..readings.len())
                .filter(|index| readings[*index].read.is_empty() && !readings[*index].exhausted)
                .collect();
            if empty.is_empty() {
                return Ok(());
            }
            let rows = self.read(readings, &empty, chunk).await?;
            let mut counts = vec![0; readings.len()];
            for row in rows {
                let n: i32 = row::column(&row, 6)?;
                let reading = &mut readings[n as usize];
                counts[n as usize] += 1;
                let (run_at, id): (i64, &str) = (row::column(&row, 7)?, row::column(&row, 0)?);
                reading.first.get_or_insert_with(|| (run_at, id.to_owned()));
                reading.from = behind(run_at, id);
                // Without a valid id the row cannot be read either.
                if let Ok(id) = id.parse::<JobId>() {
                    let due = Timestamp::from_millis(run_at);
                    let key = self.query.order.key(reading.stream.priority, due, &id);
                    reading.read.push_back(Entry { key, run_at, row });
                }
            }
            for index in empty {
                readings[index].exhausted = counts[index] < chunk;
            }
        }
    }

    async fn read(
        &self,
        readings: &[Reading],
        indexes: &[usize],
        chunk: usize,
    ) -> Result<Vec<Row>, StoreError> {
        let numbers: Vec<i32> = indexes.iter().map(|index| *index as i32).collect();
        let streams = indexes.iter().map(|index| &readings[*index].stream);
        let (partitions, types, priorities) = stream_columns(streams);
        let from_at: Vec<i64> = indexes.iter().map(|index| readings[*index].from.0).collect();
        let from_id: Vec<&str> = indexes.iter().map(|index| &readings[*index].from.1[..]).collect();
        let (queue, critical) = (self.queue, self.query.critical);
        let (until, chunk) = (self.query.until.millis(), chunk as i64);
        let params: [Param<'_>; 10] = [
            &queue,
            &critical,
            &numbers,
            &partitions,
            &types,
            &priorities,
            &from_at,
            &from_id,
            &until,
            &chunk,
        ];
        self.store.readers.query(JOBS, &params).await
    }
}

/// The streams behind `last`, by one of the statements above.
pub(super) async fn streams_behind(
    store: &PostgresStore,
    sql: &'static str,
    queue: i32,
    critical: bool,
    last: &Stream,
) -> Result<Vec<Stream>, StoreError> {
    let Stream { partition, job_type, priority } = last;
    let params: [Param<'_>; 6] = [&queue, &critical, partition, job_type, priority, &MAX_STREAMS];
    let rows = store.readers.query(sql, &params).await?;
    rows.iter().map(stream).collect()
}

/// The stream in the first three columns of a row.
fn stream(row: &Row) -> Result<Stream, StoreError> {
    Ok(Stream {
        partition: row::column(row, 0)?,
        job_type: row::column(row, 1)?,
        priority: row::column(row, 2)?,
    })
}

fn stream_columns<'a>(
    streams: impl IntoIterator<Item = &'a Stream>,
) -> (Vec<&'a str>, Vec<i32>, Vec<i32>) {
    let (mut partitions, mut types, mut priorities) = (Vec::new(), Vec::new(), Vec::new());
    for stream in streams {
        partitions.push(&stream.partition[..]);
        types.push(stream.job_type);
        priorities.push(stream.priority);
    }
    (partitions, types, priorities)
}

/// Where a stream of `priority` is read so that all its jobs behind `after` in `order` follow; none
/// if no job does.
///
/// No id is empty, so `(t, "")` precedes all jobs that are due at `t`.
fn start(order: Order, priority: i32, after: Option<&Position>) -> Option<Place> {
    let Some(after) = after else { return Some(FRONT) };
    let (from, id) = order.stream_start(priority, after)?;
    let from = from.millis();
    Some(id.map_or_else(|| (from, String::new()), |id| behind(from, id.as_str())))
}

/// The place directly behind a job: its id is a prefix, and no id has a character so low.
fn behind(run_at: i64, id: &str) -> Place {
    (run_at, format!("{id}\u{1}"))
}
