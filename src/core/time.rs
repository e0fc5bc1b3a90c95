//! Instants and spans, both in whole milliseconds, and nothing that asks the machine for the time.
//!
//! An instant with a finer fraction than milliseconds is rounded **up**, so that no job starts
//! before its `run_at`.

use std::{fmt, ops, str::FromStr, time::Duration};

use chrono::{DateTime, Datelike, Timelike, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::parsed::parsed;

/// The form of an instant: the years that it can say have four digits.
const TEXT: [u8; 24] = *b"0000-00-00T00:00:00.000Z";

/// An instant: milliseconds since the Unix epoch, UTC.
///
/// Shown and read as RFC 3339 where a person may see it (JSON and the API's MessagePack), stored
/// as a plain number elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// The last instant that RFC 3339 can write: 9999-12-31T23:59:59.999Z.
    pub const MAX: Self = Self(253_402_300_799_999);
    /// The first instant that RFC 3339 can write with a year from 1 on: 0001-01-01T00:00:00Z.
    const MIN_MILLIS: i64 = -62_135_596_800_000;

    /// The instant `millis` milliseconds after the Unix epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// The span from `earlier` to here, zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The same instant as a calendar date and time.
    pub fn to_utc(self) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(self.0.clamp(Self::MIN_MILLIS, Self::MAX.0))
            .unwrap_or_default()
    }

    /// Writes the instant in RFC 3339 form to `text`. Each response has several, so this avoids a
    /// general formatter.
    fn text(self, text: &mut [u8; 24]) -> &str {
        let at = self.to_utc();
        let mut put = |end: usize, digits: usize, mut number: u32| {
            for place in text[end - digits..end].iter_mut().rev() {
                *place = b'0' + (number % 10) as u8;
                number /= 10;
            }
        };
        put(4, 4, at.year() as u32);
        put(7, 2, at.month());
        put(10, 2, at.day());
        put(13, 2, at.hour());
        put(16, 2, at.minute());
        put(19, 2, at.second());
        put(23, 3, at.timestamp_subsec_millis());
        std::str::from_utf8(text).expect("digits among signs")
    }

    /// The instant of a calendar date and time, a finer fraction rounded up.
    pub fn from_utc(at: DateTime<Utc>) -> Self {
        Self(
            at.timestamp_millis()
                + i64::from(!at.timestamp_subsec_nanos().is_multiple_of(1_000_000)),
        )
    }
}

impl ops::Add<Duration> for Timestamp {
    type Output = Self;
    /// Later by `span`, at most [`Timestamp::MAX`].
    fn add(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
                .min(Self::MAX.0),
        )
    }
}

impl ops::Sub<Duration> for Timestamp {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text(&mut { TEXT }))
    }
}

/// The text is not an RFC 3339 instant between the years 1 and 9999.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an RFC 3339 instant such as 2026-01-31T08:00:00Z")]
pub struct NotAnInstant;

impl FromStr for Timestamp {
    type Err = NotAnInstant;
    fn from_str(text: &str) -> Result<Self, NotAnInstant> {
        let at = DateTime::parse_from_rfc3339(text).map_err(|_| NotAnInstant)?;
        let at = Self::from_utc(at.with_timezone(&Utc));
        // RFC 3339 cannot write year 0, nor an instant that an offset or a fraction moves past year
        // 9999.
        if (Self::MIN_MILLIS..=Self::MAX.0).contains(&at.0) { Ok(at) } else { Err(NotAnInstant) }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(self.text(&mut { TEXT }))
        } else {
            serializer.serialize_i64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            parsed(deserializer)
        } else {
            i64::deserialize(deserializer).map(Self)
        }
    }
}

/// A span as users write it: a number of seconds, fractions allowed, kept in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seconds(u64);

impl Seconds {
    /// A span of whole seconds.
    pub const fn new(seconds: u64) -> Self {
        Self(seconds * 1000)
    }

    /// A span of milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// The span in milliseconds.
    pub const fn millis(self) -> u64 {
        self.0
    }

    /// The same span as the standard library has it.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// The span in seconds.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

impl From<Seconds> for Duration {
    fn from(span: Seconds) -> Self {
        span.duration()
    }
}

impl TryFrom<f64> for Seconds {
    type Error = &'static str;
    /// The span, a finer fraction rounded up.
    ///
    /// # Errors
    ///
    /// A negative number, not a number, or over a thousand years.
    fn try_from(seconds: f64) -> Result<Self, Self::Error> {
        if !(0.0..=31_557_600_000.0).contains(&seconds) {
            return Err("a number of seconds from 0 to 31557600000 is expected");
        }
        Ok(Self((seconds * 1000.0 - 1e-6).ceil().max(0.0) as u64))
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (serializer.is_human_readable(), self.0 % 1000) {
            (false, _) => serializer.serialize_u64(self.0),
            (true, 0) => serializer.serialize_u64(self.0 / 1000),
            (true, _) => serializer.serialize_f64(self.as_f64()),
        }
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            Self::try_from(f64::deserialize(deserializer)?).map_err(D::Error::custom)
        } else {
            u64::deserialize(deserializer).map(Self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finer_fraction_is_rounded_up_so_that_nothing_runs_early() {
        let at: Timestamp = "2026-01-31T08:00:00.0001Z".parse().unwrap();
        assert_eq!(at.to_string(), "2026-01-31T08:00:00.001Z");
        assert_eq!(Seconds::try_from(0.0001).unwrap().millis(), 1);
        assert_eq!(Seconds::try_from(1.5).unwrap().millis(), 1500);
        assert_eq!(Seconds::try_from(0.003).unwrap().millis(), 3);
    }

    #[test]
    fn an_instant_keeps_its_moment_across_time_zones() {
        let at: Timestamp = "2026-01-31T09:00:00+01:00".parse().unwrap();
        assert_eq!(at.to_string(), "2026-01-31T08:00:00.000Z");
        assert!("31 January".parse::<Timestamp>().is_err());
    }

    #[test]
    fn an_instant_outside_years_1_to_9999_is_refused() {
        for (text, good) in [
            ("0001-01-01T00:00:00Z", true),
            ("0000-12-31T23:59:59.999Z", false),
            ("0001-01-01T00:00:00+00:01", false),
            ("0000-12-31T23:59:59.9999Z", true),
            ("9999-12-31T23:59:59.999Z", true),
            ("9999-12-31T23:59:59.9991Z", false),
            ("9999-12-31T23:59:59-00:01", false),
        ] {
            let read = text.parse::<Timestamp>();
            assert_eq!(read.is_ok(), good, "{text}");
            if let Ok(at) = read {
                assert_eq!(at.to_string().parse(), Ok(at), "{text}");
            }
        }
    }

    #[test]
    fn an_instant_is_written_as_chrono_writes_it() {
        let edges = [
            i64::MIN,
            -62_135_596_800_000,
            -1,
            0,
            1,
            951_782_399_999,
            1_709_164_800_007,
            Timestamp::MAX.millis(),
            i64::MAX,
        ];
        let many = (-2000..2000).map(|n| n * 63_113_904_001);
        for at in edges.into_iter().chain(many).map(Timestamp::from_millis) {
            let written = at.to_utc().to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
            assert_eq!(at.to_string(), written);
            assert_eq!(serde_json::to_string(&at).unwrap(), format!("\"{written}\""));
        }
    }

    #[test]
    fn spans_outside_their_bounds_are_refused() {
        assert!(Seconds::try_from(-0.1).is_err());
        assert!(Seconds::try_from(f64::NAN).is_err());
        assert!(Seconds::try_from(1e18).is_err());
    }
}
