//! Falls back to other targets: after so many failures of a job at a target, its next attempts go to
//! the next one, out of `retry_targets` of its type.
//!
//! Each of these targets has a budget, which all jobs of a queue share: an even rate of attempts,
//! with bursts. A job without budget waits for it, or goes to the type's own target again.

use serde::Deserialize;
use tidegate_plugin::{
    About, Backoff, Call, Failure, Job, Plan, Problem, RetryStrategy, Seconds, Verdict, info,
    metrics, state_key, warn,
};

/// The configuration of a job type.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Names in the type's `retry_targets`, in the order in which a job tries them.
    targets: Vec<String>,
    /// So many failures of a job at a target choose the next one (default 2).
    #[serde(default = "two")]
    after: u32,
    /// How many attempts of a minute each of these targets gets (default 60).
    #[serde(default = "sixty")]
    per_minute: u64,
    /// How many of them may start at once, if there were none before (default 10).
    #[serde(default = "ten")]
    burst: u64,
    /// The longest wait for the budget (default 60).
    #[serde(default = "minute")]
    max_wait_seconds: Seconds,
    /// The wait before the next attempt (default: the built-in backoff).
    #[serde(default)]
    backoff: Backoff,
}

fn two() -> u32 {
    2
}

fn ten() -> u64 {
    10
}

fn sixty() -> u64 {
    60
}

fn minute() -> Seconds {
    Seconds::new(60)
}

/// The retry strategy.
#[derive(Debug)]
pub struct FallbackTarget;

impl RetryStrategy for FallbackTarget {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        state_version: 1,
        ..About::new("After some failures at a target, goes to another one, within a budget.")
    };

    fn check(config: &Config) -> Vec<Problem> {
        let fits = [
            ("/targets", (1..=16).contains(&config.targets.len()), "must have 1 to 16 names"),
            ("/after", config.after > 0, "must be at least 1"),
            ("/per_minute", (1..=60_000).contains(&config.per_minute), "must be 1 to 60000"),
            ("/burst", (1..=100_000).contains(&config.burst), "must be 1 to 100000"),
        ];
        let wrong = fits.into_iter().filter(|(_, fits, _)| !fits);
        let wrong = wrong.map(|(path, _, must)| Problem::new(path, must));
        wrong.chain(config.backoff.check("/backoff")).collect()
    }

    fn on_failure(
        config: &Config,
        call: &Call,
        job: &Job,
        last: &Failure,
    ) -> Result<Verdict, String> {
        let wait = config.backoff.after(job.attempt, call.seed);
        let due = call.now.saturating_add(wait).max(last.not_before.unwrap_or(0));
        let own = Plan { target: Some(String::new()), ..Plan::at(due) };
        // How many targets the job has given up.
        let left = (job.attempt / config.after).min(config.targets.len() as u32) as usize;
        if left == 0 {
            return Ok(Verdict::Retry(own));
        }
        let target = &config.targets[left - 1];
        // When the budget of the target is full again. Each attempt uses a part of it.
        let key = state_key("full_at", target);
        let full_at: u64 = call.state.load(&key).unwrap_or(0);
        let part = 60_000_u64.div_ceil(config.per_minute);
        let at = due.max(full_at.saturating_sub(part * (config.burst - 1)));
        if at - due > config.max_wait_seconds.millis() {
            info!("{}: the budget of {target} is used up", job.id);
            metrics::add("without_budget", target, 1.0);
            return Ok(Verdict::Retry(own));
        }
        let full_at = full_at.max(at) + part;
        if let Err(problem) = call.state.save_until(&key, &full_at, Some(full_at)) {
            warn!("{problem}");
        }
        Ok(Verdict::Retry(Plan { target: Some(target.clone()), ..Plan::at(at) }))
    }
}

tidegate_plugin::export_retry!(FallbackTarget);
