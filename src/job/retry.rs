//! What follows a failed attempt: how long to wait before the next one.
//!
//! Pure: the random part is drawn by the caller and handed in.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Seconds;

/// How a job's next attempt is planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(tag = "strategy", content = "config", rename_all = "lowercase", from = "Written")]
pub enum Retry {
    /// A wait that doubles from attempt to attempt.
    Exponential(Backoff),
}

/// [`Retry`] as it is read: field by field, so that a wrong one is told by its whole path.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    strategy: Strategy,
    #[serde(default)]
    config: Backoff,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Strategy {
    Exponential,
}

impl From<Written> for Retry {
    fn from(Written { strategy: Strategy::Exponential, config }: Written) -> Self {
        Self::Exponential(config)
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self::Exponential(Backoff::default())
    }
}

/// A wait that doubles: min(`max_seconds`, `base_seconds` x 2^(n-1)) after attempt n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    /// The wait after the first attempt (default 2; 0 to 86400).
    pub base_seconds: Seconds,
    /// No wait is longer (default 3600; 0 to 2592000).
    pub max_seconds: Seconds,
    /// Whether a random part of the wait is taken (default `full`).
    pub jitter: Jitter,
}

/// The random part of a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Jitter {
    /// Any part of the wait, at least half a second of it.
    #[default]
    Full,
    /// The whole wait, always.
    None,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base_seconds: Seconds::new(2), max_seconds: Seconds::new(3600), jitter: Jitter::Full }
    }
}

impl Backoff {
    /// The least wait that full jitter leaves, so that a failing target is never hammered.
    pub const LEAST: Duration = Duration::from_millis(500);

    /// The wait after attempt `attempt` (from 1), where `drawn` is uniform in 0 up to 1.
    pub fn after(self, attempt: u16, drawn: f64) -> Duration {
        let doublings = u32::from(attempt.saturating_sub(1)).min(40);
        let whole = self.base_seconds.millis().saturating_mul(1 << doublings).min(self.max_seconds.millis());
        let whole = Duration::from_millis(whole);
        match self.jitter {
            Jitter::None => whole,
            Jitter::Full => whole.mul_f64(drawn.clamp(0.0, 1.0)).max(Self::LEAST.min(whole)),
        }
    }

    /// What is wrong with these settings: the field and what it must be.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        if self.base_seconds > Seconds::new(86_400) {
            Some(("base_seconds", "must be 0 to 86400"))
        } else if self.max_seconds > Seconds::new(2_592_000) {
            Some(("max_seconds", "must be 0 to 2592000"))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_wait_doubles_and_stops_at_its_maximum() {
        let backoff = Backoff { jitter: Jitter::None, ..Backoff::default() };
        let waits: Vec<u64> = [1, 2, 3, 11, 12, 13, 65535].map(|n| backoff.after(n, 0.3).as_secs()).to_vec();
        assert_eq!(waits, [2, 4, 8, 2048, 3600, 3600, 3600]);
    }

    proptest! {
        #[test]
        fn full_jitter_stays_between_half_a_second_and_the_whole(n in 1u16.., drawn in 0.0f64..1.0) {
            let backoff = Backoff::default();
            let whole = Backoff { jitter: Jitter::None, ..backoff }.after(n, 0.0);
            let wait = backoff.after(n, drawn);
            prop_assert!(wait <= whole && wait >= Backoff::LEAST);
        }
    }
}
