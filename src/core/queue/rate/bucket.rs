//! Token buckets: rates with a burst.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{queue::config::Rate, time::Timestamp};

/// The least that counts as a token: slightly less than 1, to absorb the rounding of many refills.
const WHOLE: f64 = 1.0 - 1e-9;

/// A token bucket that is not full.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Tokens in it at `at`; fractions count.
    pub tokens: f64,
    /// When it was last filled.
    pub at: Timestamp,
}

impl Rate {
    /// The bucket's capacity.
    pub(super) fn capacity(&self) -> f64 {
        f64::from(self.burst.unwrap_or(self.count))
    }

    /// Tokens that are added per millisecond.
    fn per_milli(&self) -> f64 {
        f64::from(self.count) / self.per_seconds.millis() as f64
    }

    /// The bucket at `now`, with the tokens added since; an absent bucket is full.
    pub(super) fn at(&self, bucket: Option<Bucket>, now: Timestamp) -> Bucket {
        let Some(bucket) = bucket else {
            return Bucket { tokens: self.capacity(), at: now };
        };
        let now = now.max(bucket.at);
        let back = now.since(bucket.at).as_millis() as f64 * self.per_milli();
        Bucket { tokens: (bucket.tokens + back).min(self.capacity()), at: now }
    }

    /// How long after its instant `bucket` has a whole token; none if it never will.
    pub(super) fn wait(&self, bucket: Bucket) -> Option<Duration> {
        if self.capacity() < 1.0 {
            return None;
        }
        let missing = (WHOLE - bucket.tokens).max(0.0);
        Some(Duration::from_millis((missing / self.per_milli()).ceil() as u64))
    }
}

impl Bucket {
    /// The bucket without one of its tokens.
    #[must_use]
    pub(super) fn taken(self) -> Self {
        Self { tokens: (self.tokens - 1.0).max(0.0), ..self }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::Seconds;

    fn rate(count: u32, burst: Option<u32>) -> Rate {
        Rate { count, per_seconds: Seconds::new(1), burst }
    }

    #[test]
    fn a_bucket_starts_full_and_keeps_fractions() {
        let rate = rate(1, Some(3));
        let mut bucket = rate.at(None, Timestamp::from_millis(0));
        bucket.tokens -= 3.0;
        let early = rate.at(Some(bucket), Timestamp::from_millis(999));
        assert_eq!(rate.wait(early), Some(Duration::from_millis(1)));
        let later = rate.at(Some(bucket), Timestamp::from_millis(1500));
        assert!((later.tokens - 1.5).abs() < 1e-9, "half a token is kept: {later:?}");
        assert_eq!(rate.wait(bucket), Some(Duration::from_secs(1)));
    }

    proptest! {
        /// No period has more attempts than the burst and the refill.
        #[test]
        fn no_period_exceeds_its_burst_and_refill(
            count in 1u32..20,
            burst in 1u32..20,
            gaps in prop::collection::vec(0u64..400, 1..200),
        ) {
            let rate = rate(count, Some(burst));
            let (mut now, mut bucket, mut taken) = (0u64, None, Vec::new());
            for gap in gaps {
                now += gap;
                let mut filled = rate.at(bucket, Timestamp::from_millis(now as i64));
                if rate.wait(filled) == Some(Duration::ZERO) {
                    filled.tokens -= 1.0;
                    taken.push(now);
                }
                bucket = Some(filled);
            }
            for (i, from) in taken.iter().enumerate() {
                for (j, to) in taken.iter().enumerate().skip(i) {
                    let most = f64::from(burst) + (to - from) as f64 * f64::from(count) / 1000.0;
                    prop_assert!((j - i + 1) as f64 <= most + 1e-6);
                }
            }
        }
    }
}
