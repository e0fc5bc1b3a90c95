//! The machine's clock.
//!
//! Instants come from the wall clock, which may be set. Waits use a timer, which may stop while the
//! machine sleeps, and so may the monotonic time. A wait therefore reads the wall clock at least every
//! [`MAX_TIMER`].

#![allow(clippy::disallowed_methods, reason = "the implementation of the clock port")]

use std::{
    sync::LazyLock,
    time::{Duration, Instant, SystemTime},
};

use async_trait::async_trait;

use tidegate_core::{port::Clock, time::Timestamp};

/// Maximum duration of one timer, after which a wait reads the wall clock.
pub(crate) const MAX_TIMER: Duration = Duration::from_secs(10);

/// Real time in UTC. The timer rounds up to whole milliseconds, so a wait ends at most about 2 ms
/// after its instant, never before it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since_epoch =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(
            i64::try_from(since_epoch.as_millis()).unwrap_or(Timestamp::MAX.millis()),
        )
    }

    async fn sleep_until(&self, at: Timestamp) {
        let at = SystemTime::UNIX_EPOCH + at.since(Timestamp::EPOCH);
        // Uses the exact time instead of `now`, which would add the fraction of a millisecond.
        while let Ok(left) = at.duration_since(SystemTime::now())
            && !left.is_zero()
        {
            tokio::time::sleep(left.min(MAX_TIMER)).await;
        }
    }

    async fn sleep(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }

    fn monotonic_now(&self) -> Duration {
        static FIRST_READ: LazyLock<Instant> = LazyLock::new(Instant::now);
        FIRST_READ.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_never_ends_before_its_instant() {
        for millis in [1, 3, 20] {
            let at = SystemClock.now() + Duration::from_millis(millis);
            SystemClock.sleep_until(at).await;
            assert!(SystemClock.now() >= at);
        }
    }

    #[tokio::test]
    async fn a_wait_for_the_past_ends_at_once() {
        let before = Instant::now();
        SystemClock.sleep_until(Timestamp::from_millis(-1)).await;
        SystemClock.sleep_until(SystemClock.now()).await;
        assert!(before.elapsed() < Duration::from_secs(1));
    }

    #[tokio::test]
    async fn the_monotonic_time_passes_during_a_wait() {
        let before = SystemClock.monotonic_now();
        SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(30)).await;
        // The wall clock may have been set a little meanwhile.
        assert!(SystemClock.monotonic_now() >= before + Duration::from_millis(3));
    }

    #[tokio::test]
    async fn now_is_the_wall_clock() {
        let wall =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as i64;
        assert!((SystemClock.now().millis() - wall).abs() < 1000);
    }
}
