//! Gives up if the target is gone, and waits longer each time otherwise. Change it into your own
//! rule.

use tidegate_plugin::{About, Call, Failure, Job, RetryStrategy, Seconds, Verdict, export_retry};

/// The configuration of a job type.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    base_seconds: Seconds,
}

/// The longest wait, in milliseconds.
const A_DAY: u64 = 86_400_000;

/// The retry strategy.
pub struct Plugin;

impl RetryStrategy for Plugin {
    type Config = Config;
    const ABOUT: About =
        About::new("Gives up what is gone, and waits longer each time for the rest.");

    fn on_failure(
        config: &Config,
        call: &Call,
        job: &Job,
        last: &Failure,
    ) -> Result<Verdict, String> {
        if matches!(last.status, Some(404 | 410)) {
            return Ok(Verdict::GiveUp(Some("what it was for is gone".to_owned())));
        }
        let doublings = (job.attempt - 1).min(40);
        let wait = config.base_seconds.millis().saturating_mul(1 << doublings);
        Ok(Verdict::after(call, last, wait.min(A_DAY)))
    }
}

export_retry!(Plugin);

#[cfg(test)]
mod tests {
    #[test]
    fn the_cases_hold() {
        tidegate_plugin::testing::retry_cases::<super::Plugin>("cases");
    }
}
