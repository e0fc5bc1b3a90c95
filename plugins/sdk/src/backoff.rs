//! The built-in backoff, as a part of configurations: a wait that doubles.

use serde::{Deserialize, Deserializer, de};

use crate::{Chance, Problem, Raw};

/// A span of time. In JSON, a number of seconds; the first three decimals count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(u64);

impl Seconds {
    /// Whole seconds.
    pub const fn new(seconds: u64) -> Self {
        Self(seconds * 1000)
    }

    /// The span in milliseconds.
    pub const fn millis(self) -> u64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Raw(written) = Raw::deserialize(deserializer)?;
        let millis = millis(&written);
        millis
            .map(Self)
            .ok_or_else(|| de::Error::custom("must be a number of seconds, not negative"))
    }
}

/// The milliseconds of a number of seconds in decimal form, computed without floating-point
/// numbers.
fn millis(written: &str) -> Option<u64> {
    let (whole, fraction) = written.split_once('.').unwrap_or((written, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    // At most ten digits, so that sums of instants and spans do not overflow.
    if whole.len() > 10 || !digits(whole) || !digits(fraction) {
        return None;
    }
    let thousandths = fraction
        .bytes()
        .chain(*b"000")
        .take(3)
        .fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    Some(whole.parse::<u64>().ok()? * 1000 + thousandths)
}

/// A wait that doubles: min(`max_seconds`, `base_seconds` x 2^(n-1)) after attempt n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    /// The wait after the first attempt (default 2; 0 to 86400).
    pub base_seconds: Seconds,
    /// The longest wait (default 3600; 0 to 2592000).
    pub max_seconds: Seconds,
    /// Whether the wait is a random part of the computed one (default `full`).
    pub jitter: Jitter,
}

/// The random part of a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Jitter {
    /// A random part of the wait, but at least half a second, or the whole wait if it is shorter.
    #[default]
    Full,
    /// Always the whole wait.
    None,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base_seconds: Seconds::new(2),
            max_seconds: Seconds::new(3600),
            jitter: Jitter::Full,
        }
    }
}

impl Backoff {
    /// The shortest wait with full jitter, in milliseconds. It keeps retries from overloading a
    /// failing target.
    pub const LEAST: u64 = 500;

    /// The wait after attempt `attempt` (from 1), in milliseconds.
    pub fn after(self, attempt: u32, seed: u64) -> u64 {
        let doublings = attempt.saturating_sub(1).min(40);
        let whole = self
            .base_seconds
            .millis()
            .saturating_mul(1 << doublings)
            .min(self.max_seconds.millis());
        match self.jitter {
            Jitter::None => whole,
            Jitter::Full => Chance::new(seed).below(whole + 1).max(Self::LEAST.min(whole)),
        }
    }

    /// The errors of this configuration. `path` is the JSON pointer to it.
    pub fn check(&self, path: &str) -> Vec<Problem> {
        let fields = [
            ("base_seconds", self.base_seconds, 86_400),
            ("max_seconds", self.max_seconds, 2_592_000),
        ];
        fields
            .into_iter()
            .filter(|(_, span, most)| *span > Seconds::new(*most))
            .map(|(field, _, most)| {
                Problem::new(format!("{path}/{field}"), format!("must be 0 to {most}"))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_and_stops_at_its_maximum() {
        let backoff = Backoff { jitter: Jitter::None, ..Backoff::default() };
        let waits = [1, 2, 3, 11, 12, 13, u32::MAX].map(|attempt| backoff.after(attempt, 1) / 1000);
        assert_eq!(waits, [2, 4, 8, 2048, 3600, 3600, 3600]);
    }

    #[test]
    fn full_jitter_covers_half_a_second_to_the_whole_wait() {
        let waits: Vec<u64> = (0..1000).map(|seed| Backoff::default().after(2, seed)).collect();
        assert!(waits.iter().all(|wait| (Backoff::LEAST..=4000).contains(wait)));
        assert!(waits.iter().any(|wait| *wait < 600) && waits.iter().any(|wait| *wait > 3900));
    }

    #[test]
    fn a_fraction_of_a_second_counts_to_the_millisecond() {
        let read = |text| {
            crate::parse::<Seconds>(text).map(Seconds::millis).map_err(|problem| problem.message)
        };
        assert_eq!(read("0.5"), Ok(500));
        assert_eq!(read("1.0004"), Ok(1000));
        assert_eq!(read("7"), Ok(7000));
        assert!(read("-1").is_err());
        assert!(read("1e30").is_err());
        assert!(read("\"7\"").is_err());
    }
}
