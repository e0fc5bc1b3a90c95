//! How long to wait before something is repeated that may read all removed rows: while an old
//! transaction is open, that takes long, and longer each time.

use std::time::Duration;

/// How many times as long as the last one took the next one waits at least, up to [`MAX_PAUSE`].
const PAUSE: u32 = 20;
const MAX_PAUSE: Duration = Duration::from_mins(1);

/// The wait after the end of one that `took` so long. It is `interval` if that was short.
pub(super) fn pause_after(took: Duration, interval: Duration) -> Duration {
    took.saturating_mul(PAUSE).clamp(interval, MAX_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_many_times_as_long_within_bounds() {
        let pauses = [0, 100, 1000, 10_000].map(|took| {
            let took = Duration::from_millis(took);
            pause_after(took, Duration::from_secs(5)).as_secs()
        });
        assert_eq!(pauses, [5, 5, 20, 60]);
    }
}
