//! Reads the bodies of jobs and their results, wherever they are kept.

use std::{collections::HashMap, time::Duration};

use futures_util::{StreamExt, stream};
use object_store::{ObjectStoreExt, path::Path};

use super::objects::check_object;
use crate::{Engine, Error};
use tidegate_core::{
    error_chain::ErrorChain,
    error_code::ErrorCode,
    job::{Body, Event, Job, JobId, Payload, lifecycle::ResultBody, spec::KeepResult},
    port::job_store::UnreadableJob,
};

/// How many bodies one request reads at the same time.
const MAX_CONCURRENT_READS: usize = 16;

impl Engine {
    /// Reads the data of a job: from its record, from the store, or from the object store.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`] if the body is missing or damaged; [`Error::Unavailable`] if it cannot
    /// be read now.
    pub async fn data(&self, job: &Job) -> Result<Payload, Error> {
        match &job.data {
            Body::Inline(payload) => Ok(payload.clone()),
            Body::Separate(_) => {
                let found = self.ports.store.bodies(std::slice::from_ref(&job.id)).await?.pop();
                found.unwrap_or(Ok(None))?.ok_or_else(|| damaged_body(job, "it is missing").into())
            }
            Body::Object { encoding, key, len } => {
                let fetched = async {
                    self.ports.objects.get(&Path::from(key.as_str())).await?.bytes().await
                };
                let bytes = fetched.await.map_err(|error| {
                    if let object_store::Error::NotFound { .. } = error {
                        return damaged_body(job, "it is missing").into();
                    }
                    let cause = ErrorChain(&error);
                    let message = format!("the body of job {} cannot be read: {cause}", job.id);
                    Error::unavailable(Duration::from_secs(1), message)
                })?;
                check_object(key, *len, &bytes).map_err(|why| damaged_body(job, why))?;
                Ok(Payload { encoding: *encoding, bytes })
            }
        }
    }

    /// Reads the data of jobs. Returns one answer per job, in order: 404 `job_not_found` if it was
    /// removed with its data since it was read; otherwise as [`Engine::data`].
    pub async fn data_each(&self, jobs: &[Job]) -> Vec<Result<Payload, Error>> {
        let is_separate = |job: &Job| matches!(job.data, Body::Separate(_));
        let ids: Vec<JobId> =
            jobs.iter().filter(|job| is_separate(job)).map(|job| job.id.clone()).collect();
        let bodies = if ids.is_empty() {
            Vec::new()
        } else {
            match self.ports.store.bodies(&ids).await {
                Ok(bodies) => bodies,
                Err(error) => {
                    let error = Error::from(error);
                    return jobs.iter().map(|_| Err(error.clone())).collect();
                }
            }
        };
        let mut bodies = bodies.into_iter();
        let read = |job| {
            let body = if is_separate(job) { bodies.next() } else { None };
            async move {
                let data = match body {
                    Some(body) => body.map_err(Error::from).and_then(|body| {
                        body.ok_or_else(|| damaged_body(job, "it is missing").into())
                    }),
                    None => self.data(job).await,
                };
                let Err(error @ Error::Unreadable(_)) = data else { return data };
                let now = self.job(&job.id, None).await?;
                if now.life.revision == job.life.revision {
                    return Err(error);
                }
                self.data(&now).await
            }
        };
        let each: Vec<_> = jobs.iter().map(read).collect();
        stream::iter(each).buffered(MAX_CONCURRENT_READS).collect().await
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
        let mut unreadable: HashMap<String, UnreadableJob> = HashMap::new();
        let separate: Vec<usize> =
            (0..jobs.len()).filter(|i| matches!(jobs[*i].data, Body::Separate(_))).collect();
        if !separate.is_empty() {
            let ids: Vec<JobId> = separate.iter().map(|i| jobs[*i].id.clone()).collect();
            match self.ports.store.bodies(&ids).await {
                Ok(bodies) => {
                    for (i, body) in separate.into_iter().zip(bodies) {
                        match body {
                            Ok(Some(body)) => jobs[i].data = Body::Inline(body),
                            Ok(None) => {}
                            Err(job) => drop(unreadable.insert(job.id.clone(), job)),
                        }
                    }
                }
                Err(error) => {
                    let error = Error::from(error);
                    return jobs.iter().map(|_| Err(error.clone())).collect();
                }
            }
        }
        if jobs.iter().all(Job::is_whole) {
            return jobs.into_iter().map(Ok).collect();
        }
        let load = |job: Job| {
            let unreadable = unreadable.remove(job.id.as_str());
            async {
                match unreadable {
                    Some(unreadable) => Err(unreadable.into()),
                    None => self.load_objects(job).await,
                }
            }
        };
        let each: Vec<_> = jobs.into_iter().map(load).collect();
        stream::iter(each).buffered(MAX_CONCURRENT_READS).collect().await
    }

    /// Reads a body and a result that are objects. If they are not there, they may have been deleted
    /// after the job was read: then the job is read again.
    async fn load_objects(&self, job: Job) -> Result<Job, Error> {
        let error = match self.load_objects_of(job.clone()).await {
            // The attempt of a running job is that of the job as it was read.
            Err(error @ Error::Unreadable(_)) if job.life.running().is_none() => error,
            done => return done,
        };
        let now = self.job(&job.id, None).await?;
        if now.life.revision == job.life.revision && now.life.result == job.life.result {
            return Err(error);
        }
        self.load_objects_of(now).await
    }

    async fn load_objects_of(&self, mut job: Job) -> Result<Job, Error> {
        if let Some(checkpoint) = job.life.checkpoint.clone().filter(|kept| kept.object.is_some()) {
            let read = self.data(&Job { data: checkpoint.body(), ..job.clone() }).await;
            job.life.checkpoint = match read {
                Ok(payload) => ResultBody::of(&Body::Inline(payload)),
                // Without it the next attempt begins at the beginning.
                Err(Error::Unreadable(damaged)) => {
                    tracing::warn!(job = %job.id, reason = damaged.reason, "a checkpoint is lost");
                    None
                }
                Err(error) => return Err(error),
            };
        }
        if job.data.inline().is_none() {
            job.data = Body::Inline(self.data(&job).await?);
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

/// The job whose body is damaged or missing; `why` as a clause.
fn damaged_body(job: &Job, why: &str) -> UnreadableJob {
    UnreadableJob { id: job.id.to_string(), reason: format!("its body is damaged: {why}") }
}
