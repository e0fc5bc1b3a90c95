//! A job as answers show it.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};
use tidegate_core::{
    calendar::window::Window,
    job::{
        Attributes, Body, Encoding, Job, JobId, Payload, Phase, QueueName, TypeName,
        Value as AttributeValue,
        lifecycle::{ResultBody, word},
        retry::Retry,
        spec::{KeepResult, Unique},
        unique::Merged,
    },
    port::job_store::INLINE_BYTES,
    time::{Seconds, Timestamp},
};
use url::Url;

use super::{EntryView, FailureView, OriginView, RunningView};
use crate::AnyValue;

/// How much of a job's bodies is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bodies {
    /// The whole bodies, wherever they are stored; the caller has loaded them.
    Whole,
    /// The whole data, the result up to a kibibyte: both together may exceed the limit of an
    /// answer.
    Data,
    /// Up to a kibibyte.
    Small,
}

/// A job.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Job)]
pub struct JobView<'a> {
    /// Its id.
    #[schema(value_type = String)]
    pub id: Cow<'a, JobId>,
    /// Its type.
    #[schema(value_type = String)]
    pub r#type: Cow<'a, TypeName>,
    /// The queue that it entered when it was accepted.
    #[schema(value_type = String)]
    pub queue: Cow<'a, QueueName>,
    /// `scheduled`, `running`, `succeeded`, `failed`, `expired`, `cancelled` or `dropped`.
    #[schema(value_type = String)]
    pub state: Cow<'static, str>,
    /// The state when it was read, with `scheduled` divided: `scheduled` is due later, `ready` is
    /// due now, `retrying` waits for its next attempt.
    #[schema(value_type = String)]
    pub phase: Cow<'static, str>,
    /// Attempts started so far.
    pub attempt: u16,
    /// Most attempts, without those that were handed back.
    pub max_attempts: u16,
    /// How many attempts were handed back (`released`, `snoozed`).
    #[serde(default)]
    pub handed_back: u16,
    /// Jobs with a lower priority start first.
    pub priority: i32,
    /// Capacity units that it uses while it runs.
    pub weight: u32,
    /// Whether it is exempt from limits.
    pub critical: bool,
    /// The earliest start: of the next attempt while it is scheduled, and of the latest one later.
    /// `started_at` shows how late that attempt started. A job that ended before any attempt keeps
    /// the one that it had.
    pub run_at: Timestamp,
    /// When it was first due. A retry, a closed window and a deferral by a throttler do not change
    /// it.
    pub due_at: Timestamp,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When its latest attempt was claimed.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// It never starts after this instant.
    pub expires_at: Option<Timestamp>,
    /// What it carries. Absent in lists when it is over 1 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AnyValue>)]
    pub data: Option<AnyValue>,
    /// How many bytes `data` has, where it is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_bytes: Option<usize>,
    /// What limits, partitions and searches match on.
    #[schema(value_type = BTreeMap<String, AttributeValue>)]
    pub attributes: Cow<'a, Attributes>,
    /// The key by which a later reply finds the job.
    #[schema(value_type = Option<String>)]
    pub correlation_key: Option<Cow<'a, str>>,
    /// The job that it replays.
    #[schema(value_type = Option<String>)]
    pub replay_of: Option<Cow<'a, JobId>>,
    /// The latest job that replays it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub replayed_by: Option<Cow<'a, JobId>>,
    /// Its result, while it is kept; a result that is kept `once` is shown by `GET …/result` alone.
    #[schema(value_type = AnyValue)]
    pub result: Option<AnyValue>,
    /// How many bytes `result` has, where it is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_bytes: Option<usize>,
    /// What an attempt has stored for the next one; a success clears it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AnyValue>)]
    pub checkpoint: Option<AnyValue>,
    /// How many bytes `checkpoint` has, where it is not shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_bytes: Option<usize>,
    /// The latest failure.
    pub error: Option<FailureView<'a>>,
    /// One entry per finished attempt.
    pub history: Vec<EntryView<'a>>,
    /// When it ends `failed` if it has not ended by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    /// The windows in which it may start.
    #[serde(default, skip_serializing_if = "<[Window]>::is_empty")]
    #[schema(value_type = Vec<Window>)]
    pub windows: Cow<'a, [Window]>,
    /// From claim to result.
    pub timeout_seconds: Seconds,
    /// What follows a failed attempt.
    #[schema(value_type = Retry)]
    pub retry: Cow<'a, Retry>,
    /// The rule against duplicates.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Unique>)]
    pub unique: Option<Cow<'a, Unique>>,
    /// How long its result is kept.
    pub keep_result: KeepResult,
    /// The URL that is notified of its end. A query of it is shown as `***`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub callback_url: Option<Cow<'a, Url>>,
    /// Passed on to the worker.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub headers: Cow<'a, BTreeMap<String, String>>,
    /// The running attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<RunningView<'a>>,
    /// The job as it came, if a retry strategy has changed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original: Option<OriginalView<'a>>,
    /// The name of the target that a retry strategy chose for its next attempt, of those in
    /// `retry_targets` of its type. Absent for the type's own target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub retry_target: Option<Cow<'a, str>>,
    /// The name of the token that enqueued it; of a replay, of the token that enqueued the first
    /// job. Absent if there was no token, or if an event or a schedule made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub enqueued_by: Option<Cow<'a, str>>,
    /// The schedule or the trigger that made it; of a replay, what made the first job. Absent if a
    /// caller enqueued it, or replaced its data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<OriginView<'a>>,
    /// In the answer to an enqueue: what the request changed in this job, which waited and held its
    /// unique key. Absent if the job is new, or stayed as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged: Option<Merged>,
}

