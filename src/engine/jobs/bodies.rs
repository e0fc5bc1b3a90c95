//! Reads the bodies of jobs and their results, wherever they are kept.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use object_store::{ObjectStoreExt, path::Path};

use crate::{Engine, Error};
use tidegate_core::{
    error_code::ErrorCode,
    job::{Body, Event, Job, JobId, Payload, lifecycle::ResultBody, spec::KeepResult},
    port::StoreError,
};

/// How many bodies are read at once for one question.
const READS: usize = 16;

impl Engine {
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
