//! Jobs that must be checked without a request, by their times.
//!
//! A heartbeat that extends a lease keeps the time of the check in the job's row, so that it changes no
//! index (a HOT update). The time may thus be too early, and never too late. A page that finds such a job
//! leaves it out, and moves its check to the end of the lease: once in each lease, and not at each heartbeat.

use tokio::time::Instant;

use super::{
    PostgresStore,
    due::{Stream, WAKES},
    error::is_slow,
    read::MAX_UNREADABLE_ROWS,
    row::{self, job_columns},
};
use tidegate_core::{
    error_chain::ErrorChain,
    job::Job,
    port::{
        StoreError,
        job_store::{OverduePage, WakePosition},
    },
    time::Timestamp,
};

/// Jobs that have ended are among them only if they name an object.
const OVERDUE: &str = concat!(
    "(SELECT ",
    job_columns!("j"),
    ", j.wake_at FROM jobs j WHERE j.wake_at >= $1 AND j.wake_at <= $2 \
     ORDER BY j.wake_at, j.id LIMIT $3) UNION ALL (SELECT ",
    job_columns!("e"),
    ", e.wake_at FROM ended e WHERE e.wake_at >= $1 AND e.wake_at <= $2 \
     ORDER BY e.wake_at, e.id LIMIT $3) ORDER BY wake_at, id OFFSET $4 LIMIT $5"
);
const NEXT_WAKE: &str = "SELECT least((SELECT min(wake_at) FROM jobs WHERE wake_at > $1), \
     (SELECT min(wake_at) FROM ended WHERE wake_at > $1))";
/// A job that has changed since it was read keeps its time. The revision stays, because nothing of the job
/// changes: a write that expects it is not refused.
const MOVE_WAKES: &str = "UPDATE jobs j SET wake_at = w.wake_at \
     FROM unnest($1::text[], $2::bigint[], $3::bigint[]) w(id, revision, wake_at) \
     WHERE j.id = w.id AND j.revision = w.revision AND j.id = ANY($1)";

/// The statements above, whose plans are tested.
#[cfg(test)]
pub(super) const ALL: [&str; 3] = [OVERDUE, NEXT_WAKE, MOVE_WAKES];

/// A running job whose check is too early.
struct Early {
    job: Job,
    /// The time of its check in its row.
    at: i64,
    /// When it must be checked.
    wake_at: Timestamp,
}

impl PostgresStore {
    /// The first page starts where the last one found the first job, and every five seconds at the
    /// front.
    pub(super) async fn overdue_jobs(
        &self,
        until: Timestamp,
        after: Option<WakePosition>,
        limit: u32,
    ) -> Result<OverduePage, StoreError> {
        if after.is_some() {
            return Ok(self.overdue_page(until, after, limit).await?.0);
        }
        let positions = &self.shared.positions;
        let began = Instant::now();
        let mut start = positions.start(WAKES, began, |_| true);
        let known = start.streams.as_ref().and_then(|streams| streams.first());
        let known = known.map_or(i64::MIN, |(_, place)| place.0);
        if start.is_look {
            positions.look(WAKES, &mut start, &[Stream::default()], (began, began));
        }
        let is_from_front = start.is_look || known == i64::MIN;
        let from = if is_from_front { i64::MIN } else { known };
        let from = WakePosition { at: Timestamp::from_millis(from), tie: 0 };
        let (page, first) = match self.overdue_page(until, Some(from), limit).await {
            Err(error) if is_from_front && is_slow(&error) => {
                positions.keep(WAKES, (began, Instant::now()));
                return Err(error);
            }
            page => page?,
        };
        let first = first.unwrap_or(until.millis().saturating_add(1));
        positions.learn(WAKES, &start, [(Stream::default(), (first, String::new()))]);
        Ok(page)
    }

    /// A page, and the time of its first row.
    async fn overdue_page(
        &self,
        until: Timestamp,
        after: Option<WakePosition>,
        limit: u32,
    ) -> Result<(OverduePage, Option<i64>), StoreError> {
        let next = self.readers.query(NEXT_WAKE, &[&until.millis()]).await?;
        let next: Option<i64> = next.first().map_or(Ok(None), |row| row::column(row, 0))?;
        let mut page =
            OverduePage { next_at: next.map(Timestamp::from_millis), ..OverduePage::default() };
        // The tie is the number of jobs of the instant that were read.
        let (mut from, mut tie) =
            after.map_or((i64::MIN, 0), |after| (after.at.millis(), after.tie));
        let (mut first, mut damaged, mut early) = (None, 0, Vec::new());
        while page.jobs.len() < limit as usize {
            let most = i64::from(limit) - page.jobs.len() as i64;
            let (last, each) = (until.millis(), most + tie);
            let rows = self.readers.query(OVERDUE, &[&from, &last, &each, &tie, &most]).await?;
            for row in &rows {
                let at: i64 = row::column(row, 6)?;
                first.get_or_insert(at);
                (from, tie) = if at == from { (from, tie + 1) } else { (at, 1) };
                // The result of a job is not hidden here: a sweep deletes its object.
                match row::stored(row, Timestamp::from_millis(i64::MIN)) {
                    Ok(job) => match later_check(&job, until) {
                        Some(wake_at) => early.push(Early { job, at, wake_at }),
                        None => page.jobs.push(job),
                    },
                    Err(_) => damaged += 1,
                }
            }
            if rows.len() < most as usize {
                break;
            }
            if damaged + early.len() >= MAX_UNREADABLE_ROWS as usize {
                page.next = Some(WakePosition { at: Timestamp::from_millis(from), tie });
                break;
            }
        }
        let next_at = early.iter().map(|early| early.wake_at);
        page.next_at = next_at.chain(page.next_at).min();
        if let Some(next) = &mut page.next {
            // The next page counts the jobs of this instant, and these leave it. If one does not, a job
            // may be in two pages.
            next.tie -= early.iter().filter(|early| early.at == from).count() as i64;
        }
        self.move_checks(early).await;
        Ok((page, first))
    }

    /// Moves the checks of `early` jobs to their times. If that fails, later pages find the jobs again.
    async fn move_checks(&self, mut early: Vec<Early>) {
        if early.is_empty() {
            return;
        }
        // All writes lock rows in the order of their ids.
        early.sort_unstable_by(|a, b| a.job.id.cmp(&b.job.id));
        let ids: Vec<&str> = early.iter().map(|early| early.job.id.as_str()).collect();
        let revisions: Vec<i64> =
            early.iter().map(|early| early.job.life.revision.0 as i64).collect();
        let times: Vec<i64> = early.iter().map(|early| early.wake_at.millis()).collect();
        let moved = self.readers.query(MOVE_WAKES, &[&ids, &revisions, &times]).await;
        if let Err(error) = moved {
            let error = ErrorChain(&error);
            tracing::debug!(%error, "the next checks of running jobs were not moved");
        }
    }
}

/// When a running `job` must be checked, if that is after `until`.
fn later_check(job: &Job, until: Timestamp) -> Option<Timestamp> {
    job.life.running()?;
    job.life.wake_at(&job.spec).filter(|wake_at| *wake_at > until)
}
