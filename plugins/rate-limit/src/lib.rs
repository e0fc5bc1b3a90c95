//! A rate for each value of an attribute: a number of attempts per period, with a burst.
//!
//! Each value has a bucket. It is stored as its *debt*: what it lacks until it is full. A job costs
//! `per`, the milliseconds of the period. A debt shrinks by `count` each millisecond. All of them
//! are whole numbers, so that no fraction of a token is lost. A full bucket is not stored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_plugin::{
    About, Answer, Decision, Job, Problem, Round, Seconds, Throttler, export_throttler, quote,
};

/// The configuration of a queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The attribute whose values have a bucket each (default: one bucket for all jobs). A job
    /// without the attribute is not limited.
    attribute: Option<String>,
    /// How many attempts start in each period.
    count: u32,
    /// The length of the period (default 1).
    #[serde(default = "one_second")]
    per_seconds: Seconds,
    /// How many attempts can start at once after a time without attempts (default: the count).
    burst: Option<u32>,
    /// Counts that differ, by value. 0 stops the value.
    #[serde(default)]
    counts: BTreeMap<String, u32>,
}

fn one_second() -> Seconds {
    Seconds::new(1)
}

/// The throttler.
#[derive(Debug)]
pub struct RateLimit;

/// The stored state.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Buckets {
    /// The time for which the debts were computed.
    at: u64,
    /// The cost of a job at that time.
    per: u64,
    /// The debts by value.
    debts: BTreeMap<String, u64>,
}

const KEY: &str = "buckets";
/// The part of the state's 16 KiB that is used.
const BYTES: usize = 15_000;

impl Throttler for RateLimit {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        state_version: 1,
        ..About::new(
            "A rate for each value of an attribute: so many attempts per so many seconds, \
             with a burst.",
        )
    };

    fn check(config: &Config) -> Vec<Problem> {
        let mut problems = Vec::new();
        if !(1..=86_400_000).contains(&config.per_seconds.millis()) {
            problems.push(Problem::new("/per_seconds", "must be 0.001 to 86400"));
        }
        if config.burst == Some(0) {
            problems.push(Problem::new("/burst", "must be at least 1, or nothing would ever run"));
        }
        problems
    }

    fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
        let per = config.per_seconds.millis().max(1);
        let before: Buckets = round.state.load(KEY).unwrap_or_default();
        let changed_before = !before.debts.is_empty();
        let mut debts = config.drained(before, per, round.now);
        let mut bytes: usize = debts.keys().map(|value| entry_bytes(value)).sum();
        let decisions = candidates.iter().map(|job| {
            let Some(value) = config.value(job) else { return Decision::run() };
            let count = u64::from(config.count(value));
            if count == 0 {
                return Decision::hold(format!("the rate of {} is 0", name(value)));
            }
            let debt = debts.get(value).copied().unwrap_or(0);
            let most = per * u64::from(config.burst(value));
            if debt + per > most {
                let wait = (debt + per - most).div_ceil(count);
                return Decision::hold_until(
                    round.now + wait,
                    format!("{count} per {} ms is the rate of {}", per, name(value)),
                );
            }
            if debt == 0 && bytes + entry_bytes(value) > BYTES {
                return Decision::hold(
                    "too many values are limited at once for the state of a plugin",
                );
            }
            if debt == 0 {
                bytes += entry_bytes(value);
            }
            debts.insert(value.to_owned(), debt + per);
            Decision::run()
        });
        let decisions: Vec<Decision> = decisions.collect();
        if debts.is_empty() {
            // Without debts and without a stored state, nothing is written.
            if changed_before {
                round.state.delete(KEY);
            }
        } else {
            round.state.save(KEY, &Buckets { at: round.now, per, debts })?;
        }
        // If there is one bucket and it is empty, no later job can run. With several, jobs of other
        // values may.
        let held = |decision: &Decision| *decision != Decision::run();
        let more = config.attribute.is_some() || !decisions.iter().any(held);
        Ok(Answer { decisions, more })
    }
}

