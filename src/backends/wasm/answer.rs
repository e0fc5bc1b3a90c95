//! Answers of plugins as answers of the port, which validates them.

use super::{
    bounds::{self, cut},
    contract::{
        retry::exports::tidegate::plugin::retry::{Plan, Verdict},
        throttler::exports::tidegate::plugin::throttle::{self, Answer},
        throttler::tidegate::plugin::types,
    },
};
use tidegate_core::{
    port::policy::{
        Action, Decision, Fault, Problem, RetryAnswer, RetryCall, RetryPlan, ThrottleAnswer,
        ThrottleCall,
    },
    time::{Seconds, Timestamp},
};

/// An instant in an answer. One beyond the range of timestamps becomes the latest one.
pub(super) fn instant(at: u64) -> Timestamp {
    Timestamp::from_millis(i64::try_from(at).unwrap_or(i64::MAX))
}

/// The answer of a throttler about the candidates of `call`.
pub(super) fn throttle(call: &ThrottleCall, answer: Answer) -> Result<ThrottleAnswer, Fault> {
    let decide = |decision: throttle::Decision| {
        let action = match decision.action {
            throttle::Action::Run => Action::Run,
            throttle::Action::Hold(until) => Action::Hold(until.map(instant)),
            throttle::Action::Reschedule(at) => Action::Reschedule(instant(at)),
            throttle::Action::Drop => Action::Drop,
        };
        Decision { action, reason: decision.reason }
    };
    let decisions = answer.decisions.into_iter().map(decide).collect();
    ThrottleAnswer { decisions, more: answer.more, state: None }.validated(call)
}

/// The answer of a retry strategy about the failure of `call`.
pub(super) fn retry(call: &RetryCall, verdict: Verdict) -> Result<RetryAnswer, Fault> {
    let answer = match verdict {
        Verdict::Retry(plan) => {
            let Plan { at, data, priority, weight, attempts_left, timeout, target } = plan;
            let timeout = timeout.map(Seconds::from_millis);
            let at = instant(at);
            RetryAnswer::Retry(RetryPlan {
                at,
                data,
                priority,
                weight,
                attempts_left,
                timeout,
                target,
            })
        }
        Verdict::GiveUp(message) => RetryAnswer::GiveUp(message),
    };
    answer.validated(call)
}

/// The problems that a plugin found in a configuration.
pub(super) fn problems(found: Vec<types::Problem>) -> Vec<Problem> {
    let problem = |found: types::Problem| Problem {
        path: cut(found.path, 256),
        message: cut(found.message, bounds::MESSAGE_BYTES),
    };
    found.into_iter().take(bounds::PROBLEMS).map(problem).collect()
}
