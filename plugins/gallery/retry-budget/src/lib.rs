//! A retry budget: retries are at most a percentage of first attempts, so that they do not multiply
//! the load of a target that is already in trouble. First attempts are never held.
//!
//! The next attempt after one that was handed back has the same number, so it counts again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_plugin::{
    About, Answer, Decision, Job, Problem, Round, Throttler, metrics, state_key, warn,
};

/// What a retry costs.
const RETRY: u64 = 60_000 * 100;

/// The configuration of a queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The attribute whose values have a budget each (default: the host of the target's URL).
    attribute: Option<String>,
    /// How many retries 100 first attempts allow (default 20).
    #[serde(default = "twenty")]
    percent: u32,
    /// How many retries of a minute are allowed in any case (default 10).
    #[serde(default = "ten")]
    per_minute: u32,
    /// How many unused retries are kept for later (default 100).
    #[serde(default = "hundred")]
    reserve: u32,
}

fn ten() -> u32 {
    10
}

fn twenty() -> u32 {
    20
}

fn hundred() -> u32 {
    100
}

/// The throttler.
#[derive(Debug)]
pub struct RetryBudget;

/// What is left of a budget, in parts of a retry, at a time.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Budget {
    left: u64,
    at: u64,
}

impl Throttler for RetryBudget {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        state_version: 1,
        ..About::new("Holds retries that are more than a percentage of first attempts.")
    };

    fn check(config: &Config) -> Vec<Problem> {
        let problem =
            || Problem::new("/per_minute", "must be at least 1, or a retry may wait forever");
        if config.per_minute == 0 { vec![problem()] } else { Vec::new() }
    }

    fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
        let most = u64::from(config.reserve.max(1)) * RETRY;
        let load = |target: &str| {
            let stored = round.state.load(&state_key("budget", target));
            let Budget { left, at } = stored.unwrap_or(Budget { left: most, at: round.now });
            // In parts of a retry, a millisecond of `per_minute` is a whole number.
            let passed = round.now.saturating_sub(at).saturating_mul(100);
            most.min(left.saturating_add(passed.saturating_mul(config.per_minute.into())))
        };
        let mut budgets: BTreeMap<&str, u64> = BTreeMap::new();
        let mut decisions = Vec::new();
        for job in candidates {
            let attribute = config.attribute.as_deref().map(|name| job.attribute(name));
            let target = attribute.unwrap_or(job.target_host.as_deref()).unwrap_or("");
            let left = budgets.entry(target).or_insert_with(|| load(target));
            decisions.push(if job.attempt == 1 {
                *left = most.min(*left + RETRY / 100 * u64::from(config.percent));
                Decision::run()
            } else if *left >= RETRY {
                *left -= RETRY;
                Decision::run()
            } else {
                let parts = 100 * u64::from(config.per_minute.max(1));
                let at = round.now + (RETRY - *left).div_ceil(parts);
                Decision::hold_until(at, format!("the retry budget of {target} is used up"))
            });
        }
        for (target, left) in budgets {
            metrics::set("retries_left", target, f64::from((left / RETRY) as u32));
            let key = state_key("budget", target);
            if left == most {
                round.state.delete(&key);
            } else if left != load(target) {
                // It expires when it is full again.
                let full = (most - left).div_ceil(100 * u64::from(config.per_minute.max(1)));
                let budget = Budget { left, at: round.now };
                if let Err(problem) = round.state.save_until(&key, &budget, Some(round.now + full))
                {
                    warn!("{problem}");
                }
            }
        }
        Ok(Answer { decisions, more: true })
    }
}

tidegate_plugin::export_throttler!(RetryBudget);
