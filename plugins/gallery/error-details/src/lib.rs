//! Decides by what the worker reports about a failure: a code in its details, or a part of its
//! message. A rule gives up, or changes the data, the priority and the wait of the next attempt.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_plugin::{
    About, Backoff, Call, Failure, Job, Plan, Problem, Raw, RetryStrategy, Seconds, Verdict, parse,
    quote, warn,
};

/// The configuration of a job type.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The member of the details that has the code (default `code`).
    #[serde(default = "code")]
    field: String,
    /// The first rule that matches applies. If none does, the job is retried as it is.
    rules: Vec<Rule>,
    /// The wait before the next attempt, unless the rule has one (default: the built-in backoff).
    #[serde(default)]
    backoff: Backoff,
}

/// A condition, and what follows. A rule without a condition always matches.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// The code in the details.
    code: Option<String>,
    /// A part of the message.
    text: Option<String>,
    /// No more attempts, with this message.
    give_up: Option<String>,
    /// The wait before the next attempt.
    wait_seconds: Option<Seconds>,
    /// The new priority.
    priority: Option<i32>,
    /// Members of the data that get these values.
    #[serde(default)]
    set: BTreeMap<String, Raw>,
}

fn code() -> String {
    "code".to_owned()
}

/// The retry strategy.
#[derive(Debug)]
pub struct ErrorDetails;

impl RetryStrategy for ErrorDetails {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        needs_data: true,
        ..About::new("Gives up, or changes the job, by what the worker reports about a failure.")
    };

    fn check(config: &Config) -> Vec<Problem> {
        let long = Some(Seconds::new(2_592_000));
        let wrong = (0..).zip(&config.rules).filter(|(_, rule)| rule.wait_seconds > long);
        let problem = |(place, _): (usize, &Rule)| {
            Problem::new(format!("/rules/{place}/wait_seconds"), "must be 0 to 2592000")
        };
        wrong.map(problem).chain(config.backoff.check("/backoff")).collect()
    }

    fn on_failure(
        config: &Config,
        call: &Call,
        job: &Job,
        last: &Failure,
    ) -> Result<Verdict, String> {
        let (code, message) = (config.code(last), last.message.as_deref().unwrap_or(""));
        let mut wait = config.backoff.after(job.attempt, call.seed);
        let mut plan = Plan::at(0);
        if let Some(rule) = config.rules.iter().find(|rule| rule.holds(code.as_deref(), message)) {
            if let Some(message) = &rule.give_up {
                return Ok(Verdict::GiveUp(Some(message.clone())));
            }
            wait = rule.wait_seconds.map_or(wait, Seconds::millis);
            (plan.priority, plan.data) = (rule.priority, rule.data(call, job));
        }
        // Not before the time that the worker or the target requested.
        plan.at = call.now.saturating_add(wait).max(last.not_before.unwrap_or(0));
        Ok(Verdict::Retry(plan))
    }
}

impl Config {
    /// The code in the details of a failure. One that is not a text counts as its JSON.
    fn code(&self, last: &Failure) -> Option<String> {
        let mut details: BTreeMap<String, Raw> = parse(last.details.as_deref()?).ok()?;
        let Raw(code) = details.remove(&self.field)?;
        Some(parse(&code).unwrap_or(code))
    }
}

impl Rule {
    fn holds(&self, code: Option<&str>, message: &str) -> bool {
        self.code.as_deref().is_none_or(|own| code == Some(own))
            && self.text.as_deref().is_none_or(|text| message.contains(text))
    }

    /// The job's data with the members that are set. None if the rule sets none, or if the data is no
    /// object, which is logged.
    fn data(&self, call: &Call, job: &Job) -> Option<String> {
        if self.set.is_empty() {
            return None;
        }
        let data = call.data.read::<Option<BTreeMap<String, Raw>>>(&job.id);
        let data = data.inspect_err(|problem| warn!("{problem}")).ok()?;
        let mut data = data.flatten().unwrap_or_default();
        data.extend(self.set.clone());
        let member = |(name, Raw(value)): (&String, &Raw)| format!("{}:{value}", quote(name));
        Some(format!("{{{}}}", data.iter().map(member).collect::<Vec<_>>().join(",")))
    }
}

tidegate_plugin::export_retry!(ErrorDetails);
