//! The call of a retry strategy, and its answer.

use std::sync::Arc;

use super::{
    MESSAGE_BYTES, PolicyState, cut,
    fault::{Fault, check_ahead, invalid, shown},
};
use crate::{
    job::{Job, Payload, QueueName, payload::MAX_DEPTH},
    time::{Seconds, Timestamp},
    validate::check_timeout,
};

/// Everything that a retry strategy's decision depends on.
#[derive(Clone, Debug)]
pub struct RetryCall {
    /// The job's queue.
    pub queue: QueueName,
    /// The time of the decision.
    pub now: Timestamp,
    /// A seed for random numbers.
    pub seed: u64,
    /// The plugin's configuration as JSON text.
    pub config: Arc<str>,
    /// The job; the last entry of its history is the failure to decide on.
    pub job: Job,
    /// The job's data as JSON text, if the plugin declares that it needs it.
    pub data: Option<String>,
    /// The earliest next attempt that its worker or target requested.
    pub not_before: Option<Timestamp>,
    /// The host of the job's target, if its type has one.
    pub host: Option<String>,
    /// The strategy's state in the queue; empty for a strategy without state.
    pub state: Arc<PolicyState>,
}

/// The answer of a retry strategy, and the state that its call leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryOutput {
    /// The answer.
    pub answer: RetryAnswer,
    /// The new state, if it changed. It is committed together with the decision.
    pub state: Option<PolicyState>,
}

impl From<RetryAnswer> for RetryOutput {
    fn from(answer: RetryAnswer) -> Self {
        Self { answer, state: None }
    }
}

impl RetryOutput {
    /// The output, if its answer is valid for `call`.
    ///
    /// # Errors
    ///
    /// As [`RetryAnswer::validated`].
    pub fn validated(self, call: &RetryCall) -> Result<Self, Fault> {
        Ok(Self { answer: self.answer.validated(call)?, ..self })
    }
}

/// The answer of a retry strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetryAnswer {
    /// Another attempt.
    Retry(RetryPlan),
    /// No more attempts, with a message for people.
    GiveUp(Option<String>),
}

/// When the next attempt is due, and what it changes in the job. Nothing keeps what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPlan {
    /// When it is due, within 366 days of the call. The engine waits 50 ms at least.
    pub at: Timestamp,
    /// JSON text that replaces the job's data.
    pub data: Option<String>,
    /// Replaces the job's priority.
    pub priority: Option<i32>,
    /// Replaces the job's weight.
    pub weight: Option<u32>,
    /// How many attempts the job still has, including the next one: at least 1.
    pub attempts_left: Option<u32>,
    /// Replaces the timeout of the job's attempts.
    pub timeout: Option<Seconds>,
    /// The name of the next attempt's target in `retry_targets` of the job's type; empty for the
    /// type's own target.
    pub target: Option<String>,
}

impl RetryPlan {
    /// An attempt at `at`, of the job as it is.
    pub fn new(at: Timestamp) -> Self {
        Self {
            at,
            data: None,
            priority: None,
            weight: None,
            attempts_left: None,
            timeout: None,
            target: None,
        }
    }

    /// Whether it changes the job.
    pub fn changes_job(&self) -> bool {
        *self != Self::new(self.at)
    }

    /// What it changes, for people: `priority 3, data {"a":1}`, with at most `most` bytes of data.
    /// Empty if it changes nothing.
    pub fn changes(&self, most: usize) -> String {
        let Self { at: _, data, priority, weight, attempts_left, timeout, target } = self;
        let said = [
            priority.map(|priority| format!("priority {priority}")),
            weight.map(|weight| format!("weight {weight}")),
            attempts_left.map(|left| format!("attempts left {left}")),
            timeout.map(|timeout| format!("timeout {} s", timeout.as_f64())),
            target.as_ref().map(|target| format!("target {}", cut(target.clone(), most))),
            data.clone().map(|data| format!("data {}", cut(data, most))),
        ];
        said.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl RetryAnswer {
    /// The answer, if it is valid for `call`, with its message cut at [`MESSAGE_BYTES`].
    ///
    /// # Errors
    ///
    /// [`FaultKind::InvalidAnswer`](super::FaultKind::InvalidAnswer) with what is invalid, and what
    /// is valid.
    pub fn validated(self, call: &RetryCall) -> Result<Self, Fault> {
        Ok(match self {
            Self::GiveUp(message) => {
                Self::GiveUp(message.map(|message| cut(message, MESSAGE_BYTES)))
            }
            Self::Retry(plan) => {
                let at = plan.at;
                check_ahead(at, call.now, || format!("plans the next attempt for {}", shown(at)))?;
                let data = plan.data.as_ref();
                if let Some(Err(error)) =
                    data.map(|data| Payload::json(data.clone()).check(MAX_DEPTH))
                {
                    return invalid(format!(
                        "replaces the data by text that is not JSON of at most {MAX_DEPTH} levels: \
                         {error}"
                    ));
                }
                if plan.attempts_left == Some(0) {
                    return invalid("retries with 0 attempts left; at least 1".into());
                }
                if let Some(Err(error)) = plan.timeout.map(check_timeout) {
                    return invalid(format!("the timeout of its plan {}", error.message));
                }
                Self::Retry(plan)
            }
        })
    }
}
