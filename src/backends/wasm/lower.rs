//! Calls as types of the contract.
//!
//! Strings are borrowed from the call. Attributes are converted once for all jobs of the call, into
//! one list; each job has a slice of it.

use std::borrow::Cow;

use super::{
    bounds,
    contract::throttler::{
        exports::tidegate::plugin::throttle::{Ended, Round},
        tidegate::plugin::types::{AttributeParam as Attribute, Context, Failure, Job as Lowered},
    },
};
use tidegate_core::{
    job::{
        Attributes, Job, JobId, State,
        lifecycle::{AttemptRecord, Lifecycle, Reason},
    },
    port::policy::{self, RetryCall, ThrottleCall},
    queue::plugin::Description,
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

/// The number of the attempt that would start next, among those that count.
pub(super) fn next_attempt(life: &Lifecycle) -> u16 {
    life.counted_attempts().saturating_add(1)
}

/// The latest failures of a job, at most one more than [`bounds::EARLIER`], in their order. Each has
/// its number among the attempts that count, which a plugin compares with `attempts`.
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

/// The failures of the attempts before the next one: the latest [`bounds::EARLIER`].
pub(super) fn earlier(life: &Lifecycle) -> Vec<(u16, &AttemptRecord)> {
    let mut earlier = failures(life);
    if earlier.len() > bounds::EARLIER {
        earlier.remove(0);
    }
    earlier
}

/// The facts of a job that only its call has.
#[derive(Clone, Copy)]
struct Of<'a> {
    attempt: u16,
    attributes: &'a [Attribute<'a>],
    host: Option<&'a str>,
    earlier: &'a [Failure<'a>],
}

fn job<'a>(job: &'a Job, of: Of<'a>) -> Lowered<'a> {
    let spec = &job.spec;
    Lowered {
        id: job.id.as_str(),
        job_type: spec.job_type.as_str(),
        priority: spec.priority,
        weight: spec.weight,
        attributes: of.attributes,
        attempt: of.attempt.into(),
        attempts: spec.max_attempts.into(),
        created_at: millis(spec.created_at),
        run_at: millis(run_at(job)),
        expires_at: spec.expires_at.map(millis),
        deadline_at: spec.deadline_at.map(millis),
        target_host: of.host,
        replay_of: spec.replay_of.as_ref().map(JobId::as_str),
        correlation_key: spec.correlation_key.as_deref(),
        earlier: of.earlier,
    }
}

/// Calls `then` with the arguments of `throttle.decide`; with ended and earlier attempts only if
/// `description` wants them. `candidates` are those of `call`, or none if the plugin reads them by
/// column.
pub(super) fn throttle<R>(
    call: &ThrottleCall,
    candidates: &[Job],
    description: &Description,
    then: impl FnOnce(Context<'_>, Round<'_>, &[Lowered<'_>]) -> R,
) -> R {
    let ended: &[policy::Ended] = if description.needs_ended { &call.ended } else { &[] };
    let texts = Texts::of(
        candidates
            .iter()
            .map(|job| &job.spec.attributes)
            .chain(ended.iter().map(|ended| &ended.attributes)),
    );
    let attributes = texts.attributes();
    let mut rest = &attributes[..];
    let wants_earlier = description.needs_earlier;
    let of = |job| if wants_earlier { earlier(job) } else { Vec::new() };
    let all: Vec<_> = candidates.iter().map(|job| of(&job.life)).collect();
    let mut room = bounds::EARLIER_BYTES;
    let bounded = |of| within(failure(of), &mut room);
    let failed: Vec<Failure<'_>> = all.iter().flatten().copied().map(bounded).collect();
    let mut failed = &failed[..];
    let candidates: Vec<_> = candidates
        .iter()
        .zip(&all)
        .map(|(one, all)| {
            let of = Of {
                attempt: next_attempt(&one.life),
                attributes: take(&mut rest, one.spec.attributes.len()),
                host: call.hosts.of(&one.spec.job_type, one.spec.retry_target.as_deref()),
                earlier: take(&mut failed, all.len()),
            };
            job(one, of)
        })
        .collect();
    let ended = ended.iter().map(|ended| Ended {
        id: ended.id.as_str(),
        job_type: ended.job_type.as_str(),
        priority: ended.priority,
        weight: ended.weight,
        attributes: take(&mut rest, ended.attributes.len()),
        target_host: call.hosts.of(&ended.job_type, ended.retry_target.as_deref()),
        attempt: ended.attempt.into(),
        started_at: millis(ended.started_at),
        ended_at: millis(ended.ended_at),
        succeeded: ended.succeeded,
        reason: ended.reason.as_deref(),
        message: ended.message.as_deref(),
        status: ended.status,
        details: ended.details.as_deref(),
        not_before: ended.not_before.map(millis),
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
        not_before: not_before(entry).map(millis),
    }
}

/// `failure` without its message and details, if they exceed the `room` that is left for them.
fn within<'a>(failure: Failure<'a>, room: &mut usize) -> Failure<'a> {
    let bytes = |text: Option<&str>| text.map_or(0, str::len);
    match room.checked_sub(bytes(failure.message) + bytes(failure.details)) {
        Some(left) => {
            *room = left;
            failure
        }
        None => Failure { message: None, details: None, ..failure },
    }
}

/// The earliest next attempt that the worker or the target of an attempt requested.
pub(super) fn not_before(entry: &AttemptRecord) -> Option<Timestamp> {
    let wait = entry.error.as_ref()?.retry_after?;
    Some(entry.ended_at + wait.duration())
}

/// Calls `then` with the arguments of `retry.on-failure`; none if the job has no failure.
pub(super) fn retry<R>(
    call: &RetryCall,
    then: impl FnOnce(Context<'_>, Lowered<'_>, Failure<'_>) -> R,
) -> Option<R> {
    let failures = failures(&call.job.life);
    let (&last, earlier) = failures.split_last()?;
    let texts = Texts::of(std::iter::once(&call.job.spec.attributes));
    let attributes = texts.attributes();
    let earlier: Vec<_> = earlier.iter().copied().map(failure).collect();
    let of = Of {
        attempt: last.0,
        attributes: &attributes,
        host: call.host.as_deref(),
        earlier: &earlier,
    };
    let context = Context {
        queue: call.queue.as_str(),
        now: millis(call.now),
        seed: call.seed,
        config: &call.config,
    };
    let lowered = failure(last);
    let requested = call.not_before.map(millis).or(lowered.not_before);
    let last = Failure { not_before: requested, ..lowered };
    Some(then(context, job(&call.job, of), last))
}
