//! Obeys `Retry-After`: after a target requested a pause, no job of the same target starts
//! before its end. A job that failed waits in any case; this makes the others wait too.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_plugin::{About, Answer, Decision, Job, Round, Seconds, Throttler, state_key, warn};

/// The configuration of a queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The attribute that names the target (default: the host of the target's URL).
    attribute: Option<String>,
    /// The longest pause that a target may request (default 3600).
    #[serde(default = "hour")]
    max_seconds: Seconds,
}

fn hour() -> Seconds {
    Seconds::new(3600)
}

/// The throttler.
#[derive(Debug)]
pub struct RetryAfter;

impl Throttler for RetryAfter {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        state_version: 1,
        needs_ended: true,
        ..About::new("After `Retry-After`, no job of the same target starts before the time.")
    };

    fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
        let stored = |target: &str| round.state.load(&state_key("pause", target)).unwrap_or(0);
        let mut pauses: BTreeMap<&str, u64> = BTreeMap::new();
        for ended in &round.ended {
            let target = config.target(|name| ended.attribute(name), ended.target_host.as_deref());
            let until = ended.not_before.unwrap_or(0).min(round.now + config.max_seconds.millis());
            let known = *pauses.entry(target).or_insert_with(|| stored(target));
            if until > round.now && until > known {
                pauses.insert(target, until);
                let saved =
                    round.state.save_until(&state_key("pause", target), &until, Some(until));
                if let Err(problem) = saved {
                    warn!("{problem}");
                }
            }
        }
        let decide = |job: &Job| {
            let target = config.target(|name| job.attribute(name), job.target_host.as_deref());
            let until = pauses.get(target).copied().unwrap_or_else(|| stored(target));
            if until <= round.now {
                return Decision::run();
            }
            Decision::hold_until(until, format!("{target} requested a pause"))
        };
        Ok(Answer { decisions: candidates.iter().map(decide).collect(), more: true })
    }
}

impl Config {
    fn target<'a>(
        &self,
        attribute: impl FnOnce(&str) -> Option<&'a str>,
        host: Option<&'a str>,
    ) -> &'a str {
        self.attribute.as_deref().map_or(host, attribute).unwrap_or("")
    }
}

tidegate_plugin::export_throttler!(RetryAfter);
