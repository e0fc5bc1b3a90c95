//! The expected answer of a case, and its comparison with a plugin's answer.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::{Case, Instant, many};
use tidegate_core::{
    port::policy::{
        Action, Answer, Call, Decision, Fault, PolicyState, Problem, RetryAnswer, RetryPlan,
        StateValue, ThrottleAnswer,
    },
    time::{Seconds, Timestamp},
};

/// The expected outcome of a call. An absent field is not compared. The configuration must be
/// valid, unless `problems` lists its problems.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    decisions: Option<Vec<ExpectDecision>>,
    /// The number of candidates that run.
    runs: Option<usize>,
    more: Option<bool>,
    /// The whole state after the call. A value other than a string is compared as JSON.
    state: Option<BTreeMap<String, Value>>,
    /// When keys of the state after the call expire; the others do not.
    state_expires: Option<BTreeMap<String, Instant>>,
    problems: Vec<ExpectProblem>,
    /// The start of the call's error message.
    error: Option<String>,
    retry: Option<ExpectRetry>,
    /// The start of the message; null accepts any message and none.
    #[serde(deserialize_with = "present")]
    #[expect(clippy::option_option, reason = "absent differs from null")]
    give_up: Option<Option<String>>,
}

/// An expected decision. Absent times and reasons are not compared.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectDecision {
    action: String,
    /// The end of a hold.
    until: Option<Instant>,
    /// The new due time of a rescheduled job.
    at: Option<Instant>,
    /// The start of the reason.
    reason: Option<String>,
    times: Option<u32>,
}

/// An expected problem of the configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectProblem {
    path: String,
    /// The start of its message.
    #[serde(default)]
    message: String,
}

/// An expected retry. An absent time is not compared; what else is absent must not change.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectRetry {
    at: Option<Instant>,
    after_seconds: Option<f64>,
    data: Option<Value>,
    priority: Option<i32>,
    weight: Option<u32>,
    attempts_left: Option<u32>,
    timeout_seconds: Option<Seconds>,
    target: Option<String>,
}