impl Config {
    /// The value whose bucket a job uses; none if the job is not limited.
    fn value<'a>(&self, job: &'a Job) -> Option<&'a str> {
        match &self.attribute {
            Some(attribute) => job.attribute(attribute),
            None => Some(""),
        }
    }

    fn count(&self, value: &str) -> u32 {
        self.counts.get(value).copied().unwrap_or(self.count)
    }

    fn burst(&self, value: &str) -> u32 {
        self.burst.unwrap_or_else(|| self.count(value))
    }

    /// The debts at `now`. A debt is at most that of an empty bucket. Otherwise, after count or
    /// burst were lowered, the debt of the larger bucket would hold all jobs until it is paid off.
    fn drained(&self, before: Buckets, per: u64, now: u64) -> BTreeMap<String, u64> {
        let passed = now.saturating_sub(before.at);
        let mut debts = BTreeMap::new();
        // `retain` would take 10 KB of code.
        for (value, debt) in before.debts {
            // If the period has changed, the debt stays the same number of jobs.
            let debt = if before.per == per {
                debt
            } else {
                (u128::from(debt) * u128::from(per) / u128::from(before.per.max(1))) as u64
            };
            let debt = debt.min(per * u64::from(self.burst(&value)));
            let debt = debt.saturating_sub(passed.saturating_mul(u64::from(self.count(&value))));
            if debt > 0 {
                debts.insert(value, debt);
            }
        }
        debts
    }
}

fn name(value: &str) -> &str {
    if value.is_empty() { "this queue" } else { value }
}

/// The largest size of a value in the state, in bytes.
fn entry_bytes(value: &str) -> usize {
    quote(value).len() + 24
}

export_throttler!(RateLimit);

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_plugin::{Action, State, testing::Case};

    #[test]
    fn the_cases_hold() {
        tidegate_plugin::testing::throttler_cases::<RateLimit>("cases");
    }

    #[test]
    fn the_long_term_rate_and_the_burst_are_exact() {
        let config: Config =
            tidegate_plugin::parse(r#"{"count": 7, "per_seconds": 3, "burst": 4}"#).unwrap();
        let mut round = Case::read(r#"{"name": "", "role": "throttler"}"#).unwrap()[0].round();
        let jobs =
            Case::read(r#"{"name": "", "role": "throttler", "candidates": [{"times": 10}]}"#)
                .unwrap()[0]
                .jobs();
        let start = round.now;
        let mut starts = Vec::new();
        while round.now < start + 3_000_000 {
            let answer = RateLimit::decide(&config, &round, &jobs).unwrap();
            starts.extend(
                answer
                    .decisions
                    .iter()
                    .filter(|decision| decision.action == Action::Run)
                    .map(|_| round.now),
            );
            // The next call is exactly at the time that the plugin named.
            let Action::Hold(Some(until)) = answer.decisions[9].action else {
                panic!("{:?}", answer.decisions[9])
            };
            assert!(until > round.now);
            round.now = until;
            round.state = State::of(round.state.entries());
        }
        assert_eq!(
            starts.len(),
            7000 + 3,
            "1000 periods, and the burst that was full at the start"
        );
        // In any 4 + 7n starts, the last is at least n periods after the first, less a millisecond
        // of rounding.
        assert!(starts.windows(4 + 7).all(|window| window[10] - window[0] >= 2999));
    }

    #[test]
    fn a_lowered_rate_holds_jobs_for_at_most_its_period() {
        let jobs =
            Case::read(r#"{"name": "", "role": "throttler", "candidates": [{"times": 1000}]}"#)
                .unwrap()[0]
                .jobs();
        let mut round = Case::read(r#"{"name": "", "role": "throttler"}"#).unwrap()[0].round();
        let decide = |config: &str, round: &Round| {
            RateLimit::decide(&tidegate_plugin::parse(config).unwrap(), round, &jobs).unwrap()
        };
        assert_eq!(
            decide(r#"{"count": 1000, "per_seconds": 60}"#, &round).decisions[999].action,
            Action::Run
        );
        round.state = State::of(round.state.entries());
        let Action::Hold(Some(until)) =
            decide(r#"{"count": 1, "per_seconds": 60}"#, &round).decisions[0].action
        else {
            panic!()
        };
        assert_eq!(until, round.now + 60_000);
    }

    #[test]
    fn values_beyond_the_bound_of_the_state_wait() {
        let config: Config =
            tidegate_plugin::parse(r#"{"attribute": "tenant", "count": 1}"#).unwrap();
        let candidates: Vec<String> = (0..1000)
            .map(|number| format!(r#"{{"attributes": {{"tenant": "tenant-{number}"}}}}"#))
            .collect();
        let text = format!(
            r#"{{"name": "", "role": "throttler", "candidates": [{}]}}"#,
            candidates.join(",")
        );
        let case = Case::read(&text).unwrap().remove(0);
        let mut round = case.round();
        let runs = |round: &Round| {
            let answer = RateLimit::decide(&config, round, &case.jobs()).unwrap();
            answer.decisions.iter().filter(|decision| decision.action == Action::Run).count()
        };
        let first = runs(&round);
        assert!((300..1000).contains(&first), "{first}");
        assert_eq!(runs(&round), 0);
        round.now += 1000;
        assert_eq!(runs(&round), first);
    }
}
