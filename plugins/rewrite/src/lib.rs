//! Changes a job between its attempts: another endpoint, a smaller batch, another priority.
//!
//! The first rule whose condition holds applies. Its edits apply one after the other, to the data
//! of the failed attempt. An edit that cannot be applied is skipped and logged.

mod edit;

use serde::Deserialize;
use tidegate_plugin::{
    About, Backoff, Call, Failure, Job, Problem, RetryStrategy, Verdict, When, export_retry, warn,
};

use edit::Edit;

/// The configuration of a job type.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The first rule that matches applies. If none matches, nothing changes.
    rules: Vec<Rule>,
    /// The wait before the next attempt (default: the built-in backoff).
    #[serde(default)]
    backoff: Backoff,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// The failures that the rule applies to (default: all).
    #[serde(default)]
    when: When,
    /// The changes of the data.
    #[serde(default)]
    edits: Vec<Edit>,
    /// The new priority; none keeps it.
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

    fn on_failure(
        config: &Config,
        call: &Call,
        job: &Job,
        last: &Failure,
    ) -> Result<Verdict, String> {
        let mut verdict = Verdict::after(call, last, config.backoff.after(job.attempt, call.seed));
        let rule = config.rules.iter().find(|rule| rule.when.holds(last));
        if let (Verdict::Retry(plan), Some(rule)) = (&mut verdict, rule) {
            plan.priority = rule.priority;
            let before = call.data.text(&job.id).unwrap_or_else(|| "null".to_owned());
            let mut data = before.clone();
            for (place, edit) in rule.edits.iter().enumerate() {
                match edit.apply(&data) {
                    Ok(edited) => data = edited,
                    Err(error) => warn!("{}: edit {place} is left out: {error}", job.id),
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
