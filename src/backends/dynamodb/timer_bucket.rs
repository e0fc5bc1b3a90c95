//! The partitions of timers: one per hour and shard, and their registry.
//!
//! A process writes all its timers to one shard, which its first one selects. So a small deployment
//! registers, and reads, as many partitions an hour as it has processes, and a large one spreads its
//! writes over all shards. Readers read what is registered. Earlier releases wrote the timers of an
//! hour to one partition without a shard.

use super::key::{Hour, Key};

/// The shards of an hour. A partition accepts 1000 writes a second.
pub(super) const TIMER_SHARDS: u8 = 16;

/// The registry of open partitions of timers.
pub(super) const OPEN_TIMERS: &str = "R#";

/// A partition of timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimerBucket {
    pub hour: Hour,
    /// None for timers of earlier releases.
    pub shard: Option<u8>,
}

impl TimerBucket {
    /// Its partition of the table.
    pub(super) fn partition(self) -> String {
        format!("T#{}", self.text())
    }

    /// Its key in the registry.
    pub(super) fn registered(self) -> Key {
        Key::new(OPEN_TIMERS, self.text())
    }

    fn text(self) -> String {
        let hour = self.hour.text();
        self.shard.map_or(hour.clone(), |shard| format!("{hour}#{shard:x}"))
    }

    /// The partition with this key in the registry.
    pub(super) fn parse(registered: &str) -> Option<Self> {
        let (hour, shard) = match registered.split_once('#') {
            Some((hour, shard)) => (hour, Some(u8::from_str_radix(shard, 16).ok()?)),
            None => (registered, None),
        };
        Some(Self { hour: Hour::parse(hour)?, shard })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::time::Timestamp;

    #[test]
    fn a_partition_of_timers_is_read_back_from_the_registry() {
        let hour = Hour::of(Timestamp::from_millis(1_000_000));
        for shard in (0..TIMER_SHARDS).map(Some).chain([None]) {
            let bucket = TimerBucket { hour, shard };
            assert_eq!(TimerBucket::parse(&bucket.registered().s), Some(bucket));
        }
        assert_eq!(TimerBucket::parse("08zzzz#"), None);
        assert_eq!(TimerBucket::parse("late"), None);
    }
}
