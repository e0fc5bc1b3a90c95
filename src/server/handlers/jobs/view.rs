//! A job as clients see it.
//!
//! The one thing to know: single answers show `data` and `result` whole (as far as an answer may be as large), lists only up to a
//! kibibyte (then they say how large it is), so that a page has a bound. A result that is kept `once` is shown
//! by its own route alone, since showing takes it.

use std::collections::BTreeMap;

use serde::Serialize;
use url::Url;

use super::super::{
    error::Problem,
    reply::Raw,
    schema::{AnyValue, AttributeValue},
};
use tidegate_core::{
    calendar::window::Window,
    job::{
        Attributes, Body, Encoding, Job, JobId, Payload, QueueName, TypeName,
        lifecycle::{AttemptRecord, Failure, Progress, Reason, ResultBody, State, word},
        retry::Retry,
        spec::{KeepResult, Unique},
    },
    port::job_store::INLINE_BYTES,
    time::{Seconds, Timestamp},
};

/// How much of a job's bodies is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bodies {
    /// All, wherever it is kept; the caller has read it in.
    Whole,
    /// The data whole, the result up to a kibibyte: both together may be more than an answer may have.
    Data,
    /// Up to a kibibyte.
    Small,
}

/// A job.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Job)]
pub struct JobView<'a> {
    /// Its id.
    #[schema(value_type = String)]
    id: &'a JobId,
    /// Its type.
    #[schema(value_type = String)]
    r#type: &'a TypeName,
    /// The queue it was put in when it was accepted.
    #[schema(value_type = String)]
    queue: &'a QueueName,
    /// `scheduled`, `running`, `succeeded`, `failed`, `expired`, `cancelled` or `dropped`.
    state: &'static str,
    /// Tries begun so far.
    attempt: u16,
    /// Most tries.
    max_attempts: u16,
    /// Lower goes first.
    priority: i32,
    /// Capacity units it takes while it runs.
    weight: u32,
    /// Whether limits do not hold it.
    critical: bool,
    /// The earliest it may start, while it is scheduled.
    run_at: Option<Timestamp>,
    /// When it was accepted.
    created_at: Timestamp,
    /// When its latest attempt was claimed.
    started_at: Option<Timestamp>,
    /// When it ended.
    ended_at: Option<Timestamp>,
    /// Never started after it.
    expires_at: Option<Timestamp>,
    /// What it carries. Absent in lists when it is over 1 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AnyValue>)]
    data: Option<Raw>,
    /// How many bytes `data` has, where it is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_bytes: Option<usize>,
    /// What limits, partitions and searches look at.
    #[schema(value_type = BTreeMap<String, AttributeValue>)]
    attributes: &'a Attributes,
    /// What both the request and a later reply can build.
    correlation_key: Option<&'a str>,
    /// The job that this one runs again.
    #[schema(value_type = Option<String>)]
    replay_of: Option<&'a JobId>,
    /// Its result, while it is kept; a result that is kept `once` is shown by `GET …/result` alone.
    #[schema(value_type = AnyValue)]
    result: Option<Raw>,
    /// How many bytes `result` has, where it is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    result_bytes: Option<usize>,
    /// What went wrong last.
    error: Option<ErrorView<'a>>,
    /// One entry per finished attempt.
    history: Vec<EntryView<'a>>,
    /// When it ends `failed` if it has not ended before.
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_at: Option<Timestamp>,
    /// When on the clock it may start.
    #[serde(skip_serializing_if = "<[Window]>::is_empty")]
    windows: &'a [Window],
    /// From claim to result.
    timeout_seconds: Seconds,
    /// What follows a failed attempt.
    retry: &'a Retry,
    /// What keeps duplicates out.
    #[serde(skip_serializing_if = "Option::is_none")]
    unique: Option<&'a Unique>,
    /// How long its result can be read.
    keep_result: KeepResult,
    /// Who is told when it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    callback_url: Option<&'a Url>,
    /// Passed on to the worker.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: &'a BTreeMap<String, String>,
    /// The attempt under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<RunningView<'a>>,
}

/// The attempt under way.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Running)]
struct RunningView<'a> {
    /// Who has it, as it named itself.
    worker: Option<&'a str>,
    /// A worker not heard of by then is given up.
    lease_expires_at: Timestamp,
    /// Over it the attempt fails with reason `timeout`.
    timeout_at: Timestamp,
    /// Whether somebody asked for its end.
    cancel: bool,
    /// What its worker last said of it.
    progress: Option<&'a Progress>,
}

/// What went wrong.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Failure)]
struct ErrorView<'a> {
    /// Why, as one of a few words.
    reason: Reason,
    /// For people.
    message: Option<&'a str>,
    /// What the worker sent along.
    #[schema(value_type = AnyValue)]
    details: Option<Raw>,
    /// The HTTP status that its target answered, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
}

/// One finished attempt.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = HistoryEntry)]
struct EntryView<'a> {
    /// Which, from 1.
    attempt: u16,
    /// When it was claimed.
    started_at: Timestamp,
    /// When its result came or it was given up.
    ended_at: Timestamp,
    /// `succeeded`, `failed` or `cancelled`.
    outcome: tidegate_core::job::Outcome,
    /// What went wrong.
    error: Option<ErrorView<'a>>,
    /// When the next attempt was planned for, if one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<Timestamp>,
}

