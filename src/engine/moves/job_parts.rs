//! Jobs with what belongs to them: their bodies, and the keys that point at them.

use std::collections::{BTreeSet, HashMap};

use super::{MoveError, Side, error::Damage};
use tidegate_core::{
    job::{Body, Job, JobId},
    port::job_store::{Key, UnreadableJob},
    time::Timestamp,
};

/// About how many bytes of bodies are read at once. A job may have more by itself.
const MAX_BYTES: usize = 4 << 20;

/// A job with its body and its keys.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WholeJob {
    /// The job. Its body is inline, or an object.
    pub job: Job,
    /// The keys that point at it.
    pub keys: BTreeSet<Key>,
}

impl WholeJob {
    /// The job at `now` without a result that is past its retention: some stores hide it from their
    /// readers.
    pub(super) fn at(mut self, now: Timestamp) -> Self {
        let life = &mut self.job.life;
        if life.result_until(&self.job.spec).is_some_and(|until| until <= now) {
            life.result = None;
        }
        self
    }
}

/// Whether readers no longer see `job` at `now`.
pub(super) fn is_forgotten(job: &Job, now: Timestamp) -> bool {
    job.life.kept_until(&job.spec).is_some_and(|until| until <= now)
}

/// `jobs` in groups whose bodies have a bounded size together.
pub(super) fn groups(jobs: Vec<Job>) -> Vec<Vec<Job>> {
    let (mut groups, mut bytes) = (vec![Vec::new()], 0);
    for job in jobs {
        bytes += job.data.len();
        let last = groups.last_mut().filter(|last| last.is_empty() || bytes <= MAX_BYTES);
        if let Some(last) = last {
            last.push(job);
        } else {
            bytes = job.data.len();
            groups.push(vec![job]);
        }
    }
    groups
}

impl Side {
    /// The jobs of a page.
    ///
    /// # Errors
    ///
    /// One of them cannot be read.
    pub(super) fn readable(
        &self,
        jobs: Vec<Result<Job, UnreadableJob>>,
    ) -> Result<Vec<Job>, MoveError> {
        jobs.into_iter().collect::<Result<_, _>>().map_err(|job| self.damaged(job))
    }

    /// These jobs of the store with what belongs to them.
    pub(super) async fn whole(&self, mut jobs: Vec<Job>) -> Result<Vec<WholeJob>, MoveError> {
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id.clone()).collect();
        self.load_bodies(&mut jobs).await?;
        let mut keys: HashMap<JobId, BTreeSet<Key>> = HashMap::new();
        let of_jobs = self.store.keys_of(&ids).await.map_err(|error| self.failed(error))?;
        for (key, job) in of_jobs {
            keys.entry(job).or_default().insert(key);
        }
        let whole = |job: Job| WholeJob { keys: keys.remove(&job.id).unwrap_or_default(), job };
        Ok(jobs.into_iter().map(whole).collect())
    }

    async fn load_bodies(&self, jobs: &mut [Job]) -> Result<(), MoveError> {
        let is_separate = |job: &&mut Job| matches!(job.data, Body::Separate(_));
        let separate: Vec<&mut Job> = jobs.iter_mut().filter(is_separate).collect();
        if separate.is_empty() {
            return Ok(());
        }
        let ids: Vec<JobId> = separate.iter().map(|job| job.id.clone()).collect();
        let bodies = self.store.bodies(&ids).await.map_err(|error| self.failed(error))?;
        for (job, body) in separate.into_iter().zip(bodies) {
            let body = body.map_err(|job| self.damaged(job))?;
            let body = body.filter(|body| body.bytes.len() == job.data.len()).ok_or_else(|| {
                self.damaged(Damage::Other(format!("the body of job {} is missing", job.id)))
            })?;
            job.data = Body::Inline(body);
        }
        Ok(())
    }
}
