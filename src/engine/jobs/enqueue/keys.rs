//! A key that another job holds: it is taken over, it refuses the request, or its holder is the
//! answer.

use std::{sync::Arc, time::Duration};

use super::{holders::Found, item::EnqueueItem, merge::taken_before};
use crate::{
    Engine, Error, ids,
    request::{Enqueued, NewJob},
};
use tidegate_core::{
    error_code::ErrorCode,
    job::{Body, Job, JobId, Spec, State, spec::UniqueWhile},
    port::job_store::{Expect, Key},
    time::Timestamp,
};

impl Engine {
    /// Handles a key of `item` that points at `holder`, since `since` if the store knows it.
    ///
    /// `found` has the job of the item's id and the holder, if they exist. Returns the job that
    /// answers the request. None if the key may be taken over, or if the holder takes the request:
    /// then `item` expects `holder` at that key, or has it as its holder, and is inserted again.
    pub(super) async fn on_taken_key(
        &self,
        item: &mut EnqueueItem,
        key_index: usize,
        holder: JobId,
        since: Option<Timestamp>,
        found: &Found,
    ) -> Result<Option<Enqueued>, Error> {
        let job_of = |id: &JobId| found.get(id).cloned().unwrap_or(Ok(None));
        // A repeat is answered by its id, no matter which job holds its keys now.
        if let Some(stored) = job_of(&item.job.id)? {
            return same_request(&item.job, stored).map(Some);
        }
        // Whether a job that cannot be read still holds the key is not known.
        if let Some(job) = job_of(&holder)? {
            return answer_of_holder(item, key_index, job);
        }
        let id = item.job.id.clone();
        self.take_key_without_job(item, key_index, holder, since)?;
        if item.job.id != id {
            self.move_object(item).await?;
        }
        Ok(None)
    }

    /// Stores the body of `item`, whose job has another id now, again: the key of an object contains
    /// the id of its job.
    async fn move_object(&self, item: &mut EnqueueItem) -> Result<(), Error> {
        if let Body::Object { key, .. } = &item.job.data {
            let old = key.clone();
            item.job.data = self.put_object(&item.job.id, item.request.data.clone()).await?;
            self.forget_object(&old).await;
        }
        Ok(())
    }

    /// Takes a key whose job is not in the store: the job was pruned, or another enqueue wrote the
    /// key and has not added its job yet.
    ///
    /// If the other enqueue may still run, `item` uses the id that the key names. The slower of the
    /// two then finds that id taken. An id that a caller chose belongs to that caller's request
    /// alone, so then `item` is refused and its caller tries again.
    fn take_key_without_job(
        &self,
        item: &mut EnqueueItem,
        key_index: usize,
        holder: JobId,
        since: Option<Timestamp>,
    ) -> Result<(), Error> {
        if holder != item.job.id && self.may_be_under_way(since) {
            if item.request.id.is_some() || !ids::is_drawn(&holder) {
                let message = format!("job {holder} is being added under the same key");
                return Err(Error::unavailable(Duration::from_secs(1), message));
            }
            item.job.id = holder.clone();
        }
        item.keys[key_index].1 = Expect::Is(holder);
        Ok(())
    }

    /// Whether an enqueue that wrote a key at `since` may still add its job. The factor of two
    /// covers clocks that differ by less than the longest write.
    fn may_be_under_way(&self, since: Option<Timestamp>) -> bool {
        let flight = self.ports.store.capabilities().atomicity.max_in_flight_write();
        !flight.is_zero() && since.is_none_or(|since| self.now() < since + 2 * flight)
    }
}

/// The answer to a request whose key belongs to `holder`. None if `holder` gives up the key.
pub(super) fn answer_of_holder(
    item: &mut EnqueueItem,
    key_index: usize,
    holder: Job,
) -> Result<Option<Enqueued>, Error> {
    let key = &item.keys[key_index].0;
    let holds = match key {
        Key::Idempotency(_) => return repeated_request(&item.job, holder).map(Some),
        Key::Correlation(..) => holder.life.ended().is_none(),
        Key::Unique(..) => holds_unique_key(&holder, item.job.spec.created_at),
    };
    if !holds {
        if matches!(key, Key::Correlation(..)) {
            item.job.life.inherit_replies(&holder.life);
        } else if let Some(answer) = taken_before(item, &holder) {
            return answer.map(Some);
        } else {
            Arc::make_mut(&mut item.job.spec).inherit_merged(&holder.spec);
        }
        item.keys[key_index].1 = Expect::Is(holder.id);
        return Ok(None);
    }
    if matches!(key, Key::Unique(..)) {
        if item.is_chain() {
            item.holder = Some(Box::new(holder));
            return Ok(None);
        }
        return Ok(Some(Enqueued::existing(holder)));
    }
    Err(correlation_key_taken(holder.id))
}

/// The answer to a request with the idempotency key of `holder`.
pub(super) fn repeated_request(requested: &Job, holder: Job) -> Result<Enqueued, Error> {
    if holder.spec.request_digest == requested.spec.request_digest {
        return Ok(Enqueued::existing(holder));
    }
    Err(idempotency_key_reused(holder.id))
}

fn idempotency_key_reused(holder: JobId) -> Error {
    Error::Conflict {
        code: ErrorCode::IdempotencyKeyReused,
        message: "another request was sent with this idempotency key".to_owned(),
        holder: Some(holder),
    }
}

/// The refusal of `request`, whose id or idempotency key another request had that `holder` took.
pub(super) fn key_reused(request: &NewJob, holder: JobId) -> Error {
    if request.id.is_none() {
        return idempotency_key_reused(holder);
    }
    let message = format!("job {holder} took another request with this id");
    Error::Conflict { code: ErrorCode::IdTaken, message, holder: Some(holder) }
}

/// Whether `holder` keeps its `unique` key from a job created at `now`.
pub(super) fn holds_unique_key(holder: &Job, now: Timestamp) -> bool {
    let unique = holder.spec.unique.as_ref();
    let in_period = unique
        .and_then(|unique| unique.period_seconds)
        .is_some_and(|period| now < holder.spec.created_at + period.duration());
    in_period
        || match unique.map(|unique| unique.hold) {
            Some(UniqueWhile::Scheduled) => {
                matches!(holder.life.state, State::Scheduled { .. }) && holder.life.attempt == 0
            }
            Some(UniqueWhile::Live) | None => holder.life.ended().is_none(),
        }
}

fn correlation_key_taken(holder: JobId) -> Error {
    let message = format!("a live job of this type has this correlation key: {holder}");
    Error::Conflict { code: ErrorCode::CorrelationKeyTaken, message, holder: Some(holder) }
}

/// The answer to a request for the job `requested` if `stored` has its id.
pub(super) fn same_request(requested: &Job, stored: Job) -> Result<Enqueued, Error> {
    // Without a digest the request chose no id. It shares an id only with the request that found
    // the same key without a job, and that one was first.
    if requested.spec.request_digest == Spec::NO_DIGEST && requested.spec.correlation_key.is_some()
    {
        return Err(correlation_key_taken(stored.id));
    }
    if requested.spec.request_digest == stored.spec.request_digest {
        return Ok(Enqueued::existing(stored));
    }
    let message = format!("another request created job {}", stored.id);
    Err(Error::Conflict { code: ErrorCode::IdTaken, message, holder: Some(stored.id) })
}
