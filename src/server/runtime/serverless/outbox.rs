//! The outbox: follow-up messages of a verb, collected while it runs and published before its
//! answer.
//!
//! A changed job of an unlimited queue is dispatched from here if it is due before the horizon. A
//! job of a queue with a ledger is left to the queue's tick, which gets a hint now or a timer.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use parking_lot::Mutex;

use super::{super::Server, demands::MAX_WOKEN};
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName, Version},
    port::{Hint, HintKind, Timer, Work, work_queue::OPERATIONS},
    time::Timestamp,
};
use tidegate_engine::{Catalog, Engine, Error, ungranted_work};

/// A job that is due sooner than this gets a message. For later jobs the maintenance sweep is in
/// time, even if it is late.
pub const NEAR: Duration = Duration::from_secs(90);
/// Timers are due at multiples of this.
const TIMER_INTERVAL: Duration = Duration::from_millis(500);
/// Most changed jobs that wait to be published. Of further jobs, only their queues are kept: their
/// ticks dispatch what is due now, and the maintenance sweep the rest. A loop over many jobs
/// therefore flushes after each page.
const MAX_UNSENT: usize = 10_000;

/// Messages that are not published yet.
#[derive(Default)]
pub(crate) struct Outbox {
    pending: Mutex<PendingMessages>,
    /// One flush at a time: after it, the messages of every waiting caller are published.
    sending: tokio::sync::Mutex<()>,
    /// Timers that were set and are not due yet.
    scheduled_timers: Mutex<BTreeSet<(QueueName, Timestamp)>>,
}

#[derive(Default)]
struct PendingMessages {
    jobs: Vec<ChangedJob>,
    due: BTreeSet<QueueName>,
    /// Jobs that left the version at which they were granted.
    released: BTreeSet<(QueueName, JobId, Version)>,
    operations: BTreeSet<String>,
    timers: BTreeMap<QueueName, Timestamp>,
}

impl PendingMessages {
    /// Adds a changed job; past the bound, a tick of its queue.
    fn add(&mut self, job: ChangedJob) {
        if self.jobs.len() < MAX_UNSENT {
            self.jobs.push(job);
        } else {
            self.due.insert(job.queue);
        }
    }
}

/// What the messages about a changed job need. The job itself may have a large body.
#[derive(Clone, Debug)]
struct ChangedJob {
    id: JobId,
    job_type: TypeName,
    queue: QueueName,
    version: Version,
    /// Its message in a queue without a ledger.
    work: Option<Work>,
    awaits_retry_decision: bool,
    /// The version that it left, at which it may hold a grant.
    left: Option<Version>,
}

impl ChangedJob {
    fn new(job: &Job, left: Option<Version>) -> Self {
        Self {
            id: job.id.clone(),
            job_type: job.spec.job_type.clone(),
            queue: job.spec.queue.clone(),
            version: job.life.version,
            work: ungranted_work(job),
            awaits_retry_decision: job.life.awaits_retry_decision(),
            left,
        }
    }
}

/// Messages ready to publish.
#[derive(Default)]
struct Outgoing {
    work: Vec<Work>,
    hints: Vec<Hint>,
    timers: Vec<Timer>,
}

impl Outbox {
    /// Records that `job` was written in this state, and left `version` if one is given.
    pub(crate) fn job_changed(&self, job: &Job, version: Option<Version>) {
        self.pending.lock().add(ChangedJob::new(job, version));
    }

    /// Takes the hints about releases, which the caller passes on to a tick.
    pub(super) fn take_released(&self, released: &[(QueueName, (JobId, Version))]) {
        let mut pending = self.pending.lock();
        for job in &mut pending.jobs {
            let is_taken = |(_, (id, version)): &(QueueName, (JobId, Version))| {
                *id == job.id && Some(*version) == job.left
            };
            if released.iter().any(is_taken) {
                job.left = None;
            }
        }
    }

    /// Records that jobs of `queue` left the version at which they were granted.
    pub(super) fn released(&self, queue: &QueueName, released: &[(JobId, Version)]) {
        let released = released.iter().map(|(job, version)| (queue.clone(), job.clone(), *version));
        self.pending.lock().released.extend(released);
    }

    /// Records that jobs may be due in `queue`.
    pub(crate) fn queue_due(&self, queue: &QueueName) {
        self.pending.lock().due.insert(queue.clone());
    }

    /// Records that a bulk operation has jobs left.
    pub(crate) fn operation_left(&self, id: &str) {
        self.pending.lock().operations.insert(id.to_owned());
    }

    /// Records that `queue` must tick at `at`.
    pub(super) fn timer(&self, queue: &QueueName, at: Timestamp) {
        let timers = &mut self.pending.lock().timers;
        let earliest = timers.entry(queue.clone()).or_insert(at);
        *earliest = at.min(*earliest);
    }

