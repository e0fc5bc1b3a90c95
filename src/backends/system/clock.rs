//! The machine's clock.
//!
//! Instants are read from the wall clock, which may be set; waits are counted by the timer, which
//! may stand still while the machine sleeps. A wait therefore looks at the wall clock again at
//! least every [`LOOK_AGAIN`].

#![allow(clippy::disallowed_methods, reason = "this is what the clock port stands on")]

use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use tidegate_core::{port::Clock, time::Timestamp};

/// The longest a wait goes on without a look at the wall clock.
pub const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Real time, UTC. The timer counts in whole milliseconds and rounds up, so a wait ends up to about
/// 2 ms past its instant, never before it.
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
        // Counted from the exact time rather than from `now`, whose fraction of a millisecond would be slept twice.
        while let Ok(left) = at.duration_since(SystemTime::now())
            && !left.is_zero()
        {
            tokio::time::sleep(left.min(LOOK_AGAIN)).await;
        }
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
        let before = std::time::Instant::now();
        SystemClock.sleep_until(Timestamp::from_millis(-1)).await;
        SystemClock.sleep_until(SystemClock.now()).await;
        assert!(before.elapsed() < Duration::from_secs(1));
    }

    #[tokio::test]
    async fn now_is_the_wall_clock() {
        let wall =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as i64;
        assert!((SystemClock.now().millis() - wall).abs() < 1000);
    }
}
