//! What a plugin answers, held against what it may answer.
//!
//! A fault here is a sentence for the plugin's author: it names the decision, what was said, and what may be said.

use super::{
    bounds::{self, cut},
    contract::{
        retry::exports::tidegate::plugin::retry::{Plan, Verdict},
        throttler::exports::tidegate::plugin::throttle::{self, Answer},
        throttler::tidegate::plugin::types,
    },
    lower::millis,
};
use crate::{
    job::{Payload, payload::MAX_DEPTH},
    port::policy::{Action, Decision, Fault, FaultKind, Problem, RetryAnswer, RetryCall, ThrottleAnswer, ThrottleCall},
    time::Timestamp,
};

fn invalid(message: String) -> Fault {
    Fault { kind: FaultKind::InvalidAnswer, message }
}

/// An instant as people read it; what no calendar has is shown as it is.
fn shown(at: u64) -> String {
    match i64::try_from(at) {
        Ok(at) if at <= Timestamp::MAX.millis() => Timestamp::from_millis(at).to_string(),
        _ => format!("{at} ms after 1970"),
    }
}

/// The instant that a plugin named, if it is after `now` and not too far ahead. `what` names who said it.
fn ahead(at: u64, now: Timestamp, what: impl FnOnce() -> String) -> Result<Timestamp, Fault> {
    if at <= millis(now) {
        return Err(invalid(format!("{} {}, which is not after the time of the call, {now}", what(), shown(at))));
    }
    soon_enough(at, now, what)
}

/// The instant that a plugin named, if it is not too far ahead.
fn soon_enough(at: u64, now: Timestamp, what: impl FnOnce() -> String) -> Result<Timestamp, Fault> {
    if at > millis(now + bounds::AHEAD) {
        return Err(invalid(format!("{} {}, which is more than 366 days after the time of the call, {now}", what(), shown(at))));
    }
    Ok(Timestamp::from_millis(i64::try_from(at).unwrap_or(i64::MAX)))
}

/// What a throttler said of the candidates of `call`.
pub(super) fn throttle(call: &ThrottleCall, answer: Answer) -> Result<ThrottleAnswer, Fault> {
    let (offered, decided) = (call.candidates.len(), answer.decisions.len());
    if offered != decided {
        return Err(invalid(format!("answered {decided} decisions for {offered} candidates: there must be one for each, in their order")));
    }
    let decide = |(index, said): (usize, throttle::Decision)| {
        let which = |does: &str| format!("decision {} (job {}) {does}", index + 1, call.candidates[index].id);
        let action = match said.action {
            throttle::Action::Run => Action::Run,
            throttle::Action::Hold(None) => Action::Hold(None),
            throttle::Action::Hold(Some(at)) => Action::Hold(Some(ahead(at, call.now, || which("holds until"))?)),
            throttle::Action::Reschedule(at) => Action::Reschedule(ahead(at, call.now, || which("reschedules to"))?),
            throttle::Action::Drop => Action::Drop,
        };
        Ok(Decision { action, reason: said.reason.map(|reason| cut(reason, bounds::REASON_BYTES)) })
    };
    let decisions = answer.decisions.into_iter().enumerate().map(decide).collect::<Result<_, _>>()?;
    Ok(ThrottleAnswer { decisions, more: answer.more, state: None })
}

/// What a retry strategy said of the failure of `call`.
pub(super) fn retry(call: &RetryCall, verdict: Verdict) -> Result<RetryAnswer, Fault> {
    let Plan { at, data, priority } = match verdict {
        Verdict::Retry(plan) => plan,
        Verdict::GiveUp(message) => return Ok(RetryAnswer::GiveUp(message.map(|message| cut(message, bounds::MESSAGE_BYTES)))),
    };
    let at = soon_enough(at, call.now, || "plans the next attempt for".into())?;
    if let Some(data) = &data {
        let wrong = |error| invalid(format!("replaces the data by what is no JSON text of at most {MAX_DEPTH} levels: {error}"));
        Payload::json(data.clone()).check(MAX_DEPTH).map_err(wrong)?;
    }
    Ok(RetryAnswer::Retry { at, data, priority })
}

/// What a plugin found wrong with a configuration.
pub(super) fn problems(said: Vec<types::Problem>) -> Vec<Problem> {
    let problem = |said: types::Problem| Problem { path: cut(said.path, 256), message: cut(said.message, bounds::MESSAGE_BYTES) };
    said.into_iter().take(bounds::PROBLEMS).map(problem).collect()
}
