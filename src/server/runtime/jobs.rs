//! Jobs as methods of the server: each calls the engine and notifies the job's queue.

use std::{collections::BTreeMap, time::Duration};

use super::{Server, StopPhase, lease::outcome_unknown};
use tidegate_core::{
    error_code::ErrorCode,
    job::{Job, JobId, JobSort, Payload, QueueName, TraceContext, TypeName},
    port::{
        job_filter::TimeRange,
        job_store::{ListPage, ListQuery, StoredJob},
    },
    validate::check_lease,
};
use tidegate_engine::{
    Error, fault,
    jobs::sorted::SortedPage,
    request::{
        Cancelled, Enqueued, ErrorPage, Explanation, Heartbeat, HeartbeatAnswer, JobPatch,
        JobResult, NewJob, Replay, ReplayWith, Report,
    },
};

/// The longest wait for a result.
const MAX_RESULT_WAIT: Duration = Duration::from_mins(1);
/// How often a wait for a result reads the job, because it may end in another process.
const RESULT_POLL_INTERVAL: Duration = Duration::from_secs(1);

impl Server {
    /// Accepts a job. After `Ok` it is durable.
    ///
    /// # Errors
    ///
    /// As for [`Server::enqueue_many`].
    pub async fn enqueue(&self, job: NewJob) -> Result<Enqueued, Error> {
        self.enqueue_many(vec![job]).await.pop().unwrap_or_else(|| Err(outcome_unknown()))
    }

    /// Accepts jobs: one result each, in order.
    ///
    /// A job may be rejected: 400 for a bad value, 404 for an unknown type, 409 for a conflict,
    /// 413 for too much data.
    pub async fn enqueue_many(&self, jobs: Vec<NewJob>) -> Vec<Result<Enqueued, Error>> {
        self.observed(jobs, async |jobs| self.inner.engine.enqueue(jobs).await).await
    }

    /// Adds the jobs of requests of the inbox; see [`Engine::enqueue_requests`].
    ///
    /// [`Engine::enqueue_requests`]: tidegate_engine::Engine::enqueue_requests
    pub(super) async fn enqueue_requests(
        &self,
        requests: Vec<(JobId, NewJob)>,
    ) -> Vec<Result<Enqueued, Error>> {
        let (ids, jobs): (Vec<JobId>, Vec<NewJob>) = requests.into_iter().unzip();
        self.observed(jobs, async |jobs| {
            let requests = ids.into_iter().zip(jobs).collect();
            self.inner.engine.enqueue_requests(requests).await
        })
        .await
    }

    /// Accepts jobs by `enqueue`, with their traces, counts and notices.
    async fn observed(
        &self,
        mut jobs: Vec<NewJob>,
        enqueue: impl AsyncFnOnce(Vec<NewJob>) -> Vec<Result<Enqueued, Error>>,
    ) -> Vec<Result<Enqueued, Error>> {
        let traced = self.inner.traces.as_ref().map(|traces| {
            let entropy = &*self.inner.engine.ports().entropy;
            let begun: Vec<_> = jobs
                .iter_mut()
                .map(|job| traces.begin(&mut job.options.headers, &mut job.trace, entropy))
                .collect();
            (traces, begun, self.now())
        });
        let answers = enqueue(jobs).await;
        if let Some((traces, begun, from)) = traced {
            let to = self.now();
            begun
                .iter()
                .zip(&answers)
                .for_each(|(begun, answer)| traces.enqueued(begun, answer, None, from, to));
        }
        self.inner.count_enqueued(answers.iter().flatten());
        self.inner.on_accepted(answers.iter().flatten());
        answers
    }

    /// A job; if `job_type` is given, only of that type. One that waits in the inbox is added first.
    ///
    /// # Errors
    ///
    /// 404 `job_not_found`.
    pub async fn job(&self, id: &JobId, job_type: Option<&TypeName>) -> Result<Job, Error> {
        let found = self.inner.engine.job(id, job_type).await;
        if self.is_added_now(id, is_missing(&found)).await? {
            return self.inner.engine.job(id, job_type).await;
        }
        found
    }

    /// Adds a job that is missing, if it waits in the inbox. Returns whether the store may have it now.
    async fn is_added_now(&self, id: &JobId, is_missing: bool) -> Result<bool, Error> {
        #[cfg(any(test, feature = "embedded"))]
        if is_missing {
            return Box::pin(self.inner.take_from_inbox(id)).await;
        }
        #[cfg(not(any(test, feature = "embedded")))]
        let _ = (id, is_missing);
        Ok(false)
    }

