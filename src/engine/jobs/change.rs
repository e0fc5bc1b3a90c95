//! The verbs on one job that are not a queue's round: read, change, cancel, run again, take the result.
//!
//! Each is the same loop, [`Engine::alter`]: see the job, work out the new one, write it if the job is
//! still the one that was seen, else look again.

use std::{sync::Arc, time::Duration};
use tidegate_core::error_code::ErrorCode;

use futures_util::{StreamExt, stream};
use object_store::{ObjectStoreExt, path::Path};

use super::enqueue::{extract_anew, fault};
use crate::{
    Engine, Error,
    jobs::{job_writes::note, unclaimed::Held},
    request::{Cancelled, Enqueued, JobPatch, NewJob, ReplayWith},
};
use tidegate_core::{
    job::{
        Body, Event, Job, JobId, JobOptions, Payload, State, TypeName, lifecycle::ResultBody,
        payload::MAX_DEPTH, spec::KeepResult,
    },
    port::{Committed, StoreError, job_store::CurrentRecord},
    time::Timestamp,
    validate::check_windows,
};

/// How often a change is worked out anew when the job changed meanwhile.
const TRIES: usize = 16;
/// How many bodies are read at once for one question.
const READS: usize = 16;

/// A job's change worked out: the new job, and whether more than its life changed. None: it stays as it is.
pub(crate) type Altered = Option<(Job, bool)>;

impl Engine {
    /// The job, of the type if one is named.
    ///
    /// # Errors
    ///
    /// 404 `job_not_found`, also for a job of another type.
    pub async fn job(&self, id: &JobId, job_type: Option<&TypeName>) -> Result<Job, Error> {
        let found = self.ports.store.get(std::slice::from_ref(id)).await?.pop().flatten();
        found
            .filter(|job| job_type.is_none_or(|name| *name == job.spec.job_type))
            .ok_or_else(|| Error::no_job(id))
    }

    /// Changes a job: `make` is asked, again if need be, what becomes of it at `now`. Before and after come back.
    ///
    /// # Errors
    ///
    /// What `make` answers; 409 `concurrent_update` if the job keeps changing.
    pub(crate) async fn alter(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        make: impl Fn(&Job, Timestamp) -> Result<Altered, Error>,
    ) -> Result<(Job, Job), Error> {
        let mut before = self.job(id, job_type).await?;
        for _ in 0..TRIES {
            let now = self.now();
            let Some((after, all)) = make(&before, now)? else {
                return Ok((before.clone(), before));
            };
            let was = before.life.revision;
            let writes = if before.life.ended().is_some() {
                note(was, &after)
            } else {
                self.change(was, &after, all, now)
            };
            match self.ports.store.commit(vec![writes]).await?.pop() {
                Some(Committed::All) => {
                    self.cache_job(&after);
                    Box::pin(self.forget_replaced(&before, &after)).await;
                    return Ok((before, after));
                }
                Some(Committed::Conflict { standing: CurrentRecord::Job(there), .. }) => {
                    before = *there;
                }
                _ => return Err(Error::no_job(id)),
            }
        }
        Err(Error::Conflict {
            code: ErrorCode::ConcurrentUpdate,
            message: "the job keeps changing".into(),
            holder: None,
        })
    }

