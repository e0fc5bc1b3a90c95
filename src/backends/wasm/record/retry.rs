//! Calls of a retry strategy.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    failure::FailureJson,
    job::{Context, JobJson, raw},
};
use crate::wasm::lower;
use tidegate_core::{
    job::lifecycle::Reason,
    port::policy::{RetryCall, StatePage},
};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RetryJson {
    #[serde(default)]
    context: Context,
    failed: JobJson,
    last: FailureJson,
    #[serde(default, skip_serializing_if = "StatePage::is_empty")]
    state: StatePage,
    #[serde(default)]
    pub data: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_left_out: Option<usize>,
    /// How many attempts lack their message and details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub texts_left_out: Option<usize>,
}

impl RetryJson {
    /// Leaves out messages and details beyond `room` bytes, those of the last failure at the end.
    pub(super) fn leave_out_failures(&mut self, mut room: usize) {
        let failures = std::iter::once(&mut self.last).chain(&mut self.failed.earlier);
        let left_out =
            failures.filter_map(|failure| failure.leave_out(&mut room).then_some(())).count();
        self.texts_left_out = Some(left_out).filter(|count| *count > 0);
    }

    pub(super) fn of(call: &RetryCall) -> Self {
        let last = lower::failures(&call.job.life).pop();
        let attempt = last.map_or_else(|| call.job.life.counted_attempts(), |(attempt, _)| attempt);
        let nothing = FailureJson {
            attempt,
            reason: Reason::Failed,
            message: None,
            status: None,
            details: None,
            started_at: call.now,
            ended_at: call.now,
            not_before: None,
        };
        let last = last.map_or(nothing, FailureJson::of);
        let mut failed = JobJson::of(&call.job, attempt, call.host.as_deref());
        // The failure to decide on is the last one of the history.
        failed.earlier = lower::failures(&call.job.life).into_iter().map(FailureJson::of).collect();
        failed.earlier.pop();
        Self {
            context: Context {
                queue: call.queue.clone(),
                now: call.now,
                seed: call.seed,
                config: raw(&call.config),
            },
            failed,
            last: FailureJson { not_before: call.not_before, ..last },
            state: call.state.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
            data: call.data.as_deref().map(raw),
            data_left_out: None,
            texts_left_out: None,
        }
    }

    pub(super) fn call(self) -> Result<RetryCall, serde_json::Error> {
        let Self { context, failed, last, state, data, data_left_out: _, texts_left_out: _ } = self;
        if failed.attempt != last.attempt {
            return Err(serde::de::Error::custom(
                "the attempt of the job must be that of its last failure",
            ));
        }
        let (queue, attempt, not_before) = (context.queue, failed.attempt, last.not_before);
        let host = failed.target_host.clone();
        let mut job = failed.job(&queue, attempt, None);
        job.life.history.push(last.entry());
        Ok(RetryCall {
            now: context.now,
            seed: context.seed,
            config: context.config.get().into(),
            job,
            data: data.map(|data| data.get().to_owned()),
            not_before,
            host,
            state: Arc::new(state.into_iter().collect()),
            queue,
        })
    }
}
