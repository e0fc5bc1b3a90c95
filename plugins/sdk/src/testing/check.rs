//! Compares a plugin's answer with the expected outcome of a case.

use std::collections::BTreeMap;

use serde_json::Value;

use super::case::{Case, Expect, ExpectDecision, ExpectRetry, Role, many};
use crate::{
    Action, Answer, Decision, Plan, Problem, RetryStrategy, Throttler, Verdict,
    config::{check, of_call},
};

/// Runs a throttler on a case. Returns the differences from the expected outcome.
pub fn throttler<T: Throttler>(case: &Case) -> Vec<String> {
    if case.role != Role::Throttler {
        return vec!["this plugin is a throttler, and the case is not for one".to_owned()];
    }
    let config = case.config_text();
    let mut wrong = problems(&check(&config, T::check), &case.expect);
    if case.expect.decides() {
        let round = case.round();
        let answer = of_call(&config).and_then(|config| T::decide(&config, &round, &case.jobs()));
        wrong.extend(error_difference(&answer, &case.expect));
        if let Ok(answer) = answer {
            wrong.extend(decided(&answer, case));
            wrong.extend(kept(&round.state.entries(), &case.expect));
        }
    }
    wrong
}

/// Runs a retry strategy on a case. Returns the differences from the expected outcome.
pub fn retry<T: RetryStrategy>(case: &Case) -> Vec<String> {
    if case.role != Role::Retry {
        return vec!["this plugin is a retry strategy, and the case is not for one".to_owned()];
    }
    let config = case.config_text();
    let mut wrong = problems(&check(&config, T::check), &case.expect);
    if case.expect.decides() {
        let call = case.call();
        let (job, last) = case.failed();
        let verdict =
            of_call(&config).and_then(|config| T::on_failure(&config, &call, &job, &last));
        wrong.extend(error_difference(&verdict, &case.expect));
        if let Ok(verdict) = verdict {
            wrong.extend(follows(&verdict, call.now, &case.expect));
            wrong.extend(kept(&call.state.entries(), &case.expect));
        }
    }
    wrong
}

impl Expect {
    /// Whether it expects a decision, and not only errors of the configuration.
    fn decides(&self) -> bool {
        self.problems.is_empty() || self.error.is_some()
    }
}

fn problems(found: &[Problem], expect: &Expect) -> Vec<String> {
    let missing = expect.problems.iter().filter(|expected| {
        !found.iter().any(|problem| {
            problem.path == expected.path && problem.message.starts_with(&expected.message)
        })
    });
    let missing =
        missing.map(|expected| format!("no problem at {:?} {:?}", expected.path, expected.message));
    let unexpected = found
        .iter()
        .filter(|problem| !expect.problems.iter().any(|expected| problem.path == expected.path));
    missing
        .chain(
            unexpected
                .map(|problem| format!("configuration {:?}: {}", problem.path, problem.message)),
        )
        .collect()
}

fn error_difference<T>(answer: &Result<T, String>, expect: &Expect) -> Option<String> {
    match (answer, &expect.error) {
        (Err(error), Some(expected)) if error.starts_with(expected.as_str()) => None,
        (Err(error), _) => Some(format!("error: {error}")),
        (Ok(_), Some(expected)) => Some(format!("no error, expected {expected:?}")),
        (Ok(_), None) => None,
    }
}

