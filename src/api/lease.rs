//! Pull workers: leases, reports, heartbeats, registration.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate_core::{
    job::{Encoding, Job, JobId, QueueName, TypeName, lifecycle::Reason},
    strict::{or_default, present},
    time::{Seconds, Timestamp},
};

use crate::{AnyValue, Bodies, JobView, NewLogLine, Problem};

/// A request of a pull worker for jobs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LeaseRequest)]
pub struct LeaseBody<'a> {
    /// Only from this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub queue: Option<QueueName>,
    /// Only of these types; absent or empty means every pull type.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub types: Option<Vec<TypeName>>,
    /// At most this many, 0 to 1000 (default 1). With 0 the call only reports, and gets the leases
    /// of the call that it repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// At least this many, 0 to `max` (default 1, and 0 is 1), unless the wait ends: then what is
    /// there. No job is leased before. More than 1 needs a request to one queue: `queue`, or types
    /// of one. A worker that registered a smaller capacity waits for no more than that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// How long to wait for the first, or for `min` of them, 0 to 60 (default 0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<Seconds>,
    /// The longest pause that the worker makes before its next call if there is no job, 0 to 60
    /// (default 0). A server that pays for held requests then answers at once, and names the pause
    /// in `retry_after_seconds`. Any other server holds the request for `wait_seconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_pause_seconds: Option<Seconds>,
    /// The name of the request: 16 to 128 bytes, such as a UUID. A worker that has no answer
    /// repeats the request with it, and gets the same leases while they last; a repeat renews them.
    /// The next request has another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The worker's name, at most 128 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// How long the leases last (default: the type's setting).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<Seconds>,
    /// The results of earlier leases, at most 1000.
    #[serde(
        borrow,
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub reports: Vec<ReportBody<'a>>,
}

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed,
    /// The worker hands it back unharmed: it does not count against `max_attempts`, and the job has
    /// its place in the order again. Of an `at_most_once` job the worker thereby says that it has
    /// not begun.
    Released,
    /// The worker hands it back in the same way, until `run_at` or for `delay_seconds`.
    Snoozed,
}

impl Status {
    /// The status as it is serialised.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Released => "released",
            Self::Snoozed => "snoozed",
        }
    }
}

/// A worker's report of one attempt.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Report)]
pub struct ReportBody<'a> {
    /// The job; required among the reports of a lease call, elsewhere the path names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub id: Option<JobId>,
    /// Its type, if it is to be checked.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub job_type: Option<TypeName>,
    /// The outcome.
    pub status: Status,
    /// The attempt, as the delivery or the lease named it.
    pub attempt: u16,
    /// With `succeeded`: the result, any value, kept byte for byte.
    #[serde(
        borrow,
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = AnyValue, required = false)]
    pub result: Option<&'a RawValue>,
    /// With `failed`: details of the error, any value of at most 16 KiB.
    #[serde(
        borrow,
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = AnyValue, required = false)]
    pub error: Option<&'a RawValue>,
    /// What went wrong, or why it is handed back, for people, at most 4 KiB. Not with `succeeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// With `failed`: the reason (default `failed`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Not with `succeeded`: what the next attempt needs to go on, any value of at most 64 KiB. It
    /// replaces an earlier one; null leaves that.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = AnyValue, required = false)]
    pub checkpoint: Option<&'a RawValue>,
    /// With `failed`: whether another attempt makes sense (default true).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    /// With `snoozed`: when the job may start again; in the past means now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// With `snoozed`, instead of `run_at`: in how many seconds it may start again (0 to
    /// 315360000).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_seconds: Option<Seconds>,
    /// Log lines of the attempt since its latest heartbeat, oldest first. At most 64 KiB of an
    /// attempt and 256 KiB of a job are kept, the latest.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub log: Vec<NewLogLine>,
    /// When the worker finished. It is read and not kept: the server's own clock counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// The attempt's token. It is optional with scope `work`; if present, it must be the attempt's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// Leases, and the answers to the reports.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Leases)]
