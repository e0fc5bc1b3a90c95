//! Answers as JSON, in the form of what a case of `tidegate plugin test` expects.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

use super::job::raw;
use tidegate_core::{
    port::policy::{
        Action, Answer, Decision, PolicyState, RetryAnswer, RetryOutput, RetryPlan, StateValue,
        ThrottleAnswer,
    },
    time::{Seconds, Timestamp},
};

/// Most bytes of a new state that an answer contains; a larger one is left out.
const MAX_STATE_BYTES: usize = 16 << 10;

/// The expectation that `answer` meets, and no other decision.
pub fn answer_to_json(answer: &Answer) -> String {
    let written = match answer {
        Answer::Throttle(answer) => serde_json::to_string(&ThrottleJson::of(answer)),
        Answer::Retry(output) => serde_json::to_string(&RetryJson::of(output)),
    };
    written.expect("all keys are strings, and all numbers exist in JSON")
}

#[derive(Serialize)]
struct ThrottleJson<'a> {
    decisions: Vec<DecisionJson<'a>>,
    more: bool,
    #[serde(flatten)]
    new: StateJson<'a>,
}

/// A new state, if there is one, and it is not too large.
#[derive(Serialize)]
struct StateJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<BTreeMap<&'a str, &'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state_expires: Option<BTreeMap<&'a str, Timestamp>>,
}

impl<'a> StateJson<'a> {
    fn of(new: Option<&'a PolicyState>) -> Self {
        let state = new.filter(|state| state.bytes() <= MAX_STATE_BYTES);
        let texts = |state: &'a PolicyState| {
            state.iter().map(|(key, value)| (key.as_str(), value.text.as_str())).collect()
        };
        let expiry =
            |(key, value): (&'a String, &'a StateValue)| Some((key.as_str(), value.expires_at?));
        let expires = |state: &'a PolicyState| state.iter().filter_map(expiry).collect();
        Self { state: state.map(texts), state_expires: state.map(expires) }
    }
}

#[derive(Serialize)]
struct RetryJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<PlanJson<'a>>,
    /// The inner value is the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    give_up: Option<&'a Option<String>>,
    #[serde(flatten)]
    new: StateJson<'a>,
}

impl<'a> RetryJson<'a> {
    fn of(output: &'a RetryOutput) -> Self {
        let (retry, give_up) = match &output.answer {
            RetryAnswer::Retry(plan) => (Some(PlanJson::of(plan)), None),
            RetryAnswer::GiveUp(message) => (None, Some(message)),
        };
        Self { retry, give_up, new: StateJson::of(output.state.as_ref()) }
    }
}

#[derive(PartialEq, Serialize)]
struct DecisionJson<'a> {
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    /// How many jobs in a row have this decision.
    #[serde(skip_serializing_if = "is_one")]
    times: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_one(times: &u32) -> bool {
    *times == 1
}

impl<'a> DecisionJson<'a> {
    fn of(Decision { action, reason }: &'a Decision) -> Self {
        let (action, until, at) = match action {
            Action::Run => ("run", None, None),
            Action::Hold(until) => ("hold", *until, None),
            Action::Reschedule(at) => ("reschedule", None, Some(*at)),
            Action::Drop => ("drop", None, None),
        };
        Self { action, until, at, reason: reason.as_deref(), times: 1 }
    }
}

impl<'a> ThrottleJson<'a> {
    fn of(answer: &'a ThrottleAnswer) -> Self {
        let mut decisions: Vec<DecisionJson<'a>> = Vec::new();
        for decision in &answer.decisions {
            let next = DecisionJson::of(decision);
            match decisions.last_mut() {
                Some(last) if *last == (DecisionJson { times: last.times, ..next }) => {
                    last.times += 1;
                }
                _ => decisions.push(DecisionJson::of(decision)),
            }
        }
        Self { decisions, more: answer.more, new: StateJson::of(answer.state.as_ref()) }
    }
}

#[derive(Serialize)]
struct PlanJson<'a> {
    at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts_left: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_seconds: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a str>,
}

impl<'a> PlanJson<'a> {
    fn of(plan: &'a RetryPlan) -> Self {
        let RetryPlan { at, data, priority, weight, attempts_left, timeout, target } = plan;
        Self {
            at: *at,
            data: data.as_deref().map(raw),
            priority: *priority,
            weight: *weight,
            attempts_left: *attempts_left,
            timeout_seconds: *timeout,
            target: target.as_deref(),
        }
    }
}
