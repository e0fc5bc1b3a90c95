//! Lists of jobs, newest first.
//!
//! A list merges streams of live and of ended jobs by (creation, id): one of each for each type, or
//! one for each state if only states are wanted that have few jobs. A page reads a bounded number
//! of positions, so that a rare match takes several calls and delays no other caller.
//!
//! A caller that may see some queues only gets streams of these queues, so that no cursor is the
//! position of a job that it may not see.

use std::collections::VecDeque;

use futures_util::future::try_join_all;

use super::{PostgresStore, connect::Param, row};
use crate::job_columns::state_number;
use tidegate_core::{
    job::{Job, JobId, Outcome, QueueName, TypeName},
    port::{
        StoreError,
        job_store::{ListPage, ListQuery, MAX_UNREADABLE, StateFilter, UnreadableJob},
        listing::Cursor,
    },
    time::Timestamp,
};

/// Most positions that a page reads.
const MAX_SCANNED: usize = 20_000;
/// Positions of a stream that one statement reads.
const CHUNK: i64 = 500;
/// Jobs that are read at once.
const READ_TOGETHER: usize = 200;

/// An id that sorts after every other one.
const MAX_ID: &str = "~";

pub(super) const LIVE_BY_TYPE: &str = "SELECT created_at, id, queue, state FROM jobs \
     WHERE type = $1 AND (created_at, id) < ($2, $3) AND created_at >= $4 \
     AND ($5::int[] IS NULL OR queue = ANY($5)) ORDER BY created_at DESC, id DESC LIMIT $6";
pub(super) const ENDED_BY_TYPE: &str = "SELECT created_at, id, queue, state FROM ended \
     WHERE type = $1 AND (created_at, id) < ($2, $3) AND created_at >= $4 \
     AND ($5::int[] IS NULL OR queue = ANY($5)) AND forget_at > $7 \
     ORDER BY created_at DESC, id DESC LIMIT $6";
pub(super) const ENDED_BY_STATE: &str = "SELECT created_at, id, queue, state FROM ended \
     WHERE state = $1 AND state > 2 AND (created_at, id) < ($2, $3) AND created_at >= $4 \
     AND ($5::int[] IS NULL OR queue = ANY($5)) AND forget_at > $7 \
     ORDER BY created_at DESC, id DESC LIMIT $6";
/// The times are compared outside, where no index by time can be used: it begins with the type, and on few
/// rows the planner would read all of it.
pub(super) const RUNNING: &str = "SELECT created_at, id, queue, state \
     FROM (SELECT created_at, id, queue, state FROM jobs WHERE state = 1 AND queue = $1 OFFSET 0) j \
     WHERE (created_at, id) < ($2, $3) AND created_at >= $4 \
     AND ($5::int[] IS NULL OR queue = ANY($5)) ORDER BY created_at DESC, id DESC LIMIT $6";

/// A live job of a type, in any queue or in one.
const LIVE_OF_TYPE: &str = concat!(
    "SELECT ",
    super::row::job_columns!("j"),
    " FROM jobs j WHERE j.type = $1 AND ($2::int IS NULL OR j.queue = $2) LIMIT 1"
);
/// A live job of a queue.
const LIVE_OF_QUEUE: &str = concat!(
    "(SELECT ",
    super::row::job_columns!("j"),
    " FROM jobs j WHERE j.queue = $1 AND j.state = 0 LIMIT 1) UNION ALL (SELECT ",
    super::row::job_columns!("j"),
    " FROM jobs j WHERE j.queue = $1 AND j.state = 1 LIMIT 1) LIMIT 1"
);
/// The first live job.
const LIVE: &str =
    concat!("SELECT ", super::row::job_columns!("j"), " FROM jobs j ORDER BY j.id LIMIT 1");

/// The statements above, whose plans are tested.
#[cfg(test)]
pub(super) const ALL: [&str; 7] =
    [LIVE_BY_TYPE, ENDED_BY_TYPE, ENDED_BY_STATE, RUNNING, LIVE_OF_TYPE, LIVE_OF_QUEUE, LIVE];

