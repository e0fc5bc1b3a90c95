//! The attempts of a job as answers show them: the running one, and the finished ones.

use std::{borrow::Cow, time::Duration};

use serde::{Deserialize, Serialize};
use tidegate_core::{
    job::{
        Encoding, Job, Payload,
        lifecycle::{AttemptRecord, EndedAs, Failure, Progress, Reason},
    },
    time::{Seconds, Timestamp},
};

use crate::AnyValue;

/// The running attempt.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Running)]
pub struct RunningView<'a> {
    /// The worker's name.
    #[schema(value_type = Option<String>)]
    pub worker: Option<Cow<'a, str>>,
    /// Without a heartbeat the lease expires then.
    pub lease_expires_at: Timestamp,
    /// After that the attempt fails with reason `timeout`.
    pub timeout_at: Timestamp,
    /// Whether a cancel was requested.
    pub cancel: bool,
    /// How many milliseconds it had waited when it started, as in `history`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// The worker's latest report of progress.
    #[schema(value_type = Option<Progress>)]
    pub progress: Option<Cow<'a, Progress>>,
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Failure)]
pub struct FailureView<'a> {
    /// The reason.
    pub reason: Reason,
    /// For people.
    #[schema(value_type = Option<String>)]
    pub message: Option<Cow<'a, str>>,
    /// Details from the worker.
    #[schema(value_type = AnyValue)]
    pub details: Option<AnyValue>,
    /// The HTTP status of the target's response, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The shortest wait before the next attempt that the target asked for, as with `Retry-After`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub retry_after_seconds: Option<Seconds>,
}

/// One finished attempt.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = HistoryEntry)]
pub struct EntryView<'a> {
    /// The attempt, from 1.
    pub attempt: u16,
    /// When it was claimed.
    pub started_at: Timestamp,
    /// When its result arrived or its lease expired.
    pub ended_at: Timestamp,
    /// How many milliseconds it had waited when it started: the first attempt since the job's
    /// `due_at`, a later one since the end of the attempt before it. Absent if that attempt is no
    /// longer in the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// How many milliseconds it took, from `started_at` to `ended_at`.
    pub duration_ms: u64,
    /// `succeeded`, `failed` or `cancelled`; `released` or `snoozed` if it was handed back.
    pub outcome: EndedAs,
    /// What went wrong.
    pub error: Option<FailureView<'a>>,
    /// The worker's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub worker: Option<Cow<'a, str>>,
    /// Why it was handed back, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub message: Option<Cow<'a, str>>,
    /// When the next attempt was due, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
}

impl<'a> RunningView<'a> {
    /// The running attempt of `job`, if there is one.
    pub(super) fn of(job: &'a Job) -> Option<Self> {
        let run = job.life.running()?;
        Some(Self {
            worker: run.worker.as_deref().map(Cow::Borrowed),
            lease_expires_at: run.lease_until,
            timeout_at: run.timeout_at,
            cancel: run.cancel,
            waited_ms: job.running_wait().map(millis),
            progress: run.progress.as_ref().map(Cow::Borrowed),
        })
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl<'a> FailureView<'a> {
    pub(super) fn new(failure: &'a Failure, encoding: Encoding) -> Self {
        let details = failure
            .details
            .as_ref()
            .map(|text| AnyValue::new(&Payload::json(text.clone()), encoding));
        Self {
            reason: failure.reason,
            message: failure.message.as_deref().map(Cow::Borrowed),
            details,
            status: failure.status,
            retry_after_seconds: failure.retry_after,
        }
    }
}

impl<'a> EntryView<'a> {
    /// The finished attempts of `job`.
    pub(super) fn all(job: &'a Job, encoding: Encoding) -> Vec<Self> {
        let entries = job.life.history.iter().zip(job.waits());
        entries.map(|(entry, waited)| Self::new(entry, waited, encoding)).collect()
    }

    fn new(entry: &'a AttemptRecord, waited: Option<Duration>, encoding: Encoding) -> Self {
        Self {
            attempt: entry.attempt,
            started_at: entry.started_at,
            ended_at: entry.ended_at,
            waited_ms: waited.map(millis),
            duration_ms: millis(entry.ended_at.since(entry.started_at)),
            outcome: entry.ended_as(),
            error: entry.error.as_ref().map(|failure| FailureView::new(failure, encoding)),
            worker: entry.worker.as_deref().map(Cow::Borrowed),
            message: entry
                .hand_back
                .as_ref()
                .and_then(|hand_back| hand_back.message.as_deref())
                .map(Cow::Borrowed),
            retry_at: entry.retry_at,
        }
    }

    /// The word for the outcome, as it is serialised.
    pub fn outcome_word(&self) -> &'static str {
        self.outcome.as_str()
    }
}
