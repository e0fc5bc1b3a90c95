//! `replay`: a job runs again, as a new job that the first one names.
//!
//! The id of the new job follows from that of the first one, so that calls at the same time, and a
//! call after a lost answer, make one job. The new job is added together with the mark on the first
//! one ([`Lifecycle::replayed_by`](tidegate_core::job::Lifecycle::replayed_by)). The mark outlives
//! the new job: a call after that was pruned makes none.

use super::{
    change::MAX_CHANGE_RETRIES,
    enqueue::{EnqueueWrites, digest},
};
use crate::{
    Engine, Error,
    request::{Enqueued, NewJob, ReplayWith},
};
use tidegate_core::{
    error_code::ErrorCode,
    event::trigger::{digest as digest_of, hex},
    job::{Job, JobId, JobOptions, State, TypeName},
};

/// What the id of a replay begins with, and how many hexadecimal digits follow.
const REPLAY_PREFIX: &str = "re-";
const REPLAY_DIGITS: usize = 40;

/// The id of the one job that replays `id` unless another replay is requested.
pub(crate) fn replay_id(id: &JobId) -> JobId {
    let digest = digest_of(&["replay", id.as_str()]);
    let id = format!("{REPLAY_PREFIX}{}", hex(&digest[..REPLAY_DIGITS / 2]));
    id.parse().expect("hexadecimal digits make an id")
}

/// Whether `id` has the form of those that [`replay_id`] makes.
pub(crate) fn is_replay_id(id: &JobId) -> bool {
    let digits = id.as_str().strip_prefix(REPLAY_PREFIX);
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    digits.is_some_and(|digits| digits.len() == REPLAY_DIGITS && digits.bytes().all(is_digit))
}

fn already_replayed(id: &JobId, replay: JobId) -> Error {
    let message = format!("job {id} was replayed before, as {replay}: \"again\": true replays it");
    Error::Conflict { code: ErrorCode::AlreadyReplayed, message, holder: Some(replay) }
}

impl Engine {
    /// Enqueues a new job that repeats job `id`, due now. A repeat of the request returns that job,
    /// while it is kept. With [`ReplayWith::again`], each call makes another, or each
    /// `idempotency_key` if one is given.
    ///
    /// # Errors
    ///
    /// 409 `job_not_finished` if the job is scheduled; `already_replayed` if it was replayed with
    /// other values, or the replay is no longer kept; otherwise those of [`Engine::enqueue`], such
    /// as 409 `correlation_key_taken`.
    pub async fn replay(
        &self,
        id: &JobId,
        job_type: Option<&TypeName>,
        with: ReplayWith,
        idempotency_key: Option<String>,
    ) -> Result<Enqueued, Error> {
        for _ in 0..MAX_CHANGE_RETRIES {
            let job = self.job(id, job_type).await?;
            match Box::pin(self.replay_once(job, &with, idempotency_key.clone())).await {
                // The job changed meanwhile.
                Err(Error::Stale { .. }) => {}
                answer => return answer,
            }
        }
        Err(Error::Conflict {
            code: ErrorCode::ConcurrentUpdate,
            message: "the job keeps changing".into(),
            holder: None,
        })
    }

    /// Replays `job`. Refused with [`Error::Stale`] if it has changed since it was read.
    async fn replay_once(
        &self,
        job: Job,
        with: &ReplayWith,
        idempotency_key: Option<String>,
    ) -> Result<Enqueued, Error> {
        if matches!(job.life.state, State::Scheduled { .. }) {
            let message =
                "a scheduled job is not replayed: wait for it to start, or change it".to_owned();
            return Err(Error::Conflict { code: ErrorCode::JobNotFinished, message, holder: None });
        }
        let id = job.id.clone();
        let new = self.replay_request(&job, with, idempotency_key).await?;
        if let (Some(own), Some(replay)) = (&new.id, &job.life.replayed_by) {
            return match self.job(own, None).await {
                Ok(made) if made.spec.request_digest == digest(&new) => {
                    Ok(Enqueued::existing(made))
                }
                Ok(_) | Err(Error::NotFound { .. }) => Err(already_replayed(&id, replay.clone())),
                Err(error) => Err(error),
            };
        }
        let writes = EnqueueWrites { replayed: Some(Box::new(job)), ..EnqueueWrites::default() };
        match self.enqueue_with(vec![new], vec![writes]).await.pop() {
            Some(Err(Error::Conflict {
                code: ErrorCode::IdTaken, holder: Some(replay), ..
            })) => Err(already_replayed(&id, replay)),
            answer => {
                answer.unwrap_or_else(|| Err(Error::Internal("an enqueue has no answer".into())))
            }
        }
    }

    /// The request for the job that replays `job`.
    async fn replay_request(
        &self,
        job: &Job,
        with: &ReplayWith,
        idempotency_key: Option<String>,
    ) -> Result<NewJob, Error> {
        let data = match &with.data {
            Some(data) => data.clone(),
            None => self.data(job).await?,
        };
        let (spec, with) = (&job.spec, with.clone());
        Ok(NewJob {
            id: (!with.again).then(|| replay_id(&job.id)),
            idempotency_key,
            expires_at: with.expires_at.unwrap_or(spec.expires_at),
            correlation_key: spec.correlation_key.clone(),
            options: JobOptions {
                priority: with.priority.unwrap_or(Some(spec.priority)),
                weight: with.weight.unwrap_or(Some(spec.weight)),
                critical: spec.critical,
                windows: with.windows.unwrap_or_else(|| Some(spec.windows.clone())),
                attributes: with
                    .attributes
                    .map_or_else(|| spec.attributes.clone(), Option::unwrap_or_default),
                ..JobOptions::default()
            },
            trace: with.trace,
            replay_of: Some(job.id.clone()),
            enqueued_by: spec.enqueued_by.clone(),
            ..NewJob::new(spec.job_type.clone(), data)
        })
    }
}
