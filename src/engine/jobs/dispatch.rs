//! `dispatch`: sends the jobs of a queue without a ledger through the work queue, so that each
//! arrives when it is due.
//!
//! The one thing to know: no job is written. A job that is sent twice is claimed once. A job whose
//! message is lost is sent again when it is late.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Catalog, Engine, Error, tick};
use tidegate_core::{
    job::{Job, QueueName, TypeName, type_config::Start},
    port::{StoreError, Work, job_store::ScanQuery},
    queue::Limits,
    time::Timestamp,
};

/// How late a job is when its message is presumed lost.
pub(super) const MESSAGE_LOST_AFTER: Duration = Duration::from_mins(2);

/// The result of a dispatch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dispatched {
    /// How many jobs were sent.
    pub sent: usize,
    /// If it stopped before its end: what is due before this instant was sent.
    pub stopped_at: Option<Timestamp>,
    /// When the oldest late job was due, whether it was sent or not.
    pub oldest_due_at: Option<Timestamp>,
}

/// When a dispatch stops, after any of its pages.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// At this instant or later.
    pub at: Timestamp,
    /// After so many jobs or more were read.
    pub jobs: usize,
}

/// A pass over the late jobs, which several sweeps may continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LatePass {
    /// When it began.
    pub began: Timestamp,
    /// When the pass before it began.
    pub previous: Option<Timestamp>,
    /// If it is not over: it has covered the jobs that are due up to here.
    pub done: Option<Timestamp>,
}

impl LatePass {
    /// The pass that a sweep at `now` continues or begins after `latest`.
    pub(super) fn at(now: Timestamp, latest: Option<Self>) -> Self {
        // After a step back of the clock all begins again.
        match latest.filter(|latest| latest.began <= now) {
            Some(pass) if pass.done.is_some() => pass,
            latest => Self { began: now, previous: latest.map(|pass| pass.began), done: None },
        }
    }
}

/// The due times of the jobs to send.
#[derive(Clone, Copy)]
struct DueRange {
    /// After this instant; none for any.
    from: Option<Timestamp>,
    /// At this instant or before.
    until: Timestamp,
}

