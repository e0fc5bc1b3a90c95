//! `heartbeat`: a worker extends its lease, and learns whether its job is to be cancelled.

use super::checkpoint::with_checkpoint;
use crate::{
    Engine, Error,
    request::{Heartbeat, HeartbeatAnswer},
};
use tidegate_core::error_code::ErrorCode;
use tidegate_core::{
    job::{Event, Job, Revision, type_config::TypeConfig},
    port::{
        Committed,
        job_store::{CurrentRecord, ItemKind},
    },
};

/// How often a heartbeat is computed again because the job changed meanwhile.
const MAX_HEARTBEAT_RETRIES: usize = 8;

impl Engine {
    /// Extends the lease of a running attempt.
    ///
    /// # Errors
    ///
    /// 404 `job_not_found`; 409 `stale_attempt` for an attempt that does not run; 403 for the token
    /// of another attempt; 413 for a checkpoint over [`MAX_CHECKPOINT_BYTES`](crate::request::MAX_CHECKPOINT_BYTES).
    pub async fn heartbeat(&self, mut beat: Heartbeat) -> Result<HeartbeatAnswer, Error> {
        beat.checkpoint = self.prepare_checkpoint(&beat.id, beat.checkpoint.take()).await?;
        let answer = self.beat(&beat).await;
        self.forget_checkpoint(&beat, &answer).await;
        answer
    }

    async fn beat(&self, beat: &Heartbeat) -> Result<HeartbeatAnswer, Error> {
        let catalog = self.catalog().await?;
        // Read before the job: a later revision may be that of a change which the job does not have.
        let mut dispatched = self.unclaimed.revision(&beat.id);
        let known = self.cached_attempts(&[(beat.id.clone(), beat.attempt)]).await?.pop();
        let known = known.transpose()?.flatten();
        let mut job = known.ok_or_else(|| Error::no_job(&beat.id))?;
        for _ in 0..MAX_HEARTBEAT_RETRIES {
            if beat.job_type.as_ref().is_some_and(|name| *name != job.spec.job_type) {
                return Err(Error::no_job(&beat.id));
            }
            let config = catalog.types.get(&job.spec.job_type).map(|item| &item.config);
            if beat.lease_seconds.is_none() {
                catalog.refuse_unreadable(ItemKind::Type, job.spec.job_type.as_str())?;
            }
            let was = dispatched.take().unwrap_or(job.life.revision);
            match self.try_heartbeat(beat, &job, was, config).await? {
                Ok(beat) => return Ok(beat),
                Err(Some(there)) => job = *there,
                Err(None) => return Err(Error::no_job(&beat.id)),
            }
        }
        Err(Error::Conflict {
            code: ErrorCode::ConcurrentUpdate,
            message: "the job keeps changing".into(),
            holder: None,
        })
    }

    /// Tries once; `was` is the revision that the store has. If the write is refused, returns the
    /// current job, or none if it no longer exists.
    async fn try_heartbeat(
        &self,
        beat: &Heartbeat,
        job: &Job,
        was: Revision,
        config: Option<&TypeConfig>,
    ) -> Result<Result<HeartbeatAnswer, Option<Box<Job>>>, Error> {
        let now = self.now();
        let stale = || {
            let message = format!("attempt {} is not the running one", beat.attempt);
            Error::Conflict { code: ErrorCode::StaleAttempt, message, holder: None }
        };
        let run =
            job.life.running().filter(|_| job.life.attempt == beat.attempt).ok_or_else(stale)?;
        if beat.token.is_some_and(|token| token != run.token) {
            return Err(Error::Forbidden("the token is not that of the running attempt".into()));
        }
        let lease = beat.lease_seconds.or(config.map(|config| config.lease_seconds));
        let lease = lease.unwrap_or(job.spec.timeout);
        let event = Event::Heartbeat {
            attempt: beat.attempt,
            until: now + lease.duration(),
            progress: beat.progress.clone(),
        };
        let with_checkpoint = with_checkpoint(job, beat.checkpoint.as_ref());
        let mut after =
            with_checkpoint.as_ref().unwrap_or(job).apply(event, now).map_err(|_| stale())?;
        // The first heartbeat of an unclaimed dispatch claims the job: its worker has answered.
        after.life.revision = Revision(was.0 + 1);
        let writes = self.change_writes(was, &after, false, now);
        Ok(match self.ports.store.commit(vec![writes]).await?.pop() {
            Some(Committed::All) => {
                self.unclaimed.forget(&after.id);
                self.cache_job(&after);
                self.forget_replaced(job, &after).await;
                let run = after.life.running().ok_or_else(stale)?;
                Ok(HeartbeatAnswer { cancel: run.cancel, expires_at: run.lease_until })
            }
            refused => {
                // The job has changed since it was dispatched or cached.
                self.unclaimed.forget(&job.id);
                self.running.lock().remove(&job.id);
                match refused {
                    Some(Committed::Conflict { current: CurrentRecord::Job(there), .. }) => {
                        Err(Some(there))
                    }
                    Some(Committed::Conflict {
                        current: CurrentRecord::Unreadable(job), ..
                    }) => {
                        return Err(job.into());
                    }
                    _ => Err(None),
                }
            }
        })
    }
}
