//! Fuzz targets: the answers of plugins.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use proptest::prelude::*;
use tidegate_core::{
    port::policy::{
        AHEAD, Action, FaultKind, MESSAGE_BYTES, REASON_BYTES, RetryAnswer, RetryCall, RetryPlan,
        RunningSet, ThrottleCall,
    },
    time::Timestamp,
    validate::check_timeout,
};
use tidegate_engine::testkit::builders;

use super::{
    answer, bounds,
    contract::{
        retry::exports::tidegate::plugin::retry::{Plan, Verdict},
        throttler::{
            exports::tidegate::plugin::throttle::{Action as Does, Answer, Decision},
            tidegate::plugin::types,
        },
    },
};
use crate::fuzz::driver::{fuzz, json, mutated, text};

const NOW: Timestamp = Timestamp::from_millis(1_769_846_400_000);

/// An instant in an answer: near the call, at the limits of the contract, or any number.
fn instant() -> impl Strategy<Value = u64> {
    let (now, ahead) = (NOW.millis() as u64, AHEAD.as_millis() as u64);
    prop_oneof![
        now..now + ahead,
        (0..5u64).prop_map(move |off| now - 2 + off),
        (0..5u64).prop_map(move |off| now + ahead - 2 + off),
        any::<u64>(),
    ]
}

fn long_text() -> impl Strategy<Value = String> {
    (text(6), 0..400usize).prop_map(|(text, times)| text.repeat(times))
}

fn decision() -> impl Strategy<Value = Decision> {
    let action = prop_oneof![
        Just(Does::Run),
        prop::option::of(instant()).prop_map(Does::Hold),
        instant().prop_map(Does::Reschedule),
        Just(Does::Drop),
    ];
    (action, prop::option::of(long_text())).prop_map(|(action, reason)| Decision { action, reason })
}

fn throttle_call(candidates: usize) -> ThrottleCall {
    ThrottleCall {
        queue: builders::name("q"),
        now: NOW,
        seed: 0,
        config: "null".into(),
        concurrency: None,
        room: 1,
        running: RunningSet::default(),
        candidates: (0..candidates).map(|n| builders::job(&n.to_string()).build()).collect(),
        ended: Arc::default(),
        state: Arc::default(),
        data: BTreeMap::new(),
        hosts: Arc::default(),
        waiting: Arc::default(),
    }
}

#[test]
fn decisions_of_a_throttler_fit_the_contract_or_are_refused() {
    let decisions = prop::collection::vec(decision(), 0..5);
    fuzz((decisions, 0..5usize, any::<bool>()), |(decisions, candidates, more)| {
        let call = throttle_call(candidates);
        let answered = decisions.len();
        let allowed = |at: u64| at > NOW.millis() as u64 && at <= (NOW + AHEAD).millis() as u64;
        let sound = answered == candidates
            && decisions.iter().all(|decision| match decision.action {
                Does::Hold(Some(at)) | Does::Reschedule(at) => allowed(at),
                Does::Run | Does::Hold(None) | Does::Drop => true,
            });
        match answer::throttle(&call, Answer { decisions, more }) {
            Ok(answer) => {
                prop_assert!(sound);
                for decision in &answer.decisions {
                    prop_assert!(decision.reason.as_ref().is_none_or(|r| r.len() <= REASON_BYTES));
                    if let Action::Hold(Some(at)) | Action::Reschedule(at) = decision.action {
                        prop_assert!(at > NOW && at <= NOW + AHEAD);
                    }
                }
                prop_assert_eq!(answer.clone().validated(&call), Ok(answer));
            }
            Err(fault) => {
                prop_assert!(!sound, "{fault}");
                prop_assert_eq!(fault.kind, FaultKind::InvalidAnswer);
                prop_assert!(fault.message.len() < 1000);
            }
        }
        Ok(())
    });
}

#[test]
fn a_retry_plan_fits_the_contract_or_is_refused() {
    let data = prop_oneof![
        json(&["a"]).prop_map(|value| value.to_string()),
        mutated(json(&["a"]).prop_map(|value| value.to_string().into_bytes()))
            .prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        (0..200usize).prop_map(|depth| "[".repeat(depth) + &"]".repeat(depth)),
    ];
    let data = (prop::option::of(data), prop::option::of(any::<i32>()));
    let bounds = (prop::option::of(0..3u32), prop::option::of(any::<u64>()));
    let target = prop::option::of(long_text());
    let plan = (instant(), data, prop::option::of(any::<u32>()), bounds, target);
    let plan = plan.prop_map(|(at, (data, priority), weight, (attempts_left, timeout), target)| {
        Verdict::Retry(Plan { at, data, priority, weight, attempts_left, timeout, target })
    });
    let give_up = prop::option::of(long_text()).prop_map(Verdict::GiveUp);
    let call = RetryCall {
        queue: builders::name("q"),
        now: NOW,
        seed: 0,
        config: "null".into(),
        job: builders::job("a").build(),
        data: None,
        not_before: None,
        host: None,
        state: Arc::default(),
    };
    fuzz(prop_oneof![2 => plan, 1 => give_up], |verdict| {
        match answer::retry(&call, verdict) {
            Ok(RetryAnswer::Retry(plan)) => {
                let RetryPlan { at, data, attempts_left, timeout, .. } = plan;
                prop_assert!(at <= NOW + AHEAD);
                prop_assert!(attempts_left != Some(0));
                prop_assert!(timeout.is_none_or(|span| check_timeout(span).is_ok()));
                if let Some(data) = data {
                    prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(&data).is_ok());
                }
            }
            Ok(RetryAnswer::GiveUp(message)) => {
                prop_assert!(message.is_none_or(|message| message.len() <= MESSAGE_BYTES));
            }
            Err(fault) => prop_assert_eq!(fault.kind, FaultKind::InvalidAnswer),
        }
        Ok(())
    });
}

#[test]
fn problems_of_a_configuration_are_cut_to_their_bounds() {
    let problem =
        (long_text(), long_text()).prop_map(|(path, message)| types::Problem { path, message });
    fuzz(prop::collection::vec(problem, 0..40), |said| {
        let count = said.len();
        let problems = answer::problems(said);
        prop_assert_eq!(problems.len(), count.min(bounds::PROBLEMS));
        for problem in problems {
            prop_assert!(problem.path.len() <= 256);
            prop_assert!(problem.message.len() <= MESSAGE_BYTES);
        }
        Ok(())
    });
}

#[test]
fn an_instant_beyond_every_calendar_is_a_fault() {
    fuzz((any::<u64>(), any::<i64>()), |(at, now)| {
        let call = ThrottleCall { now: Timestamp::from_millis(now), ..throttle_call(1) };
        let decision = Decision { action: Does::Hold(Some(at)), reason: None };
        let answer = answer::throttle(&call, Answer { decisions: vec![decision], more: false });
        let ahead = i128::from(at) - i128::from(now);
        if ahead > Duration::from_hours(367 * 24).as_millis() as i128 {
            prop_assert!(answer.is_err());
        }
        Ok(())
    });
}
