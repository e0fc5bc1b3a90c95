//! How often a leader shows that it lives, and how long its silence means nothing.
//!
//! ```text
//!   beat ──────3/5 of the time──────▶ next beat is due ──▶ it may be late ──▶ a standby leads
//! ```
//!
//! A beat costs a PUT, so beats are as rare as the rest of the time allows: a beat that failed must be
//! repeated in it.

use std::time::Duration;

use super::node::NodeSettings;

/// The longest time between two reads of a standby. It is a part of each takeover.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(2);
/// How late a beat may be at least: a machine under load, or a slow request, is no lost leader.
const MIN_LATENESS: Duration = Duration::from_millis(500);

impl NodeSettings {
    /// The same bounds, with beats and waits for a takeover about `takeover` after the last sign of life
    /// of the leader. With requests of 60 ms, a standby leads at most three seconds later.
    #[must_use]
    pub fn with_takeover(self, takeover: Duration) -> Self {
        let beat_interval = takeover * 3 / 5;
        let rest = takeover * 2 / 5;
        let late = (rest * 2 / 3).max(MIN_LATENESS);
        Self {
            poll_interval: (beat_interval * 2 / 5).min(MAX_POLL_INTERVAL),
            patience: (takeover, takeover * 2),
            beat_interval,
            // Two standbys seldom try at once.
            beat_patience: (late, late + rest / 16),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::hints::ATTEMPTS_PER_INTERVAL, *};

    #[test]
    fn a_beat_that_failed_can_be_repeated_before_a_takeover() {
        for seconds in [1, 2, 7, 60, 600] {
            let takeover = Duration::from_secs(seconds);
            let NodeSettings { beat_interval, beat_patience: (late, latest), .. } =
                NodeSettings::default().with_takeover(takeover);
            assert_eq!(beat_interval, takeover * 3 / 5);
            // It fails after an attempt's time, and is repeated after another one.
            assert!(late > beat_interval / ATTEMPTS_PER_INTERVAL * 2, "{seconds} s");
            assert!(late < latest, "{seconds} s");
        }
    }
}
