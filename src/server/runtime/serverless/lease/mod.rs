//! Leases of the serverless mode.
//!
//! A call *looks* at each queue: it ticks it once, claims what is due, and gives way if another
//! process writes the ledger at the same time. If there is nothing for it and it waits, or if it
//! gave way, it posts a *demand*, and reads only the answer: a tick offers it granted jobs, or an
//! enqueue has it look again. The version of the ledger keeps the limit, whichever process ticks.
//!
//! If the response has a byte bound, jobs are claimed only while their bodies fit: a claimed job
//! that does not fit would run until its lease ends.
//!
//! A call for at least several jobs posts no demand. It looks about once a second, and a look claims
//! nothing while there are fewer.
//!
//! [`look`] has the ticks of a call, and [`offers`] its demands and what it is offered.

mod look;
mod offers;

use std::time::Duration;

use super::{
    super::{Server, lease::QueueSelection, workers::Presence},
    Serverless,
    demands::{MAX_RELEASES, MAX_WOKEN, Place, Posted},
};
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName, Version},
    time::Timestamp,
};
use tidegate_engine::{
    ByteBudget, CountedBytes, Error,
    request::{LeaseRequest, Leased, Report},
};

/// Bytes of a bounded response that the answer to one report takes.
const REPORT_ANSWER_BYTES: usize = 480;
/// How long a call leaves a queue to others after it gave way to them.
const CONTENTION: Duration = Duration::from_secs(30);
/// How long a call that gave way waits at least for an offer.
const MIN_CONTENDED_WAIT: Duration = Duration::from_secs(1);
/// Demands of a call at most. It looks at further queues more often.
const MAX_DEMANDS: usize = 16;

/// What the lease calls of this process have seen of a queue.
#[derive(Clone, Copy, Default)]
pub(super) struct SeenQueue {
    /// Until then, calls leave its ticks to others.
    contended_until: Option<Timestamp>,
    /// Since when no call has got a job.
    idle_since: Option<Timestamp>,
}

impl Serverless {
    fn seen(&self, queue: &QueueName) -> SeenQueue {
        self.seen.lock().get(queue).copied().unwrap_or_default()
    }

    fn note(&self, queue: &QueueName, change: impl FnOnce(&mut SeenQueue)) {
        change(self.seen.lock().entry(queue.clone()).or_default());
    }
}

/// A queue of a call.
struct CalledQueue {
    name: QueueName,
    types: Option<Vec<TypeName>>,
    /// Jobs whose reports released a slot that no tick knows of.
    freed: Vec<(JobId, Version)>,
    /// When to tick it; none: a tick of others is awaited.
    look_at: Option<Timestamp>,
    posted: Option<Posted>,
    /// Whether the worker gets no jobs of it.
    closed: bool,
    /// Whether its ticks are left to others, except after a long wait.
    is_left: bool,
    looks: u32,
    /// When the next job may start, as far as a tick has seen.
    next_start_at: Option<Timestamp>,
}

/// A lease call.
struct LeaseCall<'a> {
    server: &'a Server,
    serverless: &'a Serverless,
    request: &'a LeaseRequest,
    queues: Vec<CalledQueue>,
    until: Timestamp,
    place: Place<'a>,
    space: Option<ByteBudget>,
    jobs: Vec<Job>,
    /// Whether it takes fewer jobs than it waited for: its wait is over.
    takes_any: bool,
}

impl Server {
    /// Settles reports of jobs of one queue, and adds their follow-up messages to the outbox.
    pub(crate) async fn settle_serverless(
        &self,
        queue: &QueueName,
        reports: Vec<Report>,
    ) -> Vec<Result<Job, Error>> {
        let Some(serverless) = &self.inner.serverless else {
            return Vec::new();
        };
        let count = reports.len();
        let ticked = match self.engine().report(queue, reports).await {
            Ok(ticked) => ticked,
            Err(error) => return (0..count).map(|_| Err(error.clone())).collect(),
        };
        crate::telemetry::metrics::settled(queue.as_str(), &ticked);
        ticked
            .settled()
            .filter(|job| job.life.ended().is_some())
            .for_each(|job| self.inner.count_finished(job));
        for job in ticked.reports.iter().flatten() {
            let Some((_, version)) = ticked.left.iter().find(|(id, _)| *id == job.id) else {
                continue;
            };
            serverless.outbox.job_changed(job, Some(*version));
            if job.life.ended().is_some() {
                self.inner.on_job_finished(job);
            }
        }
        ticked.reports
    }

