//! Checkpoints: what the next attempt of a job needs to go on, as the worker of an attempt stores it.

use crate::{Engine, Error, request::Heartbeat};
use tidegate_core::job::{Body, Job, JobId, lifecycle::ResultBody};

/// Most bytes of a checkpoint.
pub const MAX_CHECKPOINT_BYTES: usize = 64 << 10;
/// Larger ones become objects. A job's record is written several times in each attempt, and some
/// stores charge for each kilobyte of it.
const MAX_INLINE_CHECKPOINT_BYTES: usize = 4 << 10;

impl Engine {
    /// Moves a large checkpoint of job `of` to the object store.
    ///
    /// # Errors
    ///
    /// 413 for one over the bound; the object store's.
    pub(crate) async fn prepare_checkpoint(
        &self,
        of: &JobId,
        checkpoint: Option<Body>,
    ) -> Result<Option<Body>, Error> {
        let Some(Body::Inline(payload)) = checkpoint else {
            return Ok(checkpoint);
        };
        if payload.bytes.len() > MAX_CHECKPOINT_BYTES {
            return Err(Error::TooLarge { field: "checkpoint", limit: MAX_CHECKPOINT_BYTES });
        }
        if payload.bytes.len() <= MAX_INLINE_CHECKPOINT_BYTES {
            return Ok(Some(Body::Inline(payload)));
        }
        self.put_object(of, payload).await.map(Some)
    }

    /// Deletes the checkpoint of a heartbeat that was refused.
    pub(crate) async fn forget_checkpoint<T>(&self, beat: &Heartbeat, answer: &Result<T, Error>) {
        let is_unknown = matches!(
            answer,
            Err(Error::Unavailable { .. } | Error::Unreadable(_) | Error::Internal(_))
        );
        if let Some(Body::Object { key, .. }) = &beat.checkpoint
            && answer.is_err()
            && !is_unknown
        {
            self.forget_object(key).await;
        }
    }
}

/// `job` with the checkpoint of its running attempt, if there is one.
pub(crate) fn with_checkpoint(job: &Job, checkpoint: Option<&Body>) -> Option<Job> {
    let checkpoint = checkpoint.and_then(ResultBody::of)?;
    let mut job = job.clone();
    job.life.keep_checkpoint(checkpoint);
    Some(job)
}