/// A job's place in a list, and what decides whether it is read.
struct Place {
    created_at: i64,
    id: String,
    queue: i32,
    state: i16,
}

/// The places of jobs of one kind, newest first.
struct Stream {
    sql: &'static str,
    number: i32,
    read: VecDeque<Place>,
    ended: bool,
}

/// A place before which a page starts.
type Before = (i64, String);

impl PostgresStore {
    pub(super) async fn list_page(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        let mut page = ListPage::default();
        let Some(mut before) = start(query) else { return Ok(page) };
        let names = self.names.refresh(&self.readers).await?;
        let (queues, types) = names.selected(query);
        let is_bounded = query.within_queues.is_some() || query.filter.queue.is_some();
        let within: Option<Vec<i32>> = is_bounded.then(|| queues.iter().copied().collect());
        let states: Vec<i16> = query
            .filter
            .stored_states()
            .into_iter()
            .map(|state| state_number(state) as i16)
            .collect();
        let mut streams = streams(query, &queues.iter().copied().collect::<Vec<_>>(), types);
        let mut scanned = 0;
        loop {
            let mut some: Vec<Place> = Vec::new();
            let mut is_over = false;
            while some.len() < READ_TOGETHER.min(query.limit as usize + 1) && scanned < MAX_SCANNED
            {
                self.fill(&mut streams, &before, query, within.as_ref()).await?;
                let newest = |stream: &&mut Stream| {
                    stream.read.front().map(|place| (place.created_at, place.id.clone()))
                };
                let Some(place) = streams
                    .iter_mut()
                    .max_by_key(newest)
                    .and_then(|stream| stream.read.pop_front())
                else {
                    is_over = true;
                    break;
                };
                scanned += 1;
                before = (place.created_at, place.id.clone());
                let is_wanted = states.is_empty() || states.contains(&place.state);
                if is_wanted && queues.contains(&place.queue) {
                    some.push(place);
                }
            }
            let ids: Vec<&str> = some.iter().map(|place| &place.id[..]).collect();
            let mut found = self.jobs(&ids).await?;
            for place in &some {
                match found.remove(&place.id) {
                    Some(Ok(job)) if query.asks_for(&job) => {
                        if page.jobs.len() == query.limit as usize {
                            page.next_cursor = page.jobs.last().map(|job| cursor(&position(job)));
                            return Ok(page);
                        }
                        page.jobs.push(job);
                    }
                    Some(Err(job)) if page.unreadable.len() < MAX_UNREADABLE => {
                        page.unreadable.push(job);
                    }
                    _ => {}
                }
            }
            if is_over {
                return Ok(page);
            }
            if scanned >= MAX_SCANNED {
                page.next_cursor = Some(cursor(&before));
                return Ok(page);
            }
        }
    }

    /// Reads on in each stream whose places are used up.
    async fn fill(
        &self,
        streams: &mut [Stream],
        before: &Before,
        query: &ListQuery,
        within: Option<&Vec<i32>>,
    ) -> Result<(), StoreError> {
        let from = query.filter.created.from.map_or(i64::MIN, Timestamp::millis);
        let now = self.clock.now().millis();
        let read = |stream: &Stream| {
            let (sql, number) = (stream.sql, stream.number);
            async move {
                // The number of a state is short.
                let state = number as i16;
                let first: Param<'_> = if sql == ENDED_BY_STATE { &state } else { &number };
                let within: Param<'_> = &within;
                let params = [first, &before.0, &before.1, &from, within, &CHUNK, &now];
                let has_end = sql == ENDED_BY_TYPE || sql == ENDED_BY_STATE;
                let params = if has_end { &params[..] } else { &params[..6] };
                self.readers.query(sql, params).await
            }
        };
        let empty: Vec<usize> = (0..streams.len())
            .filter(|index| streams[*index].read.is_empty() && !streams[*index].ended)
            .collect();
        let rows = try_join_all(empty.iter().map(|index| read(&streams[*index]))).await?;
        for (index, rows) in empty.into_iter().zip(rows) {
            let stream = &mut streams[index];
            stream.ended = rows.len() < CHUNK as usize;
            for row in &rows {
                stream.read.push_back(Place {
                    created_at: row::column(row, 0)?,
                    id: row::column(row, 1)?,
                    queue: row::column(row, 2)?,
                    state: row::column(row, 3)?,
                });
            }
        }
        Ok(())
    }