    /// Leases from `selections` until there is a job, the worker leaves this process, or `until`.
    /// The reports are settled first, and the tick that leases reuses what they released.
    pub(crate) async fn lease_serverless(
        &self,
        selections: Vec<QueueSelection>,
        request: LeaseRequest,
        until: Timestamp,
        mut presence: Presence,
    ) -> Result<Leased, Error> {
        let before: Vec<(JobId, Version)> = self.versions(&request.reports).await?;
        let reports = Box::pin(self.report(request.reports.clone())).await;
        let serverless = self.inner.serverless.as_ref().expect("only a serverless server leases");
        if request.max == 0 {
            return Ok(Leased { jobs: Vec::new(), reports, pause: None });
        }
        // A refused report is answered at once.
        let is_refused = reports.iter().any(Result::is_err);
        let mut freed = left_versions(&before, reports.iter().flatten());
        freed.truncate(MAX_RELEASES);
        serverless.outbox.take_released(&freed);
        let most = self
            .inner
            .options
            .answer_bytes
            .map(|bytes| bytes.saturating_sub(REPORT_ANSWER_BYTES * reports.len()));
        let counts = CountedBytes::Shown;
        let now = self.now();
        let queue = |(name, types): QueueSelection| CalledQueue {
            freed: freed.extract_if(.., |(of, _)| *of == name).map(|(_, left)| left).collect(),
            look_at: Some(now),
            posted: None,
            closed: false,
            is_left: false,
            looks: 0,
            next_start_at: None,
            name,
            types,
        };
        let queues = selections.into_iter().map(queue).collect();
        for (queue, left) in freed {
            serverless.outbox.released(&queue, &[left]);
        }
        let mut call = LeaseCall {
            server: self,
            serverless,
            request: &request,
            queues,
            until: if is_refused || !(request.max_pause.is_zero() || request.min > 1) {
                now
            } else {
                until
            },
            place: serverless.places.take(),
            space: most.map(|most| ByteBudget { left: most, most, counts }),
            jobs: Vec::new(),
            takes_any: false,
        };
        let ended = call.run(&mut presence).await;
        call.finish().await;
        let pause = call.pause();
        let jobs = call.jobs;
        if jobs.is_empty() {
            ended?;
        }
        Ok(Leased { jobs: self.loaded(jobs).await, reports, pause })
    }

    /// Leaves `count` free slots of `queue` to others.
    async fn leave_slots(&self, queue: &QueueName, count: usize) {
        let engine = self.engine();
        let woken = async {
            let catalog = engine.known_catalog().await?;
            if catalog.types_of(queue).any(|(_, item)| engine.is_pushed(&item.config)) {
                return Ok(false);
            }
            let board = self.board(queue, MAX_WOKEN).await?;
            if board.served_until.is_none() {
                self.wake_up(&board, count, self.now()).await?;
            }
            Ok::<_, Error>(true)
        };
        if !woken.await.unwrap_or(false) {
            self.inner.wake(queue);
        }
    }

    /// The versions at which the jobs of `reports` run.
    async fn versions(&self, reports: &[Report]) -> Result<Vec<(JobId, Version)>, Error> {
        if reports.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<JobId> = reports.iter().map(|report| report.id.clone()).collect();
        let jobs = self.engine().cached_jobs(&ids).await?;
        Ok(jobs
            .into_iter()
            .flatten()
            .flatten()
            .filter(|job| job.life.running().is_some())
            .map(|job| (job.id, job.life.version))
            .collect())
    }
}

/// The versions of `before` that jobs left, each with the queue of its job.
fn left_versions<'a>(
    before: &[(JobId, Version)],
    after: impl Iterator<Item = &'a Job>,
) -> Vec<(QueueName, (JobId, Version))> {
    let left = |job: &Job| {
        before.iter().find(|(id, version)| *id == job.id && job.life.version > *version).cloned()
    };
    after.filter_map(|job| Some((job.spec.queue.clone(), left(job)?))).collect()
}
