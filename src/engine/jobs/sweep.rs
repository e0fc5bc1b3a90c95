//! `sweep`: applies the passing of time to jobs that no request concerns: they expire, miss their
//! deadline, lose a lease that no grant watches, or reach the end of their retention.

use crate::{Catalog, Engine, Error, jobs::job_writes::lifecycle_write, tick};
use tidegate_core::{
    job::{Event, Job, State, Version},
    port::{Committed, Txn, Write, job_store::OverduePage},
    time::Timestamp,
};

/// Jobs that one sweep reads, unless it can change none of them.
const MIN_SWEPT_JOBS: u32 = 500;
/// Jobs that one sweep reads at most.
const MAX_SWEPT_JOBS: u32 = 16 * MIN_SWEPT_JOBS;

/// The result of a sweep.
#[derive(Debug, Default)]
pub struct Swept {
    /// Scheduled or running jobs that changed, each with the version before the change.
    pub changed: Vec<(Job, Version)>,
    /// Jobs that await a retry decision.
    pub pending: Vec<Job>,
    /// How many ended jobs were removed.
    pub removed: usize,
    /// When the next sweep is due; now if there are more jobs.
    pub next_at: Option<Timestamp>,
    /// Whether the sweep read as many jobs as it may.
    full: bool,
}

impl Engine {
    /// Applies what is due to at most 500 jobs.
    ///
    /// A sweep cannot change a job that was dispatched without a claim or that awaits a retry
    /// decision. If it can change no job that it read, it reads more, up to 8,000, so that such
    /// jobs do not keep the others waiting.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn sweep(&self) -> Result<Swept, Error> {
        let mut limit = MIN_SWEPT_JOBS;
        loop {
            let swept = self.sweep_first(limit).await?;
            let stuck = swept.full && swept.changed.is_empty() && swept.removed == 0;
            if !stuck || limit >= MAX_SWEPT_JOBS {
                // The next sweep follows at once only if this one changed a job. Otherwise it would
                // find the same jobs again.
                return Ok(Swept { next_at: swept.next_at.filter(|_| !stuck), ..swept });
            }
            limit *= 2;
        }
    }

    /// Sweeps the first `limit` overdue jobs.
    async fn sweep_first(&self, limit: u32) -> Result<Swept, Error> {
        let now = self.now();
        let catalog = self.catalog().await?;
        let OverduePage { jobs, next_at, .. } = self.overdue_page(now, limit).await?;
        let full = jobs.len() as u32 == limit;
        let mut swept =
            Swept { next_at: if full { Some(now) } else { next_at }, full, ..Swept::default() };
        let mut changes: Vec<(Job, Option<Job>)> = Vec::with_capacity(jobs.len());
        let held = self.unclaimed.hold(jobs.iter().map(|job| &job.id));
        for job in jobs {
            // A job that was dispatched without a claim waits for its result.
            if !held.holds(&job.id) {
                continue;
            }
            let after = self.overdue_change(&catalog, &job, now);
            if after.is_some() || job.life.ended().is_some() {
                changes.push((job, after));
            } else if job.life.awaits_retry_decision() {
                swept.pending.push(job);
            }
        }
        let txns: Vec<Txn> = changes
            .iter()
            .map(|(job, after)| match after {
                Some(after) if job.life.ended().is_some() => {
                    lifecycle_write(job.life.revision, after)
                }
                Some(after) => self.change_writes(job.life.revision, after, false, now),
                None => vec![Write::RemoveJob { id: job.id.clone(), was: job.life.revision }],
            })
            .collect();
        if txns.is_empty() {
            return Ok(swept);
        }
        let outcomes = self.ports.store.commit(txns).await?;
        for ((job, after), outcome) in changes.into_iter().zip(outcomes) {
            if matches!(outcome, Committed::All) {
                self.finish_change(&mut swept, job, after).await;
            }
        }
        Ok(swept)
    }

    /// The first `limit` overdue jobs. If jobs that cannot be read are before them, each sweep
    /// reads one page further than the last one.
    async fn overdue_page(&self, now: Timestamp, limit: u32) -> Result<OverduePage, Error> {
        let store = &self.ports.store;
        let mut page = store.overdue(now, None, limit).await?;
        let Some(front) = page.next else { return Ok(page) };
        let reached = self.overdue_reached.lock().take().filter(|reached| *reached > front);
        let left = limit - page.jobs.len() as u32;
        let deeper = store.overdue(now, Some(reached.unwrap_or(front)), left).await?;
        *self.overdue_reached.lock() = deeper.next;
        page.jobs.extend(deeper.jobs);
        let next_at = if deeper.next.is_some() { Some(now) } else { deeper.next_at };
        Ok(OverduePage { next_at, ..page })
    }

    /// The job after what is due at `now`. None if nothing is due, or if an ended job is to be
    /// removed.
    fn overdue_change(&self, catalog: &Catalog, job: &Job, now: Timestamp) -> Option<Job> {
        match &job.life.state {
            State::Ended { .. }
                if job.life.kept_until(&job.spec).is_some_and(|until| until <= now) =>
            {
                None
            }
            State::Ended { .. } => job.apply(Event::ForgetResult, now).ok(),
            State::Scheduled { .. } => tick::overdue(job, now),
            State::Running(_) => {
                let expired = || job.apply(tick::lease_expired(self, catalog, job)?, now).ok();
                job.apply(Event::Deadline, now).ok().or_else(expired)
            }
        }
    }

    /// Adds a committed change to the result, and deletes the objects that no job names after it.
    async fn finish_change(&self, swept: &mut Swept, job: Job, after: Option<Job>) {
        let Some(after) = after else {
            Box::pin(self.forget_objects(&job)).await;
            swept.removed += 1;
            return;
        };
        self.cache_job(&after);
        Box::pin(self.forget_replaced(&job, &after)).await;
        if after.life.awaits_retry_decision() {
            swept.pending.push(after.clone());
        }
        if job.life.ended().is_none() {
            swept.changed.push((after, job.life.version));
        }
    }
}