    /// The jobs with their bodies and results loaded.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn load(&self, jobs: Vec<Job>) -> Result<Vec<Job>, Error> {
        self.inner.engine.load(jobs).await
    }

    /// A page of jobs, newest first. An invalid cursor gives an empty page.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn list(&self, query: &ListQuery) -> Result<ListPage, Error> {
        self.inner.engine.list(query).await
    }

    /// A page of jobs in the order `sort`; see [`Engine::list_sorted`].
    ///
    /// # Errors
    ///
    /// 400 for a cursor of another list; the store's.
    ///
    /// [`Engine::list_sorted`]: tidegate_engine::Engine::list_sorted
    pub async fn list_sorted(&self, query: &ListQuery, sort: JobSort) -> Result<SortedPage, Error> {
        self.inner.engine.list_sorted(query, sort).await
    }

    /// The latest errors, of the time `at`, of jobs, counted in groups; see [`Engine::errors`].
    ///
    /// # Errors
    ///
    /// The store's.
    ///
    /// [`Engine::errors`]: tidegate_engine::Engine::errors
    pub async fn errors(&self, query: &ListQuery, at: TimeRange) -> Result<ErrorPage, Error> {
        self.inner.engine.errors(query, at).await
    }

    /// Changes a scheduled job.
    ///
    /// # Errors
    ///
    /// 404; 409 `not_scheduled` or `already_dispatched`; 412; 400 and 413 for bad values.
    pub async fn patch(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        patch: JobPatch,
        if_match: Option<u64>,
    ) -> Result<Job, Error> {
        let engine = &self.inner.engine;
        let mut patched = engine.patch(id, job_type, patch.clone(), if_match).await;
        if self.is_added_now(id, is_missing(&patched)).await? {
            patched = engine.patch(id, job_type, patch, if_match).await;
        }
        let (before, job) = patched?;
        self.inner.on_superseded(&job, before.life.version);
        Ok(job)
    }

    /// Cancels a job.
    ///
    /// # Errors
    ///
    /// 404; 409 `ended` or `already_dispatched`.
    pub async fn cancel(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        force: bool,
    ) -> Result<Cancelled, Error> {
        let engine = &self.inner.engine;
        let mut cancelled = engine.cancel(id, job_type, force).await;
        if self.is_added_now(id, is_missing(&cancelled)).await? {
            cancelled = engine.cancel(id, job_type, force).await;
        }
        let (before, cancelled) = cancelled?;
        if cancelled.ended {
            self.inner.on_superseded(&cancelled.job, before.life.version);
        }
        Ok(cancelled)
    }

    /// Settles reports: one result each, in order, with the job after its report.
    pub async fn report(&self, reports: Vec<Report>) -> Vec<Result<Job, Error>> {
        let queues = match self.queues_of(&reports).await {
            Ok(queues) => queues,
            Err(error) => return reports.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut answers: Vec<Option<Result<Job, Error>>> = reports.iter().map(|_| None).collect();
        let (mut known, mut unprepared) = (Vec::new(), Vec::new());
        for (index, (report, queue)) in reports.into_iter().zip(queues).enumerate() {
            match queue {
                Ok(queue) => {
                    known.push((index, queue));
                    unprepared.push(report);
                }
                Err(error) => answers[index] = Some(Err(error)),
            }
        }
        let mut batches: BTreeMap<QueueName, (Vec<usize>, Vec<Report>)> = BTreeMap::new();
        let prepared = self.inner.engine.prepare_reports(unprepared).await;
        for ((index, queue), report) in known.into_iter().zip(prepared) {
            match report {
                Ok(report) => {
                    let (indices, batch) = batches.entry(queue).or_default();
                    indices.push(index);
                    batch.push(report);
                }
                Err(error) => answers[index] = Some(Err(error)),
            }
        }
        let (indices, batches): (Vec<_>, Vec<_>) =
            batches.into_iter().map(|(queue, (indices, batch))| (indices, (queue, batch))).unzip();
        for (indices, settled) in indices.into_iter().zip(Box::pin(self.settle(batches)).await) {
            for (index, answer) in indices.into_iter().zip(settled) {
                answers[index] = Some(answer);
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(outcome_unknown()))).collect()
    }

    /// The queue of each report's job; or 404 `job_not_found`, or [`Error::Unreadable`].
    pub(super) async fn queues_of(
        &self,
        reports: &[Report],
    ) -> Result<Vec<Result<QueueName, Error>>, Error> {
        if reports.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<JobId> = reports.iter().map(|report| report.id.clone()).collect();
        let jobs = self.inner.engine.cached_jobs(&ids).await?;
        let queue = |(job, id): (StoredJob, &JobId)| {
            Ok(job?.ok_or_else(|| Error::no_job(id))?.spec.queue.clone())
        };
        Ok(jobs.into_iter().zip(&ids).map(queue).collect())
    }

    /// Extends the lease of a running attempt.
    ///
    /// # Errors
    ///
    /// 400 for a lease out of bounds; 404; 409 `stale_attempt`; 403.
    pub async fn heartbeat(&self, beat: Heartbeat) -> Result<HeartbeatAnswer, Error> {
        beat.lease_seconds.map_or(Ok(()), check_lease).map_err(fault)?;
        self.inner.engine.heartbeat(beat).await
    }

    /// Enqueues a copy of a job, due now. A repeat of the same request returns the first copy.
    ///
    /// # Errors
    ///
    /// 404; 409 `job_not_finished`; as for enqueue.
    pub async fn replay(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        with: ReplayWith,
        idempotency_key: Option<String>,
    ) -> Result<Enqueued, Error> {
        let job = self.job(id, job_type).await?;
        let mut answers = self.replay_each(vec![Replay { job, with, idempotency_key }]).await;
        answers.pop().unwrap_or_else(|| Err(outcome_unknown()))
    }

    /// Replays jobs, as [`Server::replay`] replays one. Returns one answer per request, in order.
    pub(super) async fn replay_each(
        &self,
        mut replays: Vec<Replay>,
    ) -> Vec<Result<Enqueued, Error>> {
        let (engine, from) = (&self.inner.engine, self.now());
        let entropy = &*engine.ports().entropy;
        let traced = self.inner.traces.as_ref().map(|traces| {
            let begin = |replay: &mut Replay| {
                let begun = traces.begin(&mut BTreeMap::new(), &mut replay.with.trace, entropy);
                (begun, TraceContext::of(&replay.job.spec.headers))
            };
            (traces, replays.iter_mut().map(begin).collect::<Vec<_>>())
        });
        let answers = engine.replay_each(replays).await;
        if let Some((traces, begun)) = traced {
            let to = self.now();
            for ((begun, replayed), answer) in begun.into_iter().zip(&answers) {
                traces.enqueued(&begun, answer, replayed, from, to);
            }
        }
        self.inner.count_enqueued(answers.iter().flatten());
        self.inner.on_enqueued(answers.iter().flatten().map(|enqueued| &enqueued.job));
        answers
    }

    /// The result of a job. Waits at most `wait` (0 to 60 s) for the job to end, and no longer than until
    /// the server [refuses requests](Self::refuse) or stops.
    ///
    /// If the wait ended first, the answer has a job that has not ended, and no value.
    ///
    /// # Errors
    ///
    /// 404; 400 for a longer wait.
    pub async fn result(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        wait: Duration,
    ) -> Result<JobResult, Error> {
        self.result_if(id, job_type, wait, |_| true).await
    }

    /// As [`Server::result`]. A result that can be read only once is kept if it does not fit
    /// (`fits`).
    ///
    /// # Errors
    ///
    /// As for [`Server::result`].
    pub async fn result_if(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        wait: Duration,
        fits: impl Fn(&Payload) -> bool,
    ) -> Result<JobResult, Error> {
        if wait > MAX_RESULT_WAIT {
            return Err(Error::invalid("wait", "must be 0 to 60"));
        }
        let engine = &self.inner.engine;
        let clock = &engine.ports().clock;
        let until = clock.machine_now() + wait;
        let mut stopping = self.inner.stopping.subscribe();
        loop {
            let notify = self.inner.waiters.of(id);
            let ended = notify.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            let job = self.job(id, job_type).await?;
            if job.life.ended().is_some() {
                let value = engine.take_result_if(&job, fits).await?;
                return Ok(JobResult { job, value });
            }
            let now = clock.machine_now();
            if now >= until || *self.inner.stopping.borrow() >= StopPhase::Refusing {
                return Ok(JobResult { job, value: None });
            }
            let poll_at = clock.at_machine_time(until.min(now + RESULT_POLL_INTERVAL));
            tokio::select! {
                () = ended => {}
                _ = stopping.wait_for(|phase| *phase >= StopPhase::Refusing) => {}
                () = clock.sleep_until(poll_at) => {}
            }
        }
    }

    /// Why a job waits.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn explain(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
    ) -> Result<Explanation, Error> {
        let job = self.job(id, job_type).await?;
        let workers = self.inner.worker_status(&job.spec.queue).await?;
        self.inner.engine.explain(&job, &*workers).await
    }
}

