//! Windows: at which local times a job may start.
//!
//! A window opens on each of its days, in its zone's local time:
//!
//! ```text
//!   from 22:00, to 06:00, days fri       fri 22:00 ├────────────────┤ sat 06:00, exclusive
//! ```
//!
//! When clocks change, a window opens at the **first** instant at which the local clock shows
//! `from` or later. It closes at the instant from which the clock **always** shows `to` or later.
//! So:
//!
//! - An edge inside a gap falls on the gap's end.
//! - If an hour comes twice, the window opens in the first and closes in the second. It is never
//!   cut short.
//! - A window that is completely inside a gap does not open that day.

use std::{fmt, str::FromStr, time::Duration};

use chrono::{
    DateTime, Datelike, Days as Span, FixedOffset, MappedLocalTime, NaiveDate, NaiveDateTime,
    NaiveTime, TimeDelta, TimeZone, Timelike, Utc, Weekday,
};
use chrono_tz::Tz;
use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// Most windows of one job or type.
pub(crate) const MAX_WINDOWS: usize = 32;

/// A part of the local day in which a job may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Parts")]
pub struct Window {
    from: ClockTime,
    to: ClockTime,
    tz: Zone,
    // The last field, because an omitted field of a MessagePack array would shift those after it.
    #[serde(skip_serializing_if = "Days::is_every")]
    days: Days,
}

/// A window as it is read, before it is checked as a whole.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "Window")]
struct Parts {
    from: ClockTime,
    to: ClockTime,
    #[serde(default, deserialize_with = "crate::strict::or_default")]
    tz: Zone,
    #[serde(default, deserialize_with = "crate::strict::or_default")]
    days: Days,
}

/// The error of a window that opens and closes at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a window's `from` and `to` must differ")]
pub struct EmptyWindow;

impl TryFrom<Parts> for Window {
    type Error = EmptyWindow;
    fn try_from(Parts { from, to, tz, days }: Parts) -> Result<Self, EmptyWindow> {
        Self::new(from, to, tz, days)
    }
}

impl Window {
    /// The window from `from` to `to` (exclusive; on the next day if it is not later than `from`)
    /// in `tz`, opening on `days`.
    ///
    /// # Errors
    ///
    /// [`EmptyWindow`] if `from` is `to`.
    pub fn new(from: ClockTime, to: ClockTime, tz: Zone, days: Days) -> Result<Self, EmptyWindow> {
        if from == to { Err(EmptyWindow) } else { Ok(Self { from, to, tz, days }) }
    }

    /// The openings that end after `at`, in order, as first instant and end. Only those of the next
    /// weeks, which always include one.
    fn openings(self, at: Timestamp) -> impl Iterator<Item = (Timestamp, Timestamp)> {
        let today = at.to_utc().with_timezone(&self.tz.0).date_naive();
        // Starts two days back: a window may have opened the day before yesterday, passed midnight,
        // and stayed open because clocks went back over the next one.
        let first = today.checked_sub_days(Span::new(2)).unwrap_or(today);
        let weeks = first.iter_days().take(35);
        weeks
            .filter(move |day| self.days.has(day.weekday()))
            .filter_map(move |day| self.on(day))
            .filter(move |(_, to)| *to > at)
    }

    /// The first instant and the end of its opening on `day`; none if a gap contains all of it.
    fn on(self, day: NaiveDate) -> Option<(Timestamp, Timestamp)> {
        let last = if self.to > self.from { day } else { day.checked_add_days(Span::new(1))? };
        let from = self.tz.first(day.and_time(self.from.0));
        let to = self.tz.last(last.and_time(self.to.0));
        (from < to).then_some((from, to))
    }
}

/// `at` if it is inside one of `windows` (or there are none), else the next opening after it;
/// [`Timestamp::MAX`] if the calendar ends before that.
pub fn next_opening(windows: &[Window], at: Timestamp) -> Timestamp {
    let opening = |window: &Window| {
        window.openings(at).next().map_or(Timestamp::MAX, |(from, _)| from.max(at))
    };
    windows.iter().map(opening).min().unwrap_or(at)
}

/// The first instant after `at` that is in none of the windows; windows that follow each other
/// count as one.
///
/// None if no window is open at `at`, or if they stay open for [`FOLLOWED`].
pub fn closing(windows: &[Window], at: Timestamp) -> Option<Timestamp> {
    let mut end = at;
    while let Some(to) = windows
        .iter()
        .filter_map(|window| window.openings(end).take_while(|(from, _)| *from <= end).last())
        .map(|(_, to)| to)
        .max()
    {
        end = to;
        if end >= at + FOLLOWED {
            return None;
        }
    }
    (end > at).then_some(end)
}

/// How far ahead [`closing`] looks: eight days, which includes every weekly pattern.
pub const FOLLOWED: Duration = Duration::from_hours(8 * 24);

/// A time of the local day, `HH:MM` or `HH:MM:SS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClockTime(NaiveTime);

/// The text is not a time of the day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a local time such as 08:00 or 23:59:59")]
pub struct NotAClockTime;

impl FromStr for ClockTime {
    type Err = NotAClockTime;
    fn from_str(text: &str) -> Result<Self, NotAClockTime> {
        let two = |at: usize| match text.as_bytes().get(at..at + 2) {
            Some(&[tens @ b'0'..=b'9', ones @ b'0'..=b'9']) => {
                Ok(u32::from(tens - b'0') * 10 + u32::from(ones - b'0'))
            }
            _ => Err(NotAClockTime),
        };
        let seconds = match text.len() {
            5 => 0,
            8 if text.as_bytes()[5] == b':' => two(6)?,
            _ => return Err(NotAClockTime),
        };
        if text.as_bytes()[2] != b':' {
            return Err(NotAClockTime);
        }
        NaiveTime::from_hms_opt(two(0)?, two(3)?, seconds).map(Self).ok_or(NotAClockTime)
    }
}

