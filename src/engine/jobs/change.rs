//! The operations on one job outside a tick: read, patch, cancel, drop.
//!
//! Every change is the same loop, [`Engine::alter`]: read the job, compute the new one, and write
//! it if the job is unchanged since. If it has changed, the loop starts again.

use std::sync::Arc;

use super::enqueue::{extract_again, fault};
use crate::{
    Engine, Error,
    jobs::{job_writes::lifecycle_write, unclaimed::HoldGuard},
    request::{Cancelled, JobPatch},
};
use tidegate_core::{
    error_code::ErrorCode,
    job::{Body, Event, Job, JobId, Payload, TypeName, payload::MAX_DEPTH},
    port::{Committed, job_store::CurrentRecord},
    time::Timestamp,
    validate::check_windows,
};

/// How often a change is computed again because the job changed meanwhile.
pub(super) const MAX_CHANGE_RETRIES: usize = 16;

/// A computed change: the new job, and whether more than its lifecycle changed. None if the job
/// stays as it is.
pub(crate) type Altered = Option<(Job, bool)>;

impl Engine {
    /// Returns a job. If `job_type` is given, the job must be of that type.
    ///
    /// # Errors
    ///
    /// 404 `job_not_found`, also for a job of another type; [`Error::Unreadable`].
    pub async fn job(&self, id: &JobId, job_type: Option<&TypeName>) -> Result<Job, Error> {
        let found = self.ports.store.get(std::slice::from_ref(id)).await?.pop().transpose()?;
        found
            .flatten()
            .filter(|job| job_type.is_none_or(|name| *name == job.spec.job_type))
            .ok_or_else(|| Error::no_job(id))
    }

    /// Changes a job. `make` computes the change at an instant, and again if the job changed
    /// meanwhile. Returns the job before and after.
    ///
    /// # Errors
    ///
    /// Those of `make`; 409 `concurrent_update` if the job keeps changing.
    pub(crate) async fn alter(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        make: impl Fn(&Job, Timestamp) -> Result<Altered, Error>,
    ) -> Result<(Job, Job), Error> {
        let mut before = self.job(id, job_type).await?;
        for _ in 0..MAX_CHANGE_RETRIES {
            let now = self.now();
            let Some((after, all)) = make(&before, now)? else {
                return Ok((before.clone(), before));
            };
            if before.life.ended().is_none() && after.life.ended().is_some() {
                // The triggers that name its type, as they are now.
                Box::pin(self.catalog()).await?;
            }
            let was = before.life.revision;
            let writes = if before.life.ended().is_some() {
                lifecycle_write(was, &after)
            } else {
                self.change_writes(was, &after, all, now)
            };
            match self.ports.store.commit(vec![writes]).await?.pop() {
                Some(Committed::All) => {
                    self.cache_job(&after);
                    Box::pin(self.forget_replaced(&before, &after)).await;
                    return Ok((before, after));
                }
                Some(Committed::Conflict { current: CurrentRecord::Job(there), .. }) => {
                    before = *there;
                }
                Some(Committed::Conflict { current: CurrentRecord::Unreadable(job), .. }) => {
                    return Err(job.into());
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

    /// Keeps a job from being dispatched without a claim while the returned guard lives.
    ///
    /// # Errors
    ///
    /// 409 `already_dispatched` if it was already dispatched so.
    fn hold_undispatched(&self, id: &JobId) -> Result<HoldGuard<'_>, Error> {
        let held = self.unclaimed.hold([id]);
        if held.holds(id) {
            return Ok(held);
        }
        let message = "it was dispatched without a claim, and its worker may have it".to_owned();
        Err(Error::Conflict { code: ErrorCode::AlreadyDispatched, message, holder: None })
    }

    /// Changes a scheduled job. Returns the job before and after.
    ///
    /// # Errors
    ///
    /// 409 `not_scheduled` or `already_dispatched`; 412 if `if_match` is not its revision; 400 and
    /// 413 for bad values.
    pub async fn patch(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        mut patch: JobPatch,
        if_match: Option<u64>,
    ) -> Result<(Job, Job), Error> {
        if let Some(Some(windows)) = &patch.windows {
            check_windows(windows).map_err(fault)?;
        }
        let _held = self.hold_undispatched(id)?;
        let body = match patch.data.take() {
            Some(data) => Some(self.patched_body(id, data).await?),
            None => None,
        };
        let catalog = self.catalog().await?;
        let altered = self.alter(id, job_type, |job, now| {
            if if_match.is_some_and(|version| version != job.life.revision.0) {
                return Err(Error::Stale { version: job.life.revision.0 });
            }
            let mut spec = (*job.spec).clone();
            if patch.priority == Some(None) || patch.windows == Some(None) {
                let defaults = &catalog.job_type(&spec.job_type)?.config;
                spec.priority = patch.priority.map_or(spec.priority, |_| defaults.priority);
                if patch.windows.is_some() {
                    spec.windows.clone_from(&defaults.windows);
                }
            }
            spec.priority = patch.priority.flatten().unwrap_or(spec.priority);
            if let Some(windows) = patch.windows.iter().flatten().next() {
                spec.windows.clone_from(windows);
            }
            spec.expires_at = patch.expires_at.unwrap_or(spec.expires_at);
            if let Some((data, _)) = &body {
                extract_again(&catalog, &mut spec, data)?;
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

    /// Checks the new data of a patch. Returns it with the body under which it is kept.
    async fn patched_body(&self, id: &JobId, data: Payload) -> Result<(Payload, Body), Error> {
        data.check(MAX_DEPTH).map_err(|malformed| Error::malformed("data", &malformed))?;
        if data.bytes.len() > self.rules.max_data_bytes {
            return Err(Error::TooLarge { field: "data", limit: self.rules.max_data_bytes });
        }
        let body = if data.bytes.len() > self.rules.object_bytes {
            self.put_object(id, data.clone()).await?
        } else {
            Body::Inline(data.clone())
        };
        Ok((data, body))
    }

    /// Cancels a job. A scheduled job ends. A running job is marked, or ends if `force` is set.
    /// Returns the job before and after.
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
        let _held = self.hold_undispatched(id)?;
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

    /// Ends a scheduled job as dropped. Returns the job before and after.
    ///
    /// # Errors
    ///
    /// 409 `not_scheduled` or `already_dispatched`.
    pub async fn drop_job(&self, id: &JobId, reason: &str) -> Result<(Job, Job), Error> {
        let _held = self.hold_undispatched(id)?;
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
}
