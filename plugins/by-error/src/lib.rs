//! Looks up what follows a failure in a table. The first rule whose condition holds decides.

use serde::Deserialize;
use tidegate_plugin::{
    About, Backoff, Call, Failure, Job, Problem, RetryStrategy, Seconds, Verdict, When,
    export_retry,
};

/// The configuration of a job type.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The first rule that matches decides.
    #[serde(default)]
    rules: Vec<Rule>,
    /// What follows if no rule matches (default: the built-in backoff).
    #[serde(default)]
    otherwise: Plan,
}

/// A row of the table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    when: When,
    then: Plan,
}

/// What follows a failure.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Plan {
    /// Another attempt after this time.
    WaitSeconds(Seconds),
    /// Another attempt after a wait that doubles.
    Exponential(Backoff),
    /// No more attempts, with this message.
    GiveUp(Option<String>),
}

impl Default for Plan {
    fn default() -> Self {
        Self::Exponential(Backoff::default())
    }
}

/// The retry strategy.
#[derive(Debug)]
pub struct ByError;

impl RetryStrategy for ByError {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        ..About::new(
            "Looks up in a table what follows which failure: a wait, a backoff, or the end.",
        )
    };

    fn check(config: &Config) -> Vec<Problem> {
        let plans = config
            .rules
            .iter()
            .enumerate()
            .map(|(place, rule)| (format!("/rules/{place}/then"), &rule.then));
        plans
            .chain([("/otherwise".to_owned(), &config.otherwise)])
            .flat_map(|(path, plan)| plan.check(&path))
            .collect()
    }

    fn on_failure(
        config: &Config,
        call: &Call,
        job: &Job,
        last: &Failure,
    ) -> Result<Verdict, String> {
        let rule = config.rules.iter().find(|rule| rule.when.holds(last));
        Ok(match rule.map_or(&config.otherwise, |rule| &rule.then) {
            Plan::WaitSeconds(wait) => Verdict::after(call, last, wait.millis()),
            Plan::Exponential(backoff) => {
                Verdict::after(call, last, backoff.after(job.attempt, call.seed))
            }
            Plan::GiveUp(message) => Verdict::GiveUp(message.clone()),
        })
    }
}

impl Plan {
    fn check(&self, path: &str) -> Vec<Problem> {
        match self {
            Self::WaitSeconds(wait) if *wait > Seconds::new(2_592_000) => {
                vec![Problem::new(format!("{path}/wait_seconds"), "must be 0 to 2592000")]
            }
            Self::Exponential(backoff) => backoff.check(&format!("{path}/exponential")),
            Self::WaitSeconds(_) | Self::GiveUp(_) => Vec::new(),
        }
    }
}

export_retry!(ByError);

#[cfg(test)]
mod tests {
    #[test]
    fn the_cases_hold() {
        tidegate_plugin::testing::retry_cases::<super::ByError>("cases");
    }
}