/// A job as it came, before a retry strategy changed it.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = OriginalJob)]
pub struct OriginalView<'a> {
    /// Its priority.
    pub priority: i32,
    /// Its attributes.
    #[schema(value_type = BTreeMap<String, AttributeValue>)]
    pub attributes: Cow<'a, Attributes>,
    /// Its data. Absent if they were not changed, are no JSON, or have more than 4096 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<AnyValue>,
    /// Its weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Its most attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u16>,
    /// Its timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<Seconds>,
}

impl<'a> JobView<'a> {
    /// `job` at `now`, for an answer in `encoding`.
    pub fn new(job: &'a Job, now: Timestamp, encoding: Encoding, bodies: Bodies) -> Self {
        Self::with_data(job, &job.data, now, encoding, bodies)
    }

    /// `job` with `data` from the caller: an enqueue has just received it.
    pub fn with_data(
        job: &'a Job,
        data: &Body,
        now: Timestamp,
        encoding: Encoding,
        bodies: Bodies,
    ) -> Self {
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
        let checkpoint = life.checkpoint.as_ref().map(ResultBody::body);
        let (checkpoint, checkpoint_bytes) =
            checkpoint.map_or((None, None), |body| shown(&body, encoding, of_result));
        Self {
            id: Cow::Borrowed(&job.id),
            r#type: Cow::Borrowed(&spec.job_type),
            queue: Cow::Borrowed(&spec.queue),
            state: word(&life.state).into(),
            phase: Phase::of(life, now).as_str().into(),
            attempt: life.attempt,
            max_attempts: spec.max_attempts,
            handed_back: life.attempt - life.counted_attempts(),
            priority: spec.priority,
            weight: spec.weight,
            critical: spec.critical,
            run_at: job.run_at(),
            due_at: job.due_at(),
            created_at: spec.created_at,
            started_at: life.started_at,
            ended_at: job.ended_at(),
            expires_at: spec.expires_at,
            data,
            data_bytes,
            attributes: Cow::Borrowed(&spec.attributes),
            correlation_key: spec.correlation_key.as_deref().map(Cow::Borrowed),
            replay_of: spec.replay_of.as_ref().map(Cow::Borrowed),
            replayed_by: life.replayed_by.as_ref().map(Cow::Borrowed),
            result,
            result_bytes,
            checkpoint,
            checkpoint_bytes,
            error: life.error.as_ref().map(|failure| FailureView::new(failure, encoding)),
            history: EntryView::all(job, encoding),
            deadline_at: spec.deadline_at,
            windows: Cow::Borrowed(&spec.windows),
            timeout_seconds: spec.timeout,
            retry: Cow::Borrowed(&spec.retry),
            unique: spec.unique.as_ref().map(Cow::Borrowed),
            keep_result: spec.keep_result,
            callback_url: spec.callback_url.as_ref().map(without_query),
            headers: Cow::Borrowed(&spec.headers),
            running: RunningView::of(job),
            original: spec.original.as_deref().map(|original| OriginalView {
                priority: original.priority,
                attributes: Cow::Borrowed(&original.attributes),
                data: original
                    .data
                    .as_ref()
                    .map(|text| AnyValue::new(&Payload::json(text.clone()), encoding)),
                weight: original.weight,
                max_attempts: original.max_attempts,
                timeout_seconds: original.timeout,
            }),
            retry_target: spec.retry_target.as_deref().map(Cow::Borrowed),
            enqueued_by: spec.enqueued_by.as_deref().map(Cow::Borrowed),
            origin: spec.origin.as_deref().map(OriginView::of),
            merged: None,
        }
    }

    /// `job` at `now` without what its producer gave it and what came of it, for another producer
    /// whose enqueue found it.
    pub fn outline(job: &'a Job, now: Timestamp, encoding: Encoding) -> Self {
        Self {
            data: None,
            data_bytes: None,
            attributes: Cow::Owned(Attributes::new()),
            correlation_key: None,
            replay_of: None,
            replayed_by: None,
            checkpoint: None,
            checkpoint_bytes: None,
            result: None,
            result_bytes: None,
            error: None,
            history: Vec::new(),
            unique: None,
            callback_url: None,
            headers: Cow::Owned(BTreeMap::new()),
            running: None,
            original: None,
            retry_target: None,
            enqueued_by: None,
            origin: None,
            ..Self::new(job, now, encoding, Bodies::Small)
        }
    }
}

/// `url` with its query hidden, which may have a key.
pub fn without_query(url: &Url) -> Cow<'_, Url> {
    if url.query().is_none() {
        return Cow::Borrowed(url);
    }
    let mut shown = url.clone();
    shown.set_query(Some("***"));
    Cow::Owned(shown)
}

/// The part of a body that is shown, or its size.
fn shown(body: &Body, encoding: Encoding, bodies: Bodies) -> (Option<AnyValue>, Option<usize>) {
    match body.inline() {
        Some(payload) if bodies != Bodies::Small || payload.bytes.len() <= INLINE_BYTES => {
            (Some(AnyValue::new(payload, encoding)), None)
        }
        _ => (None, Some(body.len())),
    }
}
