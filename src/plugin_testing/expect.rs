//! Whether a plugin's answer is what a case expects.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::Answer;
use super::{Case, Instant, many};
use tidegate_core::port::policy::Call;
use tidegate_core::{
    port::policy::{Action, Decision, Fault, PolicyState, Problem, RetryAnswer, ThrottleAnswer},
    time::Timestamp,
};

/// What must come of the call. What is absent is not looked at, but that the configuration must be good.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    decisions: Option<Vec<ExpectDecision>>,
    /// How many candidates run.
    runs: Option<usize>,
    more: Option<bool>,
    /// The whole state after the call. A value that is not a text is compared as JSON.
    state: Option<BTreeMap<String, Value>>,
    problems: Vec<ExpectProblem>,
    /// What the call's error begins with.
    error: Option<String>,
    retry: Option<ExpectRetry>,
    /// What the message begins with; null for any, and for none.
    #[serde(deserialize_with = "present")]
    #[expect(clippy::option_option, reason = "absent differs from null")]
    give_up: Option<Option<String>>,
}

/// A decision. Times and reasons that are absent are not compared.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectDecision {
    action: String,
    /// When a hold ends.
    until: Option<Instant>,
    /// For when it is rescheduled.
    at: Option<Instant>,
    /// What the reason begins with.
    reason: Option<String>,
    times: Option<u32>,
}

/// Something wrong with the configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectProblem {
    path: String,
    /// What it begins with.
    #[serde(default)]
    message: String,
}

/// Another attempt. A time that is absent is not compared; data or a priority that is absent must not be changed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectRetry {
    at: Option<Instant>,
    after_seconds: Option<f64>,
    data: Option<Value>,
    priority: Option<i32>,
}

/// Distinguishes `null` from an absent field.
#[expect(clippy::option_option, reason = "absent differs from null")]
fn present<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl Expect {
    /// Whether it is about a decision, and not only about the configuration.
    pub fn decides(&self) -> bool {
        self.problems.is_empty() || self.error.is_some()
    }

    /// What is not as expected of the problems that were found in the configuration.
    pub fn problems(&self, found: &[Problem]) -> Vec<String> {
        let missing = self.problems.iter().filter(|expected| {
            !found.iter().any(|problem| {
                problem.path == expected.path && problem.message.starts_with(&expected.message)
            })
        });
        let missing = missing
            .map(|expected| format!("no problem at {:?} {:?}", expected.path, expected.message));
        let unexpected = found
            .iter()
            .filter(|problem| !self.problems.iter().any(|expected| problem.path == expected.path));
        missing
            .chain(unexpected.map(|problem| {
                format!("the configuration at {:?}: {}", problem.path, problem.message)
            }))
            .collect()
    }

    /// What is not as expected of what came of `call`.
    pub fn of(&self, case: &Case, call: &Call, came: &Result<Answer, Fault>) -> Vec<String> {
        match (came, &self.error) {
            (Err(fault), Some(expected)) if fault.message.starts_with(expected.as_str()) => {
                Vec::new()
            }
            (Err(fault), Some(expected)) => {
                vec![format!("it failed ({}): {fault}; expected {expected:?}", fault.kind.as_str())]
            }
            (Err(fault), None) => vec![format!("it failed ({}): {fault}", fault.kind.as_str())],
            (Ok(_), Some(expected)) => vec![format!("it did not fail; expected {expected:?}")],
            (Ok(Answer::Throttle(answer)), None) => {
                let before = if let Call::Throttle(call) = call {
                    PolicyState::clone(&call.state)
                } else {
                    PolicyState::new()
                };
                self.decided(case, answer)
                    .into_iter()
                    .chain(self.kept(answer.state.as_ref().unwrap_or(&before)))
                    .collect()
            }
            (Ok(Answer::Retry(answer)), None) => {
                self.follows(answer, case.now()).into_iter().collect()
            }
        }
    }

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

    fn kept(&self, state: &PolicyState) -> Option<String> {
        let expected = self.state.as_ref()?;
        let same = |key: &String, expected: &Value| {
            state.get(key).is_some_and(|kept| match expected {
                Value::String(text) => text == kept,
                other => serde_json::from_str::<Value>(kept).is_ok_and(|kept| kept == *other),
            })
        };
        let all =
            expected.len() == state.len() && expected.iter().all(|(key, value)| same(key, value));
        (!all).then(|| format!("the state is {}; expected {}", json(state), json(expected)))
    }

    fn follows(&self, answer: &RetryAnswer, now: Timestamp) -> Option<String> {
        let right = match (answer, &self.retry, &self.give_up) {
            (RetryAnswer::Retry { at, data, priority }, Some(expected), None) => {
                expected.fits(*at, data.as_deref(), *priority, now)
            }
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
            RetryAnswer::Retry { at, data, priority } => {
                let data = data.as_ref().map(|data| format!(", data {data}")).unwrap_or_default();
                let priority =
                    priority.map(|priority| format!(", priority {priority}")).unwrap_or_default();
                format!(
                    "it retries at {at}, {} s from now{data}{priority}; expected {expected}",
                    at.since(now).as_secs_f64()
                )
            }
            RetryAnswer::GiveUp(message) => format!(
                "it gives up ({}); expected {expected}",
                message.as_deref().unwrap_or("no message")
            ),
        })
    }
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