    /// A job that has not ended, of a type or in a queue.
    pub(super) async fn any_live_job(
        &self,
        job_type: Option<&TypeName>,
        queue: Option<&QueueName>,
    ) -> Result<Option<Result<Job, UnreadableJob>>, StoreError> {
        let names = self.names.with(&self.readers, queue, job_type).await?;
        let type_number = job_type.map(|name| names.job_type(name));
        let queue_number = queue.map(|name| names.queue(name));
        if type_number == Some(None) || queue_number == Some(None) {
            return Ok(None);
        }
        // The counts are exact. They save a search through a type's jobs in other queues.
        let is_one = self.depths(queue).await?.counts.into_iter().any(|depth| {
            !matches!(depth.state, StateFilter::Ended(_))
                && job_type.is_none_or(|name| *name == depth.job_type)
        });
        if !is_one {
            return Ok(None);
        }
        let (type_number, queue_number) = (type_number.flatten(), queue_number.flatten());
        let rows = match (type_number, queue_number) {
            (Some(job_type), queue) => {
                self.readers.query(LIVE_OF_TYPE, &[&job_type, &queue]).await?
            }
            (None, Some(queue)) => self.readers.query(LIVE_OF_QUEUE, &[&queue]).await?,
            (None, None) => self.readers.query(LIVE, &[]).await?,
        };
        let now = self.clock.now();
        Ok(rows.first().map(|row| row::stored(row, now)))
    }
}

/// The place before which the page of `query` starts; none if its cursor is invalid.
fn start(query: &ListQuery) -> Option<Before> {
    let end = query.filter.created.to.map_or((i64::MAX, MAX_ID.to_owned()), |to| {
        // No id is empty.
        (to.millis(), String::new())
    });
    let Some(text) = &query.cursor else { return Some(end) };
    let cursor: Cursor = text.parse().ok()?;
    cursor.tie.parse::<JobId>().ok()?;
    Some(end.min((cursor.created_at.millis(), cursor.tie)))
}

fn position(job: &Job) -> Before {
    (job.spec.created_at.millis(), job.id.to_string())
}

fn cursor((created_at, id): &Before) -> String {
    Cursor { created_at: Timestamp::from_millis(*created_at), tie: id.clone() }.to_string()
}

/// The streams that hold every job that may match `query`.
fn streams(query: &ListQuery, queues: &[i32], types: impl IntoIterator<Item = i32>) -> Vec<Stream> {
    let stream = |sql, number| Stream { sql, number, read: VecDeque::new(), ended: false };
    let states = query.filter.stored_states();
    let is_ended = |state: &StateFilter| matches!(state, StateFilter::Ended(_));
    let is_rare =
        |state: &StateFilter| is_ended(state) && *state != StateFilter::Ended(Outcome::Succeeded);
    let bounds_types = query.within_types.is_some();
    if !states.is_empty() && !bounds_types && states.iter().all(is_rare) {
        let numbers = states.iter().map(|state| state_number(*state) as i32);
        return numbers.map(|number| stream(ENDED_BY_STATE, number)).collect();
    }
    if !bounds_types && states == [StateFilter::Running] {
        return queues.iter().map(|queue| stream(RUNNING, *queue)).collect();
    }
    let mut all = Vec::new();
    for number in types {
        if states.is_empty() || !states.iter().all(is_ended) {
            all.push(stream(LIVE_BY_TYPE, number));
        }
        if states.is_empty() || states.iter().any(is_ended) {
            all.push(stream(ENDED_BY_TYPE, number));
        }
    }
    all
}
