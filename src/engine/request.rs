//! What callers ask of the engine and what it answers: plain values, shared by the HTTP API, the
//! library and the functions.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use tidegate_core::{
    calendar::window::Window,
    job::{
        Attributes, Body, Job, JobId, JobOptions, Payload, QueueName, Token, TypeName,
        lifecycle::{Failure, Progress},
    },
    port::job_store::StateFilter,
    time::{Seconds, Timestamp},
};

/// A job to be accepted. What is absent comes from its type, and then from the server's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// Its type.
    pub job_type: TypeName,
    /// The id that makes the enqueue idempotent; absent, the server draws one.
    pub id: Option<JobId>,
    /// A client's `Idempotency-Key`.
    pub idempotency_key: Option<String>,
    /// What it carries.
    pub data: Payload,
    /// The earliest it may run; in the past means now.
    pub run_at: Option<Timestamp>,
    /// The same, from now; not together with `run_at`.
    pub delay_seconds: Option<Seconds>,
    /// Never started after it.
    pub expires_at: Option<Timestamp>,
    /// The key by which a later reply finds it.
    pub correlation_key: Option<String>,
    /// The options that it carries. The caller checks the scope that `critical` requires.
    pub options: JobOptions,
    /// Headers of the trace that the request belongs to, passed on unless `options.headers` names
    /// another. They are not compared: a repeat of the request may belong to another trace.
    pub trace: BTreeMap<String, String>,
    /// The job it runs again.
    pub replay_of: Option<JobId>,
}

impl NewJob {
    /// A job of `job_type` that carries `data`, everything else as its type says.
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
        }
    }

    /// The same job after `set` has changed its options.
    #[must_use]
    pub fn with_options(mut self, set: impl FnOnce(&mut JobOptions)) -> Self {
        set(&mut self.options);
        self
    }

    /// Whether a repeat can be told from a second job: it has an id or an idempotency key.
    pub fn is_repeatable(&self) -> bool {
        self.id.is_some() || self.idempotency_key.is_some()
    }
}

/// A job that is in the store.
#[derive(Clone, Debug)]
pub struct Enqueued {
    /// The job.
    pub job: Job,
    /// Whether this call added it; else it was there already.
    pub new: bool,
}

/// Changes to a scheduled job; what is absent stays.
#[derive(Clone, Debug, Default)]
pub struct JobPatch {
    /// The new due time.
    pub run_at: Option<Timestamp>,
    /// The new priority.
    pub priority: Option<i32>,
    /// The new data.
    pub data: Option<Payload>,
    /// The new end of its chance; `Some(None)` means never.
    pub expires_at: Option<Option<Timestamp>>,
    /// The new windows.
    pub windows: Option<Vec<Window>>,
}

/// What a replay changes in the new job; what is absent is the old job's.
#[derive(Clone, Debug, Default)]
pub struct ReplayWith {
    /// Other data.
    pub data: Option<Payload>,
    /// Another priority.
    pub priority: Option<i32>,
    /// Another weight.
    pub weight: Option<u32>,
    /// Other attributes.
    pub attributes: Option<Attributes>,
    /// Other windows.
    pub windows: Option<Vec<Window>>,
    /// Another end of its chance; `Some(None)` means never.
    pub expires_at: Option<Option<Timestamp>>,
    /// Headers of the trace that the request belongs to.
    pub trace: BTreeMap<String, String>,
}

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum ReportOutcome {
    /// It worked.
    Succeeded {
        /// With this.
        result: Option<Body>,
    },
    /// It did not.
    Failed {
        /// Why.
        failure: Failure,
        /// Whether another attempt makes sense.
        retryable: bool,
        /// The least wait before it.
        least_wait: Duration,
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
    /// What became of it.
    pub outcome: ReportOutcome,
}

impl Report {
    /// Whether its result is too large to be kept in its job's record.
    pub fn is_large(&self) -> bool {
        matches!(&self.outcome, ReportOutcome::Succeeded { result: Some(body) } if body.len() > crate::jobs::report::RESULT_INLINE_BYTES)
    }
}

/// A sign of life.
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
    /// How long the lease shall last from now; absent: as its type says.
    pub lease_seconds: Option<Seconds>,
    /// How far it is.
    pub progress: Option<Progress>,
}

/// The answer to a sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Whether somebody wants the job gone: stop, and report.
    pub cancel: bool,
    /// When the lease ends now.
    pub expires_at: Timestamp,
}

