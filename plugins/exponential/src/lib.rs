//! The built-in backoff as a plugin: a wait that doubles, with jitter.
//!
//! It decides as the server does without a plugin. Use it as a starting point for another rule.

use tidegate_plugin::{
    About, Backoff, Call, Failure, Job, Problem, RetryStrategy, Verdict, export_retry,
};

/// The retry strategy.
#[derive(Debug)]
pub struct Exponential;

impl RetryStrategy for Exponential {
    type Config = Backoff;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        ..About::new("Waits twice as long after each attempt, and takes a random part of it.")
    };

    fn check(config: &Backoff) -> Vec<Problem> {
        config.check("")
    }

    fn on_failure(
        config: &Backoff,
        call: &Call,
        job: &Job,
        last: &Failure,
    ) -> Result<Verdict, String> {
        Ok(Verdict::after(call, last, config.after(job.attempt, call.seed)))
    }
}

export_retry!(Exponential);

#[cfg(test)]
mod tests {
    #[test]
    fn the_cases_hold() {
        tidegate_plugin::testing::retry_cases::<super::Exponential>("cases");
    }
}