/// Distinguishes `null` from an absent field.
#[expect(clippy::option_option, reason = "absent differs from null")]
fn present<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl Expect {
    /// Whether nothing is compared, as in a recorded call whose inputs were not all kept.
    pub fn is_empty(&self) -> bool {
        let Self { decisions, runs, more, state, state_expires, problems, error, retry, give_up } =
            self;
        decisions.is_none()
            && runs.is_none()
            && more.is_none()
            && state.is_none()
            && state_expires.is_none()
            && problems.is_empty()
            && error.is_none()
            && retry.is_none()
            && give_up.is_none()
    }

    /// Whether the call must be made. False if the case expects problems of the configuration
    /// alone.
    pub fn decides(&self) -> bool {
        self.problems.is_empty() || self.error.is_some()
    }

    /// Returns the differences between the expected problems of the configuration and those
    /// `found`.
    pub fn problems(&self, found: &[Problem]) -> Vec<String> {
        let missing = self.problems.iter().filter(|expected| {
            !found.iter().any(|problem| {
                problem.path == expected.path && problem.message.starts_with(&expected.message)
            })
        });
        let place =
            |path: &str| if path.is_empty() { String::new() } else { format!(" at {path:?}") };
        let missing = missing
            .map(|expected| format!("no problem{} {:?}", place(&expected.path), expected.message));
        let unexpected = found
            .iter()
            .filter(|problem| !self.problems.iter().any(|expected| problem.path == expected.path));
        missing
            .chain(unexpected.map(|problem| {
                format!("the configuration{}: {}", place(&problem.path), problem.message)
            }))
            .collect()
    }

    /// Returns the differences between the expected outcome of `call` and its answer or fault.
    pub fn of(&self, case: &Case, call: &Call, answer: &Result<Answer, Fault>) -> Vec<String> {
        match (answer, &self.error) {
            (Err(fault), Some(expected)) if fault.message.starts_with(expected.as_str()) => {
                Vec::new()
            }
            (Err(fault), Some(expected)) => {
                vec![format!("it failed ({}): {fault}; expected {expected:?}", fault.kind.as_str())]
            }
            (Err(fault), None) => vec![format!("it failed ({}): {fault}", fault.kind.as_str())],
            (Ok(_), Some(expected)) => vec![format!("it did not fail; expected {expected:?}")],
            (Ok(Answer::Throttle(answer)), None) => {
                let before = state_before(call);
                self.decided(case, answer)
                    .into_iter()
                    .chain(self.kept(answer.state.as_ref().unwrap_or(&before)))
                    .collect()
            }
            (Ok(Answer::Retry(output)), None) => {
                let before = state_before(call);
                self.follows(&output.answer, case.now())
                    .into_iter()
                    .chain(self.kept(output.state.as_ref().unwrap_or(&before)))
                    .collect()
            }
        }
    }

    /// Returns the differences between the expected and the actual decisions.
    fn decided(&self, case: &Case, answer: &ThrottleAnswer) -> Vec<String> {
        let mut wrong = Vec::new();
        let runs =
            answer.decisions.iter().filter(|decision| decision.action == Action::Run).count();
        if let Some(expected) = self.runs.filter(|expected| *expected != runs) {
            wrong.push(format!(
                "{runs} of {} candidates run; expected {expected}",
                case.candidates()
            ));
        }
        if self.more.is_some_and(|expected| expected != answer.more) {
            wrong.push(format!("more is {}; expected {}", answer.more, !answer.more));
        }
        if let Some(expected) = &self.decisions {
            let expected: Vec<&ExpectDecision> =
                many(expected, |decision| decision.times).map(|(decision, _)| decision).collect();
            if expected.len() != answer.decisions.len() {
                wrong.push(format!(
                    "{} decisions; expected {}",
                    answer.decisions.len(),
                    expected.len()
                ));
            }
            let pairs = (1..).zip(answer.decisions.iter().zip(expected));
            wrong.extend(pairs.filter(|(_, (decision, expected))| !expected.fits(decision)).map(
                |(place, (decision, expected))| {
                    format!(
                        "decision {place} is {}; expected {}",
                        shown(decision),
                        expected.shown()
                    )
                },
            ));
        }
        wrong
    }

    /// Returns the difference between the expected state and `state`, if any.
    fn kept(&self, state: &PolicyState) -> Option<String> {
        let kept: BTreeMap<&String, &StateValue> = state.iter().collect();
        if let Some(expected) = &self.state_expires {
            let expiries = kept.iter().filter_map(|(key, value)| Some((*key, value.expires_at?)));
            let expiries: BTreeMap<&String, Timestamp> = expiries.collect();
            if !expiries
                .iter()
                .map(|(key, at)| (*key, *at))
                .eq(expected.iter().map(|(k, at)| (k, at.0)))
            {
                let (kept, expected) = (json(&expiries), json(expected));
                return Some(format!("its keys expire at {kept}; expected {expected}"));
            }
        }
        let expected = self.state.as_ref()?;
        let same = |key: &String, expected: &Value| {
            kept.get(key).is_some_and(|kept| match expected {
                Value::String(text) => *text == kept.text,
                other => serde_json::from_str::<Value>(&kept.text).is_ok_and(|kept| kept == *other),
            })
        };
        let all =
            expected.len() == kept.len() && expected.iter().all(|(key, value)| same(key, value));
        let texts: BTreeMap<_, _> = kept.iter().map(|(key, value)| (key, &value.text)).collect();
        (!all).then(|| format!("the state is {}; expected {}", json(&texts), json(expected)))
    }

    /// Returns the difference between the expected and the actual answer of a retry strategy, if
    /// any.
    fn follows(&self, answer: &RetryAnswer, now: Timestamp) -> Option<String> {
        let right = match (answer, &self.retry, &self.give_up) {
            (RetryAnswer::Retry(plan), Some(expected), None) => expected.fits(plan, now),
            (RetryAnswer::GiveUp(message), None, Some(expected)) => {
                expected.as_ref().is_none_or(|start| {
                    message.as_ref().is_some_and(|message| message.starts_with(start))
                })
            }
            (_, None, None) => true,
            _ => false,
        };
        let expected = match (&self.retry, &self.give_up) {
            (Some(retry), _) => retry.shown(),
            (_, Some(Some(start))) => format!("that it gives up with {start:?}"),
            _ => "that it gives up".to_owned(),
        };
        (!right).then(|| match answer {
            RetryAnswer::Retry(plan) => {
                let changes = if plan.changes_job() {
                    format!(", {}", plan.changes(usize::MAX))
                } else {
                    String::new()
                };
                format!(
                    "it retries at {}, {} s from now{changes}; expected {expected}",
                    plan.at,
                    plan.at.since(now).as_secs_f64()
                )
            }
            RetryAnswer::GiveUp(message) => format!(
                "it gives up ({}); expected {expected}",
                message.as_deref().unwrap_or("no message")
            ),
        })
    }
}

