//! Changes a job between its attempts: another endpoint, a smaller batch, a later turn.
//!
//! The first rule whose condition holds is taken. Its edits are made one after the other, on the data as the attempt had
//! it. One that cannot be made is left out, and logged.

mod edit;

use serde::Deserialize;
use tidegate_plugin::{
    About, Backoff, Call, FailedJob, Problem, RetryStrategy, Verdict, When, export_retry, warn,
};

use edit::Edit;

/// What a job type sets.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The first that fits is taken; if none does, nothing is changed.
    rules: Vec<Rule>,
    /// When the next attempt is (default: the built-in backoff).
    #[serde(default)]
    backoff: Backoff,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// For which failures (default: all).
    #[serde(default)]
    when: When,
    /// What becomes of the data.
    #[serde(default)]
    edits: Vec<Edit>,
    /// What becomes of the priority.
    priority: Option<i32>,
}

/// The retry strategy.
#[derive(Debug)]
pub struct Rewrite;

impl RetryStrategy for Rewrite {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        needs_data: true,
        ..About::new("Changes the data and the priority of a job between its attempts.")
    };

    fn check(config: &Config) -> Vec<Problem> {
        config.backoff.check("/backoff")
    }

    fn on_failure(config: &Config, call: &Call, failed: &FailedJob) -> Result<Verdict, String> {
        let mut verdict =
            Verdict::after(call, failed, config.backoff.after(failed.job.attempt, call.seed));
        let rule = config.rules.iter().find(|rule| rule.when.holds(&failed.last));
        if let (Verdict::Retry(plan), Some(rule)) = (&mut verdict, rule) {
            plan.priority = rule.priority;
            let before = call.data.text(&failed.job.id).unwrap_or_else(|| "null".to_owned());
            let mut data = before.clone();
            for (place, edit) in rule.edits.iter().enumerate() {
                match edit.apply(&data) {
                    Ok(edited) => data = edited,
                    Err(error) => warn!("{}: edit {place} is left out: {error}", failed.job.id),
                }
            }
            plan.data = (data != before).then_some(data);
        }
        Ok(verdict)
    }
}

export_retry!(Rewrite);

#[cfg(test)]
mod tests {
    #[test]
    fn the_cases_hold() {
        tidegate_plugin::testing::retry_cases::<super::Rewrite>("cases");
    }
}