/// Whether the job of a call was not found.
fn is_missing<T>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(Error::NotFound { code: ErrorCode::JobNotFound, .. }))
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, sync::Arc};

    use futures_util::poll;

    use super::*;
    use crate::runtime::testing::{server_on_faulty_objects, soon};
    use tidegate_core::job::{Body, type_config::TypeConfig};
    use tidegate_engine::{
        OBJECT_BYTES,
        request::{LeaseRequest, ReportOutcome},
        testkit::{
            builders::name,
            objects::{FaultyObjects, ObjectRequest},
        },
    };

    async fn server() -> (Server, Arc<FaultyObjects>) {
        let (server, objects) = server_on_faulty_objects().await;
        server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        (server, objects)
    }

    fn large() -> Payload {
        Payload::json(format!("\"{}\"", "x".repeat(OBJECT_BYTES)))
    }

    fn new_jobs(data: impl IntoIterator<Item = Payload>) -> Vec<NewJob> {
        data.into_iter().map(|data| NewJob::new(name("work"), data)).collect()
    }

    #[tokio::test]
    async fn a_wait_for_a_result_ends_when_requests_are_refused() {
        let (server, _) = server().await;
        let job = server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap().job;
        let mut waiting = pin!(server.result(&job.id, None, MAX_RESULT_WAIT));
        server.drain().await;
        assert!(poll!(&mut waiting).is_pending(), "the job may end until then");
        server.refuse();
        let result = soon("the wait ends", waiting).await.unwrap();
        assert!(result.job.life.ended().is_none() && result.value.is_none());
    }

    async fn leased(server: &Server) -> Vec<Job> {
        let request = LeaseRequest {
            min: 0,
            queue: None,
            types: vec![name("work")],
            max: 10,
            wait: Duration::ZERO,
            max_pause: Duration::ZERO,
            call: None,
            worker: None,
            lease_seconds: None,
            reports: Vec::new(),
        };
        server.lease(request).await.unwrap().jobs
    }

    fn succeeded(jobs: &[Job], result: impl Fn(usize) -> Payload) -> Vec<Report> {
        let report = |(index, job): (usize, &Job)| Report {
            id: job.id.clone(),
            job_type: None,
            attempt: job.life.attempt,
            token: None,
            outcome: ReportOutcome::Succeeded { result: Some(Body::Inline(result(index))) },
            checkpoint: None,
        };
        jobs.iter().enumerate().map(report).collect()
    }

    #[tokio::test]
    async fn large_bodies_are_stored_at_the_same_time() {
        let (server, objects) = server().await;
        objects.put_together(3);
        let jobs = new_jobs([large(), large(), large()]);
        let enqueued = soon("all are stored", server.enqueue_many(jobs)).await;
        assert!(enqueued.iter().all(Result::is_ok), "{enqueued:?}");
        let jobs = leased(&server).await;
        let reports = succeeded(&jobs, |_| large());
        let reported = soon("all results are stored", server.report(reports)).await;
        assert_eq!(reported.iter().flatten().count(), 3, "{reported:?}");
    }

    #[tokio::test]
    async fn a_body_that_cannot_be_stored_affects_no_other_job() {
        let (server, objects) = server().await;
        objects.fail([ObjectRequest::Put]);
        let refused = |answer: bool| if answer { "accepted" } else { "refused" };
        let jobs = new_jobs([Payload::null(), large(), Payload::null(), large()]);
        let enqueued = server.enqueue_many(jobs).await;
        let answers: Vec<_> = enqueued.iter().map(|answer| refused(answer.is_ok())).collect();
        assert_eq!(answers, ["accepted", "refused", "accepted", "refused"]);
        let jobs = leased(&server).await;
        let result = |index| if index == 0 { large() } else { Payload::null() };
        let reported = server.report(succeeded(&jobs, result)).await;
        let answers: Vec<_> = reported.iter().map(|answer| refused(answer.is_ok())).collect();
        assert_eq!(answers, ["refused", "accepted"]);
    }
}