/// Returns the state of a call, without what has expired.
fn state_before(call: &Call) -> PolicyState {
    let (state, now) = match call {
        Call::Throttle(call) => (&call.state, call.now),
        Call::Retry(call) => (&call.state, call.now),
    };
    let mut state = PolicyState::clone(state);
    state.remove_expired(now);
    state
}

impl ExpectDecision {
    fn fits(&self, decision: &Decision) -> bool {
        let (action, until, at) = match decision.action {
            Action::Run => ("run", None, None),
            Action::Hold(until) => ("hold", until, None),
            Action::Reschedule(at) => ("reschedule", None, Some(at)),
            Action::Drop => ("drop", None, None),
        };
        self.action == action
            && self.until.is_none_or(|expected| until == Some(expected.0))
            && self.at.is_none_or(|expected| at == Some(expected.0))
            && self.reason.as_ref().is_none_or(|start| {
                decision.reason.as_ref().is_some_and(|reason| reason.starts_with(start))
            })
    }

    fn shown(&self) -> String {
        let at = self
            .until
            .map(|at| format!(" until {}", at.0))
            .or_else(|| self.at.map(|at| format!(" to {}", at.0)));
        let reason = self.reason.as_ref().map(|reason| format!(" ({reason}...)"));
        format!("{}{}{}", self.action, at.unwrap_or_default(), reason.unwrap_or_default())
    }
}

/// Returns a decision in words.
fn shown(decision: &Decision) -> String {
    let action = match decision.action {
        Action::Run => "run".to_owned(),
        Action::Hold(None) => "hold".to_owned(),
        Action::Hold(Some(until)) => format!("hold until {until}"),
        Action::Reschedule(at) => format!("reschedule to {at}"),
        Action::Drop => "drop".to_owned(),
    };
    decision.reason.as_ref().map_or_else(|| action.clone(), |reason| format!("{action} ({reason})"))
}

impl ExpectRetry {
    fn fits(&self, plan: &RetryPlan, now: Timestamp) -> bool {
        let RetryPlan { at, data, priority, weight, attempts_left, timeout, target } = plan;
        let data =
            data.as_ref().map(|data| serde_json::from_str::<Value>(data).unwrap_or(Value::Null));
        self.at.is_none_or(|expected| expected.0 == *at)
            && self.after_seconds.is_none_or(|seconds| {
                now.millis() + (seconds * 1000.0).round() as i64 == at.millis()
            })
            && data == self.data
            && *priority == self.priority
            && *weight == self.weight
            && *attempts_left == self.attempts_left
            && *timeout == self.timeout_seconds
            && *target == self.target
    }

    fn shown(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.at.map(|at| format!("at {}", at.0)));
        parts.extend(self.after_seconds.map(|seconds| format!("after {seconds} s")));
        parts.push(
            self.data
                .as_ref()
                .map_or_else(|| "the same data".to_owned(), |data| format!("data {data}")),
        );
        parts.extend(self.priority.map(|priority| format!("priority {priority}")));
        parts.extend(self.weight.map(|weight| format!("weight {weight}")));
        parts.extend(self.attempts_left.map(|left| format!("attempts left {left}")));
        let timeout = self.timeout_seconds;
        parts.extend(timeout.map(|timeout| format!("timeout {} s", timeout.as_f64())));
        parts.extend(self.target.as_ref().map(|target| format!("target {target}")));
        format!("a retry {}", parts.join(", "))
    }
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests;
