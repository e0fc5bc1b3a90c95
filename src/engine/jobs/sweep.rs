//! `sweep`: what must happen to a job although nobody asks: it expires, its deadline comes, its lease
//! ends with no grant to watch it, its result or itself is no longer kept.

use crate::{Engine, Error, jobs::job_writes::note, tick};
use tidegate_core::{
    job::{Event, Job, State, Version},
    port::{Committed, Txn, Write},
    time::Timestamp,
};

/// Most jobs that one sweep takes, unless nothing can be done about any of them.
const SWEEP: u32 = 500;
/// Most jobs that one sweep looks at.
const MOST: u32 = 16 * SWEEP;

/// What a sweep did.
#[derive(Debug, Default)]
pub struct Swept {
    /// Jobs that were scheduled or running and changed, with the version they left.
    pub changed: Vec<(Job, Version)>,
    /// Jobs that wait for their retry strategy to be asked.
    pub pending: Vec<Job>,
    /// How many ended jobs were removed.
    pub removed: usize,
    /// When the next sweep is due; now if there is more.
    pub next_at: Option<Timestamp>,
    /// Whether there were as many as were looked at.
    full: bool,
}

impl Engine {
    /// Does what is due for at most 500 jobs.
    ///
    /// Those about which nothing can be done now, since they were handed on without a claim or wait for a verdict, are looked
    /// past: however many there are, they keep nobody else waiting.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn sweep(&self) -> Result<Swept, Error> {
        let mut limit = SWEEP;
        loop {
            let swept = self.sweep_first(limit).await?;
            let stuck = swept.full && swept.changed.is_empty() && swept.removed == 0;
            if !stuck || limit >= MOST {
                // At once only if something moved: else the same would be found again.
                return Ok(Swept { next_at: swept.next_at.filter(|_| !stuck), ..swept });
            }
            limit *= 2;
        }
    }

    async fn sweep_first(&self, limit: u32) -> Result<Swept, Error> {
        let now = self.now();
        let catalog = self.catalog().await?;
        let (jobs, next_at) = self.ports.store.overdue(now, limit).await?;
        let full = jobs.len() as u32 == limit;
        let mut swept =
            Swept { next_at: if full { Some(now) } else { next_at }, full, ..Swept::default() };
        let mut changes: Vec<(Job, Option<Job>)> = Vec::with_capacity(jobs.len());
        let held = self.unclaimed.hold(jobs.iter().map(|job| &job.id));
        for job in jobs {
            // Handed on without a claim: its result says what becomes of it.
            if !held.holds(&job.id) {
                continue;
            }
            let kept_until = |at: Timestamp| at + job.spec.retention.duration();
            let after = match &job.life.state {
                State::Ended { at, .. } if kept_until(*at) <= now => None,
                State::Ended { .. } => job.apply(Event::ForgetResult, now).ok(),
                State::Scheduled { .. } => tick::overdue(&job, now),
                State::Running(_) => {
                    let over = || job.apply(tick::lease_over(self, &catalog, &job), now).ok();
                    job.apply(Event::Deadline, now).ok().or_else(over)
                }
            };
            if after.is_some() || job.life.ended().is_some() {
                changes.push((job, after));
            } else if job.life.awaits_retry_decision() {
                swept.pending.push(job);
            }
        }
        let txns: Vec<Txn> = changes
            .iter()
            .map(|(job, after)| match after {
                Some(after) if job.life.ended().is_some() => note(job.life.revision, after),
                Some(after) => self.change(job.life.revision, after, false, now),
                None => vec![Write::RemoveJob { id: job.id.clone(), was: job.life.revision }],
            })
            .collect();
        if txns.is_empty() {
            return Ok(swept);
        }
        let outcomes = self.ports.store.commit(txns).await?;
        for ((job, after), outcome) in changes.into_iter().zip(outcomes) {
            if !matches!(outcome, Committed::All) {
                continue;
            }
            match after {
                None => {
                    Box::pin(self.forget_objects(&job)).await;
                    swept.removed += 1;
                }
                Some(after) => {
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
        }
        Ok(swept)
    }
}