impl<'a> JobView<'a> {
    /// `job` for an answer in `encoding`.
    pub fn new(job: &'a Job, encoding: Encoding, bodies: Bodies) -> Self {
        Self::with_data(job, &job.data, encoding, bodies)
    }

    /// The same, with `data` known from elsewhere: an enqueue has just been sent it.
    pub fn with_data(job: &'a Job, data: &Body, encoding: Encoding, bodies: Bodies) -> Self {
        let (spec, life) = (&*job.spec, &job.life);
        let (data, data_bytes) = shown(data, encoding, bodies);
        let kept = life
            .result
            .as_ref()
            .filter(|_| spec.keep_result != KeepResult::Once)
            .map(ResultBody::body);
        let of_result = if bodies == Bodies::Whole { Bodies::Whole } else { Bodies::Small };
        let (result, result_bytes) =
            kept.map_or((None, None), |body| shown(&body, encoding, of_result));
        Self {
            id: &job.id,
            r#type: &spec.job_type,
            queue: &spec.queue,
            state: word(&life.state),
            attempt: life.attempt,
            max_attempts: spec.max_attempts,
            priority: spec.priority,
            weight: spec.weight,
            critical: spec.critical,
            run_at: life.run_at(),
            created_at: spec.created_at,
            started_at: life.started_at,
            ended_at: match life.state {
                State::Ended { at, .. } => Some(at),
                _ => None,
            },
            expires_at: spec.expires_at,
            data,
            data_bytes,
            attributes: &spec.attributes,
            correlation_key: spec.correlation_key.as_deref(),
            replay_of: spec.replay_of.as_ref(),
            result,
            result_bytes,
            error: life.error.as_ref().map(|failure| ErrorView::new(failure, encoding)),
            history: life.history.iter().map(|entry| EntryView::new(entry, encoding)).collect(),
            deadline_at: spec.deadline_at,
            windows: &spec.windows,
            timeout_seconds: spec.timeout,
            retry: &spec.retry,
            unique: spec.unique.as_ref(),
            keep_result: spec.keep_result,
            callback_url: spec.callback_url.as_ref(),
            headers: &spec.headers,
            running: life.running().map(|run| RunningView {
                worker: run.worker.as_deref(),
                lease_expires_at: run.lease_until,
                timeout_at: run.timeout_at,
                cancel: run.cancel,
                progress: run.progress.as_ref(),
            }),
        }
    }
}

/// What is shown of a body, or how large it is.
fn shown(body: &Body, encoding: Encoding, bodies: Bodies) -> (Option<Raw>, Option<usize>) {
    match body.inline() {
        Some(payload) if bodies != Bodies::Small || payload.bytes.len() <= INLINE_BYTES => {
            (Some(Raw::new(payload, encoding)), None)
        }
        _ => (None, Some(body.len())),
    }
}

/// A job without anything whose length its sender chooses, so that a thousand fit into any answer. It can be read by its id.
/// The fields are those of [`JobView`].
#[derive(Debug, Serialize)]
pub struct ShortView<'a> {
    id: &'a JobId,
    r#type: &'a TypeName,
    queue: &'a QueueName,
    state: &'static str,
    attempt: u16,
    run_at: Option<Timestamp>,
    created_at: Timestamp,
}

impl<'a> From<&'a Job> for ShortView<'a> {
    fn from(job: &'a Job) -> Self {
        Self {
            id: &job.id,
            r#type: &job.spec.job_type,
            queue: &job.spec.queue,
            state: word(&job.life.state),
            attempt: job.life.attempt,
            run_at: job.life.run_at(),
            created_at: job.spec.created_at,
        }
    }
}

impl<'a> ErrorView<'a> {
    fn new(failure: &'a Failure, encoding: Encoding) -> Self {
        let details =
            failure.details.as_ref().map(|text| Raw::new(&Payload::json(text.clone()), encoding));
        Self {
            reason: failure.reason,
            message: failure.message.as_deref(),
            details,
            status: failure.status,
        }
    }
}

impl<'a> EntryView<'a> {
    fn new(entry: &'a AttemptRecord, encoding: Encoding) -> Self {
        Self {
            attempt: entry.attempt,
            started_at: entry.started_at,
            ended_at: entry.ended_at,
            outcome: entry.outcome,
            error: entry.error.as_ref().map(|failure| ErrorView::new(failure, encoding)),
            retry_at: entry.retry_at,
        }
    }
}

/// A page of jobs.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct JobPage<'a> {
    /// The jobs, newest first by creation.
    pub jobs: Vec<JobView<'a>>,
    /// Where the next page starts; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<&'a str>,
}

/// One job, or why there is none.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum One<'a> {
    /// The job.
    Job(Box<JobView<'a>>),
    /// The same, where all of them together are more than an answer may have.
    #[serde(rename = "job")]
    Short(ShortView<'a>),
    /// Why there is none.
    Error(Problem),
}
