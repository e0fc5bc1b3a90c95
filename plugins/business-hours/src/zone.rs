//! A time zone as a POSIX rule: `CET-1CEST,M3.5.0,M10.5.0/3`.
//!
//! A component has no time zone database. The database's file for a zone ends with this rule:
//! `tail -n 1 /usr/share/zoneinfo/Europe/Berlin`. It is valid from the zone's last change of law.

use serde::{Deserialize, Deserializer, de};
use tidegate_plugin::calendar::{DAY, date, day_number, weekday};

/// The offset from UTC, in milliseconds, and when it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    standard: i64,
    summer: Option<Summer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Summer {
    offset: i64,
    begins: Turn,
    ends: Turn,
}

/// `M10.5.0/3`: the last (5th) Sunday (0) of October, at three o'clock in the local time before the
/// change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    month: i64,
    week: i64,
    weekday: i64,
    time: i64,
}

impl Zone {
    pub const UTC: Self = Self { standard: 0, summer: None };

    /// Parses a rule.
    fn read(text: &str) -> Option<Self> {
        let mut rest = text;
        name(&mut rest)?;
        // In POSIX, offsets west of UTC are positive.
        let standard = -clock(&mut rest)?;
        if rest.is_empty() {
            return Some(Self { standard, summer: None });
        }
        name(&mut rest)?;
        let offset = if rest.starts_with(',') { standard + 3_600_000 } else { -clock(&mut rest)? };
        let begins = Turn::read(&mut rest)?;
        let ends = Turn::read(&mut rest)?;
        rest.is_empty().then_some(Self { standard, summer: Some(Summer { offset, begins, ends }) })
    }

    /// The offset from UTC at this instant.
    fn offset(&self, utc: i64) -> i64 {
        let Some(Summer { offset, begins, ends }) = self.summer else { return self.standard };
        let (year, ..) = date((utc + self.standard).div_euclid(DAY));
        let (begins, ends) = (begins.local(year) - self.standard, ends.local(year) - offset);
        // In the southern hemisphere, summer time spans the turn of the year.
        let summer =
            if begins < ends { begins <= utc && utc < ends } else { utc < ends || begins <= utc };
        if summer { offset } else { self.standard }
    }

    /// The local time at an instant, as if it were UTC.
    pub fn local(&self, utc: i64) -> i64 {
        utc + self.offset(utc)
    }

    /// The instant at which the local time is `local`. A local time in a skipped hour is read as
    /// standard time. For a local time that occurs twice, the second instant.
    pub fn utc(&self, local: i64) -> i64 {
        let by_standard = local - self.standard;
        let by_its_own = local - self.offset(by_standard);
        if self.local(by_its_own) == local { by_its_own } else { by_standard }
    }
}

impl Turn {
    fn read(rest: &mut &str) -> Option<Self> {
        eat(rest, ",M")?;
        let month = digits(rest)?;
        eat(rest, ".")?;
        let week = digits(rest)?;
        eat(rest, ".")?;
        let weekday = digits(rest)?;
        let time = if eat(rest, "/").is_some() { clock(rest)? } else { 7_200_000 };
        let good = (1..=12).contains(&month) && (1..=5).contains(&week) && weekday < 7;
        good.then_some(Self { month, week, weekday, time })
    }

    /// When the change is in a year, in the local time before it.
    fn local(self, year: i64) -> i64 {
        let first = day_number(year, self.month, 1);
        let next_month = if self.month == 12 {
            day_number(year + 1, 1, 1)
        } else {
            day_number(year, self.month + 1, 1)
        };
        let mut day = first + (self.weekday - weekday(first)).rem_euclid(7) + (self.week - 1) * 7;
        while day >= next_month {
            day -= 7;
        }
        day * DAY + self.time
    }
}

fn eat(rest: &mut &str, start: &str) -> Option<()> {
    *rest = rest.strip_prefix(start)?;
    Some(())
}

fn digits(rest: &mut &str) -> Option<i64> {
    let length = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, after) = rest.split_at(length);
    *rest = after;
    if length > 3 { None } else { number.parse().ok() }
}

/// A zone's name, which has no effect: letters, or any text in angle brackets.
fn name(rest: &mut &str) -> Option<()> {
    if let Some(quoted) = rest.strip_prefix('<') {
        *rest = quoted.split_once('>')?.1;
        return Some(());
    }
    let length = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
    *rest = &rest[length..];
    (length >= 3).then_some(())
}

