//! Recurrence: at which instants a schedule occurs.
//!
//! ```text
//!   30 2 * * * in Berlin   28 March 02:30 ──▶ 29 March 03:00 (no 02:30) ──▶ 30 March 02:30
//!   every 90 s               anchor ──▶ anchor + 90 s ──▶ anchor + 180 s
//! ```
//!
//! When clocks change, every local time that a cron pattern matches occurs **once**, at the first
//! instant at which the zone's clock shows that time or later:
//!
//! - All times inside a gap fall on the end of the gap, as one occurrence.
//! - A time that comes twice occurs the first time.
//!
//! For an even pace through such a night, use `every` or a pattern in UTC.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use chrono::Timelike as _;
use croner::parser::{CronParser, Seconds as SecondsField, Year};
use serde::{Deserialize, Serialize};

use super::window::Zone;
use crate::time::{Seconds, Timestamp};

/// Most bytes of a cron pattern.
pub(crate) const CRON_BYTES: usize = 256;

/// When a schedule occurs: a rule, and the first and last instant at which it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recurrence {
    /// The rule.
    pub rule: RecurrenceRule,
    /// No occurrence before this.
    pub starts_at: Option<Timestamp>,
    /// No occurrence after this.
    pub ends_at: Option<Timestamp>,
}

/// A rule of repetition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecurrenceRule {
    /// The local times that a pattern matches.
    Cron(Cron, Zone),
    /// The instants at multiples of a span from an anchor.
    Every {
        /// The span; not zero.
        span: Seconds,
        /// One of the instants.
        anchor: Timestamp,
    },
}

impl Recurrence {
    /// The first occurrence after `at`; none if there is none.
    pub fn after(&self, at: Timestamp) -> Option<Timestamp> {
        let at = self.starts_at.map_or(at, |starts| at.max(starts - Duration::from_millis(1)));
        let next = match &self.rule {
            RecurrenceRule::Cron(cron, zone) => cron.after(*zone, at)?,
            RecurrenceRule::Every { span, anchor } => {
                let span = i64::try_from(span.millis()).ok().filter(|span| *span > 0)?;
                let since = at.millis() - anchor.millis();
                Timestamp::from_millis(anchor.millis() + (since.div_euclid(span) + 1) * span)
            }
        };
        Some(next)
            .filter(|next| *next < Timestamp::MAX && self.ends_at.is_none_or(|ends| *next <= ends))
    }

    /// The occurrences after `at`, in order.
    pub fn all_after(&self, at: Timestamp) -> impl Iterator<Item = Timestamp> {
        std::iter::successors(self.after(at), |last| self.after(*last))
    }

    /// The latest `most` of the occurrences after `after` and not after `until`, in order.
    ///
    /// It searches backwards in periods that double, so that the cost depends on `most` and not on
    /// the number of occurrences since `after`.
    pub fn latest(&self, after: Timestamp, until: Timestamp, most: usize) -> Vec<Timestamp> {
        if most == 0 {
            return Vec::new();
        }
        let mut stretch = Duration::from_secs(1);
        loop {
            let from = after.max(until - stretch);
            let mut found: Vec<Timestamp> =
                self.all_after(from).take_while(|at| *at <= until).collect();
            if found.len() >= most || from == after {
                found.drain(..found.len().saturating_sub(most));
                return found;
            }
            stretch *= 2;
        }
    }
}

/// A cron pattern of 5 fields (minute, hour, day of the month, month, day of the week), or 6 with
/// the second first.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cron {
    text: Arc<str>,
    pattern: Arc<croner::Cron>,
}

/// The text is not a cron pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be a cron pattern of 5 fields (minute hour day month weekday), or 6 with the second \
     first, of at most {CRON_BYTES} bytes{0}"
)]
pub struct BadCron(String);

impl Cron {
    /// The first occurrence after `at`.
    fn after(&self, zone: Zone, at: Timestamp) -> Option<Timestamp> {
        // While an hour is repeated, the next times on the clock have occurred already, and are
        // skipped.
        let mut local = zone.shows(at.to_utc()).with_nanosecond(0)?;
        loop {
            local = self.pattern.find_next_occurrence(&local, false).ok()?;
            let next = zone.first(local);
            if next > at {
                return Some(next);
            }
        }
    }
}

impl FromStr for Cron {
    type Err = BadCron;
    fn from_str(text: &str) -> Result<Self, BadCron> {
        if text.len() > CRON_BYTES {
            return Err(BadCron(String::new()));
        }
        let parser =
            CronParser::builder().seconds(SecondsField::Optional).year(Year::Disallowed).build();
        let pattern = parser.parse(text).map_err(|error| BadCron(format!(": {error}")))?;
        Ok(Self { text: text.into(), pattern: Arc::new(pattern) })
    }
}

impl TryFrom<String> for Cron {
    type Error = BadCron;
    fn try_from(text: String) -> Result<Self, BadCron> {
        text.parse()
    }
}

impl From<Cron> for String {
    fn from(cron: Cron) -> Self {
        cron.to_string()
    }
}

impl PartialEq for Cron {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Cron {}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