/// A pull worker's wish.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// Only from this queue.
    pub queue: Option<QueueName>,
    /// Only of these types; empty means every pull type (of the queue, if one is named).
    pub types: Vec<TypeName>,
    /// At most this many (0 to 1000; 0 only reports).
    pub max: u32,
    /// How long to wait for the first (0 to 60 s).
    pub wait: Duration,
    /// How the worker names itself, at most 128 bytes.
    pub worker: Option<String>,
    /// How long the leases last; absent: as the type says.
    pub lease_seconds: Option<Seconds>,
    /// What became of earlier leases.
    pub reports: Vec<Report>,
}

/// Leases, and the fate of the reports.
#[derive(Debug)]
pub struct Leased {
    /// The leased jobs, running, their bodies inline.
    pub jobs: Vec<Job>,
    /// One answer per report, in order.
    pub reports: Vec<Result<Job, super::Error>>,
}

/// How a cancel went.
#[derive(Clone, Debug)]
pub struct Cancelled {
    /// The job.
    pub job: Job,
    /// Whether it has ended; else its worker is told at the next heartbeat.
    pub ended: bool,
}

/// Why a job waits.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Explanation {
    /// The state's word.
    pub state: &'static str,
    /// What holds it; absent if nothing does.
    pub held_by: Option<HeldBy>,
    /// Since when.
    pub since: Option<Timestamp>,
    /// For people.
    pub reason: String,
    /// The earliest it can run, where that is known.
    pub earliest_at: Option<Timestamp>,
}

/// What holds a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct HeldBy {
    /// `due_time`, `window`, `paused`, `concurrency`, `type_concurrency`, `constraint`, `throttler`, `order`, `worker` or `retry`.
    pub kind: &'static str,
    /// Which, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Which jobs a bulk operation takes.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// Only this type.
    pub job_type: Option<TypeName>,
    /// Only this queue.
    pub queue: Option<QueueName>,
    /// Only these states.
    pub states: Vec<StateFilter>,
    /// Only with these attribute values.
    pub attributes: Attributes,
    /// Only created at this instant or later.
    pub from: Option<Timestamp>,
    /// Only created before this instant.
    pub to: Option<Timestamp>,
}

/// What a bulk operation does to each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum BulkKind {
    /// Cancels it.
    Cancel,
    /// Replays it.
    Replay,
    /// Drops it if it is scheduled.
    Purge,
}

/// A bulk operation, under way or over.
#[derive(Clone, Debug, PartialEq, Serialize, serde::Deserialize, utoipa::ToSchema)]
pub struct Operation {
    /// Its id.
    pub id: String,
    /// What it does.
    pub kind: BulkKind,
    /// `running`, `done` or `failed`.
    pub state: String,
    /// Jobs that matched so far.
    pub matched: u64,
    /// Jobs it was done to.
    pub done: u64,
    /// Jobs that refused it (they had ended, or were running).
    pub refused: u64,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When it was over.
    pub ended_at: Option<Timestamp>,
    /// What stopped it, if something did.
    pub error: Option<String>,
}

/// What a queue looks like from outside.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct QueueStatus {
    /// How many jobs are in each state, by the state's word.
    pub depth: BTreeMap<&'static str, u64>,
    /// The weight that runs under grants.
    pub running_weight: u64,
    /// The due time of the job that is due longest and still waits.
    pub oldest_due_at: Option<Timestamp>,
    /// How many of the candidates looked at last each rule held.
    pub held: BTreeMap<String, u64>,
    /// How many workers would drain what is due in a minute, within what the queue's and its types' concurrency admits; none if it is
    /// paused. Of over 10,000 due jobs no more are counted: all that are scheduled then count as due.
    pub desired_workers: u64,
    /// How long after their due time attempts start, a moving mean since the server started.
    pub lateness_seconds: f64,
    /// What runs under each constraint's concurrency, the heaviest first, at most 100 values.
    pub constraints: Vec<ConstraintUse>,
}

/// What runs under a constraint, or under one value of its attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct ConstraintUse {
    /// The constraint's name.
    pub name: String,
    /// The attribute each value of which has the limit to itself, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per: Option<String>,
    /// The value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The weight that runs.
    pub running_weight: u64,
    /// The most that may.
    pub limit: u32,
}

/// A worker that was heard of lately, runs something, or is drained.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Worker {
    /// How it names itself.
    pub name: String,
    /// How many jobs it runs at once, if it said so: it is leased no more.
    pub capacity: Option<u32>,
    /// How many it runs now.
    pub running: u64,
    /// Whether it gets no more jobs.
    pub draining: bool,
    /// When it was heard of last.
    pub seen_at: Timestamp,
}
