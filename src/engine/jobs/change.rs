//! The operations on jobs outside a tick: read, patch, cancel, drop.
//!
//! Every change is the same loop, [`Engine::alter_each`]: compute the new jobs from those that were
//! read, and write each one if it is unchanged since. The loop starts again with those that have
//! changed.

use std::{mem, sync::Arc};

use futures_util::{StreamExt, stream};

use super::enqueue::{extract_again, fault};
use crate::{
    Engine, Error,
    jobs::{job_writes::lifecycle_write, objects::MAX_CONCURRENT_WRITES, unclaimed::HoldGuard},
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
        let job = self.job(id, job_type).await?;
        one(self.alter_each(vec![Ok(job)], make).await)
    }

    /// Changes jobs, which were just read, in one commit of a transaction each. A job that has
    /// changed since is computed again. Returns one answer per job, in order: the job before and
    /// after; a given error; or what [`Engine::alter`] returns.
    async fn alter_each(
        &self,
        jobs: Vec<Result<Job, Error>>,
        make: impl Fn(&Job, Timestamp) -> Result<Altered, Error>,
    ) -> Vec<Result<(Job, Job), Error>> {
        let mut answers: Vec<Option<Result<(Job, Job), Error>>> =
            jobs.iter().map(|job| job.as_ref().err().cloned().map(Err)).collect();
        let read = jobs.into_iter().enumerate();
        let mut pending: Vec<(usize, Job)> =
            read.filter_map(|(index, job)| Some((index, job.ok()?))).collect();
        for _ in 0..MAX_CHANGE_RETRIES {
            if pending.is_empty() {
                break;
            }
            let now = self.now();
            let mut planned = Vec::with_capacity(pending.len());
            for (index, before) in mem::take(&mut pending) {
                match make(&before, now) {
                    Ok(Some((after, all))) => planned.push((index, before, after, all)),
                    Ok(None) => answers[index] = Some(Ok((before.clone(), before))),
                    Err(error) => answers[index] = Some(Err(error)),
                }
            }
            let committed = match self.commit_changes(&planned, now).await {
                Ok(committed) => committed.into_iter().map(Ok).collect(),
                Err(error) => self.outcomes_after(error, &planned).await,
            };
            for ((index, before, after, _), outcome) in planned.into_iter().zip(committed) {
                let outcome = match outcome {
                    Ok(outcome) => outcome,
                    Err(error) => {
                        answers[index] = Some(Err(error));
                        continue;
                    }
                };
                answers[index] = Some(match outcome {
                    Committed::All => {
                        self.cache_job(&after);
                        Ok((before, after))
                    }
                    Committed::Conflict { current: CurrentRecord::Job(current), .. } => {
                        pending.push((index, *current));
                        continue;
                    }
                    Committed::Conflict { current: CurrentRecord::Unreadable(job), .. } => {
                        Err(job.into())
                    }
                    Committed::Conflict { .. } => Err(Error::no_job(&before.id)),
                });
            }
        }
        let answers = answers.into_iter();
        let answers: Vec<_> =
            answers.map(|answer| answer.unwrap_or_else(|| Err(keeps_changing()))).collect();
        let replaced = answers.iter().flatten().filter(|(before, after)| {
            before.object_keys().next().is_some() && before.life.revision != after.life.revision
        });
        let forget = replaced.map(|(before, after)| self.forget_replaced(before, after));
        let forget: Vec<_> = forget.collect();
        stream::iter(forget).buffered(MAX_CONCURRENT_WRITES).collect::<()>().await;
        answers
    }

    /// The outcomes of changes after the error of their commit: a job that is stored as it was
    /// planned was written. Of the others it is not known.
    async fn outcomes_after(
        &self,
        error: Error,
        planned: &[(usize, Job, Job, bool)],
    ) -> Vec<Result<Committed, Error>> {
        let ids: Vec<JobId> = planned.iter().map(|(_, before, ..)| before.id.clone()).collect();
        let stored = self.ports.store.get(&ids).await.unwrap_or_default();
        let mut stored = stored.into_iter();
        let outcome = |(_, _, after, _): &(usize, Job, Job, bool)| {
            let is_written = matches!(stored.next(), Some(Ok(Some(job))) if job.life == after.life);
            if is_written { Ok(Committed::All) } else { Err(error.clone()) }
        };
        planned.iter().map(outcome).collect()
    }

    /// Writes computed changes: the index of the answer, the job before and after, and whether more
    /// than its lifecycle changed.
    async fn commit_changes(
        &self,
        planned: &[(usize, Job, Job, bool)],
        now: Timestamp,
    ) -> Result<Vec<Committed>, Error> {
        if planned.is_empty() {
            return Ok(Vec::new());
        }
        let has_ended = |job: &Job| job.life.ended().is_some();
        if planned.iter().any(|(_, before, after, _)| !has_ended(before) && has_ended(after)) {
            // The triggers that name their types, as they are now.
            Box::pin(self.catalog()).await?;
        }
        let writes = |(_, before, after, all): &(usize, Job, Job, bool)| {
            let was = before.life.revision;
            if has_ended(before) {
                lifecycle_write(was, after)
            } else {
                self.change_writes(was, after, *all, now)
            }
        };
        Ok(self.ports.store.commit(planned.iter().map(writes).collect()).await?)
    }

    /// Keeps jobs from being dispatched without a claim while the returned guard lives. Returns the
    /// jobs, or 409 `already_dispatched` for those that were already dispatched so.
    fn hold_undispatched(&self, jobs: Vec<Job>) -> (HoldGuard<'_>, Vec<Result<Job, Error>>) {
        let held = self.unclaimed.hold(jobs.iter().map(|job| &job.id));
        let check = |job: Job| {
            if held.holds(&job.id) {
                return Ok(job);
            }
            let message =
                "it was dispatched without a claim, and its worker may have it".to_owned();
            Err(Error::Conflict { code: ErrorCode::AlreadyDispatched, message, holder: None })
        };
        let jobs = jobs.into_iter().map(check).collect();
        (held, jobs)
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
        patch: JobPatch,
        if_match: Option<u64>,
    ) -> Result<(Job, Job), Error> {
        let job = self.job(id, job_type).await?;
        one(self.patch_with(vec![job], patch, if_match, None).await?)
    }

    /// Changes scheduled jobs, which were just read, as [`Engine::patch`] changes one. A job that has
    /// these values, or is due and is to be due now, stays as it is. Returns one answer per job, in
    /// order.
    ///
    /// # Errors
    ///
    /// 400 for a bad value, and for `data`, which belongs to one job; the store's.
    pub async fn patch_each(
        &self,
        jobs: Vec<Job>,
        patch: JobPatch,
        only: Only<'_>,
    ) -> Result<Vec<Result<(Job, Job), Error>>, Error> {
        if patch.data.is_some() {
            return Err(Error::invalid("data", "can be changed in one job only"));
        }
        self.patch_with(jobs, patch, None, Some(only)).await
    }

    /// Changes scheduled jobs, exactly one if the patch has data. With `only`, those that it selects,
    /// if that changes anything.
    async fn patch_with(
        &self,
        jobs: Vec<Job>,
        mut patch: JobPatch,
        if_match: Option<u64>,
        only: Option<Only<'_>>,
    ) -> Result<Vec<Result<(Job, Job), Error>>, Error> {
        if let Some(Some(windows)) = &patch.windows {
            check_windows(windows).map_err(fault)?;
        }
        let body = match (patch.data.take(), jobs.first()) {
            (Some(data), Some(job)) => Some(self.patched_body(&job.id, data).await?),
            _ => None,
        };
        let (_held, jobs) = self.hold_undispatched(jobs);
        let catalog = self.catalog().await?;
        let altered = self.alter_each(jobs, |job, now| {
            if if_match.is_some_and(|version| version != job.life.revision.0) {
                return Err(Error::Stale { version: job.life.revision.0 });
            }
            only.map_or(Ok(()), |only| check_only(only, job, now))?;
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
            let mut run_at = patch.run_at.map(|at| at.max(now));
            if only.is_some() {
                let due = job.run_at();
                run_at = run_at.filter(|at| *at != due && !(due <= now && *at <= now));
                if run_at.is_none() && spec == *job.spec && job.is_scheduled() {
                    return Ok(None);
                }
            }
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
        if let (Some(Err(error)), Some((_, Body::Object { key, .. }))) = (altered.first(), &body)
            && !matches!(error, Error::Unavailable { .. } | Error::Internal(_))
        {
            Box::pin(self.forget_object(key)).await;
        }
        Ok(altered)
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
        let job = self.job(id, job_type).await?;
        one(self.cancel_each(vec![job], force, &|_, _| true).await)
    }

    /// Cancels jobs, which were just read, as [`Engine::cancel`] cancels one. Returns one answer per
    /// job, in order: 409 `concurrent_update` for one that `only` no longer selects.
    pub async fn cancel_each(
        &self,
        jobs: Vec<Job>,
        force: bool,
        only: Only<'_>,
    ) -> Vec<Result<(Job, Cancelled), Error>> {
        let (_held, jobs) = self.hold_undispatched(jobs);
        let altered = self.alter_each(jobs, |job, now| {
            check_only(only, job, now)?;
            if job.life.running().is_some_and(|run| run.cancel && !force) {
                return Ok(None);
            }
            let after = job
                .apply(Event::Cancel { force }, now)
                .map_err(|refused| Error::refused(ErrorCode::Ended, &refused))?;
            Ok(Some((after, false)))
        });
        let cancelled = |(before, job): (Job, Job)| {
            let ended = job.life.ended().is_some();
            (before, Cancelled { job, ended })
        };
        altered.await.into_iter().map(|answer| answer.map(cancelled)).collect()
    }

    /// Ends scheduled jobs, which were just read, as dropped. Returns one answer per job, in order:
    /// the job before and after; 409 `not_scheduled` or `already_dispatched`, or `concurrent_update`
    /// for one that `only` no longer selects.
    pub async fn drop_each(
        &self,
        jobs: Vec<Job>,
        reason: &str,
        only: Only<'_>,
    ) -> Vec<Result<(Job, Job), Error>> {
        let (_held, jobs) = self.hold_undispatched(jobs);
        let altered = self.alter_each(jobs, |job, now| {
            check_only(only, job, now)?;
            let event = Event::Drop { reason: reason.to_owned() };
            let after = job
                .apply(event, now)
                .map_err(|refused| Error::refused(ErrorCode::NotScheduled, &refused))?;
            Ok(Some((after, false)))
        });
        altered.await
    }
}

/// Selects the jobs that a change of many applies to, at an instant: a job may have changed since it
/// was read.
pub type Only<'a> = &'a (dyn Fn(&Job, Timestamp) -> bool + Sync);

fn check_only(only: Only<'_>, job: &Job, now: Timestamp) -> Result<(), Error> {
    if only(job, now) {
        return Ok(());
    }
    let message = "it has changed, and is no longer one of the jobs to change".to_owned();
    Err(Error::Conflict { code: ErrorCode::ConcurrentUpdate, message, holder: None })
}

/// The error for a job that has changed each time it was read.
pub(super) fn keeps_changing() -> Error {
    let message = "the job keeps changing".to_owned();
    Error::Conflict { code: ErrorCode::ConcurrentUpdate, message, holder: None }
}

/// The one answer of a call about one job.
fn one<T>(mut answers: Vec<Result<T, Error>>) -> Result<T, Error> {
    answers.pop().unwrap_or_else(|| Err(Error::Internal("a change has no answer".into())))
}
