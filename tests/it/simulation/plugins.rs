//! The plugins of a simulated world: a throttler that counts the jobs that it started, and a retry
//! strategy.
//!
//! Both decide at random from their seed while faults are injected, and let everything run
//! afterwards.

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    port::policy::{
        Action, Decision, PolicyState, RetryAnswer, RetryCall, RetryPlan, ThrottleAnswer,
        ThrottleCall,
    },
    queue::plugin::{Description, OnFailure, Throttler},
    time::Timestamp,
};
use tidegate_engine::{
    Engine,
    plugins::registry::{NewVersion, Stage},
    testkit::{FnPolicy, builders::name, policies},
};

/// The throttler.
pub const GUARD: &str = "guard";
/// The retry strategy.
pub const PLANNER: &str = "planner";
/// The data that the retry strategy gives to some jobs.
pub const RETRY_DATA: &str = "{\"again\": true}";
/// The key in the state of the throttler that counts the jobs that it started.
pub const STARTED: &str = "ran";

pub fn policy(faults_until: Timestamp) -> FnPolicy {
    FnPolicy::default()
        .throttling(move |_, call| {
            if call.now >= faults_until {
                Ok(count(call, |_| policies::run()))
            } else {
                throttle(call)
            }
        })
        .retrying(move |_, call| {
            if call.now >= faults_until {
                Ok(RetryAnswer::Retry(RetryPlan::new(call.now)))
            } else {
                plan_retry(call)
            }
        })
}

pub fn throttler() -> Throttler {
    Throttler {
        plugin: name(GUARD),
        config: Arc::new(serde_json::json!({})),
        on_failure: OnFailure::Hold,
    }
}

/// Pushes a version of a plugin, in both roles.
pub async fn push(engine: &Engine, plugin: &str, number: usize, state_version: u32) -> bool {
    let description = Description {
        state_version,
        needs_ended: true,
        needs_data: number.is_multiple_of(2),
        ..Description::default()
    };
    let wasm = format!("{plugin} {number} {state_version}").into();
    let version = NewVersion {
        wasm,
        throttler: Some(description.clone()),
        retry: Some(description),
        code: Vec::new(),
    };
    engine.push_plugin(&name(plugin), version, Stage::Live).await.is_ok()
}

/// A number below `of` that follows from the seed and the job.
fn draw(seed: u64, index: usize, of: u64) -> u64 {
    let mixed = (seed ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 33) % of
}

fn throttle(call: &ThrottleCall) -> Result<ThrottleAnswer, tidegate_core::port::policy::Fault> {
    if draw(call.seed, 10_000, 25) == 0 {
        return Err(policies::fault("it trapped"));
    }
    let answer = count(call, |index| {
        let later = call.now + Duration::from_millis(1 + draw(call.seed, index, 20_000));
        match draw(call.seed, index, 40) {
            0..26 => policies::run(),
            26..36 => Decision {
                action: Action::Hold((index % 2 == 0).then_some(later)),
                reason: Some("not now".into()),
            },
            36..39 => Decision { action: Action::Reschedule(later), reason: None },
            _ => Decision { action: Action::Drop, reason: Some("never".into()) },
        }
    });
    Ok(ThrottleAnswer { more: draw(call.seed, 20_000, 2) == 0, ..answer })
}

/// The answer that decides each candidate by its index, and counts the started ones in the state.
/// From time to time the state is large.
fn count(call: &ThrottleCall, mut decide: impl FnMut(usize) -> Decision) -> ThrottleAnswer {
    let mut index = 0;
    let answer = policies::each(call, |_| {
        index += 1;
        decide(index)
    });
    let before: usize =
        call.state.text(STARTED).map_or(0, |text| text.parse().expect("it wrote a number"));
    let ran =
        before + answer.decisions.iter().filter(|decision| decision.action == Action::Run).count();
    let mut state = PolicyState::from([(STARTED, ran.to_string())]);
    // Without a page, of one page, or of several.
    for word in 0..[0, 1, 9][ran % 3] {
        state.set(format!("word {word}"), "x".repeat(700).into());
    }
    state.balance();
    ThrottleAnswer { state: Some(state), ..answer }
}

fn plan_retry(call: &RetryCall) -> Result<RetryAnswer, tidegate_core::port::policy::Fault> {
    let at = call.now + Duration::from_millis(draw(call.seed, 1, 8000));
    match draw(call.seed, 0, 10) {
        0 => Err(policies::fault("it trapped")),
        1 => Ok(RetryAnswer::GiveUp(Some("hopeless".into()))),
        2 => Ok(RetryAnswer::Retry(RetryPlan {
            data: Some(RETRY_DATA.into()),
            priority: Some(3),
            ..RetryPlan::new(at)
        })),
        _ => Ok(RetryAnswer::Retry(RetryPlan::new(at))),
    }
}
