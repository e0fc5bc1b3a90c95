//! A leaky bucket for each value of an attribute: jobs leave it one by one, at a fixed interval,
//! however they come in. What would wait too long overflows and is dropped.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_plugin::{
    About, Answer, Decision, Job, Problem, Round, Seconds, Throttler, state_key,
};

/// How far a bucket may catch up, in milliseconds. A queue offers a held job again after 50 ms at
/// the earliest, so that jobs with a shorter interval leave in groups.
const SLACK: u64 = 50;

/// The configuration of a queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The attribute whose values have a bucket each (default: one bucket for all jobs).
    attribute: Option<String>,
    /// The time between two starts.
    every_seconds: Seconds,
    /// Jobs that would wait longer from now on are dropped (default: none is).
    overflow_seconds: Option<Seconds>,
}

/// The throttler.
#[derive(Debug)]
pub struct LeakyBucket;

impl Throttler for LeakyBucket {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        state_version: 1,
        ..About::new("Starts jobs one by one, at a fixed interval, and drops what overflows.")
    };

    fn check(config: &Config) -> Vec<Problem> {
        let ok = (1..=86_400_000).contains(&config.every_seconds.millis());
        let problem = || Problem::new("/every_seconds", "must be 0.001 to 86400");
        if ok { Vec::new() } else { vec![problem()] }
    }

    fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
        let (now, every) = (round.now, config.every_seconds.millis());
        let overflow = config.overflow_seconds.map_or(u64::MAX, Seconds::millis);
        // When the next job of each bucket leaves, which moves with each job of this call.
        let mut leaves: BTreeMap<&str, u64> = BTreeMap::new();
        let mut decide = |job| {
            let bucket = config.bucket(job);
            let key = state_key("next", bucket);
            let next =
                leaves.entry(bucket).or_insert_with(|| round.state.load(&key).unwrap_or(now));
            let at = (*next).max(now.saturating_sub(SLACK));
            if at.saturating_sub(now) > overflow {
                return Decision::drop("its bucket is full");
            }
            *next = at + every;
            if at > now {
                return Decision::hold_until(at, format!("one job leaves every {every} ms"));
            }
            // Without room in the state, no job of the bucket runs.
            match round.state.save_until(&key, next, Some(*next + SLACK)) {
                Ok(()) => Decision::run(),
                Err(problem) => Decision::hold_until(now + every, problem),
            }
        };
        let decisions = candidates.iter().map(&mut decide).collect();
        Ok(Answer { decisions, more: config.attribute.is_some() })
    }
}

impl Config {
    fn bucket<'a>(&self, job: &'a Job) -> &'a str {
        self.attribute.as_ref().and_then(|name| job.attribute(name)).unwrap_or("")
    }
}

tidegate_plugin::export_throttler!(LeakyBucket);
