//! A budget of starts by local time of day: fewer while people work, more at night.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_plugin::{
    About, Answer, Decision, Job, Problem, Round, Throttler,
    calendar::{date, day_number},
    clock::{self, LocalTime},
};

/// The configuration of a queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The IANA name of the time zone (default UTC).
    #[serde(default = "utc")]
    zone: String,
    /// How many attempts may start from this time of day on, until the next time of the list.
    starts: BTreeMap<String, u32>,
}

fn utc() -> String {
    "UTC".to_owned()
}

/// The throttler.
#[derive(Debug)]
pub struct TimeOfDay;

impl Throttler for TimeOfDay {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        state_version: 1,
        ..About::new("Starts so many attempts in each part of the day, by local time.")
    };

    fn check(config: &Config) -> Vec<Problem> {
        let mut problems = Vec::new();
        if clock::local(&config.zone, 0).is_err() {
            problems.push(Problem::new("/zone", "must be the IANA name of a time zone"));
        }
        if config.starts.is_empty() {
            problems.push(Problem::new("/starts", "must have at least one time of day"));
        }
        let wrong = config.starts.keys().filter(|time| parse(time).is_none());
        let problem = |time| Problem::new(format!("/starts/{time}"), "must be like 08:00");
        problems.extend(wrong.map(problem));
        problems
    }

    fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
        let shown = clock::local(&config.zone, round.now)?.time;
        let time = format!("{:02}:{:02}", shown.hour, shown.minute);
        // Before the first time of a day, the last one of the day before applies.
        let part = config.starts.range(..=time).next_back().or(config.starts.last_key_value());
        let (from, most) = part.ok_or("no time of day is configured")?;
        let ends = config.next(shown, round.now)?;
        // The count expires with its part of the day.
        let mut used: u32 = round.state.load("used").unwrap_or(0);
        let before = used;
        let decide = |_: &Job| {
            if used < *most {
                used += 1;
                return Decision::run();
            }
            Decision::hold_until(ends, format!("{most} attempts started since {from}"))
        };
        let decisions = candidates.iter().map(decide).collect();
        if used > before {
            round.state.save_until("used", &used, Some(ends))?;
        }
        Ok(Answer { decisions, more: used < *most })
    }
}

impl Config {
    /// When the next part of the day begins: after `now`, which the zone shows as `shown`.
    fn next(&self, shown: LocalTime, now: u64) -> Result<u64, String> {
        let today = day_number(shown.year.into(), shown.month.into(), shown.day.into());
        for number in today..today + 3 {
            let (year, month, day) = date(number);
            for (hour, minute) in self.starts.keys().filter_map(|time| parse(time)) {
                let (year, month, day) = (year as i32, month as u8, day as u8);
                let time = LocalTime { year, month, day, hour, minute, second: 0, millisecond: 0 };
                let at = clock::instant(&self.zone, time)?;
                // In the hour that comes twice in autumn, a later time may be in the past.
                if at > now {
                    return Ok(at);
                }
            }
        }
        Err("no part of the day begins within two days".to_owned())
    }
}

/// Hour and minute of a time such as `08:00`.
fn parse(time: &str) -> Option<(u8, u8)> {
    let (hour, minute) = time.split_once(':').filter(|_| time.len() == 5)?;
    let (hour, minute) = (hour.parse().ok()?, minute.parse().ok()?);
    (hour < 24 && minute < 60).then_some((hour, minute))
}

tidegate_plugin::export_throttler!(TimeOfDay);
