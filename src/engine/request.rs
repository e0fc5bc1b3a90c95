//! The requests and answers of the engine: plain values, shared by the HTTP API, the library and
//! the functions.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub use crate::bulk::{
    BulkChange, BulkKind, BulkPatch, BulkRequest, MAX_SAMPLE, MAX_SKIPPED_JOBS, Operation,
    SkippedJob,
};
pub use crate::explanation::{
    Explanation, HeldBy, HeldJobs, QueueExplanation, TypeUse, WorkerStatus,
};
pub use crate::jobs::checkpoint::MAX_CHECKPOINT_BYTES;
pub use crate::jobs::errors::{ErrorGroup, ErrorPage};
pub use crate::jobs::replay::Replay;
use crate::{RepeatableCall, jobs::report::MAX_INLINE_RESULT_BYTES};
use tidegate_core::{
    calendar::window::Window,
    job::{
        Attributes, Body, Job, JobId, JobOptions, Origin, Payload, QueueName, Revision, Token,
        TypeName, Version,
        lifecycle::{Failure, HandBack, Progress},
        unique::Merged,
    },
    schedule::ScheduleConfig,
    time::{Seconds, Timestamp},
};

/// A schedule to put.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleRequest {
    /// Its configuration.
    pub config: ScheduleConfig,
    /// Whether `config.paused` counts.
    pub pause: PauseOnPut,
}

/// What a put does about the pause of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseOnPut {
    /// It sets what the configuration says.
    AsConfigured,
    /// A stored schedule stays paused or not; a new one is not paused.
    Keep,
}

impl From<ScheduleConfig> for ScheduleRequest {
    fn from(config: ScheduleConfig) -> Self {
        Self { config, pause: PauseOnPut::AsConfigured }
    }
}

/// A job to enqueue. An absent value comes from its type, and then from the server's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// Its type.
    pub job_type: TypeName,
    /// The id that makes the enqueue idempotent; absent, the server draws one.
    pub id: Option<JobId>,
    /// A client's `Idempotency-Key`.
    pub idempotency_key: Option<String>,
    /// Its data.
    pub data: Payload,
    /// When it is due; an instant in the past means now.
    pub run_at: Option<Timestamp>,
    /// The time from now until it is due; not together with `run_at`.
    pub delay_seconds: Option<Seconds>,
    /// It does not start after this instant.
    pub expires_at: Option<Timestamp>,
    /// The key by which a later reply finds it.
    pub correlation_key: Option<String>,
    /// Its options. The caller checks the scope that `critical` requires.
    pub options: JobOptions,
    /// Headers of the request's trace. The job has them unless `options.headers` names another
    /// trace. They are not part of the digest: a repeated request may belong to another trace.
    pub trace: BTreeMap<String, String>,
    /// The job that it replays.
    pub replay_of: Option<JobId>,
    /// The name of the caller, 1 to 256 bytes. It is not part of the digest: a repeat may come with
    /// another token.
    pub enqueued_by: Option<String>,
    /// The schedule or the trigger that makes it. It is not part of the digest.
    pub origin: Option<Box<Origin>>,
}

impl NewJob {
    /// A job of `job_type` with `data`, and with its type's value for everything else.
    pub fn new(job_type: TypeName, data: Payload) -> Self {
        Self {
            job_type,
            id: None,
            idempotency_key: None,
            data,
            run_at: None,
            delay_seconds: None,
            expires_at: None,
            correlation_key: None,
            options: JobOptions::default(),
            trace: BTreeMap::new(),
            replay_of: None,
            enqueued_by: None,
            origin: None,
        }
    }

    /// Changes the options with `set`.
    #[must_use]
    pub fn with_options(mut self, set: impl FnOnce(&mut JobOptions)) -> Self {
        set(&mut self.options);
        self
    }

    /// Whether a repeated request is recognised: the job has an id or an idempotency key.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.id.is_some() || self.idempotency_key.is_some()
    }
}

/// A job that is in the store.
#[derive(Clone, Debug)]
pub struct Enqueued {
    /// The job.
    pub job: Job,
    /// Whether this call added it. If not, it existed before.
    pub new: bool,
    /// What this call changed in the job, which waited and held the request's unique key.
    pub merged: Option<MergedInto>,
}

impl Enqueued {
    /// The answer of a call that added `job`.
    pub fn added(job: Job) -> Self {
        Self { job, new: true, merged: None }
    }

    /// The answer of a call that found `job`, and left it as it is.
    pub fn existing(job: Job) -> Self {
        Self { job, new: false, merged: None }
    }
}

/// The change of a waiting job by a request with its unique key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergedInto {
    /// What changed.
    pub how: Merged,
    /// The version that the job left, at which it may have had a grant.
    pub left: Version,
}

