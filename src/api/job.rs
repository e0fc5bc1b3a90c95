//! Jobs: enqueued, changed, shown.
//!
//! Single answers show `data` and `result` whole (as far as an answer may be as large). Lists show them up to a kibibyte, and
//! their size beyond that, so that a page has a bound. A result that is kept `once` is shown by its own route alone, because
//! showing it takes it.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use tidegate_core::{
    calendar::window::Window,
    job::{
        Attributes, Body, Encoding, Job, JobId, Outcome, Payload, QueueName, TypeName,
        Value as AttributeValue,
        lifecycle::{AttemptRecord, Failure, Progress, Reason, ResultBody, State, word},
        options::{JobOptions, Split},
        retry::Retry,
        spec::{KeepResult, Unique},
    },
    port::job_store::INLINE_BYTES,
    time::{Seconds, Timestamp},
};
use url::Url;

use crate::{AnyValue, Problem, present};

/// A job to enqueue. Absent fields are taken from its type, then from the server's defaults.
#[derive(Clone, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
#[schema(as = NewJob)]
pub struct NewJobBody<'a> {
    /// Its type: 1 to 64 of `A-Z a-z 0-9 _ . -`. With PUT it may be left to the path.
    #[serde(rename = "type")]
    #[schema(value_type = Option<String>)]
    pub job_type: Option<TypeName>,
    /// The id that makes the enqueue idempotent: 1 to 64 of `A-Z a-z 0-9 _ . : -`. Absent, the server generates one.
    #[schema(value_type = Option<String>)]
    pub id: Option<JobId>,
    /// What it carries: any value, kept byte for byte.
    #[serde(borrow)]
    #[schema(value_type = AnyValue)]
    pub data: &'a RawValue,
    /// The earliest start; in the past means now.
    pub run_at: Option<Timestamp>,
    /// The same as a span from now; not together with `run_at`.
    pub delay_seconds: Option<Seconds>,
    /// It never starts after this instant.
    pub expires_at: Option<Timestamp>,
    /// The key by which a later reply finds the job; unique among the live jobs of the type.
    pub correlation_key: Option<String>,
    /// The options that it carries, as fields of their own.
    #[serde(skip)]
    #[schema(ignore)]
    pub options: JobOptions,
}

impl<'de: 'a, 'a> Deserialize<'de> for NewJobBody<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut options = JobOptions::default();
        let body = Self::deserialize(Split::new(deserializer, &mut options))?;
        Ok(Self { options, ..body })
    }
}

impl Serialize for NewJobBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
            job_type: &'a Option<TypeName>,
            #[serde(skip_serializing_if = "Option::is_none")]
            id: &'a Option<JobId>,
            data: &'a RawValue,
            #[serde(skip_serializing_if = "Option::is_none")]
            run_at: Option<Timestamp>,
            #[serde(skip_serializing_if = "Option::is_none")]
            delay_seconds: Option<Seconds>,
            #[serde(skip_serializing_if = "Option::is_none")]
            expires_at: Option<Timestamp>,
            #[serde(skip_serializing_if = "Option::is_none")]
            correlation_key: &'a Option<String>,
            #[serde(flatten)]
            options: &'a JobOptions,
        }
        let Self {
            job_type,
            id,
            data,
            run_at,
            delay_seconds,
            expires_at,
            correlation_key,
            options,
        } = self;
        let (run_at, delay_seconds, expires_at) = (*run_at, *delay_seconds, *expires_at);
        Fields { job_type, id, data, run_at, delay_seconds, expires_at, correlation_key, options }
            .serialize(serializer)
    }
}

/// Changes to a scheduled job; absent fields stay.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobPatch)]
pub struct PatchBody<'a> {
    /// The new due time; in the past means now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// The new priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// The new data.
    #[serde(
        borrow,
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = AnyValue, required = false)]
    pub data: Option<&'a RawValue>,
    /// The new instant after which it never starts; null means none.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Timestamp>)]
    pub expires_at: Option<Option<Timestamp>>,
    /// The new windows; an empty list means always.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows: Option<Vec<Window>>,
}

