//! Calls of a retry strategy.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::job::{Context, JobJson, first, raw};
use crate::wasm::lower;
use tidegate_core::{
    job::{
        Outcome, Token,
        lifecycle::{AttemptRecord, Failure, Reason},
    },
    port::policy::RetryCall,
    stored::UnknownFields,
    time::Timestamp,
};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RetryJson {
    #[serde(default)]
    context: Context,
    failed: FailedJob,
    #[serde(default)]
    pub data: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_left_out: Option<usize>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct FailedJob {
    job: JobJson,
    last: FailureJson,
    #[serde(default)]
    earlier: Vec<FailureJson>,
    #[serde(default)]
    not_before: Option<Timestamp>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct FailureJson {
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

impl FailureJson {
    fn of((attempt, entry): (u16, &AttemptRecord)) -> Self {
        let error = entry.error.as_ref();
        Self {
            attempt,
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
                retry_after: None,
                unknown: UnknownFields::default(),
            }),
            retry_at: None,
            token: Token::new(0),
            reply: None,
            hand_back: None,
            worker: None,
            unknown: UnknownFields::default(),
        }
    }
}

impl RetryJson {
    pub(super) fn of(call: &RetryCall) -> Self {
        let mut earlier = lower::failures(&call.job.life);
        let last = earlier.pop();
        let attempt = last.map_or_else(|| call.job.life.counted_attempts(), |(attempt, _)| attempt);
        let nothing = FailureJson {
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
                job: JobJson::of(&call.job, attempt),
                last: last.map_or(nothing, FailureJson::of),
                earlier: earlier.into_iter().map(FailureJson::of).collect(),
                not_before: call.not_before,
            },
            data: call.data.as_deref().map(raw),
            data_left_out: None,
        }
    }

    pub(super) fn call(self) -> Result<RetryCall, serde_json::Error> {
        let FailedJob { job, last, earlier, not_before } = self.failed;
        if job.attempt != last.attempt {
            return Err(serde::de::Error::custom(
                "the attempt of the job must be that of its last failure",
            ));
        }
        let (queue, attempt) = (self.context.queue, job.attempt);
        let mut job = job.job(&queue, attempt);
        job.life.history = earlier.into_iter().chain([last]).map(FailureJson::entry).collect();
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
