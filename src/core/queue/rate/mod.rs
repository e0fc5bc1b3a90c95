//! Rates, as values: what a rate counts of the starts of one value, and when the next one may be.
//!
//! | rate | promise, by the ledger's time | counts in |
//! |---|---|---|
//! | `{count, per_seconds}` | at most `count` starts in any half-open span of `per_seconds` | [`RecentStarts`] |
//! | with `burst` | at most `burst + t × count / per_seconds` starts in any span of `t` | a token [`Bucket`] |
//!
//! A rate that gets or loses its `burst` starts with nothing counted.

mod bucket;
mod starts;

use std::collections::BTreeMap;

use super::config::{Rate, VALUE_BYTES};
use crate::time::Timestamp;

pub use bucket::Bucket;
pub use starts::RecentStarts;

/// What the rates of a queue have counted, by constraint and value. What is absent has no starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateCounts {
    /// The starts in the windows of rates without a burst.
    pub starts: BTreeMap<(String, String), RecentStarts>,
    /// The buckets of rates with a burst that are not full.
    pub buckets: BTreeMap<(String, String), Bucket>,
}

impl RateCounts {
    /// Every count, by constraint and value.
    pub(super) fn into_counts(self) -> impl Iterator<Item = ((String, String), RateCount)> {
        let starts = self.starts.into_iter().map(|(key, starts)| (key, RateCount::Starts(starts)));
        let buckets =
            self.buckets.into_iter().map(|(key, bucket)| (key, RateCount::Bucket(bucket)));
        starts.chain(buckets)
    }

    /// Adds a count.
    pub(super) fn insert(&mut self, key: (String, String), count: RateCount) {
        match count {
            RateCount::Starts(starts) => {
                self.starts.insert(key, starts);
            }
            RateCount::Bucket(bucket) => {
                self.buckets.insert(key, bucket);
            }
        }
    }
}

/// What a rate has counted of the starts of one value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RateCount {
    Starts(RecentStarts),
    Bucket(Bucket),
}

impl RateCount {
    /// How many bytes it takes, without the names of its constraint and its value.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Starts(starts) => VALUE_BYTES + starts.bytes(),
            Self::Bucket(_) => VALUE_BYTES,
        }
    }
}

impl Rate {
    /// The part of `count` that still matters at `now`; none if that is nothing, or if this rate
    /// counts in another way.
    pub(super) fn current(&self, count: RateCount, now: Timestamp) -> Option<RateCount> {
        match (self.burst, count) {
            (None, RateCount::Starts(starts)) => {
                starts.current(self.per_seconds.duration(), now).map(RateCount::Starts)
            }
            (Some(_), RateCount::Bucket(bucket)) => (self.at(Some(bucket), now).tokens
                < self.capacity())
            .then_some(RateCount::Bucket(bucket)),
            _ => None,
        }
    }

    /// When the next start is admitted after those in `count`, which is current: `now` or later.
    /// None if it never is.
    pub(super) fn next_start(
        &self,
        count: Option<&RateCount>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        match count {
            Some(RateCount::Starts(starts)) => {
                starts.next(self.count, self.per_seconds.duration(), now)
            }
            Some(RateCount::Bucket(bucket)) => {
                let bucket = self.at(Some(*bucket), now);
                self.wait(bucket).map(|wait| now + wait)
            }
            None => (self.burst.unwrap_or(self.count) > 0).then_some(now),
        }
    }

    /// How many starts are admitted at `now` after those in `count`, which is current.
    pub(super) fn left(&self, count: Option<&RateCount>, now: Timestamp) -> u64 {
        match count {
            Some(RateCount::Starts(starts)) => u64::from(self.count).saturating_sub(starts.count()),
            Some(RateCount::Bucket(bucket)) => self.at(Some(*bucket), now).tokens as u64,
            None => self.burst.unwrap_or(self.count).into(),
        }
    }

    /// Counts a start at `now` in `count`, which is current.
    pub(super) fn start(&self, count: Option<RateCount>, now: Timestamp) -> RateCount {
        match (self.burst, count) {
            (None, Some(RateCount::Starts(mut starts))) => {
                starts.add(self.count, self.per_seconds.duration(), now);
                RateCount::Starts(starts)
            }
            (None, _) => RateCount::Starts(RecentStarts::first(now)),
            (Some(_), Some(RateCount::Bucket(bucket))) => {
                RateCount::Bucket(self.at(Some(bucket), now).taken())
            }
            (Some(_), _) => RateCount::Bucket(self.at(None, now).taken()),
        }
    }

    /// How many bytes a start at `now` adds to `count`, which is current.
    pub(super) fn growth(&self, count: Option<&RateCount>, now: Timestamp) -> usize {
        match count {
            None => self.start(None, now).bytes(),
            Some(RateCount::Starts(starts)) => {
                starts.growth(self.count, self.per_seconds.duration(), now)
            }
            Some(RateCount::Bucket(_)) => 0,
        }
    }
}
