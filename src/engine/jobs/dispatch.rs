//! `dispatch`: sends the jobs of a queue without a ledger through the work queue, so that each
//! arrives when it is due.
//!
//! The one thing to know: no job is written. A job that is sent twice is claimed once. A job whose
//! message is lost is sent again when it is late.

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, Serialize};

use super::resend::Resend;
use crate::{Catalog, Engine, Error, tick};
use tidegate_core::{
    job::{Job, QueueName, TypeName, type_config::Start},
    port::{
        StoreError, Work,
        job_store::{DueRange, DueScan, ScanQuery},
    },
    queue::{Limits, config::SCAN_BOUND},
    time::Timestamp,
};

/// Jobs on the first page of a look at the late jobs.
const FRONT_PAGE: u32 = 32;
/// How many late jobs are read although none of them may be sent again.
const MAX_FRONT: usize = 100;

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

/// The earliest late jobs of a queue.
#[derive(Default)]
struct LateFront {
    jobs: Vec<Job>,
    /// When the first of them was due that is late.
    oldest: Option<Timestamp>,
    /// If there are more jobs: those that are due before this instant were read.
    read_until: Option<Timestamp>,
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
        let types = self.pushed_types(&catalog, queue);
        let range = DueRange { from: Some(from), until };
        let mut scan = self.scan_ranges(queue, &types, vec![range], SCAN_BOUND);
        self.send_scanned(&catalog, &mut *scan, stop, |_| true).await
    }

    /// Dispatches again the jobs of `queue`, which has no ledger, that are so late that their
    /// messages must be lost: after two minutes, four, eight, and then every sixteen, because a
    /// second message may itself wait in the work queue for minutes. It goes on behind
    /// `pass.done`.
    ///
    /// It reads the earliest late jobs. If there are many, it reads only those of the others that
    /// are sent again.
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
        let types = self.pushed_types(&catalog, queue);
        let resend = Resend { previous: pass.previous, now: self.now() };
        // Most of the time is for the jobs that are sent.
        let front_until = resend.now + stop.at.since(resend.now) / 4;
        let front = self.late_front(queue, &types, &catalog, resend, until, front_until).await?;
        let is_left =
            |job: &Job| job.life.run_at().is_some_and(|at| pass.done.is_none_or(|done| done < at));
        let is_resent =
            |job: &Job| presumed_start(&catalog, job).is_some_and(|at| resend.is_due(at));
        let mut oldest = front.oldest;
        let Some(read_until) = front.read_until else {
            let fits = |job: &Job| is_left(job) && is_resent(job);
            let sent = self.send_unlimited(&catalog, &front.jobs, fits).await?;
            return Ok(Dispatched { sent, stopped_at: None, oldest_due_at: oldest });
        };
        let first = oldest.map_or(read_until, |oldest| oldest.min(read_until));
        let left = DueRange { from: pass.done.max(Some(first - Duration::from_millis(1))), until };
        let ranges = match response_times(&catalog, &types) {
            Some(responses) => resend.ranges(&responses, left),
            None => vec![left],
        };
        let mut scan = self.scan_ranges(queue, &types, ranges, SCAN_BOUND);
        let fits = |job: &Job| {
            if presumed_start(&catalog, job).is_some_and(|at| resend.is_late(at)) {
                oldest = oldest.into_iter().chain(job.life.run_at()).min();
            }
            is_resent(job)
        };
        let done = self.send_scanned(&catalog, &mut *scan, stop, fits).await?;
        Ok(Dispatched { oldest_due_at: oldest, ..done })
    }

    /// The earliest jobs of `queue` that are due at `until` or before: all of them, or so many that
    /// the oldest late one is known, or those that could be read until `stop_at`.
    async fn late_front(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        catalog: &Catalog,
        resend: Resend,
        until: Timestamp,
        stop_at: Timestamp,
    ) -> Result<LateFront, Error> {
        let mut front = LateFront::default();
        let range = DueRange { from: None, until };
        let mut scan = self.scan_ranges(queue, types, vec![range], FRONT_PAGE);
        while let Some(page) = scan.next().await? {
            let is_late = |job: &&Job| {
                presumed_start(catalog, job).is_some_and(|start| resend.is_late(start))
            };
            let late = page.jobs.iter().filter(is_late).filter_map(|job| job.life.run_at());
            front.oldest = front.oldest.into_iter().chain(late).min();
            front.jobs.extend(page.jobs);
            // A scan that has not begun to advance in time has read jobs that may be due at any time.
            let advances = |at: Timestamp| at > Timestamp::from_millis(i64::MIN);
            if let Some(read_until) = page.read_until
                && (self.now() >= stop_at
                    || (front.jobs.len() >= MAX_FRONT && advances(read_until)))
            {
                front.read_until = Some(read_until);
                scan.leave().await;
                break;
            }
        }
        Ok(front)
    }

    /// The types of `queue` that are pushed.
    fn pushed_types(&self, catalog: &Catalog, queue: &QueueName) -> Vec<TypeName> {
        let pushed = catalog.types_of(queue).filter(|(_, item)| self.is_pushed(&item.config));
        pushed.map(|(name, _)| name.clone()).collect()
    }

    /// Begins a scan of the jobs of `queue` that are due within `ranges`.
    fn scan_ranges(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        ranges: Vec<DueRange>,
        page: u32,
    ) -> Box<dyn DueScan + '_> {
        let (queue, types) = (queue.clone(), types.to_vec());
        self.ports.store.scan_due(ScanQuery { queue, types, ranges, page })
    }

    /// Sends the jobs of `scan` that need no grant and for which `fits` is true.
    async fn send_scanned(
        &self,
        catalog: &Catalog,
        scan: &mut (dyn DueScan + '_),
        stop: Stop,
        mut fits: impl FnMut(&Job) -> bool,
    ) -> Result<Dispatched, Error> {
        let mut done = Dispatched::default();
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

/// When the first message of `job` is presumed to have started it, if it is scheduled: at its due
/// time, or once its target should have answered. An unclaimed dispatch leaves the job scheduled
/// until its result arrives.
fn presumed_start(catalog: &Catalog, job: &Job) -> Option<Timestamp> {
    let run_at = job.life.run_at()?;
    let config = catalog.types.get(&job.spec.job_type).map(|item| &item.config);
    let is_plain = config.is_some_and(|config| config.start == Start::Plain);
    let response = if is_plain { tick::push_lease(catalog, job) } else { Duration::ZERO };
    Some(run_at + response)
}

/// How long after its due time the first message of a job is presumed to have started it, for each of
/// `types`; none if that depends on the job.
fn response_times(catalog: &Catalog, types: &[TypeName]) -> Option<BTreeSet<Duration>> {
    let configs = types.iter().filter_map(|name| catalog.types.get(name));
    let responses = configs.map(|item| match item.config.start {
        Start::Plain => tick::push_lease_of(&item.config),
        Start::Claim => Some(Duration::ZERO),
    });
    responses.collect()
}

/// The message for `job` in a queue without a ledger. `None` if it is not scheduled or awaits a
/// retry decision.
pub fn ungranted_work(job: &Job) -> Option<Work> {
    let run_at = job.life.run_at().filter(|_| !job.life.awaits_retry_decision())?;
    Some(Work::of(job, run_at, None))
}
