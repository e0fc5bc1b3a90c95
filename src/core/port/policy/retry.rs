//! The call of a retry strategy, and its answer.

use std::sync::Arc;

use super::{
    MESSAGE_BYTES, cut,
    fault::{Fault, check_ahead, invalid, shown},
};
use crate::{
    job::{Job, Payload, QueueName, payload::MAX_DEPTH},
    time::Timestamp,
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
    /// The earliest next attempt that its target requested.
    pub not_before: Option<Timestamp>,
}

/// The answer of a retry strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetryAnswer {
    /// Another attempt.
    Retry {
        /// When it is due, within 366 days of the call; in the past means now.
        at: Timestamp,
        /// JSON text that replaces the job's data.
        data: Option<String>,
        /// Replaces the job's priority.
        priority: Option<i32>,
    },
    /// No more attempts, with a message for people.
    GiveUp(Option<String>),
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
            Self::Retry { at, data, priority } => {
                check_ahead(at, call.now, || format!("plans the next attempt for {}", shown(at)))?;
                if let Some(Err(error)) =
                    data.as_ref().map(|data| Payload::json(data.clone()).check(MAX_DEPTH))
                {
                    return invalid(format!(
                        "replaces the data by text that is not JSON of at most {MAX_DEPTH} levels: \
                         {error}"
                    ));
                }
                Self::Retry { at, data, priority }
            }
        })
    }
}