    /// Puts back messages that could not be published.
    fn put_back(&self, taken: PendingMessages) {
        let mut now = self.pending.lock();
        taken.jobs.into_iter().for_each(|job| now.add(job));
        now.due.extend(taken.due);
        now.released.extend(taken.released);
        now.operations.extend(taken.operations);
        drop(now);
        taken.timers.into_iter().for_each(|(queue, at)| self.timer(&queue, at));
    }

    /// Whether a timer of `queue` is set that is in time for `at`; its tick sets the next one.
    fn has_timer(&self, queue: &QueueName, at: Timestamp, now: Timestamp) -> bool {
        let mut scheduled = self.scheduled_timers.lock();
        scheduled.retain(|(_, at)| *at > now);
        // No timer is in time for a job that is due already.
        at >= now && scheduled.range((queue.clone(), now)..=(queue.clone(), at)).next().is_some()
    }
}

impl Server {
    /// Publishes the follow-up messages of all changes since the last call. On an error they are
    /// kept for the next call.
    ///
    /// # Errors
    ///
    /// The store's and the work queue's. Nothing is lost: the maintenance sweep repairs it.
    pub async fn flush(&self) -> Result<(), Error> {
        let Some(serverless) = &self.inner.serverless else {
            return Ok(());
        };
        // A function may be frozen after this.
        self.inner.store_plugin_calls().await;
        let outbox = &serverless.outbox;
        let _turn = outbox.sending.lock().await;
        let taken = std::mem::take(&mut *outbox.pending.lock());
        let sent = match self.route(&taken).await {
            Ok(outgoing) => self.publish(outgoing).await,
            Err(error) => Err(error),
        };
        sent.inspect_err(|error| {
            metrics::counter!("tidegate_dispatch_failures_total").increment(1);
            tracing::warn!(
                %error,
                "follow-up messages were not published; the maintenance sweep repairs it"
            );
            outbox.put_back(taken);
        })
    }

    /// The messages for what was changed.
    async fn route(&self, taken: &PendingMessages) -> Result<Outgoing, Error> {
        let hint = |queue: &QueueName, kind| Hint { queue: queue.clone(), kind };
        let operations: QueueName = OPERATIONS.parse().expect("a valid name");
        let mut router = Router {
            engine: self.engine(),
            now: self.now(),
            horizon: None,
            due: taken.due.clone(),
            timers: taken.timers.clone(),
            pulled: BTreeMap::new(),
            outgoing: Outgoing::default(),
        };
        router.outgoing.hints.extend(
            taken.operations.iter().map(|id| hint(&operations, HintKind::Operation(id.clone()))),
        );
        router.outgoing.hints.extend(
            taken.released.iter().map(|(queue, job, version)| {
                hint(queue, HintKind::Released(job.clone(), *version))
            }),
        );
        if !taken.jobs.is_empty() {
            // The verb that changed the jobs has just read it.
            let catalog = self.engine().known_catalog().await?;
            for job in &taken.jobs {
                router.route(job, &catalog).await?;
            }
        }
        let Router { due, timers, pulled, mut outgoing, .. } = router;
        for (queue, jobs) in pulled {
            if let Err(error) = self.wake_calls(&queue, jobs).await {
                tracing::warn!(%queue, %error, "lease calls that wait were not woken");
            }
        }
        outgoing.hints.extend(due.iter().map(|queue| hint(queue, HintKind::Due)));
        let now = self.now();
        let outbox =
            &self.inner.serverless.as_ref().expect("only a serverless server calls this").outbox;
        let timers = timers
            .into_iter()
            .filter(|(queue, at)| !due.contains(queue) && !outbox.has_timer(queue, *at, now));
        outgoing.timers.extend(timers.map(|(queue, at)| Timer { at, queue }));
        Ok(outgoing)
    }

    /// Has calls that wait for jobs of `queue` look at it when its new `jobs` are due. Their demands
    /// are written before they look, so that a call sees the jobs, or is seen here. A tick that
    /// serves the demands sees the jobs by itself.
    async fn wake_calls(&self, queue: &QueueName, jobs: NewJobs) -> Result<(), Error> {
        let board = self.board(queue, MAX_WOKEN).await?;
        if board.served_until.is_some() {
            return Ok(());
        }
        self.wake_up(&board, jobs.count, jobs.due_at).await
    }

    async fn publish(&self, outgoing: Outgoing) -> Result<(), Error> {
        let queue = &self.engine().ports().work;
        if !outgoing.work.is_empty() {
            queue.send(&outgoing.work).await?;
        }
        if !outgoing.hints.is_empty() {
            queue.hint(&outgoing.hints).await?;
        }
        if !outgoing.timers.is_empty() {
            queue.set_timers(&outgoing.timers).await?;
            let outbox = &self
                .inner
                .serverless
                .as_ref()
                .expect("only a serverless server calls this")
                .outbox;
            outbox
                .scheduled_timers
                .lock()
                .extend(outgoing.timers.into_iter().map(|timer| (timer.queue, timer.at)));
        }
        Ok(())
    }
}

