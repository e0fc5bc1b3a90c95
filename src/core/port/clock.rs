//! The current time, and waiting for an instant.

use std::time::Duration;

use async_trait::async_trait;

use crate::time::Timestamp;

/// The one source of time. Tests move it by hand.
#[async_trait]
pub trait Clock: Send + Sync {
    /// The current instant.
    fn now(&self) -> Timestamp;

    /// Returns at `at` or a little later, at once if it is past. A clock of development that is
    /// frozen returns after the span until `at`, before it shows that instant.
    async fn sleep_until(&self, at: Timestamp);

    /// Returns after `span`, whether the clock is set meanwhile or not. It is for waits that no
    /// instant ends, such as those before a repeated request.
    async fn sleep(&self, span: Duration) {
        self.sleep_until(self.now() + span).await;
    }

    /// The time of the machine, by which requests wait: a client does so too. Only a clock of
    /// development differs from it.
    fn machine_now(&self) -> Timestamp {
        self.now()
    }

    /// When to wake up for the instant `at` of the machine's time.
    fn at_machine_time(&self, at: Timestamp) -> Timestamp {
        at
    }

    /// The time since an instant that stays the same while the process runs. It never goes back, even if the
    /// clock is set, but it may stop while the machine sleeps. The default is that of a clock which is never
    /// set back.
    fn monotonic_now(&self) -> Duration {
        self.now().since(Timestamp::EPOCH)
    }
}

/// An instant that this process can measure the age of, although its clock may be set and its machine may
/// sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    shown: Timestamp,
    monotonic: Duration,
}

impl ClockReading {
    /// The current instant of `clock`.
    pub fn of(clock: &dyn Clock) -> Self {
        Self { shown: clock.now(), monotonic: clock.monotonic_now() }
    }

    /// Whether less than `span` has passed from this instant until `now`, by the clock and by its monotonic
    /// time. If the clock was set to before this instant, that is not known, and the answer is `false`.
    pub fn is_within(self, span: Duration, now: Self) -> bool {
        let by_clock = self.shown <= now.shown && now.shown.since(self.shown) < span;
        by_clock && now.monotonic.saturating_sub(self.monotonic) < span
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_recent_only_by_both_times() {
        let at = |shown, monotonic| ClockReading {
            shown: Timestamp::from_millis(shown),
            monotonic: Duration::from_millis(monotonic),
        };
        let began = at(10_000, 500);
        for (now, is_recent) in [
            (began, true),
            (at(10_999, 1_499), true),
            (at(11_000, 1_500), false),
            // The machine has slept.
            (at(70_000, 501), false),
            // The clock was set back after a minute.
            (at(10_001, 60_500), false),
            (at(9_999, 501), false),
        ] {
            assert_eq!(began.is_within(Duration::from_secs(1), now), is_recent, "{now:?}");
        }
    }
}