impl TryFrom<String> for ClockTime {
    type Error = NotAClockTime;
    fn try_from(text: String) -> Result<Self, NotAClockTime> {
        text.parse()
    }
}

impl From<ClockTime> for String {
    fn from(time: ClockTime) -> Self {
        time.to_string()
    }
}

impl fmt::Display for ClockTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = if self.0.second() == 0 { "%H:%M" } else { "%H:%M:%S" };
        write!(f, "{}", self.0.format(form))
    }
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Day {
    /// Monday.
    Mon,
    /// Tuesday.
    Tue,
    /// Wednesday.
    Wed,
    /// Thursday.
    Thu,
    /// Friday.
    Fri,
    /// Saturday.
    Sat,
    /// Sunday.
    Sun,
}

impl Day {
    /// The days, in their order.
    pub const ALL: [Self; 7] =
        [Self::Mon, Self::Tue, Self::Wed, Self::Thu, Self::Fri, Self::Sat, Self::Sun];
}

/// The days on which a window opens: at least one, by default every one. Written as a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<Day>", into = "Vec<Day>")]
pub struct Days(u8);

/// A list of days without a day in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must name at least one of mon, tue, wed, thu, fri, sat, sun")]
pub struct NoDay;

impl Days {
    /// Every day.
    pub(crate) const EVERY: Self = Self(0b111_1111);

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
    fn is_every(&self) -> bool {
        *self == Self::EVERY
    }

    fn has(self, day: Weekday) -> bool {
        self.0 & (1 << day.num_days_from_monday()) != 0
    }
}

impl Default for Days {
    fn default() -> Self {
        Self::EVERY
    }
}

impl TryFrom<Vec<Day>> for Days {
    type Error = NoDay;
    fn try_from(days: Vec<Day>) -> Result<Self, NoDay> {
        match days.into_iter().fold(0, |set, day| set | 1 << day as u8) {
            0 => Err(NoDay),
            set => Ok(Self(set)),
        }
    }
}

impl From<Days> for Vec<Day> {
    fn from(days: Days) -> Self {
        Day::ALL.into_iter().filter(|day| days.0 & (1 << *day as u8) != 0).collect()
    }
}

/// A time zone of the IANA database, by default UTC. Written as its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Zone(Tz);

/// The text names no time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be the IANA name of a time zone such as Europe/Berlin")]
pub struct NotAZone;

impl Zone {
    /// The first instant at which the zone's clock shows `local` or later.
    pub fn first(self, local: NaiveDateTime) -> Timestamp {
        let at = self.0.from_local_datetime(&local).earliest();
        at.map_or_else(|| self.gap_end(local), |at| instant(at.to_utc()))
    }

    /// The instant from which the zone's clock shows `local` or later for good.
    fn last(self, local: NaiveDateTime) -> Timestamp {
        match self.0.from_local_datetime(&local) {
            MappedLocalTime::Single(at) => instant(at.to_utc()),
            // Clocks that go back to just this time showed none before it since they first showed
            // it.
            MappedLocalTime::Ambiguous(first, second)
                if self.shows(second.to_utc() - TimeDelta::seconds(1)) > local =>
            {
                instant(first.to_utc())
            }
            MappedLocalTime::Ambiguous(_, second) => instant(second.to_utc()),
            MappedLocalTime::None => self.gap_end(local),
        }
    }

    /// What the zone's clock shows at `at`.
    pub fn at(self, at: Timestamp) -> DateTime<FixedOffset> {
        at.to_utc().with_timezone(&self.0).fixed_offset()
    }

    /// What the zone's clock shows at `at`, for people: `2026-03-29 03:00:00 +02:00`.
    pub fn said(self, at: Timestamp) -> String {
        self.at(at).format("%Y-%m-%d %H:%M:%S %:z").to_string()
    }

    /// What the zone's clock shows.
    pub(crate) fn shows(self, at: DateTime<Utc>) -> NaiveDateTime {
        at.with_timezone(&self.0).naive_local()
    }

    /// The end of the gap that swallows `local`, found by halving: no zone is 16 hours off UTC.
    fn gap_end(self, local: NaiveDateTime) -> Timestamp {
        let utc = local.and_utc();
        let (mut before, mut after) = (-16 * 3600, 16 * 3600);
        while after - before > 1 {
            let middle = i64::midpoint(before, after);
            let at = utc + TimeDelta::seconds(middle);
            if self.shows(at) < local { before = middle } else { after = middle }
        }
        instant(utc + TimeDelta::seconds(after))
    }
}

fn instant(at: DateTime<Utc>) -> Timestamp {
    Timestamp::from_utc(at).min(Timestamp::MAX)
}

impl Default for Zone {
    fn default() -> Self {
        Self(Tz::UTC)
    }
}

impl FromStr for Zone {
    type Err = NotAZone;
    fn from_str(name: &str) -> Result<Self, NotAZone> {
        name.parse().map(Self).map_err(|_| NotAZone)
    }
}

impl TryFrom<String> for Zone {
    type Error = NotAZone;
    fn try_from(name: String) -> Result<Self, NotAZone> {
        name.parse()
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> Self {
        zone.to_string()
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}
