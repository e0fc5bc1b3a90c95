//! An adaptive limit: each success widens it a little, and a refusal by the target halves it.
//!
//! The limit is called the *window* and is kept in thousandths of a weight unit. As many successes
//! as the window is wide widen it by `increase`. A refusal halves it, at most once per
//! `cut_seconds`, because attempts that began before a cut say nothing about the new window.
//!
//! A window that has reached `max` is not stored. A value for which the state has no room has no
//! window.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_plugin::{
    About, Answer, Decision, Dimension, Ended, Job, Problem, Round, Seconds, Throttler, debug,
    export_throttler, quote, warn,
};

/// The configuration of a queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The attribute whose values have a window each (default: one window for all jobs). A job
    /// without the attribute is not limited.
    attribute: Option<String>,
    /// The widest window, in weight units. Every window starts with it.
    max: u32,
    /// The narrowest window (default 1).
    #[serde(default = "one")]
    min: u32,
    /// By how much a whole window of successes widens the window (default 1).
    #[serde(default = "one")]
    increase: u32,
    /// HTTP statuses that count as refusals (default 429 and 503).
    #[serde(default = "too_many")]
    statuses: Vec<u16>,
    /// Failure reasons that count as refusals (default `not_delivered`).
    #[serde(default = "not_delivered")]
    reasons: Vec<String>,
    /// The shortest time between two cuts of a window (default 1).
    #[serde(default = "one_second")]
    cut_seconds: Seconds,
}

fn one() -> u32 {
    1
}

fn too_many() -> Vec<u16> {
    vec![429, 503]
}

fn not_delivered() -> Vec<String> {
    vec!["not_delivered".to_owned()]
}

fn one_second() -> Seconds {
    Seconds::new(1)
}

/// The stored window of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Window {
    /// Weight units, in thousandths.
    wide: u64,
    /// When it was last cut.
    cut_at: u64,
}

type Windows = BTreeMap<String, Window>;

const KEY: &str = "windows";
const UNIT: u64 = 1000;
/// The part of the state's 16 KiB that is used.
const BYTES: usize = 15_000;

/// The throttler.
#[derive(Debug)]
pub struct Adaptive;

impl Throttler for Adaptive {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        state_version: 1,
        group_by: &["*"],
        needs_ended: true,
        ..About::new(
            "Widens a limit while its target keeps up, and halves it when the target refuses.",
        )
    };

    fn check(config: &Config) -> Vec<Problem> {
        let mut problems = Vec::new();
        if config.min == 0 {
            problems
                .push(Problem::new("/min", "must be at least 1, or nothing would ever run again"));
        }
        if config.max < config.min {
            problems.push(Problem::new("/max", format!("must be at least min, {}", config.min)));
        }
        problems
    }

    fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
        let mut windows: Windows = round.state.load(KEY).unwrap_or_default();
        let mut changed = false;
        let mut bytes: usize = windows.keys().map(|value| entry_bytes(value)).sum();
        for ended in &round.ended {
            changed |= config.learn(&mut windows, &mut bytes, ended, round.now);
        }
        // `retain` would take 10 KB of code.
        let mut kept = Windows::new();
        for (value, window) in &windows {
            if window.wide < config.most() {
                kept.insert(value.clone(), *window);
            }
        }
        if changed {
            if kept.is_empty() {
                round.state.delete(KEY);
            } else {
                round.state.save(KEY, &kept)?;
            }
        }

        let mut used = match &config.attribute {
            Some(attribute) => round.running.weights(&Dimension::attribute(attribute)),
            None => BTreeMap::new(),
        };
        if config.attribute.is_none() {
            used.insert(String::new(), round.running.weight());
        }
        let mut closed: BTreeSet<&str> = BTreeSet::new();
        let decisions = candidates.iter().map(|job| {
            let Some(value) = config.value(|name| job.attribute(name)) else {
                return Decision::run();
            };
            let (wide, weight) = (config.wide(&kept, value) / UNIT, u64::from(job.weight));
            let used = used.entry(value.to_owned()).or_default();
            // A job heavier than the window runs alone. Otherwise it would wait forever.
            if closed.contains(value) || (*used > 0 && *used + weight > wide) {
                // No later job of the same value overtakes it.
                closed.insert(value);
                return Decision::hold(format!(
                    "{used} of {wide} run, and {} is the most",
                    config.max
                ));
            }
            *used += weight;
            Decision::run()
        });
        let decisions = decisions.collect();
        Ok(Answer { decisions, more: config.attribute.is_some() || closed.is_empty() })
    }
}

