//! `replay`: a job runs again, as a new job that the first one names.
//!
//! The id of the new job follows from that of the first one, so that calls at the same time, and a
//! call after a lost answer, make one job. The new job is added together with the mark on the first
//! one ([`Lifecycle::replayed_by`](tidegate_core::job::Lifecycle::replayed_by)). The mark outlives
//! the new job: a call after that was pruned makes none.

use super::{
    change::{MAX_CHANGE_RETRIES, keeps_changing},
    enqueue::{EnqueueWrites, digest},
};
use crate::{
    Engine, Error,
    request::{Enqueued, NewJob, ReplayWith},
};
use tidegate_core::{
    error_code::ErrorCode,
    event::trigger::{digest as digest_of, hex},
    job::{Job, JobId, JobOptions, Payload, State, TypeName},
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

/// A request to replay a job.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The job, as it was just read.
    pub job: Job,
    /// The values of the new job.
    pub with: ReplayWith,
    /// Of repeats with one key, one makes a job, also with [`ReplayWith::again`].
    pub idempotency_key: Option<String>,
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
        let job = self.job(id, job_type).await?;
        let mut answers = self.replay_each(vec![Replay { job, with, idempotency_key }]).await;
        answers.pop().unwrap_or_else(|| Err(Error::Internal("a replay has no answer".into())))
    }

    /// Replays jobs, as [`Engine::replay`] replays one. Returns one answer per request, in order.
    pub async fn replay_each(&self, replays: Vec<Replay>) -> Vec<Result<Enqueued, Error>> {
        let mut answers: Vec<Option<Result<Enqueued, Error>>> =
            replays.iter().map(|_| None).collect();
        let mut pending: Vec<(usize, Replay)> = replays.into_iter().enumerate().collect();
        for _ in 0..MAX_CHANGE_RETRIES {
            if pending.is_empty() {
                break;
            }
            let changed = Box::pin(self.replay_once(pending, &mut answers)).await;
            pending = self.read_again(changed, &mut answers).await;
        }
        let answers = answers.into_iter();
        answers.map(|answer| answer.unwrap_or_else(|| Err(keeps_changing()))).collect()
    }

    /// Tries once to replay jobs. Returns those that have changed since they were read.
    async fn replay_once(
        &self,
        replays: Vec<(usize, Replay)>,
        answers: &mut [Option<Result<Enqueued, Error>>],
    ) -> Vec<(usize, Replay)> {
        let ended = |(index, replay): (usize, Replay)| {
            if !matches!(replay.job.life.state, State::Scheduled { .. }) {
                return Some((index, replay));
            }
            let message =
                "a scheduled job is not replayed: wait for it to start, or change it".to_owned();
            answers[index] = Some(Err(Error::Conflict {
                code: ErrorCode::JobNotFinished,
                message,
                holder: None,
            }));
            None
        };
        let replays: Vec<(usize, Replay)> = replays.into_iter().filter_map(ended).collect();
        let data = self.data_of(&replays).await;
        let (mut enqueued, mut requests, mut writes) = (Vec::new(), Vec::new(), Vec::new());
        let mut repeated = Vec::new();
        for ((index, replay), data) in replays.into_iter().zip(data) {
            let request = match data {
                Ok(data) => replay_request(&replay, data),
                Err(error) => {
                    answers[index] = Some(Err(error));
                    continue;
                }
            };
            if let (Some(own), Some(latest)) = (&request.id, &replay.job.life.replayed_by) {
                let refused = already_replayed(&replay.job.id, latest.clone());
                repeated.push((index, own.clone(), digest(&request), refused));
                continue;
            }
            let replayed = Some(Box::new(replay.job.clone()));
            writes.push(EnqueueWrites { replayed, ..EnqueueWrites::default() });
            requests.push(request);
            enqueued.push((index, replay));
        }
        self.answer_repeats(repeated, answers).await;
        let mut changed = Vec::new();
        let outcomes = self.enqueue_with(requests, writes).await;
        for ((index, replay), outcome) in enqueued.into_iter().zip(outcomes) {
            answers[index] = Some(match outcome {
                Err(Error::Stale { .. }) => {
                    changed.push((index, replay));
                    continue;
                }
                Err(Error::Conflict { code: ErrorCode::IdTaken, holder: Some(latest), .. }) => {
                    Err(already_replayed(&replay.job.id, latest))
                }
                outcome => outcome,
            });
        }
        changed
    }

    /// Answers the requests to replay a job that was replayed before: with the job of this id if that
    /// was requested with this digest, or else with the error.
    async fn answer_repeats(
        &self,
        repeated: Vec<(usize, JobId, [u8; 16], Error)>,
        answers: &mut [Option<Result<Enqueued, Error>>],
    ) {
        if repeated.is_empty() {
            return;
        }
        let ids: Vec<JobId> = repeated.iter().map(|(_, id, ..)| id.clone()).collect();
        let made = match self.ports.store.get(&ids).await {
            Ok(made) => made,
            Err(error) => {
                let error = Error::from(error);
                for (index, ..) in &repeated {
                    answers[*index] = Some(Err(error.clone()));
                }
                return;
            }
        };
        for ((index, _, digest, refused), made) in repeated.into_iter().zip(made) {
            answers[index] = Some(match made {
                Ok(Some(made)) if made.spec.request_digest == digest => {
                    Ok(Enqueued::existing(made))
                }
                Ok(_) => Err(refused),
                Err(job) => Err(job.into()),
            });
        }
    }

    /// The data of the new jobs: one answer per request.
    async fn data_of(&self, replays: &[(usize, Replay)]) -> Vec<Result<Payload, Error>> {
        let without = replays.iter().filter(|(_, replay)| replay.with.data.is_none());
        let jobs: Vec<Job> = without.map(|(_, replay)| replay.job.clone()).collect();
        let mut kept = self.data_each(&jobs).await.into_iter();
        let data = |(_, replay): &(usize, Replay)| match &replay.with.data {
            Some(data) => Ok(data.clone()),
            None => kept.next().expect("each of these jobs has an answer"),
        };
        replays.iter().map(data).collect()
    }

    /// Reads the jobs of `replays` again. Those that are gone are answered.
    async fn read_again(
        &self,
        replays: Vec<(usize, Replay)>,
        answers: &mut [Option<Result<Enqueued, Error>>],
    ) -> Vec<(usize, Replay)> {
        if replays.is_empty() {
            return replays;
        }
        let ids: Vec<JobId> = replays.iter().map(|(_, replay)| replay.job.id.clone()).collect();
        let found = match self.ports.store.get(&ids).await {
            Ok(found) => found,
            Err(error) => {
                let error = Error::from(error);
                for (index, _) in &replays {
                    answers[*index] = Some(Err(error.clone()));
                }
                return Vec::new();
            }
        };
        let mut again = Vec::with_capacity(replays.len());
        for ((index, replay), found) in replays.into_iter().zip(found) {
            match found {
                Ok(Some(job)) => again.push((index, Replay { job, ..replay })),
                Ok(None) => answers[index] = Some(Err(Error::no_job(&replay.job.id))),
                Err(job) => answers[index] = Some(Err(job.into())),
            }
        }
        again
    }
}

/// The request for the job that replays another with `data`.
fn replay_request(replay: &Replay, data: Payload) -> NewJob {
    let Replay { job, with, idempotency_key } = replay;
    let (spec, with) = (&job.spec, with.clone());
    NewJob {
        id: (!with.again).then(|| replay_id(&job.id)),
        idempotency_key: idempotency_key.clone(),
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
        origin: spec.origin.clone(),
        ..NewJob::new(spec.job_type.clone(), data)
    }
}