pub struct LeasesView<'a> {
    /// The leases; none if no job became available within the wait.
    #[schema(value_type = Vec<LeaseView>)]
    pub leases: Vec<LeaseView<'a>>,
    /// One answer per report, in order.
    #[schema(value_type = Vec<ReportedView>)]
    pub reports: Cow<'a, [ReportedView]>,
    /// How long to pause before the next call; absent: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<Seconds>,
    /// Whether the worker is to end in order: it sends no more lease requests, finishes and reports
    /// what it runs, and is deleted. Absent: no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub stop: bool,
}

/// One attempt at a job, and the right to report on it.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Lease)]
pub struct LeaseView<'a> {
    /// The job.
    pub job: JobView<'a>,
    /// The attempt, from 1.
    pub attempt: u16,
    /// The attempt's secret: enough, as a bearer token, to report and to send heartbeats.
    pub token: String,
    /// Without a heartbeat the lease expires then.
    pub expires_at: Timestamp,
}

impl<'a> LeaseView<'a> {
    /// The lease of a `job` that this process has claimed; none if it has not.
    pub fn new(job: &'a Job, encoding: Encoding) -> Option<Self> {
        let run = job.life.running()?;
        Some(Self {
            // The phase of a running job does not depend on the time.
            job: JobView::new(job, run.started_at, encoding, Bodies::Whole),
            attempt: job.life.attempt,
            token: run.token.secret()?,
            expires_at: run.lease_until,
        })
    }
}

/// The answer to a report.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Reported)]
pub struct ReportedView {
    /// The status with which the report alone would have been answered.
    pub status: u16,
    /// The job.
    #[schema(value_type = String)]
    pub id: JobId,
    /// The job's state after the report.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub state: Option<Cow<'static, str>>,
    /// Why the report was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}

/// A heartbeat of an attempt.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Heartbeat)]
pub struct HeartbeatBody<'a> {
    /// The attempt.
    pub attempt: u16,
    /// How long the lease lasts from now (default: the type's setting).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<Seconds>,
    /// The attempt's progress, 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    /// A note on the progress, at most 4 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What the next attempt needs to go on, any value of at most 64 KiB. It replaces an earlier
    /// one; null leaves that.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = AnyValue, required = false)]
    pub checkpoint: Option<&'a RawValue>,
    /// Log lines of the attempt since its heartbeat before, oldest first. At most 64 KiB of an
    /// attempt and 256 KiB of a job are kept, the latest.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub log: Vec<NewLogLine>,
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Beat)]
pub struct BeatView {
    /// Whether a cancel was requested: stop, and report.
    pub cancel: bool,
    /// When the lease expires now.
    pub expires_at: Timestamp,
}

/// A worker that called lately, runs something, or is drained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Worker {
    /// Its name.
    pub name: String,
    /// How many jobs it runs at once, if it is registered with a capacity: it is leased no more.
    pub capacity: Option<u32>,
    /// How many it runs now.
    pub running: u64,
    /// Whether it gets no more jobs.
    pub draining: bool,
    /// Whether it is to end after its running jobs: its next lease request is answered with `stop`.
    #[serde(default)]
    pub stopping: bool,
    /// When it called last.
    pub seen_at: Timestamp,
    /// The queue whose jobs its latest lease request or registration was for, if it named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub queue: Option<QueueName>,
    /// The types that it named. Empty for all, and for more than 100.
    #[serde(default, deserialize_with = "or_default")]
    #[schema(value_type = Vec<String>)]
    pub types: Vec<TypeName>,
}

/// A page of workers.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WorkerPage {
    /// The workers, by name.
    pub workers: Vec<Worker>,
    /// Where the next page starts; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A worker's registration.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Registration)]
pub struct RegistrationBody {
    /// How many jobs it runs at once: a lease call gets no more than the rest of that. Absent: as
    /// many as it requests. An embedded server keeps the capacity over a restart, until a week
    /// after the worker's latest call. The serverless deployment mode only lists it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// The queue that it takes jobs of, as in its lease requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub queue: Option<QueueName>,
    /// The types that it takes, as in its lease requests, at most 100. With `queue` or `types` it
    /// counts among the `workers` of its queues for a minute. The serverless deployment mode counts
    /// no others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub types: Option<Vec<TypeName>>,
}
