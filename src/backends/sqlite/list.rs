//! Lists of jobs, newest first.
//!
//! A list merges one stream of jobs per type, by creation. If the wanted states have few jobs, it
//! merges streams per state instead; the counts decide. A page reads a bounded number of rows, so
//! that a rare match in a large store takes several calls and delays no other caller.
//!
//! A page may therefore end at a job that its caller must not see; see [`super::cursor`].

use std::collections::VecDeque;

use rusqlite::{Connection, params};

use super::{
    Shared,
    cursor::{CursorKey, ListPosition},
    error::Failure,
    names::Names,
    row::{self, select_jobs, state_number},
};
use tidegate_core::{
    job::Outcome,
    port::job_store::{ListPage, ListQuery, MAX_UNREADABLE, StateFilter},
    time::Timestamp,
};

/// Maximum rows that a page reads.
const MAX_SCANNED_ROWS: usize = 50_000;
/// Maximum scheduled or running jobs that are read by state and sorted.
const MAX_SORTED_JOBS: u64 = 10_000;
/// Rows of a stream that one statement reads.
const CHUNK_ROWS: i64 = 256;

/// The positions of jobs of one kind, newest first.
struct Stream {
    /// The statement that reads on, with its first parameter; none at the end.
    more: Option<(&'static str, i64)>,
    read: VecDeque<ListPosition>,
}

const BY_TYPE: &str = "SELECT created_at, n FROM jobs INDEXED BY jobs_latest \
     WHERE type = ?1 AND (created_at, n) < (?2, ?3) AND created_at >= ?4 \
     ORDER BY created_at DESC, n DESC LIMIT ?5";
const BY_END: &str = "SELECT created_at, n FROM jobs INDEXED BY jobs_ended_badly \
     WHERE state = ?1 AND state > 2 AND (created_at, n) < (?2, ?3) AND created_at >= ?4 \
     ORDER BY created_at DESC, n DESC LIMIT ?5";
const SCHEDULED: &str = "SELECT created_at, n FROM jobs INDEXED BY jobs_due \
     WHERE state = 0 AND queue = ?1 AND (created_at, n) < (?2, ?3) AND created_at >= ?4";
const RUNNING: &str = "SELECT created_at, n FROM jobs INDEXED BY jobs_running \
     WHERE state = 1 AND queue = ?1 AND (created_at, n) < (?2, ?3) AND created_at >= ?4";

/// The answer to `query`.
pub(super) fn page(
    db: &Connection,
    names: &Names,
    shared: &Shared,
    key: &CursorKey,
    query: &ListQuery,
) -> Result<ListPage, Failure> {
    bounded_page(db, names, shared, key, query, MAX_SCANNED_ROWS)
}

fn bounded_page(
    db: &Connection,
    names: &Names,
    shared: &Shared,
    key: &CursorKey,
    query: &ListQuery,
    scan: usize,
) -> Result<ListPage, Failure> {
    let Some(mut before) = key.first_position(query)? else {
        return Ok(ListPage::default());
    };
    let from = query.filter.created.from.map_or(i64::MIN, Timestamp::millis);
    let mut streams = streams(db, names, shared, query, before, from)?;
    let mut find = db.prepare_cached(select_jobs!("WHERE n = ?1"))?;

    let mut page = ListPage::default();
    let mut last_listed = before;
    for _ in 0..scan {
        for stream in &mut streams {
            stream.fill(db, before, from)?;
        }
        let Some(stream) = streams.iter_mut().max_by_key(|stream| stream.read.front().copied())
        else {
            return Ok(page);
        };
        let Some(position) = stream.read.pop_front() else {
            return Ok(page);
        };
        before = position;
        let mut rows = find.query([position.1])?;
        let job = match rows.next()?.map(row::stored).transpose()? {
            Some(Ok(job)) => job,
            Some(Err(job)) => {
                if page.unreadable.len() < MAX_UNREADABLE {
                    page.unreadable.push(job);
                }
                continue;
            }
            None => continue,
        };
        if !query.asks_for(&job) {
            continue;
        }
        if page.jobs.len() == query.limit as usize {
            page.next_cursor = Some(key.cursor(query, last_listed)?);
            return Ok(page);
        }
        last_listed = position;
        page.jobs.push(job);
    }
    page.next_cursor = Some(key.cursor(query, before)?);
    Ok(page)
}

impl Stream {
    fn of(sql: &'static str, number: i64) -> Self {
        Self { more: Some((sql, number)), read: VecDeque::new() }
    }