/// What a replay changes in the new job; absent fields are those of the old job.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReplayWith)]
pub struct ReplayBody<'a> {
    /// Other data.
    #[serde(
        borrow,
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = AnyValue, required = false)]
    pub data: Option<&'a RawValue>,
    /// Another priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Another weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Other attributes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, AttributeValue>>)]
    pub attributes: Option<Attributes>,
    /// Other windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows: Option<Vec<Window>>,
    /// Another instant after which it never starts; null means none.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Timestamp>)]
    pub expires_at: Option<Option<Timestamp>>,
}

/// Many jobs.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewJobs)]
pub struct BatchBody<'a> {
    /// The jobs, at most 1000.
    #[serde(borrow)]
    pub jobs: Vec<NewJobBody<'a>>,
}

/// How much of a job's bodies is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bodies {
    /// The whole bodies, wherever they are stored; the caller has loaded them.
    Whole,
    /// The whole data, the result up to a kibibyte: both together may exceed the limit of an answer.
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
    /// Attempts started so far.
    pub attempt: u16,
    /// Most attempts.
    pub max_attempts: u16,
    /// Jobs with a lower priority start first.
    pub priority: i32,
    /// Capacity units that it uses while it runs.
    pub weight: u32,
    /// Whether it is exempt from limits.
    pub critical: bool,
    /// The earliest start, while it is scheduled.
    pub run_at: Option<Timestamp>,
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
    /// The job of which it is a replay.
    #[schema(value_type = Option<String>)]
    pub replay_of: Option<Cow<'a, JobId>>,
    /// Its result, while it is kept; a result that is kept `once` is shown by `GET …/result` alone.
    #[schema(value_type = AnyValue)]
    pub result: Option<AnyValue>,
    /// How many bytes `result` has, where it is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_bytes: Option<usize>,
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
    /// The URL that is notified of its end.
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
}

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
    /// `succeeded`, `failed` or `cancelled`.
    pub outcome: Outcome,
    /// What went wrong.
    pub error: Option<FailureView<'a>>,
    /// When the next attempt was due, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
}

impl<'a> JobView<'a> {
    /// `job` for an answer in `encoding`.
    pub fn new(job: &'a Job, encoding: Encoding, bodies: Bodies) -> Self {
        Self::with_data(job, &job.data, encoding, bodies)
    }

    /// The same with `data` from the caller: an enqueue has just received it.
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
            id: Cow::Borrowed(&job.id),
            r#type: Cow::Borrowed(&spec.job_type),
            queue: Cow::Borrowed(&spec.queue),
            state: word(&life.state).into(),
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
            attributes: Cow::Borrowed(&spec.attributes),
            correlation_key: spec.correlation_key.as_deref().map(Cow::Borrowed),
            replay_of: spec.replay_of.as_ref().map(Cow::Borrowed),
            result,
            result_bytes,
            error: life.error.as_ref().map(|failure| FailureView::new(failure, encoding)),
            history: life.history.iter().map(|entry| EntryView::new(entry, encoding)).collect(),
            deadline_at: spec.deadline_at,
            windows: Cow::Borrowed(&spec.windows),
            timeout_seconds: spec.timeout,
            retry: Cow::Borrowed(&spec.retry),
            unique: spec.unique.as_ref().map(Cow::Borrowed),
            keep_result: spec.keep_result,
            callback_url: spec.callback_url.as_ref().map(Cow::Borrowed),
            headers: Cow::Borrowed(&spec.headers),
            running: life.running().map(|run| RunningView {
                worker: run.worker.as_deref().map(Cow::Borrowed),
                lease_expires_at: run.lease_until,
                timeout_at: run.timeout_at,
                cancel: run.cancel,
                progress: run.progress.as_ref().map(Cow::Borrowed),
            }),
        }
    }
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