fn decided(answer: &Answer, case: &Case) -> Vec<String> {
    let (expect, count) = (&case.expect, case.jobs().len());
    let mut wrong = Vec::new();
    if answer.decisions.len() != count {
        wrong.push(format!("{} decisions on {count} candidates", answer.decisions.len()));
    }
    let runs = answer.decisions.iter().filter(|decision| decision.action == Action::Run).count();
    if expect.runs.is_some_and(|expected| expected != runs) {
        wrong.push(format!("{runs} run, expected {:?}", expect.runs));
    }
    if expect.more.is_some_and(|expected| expected != answer.more) {
        wrong.push(format!("more is {}", answer.more));
    }
    if let Some(expected) = &expect.decisions {
        let expected: Vec<&ExpectDecision> =
            many(expected, |decision| decision.times).map(|(decision, _)| decision).collect();
        if expected.len() != answer.decisions.len() {
            wrong.push(format!(
                "{} decisions, expected {}",
                answer.decisions.len(),
                expected.len()
            ));
        }
        let pairs = (1..).zip(answer.decisions.iter().zip(expected));
        wrong.extend(pairs.filter(|(_, (decision, expected))| !matches(decision, expected)).map(
            |(place, (decision, expected))| {
                format!("decision {place} is {decision:?}, expected {expected:?}")
            },
        ));
    }
    wrong
}

fn matches(decision: &Decision, expected: &ExpectDecision) -> bool {
    let (action, until, at) = match decision.action {
        Action::Run => ("run", None, None),
        Action::Hold(until) => ("hold", until, None),
        Action::Reschedule(at) => ("reschedule", None, Some(at)),
        Action::Drop => ("drop", None, None),
    };
    expected.action == action
        && expected.until.is_none_or(|expected| until == Some(expected.0))
        && expected.at.is_none_or(|expected| at == Some(expected.0))
        && expected.reason.as_ref().is_none_or(|start| {
            decision.reason.as_ref().is_some_and(|reason| reason.starts_with(start))
        })
}

fn kept(state: &BTreeMap<String, (String, Option<u64>)>, expect: &Expect) -> Option<String> {
    if let Some(expected) = &expect.state_expires {
        let expiries = state.iter().filter_map(|(key, (_, at))| Some((key, (*at)?)));
        if !expiries.eq(expected.iter().map(|(key, at)| (key, at.0))) {
            return Some(format!("the state is {state:?}, its keys must expire at {expected:?}"));
        }
    }
    let expected = expect.state.as_ref()?;
    let same = |key: &String, expected: &Value| {
        state.get(key).is_some_and(|(kept, _)| match expected {
            Value::String(text) => text == kept,
            other => serde_json::from_str::<Value>(kept).is_ok_and(|kept| kept == *other),
        })
    };
    let all = expected.len() == state.len() && expected.iter().all(|(key, value)| same(key, value));
    (!all).then(|| format!("the state is {state:?}, expected {expected:?}"))
}

fn follows(verdict: &Verdict, now: u64, expect: &Expect) -> Option<String> {
    let right = match (verdict, &expect.retry, &expect.give_up) {
        (Verdict::Retry(plan), Some(expected), None) => planned(plan, now, expected),
        (Verdict::GiveUp(message), None, Some(expected)) => expected
            .as_ref()
            .is_none_or(|start| message.as_ref().is_some_and(|message| message.starts_with(start))),
        (_, None, None) => true,
        _ => false,
    };
    (!right).then(|| match verdict {
        Verdict::Retry(plan) => format!(
            "retries at {} ({} ms from now) with {plan:?}",
            plan.at,
            plan.at.saturating_sub(now)
        ),
        Verdict::GiveUp(message) => format!("gives up: {message:?}"),
    })
}

fn planned(plan: &Plan, now: u64, expected: &ExpectRetry) -> bool {
    let data =
        plan.data.as_ref().map(|data| serde_json::from_str::<Value>(data).unwrap_or(Value::Null));
    expected.at.is_none_or(|at| at.0 == plan.at)
        && expected
            .after_seconds
            .is_none_or(|seconds| now + (seconds * 1000.0).round() as u64 == plan.at)
        && data == expected.data
        && plan.priority == expected.priority
        && plan.weight == expected.weight
        && plan.attempts_left == expected.attempts_left
        && plan.target == expected.target
        && plan.timeout == expected.timeout_seconds.map(|seconds| (seconds * 1000.0).round() as u64)
}