/// `-5`, `5:30` or `1:00:00`, in milliseconds.
fn clock(rest: &mut &str) -> Option<i64> {
    let sign = if eat(rest, "-").is_some() { -1 } else { eat(rest, "+").map_or(1, |()| 1) };
    let mut millis = digits(rest)? * 3_600_000;
    for unit in [60_000, 1000] {
        if eat(rest, ":").is_some() {
            millis += digits(rest).filter(|number| *number < 60)? * unit;
        }
    }
    // POSIX allows up to a week, so that a rule can name the following day.
    (millis <= 167 * 3_600_000).then_some(sign * millis)
}

impl<'de> Deserialize<'de> for Zone {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::read(&text).ok_or_else(|| {
            de::Error::custom(
                "must be a rule like UTC0, <+0530>-5:30 or CET-1CEST,M3.5.0,M10.5.0/3",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(rule: &str, year: i64, month: i64, day: i64, hour: i64, minute: i64) -> i64 {
        let utc = day_number(year, month, day) * DAY + hour * 3_600_000 + minute * 60_000;
        Zone::read(rule).expect(rule).offset(utc) / 60_000
    }

    #[test]
    fn the_rules_of_the_world_say_when_the_clocks_change() {
        let berlin = "CET-1CEST,M3.5.0,M10.5.0/3";
        assert_eq!(
            [minutes(berlin, 2026, 3, 29, 0, 59), minutes(berlin, 2026, 3, 29, 1, 0)],
            [60, 120]
        );
        assert_eq!(
            [minutes(berlin, 2026, 10, 25, 0, 59), minutes(berlin, 2026, 10, 25, 1, 0)],
            [120, 60]
        );
        let new_york = "EST5EDT,M3.2.0,M11.1.0";
        assert_eq!(
            [minutes(new_york, 2026, 3, 8, 6, 59), minutes(new_york, 2026, 3, 8, 7, 0)],
            [-300, -240]
        );
        assert_eq!(
            [minutes(new_york, 2026, 11, 1, 5, 59), minutes(new_york, 2026, 11, 1, 6, 0)],
            [-240, -300]
        );
        let sydney = "AEST-10AEDT,M10.1.0,M4.1.0/3";
        assert_eq!(
            [
                minutes(sydney, 2026, 1, 1, 0, 0),
                minutes(sydney, 2026, 7, 1, 0, 0),
                minutes(sydney, 2026, 12, 31, 23, 0)
            ],
            [660, 600, 660]
        );
        let nuuk = "<-02>2<-01>,M3.5.0/-1,M10.5.0/0";
        assert_eq!(
            [minutes(nuuk, 2026, 3, 29, 0, 59), minutes(nuuk, 2026, 3, 29, 1, 0)],
            [-120, -60]
        );
        let gaza = "EET-2EEST,M3.4.4/50,M10.4.4/50";
        assert_eq!(
            [minutes(gaza, 2026, 3, 27, 23, 59), minutes(gaza, 2026, 3, 28, 0, 0)],
            [120, 180]
        );
        assert_eq!(minutes("<+0545>-5:45", 2026, 1, 1, 0, 0), 345);
        assert_eq!(minutes("UTC0", 2026, 1, 1, 0, 0), 0);
    }

    #[test]
    fn what_is_not_a_rule_is_refused() {
        for text in [
            "",
            "Europe/Berlin",
            "CET",
            "CET-1CEST",
            "CET-1CEST,M3.5.0",
            "CET-1CEST,M13.5.0,M10.5.0",
            "CET-1CEST,J60,J300",
            "UTC0 ",
            "A1",
            "<+01-1",
        ] {
            assert_eq!(Zone::read(text), None, "{text}");
        }
    }

    #[test]
    fn the_clock_on_the_wall_leads_back_to_its_instant() {
        let zone = Zone::read("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let start = day_number(2026, 1, 1) * DAY;
        let changes = (0..365 * 24)
            .map(|hour| start + hour * 3_600_000)
            .filter(|utc| zone.utc(zone.local(*utc)) != *utc)
            .count();
        assert_eq!(changes, 1, "the first of the two hours of the autumn");
        let skipped = day_number(2026, 3, 29) * DAY + 2 * 3_600_000;
        assert_eq!(zone.utc(skipped), day_number(2026, 3, 29) * DAY + 3_600_000);
    }
}
