//! The verbs on one job that are not a queue's round: read, change, cancel, run again, take the result.
//!
//! Each is the same loop, [`Engine::alter`]: see the job, work out the new one, write it if the job is
//! still the one that was seen, else look again.

use std::sync::Arc;

use super::enqueue::{extract_anew, fault};
use crate::{
    Engine, Error,
    jobs::{job_writes::note, unclaimed::Held},
    request::{Cancelled, Enqueued, JobPatch, NewJob, ReplayWith},
};
use tidegate_core::{
    error_code::ErrorCode,
    job::{Body, Event, Job, JobId, JobOptions, State, TypeName, payload::MAX_DEPTH},
    port::{Committed, job_store::CurrentRecord},
    time::Timestamp,
    validate::check_windows,
};

/// How often a change is worked out anew when the job changed meanwhile.
const TRIES: usize = 16;

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
}
