//! Calls as JSON, in the words of `plugins/wit`: what a fault is kept with, and what the cases of `tidegate plugin test` are turned into.
//!
//! ```json
//! {"throttle": {
//!   "context": {"queue": "orders", "now": "2026-03-01T08:00:00Z", "config": {"limit": 2}},
//!   "round": {"room": 10},
//!   "running": [{"id": "a", "job-type": "import", "attributes": {"region": "east"}}],
//!   "candidates": [{"id": "b", "job-type": "import", "attributes": {"region": "west"}}],
//!   "state": {}, "data": {"b": {"rows": 12}}}}
//! ```
//!
//! Whatever is left out has a default, so that a call written by hand names what it is about. Instants are RFC 3339,
//! the configuration and data are JSON rather than JSON in a text, and attributes are an object. A call that is
//! written and read again is the same call to a plugin, as far as the contract goes: what it never shows, a job's windows say, is not
//! written. A call that is kept for long leaves out data over a bound; `data-left-out` has the bytes of each piece.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::lower;
use tidegate_core::{
    job::{
        Attributes, Body, Job, JobId, JobOptions, Lifecycle, Outcome, Payload, QueueName, Spec,
        Token, TypeName, Version,
        lifecycle::{AttemptRecord, Failure, Reason, Waiting},
        type_config::TypeConfig,
    },
    port::policy::{self, Call, PolicyState, RetryCall, RunningSet, ThrottleCall},
    queue::Grant,
    time::Timestamp,
};

/// Most bytes of data in a call that is kept.
const KEPT_DATA_BYTES: usize = 64 << 10;

