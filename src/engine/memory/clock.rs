//! A clock that only a caller moves.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use tidegate_core::{port::Clock, time::Timestamp};

/// A clock that a caller moves. A sleep ends when the clock is moved to its instant or past it.
#[derive(Debug)]
pub struct FakeClock(watch::Sender<Timestamp>);

impl FakeClock {
    /// A clock that is at `now`.
    pub fn new(now: Timestamp) -> Self {
        Self(watch::Sender::new(now))
    }

    /// Moves it forward by `span`.
    pub fn advance(&self, span: Duration) {
        self.0.send_modify(|now| *now = *now + span);
    }

    /// Moves it to `now`, which may be in the past.
    pub fn set(&self, now: Timestamp) {
        self.0.send_replace(now);
    }
}

impl Default for FakeClock {
    /// A clock that is at 2026-01-01T00:00:00Z.
    fn default() -> Self {
        Self::new(Timestamp::from_millis(1_767_225_600_000))
    }
}

#[async_trait]
impl Clock for FakeClock {
    fn now(&self) -> Timestamp {
        *self.0.borrow()
    }

    async fn sleep_until(&self, at: Timestamp) {
        self.0
            .subscribe()
            .wait_for(|now| *now >= at)
            .await
            .expect("the sender is borrowed by this call");
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::{FutureExt, poll};

    use super::*;

    #[tokio::test]
    async fn a_sleep_ends_at_its_instant_and_not_before() {
        let clock = FakeClock::default();
        assert_eq!(clock.now().to_string(), "2026-01-01T00:00:00.000Z");
        let mut sleeper = pin!(clock.sleep_until(clock.now() + Duration::from_secs(10)));
        assert!(poll!(&mut sleeper).is_pending());
        clock.advance(Duration::from_millis(9_999));
        assert!(poll!(&mut sleeper).is_pending());
        clock.advance(Duration::from_millis(1));
        assert!(poll!(&mut sleeper).is_ready());
    }

    #[tokio::test]
    async fn a_sleep_until_a_past_instant_ends_at_once() {
        let clock = FakeClock::default();
        assert!(clock.sleep_until(clock.now()).now_or_never().is_some());
    }
}
