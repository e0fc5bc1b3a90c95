//! The clocks of the measurements, read at the edge.

use std::time::{Duration, Instant, SystemTime};

use tidegate_core::time::Timestamp;

/// A point to measure from.
#[expect(clippy::disallowed_methods, reason = "a measure of time is what this command is for")]
pub(super) fn instant() -> Instant {
    Instant::now()
}

/// The wall clock, since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "lateness is counted from due times, which are on the wall clock"
)]
pub(super) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Returns the time of day.
pub(super) fn now() -> Timestamp {
    Timestamp::from_millis(since_epoch().as_millis() as i64)
}

/// The value below which `share` of `spans` are, in milliseconds; zero if there are none.
pub(super) fn percentile(spans: &mut [Duration], share: f64) -> f64 {
    spans.sort_unstable();
    let place = (spans.len() as f64 * share).ceil() as usize;
    let span = spans.get(place.saturating_sub(1)).copied().unwrap_or_default();
    span.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let mut spans: Vec<Duration> = (1..=200).rev().map(Duration::from_millis).collect();
        let whole = |millis: f64| millis.round() as u64;
        assert_eq!(
            [0.5, 0.99, 1.0].map(|part| whole(percentile(&mut spans, part))),
            [100, 198, 200]
        );
        assert_eq!(
            [percentile(&mut [], 0.5), percentile(&mut [Duration::from_millis(3)], 0.99)]
                .map(whole),
            [0, 3]
        );
    }
}