/// A job without fields of variable length, so that a thousand fit into any answer. The fields are those of [`JobView`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShortView<'a> {
    /// Its id.
    pub id: Cow<'a, JobId>,
    /// Its type.
    pub r#type: Cow<'a, TypeName>,
    /// Its queue.
    pub queue: Cow<'a, QueueName>,
    /// Its state's word.
    pub state: Cow<'static, str>,
    /// Attempts started so far.
    pub attempt: u16,
    /// The earliest start, while it is scheduled.
    pub run_at: Option<Timestamp>,
    /// When it was accepted.
    pub created_at: Timestamp,
}

impl<'a> From<&'a Job> for ShortView<'a> {
    fn from(job: &'a Job) -> Self {
        Self {
            id: Cow::Borrowed(&job.id),
            r#type: Cow::Borrowed(&job.spec.job_type),
            queue: Cow::Borrowed(&job.spec.queue),
            state: word(&job.life.state).into(),
            attempt: job.life.attempt,
            run_at: job.life.run_at(),
            created_at: job.spec.created_at,
        }
    }
}

impl<'a> FailureView<'a> {
    fn new(failure: &'a Failure, encoding: Encoding) -> Self {
        let details = failure
            .details
            .as_ref()
            .map(|text| AnyValue::new(&Payload::json(text.clone()), encoding));
        Self {
            reason: failure.reason,
            message: failure.message.as_deref().map(Cow::Borrowed),
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
            error: entry.error.as_ref().map(|failure| FailureView::new(failure, encoding)),
            retry_at: entry.retry_at,
        }
    }

    /// The word for the outcome, as it is serialised.
    pub fn outcome_word(&self) -> &'static str {
        word(&State::Ended { outcome: self.outcome, at: self.ended_at })
    }
}

/// A page of jobs.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct JobPage<'a> {
    /// The jobs, newest first by creation.
    #[schema(value_type = Vec<JobView>)]
    pub jobs: Vec<JobView<'a>>,
    /// Where the next page starts; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// The outcome of each job of a batch, in order.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BatchView<'a> {
    /// One answer per job.
    #[schema(value_type = Vec<BatchResult>)]
    pub results: Vec<BatchResult<'a>>,
}

/// The outcome of one job of a batch.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BatchResult<'a> {
    /// 201 if it is new, 200 if it existed, else the status of the problem.
    pub status: u16,
    /// The job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<JobView>)]
    pub job: Option<BatchJob<'a>>,
    /// Why the job was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}

/// A job of a batch.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum BatchJob<'a> {
    /// The whole job.
    Whole(Box<JobView<'a>>),
    /// Its short form, where whole jobs would exceed the limit of an answer.
    Short(ShortView<'a>),
}

impl BatchJob<'_> {
    /// The job's id.
    pub fn id(&self) -> &JobId {
        match self {
            Self::Whole(job) => &job.id,
            Self::Short(job) => &job.id,
        }
    }
}

/// Reads the short form, which both forms have.
impl<'de> Deserialize<'de> for BatchJob<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ShortView::deserialize(deserializer).map(Self::Short)
    }
}

/// Why a job waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Explanation {
    /// The state's word.
    #[schema(value_type = String)]
    pub state: Cow<'static, str>,
    /// What holds it; absent if nothing does.
    pub held_by: Option<HeldBy>,
    /// Since when.
    pub since: Option<Timestamp>,
    /// For people.
    pub reason: String,
    /// The earliest start, where that is known.
    pub earliest_at: Option<Timestamp>,
}

/// What holds a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HeldBy {
    /// `due_time`, `window`, `paused`, `concurrency`, `type_concurrency`, `constraint`, `throttler`, `order`, `worker` or `retry`.
    #[schema(value_type = String)]
    pub kind: Cow<'static, str>,
    /// Its name, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}
