//! The numbers of jobs by queue, type and state.
//!
//! Each transaction appends its changes, so that none waits for another one. A read sums them up,
//! and replaces them by their sums when they have become many. While an old transaction is open, that
//! takes long and helps no later read, so it is seldom done then.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{PostgresStore, pause::pause_after, row};
use crate::job_columns::state_of;
use tidegate_core::{
    error_chain::ErrorChain,
    job::QueueName,
    port::{
        StoreError,
        job_store::{Depth, Depths},
    },
};

/// Changes after which they are replaced by their sums.
const MAX_CHANGES: i64 = 5_000;
/// How often this server replaces them at most.
const FOLD_INTERVAL: Duration = Duration::from_secs(1);

const SUMS: &str = "SELECT queue, type, state, sum(jobs)::bigint, count(*) FROM counts \
     GROUP BY 1, 2, 3";
/// Two servers that do this at once take different rows, or one of them waits.
const FOLD: &str = "WITH d AS (DELETE FROM counts RETURNING queue, type, state, jobs) \
     INSERT INTO counts (queue, type, state, jobs) \
     SELECT queue, type, state, sum(jobs) FROM d GROUP BY 1, 2, 3 HAVING sum(jobs) <> 0";

/// The statements above, whose plans are tested. [`FOLD`] reads the whole table, which it empties.
#[cfg(test)]
pub(super) const ALL: [&str; 1] = [SUMS];

/// When this server may replace the changes again; none if it has not yet.
#[derive(Default)]
pub(super) struct Folds(Mutex<Option<Instant>>);

impl Folds {
    /// Whether the changes may be replaced at `now`. If so, the answer is `false` for the next second, or
    /// until the time that [`Folds::ended`] sets.
    fn start(&self, now: Instant) -> bool {
        let mut next_at = self.0.lock();
        let is_due = next_at.is_none_or(|next_at| next_at <= now);
        if is_due {
            *next_at = Some(now + FOLD_INTERVAL);
        }
        is_due
    }

    /// Sets the next time, after the changes were replaced from `began` until `now`, or could not be.
    fn ended(&self, (began, now): (Instant, Instant)) {
        *self.0.lock() = Some(now + pause_after(now - began, FOLD_INTERVAL));
    }
}

impl PostgresStore {
    pub(super) async fn depths(&self, queue: Option<&QueueName>) -> Result<Depths, StoreError> {
        let rows = self.readers.query(SUMS, &[]).await?;
        let (mut sums, mut changes) = (Vec::with_capacity(rows.len()), 0);
        for row in &rows {
            let (in_queue, of_type): (i32, i32) = (row::column(row, 0)?, row::column(row, 1)?);
            let (state, jobs): (i16, i64) = (row::column(row, 2)?, row::column(row, 3)?);
            changes += row::column::<i64>(row, 4)?;
            if jobs > 0 {
                sums.push((in_queue, of_type, state, jobs.unsigned_abs()));
            }
        }
        if changes > MAX_CHANGES + sums.len() as i64 {
            self.fold_counts_in_turn().await;
        }
        let mut names = self.names.known();
        if sums.iter().any(|(queue, of_type, ..)| {
            names.queue_name(*queue).is_none() || names.type_name(*of_type).is_none()
        }) {
            names = self.names.refresh(&self.readers).await?;
        }
        let depth = |(in_queue, of_type, state, jobs): (i32, i32, i16, u64)| -> Option<Depth> {
            let (queue, job_type) =
                (names.queue_name(in_queue)?.clone(), names.type_name(of_type)?.clone());
            Some(Depth { queue, job_type, state: state_of(state.into())?, jobs, phases: None })
        };
        let mut counts: Vec<Depth> = sums.into_iter().filter_map(depth).collect();
        counts.retain(|depth| queue.is_none_or(|name| *name == depth.queue));
        Ok(Depths { counts, kept: None })
    }

    /// Replaces the changes by their sums, unless it is too early to do so again. The sums are right without
    /// it, so an error is only logged.
    pub(super) async fn fold_counts_in_turn(&self) {
        if self.shared.folds.start(Instant::now())
            && let Err(error) = self.fold_counts().await
        {
            let error = ErrorChain(&error);
            tracing::debug!(%error, "the changes of the numbers of jobs were not summed up");
        }
    }

    /// Replaces the changes by their sums.
    pub(super) async fn fold_counts(&self) -> Result<(), StoreError> {
        let began = Instant::now();
        let folded = self.readers.query(FOLD, &[]).await;
        self.shared.folds.ended((began, Instant::now()));
        folded.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_changes_are_replaced_seldom_if_that_takes_long() {
        let (folds, now) = (Folds::default(), Instant::now());
        assert!(folds.start(now));
        assert!(!folds.start(now), "one at a time");
        let ended = now + Duration::from_secs(2);
        folds.ended((now, ended));
        assert!(!folds.start(ended + Duration::from_secs(39)));
        assert!(folds.start(ended + Duration::from_secs(40)));
        let quick = ended + Duration::from_secs(50);
        folds.ended((quick, quick));
        assert!(folds.start(quick + FOLD_INTERVAL));
    }
}
