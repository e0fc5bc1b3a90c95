//! What a plugin answers, in the words of the port, which knows what may be answered.

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
        Action, Decision, Fault, Problem, RetryAnswer, RetryCall, ThrottleAnswer, ThrottleCall,
    },
    time::Timestamp,
};

/// An instant that a plugin named. What is beyond any calendar stays so.
fn instant(at: u64) -> Timestamp {
    Timestamp::from_millis(i64::try_from(at).unwrap_or(i64::MAX))
}

/// What a throttler said of the candidates of `call`.
pub(super) fn throttle(call: &ThrottleCall, answer: Answer) -> Result<ThrottleAnswer, Fault> {
    let decide = |said: throttle::Decision| {
        let action = match said.action {
            throttle::Action::Run => Action::Run,
            throttle::Action::Hold(until) => Action::Hold(until.map(instant)),
            throttle::Action::Reschedule(at) => Action::Reschedule(instant(at)),
            throttle::Action::Drop => Action::Drop,
        };
        Decision { action, reason: said.reason }
    };
    let decisions = answer.decisions.into_iter().map(decide).collect();
    ThrottleAnswer { decisions, more: answer.more, state: None }.validated(call)
}

/// What a retry strategy said of the failure of `call`.
pub(super) fn retry(call: &RetryCall, verdict: Verdict) -> Result<RetryAnswer, Fault> {
    let answer = match verdict {
        Verdict::Retry(Plan { at, data, priority }) => {
            RetryAnswer::Retry { at: instant(at), data, priority }
        }
        Verdict::GiveUp(message) => RetryAnswer::GiveUp(message),
    };
    answer.sound(call)
}

/// What a plugin found wrong with a configuration.
pub(super) fn problems(said: Vec<types::Problem>) -> Vec<Problem> {
    let problem = |said: types::Problem| Problem {
        path: cut(said.path, 256),
        message: cut(said.message, bounds::MESSAGE_BYTES),
    };
    said.into_iter().take(bounds::PROBLEMS).map(problem).collect()
}
