//! Earliest deadline first: free slots go to the jobs whose deadline is next. A job that cannot
//! meet its deadline any more can be dropped, so that it does not make others late.

use std::collections::BTreeSet;

use serde::Deserialize;
use tidegate_plugin::{About, Answer, Decision, Job, Round, Seconds, Throttler};

/// The configuration of a queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// How long an attempt takes. A job with less time left cannot meet its deadline (default 0).
    #[serde(default)]
    needs_seconds: Seconds,
    /// Whether jobs that cannot meet their deadline are dropped (default false: they go last).
    #[serde(default)]
    drop_late: bool,
}

/// The throttler.
#[derive(Debug)]
pub struct EarliestDeadline;

impl Throttler for EarliestDeadline {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        ..About::new("Starts the jobs whose deadline is next, and may drop late ones.")
    };

    fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
        // Without a limit of the queue, only the room of the workers counts.
        let (running, mut room) = (round.running.weight(), round.room);
        let left = |limit| u64::from(limit).saturating_sub(running);
        let mut free = round.concurrency.map_or(u64::MAX, left);
        let latest = round.now + config.needs_seconds.millis();
        let is_late = |job: &Job| deadline(job).is_some_and(|deadline| deadline < latest);

        // Late jobs go last. Without a deadline, a job goes after those that have one.
        let mut turns: Vec<&Job> = candidates.iter().collect();
        turns.sort_by_key(|job| (is_late(job), deadline(job).unwrap_or(u64::MAX)));
        turns.retain(|job| !(config.drop_late && is_late(job)));
        let fits = |job: &&Job| {
            let fits = u64::from(job.weight) <= free && room > 0;
            if fits {
                (free, room) = (free - u64::from(job.weight), room - 1);
            }
            fits
        };
        let wanted = turns.len();
        // A job that does not fit after the earlier turns ends the turns of this call. It is a
        // candidate of the next call only if it fits then.
        let runs: BTreeSet<&str> =
            turns.into_iter().take_while(fits).map(|job| job.id.as_str()).collect();

        let decide = |job: &Job| {
            if runs.contains(job.id.as_str()) {
                Decision::run()
            } else if config.drop_late && is_late(job) {
                Decision::drop("it cannot meet its deadline any more")
            } else if is_late(job) {
                Decision::hold("it cannot meet its deadline any more, and goes last")
            } else {
                Decision::hold("jobs with an earlier deadline go first")
            }
        };
        let decisions = candidates.iter().map(decide).collect();
        Ok(Answer { decisions, more: runs.len() == wanted })
    }
}

/// When the job has to be done, or at least to have started.
fn deadline(job: &Job) -> Option<u64> {
    job.deadline_at.or(job.expires_at)
}

tidegate_plugin::export_throttler!(EarliestDeadline);
