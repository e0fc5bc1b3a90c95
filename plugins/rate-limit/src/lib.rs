//! A rate for each value of an attribute: a number of attempts per period, with a burst if it has
//! one.
//!
//! Without `burst` no span of the period has more attempts than the count ([`window`]). With it,
//! each value has a token bucket ([`bucket`]).

mod bucket;
mod window;

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_plugin::{
    About, Answer, Decision, Job, Problem, Round, Seconds, Throttler, export_throttler, state_key,
};

/// The configuration of a queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The attribute whose values have a rate each (default: one rate for all jobs). A job without
    /// the attribute is not limited.
    attribute: Option<String>,
    /// How many attempts start in each period.
    count: u32,
    /// The length of the period (default 1).
    #[serde(default = "one_second")]
    per_seconds: Seconds,
    /// The size of the bucket: how many attempts can start at once after a time without attempts.
    /// Without it, no span of the period has more than the count.
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

/// What is counted of the starts of a value: when it was counted, the milliseconds of the period
/// then, and the debt of a bucket or the starts of a window.
type Stored = (u64, u64, Vec<u64>);

/// The starts that count now, by value.
struct Counted<'a> {
    config: &'a Config,
    round: &'a Round,
    /// Of the values that this call has seen.
    seen: BTreeMap<String, Vec<u64>>,
}

impl Throttler for RateLimit {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        state_version: 3,
        ..About::new(
            "A rate for each value of an attribute: so many attempts per so many seconds, \
             and a burst on request.",
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
        let mut counted = Counted { config, round, seen: BTreeMap::new() };
        let decisions = candidates.iter().map(|job| {
            let Some(value) = config.value(job) else { return Decision::run() };
            let count = config.count(value);
            if count == 0 {
                return Decision::hold(format!("the rate of {} is 0", name(value)));
            }
            if let Some(until) = counted.wait(value) {
                let rate =
                    format!("{count} per {} ms is the rate of {}", config.per(), name(value));
                return Decision::hold_until(until, rate);
            }
            match counted.start(value) {
                Ok(()) => Decision::run(),
                Err(problem) => Decision::hold_until(round.now + config.per(), problem),
            }
        });
        let decisions: Vec<Decision> = decisions.collect();
        // If there is one rate and it is used up, no later job can run. With several, jobs of other
        // values may.
        let held = |decision: &Decision| *decision != Decision::run();
        let more = config.attribute.is_some() || !decisions.iter().any(held);
        Ok(Answer { decisions, more })
    }
}

impl Counted<'_> {
    /// The debt of the bucket of `value`, or the starts in its window.
    fn numbers(&mut self, value: &str) -> &mut Vec<u64> {
        // `entry` would take the value each time.
        if !self.seen.contains_key(value) {
            self.seen.insert(value.to_owned(), self.stored(value));
        }
        self.seen.get_mut(value).expect("it was just inserted")
    }

    /// What still counts of what is stored for `value`.
    fn stored(&self, value: &str) -> Vec<u64> {
        let (config, round) = (self.config, self.round);
        let Some((at, was, numbers)) = round.state.load::<Stored>(&config.key(value)) else {
            return Vec::new();
        };
        let per = config.per();
        let Some(burst) = config.burst else {
            return window::current(&numbers, per, round.now);
        };
        let passed = round.now.saturating_sub(at);
        let paid = passed.saturating_mul(u64::from(config.count(value)));
        let debt = numbers.first().copied().unwrap_or(0);
        let debt = bucket::current(debt, was, per, burst.into(), paid);
        if debt > 0 { vec![debt] } else { Vec::new() }
    }

    /// When the next attempt of `value` may start; none if that is now.
    fn wait(&mut self, value: &str) -> Option<u64> {
        let (per, count) = (self.config.per(), self.config.count(value).into());
        let (burst, now) = (self.config.burst, self.round.now);
        let numbers = self.numbers(value);
        match burst {
            Some(burst) => {
                let debt = numbers.first().copied().unwrap_or(0);
                Some(now + bucket::wait(debt, per, burst.into(), count)?)
            }
            None => window::wait(numbers, count, per),
        }
    }

    /// Counts a start of `value`, until it counts no more.
    ///
    /// # Errors
    ///
    /// The state has no room for it.
    fn start(&mut self, value: &str) -> Result<(), String> {
        let (config, now) = (self.config, self.round.now);
        let (per, count) = (config.per(), u64::from(config.count(value)));
        let mut numbers = self.numbers(value).clone();
        let lasts = if config.burst.is_none() {
            window::start(&mut numbers, count, per, now);
            per
        } else {
            match numbers.first_mut() {
                Some(debt) => *debt += per,
                None => numbers.push(per),
            }
            numbers[0].div_ceil(count)
        };
        let stored: Stored = (now, per, numbers);
        self.round.state.save_until(&config.key(value), &stored, Some(now + lasts))?;
        *self.numbers(value) = stored.2;
        Ok(())
    }
}

