//! Calls as types of the contract.
//!
//! Strings are borrowed from the call. Attributes are converted once for all jobs of the call, into
//! one list; each job has a slice of it.

use std::borrow::Cow;

use super::{
    bounds,
    contract::{
        retry::exports::tidegate::plugin::retry::{FailedJob, Failure},
        throttler::{
            exports::tidegate::plugin::throttle::{Ended, Round},
            tidegate::plugin::types::{AttributeParam as Attribute, Context, Job as Lowered},
        },
    },
};
use tidegate_core::{
    job::{
        Attributes, Job, State,
        lifecycle::{AttemptRecord, Lifecycle, Reason},
    },
    port::policy::{self, RetryCall, ThrottleCall},
    time::Timestamp,
};

/// An instant in the contract's form, at least 1970.
pub(super) fn millis(at: Timestamp) -> u64 {
    u64::try_from(at.millis()).unwrap_or(0)
}

/// Names and values of attributes, of all jobs in order.
struct Texts<'a>(Vec<(&'a str, Cow<'a, str>)>);

impl<'a> Texts<'a> {
    fn of(all: impl Iterator<Item = &'a Attributes>) -> Self {
        Self(all.flatten().map(|(name, value)| (name.as_str(), value.as_text())).collect())
    }

    fn attributes(&self) -> Vec<Attribute<'_>> {
        self.0.iter().map(|(name, value)| Attribute { name, value }).collect()
    }
}

/// Removes and returns the first `count` elements of `rest`.
fn take<'a, T>(rest: &mut &'a [T], count: usize) -> &'a [T] {
    let (taken, left) = rest.split_at(count);
    *rest = left;
    taken
}

/// When a job is, or was, due.
pub(super) fn run_at(job: &Job) -> Timestamp {
    match &job.life.state {
        State::Scheduled { run_at, .. } => *run_at,
        State::Running(run) => run.started_at,
        State::Ended { at, .. } => *at,
    }
}

/// The failures of a job that a retry strategy receives: the latest ones, in their order. Each has
/// its number among the attempts that count, which the strategy compares with `attempts`.
pub(super) fn failures(life: &Lifecycle) -> Vec<(u16, &AttemptRecord)> {
    let failed = life.history.iter().rev().filter(|entry| entry.hand_back.is_none());
    let numbered = |(after, entry): (u16, _)| {
        let entry: &AttemptRecord = entry;
        let counted = life.counted_attempts().saturating_sub(after).max(1);
        (if life.hand_backs.is_none() { entry.attempt } else { counted }, entry)
    };
    let mut latest: Vec<_> = (0..).zip(failed).take(bounds::EARLIER + 1).map(numbered).collect();
    latest.reverse();
    latest
}

fn job<'a>(job: &'a Job, attempt: u16, attributes: &'a [Attribute<'a>]) -> Lowered<'a> {
    let spec = &job.spec;
    Lowered {
        id: job.id.as_str(),
        job_type: spec.job_type.as_str(),
        priority: spec.priority,
        weight: spec.weight,
        attributes,
        attempt: attempt.into(),
        attempts: spec.max_attempts.into(),
        created_at: millis(spec.created_at),
        run_at: millis(run_at(job)),
        expires_at: spec.expires_at.map(millis),
        deadline_at: spec.deadline_at.map(millis),
    }
}

/// Calls `then` with the arguments of `throttle.decide`; with ended attempts only if `wanted`.
pub(super) fn throttle<R>(
    call: &ThrottleCall,
    wanted: bool,
    then: impl FnOnce(Context<'_>, Round<'_>, &[Lowered<'_>]) -> R,
) -> R {
    let ended: &[policy::Ended] = if wanted { &call.ended } else { &[] };
    let texts = Texts::of(
        call.candidates
            .iter()
            .map(|job| &job.spec.attributes)
            .chain(ended.iter().map(|ended| &ended.attributes)),
    );
    let attributes = texts.attributes();
    let mut rest = &attributes[..];
    let candidates = call.candidates.iter();
    let candidates: Vec<_> = candidates
        .map(|one| {
            job(one, one.life.attempt.saturating_add(1), take(&mut rest, one.spec.attributes.len()))
        })
        .collect();
    let ended = ended.iter().map(|ended| Ended {
        id: ended.id.as_str(),
        job_type: ended.job_type.as_str(),
        attributes: take(&mut rest, ended.attributes.len()),
        attempt: ended.attempt.into(),
        succeeded: ended.succeeded,
        reason: ended.reason.as_deref(),
        status: ended.status,
    });
    let ended: Vec<_> = ended.collect();
    let context = Context {
        queue: call.queue.as_str(),
        now: millis(call.now),
        seed: call.seed,
        config: &call.config,
    };
    then(
        context,
        Round { concurrency: call.concurrency, room: call.room, ended: &ended },
        &candidates,
    )
}

/// The contract's name of a failure reason.
pub(super) fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Failed => "failed",
        Reason::Timeout => "timeout",
        Reason::LeaseExpired => "lease_expired",
        Reason::ConnectionLost => "connection_lost",
        Reason::NotDelivered => "not_delivered",
        Reason::OutcomeUnknown => "outcome_unknown",
        Reason::Deadline => "deadline",
    }
}

fn failure((attempt, entry): (u16, &AttemptRecord)) -> Failure<'_> {
    let error = entry.error.as_ref();
    Failure {
        attempt: attempt.into(),
        reason: error.map_or("failed", |error| reason(error.reason)),
        message: error.and_then(|error| error.message.as_deref()),
        status: error.and_then(|error| error.status),
        details: error.and_then(|error| error.details.as_deref()),
        started_at: millis(entry.started_at),
        ended_at: millis(entry.ended_at),
    }
}

/// Calls `then` with the arguments of `retry.on-failure`; none if the job has no failure.
pub(super) fn retry<R>(
    call: &RetryCall,
    then: impl FnOnce(Context<'_>, FailedJob<'_>) -> R,
) -> Option<R> {
    let failures = failures(&call.job.life);
    let (&last, earlier) = failures.split_last()?;
    let texts = Texts::of(std::iter::once(&call.job.spec.attributes));
    let attributes = texts.attributes();
    let earlier: Vec<_> = earlier.iter().copied().map(failure).collect();
    let failed = FailedJob {
        job: job(&call.job, last.0, &attributes),
        last: failure(last),
        earlier: &earlier,
        not_before: call.not_before.map(millis),
    };
    let context = Context {
        queue: call.queue.as_str(),
        now: millis(call.now),
        seed: call.seed,
        config: &call.config,
    };
    Some(then(context, failed))
}