    /// Reads on if all read positions are used up.
    fn fill(&mut self, db: &Connection, before: ListPosition, from: i64) -> Result<(), Failure> {
        let Some((sql, number)) = self.more.filter(|_| self.read.is_empty()) else {
            return Ok(());
        };
        let mut find = db.prepare_cached(sql)?;
        let mut rows = find.query(params![number, before.0, before.1, from, CHUNK_ROWS])?;
        while let Some(row) = rows.next()? {
            self.read.push_back((row.get(0)?, row.get(1)?));
        }
        if self.read.len() < CHUNK_ROWS as usize {
            self.more = None;
        }
        Ok(())
    }
}

/// The streams that hold every job that may match `query`.
fn streams(
    db: &Connection,
    names: &Names,
    shared: &Shared,
    query: &ListQuery,
    before: ListPosition,
    from: i64,
) -> Result<Vec<Stream>, Failure> {
    let (queues, types) = names.selected(query);
    let counts = shared.counts();
    let states = query.filter.stored_states();
    let is_wanted = |state: i64| {
        states.is_empty() || states.iter().any(|filter| state_number(*filter) == state)
    };
    let occupied: Vec<(i64, i64, i64)> = counts
        .iter()
        .filter(|(_, jobs)| **jobs > 0)
        .map(|(key, _)| *key)
        .filter(|(in_queue, of_type, state)| {
            queues.contains(in_queue) && types.contains(of_type) && is_wanted(*state)
        })
        .collect();
    let jobs_in = |wanted: StateFilter| -> u64 {
        let number = state_number(wanted);
        let matching = counts
            .iter()
            .filter(|((in_queue, _, state), _)| *state == number && queues.contains(in_queue));
        matching.map(|(_, jobs)| *jobs).sum()
    };
    let by_state = !states.is_empty()
        && states.iter().all(|state| match state {
            StateFilter::Ended(Outcome::Succeeded) => false,
            StateFilter::Ended(_) => true,
            StateFilter::Scheduled | StateFilter::Running => jobs_in(*state) <= MAX_SORTED_JOBS,
        });
    if by_state {
        return states
            .iter()
            .map(|state| state_stream(db, *state, &occupied, before, from))
            .collect();
    }
    let mut types: Vec<i64> = occupied.iter().map(|(_, of_type, _)| *of_type).collect();
    types.sort_unstable();
    types.dedup();
    Ok(types.into_iter().map(|number| Stream::of(BY_TYPE, number)).collect())
}

/// The jobs in `state`, of the queues in `occupied`, which have jobs in any of the wanted states.
///
/// The counts may be older than the rows: a job that has just moved from one wanted state to
/// another is in a queue that has some, but not in that state.
fn state_stream(
    db: &Connection,
    state: StateFilter,
    occupied: &[(i64, i64, i64)],
    before: ListPosition,
    from: i64,
) -> Result<Stream, Failure> {
    let number = state_number(state);
    let sql = match state {
        StateFilter::Scheduled => SCHEDULED,
        StateFilter::Running => RUNNING,
        StateFilter::Ended(_) => return Ok(Stream::of(BY_END, number)),
    };
    let mut queues: Vec<i64> = occupied.iter().map(|(queue, ..)| *queue).collect();
    queues.sort_unstable();
    queues.dedup();
    let mut read: Vec<ListPosition> = Vec::new();
    let mut find = db.prepare_cached(sql)?;
    for queue in queues {
        let mut rows = find.query(params![queue, before.0, before.1, from])?;
        while let Some(row) = rows.next()? {
            read.push((row.get(0)?, row.get(1)?));
        }
    }
    read.sort_unstable_by(|a, b| b.cmp(a));
    Ok(Stream { more: None, read: read.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::SqliteStore;
    use tidegate_core::port::{
        job_store::{JobFilter, JobStore as _, Write},
        listing::Cursor,
    };
    use tidegate_engine::testkit::{
        builders::{job, name},
        conformance::run,
    };

    #[test]
    fn a_rare_match_is_found_after_several_bounded_pages() {
        let store = SqliteStore::open_temporary().unwrap();
        let jobs = (0..35).map(|n| {
            job(&format!("job-{n}"))
                .queue(if n % 17 == 5 { "rare" } else { "mail" })
                .created(n / 3)
                .build()
        });
        run(async {
            store
                .commit(jobs.map(|job| vec![Write::AddJob(job)]).collect())
                .await
                .map(drop)
                .unwrap();
        });
        let mut query = ListQuery {
            filter: JobFilter { queue: Some(name("rare")), ..JobFilter::default() },
            limit: 10,
            ..ListQuery::default()
        };
        let (mut pages, mut found) = (0, Vec::new());
        loop {
            let page = store
                .readers
                .read(|db| {
                    let key = &store.cursor_key;
                    bounded_page(db, &store.names(), &store.shared, key, &query, 8)
                })
                .unwrap();
            pages += 1;
            found.extend(page.jobs.iter().map(|job| job.id.to_string()));
            query.cursor = page.next_cursor;
            if query.cursor.is_none() {
                break;
            }
        }
        assert_eq!(found, ["job-22", "job-5"]);
        assert_eq!(pages, 5, "35 rows, at most 8 in a page");
    }

    #[test]
    fn a_cursor_shows_nothing_of_a_job_outside_the_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        // The 20 jobs after the first are outside the bounds: a scan of 8 rows ends among them.
        let jobs = (0..21).map(|n| {
            let queue = if n == 0 { "mine" } else { "other" };
            job(&format!("job-{n}")).queue(queue).created(1_234_567 + n).build()
        });
        run(async {
            store
                .commit(jobs.map(|job| vec![Write::AddJob(job)]).collect())
                .await
                .map(drop)
                .unwrap();
        });
        let mut query = ListQuery {
            within_queues: Some([name("mine")].into()),
            limit: 10,
            ..ListQuery::default()
        };
        let read = |store: &SqliteStore, query: &ListQuery| {
            let page = store.readers.read(|db| {
                bounded_page(db, &store.names(), &store.shared, &store.cursor_key, query, 8)
            });
            page.unwrap()
        };
        let first = read(&store, &query);
        let cursor = first.next_cursor.expect("it ended after 8 rows");
        let parsed: Cursor = cursor.parse().unwrap();
        assert_eq!((first.jobs.len(), parsed.created_at.millis()), (0, 0), "{cursor}");
        assert!(parsed.tie.parse::<i64>().is_err(), "it is no row: {cursor}");
        // It is still valid after a restart. Another store's, and a changed one, is not.
        drop(store);
        let store = SqliteStore::open(dir.path()).unwrap();
        query.cursor = Some(cursor.clone());
        let mut found = Vec::new();
        while query.cursor.is_some() {
            let page = read(&store, &query);
            found.extend(page.jobs.iter().map(|job| job.id.to_string()));
            query.cursor = page.next_cursor;
        }
        assert_eq!(found, ["job-0"]);
        query.cursor = Some(cursor);
        let other = SqliteStore::open_temporary().unwrap();
        let page = read(&other, &query);
        assert!(page.jobs.is_empty() && page.next_cursor.is_none());
    }

    #[test]
    fn a_job_that_has_just_changed_its_state_is_in_the_list() {
        let store = SqliteStore::open_temporary().unwrap();
        run(async {
            store.commit(vec![vec![Write::AddJob(job("a").build())]]).await.map(drop).unwrap();
        });
        // The counts from before its attempt ended: it runs.
        let mut counts = store.shared.counts.lock();
        let (queue, job_type, _) = *counts.keys().next().unwrap();
        *counts = [((queue, job_type, state_number(StateFilter::Running)), 1)].into();
        drop(counts);
        let states = vec![StateFilter::Scheduled, StateFilter::Running];
        let query = ListQuery {
            filter: JobFilter { states, ..JobFilter::default() },
            limit: 10,
            ..ListQuery::default()
        };
        let page = store
            .readers
            .read(|db| page(db, &store.names(), &store.shared, &store.cursor_key, &query))
            .unwrap();
        assert_eq!(page.jobs.len(), 1);
    }
}
