//! At most `limit` jobs of each type at a time. Change it into your own rule.

use tidegate_plugin::{
    About, Answer, Decision, Dimension, Job, Round, Throttler, export_throttler,
};

/// The configuration of a queue.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    limit: u64,
}

/// The throttler.
pub struct Plugin;

impl Throttler for Plugin {
    type Config = Config;
    const ABOUT: About = About::new("At most `limit` jobs of each type at a time.");

    fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
        // The running jobs, and those that this call runs.
        let mut used = round.running.weights(&Dimension::JobType);
        let decisions = candidates.iter().map(|job| {
            let used = used.entry(job.job_type.clone()).or_default();
            if *used + u64::from(job.weight) > config.limit {
                return Decision::hold(format!("the limit for {} jobs is reached", job.job_type));
            }
            *used += u64::from(job.weight);
            Decision::run()
        });
        Ok(Answer { decisions: decisions.collect(), more: true })
    }
}

export_throttler!(Plugin);

#[cfg(test)]
mod tests {
    #[test]
    fn the_cases_hold() {
        tidegate_plugin::testing::throttler_cases::<super::Plugin>("cases");
    }
}