    /// Refuses what cannot follow a job's being handed on without a claim. It is not handed on while what comes back lives.
    fn not_handed_on(&self, id: &JobId) -> Result<Held<'_>, Error> {
        let held = self.unclaimed.hold([id]);
        if held.holds(id) {
            return Ok(held);
        }
        let message = "it was handed on without a claim, and its worker may have it".to_owned();
        Err(Error::Conflict { code: ErrorCode::AlreadyDispatched, message, holder: None })
    }

    /// Changes a scheduled job. Before and after come back.
    ///
    /// # Errors
    ///
    /// 409 `not_scheduled` or `already_dispatched`; 412 if `if_match` is not its revision; 400 and 413 for bad values.
    pub async fn patch(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        mut patch: JobPatch,
        if_match: Option<u64>,
    ) -> Result<(Job, Job), Error> {
        if let Some(windows) = &patch.windows {
            check_windows(windows).map_err(fault)?;
        }
        let _held = self.not_handed_on(id)?;
        let mut body = None;
        if let Some(data) = patch.data.take() {
            data.check(MAX_DEPTH).map_err(|malformed| Error::malformed("data", &malformed))?;
            if data.bytes.len() > self.rules.max_data_bytes {
                return Err(Error::TooLarge { field: "data", limit: self.rules.max_data_bytes });
            }
            body = Some((
                data.clone(),
                if data.bytes.len() > self.rules.object_bytes {
                    self.put_object(data).await?
                } else {
                    Body::Inline(data)
                },
            ));
        }
        let catalog = self.catalog().await?;
        let altered = self.alter(id, job_type, |job, now| {
            if if_match.is_some_and(|version| version != job.life.revision.0) {
                return Err(Error::Stale { version: job.life.revision.0 });
            }
            let mut spec = (*job.spec).clone();
            spec.priority = patch.priority.unwrap_or(spec.priority);
            spec.expires_at = patch.expires_at.unwrap_or(spec.expires_at);
            if let Some(windows) = &patch.windows {
                spec.windows.clone_from(windows);
            }
            if let Some((data, _)) = &body {
                extract_anew(&catalog, &mut spec, data)?;
            }
            let run_at = patch.run_at.map(|at| at.max(now));
            let changed = Job {
                spec: Arc::new(spec),
                data: body.as_ref().map_or_else(|| job.data.clone(), |(_, body)| body.clone()),
                ..job.clone()
            };
            let after = changed
                .apply(Event::Patch { run_at }, now)
                .map_err(|refused| Error::refused(ErrorCode::NotScheduled, &refused))?;
            Ok(Some((after, true)))
        });
        let altered = altered.await;
        if let (Err(error), Some((_, Body::Object { key, .. }))) = (&altered, &body)
            && !matches!(error, Error::Unavailable { .. } | Error::Internal(_))
        {
            Box::pin(self.forget_object(key)).await;
        }
        altered
    }

    /// Cancels a job: a scheduled one ends, a running one is marked (with `force` it ends too). Before and after come back.
    ///
    /// # Errors
    ///
    /// 409 `ended` or `already_dispatched`.
    pub async fn cancel(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        force: bool,
    ) -> Result<(Job, Cancelled), Error> {
        let _held = self.not_handed_on(id)?;
        let (before, job) = self
            .alter(id, job_type, |job, now| {
                if job.life.running().is_some_and(|run| run.cancel && !force) {
                    return Ok(None);
                }
                let event = Event::Cancel { force };
                Ok(Some((
                    job.apply(event, now)
                        .map_err(|refused| Error::refused(ErrorCode::Ended, &refused))?,
                    false,
                )))
            })
            .await?;
        let ended = job.life.ended().is_some();
        Ok((before, Cancelled { job, ended }))
    }

    /// A scheduled job ended as dropped. Before and after come back.
    ///
    /// # Errors
    ///
    /// 409 `not_scheduled` or `already_dispatched`.
    pub async fn drop_job(&self, id: &JobId, reason: &str) -> Result<(Job, Job), Error> {
        let _held = self.not_handed_on(id)?;
        self.alter(id, None, |job, now| {
            let event = Event::Drop { reason: reason.to_owned() };
            Ok(Some((
                job.apply(event, now)
                    .map_err(|refused| Error::refused(ErrorCode::NotScheduled, &refused))?,
                false,
            )))
        })
        .await
    }

    /// A new job that does again what `id` did (or does), now.
    ///
    /// # Errors
    ///
    /// 409 `job_not_finished`: a job that waits is not replayed. As for enqueue else.
    pub async fn replay(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        with: ReplayWith,
        idempotency_key: Option<String>,
    ) -> Result<Enqueued, Error> {
        let job = self.job(id, job_type).await?;
        if matches!(job.life.state, State::Scheduled { .. }) {
            let message =
                "a scheduled job is not replayed: wait for it to start, or change it".to_owned();
            return Err(Error::Conflict { code: ErrorCode::JobNotFinished, message, holder: None });
        }
        let data = match with.data {
            Some(data) => data,
            None => self.data(&job).await?,
        };
        let spec = &job.spec;
        let new = NewJob {
            idempotency_key,
            expires_at: with.expires_at.unwrap_or(spec.expires_at),
            options: JobOptions {
                priority: Some(with.priority.unwrap_or(spec.priority)),
                weight: Some(with.weight.unwrap_or(spec.weight)),
                critical: spec.critical,
                windows: Some(with.windows.unwrap_or_else(|| spec.windows.clone())),
                attributes: with.attributes.unwrap_or_else(|| spec.attributes.clone()),
                ..JobOptions::default()
            },
            trace: with.trace,
            replay_of: Some(job.id.clone()),
            ..NewJob::new(spec.job_type.clone(), data)
        };
        self.enqueue(vec![new])
            .await
            .pop()
            .unwrap_or_else(|| Err(Error::Internal("an enqueue went unanswered".into())))
    }

    /// What a job carries, wherever it is kept.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] if the body is gone, which it stays; [`Error::Unavailable`] if it cannot be read now.
    pub async fn data(&self, job: &Job) -> Result<Payload, Error> {
        match &job.data {
            Body::Inline(payload) => Ok(payload.clone()),
            Body::Beside(_) => {
                let found =
                    self.ports.store.bodies(std::slice::from_ref(&job.id)).await?.pop().flatten();
                found.ok_or_else(|| Error::Internal(format!("the body of job {} is gone", job.id)))
            }
            Body::Object { encoding, key, .. } => {
                let fetched = async {
                    self.ports.objects.get(&Path::from(key.as_str())).await?.bytes().await
                };
                let bytes = fetched.await.map_err(|error| {
                    let message = format!("the body of job {} cannot be read: {error}", job.id);
                    match error {
                        object_store::Error::NotFound { .. } => Error::Internal(message),
                        _ => Error::Unavailable { retry_after: Duration::from_secs(1), message },
                    }
                })?;
                Ok(Payload { encoding: *encoding, bytes })
            }
        }
    }

    /// The jobs with every body and result read in.
    ///
    /// # Errors
    ///
    /// As for [`Engine::data`].
    pub async fn load(&self, jobs: Vec<Job>) -> Result<Vec<Job>, Error> {
        self.load_each(jobs).await.into_iter().collect()
    }

    /// The same, with an answer per job: one whose body is gone or damaged does not keep the others from theirs.
    pub async fn load_each(&self, mut jobs: Vec<Job>) -> Vec<Result<Job, Error>> {
        let beside: Vec<usize> =
            (0..jobs.len()).filter(|i| matches!(jobs[*i].data, Body::Beside(_))).collect();
        if !beside.is_empty() {
            let ids: Vec<JobId> = beside.iter().map(|i| jobs[*i].id.clone()).collect();
            match self.bodies(&ids).await {
                Ok(bodies) => beside.into_iter().zip(bodies).for_each(|(i, body)| {
                    if let Some(body) = body {
                        jobs[i].data = Body::Inline(body);
                    }
                }),
                Err(error) => return jobs.iter().map(|_| Err(error.clone())).collect(),
            }
        }
        let is_here = |job: &Job| {
            job.data.inline().is_some()
                && job.life.result.as_ref().is_none_or(|result| result.object.is_none())
        };
        if jobs.iter().all(is_here) {
            return jobs.into_iter().map(Ok).collect();
        }
        let each: Vec<_> = jobs.into_iter().map(|job| self.load_objects(job)).collect();
        stream::iter(each).buffered(READS).collect().await
    }

    /// The bodies that lie beside jobs, read together, and one by one if one of them is damaged: then it alone is missing.
    async fn bodies(&self, ids: &[JobId]) -> Result<Vec<Option<Payload>>, Error> {
        match self.ports.store.bodies(ids).await {
            Err(StoreError::Corrupt(_)) => {}
            answer => return Ok(answer?),
        }
        let mut bodies = Vec::with_capacity(ids.len());
        for id in ids {
            bodies.push(match self.ports.store.bodies(std::slice::from_ref(id)).await {
                Err(error @ StoreError::Corrupt(_)) => {
                    tracing::error!(job = %id, error = %error.chain(), "a body cannot be read");
                    None
                }
                answer => answer?.pop().flatten(),
            });
        }
        Ok(bodies)
    }

    async fn load_objects(&self, mut job: Job) -> Result<Job, Error> {
        match &job.data {
            Body::Inline(_) => {}
            Body::Object { .. } => job.data = Body::Inline(self.data(&job).await?),
            Body::Beside(_) => {
                return Err(Error::Internal(format!(
                    "the body of job {} is gone or damaged",
                    job.id
                )));
            }
        }
        if let Some(result) = job.life.result.as_ref().filter(|result| result.object.is_some()) {
            let payload = self.data(&Job { data: result.body(), ..job.clone() }).await?;
            job.life.result = ResultBody::of(&Body::Inline(payload));
        }
        Ok(job)
    }

    /// The result of an ended job, taking it if it may be read once; `None` if there is none, or it was taken.
    ///
    /// # Errors
    ///
    /// 409 `concurrent_update` if many take it at once; as for [`Engine::data`].
    pub async fn take_result(&self, job: &Job) -> Result<Option<Payload>, Error> {
        self.take_result_if(job, |_| true).await
    }

    /// The same, but one that does not `fit` where it goes is not taken: it is to be had some other way.
    ///
    /// # Errors
    ///
    /// As for [`Engine::take_result`].
    pub async fn take_result_if(
        &self,
        job: &Job,
        fits: impl Fn(&Payload) -> bool,
    ) -> Result<Option<Payload>, Error> {
        let Some(result) = &job.life.result else {
            return Ok(None);
        };
        // It is read before it is taken: taking removes it, and what could not be read is not lost.
        let read = self.data(&Job { data: result.body(), ..job.clone() }).await;
        if read.is_err() && self.job(&job.id, None).await?.life.result.is_none() {
            return Ok(None);
        }
        let payload = read?;
        if job.spec.keep_result == KeepResult::Once && fits(&payload) {
            let (before, _) = self
                .alter(&job.id, None, |job, now| {
                    if job.life.result.is_none() {
                        return Ok(None);
                    }
                    let after = job
                        .apply(Event::ForgetResult, now)
                        .map_err(|refused| Error::refused(ErrorCode::NotEnded, &refused))?;
                    Ok(Some((after, false)))
                })
                .await?;
            if before.life.result.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(payload))
    }
}