/// Changes to a scheduled job. What is absent stays; `Some(None)` is what an enqueue without the
/// field has.
#[derive(Clone, Debug, Default)]
pub struct JobPatch {
    /// The new due time.
    pub run_at: Option<Timestamp>,
    /// The new priority.
    pub priority: Option<Option<i32>>,
    /// The new data.
    pub data: Option<Payload>,
    /// The new expiry.
    pub expires_at: Option<Option<Timestamp>>,
    /// The new windows.
    pub windows: Option<Option<Vec<Window>>>,
}

/// The changes that a replay makes in the new job. An absent value is the old job's; `Some(None)`
/// is what an enqueue without the field has.
#[derive(Clone, Debug, Default)]
pub struct ReplayWith {
    /// Other data.
    pub data: Option<Payload>,
    /// Another priority.
    pub priority: Option<Option<i32>>,
    /// Another weight.
    pub weight: Option<Option<u32>>,
    /// Other attributes.
    pub attributes: Option<Option<Attributes>>,
    /// Other windows.
    pub windows: Option<Option<Vec<Window>>>,
    /// Another expiry.
    pub expires_at: Option<Option<Timestamp>>,
    /// Whether to make another job if the old one was replayed before.
    pub again: bool,
    /// Headers of the request's trace.
    pub trace: BTreeMap<String, String>,
}

/// The outcome of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum ReportOutcome {
    /// It succeeded.
    Succeeded {
        /// Its result, if it has one.
        result: Option<Body>,
    },
    /// It failed.
    Failed {
        /// Why.
        failure: Failure,
        /// Whether another attempt may succeed.
        retryable: bool,
    },
    /// The worker hands it back unharmed: `released`, or `snoozed` until a time. It does not count
    /// against `max_attempts`. If the job must not run twice, the worker says that it has not begun.
    HandedBack(HandBack),
    /// Its worker did not receive the lease, or its target was not called: it is handed back, unless the
    /// job has changed since the claim. It may have been renewed for a repeat of the lease call.
    NotReceived {
        /// The revision of the claim.
        revision: Revision,
        /// Why, for people.
        message: String,
    },
}

/// A worker's report of one attempt.
#[derive(Clone, Debug)]
pub struct Report {
    /// The job.
    pub id: JobId,
    /// The type it must have, if the caller named one.
    pub job_type: Option<TypeName>,
    /// The attempt.
    pub attempt: u16,
    /// The attempt's secret; none if the caller's own credentials allow the report.
    pub token: Option<Token>,
    /// Its outcome.
    pub outcome: ReportOutcome,
    /// What the next attempt needs to go on, at most [`MAX_CHECKPOINT_BYTES`]. A success clears it.
    pub checkpoint: Option<Body>,
}

impl Report {
    /// Whether its result is too large to be kept in its job's record.
    pub fn is_large(&self) -> bool {
        matches!(
            &self.outcome,
            ReportOutcome::Succeeded { result: Some(body) } if body.len() > MAX_INLINE_RESULT_BYTES
        )
    }

    /// The objects that it names.
    pub(crate) fn object_keys(&self) -> impl Iterator<Item = &str> {
        let result = match &self.outcome {
            ReportOutcome::Succeeded { result } => result.as_ref(),
            _ => None,
        };
        result.into_iter().chain(&self.checkpoint).filter_map(|body| match body {
            Body::Object { key, .. } => Some(key.as_str()),
            Body::Inline(_) | Body::Separate(_) => None,
        })
    }
}

/// A heartbeat of a running attempt.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// The job.
    pub id: JobId,
    /// The type it must have, if the caller named one.
    pub job_type: Option<TypeName>,
    /// The attempt.
    pub attempt: u16,
    /// The attempt's secret; none if the caller's own credentials allow it.
    pub token: Option<Token>,
    /// How long the lease lasts from now; absent: the type's setting.
    pub lease_seconds: Option<Seconds>,
    /// The attempt's progress.
    pub progress: Option<Progress>,
    /// What the next attempt needs to go on, at most [`MAX_CHECKPOINT_BYTES`].
    pub checkpoint: Option<Body>,
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatAnswer {
    /// Whether the job is to be cancelled: the worker stops, and reports.
    pub cancel: bool,
    /// When the extended lease ends.
    pub expires_at: Timestamp,
}

/// A pull worker's request for jobs.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// Only from this queue.
    pub queue: Option<QueueName>,
    /// Only of these types; empty means every pull type (of the queue, if one is named).
    pub types: Vec<TypeName>,
    /// At most this many (0 to 1000; 0 only reports).
    pub max: u32,
    /// At least this many (0 to `max`; 0 is 1), unless the wait ends. Until then, none is leased.
    /// More than 1 needs a request to one queue.
    pub min: u32,
    /// How long to wait for the first job, or for `min` jobs (0 to 60 s).
    pub wait: Duration,
    /// The longest pause that the worker makes instead of the wait (0 to 60 s; 0: none). Only a
    /// process that costs money while it waits has it pause.
    pub max_pause: Duration,
    /// The call, if its worker may repeat it: the repeat gets the same leases.
    pub call: Option<Arc<RepeatableCall>>,
    /// The worker's name, at most 128 bytes.
    pub worker: Option<String>,
    /// How long the leases last; absent: the type's setting.
    pub lease_seconds: Option<Seconds>,
    /// Reports of earlier leases.
    pub reports: Vec<Report>,
}

