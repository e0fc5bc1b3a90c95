//! The keys of a job: what follows when one of them belongs to another job.

use std::time::Duration;

use super::{EnqueueItem, digest::UNNAMED};
use crate::{Engine, Error, ids, request::Enqueued};
use tidegate_core::{
    error_code::ErrorCode,
    job::{Job, JobId, State, spec::UniqueWhile},
    port::job_store::{Expect, Key},
    time::Timestamp,
};

impl Engine {
    /// What follows when key `step` of `entry` points at `holder` since then: the job is there already, the holder is the answer,
    /// it is a clash, or (`None`) the key can be had and `entry` says so now.
    pub(super) async fn contend(
        &self,
        entry: &mut EnqueueItem,
        step: usize,
        holder: JobId,
        since: Option<Timestamp>,
    ) -> Result<Option<Enqueued>, Error> {
        let (key, was) = &mut entry.keys[step];
        let mut found = self.ports.store.get(&[entry.job.id.clone(), holder.clone()]).await?;
        let standing = found.pop().flatten();
        // A repeat is answered by its id, whoever has come to hold its keys since.
        if let Some(there) = found.pop().flatten() {
            return same_request(&entry.job, there).map(Some);
        }
        let Some(standing) = standing else {
            // A key without its job: pruned, or its enqueue is under way and may still insert. Where that can be,
            // the job is inserted under the id that the key fixed; the slow first one then finds it taken. An id that
            // somebody gave stands for his request alone: he waits, or is waited for.
            if holder != entry.job.id && self.may_be_under_way(since) {
                if entry.asked.id.is_some() || !ids::is_drawn(&holder) {
                    let message = format!("job {holder} is being added under the same key");
                    return Err(Error::Unavailable {
                        retry_after: Duration::from_secs(1),
                        message,
                    });
                }
                entry.job.id = holder.clone();
            }
            *was = Expect::Is(holder);
            return Ok(None);
        };
        let ended = standing.life.ended().is_some();
        let holds = match key {
            Key::Idempotency(_) => {
                return if standing.spec.request_digest == entry.job.spec.request_digest {
                    Ok(Some(Enqueued { job: standing, new: false }))
                } else {
                    let message = "another request was sent with this idempotency key".to_owned();
                    Err(Error::Conflict {
                        code: ErrorCode::IdempotencyKeyReused,
                        message,
                        holder: Some(holder),
                    })
                };
            }
            Key::Correlation(..) => !ended,
            Key::Unique(..) => {
                let unique = standing.spec.unique.as_ref();
                let in_period =
                    unique.and_then(|unique| unique.period_seconds).is_some_and(|period| {
                        entry.job.spec.created_at < standing.spec.created_at + period.duration()
                    });
                in_period
                    || match unique.map(|unique| unique.hold) {
                        Some(UniqueWhile::Scheduled) => {
                            matches!(standing.life.state, State::Scheduled { .. })
                                && standing.life.attempt == 0
                        }
                        Some(UniqueWhile::Live) | None => !ended,
                    }
            }
        };
        if !holds {
            if matches!(key, Key::Correlation(..)) {
                entry.job.life.inherit_replies(&standing.life);
            }
            *was = Expect::Is(holder);
            return Ok(None);
        }
        if matches!(key, Key::Unique(..)) {
            return Ok(Some(Enqueued { job: standing, new: false }));
        }
        Err(correlation_key_taken(holder))
    }

    /// Whether who pointed a key at a job that is not there, at `since`, may still add it. Clocks differ by less than a flight.
    fn may_be_under_way(&self, since: Option<Timestamp>) -> bool {
        let flight = self.ports.store.capabilities().atomicity.max_in_flight_write();
        !flight.is_zero() && since.is_none_or(|since| self.now() < since + 2 * flight)
    }
}

fn correlation_key_taken(holder: JobId) -> Error {
    let message = format!("a live job of this type has this correlation key: {holder}");
    Error::Conflict { code: ErrorCode::CorrelationKeyTaken, message, holder: Some(holder) }
}

/// The answer where `wanted`'s id is taken by `there`.
pub(super) fn same_request(wanted: &Job, there: Job) -> Result<Enqueued, Error> {
    // Whoever asks by no name shares an id only with who found the key that both have pointing at it, and came first.
    if wanted.spec.request_digest == UNNAMED && wanted.spec.correlation_key.is_some() {
        return Err(correlation_key_taken(there.id));
    }
    if wanted.spec.request_digest == there.spec.request_digest {
        return Ok(Enqueued { job: there, new: false });
    }
    let message = format!("another request made job {}", there.id);
    Err(Error::Conflict { code: ErrorCode::IdTaken, message, holder: Some(there.id) })
}