impl Config {
    /// The value whose window applies; none if the job is not limited.
    fn value<'a>(&self, attribute: impl FnOnce(&str) -> Option<&'a str>) -> Option<&'a str> {
        self.attribute.as_deref().map_or(Some(""), attribute)
    }

    fn most(&self) -> u64 {
        u64::from(self.max) * UNIT
    }

    fn wide(&self, windows: &Windows, value: &str) -> u64 {
        windows.get(value).map_or(self.most(), |window| {
            window.wide.clamp(u64::from(self.min) * UNIT, self.most())
        })
    }

    /// Widens or cuts the window of an ended attempt. Returns whether it changed.
    fn learn(&self, windows: &mut Windows, bytes: &mut usize, ended: &Ended, now: u64) -> bool {
        let Some(value) = self.value(|name| ended.attribute(name)) else { return false };
        let wide = self.wide(windows, value);
        let cut_at = windows.get(value).map_or(0, |window| window.cut_at);
        let refused = ended.status.is_some_and(|status| self.statuses.contains(&status))
            || ended.reason.as_ref().is_some_and(|reason| self.reasons.contains(reason));
        let window = if ended.succeeded && wide < self.most() {
            let wider = wide + (u64::from(self.increase) * UNIT * UNIT / wide).max(1);
            Window { wide: wider.min(self.most()), cut_at }
        } else if refused && now >= cut_at.saturating_add(self.cut_seconds.millis()) {
            let narrower = (wide / 2).max(u64::from(self.min) * UNIT);
            debug!("{value}: cut to {}", narrower / UNIT);
            Window { wide: narrower, cut_at: now }
        } else {
            return false;
        };
        match windows.get_mut(value) {
            Some(known) => *known = window,
            None if *bytes + entry_bytes(value) > BYTES => {
                warn!("{value} is not limited: the state has no room for more values");
                return false;
            }
            None => {
                *bytes += entry_bytes(value);
                windows.insert(value.to_owned(), window);
            }
        }
        true
    }
}

/// The largest size of a window in the state, in bytes.
fn entry_bytes(value: &str) -> usize {
    quote(value).len() + 60
}

export_throttler!(Adaptive);

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_plugin::{Action, State, testing::Case};

    #[test]
    fn the_cases_hold() {
        tidegate_plugin::testing::throttler_cases::<Adaptive>("cases");
    }

    #[test]
    fn windows_beyond_the_bound_of_the_state_are_not_stored() {
        let config: Config =
            tidegate_plugin::parse(r#"{"attribute": "host", "max": 200}"#).unwrap();
        let ended: Vec<String> = (0..1000)
            .map(|number| {
                format!(
                    r#"{{"reason": "not_delivered", "attributes": {{"host": "{number}{}"}}}}"#,
                    "\\u0001".repeat(200)
                )
            })
            .collect();
        let text =
            format!(r#"{{"name": "", "role": "throttler", "ended": [{}]}}"#, ended.join(","));
        let round = Case::read(&text).unwrap().remove(0).round();
        assert!(Adaptive::decide(&config, &round, &[]).is_ok());
        assert!(round.state.load::<Windows>(KEY).unwrap().len() > 5);
    }

    /// The target accepts 20 attempts at a time and refuses the others.
    #[test]
    fn it_settles_around_what_the_target_takes() {
        let config: Config = tidegate_plugin::parse(r#"{"max": 200}"#).unwrap();
        let case = |text: &str| Case::read(text).unwrap().remove(0);
        let mut round = case(r#"{"name": "", "role": "throttler"}"#).round();
        let jobs =
            case(r#"{"name": "", "role": "throttler", "candidates": [{"times": 300}]}"#).jobs();
        let mut runs = Vec::new();
        for _ in 0..400 {
            let answer = Adaptive::decide(&config, &round, &jobs).unwrap();
            let run =
                answer.decisions.iter().filter(|decision| decision.action == Action::Run).count();
            runs.push(run);
            let (taken, refused) = (run.min(20), run.saturating_sub(20));
            let ended = format!(
                r#"{{"name": "", "role": "throttler", "ended": [
                    {{"times": {taken}}},
                    {{"reason": "failed", "status": 503, "times": {refused}}}]}}"#
            );
            round.ended = case(&ended).round().ended;
            round.state = State::of(round.now, round.state.entries());
            round.now += 2000;
        }
        let settled = &runs[50..];
        assert!(settled.iter().all(|run| (10..=22).contains(run)), "{settled:?}");
        let mean = settled.iter().sum::<usize>() / settled.len();
        assert!((14..=18).contains(&mean), "the saw tooth between half and whole: {mean}");
    }
}
