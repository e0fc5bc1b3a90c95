//! Reads the bodies of jobs and their results, wherever they are kept.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use object_store::{ObjectStoreExt, path::Path};

use crate::{Engine, Error};
use tidegate_core::{
    error_chain::ErrorChain,
    error_code::ErrorCode,
    job::{Body, Event, Job, JobId, Payload, lifecycle::ResultBody, spec::KeepResult},
    port::StoreError,
};

/// How many bodies one request reads at the same time.
const MAX_CONCURRENT_READS: usize = 16;

impl Engine {
    /// Reads the data of a job: from its record, from the store, or from the object store.
    ///
    /// # Errors
    ///
    /// [`Error::Internal`] if the body no longer exists; [`Error::Unavailable`] if it cannot be
    /// read now.
    pub async fn data(&self, job: &Job) -> Result<Payload, Error> {
        match &job.data {
            Body::Inline(payload) => Ok(payload.clone()),
            Body::Separate(_) => {
                let found =
                    self.ports.store.bodies(std::slice::from_ref(&job.id)).await?.pop().flatten();
                found.ok_or_else(|| {
                    Error::Internal(format!("the body of job {} is missing", job.id))
                })
            }
            Body::Object { encoding, key, .. } => {
                let fetched = async {
                    self.ports.objects.get(&Path::from(key.as_str())).await?.bytes().await
                };
                let bytes = fetched.await.map_err(|error| {
                    let cause = ErrorChain(&error);
                    let message = format!("the body of job {} cannot be read: {cause}", job.id);
                    match error {
                        object_store::Error::NotFound { .. } => Error::Internal(message),
                        _ => Error::Unavailable { retry_after: Duration::from_secs(1), message },
                    }
                })?;
                Ok(Payload { encoding: *encoding, bytes })
            }
        }
    }

    /// Reads the bodies and results of jobs into them.
    ///
    /// # Errors
    ///
    /// Those of [`Engine::data`].
    pub async fn load(&self, jobs: Vec<Job>) -> Result<Vec<Job>, Error> {
        self.load_each(jobs).await.into_iter().collect()
    }

    /// Reads the bodies and results of jobs into them. Returns one answer per job, so that one
    /// missing or damaged body does not affect the others.
    pub async fn load_each(&self, mut jobs: Vec<Job>) -> Vec<Result<Job, Error>> {
        let separate: Vec<usize> =
            (0..jobs.len()).filter(|i| matches!(jobs[*i].data, Body::Separate(_))).collect();
        if !separate.is_empty() {
            let ids: Vec<JobId> = separate.iter().map(|i| jobs[*i].id.clone()).collect();
            match self.bodies(&ids).await {
                Ok(bodies) => separate.into_iter().zip(bodies).for_each(|(i, body)| {
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
        stream::iter(each).buffered(MAX_CONCURRENT_READS).collect().await
    }

    /// Reads bodies that are stored separately from their jobs, all at once. If one is damaged,
    /// they are read one by one, and only the damaged one is missing.
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

    /// Reads a body and a result that are objects.
    async fn load_objects(&self, mut job: Job) -> Result<Job, Error> {
        match &job.data {
            Body::Inline(_) => {}
            Body::Object { .. } => job.data = Body::Inline(self.data(&job).await?),
            Body::Separate(_) => {
                return Err(Error::Internal(format!(
                    "the body of job {} is missing or damaged",
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

    /// Reads the result of an ended job, and removes it if it may be read only once. `None` if
    /// there is no result, or if it was taken before.
    ///
    /// # Errors
    ///
    /// 409 `concurrent_update` if many callers take it at once; those of [`Engine::data`].
    pub async fn take_result(&self, job: &Job) -> Result<Option<Payload>, Error> {
        self.take_result_if(job, |_| true).await
    }

    /// Reads the result as [`Engine::take_result`] does, but does not remove one for which `fits`
    /// is false: the caller cannot pass it on, and it can still be read in another way.
    ///
    /// # Errors
    ///
    /// Those of [`Engine::take_result`].
    pub async fn take_result_if(
        &self,
        job: &Job,
        fits: impl Fn(&Payload) -> bool,
    ) -> Result<Option<Payload>, Error> {
        let Some(result) = &job.life.result else {
            return Ok(None);
        };
        // The result is read before it is removed, so that one that cannot be read is not lost.
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
