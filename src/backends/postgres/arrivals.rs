//! The queues of new jobs by polling: what a server reads while it gets no notices. The places of these
//! jobs go to the store, whose next page finds them.
//!
//! Ids that servers draw ascend with time, so a range of the primary key has the jobs of the last second.
//! Most ids that callers choose are after that range. The next tick of their queue finds such jobs: within
//! a second while workers wait.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_postgres::Row;
use ulid::Ulid;

use super::{
    connect::Readers,
    due::{DuePlace, Positions, Stream},
    names::Names,
    row,
};
use tidegate_core::{
    job::QueueName,
    port::{Clock, StoreError},
    time::Timestamp,
};

/// The latest jobs between two ids, and where they are due.
const LATEST: &str = "SELECT id, queue, critical, partition, type, priority, run_at FROM jobs \
     WHERE id > $1 AND id < $2 ORDER BY id DESC LIMIT $3";

/// The statements of this module, whose plans are tested.
#[cfg(test)]
pub(super) const ALL: [&str; 1] = [LATEST];

/// The time between two reads.
const INTERVAL: Duration = Duration::from_millis(40);
/// How long before a read a job may have got its id: clocks differ, and a commit takes time.
const WINDOW: Duration = Duration::from_secs(1);
/// How far the clocks of other servers may be ahead.
const AHEAD: Duration = Duration::from_hours(1);
/// Most jobs of one read. The queues of others are found by their next ticks.
const MAX_JOBS: i64 = 200;

/// What one server has read.
pub(super) struct Arrivals {
    readers: Arc<Readers>,
    names: Names,
    clock: Arc<dyn Clock>,
    /// Where the pages of the store start.
    positions: Arc<Positions>,
    interval: Interval,
    /// The jobs of the latest read.
    seen: HashSet<String>,
}

impl Arrivals {
    /// Reads nothing yet. The first call of [`Self::next`] reads at once.
    pub(super) fn new(
        readers: Arc<Readers>,
        clock: Arc<dyn Clock>,
        positions: Arc<Positions>,
    ) -> Self {
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (names, seen) = (Names::default(), HashSet::new());
        Self { readers, names, clock, positions, interval, seen }
    }

    /// Waits until a read is due. Returns the queues with jobs that came since the read before.
    pub(super) async fn next(&mut self) -> Result<BTreeSet<QueueName>, StoreError> {
        self.interval.tick().await;
        let now = self.clock.now();
        let (from, until) = (first_id(now - WINDOW), first_id(now + AHEAD));
        let rows = self.readers.query(LATEST, &[&from, &until, &MAX_JOBS]).await?;
        let (mut read, mut numbers) = (HashSet::with_capacity(rows.len()), BTreeSet::new());
        let mut due = Vec::new();
        for row in &rows {
            let (id, queue): (String, i32) = (row::column(row, 0)?, row::column(row, 1)?);
            if !self.seen.contains(&id) {
                numbers.insert(queue);
                due.extend(due_place(row)?);
            }
            read.insert(id);
        }
        // Before the notices, whose ticks read the next pages.
        self.positions.scheduled(&due, Instant::now());
        let mut known = self.names.known();
        if numbers.iter().any(|number| known.queue_name(*number).is_none()) {
            known = self.names.refresh(&self.readers).await?;
        }
        self.seen = read;
        Ok(numbers.into_iter().filter_map(|number| known.queue_name(number).cloned()).collect())
    }
}

/// Where the job of a row is due, if it is scheduled.
fn due_place(row: &Row) -> Result<Option<DuePlace>, StoreError> {
    let Some(run_at) = row::column(row, 6)? else { return Ok(None) };
    let (partition, job_type, priority) =
        (row::column(row, 3)?, row::column(row, 4)?, row::column(row, 5)?);
    Ok(Some(DuePlace {
        queue: row::column(row, 1)?,
        critical: row::column(row, 2)?,
        stream: Stream { partition, job_type, priority },
        place: (run_at, row::column(row, 0)?),
    }))
}

/// An id that is not greater than those that are drawn at `at` or later.
fn first_id(at: Timestamp) -> String {
    Ulid::from_parts(at.millis().max(0) as u64, 0).to_string().to_ascii_lowercase()
}
