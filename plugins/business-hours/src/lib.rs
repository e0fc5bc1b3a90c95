//! Starts jobs only during opening hours, by the local time of a zone, and not on closed days.
//!
//! An interval belongs to the day on which it begins. `22:00-06:00` of a Friday ends on Saturday
//! morning, and is closed if the Friday is closed.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de};
use tidegate_plugin::{
    About, Answer, Decision, Job, Problem, Round, Throttler,
    calendar::{date, day_number, weekday},
    clock::{self, LocalTime},
    export_throttler,
};

/// The configuration of a queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The time zone (default UTC), by its IANA name.
    #[serde(default = "utc")]
    zone: String,
    /// Opening hours by days: `mon`, `mon-fri`, `sat,sun`.
    hours: BTreeMap<Days, Vec<Interval>>,
    /// Closed days: `2026-05-01`, or `12-25` for every year.
    #[serde(default)]
    closed: Vec<Closed>,
}

fn utc() -> String {
    "UTC".to_owned()
}

/// Days of the week, one bit each. Sunday is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Days(u8);

/// `09:00-17:30`, in minutes after midnight. An interval whose end is not after its beginning ends on
/// the next day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interval {
    from: i64,
    until: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Closed {
    year: Option<i64>,
    month: i64,
    day: i64,
}

/// How many days ahead the next opening is searched.
const AHEAD: i64 = 366;
/// The minutes of a day.
const DAY: i64 = 24 * 60;

/// The throttler.
#[derive(Debug)]
pub struct BusinessHours;

impl Throttler for BusinessHours {
    type Config = Config;
    const ABOUT: About = About {
        config_schema: Some(include_str!("../config.schema.json")),
        ..About::new("Starts jobs during opening hours, and not on the days that are closed.")
    };

    fn check(config: &Config) -> Vec<Problem> {
        let mut problems = Vec::new();
        if clock::local(&config.zone, 0).is_err() {
            let message = "must be the IANA name of a time zone such as Europe/Berlin";
            problems.push(Problem::new("/zone", message));
        }
        if config.hours.iter().all(|(_, intervals)| intervals.is_empty()) {
            problems.push(Problem::new("/hours", "must open at least once a week"));
        }
        problems
    }

    fn decide(config: &Config, round: &Round, candidates: &[Job]) -> Result<Answer, String> {
        let now = round.now;
        let decision = match config.opening(now)? {
            Some(opens) if opens <= now => Decision::run(),
            Some(opens) => {
                let shown = clock::local(&config.zone, opens)?.time;
                Decision::hold_until(opens, format!("closed until {}", wall(shown)))
            }
            None => Decision::hold("closed for a year to come"),
        };
        let more = decision == Decision::run();
        Ok(Answer { decisions: vec![decision; candidates.len()], more })
    }
}

impl Config {
    /// The beginning of the interval that contains `now`, or of the next interval.
    fn opening(&self, now: u64) -> Result<Option<u64>, String> {
        let LocalTime { year, month, day, .. } = clock::local(&self.zone, now)?.time;
        let today = day_number(year.into(), month.into(), day.into());
        let mut next: Option<(i64, u64)> = None;
        // An interval that began yesterday may still be open.
        for day in today - 1..=today + AHEAD {
            // Days are in order; the intervals of a day may not be, and may end on the next.
            if next.is_some_and(|(found, _)| day > found + 2) {
                break;
            }
            if self.closed.iter().any(|closed| closed.is(day)) {
                continue;
            }
            let on_day = |(days, _): &(&Days, &Vec<Interval>)| days.0 & (1 << weekday(day)) != 0;
            for interval in self.hours.iter().filter(on_day).flat_map(|(_, intervals)| intervals) {
                let from = self.instant(day, interval.from)?;
                let until = self.instant(day, interval.until)?;
                if until > now && from < until && next.is_none_or(|(_, next)| from < next) {
                    next = Some((day, from));
                }
            }
        }
        Ok(next.map(|(_, from)| from))
    }

    /// The time at which the zone shows `minutes` after the midnight that begins the day `number`.
    fn instant(&self, number: i64, minutes: i64) -> Result<u64, String> {
        let (year, month, day) = date(number + minutes.div_euclid(DAY));
        let minutes = minutes.rem_euclid(DAY);
        let time = LocalTime {
            year: year as i32,
            month: month as u8,
            day: day as u8,
            hour: (minutes / 60) as u8,
            minute: (minutes % 60) as u8,
            second: 0,
            millisecond: 0,
        };
        clock::instant(&self.zone, time)
    }
}

impl Closed {
    fn is(&self, number: i64) -> bool {
        let (year, month, day) = date(number);
        self.year.is_none_or(|closed| closed == year) && self.month == month && self.day == day
    }
}

/// `mon 2026-01-05 09:00`.
fn wall(time: LocalTime) -> String {
    let LocalTime { year, month, day, hour, minute, .. } = time;
    let name = NAMES[weekday(day_number(year.into(), month.into(), day.into())) as usize];
    format!("{name} {year}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

const NAMES: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Days {
    fn read(text: &str) -> Option<Self> {
        let place = |name: &str| NAMES.iter().position(|known| *known == name.trim());
        let mut days = 0;
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (place(first)?, place(last)?);
            let mut day = first;
            days |= 1 << last;
            while day != last {
                days |= 1 << day;
                day = (day + 1) % 7;
            }
        }
        Some(Self(days))
    }
}

impl Interval {
    fn read(text: &str) -> Option<Self> {
        let minutes = |clock: &str| {
            let (hour, minute) = clock.trim().split_once(':')?;
            let (hour, minute): (i64, i64) = (hour.parse().ok()?, minute.parse().ok()?);
            ((0..=24).contains(&hour) && (0..60).contains(&minute) && hour * 60 + minute <= 24 * 60)
                .then_some(hour * 60 + minute)
        };
        let (from, until) = text.split_once('-')?;
        let (from, until) = (minutes(from)?, minutes(until)?);
        let until = if until <= from { until + 24 * 60 } else { until };
        Some(Self { from, until })
    }
}

impl Closed {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.rsplit('-');
        let mut number = |digits: usize| {
            let part = parts.next()?;
            (part.len() == digits).then(|| part.parse::<i64>().ok()).flatten()
        };
        let (day, month) = (number(2)?, number(2)?);
        let year = if text.len() > 5 { Some(number(4)?) } else { None };
        ((1..=12).contains(&month) && (1..=31).contains(&day) && parts.next().is_none())
            .then_some(Self { year, month, day })
    }
}

macro_rules! written {
    ($($type:ident $form:literal)*) => { $(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::read(&text).ok_or_else(|| de::Error::custom(concat!("must be like ", $form)))
            }
        }
    )* };
}

written! {
    Days "mon, mon-fri or sat,sun"
    Interval "09:00-17:30"
    Closed "2026-05-01 or 12-25"
}

export_throttler!(BusinessHours);

#[cfg(test)]
mod tests {
    #[test]
    fn the_cases_hold() {
        tidegate_plugin::testing::throttler_cases::<super::BusinessHours>("cases");
    }
}