/// Leases, and the answers to the reports.
#[derive(Debug)]
pub struct Leased {
    /// The leased jobs, running, their bodies inline.
    pub jobs: Vec<Job>,
    /// One answer per report, in order.
    pub reports: Vec<Result<Job, super::Error>>,
    /// How long the worker pauses before its next call.
    pub pause: Option<Duration>,
}

/// The result of a cancel.
#[derive(Clone, Debug)]
pub struct Cancelled {
    /// The job.
    pub job: Job,
    /// Whether it has ended. If not, its worker learns of the cancel from its next heartbeat.
    pub ended: bool,
}

/// The answer to a request for a job's result.
#[derive(Clone, Debug, PartialEq)]
pub struct JobResult {
    /// The job when it was read: its state says whether the result may still come.
    pub job: Job,
    /// The result of a job that succeeded; none if it has none, or if it was read once already.
    pub value: Option<Payload>,
}

impl JobResult {
    /// The answer if the job has ended, however it ended.
    pub fn ended(self) -> Option<Self> {
        self.job.life.ended().is_some().then_some(self)
    }
}

/// What a pull worker registers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// How many jobs it runs at once; absent: as many as it requests.
    pub capacity: Option<u32>,
    /// The queue whose jobs it takes; absent: that of each of its types.
    pub queue: Option<QueueName>,
    /// The types that it takes; empty: all of the queue. Without a queue too, it registers only its
    /// capacity.
    pub types: Vec<TypeName>,
}

impl Registration {
    /// Registers only a capacity.
    pub fn of_capacity(capacity: impl Into<Option<u32>>) -> Self {
        Self { capacity: capacity.into(), ..Self::default() }
    }
}

/// The status of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueStatus {
    /// How many jobs are in each state, by the state's name.
    pub depth: BTreeMap<&'static str, u64>,
    /// How many jobs are in each phase, by the phase's name; see
    /// [`Engine::count_phases`](crate::Engine::count_phases).
    pub phases: BTreeMap<&'static str, u64>,
    /// When those were counted, if the store keeps them instead of counting at once.
    pub counted_at: Option<Timestamp>,
    /// Whether there may have been more jobs then.
    pub depth_at_least: bool,
    /// How many jobs are due and wait for admission or a worker, counted up to
    /// [`max_counted_due`](tidegate_core::port::StoreCapabilities::max_counted_due).
    pub ready: u64,
    /// The weight of the running jobs, without critical ones. In a queue without limits, at most
    /// 10,000 jobs count.
    pub running_weight: u64,
    /// The due time of the waiting job that has been due for the longest time.
    pub oldest_due_at: Option<Timestamp>,
    /// What holds the first due jobs, in their order; see [`QueueExplanation::held`].
    pub held: Vec<HeldJobs>,
    /// How many workers would drain the due jobs in a minute, within the limits and rates of the
    /// queue; 0 if the queue is paused. Due jobs beyond the bound of `ready` do not count.
    pub desired_workers: u64,
    /// Pull workers that wait for jobs of the queue, run jobs, or called within a minute, and that
    /// are not drained; of a serverless deployment, those that registered for it within a minute.
    pub workers: u64,
    /// How many seconds after their due time attempts start: a moving mean since the server
    /// started.
    pub lateness_seconds: f64,
    /// The use of each constraint's concurrency, the heaviest value first, at most 100 values.
    pub constraints: Vec<ConstraintUse>,
}

/// The use of a constraint, or of one value of its attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConstraintUse {
    /// The constraint's name.
    pub name: String,
    /// The attribute, if each of its values has a limit of its own.
    pub per: Option<String>,
    /// The value.
    pub value: Option<String>,
    /// The weight of its running jobs.
    pub running_weight: u64,
    /// The largest weight that may run.
    pub limit: u32,
}

/// A worker that sent a request recently, runs jobs, or is drained.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// Its name.
    pub name: String,
    /// How many jobs it runs at most, if it announced a capacity. It gets no more leases than that.
    pub capacity: Option<u32>,
    /// How many jobs it runs now.
    pub running: u64,
    /// Whether it gets no more jobs.
    pub draining: bool,
    /// Whether it is to end after its running jobs.
    pub stopping: bool,
    /// When its last request arrived.
    pub seen_at: Timestamp,
    /// The queue whose jobs its latest request or registration was for, if it named one.
    pub queue: Option<QueueName>,
    /// The types that it named; empty for all.
    pub types: Vec<TypeName>,
}