/// When a tick is due for a job that is due `at`: at the next half of a second, so that the jobs of
/// this time, and the processes that know of them, share a tick.
pub(super) fn shared_instant(at: Timestamp) -> Timestamp {
    let span = TIMER_INTERVAL.as_millis() as i64;
    let over = at.millis().rem_euclid(span);
    if over == 0 { at } else { Timestamp::from_millis(at.millis() - over + span) }
}

/// Jobs of a queue that workers pull.
#[derive(Clone, Copy)]
struct NewJobs {
    /// When the first of them is due.
    due_at: Timestamp,
    count: usize,
}

/// Turns changed jobs into messages.
struct Router<'a> {
    engine: &'a Engine,
    now: Timestamp,
    /// Work that is due at this instant or before is sent now. Read when it is first needed.
    horizon: Option<Timestamp>,
    /// Queues that must tick now.
    due: BTreeSet<QueueName>,
    /// Queues that must tick at an instant.
    timers: BTreeMap<QueueName, Timestamp>,
    /// Scheduled jobs that are leased, by queue.
    pulled: BTreeMap<QueueName, NewJobs>,
    outgoing: Outgoing,
}

impl Router<'_> {
    async fn route(&mut self, job: &ChangedJob, catalog: &Catalog) -> Result<(), Error> {
        let hint = |kind| Hint { queue: job.queue.clone(), kind };
        if job.awaits_retry_decision {
            self.outgoing.hints.push(hint(HintKind::RetryDecision(job.id.clone())));
        }
        let is_dispatched = self.engine.is_dispatched(catalog, &job.job_type);
        if let Some(work) = job.work.as_ref().filter(|_| !is_dispatched)
            && work.run_at <= self.now + NEAR
        {
            let new = NewJobs { due_at: work.run_at, count: 0 };
            let jobs = self.pulled.entry(job.queue.clone()).or_insert(new);
            (jobs.due_at, jobs.count) = (jobs.due_at.min(work.run_at), jobs.count + 1);
        }
        let work = job.work.as_ref().filter(|_| is_dispatched);
        if self.engine.is_unlimited_in(&job.queue, catalog).await? {
            let work = work.filter(|work| !self.engine.is_left_to_lookahead(work.run_at));
            if let Some(work) = work
                && (work.run_at <= self.now || self.is_before_horizon(work.run_at).await?)
            {
                self.outgoing.work.push(work.clone());
            }
            return Ok(());
        }
        if let Some(version) = job.left.filter(|version| job.version > *version) {
            self.outgoing.hints.push(hint(HintKind::Released(job.id.clone(), version)));
        }
        match work.map(|work| work.run_at) {
            Some(at) if at <= self.now => {
                self.due.insert(job.queue.clone());
            }
            Some(at) if at <= self.now + NEAR => {
                let at = shared_instant(at);
                let earliest = self.timers.entry(job.queue.clone()).or_insert(at);
                *earliest = at.min(*earliest);
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether a job due at `at` is sent now. Unless that is known, the horizon is read after the
    /// jobs were written: a lookahead that missed one has moved the horizon before.
    async fn is_before_horizon(&mut self, at: Timestamp) -> Result<bool, Error> {
        if self.horizon.is_none() && self.engine.is_before_known_horizon(at) {
            return Ok(true);
        }
        let horizon = match self.horizon {
            Some(horizon) => horizon,
            None => *self.horizon.insert(self.engine.horizon().await?),
        };
        Ok(at <= horizon)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::testkit::builders::{job, name};

    #[test]
    fn timers_are_due_at_the_next_half_of_a_second() {
        let shared = |millis| shared_instant(Timestamp::from_millis(millis)).millis();
        let instants = [-1, 0, 1, 499, 500, 501, 999_999];
        assert_eq!(instants.map(shared), [0, 0, 500, 500, 500, 1000, 1_000_000]);
    }

    #[test]
    fn a_full_outbox_keeps_the_queues_of_further_jobs() {
        let outbox = Outbox::default();
        for number in 0..=MAX_UNSENT {
            let queue = if number < MAX_UNSENT { "first" } else { "last" };
            outbox.job_changed(&job(&format!("j{number}")).queue(queue).build(), None);
        }
        let taken = std::mem::take(&mut *outbox.pending.lock());
        assert_eq!(taken.jobs.len(), MAX_UNSENT);
        assert_eq!(taken.due, [name("last")].into());
        outbox.job_changed(&job("new").queue("new").build(), None);
        outbox.put_back(taken);
        let pending = outbox.pending.lock();
        assert_eq!(pending.jobs.len(), MAX_UNSENT);
        assert_eq!(pending.due, [name("first"), name("last")].into());
    }
}