impl Config {
    /// The value whose rate a job uses; none if the job is not limited.
    fn value<'a>(&self, job: &'a Job) -> Option<&'a str> {
        match &self.attribute {
            Some(attribute) => job.attribute(attribute),
            None => Some(""),
        }
    }

    fn count(&self, value: &str) -> u32 {
        self.counts.get(value).copied().unwrap_or(self.count)
    }

    /// The key of the state that has what the rate of `value` counts. A rate of the other kind has
    /// others.
    fn key(&self, value: &str) -> String {
        let kind = if self.burst.is_some() { "bucket" } else { "window" };
        state_key(kind, value)
    }

    /// The milliseconds of the period.
    fn per(&self) -> u64 {
        self.per_seconds.millis().max(1)
    }
}

fn name(value: &str) -> &str {
    if value.is_empty() { "this queue" } else { value }
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
            round.state = State::of(round.now, round.state.entries());
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
    fn no_window_ever_has_more_than_its_count() {
        let candidates: String = ["a", "b"]
            .map(|tenant| format!(r#"{{"times": 40, "attributes": {{"tenant": "{tenant}"}}}}"#))
            .join(",");
        let case = format!(r#"{{"name": "", "role": "throttler", "candidates": [{candidates}]}}"#);
        let case = Case::read(&case).unwrap().remove(0);
        for (count, per_seconds) in [(1, "0.05"), (5, "1"), (16, "0.1"), (17, "1"), (90, "2.5")] {
            let text = format!(
                r#"{{"attribute": "tenant", "count": {count}, "per_seconds": {per_seconds}}}"#
            );
            let config: Config = tidegate_plugin::parse(&text).unwrap();
            let per = config.per();
            let (mut round, mut gap) = (case.round(), 1u64);
            let (start, mut starts) = (round.now, Vec::new());
            for _ in 0..600 {
                let answer = RateLimit::decide(&config, &round, &case.jobs()).unwrap();
                let of_a = &answer.decisions[..40];
                starts
                    .extend(of_a.iter().filter(|one| one.action == Action::Run).map(|_| round.now));
                // To the instant that was named, or by some part of a period.
                gap = gap * 7 % 101;
                round.now = match of_a[39].action {
                    Action::Hold(Some(until)) if gap % 2 == 0 => until,
                    Action::Hold(Some(until)) => {
                        assert!(until > round.now && until <= round.now + per + per / 16);
                        round.now + 1 + gap * per / 150
                    }
                    _ => round.now + 1 + gap * per / 150,
                };
                round.state = State::of(round.now, round.state.entries());
            }
            let count = count as usize;
            assert!(
                starts.windows(count + 1).all(|window| window[count] - window[0] >= per),
                "{text}"
            );
            // A start counts up to a sixteenth longer than the period, if the count is over 16.
            let most = if count > 16 { per + per.div_ceil(16) } else { per };
            let periods = (round.now - start) / most;
            assert!(starts.len() as u64 >= periods / 3 * count as u64, "{text}: {}", starts.len());
        }
    }

    #[test]
    fn what_another_kind_of_rate_counted_does_not_count() {
        let jobs = Case::read(r#"{"name": "", "role": "throttler", "candidates": [{"times": 9}]}"#)
            .unwrap()[0]
            .jobs();
        let mut round = Case::read(r#"{"name": "", "role": "throttler"}"#).unwrap()[0].round();
        for config in [r#"{"count": 2}"#, r#"{"count": 2, "burst": 2}"#, r#"{"count": 2}"#] {
            let answer =
                RateLimit::decide(&tidegate_plugin::parse(config).unwrap(), &round, &jobs).unwrap();
            let runs = answer.decisions.iter().filter(|one| one.action == Action::Run).count();
            assert_eq!(runs, 2, "{config}");
            round.now += 1000;
            round.state = State::of(round.now, round.state.entries());
            assert_eq!(round.state.entries().len(), 0, "{config}");
        }
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
        round.state = State::of(round.now, round.state.entries());
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
        let tenant = |number| format!(r#"{{"attributes": {{"tenant": "tenant-{number}"}}}}"#);
        let candidates: Vec<String> = (0..5000).map(tenant).collect();
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
        assert!((2500..5000).contains(&first), "{first}");
        assert_eq!(runs(&round), 0);
        round.now += 1000;
        round.state = State::of(round.now, round.state.entries());
        assert_eq!(runs(&round), first);
    }

    #[test]
    fn a_long_value_has_a_rate_of_its_own() {
        let config: Config =
            tidegate_plugin::parse(r#"{"attribute": "tenant", "count": 1}"#).unwrap();
        let tenant = |end| format!(r#"{{"attributes": {{"tenant": "{}{end}"}}}}"#, "t".repeat(200));
        let candidates = [tenant("a"), tenant("a"), tenant("b")].join(",");
        let text = format!(r#"{{"name": "", "role": "throttler", "candidates": [{candidates}]}}"#);
        let case = Case::read(&text).unwrap().remove(0);
        let answer = RateLimit::decide(&config, &case.round(), &case.jobs()).unwrap();
        let runs: Vec<bool> =
            answer.decisions.iter().map(|decision| decision.action == Action::Run).collect();
        assert_eq!(runs, [true, false, true]);
    }
}
