//! Leases of the serverless mode: the call ticks the queues itself, and again while it waits.
//!
//! The ledger's version keeps the limit whichever process ticks. A tick that loses the race is
//! computed again. If the response has a byte bound, jobs are claimed only while their bodies fit:
//! a claimed job that does not fit would run until its lease ends.

use std::time::Duration;

use super::super::{
    Server, deliver,
    lease::QueueSelection,
    workers::{Presence, is_drained},
};
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName, Version},
    time::Timestamp,
};
use tidegate_engine::{
    ByteBudget, CountedBytes, Demand, Dispatch, Error, TickInput,
    request::{LeaseRequest, Leased, Report},
};

/// The wait before the second tick of a call; it grows to [`MAX_POLL_DELAY`].
const FIRST_POLL_DELAY: Duration = Duration::from_millis(200);
const MAX_POLL_DELAY: Duration = Duration::from_secs(1);
/// Bytes of a bounded response that the answer to one report takes.
const REPORT_ANSWER_BYTES: usize = 480;

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
            .for_each(crate::telemetry::metrics::job_finished);
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

    /// Leases from `selections` in turn, until there is a job, the worker leaves this process, or
    /// `until`. The reports are settled first, and the tick that leases reuses what they released.
    pub(crate) async fn lease_serverless(
        &self,
        selections: Vec<QueueSelection>,
        request: LeaseRequest,
        until: Timestamp,
        mut presence: Presence,
    ) -> Result<Leased, Error> {
        let before: Vec<(JobId, Version)> = self.versions(&request.reports).await?;
        let reports = Box::pin(self.report(request.reports.clone())).await;
        let mut freed = left_versions(&before, reports.iter().flatten());
        let most = self
            .inner
            .options
            .answer_bytes
            .map(|bytes| bytes.saturating_sub(REPORT_ANSWER_BYTES * reports.len()));
        let counts = CountedBytes::Shown;
        let mut space = most.map(|most| ByteBudget { left: most, most, counts });
        let mut jobs = Vec::new();
        let mut wait = FIRST_POLL_DELAY;
        loop {
            // A queue that fails keeps no worker from the others.
            let (mut failed, mut failure) = (0, None);
            for (queue, types) in &selections {
                let room = request.max - jobs.len() as u32;
                if room == 0 {
                    break;
                }
                let here =
                    freed.extract_if(.., |(of, _)| of == queue).map(|(_, left)| left).collect();
                let leased = match self
                    .lease_tick(queue, types.as_deref(), room, space, &request, here)
                    .await
                {
                    Ok(leased) => leased,
                    Err(error) => {
                        tracing::warn!(%queue, %error, "a tick for a lease failed");
                        failed += 1;
                        failure = Some(error);
                        continue;
                    }
                };
                space = space.map(|space| {
                    leased.iter().fold(space, |space, job| {
                        space.after(job).unwrap_or(ByteBudget { left: 0, ..space })
                    })
                });
                jobs.extend(leased);
            }
            if let Some(error) = failure.filter(|_| failed == selections.len()) {
                return Err(error);
            }
            let now = self.now();
            if !jobs.is_empty() || now >= until || request.max == 0 || presence.has_left() {
                break;
            }
            tokio::select! {
                () = self.engine().ports().clock.sleep_until(until.min(now + wait)) => {}
                () = presence.left() => {}
            }
            wait = (wait * 3 / 2).min(MAX_POLL_DELAY);
        }
        Ok(Leased { jobs: self.loaded(jobs).await, reports })
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

    /// Ticks a queue once for the caller.
    async fn lease_tick(
        &self,
        queue: &QueueName,
        types: Option<&[TypeName]>,
        room: u32,
        space: Option<ByteBudget>,
        request: &LeaseRequest,
        released: Vec<(JobId, Version)>,
    ) -> Result<Vec<Job>, Error> {
        let Some(serverless) = &self.inner.serverless else {
            return Ok(Vec::new());
        };
        let engine = self.engine();
        let catalog = engine.catalog().await?;
        if is_drained(&catalog, request.worker.as_deref()) {
            return Ok(Vec::new());
        }
        let pulled = catalog
            .types_of(queue)
            .filter(|(_, item)| !engine.is_pushed(&item.config))
            .map(|(name, _)| name.clone());
        let types = pulled.filter(|name| types.is_none_or(|types| types.contains(name))).collect();
        let demand = Demand {
            types,
            capacity: room,
            worker: request.worker.clone(),
            lease: request.lease_seconds,
            dispatch: Dispatch::Claim,
        };
        let (began, mut cache) = (self.now(), serverless.take_cache(queue));
        let queue_changed = !released.is_empty();
        let input = TickInput {
            released,
            demands: vec![demand],
            queue_changed,
            byte_budget: space,
            ..TickInput::default()
        };
        let ticked = engine.tick(queue, &mut cache, input).await;
        serverless.keep_cache(queue, cache);
        let mut ticked = ticked?;
        if let Err(error) = self.follow(queue, &mut ticked, began).await {
            // The claimed jobs must be returned whatever else fails.
            tracing::warn!(
                %queue,
                %error,
                "the follow-up of a lease failed; the maintenance sweep repairs it"
            );
        }
        Ok(ticked.claimed.into_iter().map(|claimed| claimed.job).collect())
    }

    /// The jobs with their bodies. One whose body cannot be read ends its attempt at once.
    async fn loaded(&self, jobs: Vec<Job>) -> Vec<Job> {
        let mut whole = Vec::with_capacity(jobs.len());
        let mut failed = Vec::new();
        for (job, loaded) in jobs.iter().zip(self.engine().load_each(jobs.clone()).await) {
            match loaded {
                Ok(job) => whole.push(job),
                Err(error) => {
                    failed.push(deliver::not_delivered(job, error.to_string(), true));
                }
            }
        }
        if !failed.is_empty() {
            Box::pin(self.report(failed)).await;
        }
        whole
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