/// The text is no call.
#[derive(Debug, thiserror::Error)]
#[error("not a call of a plugin: {0}")]
pub struct NotACall(#[from] serde_json::Error);

/// `call` as JSON.
pub fn to_json(call: &Call) -> String {
    Written::of(call).to_json()
}

/// `call` as JSON with at most 64 KiB of data, for a call that is kept for long; it names what is left out.
pub fn to_bounded_json(call: &Call) -> String {
    let mut written = Written::of(call);
    written.leave_out_data();
    written.to_json()
}

/// The call that `json` is.
///
/// # Errors
///
/// [`NotACall`] with what is wrong, and where.
pub fn from_json(json: &str) -> Result<Call, NotACall> {
    Ok(match serde_json::from_str(json)? {
        Written::Throttle(written) => Call::Throttle(Arc::new(written.call())),
        Written::Retry(written) => Call::Retry(Arc::new(written.call()?)),
    })
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Written {
    Throttle(ThrottleWritten),
    Retry(RetryWritten),
}

impl Written {
    fn of(call: &Call) -> Self {
        match call {
            Call::Throttle(call) => Self::Throttle(ThrottleWritten::of(call)),
            Call::Retry(call) => Self::Retry(RetryWritten::of(call)),
        }
    }

    fn to_json(&self) -> String {
        serde_json::to_string(self).expect("it has texts for keys and no number that JSON lacks")
    }

    /// Leaves out the data that has no room in what is kept, a piece at a time.
    fn leave_out_data(&mut self) {
        let mut room = KEPT_DATA_BYTES;
        let mut left_out = |data: &RawValue| {
            let bytes = data.get().len();
            let fits = bytes <= room;
            room -= if fits { bytes } else { 0 };
            (!fits).then_some(bytes)
        };
        match self {
            Self::Throttle(call) => {
                call.data_left_out = call
                    .data
                    .iter()
                    .filter_map(|(id, data)| Some((id.clone(), left_out(data)?)))
                    .collect();
                call.data.retain(|id, _| !call.data_left_out.contains_key(id));
            }
            Self::Retry(call) => {
                call.data_left_out = call.data.as_deref().and_then(left_out);
                call.data = call.data.take().filter(|_| call.data_left_out.is_none());
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct Context {
    queue: QueueName,
    now: Timestamp,
    seed: u64,
    config: Box<RawValue>,
}

impl Default for Context {
    fn default() -> Self {
        Self { queue: given("default"), now: Timestamp::EPOCH, seed: 0, config: raw("{}") }
    }
}

/// A name that is known to be good.
fn given<N: std::str::FromStr<Err: std::fmt::Debug>>(name: &str) -> N {
    name.parse().expect("a good name")
}

/// JSON text as it is; a text that is none becomes a JSON string.
fn raw(text: &str) -> Box<RawValue> {
    let quoted = |_| serde_json::value::to_raw_value(text).expect("a text is JSON");
    RawValue::from_string(text.to_owned()).unwrap_or_else(quoted)
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct ThrottleWritten {
    context: Context,
    round: Round,
    running: Vec<Running>,
    candidates: Vec<JobWritten>,
    state: PolicyState,
    data: BTreeMap<JobId, Box<RawValue>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    data_left_out: BTreeMap<JobId, usize>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct Round {
    concurrency: Option<u32>,
    room: u32,
    ended: Vec<Ended>,
}

impl Default for Round {
    fn default() -> Self {
        Self { concurrency: None, room: 1000, ended: Vec::new() }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Ended {
    #[serde(default = "no_id")]
    id: JobId,
    #[serde(default = "any_type")]
    job_type: TypeName,
    #[serde(default)]
    attributes: Attributes,
    #[serde(default = "first")]
    attempt: u16,
    succeeded: bool,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    status: Option<u16>,
}

fn no_id() -> JobId {
    given("job")
}

fn any_type() -> TypeName {
    given("job")
}

fn first() -> u16 {
    1
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Running {
    #[serde(default = "no_id")]
    id: JobId,
    #[serde(default = "any_type")]
    job_type: TypeName,
    #[serde(default)]
    priority: i32,
    #[serde(default = "one")]
    weight: u32,
    #[serde(default)]
    critical: bool,
    #[serde(default)]
    attributes: Attributes,
    #[serde(default)]
    granted_at: Timestamp,
}

fn one() -> u32 {
    1
}

impl Running {
    fn of(grant: &Grant) -> Self {
        Self {
            id: grant.job.clone(),
            job_type: grant.job_type.clone(),
            priority: grant.priority,
            weight: grant.weight,
            critical: grant.critical,
            attributes: grant.attributes.clone(),
            granted_at: grant.granted_at,
        }
    }

    fn grant(self) -> Grant {
        let Self { id, job_type, priority, weight, critical, attributes, granted_at } = self;
        Grant {
            job: id,
            version: Version(1),
            job_type,
            priority,
            weight,
            critical,
            attributes,
            granted_at,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct JobWritten {
    id: JobId,
    #[serde(default = "any_type")]
    job_type: TypeName,
    #[serde(default)]
    priority: i32,
    #[serde(default = "one")]
    weight: u32,
    #[serde(default)]
    attributes: Attributes,
    #[serde(default = "first")]
    attempt: u16,
    #[serde(default = "many")]
    attempts: u16,
    #[serde(default)]
    created_at: Timestamp,
    #[serde(default)]
    run_at: Timestamp,
    #[serde(default)]
    expires_at: Option<Timestamp>,
    #[serde(default)]
    deadline_at: Option<Timestamp>,
}

fn many() -> u16 {
    10
}

impl JobWritten {
    fn of(job: &Job, attempt: u16) -> Self {
        Self {
            id: job.id.clone(),
            job_type: job.spec.job_type.clone(),
            priority: job.spec.priority,
            weight: job.spec.weight,
            attributes: job.spec.attributes.clone(),
            attempt,
            attempts: job.spec.max_attempts,
            created_at: job.spec.created_at,
            run_at: lower::run_at(job),
            expires_at: job.spec.expires_at,
            deadline_at: job.spec.deadline_at,
        }
    }

    /// The job, after `begun` attempts.
    fn job(self, queue: &QueueName, begun: u16) -> Job {
        let options = JobOptions {
            priority: Some(self.priority),
            weight: Some(self.weight),
            max_attempts: Some(self.attempts),
            attributes: self.attributes,
            ..JobOptions::default()
        };
        let spec = Spec {
            queue: queue.clone(),
            expires_at: self.expires_at,
            deadline_at: self.deadline_at,
            ..options.resolve(&self.job_type, &TypeConfig::default(), self.created_at)
        };
        let life = Lifecycle { attempt: begun, ..Lifecycle::new(self.run_at, Waiting::Due) };
        Job { id: self.id, spec: Arc::new(spec), data: Body::Inline(Payload::null()), life }
    }
}

impl ThrottleWritten {
    fn of(call: &ThrottleCall) -> Self {
        let ended = |ended: &policy::Ended| {
            let policy::Ended { id, job_type, attributes, attempt, succeeded, reason, status } =
                ended.clone();
            Ended { id, job_type, attributes, attempt, succeeded, reason, status }
        };
        Self {
            context: Context {
                queue: call.queue.clone(),
                now: call.now,
                seed: call.seed,
                config: raw(&call.config),
            },
            round: Round {
                concurrency: call.concurrency,
                room: call.room,
                ended: call.ended.iter().map(ended).collect(),
            },
            running: call.running.iter().map(Running::of).collect(),
            candidates: call
                .candidates
                .iter()
                .map(|job| JobWritten::of(job, job.life.attempt.saturating_add(1)))
                .collect(),
            state: PolicyState::clone(&call.state),
            data: call.data.iter().map(|(id, data)| (id.clone(), raw(data))).collect(),
            data_left_out: BTreeMap::new(),
        }
    }

    fn call(self) -> ThrottleCall {
        let ended = |ended: Ended| {
            let Ended { id, job_type, attributes, attempt, succeeded, reason, status } = ended;
            policy::Ended { id, job_type, attributes, attempt, succeeded, reason, status }
        };
        let queue = self.context.queue;
        ThrottleCall {
            now: self.context.now,
            seed: self.context.seed,
            config: self.context.config.get().into(),
            concurrency: self.round.concurrency,
            room: self.round.room,
            running: RunningSet {
                batches: Vec::new(),
                admitted: Arc::new(self.running.into_iter().map(Running::grant).collect()),
            },
            candidates: self
                .candidates
                .into_iter()
                .map(|written| (written.attempt, written))
                .map(|(attempt, written)| written.job(&queue, attempt.saturating_sub(1)))
                .collect(),
            ended: Arc::new(self.round.ended.into_iter().map(ended).collect()),
            state: Arc::new(self.state),
            data: self.data.into_iter().map(|(id, data)| (id, data.get().to_owned())).collect(),
            queue,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RetryWritten {
    #[serde(default)]
    context: Context,
    failed: FailedJob,
    #[serde(default)]
    data: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data_left_out: Option<usize>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct FailedJob {
    job: JobWritten,
    last: FailureWritten,
    #[serde(default)]
    earlier: Vec<FailureWritten>,
    #[serde(default)]
    not_before: Option<Timestamp>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct FailureWritten {
    #[serde(default = "first")]
    attempt: u16,
    #[serde(default = "failed")]
    reason: Reason,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    status: Option<u16>,
    #[serde(default)]
    details: Option<Box<RawValue>>,
    #[serde(default)]
    started_at: Timestamp,
    #[serde(default)]
    ended_at: Timestamp,
}

fn failed() -> Reason {
    Reason::Failed
}

impl FailureWritten {
    fn of(entry: &AttemptRecord) -> Self {
        let error = entry.error.as_ref();
        Self {
            attempt: entry.attempt,
            reason: error.map_or(Reason::Failed, |error| error.reason),
            message: error.and_then(|error| error.message.clone()),
            status: error.and_then(|error| error.status),
            details: error.and_then(|error| error.details.as_deref()).map(raw),
            started_at: entry.started_at,
            ended_at: entry.ended_at,
        }
    }

    fn entry(self) -> AttemptRecord {
        let details = self.details.map(|details| details.get().to_owned());
        AttemptRecord {
            attempt: self.attempt,
            started_at: self.started_at,
            ended_at: self.ended_at,
            outcome: Outcome::Failed,
            error: Some(Failure {
                reason: self.reason,
                message: self.message,
                details,
                status: self.status,
            }),
            retry_at: None,
            token: Token(0),
            reply: None,
        }
    }
}

impl RetryWritten {
    fn of(call: &RetryCall) -> Self {
        let none = [];
        let (last, earlier) = call
            .job
            .life
            .history
            .split_last()
            .map_or((None, &none[..]), |(last, earlier)| (Some(last), earlier));
        let attempt = last.map_or(call.job.life.attempt, |last| last.attempt);
        let nothing = FailureWritten {
            attempt,
            reason: Reason::Failed,
            message: None,
            status: None,
            details: None,
            started_at: call.now,
            ended_at: call.now,
        };
        Self {
            context: Context {
                queue: call.queue.clone(),
                now: call.now,
                seed: call.seed,
                config: raw(&call.config),
            },
            failed: FailedJob {
                job: JobWritten::of(&call.job, attempt),
                last: last.map_or(nothing, FailureWritten::of),
                earlier: lower::earlier(earlier).iter().map(FailureWritten::of).collect(),
                not_before: call.not_before,
            },
            data: call.data.as_deref().map(raw),
            data_left_out: None,
        }
    }

    fn call(self) -> Result<RetryCall, serde_json::Error> {
        let FailedJob { job, last, earlier, not_before } = self.failed;
        if job.attempt != last.attempt {
            return Err(serde::de::Error::custom(
                "the attempt of the job must be that of its last failure",
            ));
        }
        let (queue, attempt) = (self.context.queue, job.attempt);
        let mut job = job.job(&queue, attempt);
        job.life.history = earlier.into_iter().chain([last]).map(FailureWritten::entry).collect();
        Ok(RetryCall {
            now: self.context.now,
            seed: self.context.seed,
            config: self.context.config.get().into(),
            job,
            data: self.data.map(|data| data.get().to_owned()),
            not_before,
            queue,
        })
    }
}
