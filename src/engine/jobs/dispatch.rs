//! `dispatch`: sends the jobs of a queue without a ledger through the work queue, so that each
//! arrives when it is due.
//!
//! The one thing to know: no job is written. A job that is sent twice is claimed once. A job whose
//! message is lost is sent again when it is late.

use std::time::Duration;

use crate::{Catalog, Engine, Error, tick};
use tidegate_core::{
    job::{Job, QueueName, TypeName, type_config::Start},
    port::{StoreError, Work, job_store::DueQuery},
    queue::{
        Limits,
        config::SCAN_BOUND,
        order::{Order, Position},
    },
    time::Timestamp,
};

/// How late a job is when its message is presumed lost.
const MESSAGE_LOST_AFTER: Duration = Duration::from_mins(2);

/// The result of a dispatch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dispatched {
    /// How many jobs were sent.
    pub sent: usize,
    /// Whether more jobs are due than were read.
    pub more: bool,
    /// When the oldest sent job was due.
    pub oldest_due_at: Option<Timestamp>,
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

    /// Dispatches the jobs of `queue`, which has no ledger, that are due after `from`, and at
    /// `until` or before. Reads about `most` jobs.
    ///
    /// # Errors
    ///
    /// The store's and the work queue's; a repeat is harmless.
    pub async fn dispatch(
        &self,
        queue: &QueueName,
        from: Timestamp,
        until: Timestamp,
        most: usize,
    ) -> Result<Dispatched, Error> {
        let catalog = self.catalog().await?;
        let range = DueRange { from: Some(from), until };
        self.send_due(queue, &catalog, range, most, |_| true).await
    }

    /// Dispatches again the jobs that are so late that their messages must be lost. Reads about
    /// `most` jobs.
    ///
    /// # Errors
    ///
    /// The store's and the work queue's; a repeat is harmless.
    pub async fn dispatch_late(&self, queue: &QueueName, most: usize) -> Result<Dispatched, Error> {
        let catalog = self.catalog().await?;
        let now = self.now();
        let range = DueRange { from: None, until: now - MESSAGE_LOST_AFTER };
        let late = |job: &Job| {
            // An unclaimed dispatch leaves the job scheduled until its result arrives.
            let config = catalog.types.get(&job.spec.job_type).map(|item| &item.config);
            let plain = config.is_some_and(|config| config.start == Start::Plain);
            let answer = if plain { tick::push_lease(&catalog, job) } else { Duration::ZERO };
            job.life.run_at().is_some_and(|at| at + MESSAGE_LOST_AFTER + answer <= now)
        };
        self.send_due(queue, &catalog, range, most, late).await
    }

    /// Sends the jobs of `queue` that need no grant, are due within `range`, and for which `fits`
    /// is true. Critical jobs are read first, and reading stops after `most` jobs of each kind.
    async fn send_due(
        &self,
        queue: &QueueName,
        catalog: &Catalog,
        range: DueRange,
        most: usize,
        fits: impl Fn(&Job) -> bool,
    ) -> Result<Dispatched, Error> {
        let pushed = catalog.types_of(queue).filter(|(_, item)| self.is_pushed(&item.config));
        let types: Vec<TypeName> = pushed.map(|(name, _)| name.clone()).collect();
        let mut done = Dispatched::default();
        if types.is_empty() {
            return Ok(done);
        }
        let query = |critical, after, scanned: usize| DueQuery {
            queue: queue.clone(),
            critical,
            types: types.clone(),
            partition: None,
            order: Order::Time { step_millis: 0 },
            until: range.until,
            after,
            limit: SCAN_BOUND.min(most.saturating_sub(scanned).max(1) as u32),
        };
        let start = range.from.map(after_all_due_by);
        // In one call, the store reads once what both queries have in common.
        let first =
            self.ports.store.due(&[query(true, start.clone(), 0), query(false, start, 0)]).await?;
        for (critical, first) in [true, false].into_iter().zip(first) {
            let (mut page, mut scanned) = (first, 0);
            loop {
                scanned += page.jobs.len().max(1);
                let (sent, oldest) = self.send_unlimited(catalog, &page.jobs, &fits).await?;
                done.sent += sent;
                done.oldest_due_at = done.oldest_due_at.into_iter().chain(oldest).min();
                let Some(next) = page.next else { break };
                if scanned >= most {
                    done.more = true;
                    break;
                }
                let query = query(critical, Some(next), scanned);
                page = self.ports.store.due(&[query]).await?.pop().unwrap_or_default();
            }
        }
        Ok(done)
    }

    /// Sends those of `jobs` that need no grant and for which `fits` is true. Returns their number,
    /// and when the oldest was due.
    async fn send_unlimited(
        &self,
        catalog: &Catalog,
        jobs: &[Job],
        fits: impl Fn(&Job) -> bool,
    ) -> Result<(usize, Option<Timestamp>), Error> {
        let fitting = jobs.iter().filter(|job| fits(job));
        let dispatched = fitting.filter(|job| self.is_dispatched(catalog, &job.spec.job_type));
        let work: Vec<Work> = dispatched.filter_map(ungranted_work).collect();
        if !work.is_empty() {
            self.ports.work.send(&work).await?;
        }
        Ok((work.len(), work.iter().map(|piece| piece.run_at).min()))
    }
}

/// The message for `job` in a queue without a ledger. `None` if it is not scheduled or awaits a
/// retry decision.
pub fn ungranted_work(job: &Job) -> Option<Work> {
    let run_at = job.life.run_at().filter(|_| !job.life.awaits_retry_decision())?;
    Some(Work::of(job, run_at, None))
}

/// The position after every job that is due at `from` or before, in the order of due times.
fn after_all_due_by(from: Timestamp) -> Position {
    Position {
        partition: String::new(),
        priority: i32::MAX,
        run_at: from,
        id: MAX_ID.parse().expect("it is a valid id"),
    }
}

/// An id that sorts after every other one.
const MAX_ID: &str = "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz";