impl Engine {
    /// Whether `queue` has no ledger and needs none, so that its jobs start without a grant.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn is_unlimited(&self, queue: &QueueName) -> Result<bool, Error> {
        let catalog = self.catalog().await?;
        self.is_unlimited_in(queue, &catalog).await
    }

    /// Whether `queue` is unlimited under `catalog`, which was just read.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn is_unlimited_in(
        &self,
        queue: &QueueName,
        catalog: &Catalog,
    ) -> Result<bool, Error> {
        self.is_unlimited_under(queue, catalog, &catalog.limits(queue)).await
    }

    /// Whether `queue` is unlimited under its `limits` in `catalog`.
    pub(crate) async fn is_unlimited_under(
        &self,
        queue: &QueueName,
        catalog: &Catalog,
        limits: &Limits,
    ) -> Result<bool, Error> {
        if limits.any() {
            return Ok(false);
        }
        if self.unlimited.lock().get(queue) == Some(&catalog.version) {
            return Ok(true);
        }
        let unlimited = match self.ports.store.ledger(queue).await {
            // There is one. Only the ticks of its queue need to read it.
            Err(StoreError::Corrupt(_)) => false,
            ledger => ledger?.is_none(),
        };
        if unlimited {
            self.unlimited.lock().insert(queue.clone(), catalog.version);
        }
        Ok(unlimited)
    }

    /// Whether jobs of `job_type` are dispatched: it is a push type.
    pub fn is_dispatched(&self, catalog: &Catalog, job_type: &TypeName) -> bool {
        catalog.types.get(job_type).is_some_and(|item| self.is_pushed(&item.config))
    }

    /// Whether workers lease the jobs of `job_type`. A type that cannot be read may be dispatched.
    pub(crate) fn is_leased(&self, catalog: &Catalog, job_type: &TypeName) -> bool {
        catalog.types.get(job_type).is_some_and(|item| !self.is_pushed(&item.config))
    }

    /// Dispatches the jobs of `queue`, which has no ledger, that are due after `from`, and at
    /// `until` or before.
    ///
    /// # Errors
    ///
    /// The store's and the work queue's; a repeat is harmless.
    pub async fn dispatch(
        &self,
        queue: &QueueName,
        from: Timestamp,
        until: Timestamp,
        stop: Stop,
    ) -> Result<Dispatched, Error> {
        let catalog = self.catalog().await?;
        let range = DueRange { from: Some(from), until };
        self.send_due(queue, &catalog, range, stop, |_| true).await
    }

    /// Dispatches again the jobs of `queue`, which has no ledger, that are so late that their
    /// messages must be lost: after two minutes, four, eight, and then every sixteen, because a
    /// second message may itself wait in the work queue for minutes. It goes on behind
    /// `pass.done`.
    ///
    /// # Errors
    ///
    /// The store's and the work queue's; a repeat is harmless.
    pub(super) async fn dispatch_late(
        &self,
        queue: &QueueName,
        pass: LatePass,
        until: Timestamp,
        stop: Stop,
    ) -> Result<Dispatched, Error> {
        let catalog = self.catalog().await?;
        let now = self.now();
        let mut oldest: Option<Timestamp> = None;
        let is_resent = |job: &Job| {
            let Some(run_at) = job.life.run_at() else { return false };
            // An unclaimed dispatch leaves the job scheduled until its result arrives.
            let config = catalog.types.get(&job.spec.job_type).map(|item| &item.config);
            let plain = config.is_some_and(|config| config.start == Start::Plain);
            let answer = if plain { tick::push_lease(&catalog, job) } else { Duration::ZERO };
            let sends = |at: Timestamp| resends(at.since(run_at + answer));
            if sends(now) > 0 {
                oldest = oldest.into_iter().chain([run_at]).min();
            }
            sends(now) > pass.previous.map_or(0, sends)
        };
        let range = DueRange { from: pass.done, until };
        let done = self.send_due(queue, &catalog, range, stop, is_resent).await?;
        Ok(Dispatched { oldest_due_at: oldest, ..done })
    }

    /// Sends the jobs of `queue` that need no grant, are due within `range`, and for which `fits`
    /// is true.
    async fn send_due(
        &self,
        queue: &QueueName,
        catalog: &Catalog,
        DueRange { from, until }: DueRange,
        stop: Stop,
        mut fits: impl FnMut(&Job) -> bool,
    ) -> Result<Dispatched, Error> {
        let pushed = catalog.types_of(queue).filter(|(_, item)| self.is_pushed(&item.config));
        let types: Vec<TypeName> = pushed.map(|(name, _)| name.clone()).collect();
        let mut done = Dispatched::default();
        if types.is_empty() {
            return Ok(done);
        }
        let mut scan =
            self.ports.store.scan_due(ScanQuery { queue: queue.clone(), types, from, until });
        let mut read = 0;
        while let Some(page) = scan.next().await? {
            done.sent += self.send_unlimited(catalog, &page.jobs, &mut fits).await?;
            read += page.jobs.len();
            if read >= stop.jobs || self.now() >= stop.at {
                done.stopped_at = page.read_until;
                break;
            }
        }
        Ok(done)
    }

    /// Sends those of `jobs` that need no grant and for which `fits` is true. Returns their number.
    async fn send_unlimited(
        &self,
        catalog: &Catalog,
        jobs: &[Job],
        fits: impl FnMut(&Job) -> bool,
    ) -> Result<usize, Error> {
        let mut fits = fits;
        let fitting = jobs.iter().filter(|job| fits(job));
        let dispatched = fitting.filter(|job| self.is_dispatched(catalog, &job.spec.job_type));
        let work: Vec<Work> = dispatched.filter_map(ungranted_work).collect();
        if !work.is_empty() {
            self.ports.work.send(&work).await?;
        }
        Ok(work.len())
    }
}

/// How often a job that is late by `lateness` should have been sent again.
fn resends(lateness: Duration) -> u32 {
    match (lateness.as_secs() / MESSAGE_LOST_AFTER.as_secs()) as u32 {
        0 => 0,
        intervals @ 1..8 => intervals.ilog2() + 1,
        intervals => 3 + intervals / 8,
    }
}

/// The message for `job` in a queue without a ledger. `None` if it is not scheduled or awaits a
/// retry decision.
pub fn ungranted_work(job: &Job) -> Option<Work> {
    let run_at = job.life.run_at().filter(|_| !job.life.awaits_retry_decision())?;
    Some(Work::of(job, run_at, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_jobs_are_sent_again_after_twice_the_time_each() {
        let minutes: Vec<u64> = (0..60)
            .filter(|n| {
                resends(Duration::from_mins(*n)) > resends(Duration::from_mins(n.saturating_sub(1)))
            })
            .collect();
        assert_eq!(minutes, [2, 4, 8, 16, 32, 48]);
    }
}