/// A decision in words.
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
    fn fits(
        &self,
        at: Timestamp,
        data: Option<&str>,
        priority: Option<i32>,
        now: Timestamp,
    ) -> bool {
        let data = data.map(|data| serde_json::from_str::<Value>(data).unwrap_or(Value::Null));
        self.at.is_none_or(|expected| expected.0 == at)
            && self.after_seconds.is_none_or(|seconds| {
                now.millis() + (seconds * 1000.0).round() as i64 == at.millis()
            })
            && data == self.data
            && priority == self.priority
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
        format!("a retry {}", parts.join(", "))
    }
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::port::policy::FaultKind;

    /// Returns the differences for a response with two decisions, where the second one holds.
    fn wrong(expect: &str) -> Vec<String> {
        let text = format!(
            r#"{{"name": "a", "role": "throttler", "candidates": [{{}}, {{}}], "state": {{"n": 1}}, "expect": {expect}}}"#
        );
        let case = Case::read(&text).unwrap().pop().unwrap();
        let hold = Decision {
            action: Action::Hold(Some(Timestamp::from_millis(5000))),
            reason: Some("east is full".into()),
        };
        let decisions = vec![Decision { action: Action::Run, reason: None }, hold];
        let answer = ThrottleAnswer { decisions, more: true, state: None };
        case.expect.of(&case, &case.call().unwrap(), &Ok(Answer::Throttle(answer)))
    }

    #[test]
    fn an_answer_as_expected_has_nothing_wrong() {
        for expect in [
            "{}",
            r#"{"runs": 1, "more": true, "state": {"n": 1}}"#,
            r#"{"decisions": [{"action": "run"}, {"action": "hold", "until": 5000, "reason": "east"}]}"#,
        ] {
            assert_eq!(wrong(expect), Vec::<String>::new(), "{expect}");
        }
    }

    #[test]
    fn what_differs_is_told_with_both_sides() {
        for (expect, said) in [
            (r#"{"runs": 2}"#, "1 of 2 candidates run; expected 2"),
            (r#"{"more": false}"#, "more is true; expected false"),
            (r#"{"state": {}}"#, r#"the state is {"n":"1"}; expected {}"#),
            (r#"{"decisions": [{"action": "run"}]}"#, "2 decisions; expected 1"),
            (
                r#"{"decisions": [{"action": "run"}, {"action": "hold", "reason": "west"}]}"#,
                "decision 2 is hold until 1970-01-01T00:00:05.000Z (east is full); expected hold (west...)",
            ),
            (r#"{"error": "no"}"#, "it did not fail; expected \"no\""),
        ] {
            assert_eq!(wrong(expect), [said], "{expect}");
        }
    }

    #[test]
    fn a_fault_is_what_was_expected_or_is_told() {
        let case = |expect: &str| {
            Case::read(&format!(r#"{{"name": "a", "role": "throttler", "expect": {expect}}}"#))
                .unwrap()
                .pop()
                .unwrap()
        };
        let fault = || Err(Fault { kind: FaultKind::Rejected, message: "no region".into() });
        let told = |case: &Case| case.expect.of(case, &case.call().unwrap(), &fault());
        assert!(told(&case(r#"{"error": "no"}"#)).is_empty());
        assert_eq!(told(&case("{}")), ["it failed (rejected): no region"]);
        assert_eq!(
            told(&case(r#"{"error": "yes"}"#)),
            ["it failed (rejected): no region; expected \"yes\""]
        );
    }

    #[test]
    fn a_retry_is_compared_in_time_data_and_priority() {
        let told = |expect: &str, answer: RetryAnswer| {
            let text =
                format!(r#"{{"name": "a", "role": "retry", "now": 1000, "expect": {expect}}}"#);
            let case = Case::read(&text).unwrap().pop().unwrap();
            case.expect.of(&case, &case.call().unwrap(), &Ok(Answer::Retry(answer)))
        };
        let retry = |millis, data: Option<&str>| RetryAnswer::Retry {
            at: Timestamp::from_millis(millis),
            data: data.map(str::to_owned),
            priority: None,
        };
        assert!(told(r#"{"retry": {"after_seconds": 2.5}}"#, retry(3500, None)).is_empty());
        assert!(
            told(r#"{"retry": {"data": {"a": 1}}}"#, retry(3500, Some(r#"{"a":1}"#))).is_empty()
        );
        assert!(told(r#"{"give_up": null}"#, RetryAnswer::GiveUp(None)).is_empty());
        assert_eq!(
            told(r#"{"retry": {"after_seconds": 2}}"#, retry(3500, None)),
            [
                "it retries at 1970-01-01T00:00:03.500Z, 2.5 s from now; expected a retry after 2 s, the same data"
            ]
        );
        assert_eq!(
            told(r#"{"give_up": "why"}"#, RetryAnswer::GiveUp(None)),
            ["it gives up (no message); expected that it gives up with \"why\""]
        );
        assert_eq!(told(r#"{"retry": {}}"#, retry(0, Some("1"))).len(), 1);
    }

    #[test]
    fn problems_are_compared_by_path_and_beginning() {
        let expect: Expect =
            serde_json::from_str(r#"{"problems": [{"path": "/limit", "message": "must"}]}"#)
                .unwrap();
        let found =
            |path: &str, message: &str| [Problem { path: path.into(), message: message.into() }];
        assert!(
            expect.problems(&found("/limit", "must be positive")).is_empty() && !expect.decides()
        );
        assert_eq!(expect.problems(&found("/share", "is none")).len(), 2);
        assert_eq!(
            Expect::default().problems(&found("/limit", "must be positive")),
            ["the configuration at \"/limit\": must be positive"]
        );
    }
}
