//! The starts in a rate's window.
//!
//! ```text
//!            now - W                                      now
//!   ──┼─────────(─────┼───────────────┼──────────┼─────────]────▶ time
//!   (at, 4)        (at, 1)         (at, 3)    (at, 2)
//!    left       └──────────── 6 starts: at most `count` ─────┘
//! ```
//!
//! Each entry is a number of starts, **none of them later** than its instant. A start has left the
//! window `W` when its entry's instant has, so no window ever has more than `count` starts. Up to a
//! `count` of [`EXACT`], entries are exact instants. Above it, starts within 1/32 of the window
//! share an entry, so that a window has at most 33 entries, and a start counts up to 1/32 longer.

use std::time::Duration;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, SeqAccess, Visitor},
    ser::SerializeSeq as _,
};

use crate::{queue::config::START_BYTES, record, stored::UnknownFields, time::Timestamp};

/// Up to this `count`, every start is kept with its instant. Above it, this many parts of the
/// window are kept.
const EXACT: u32 = 32;

/// The starts of one value that are in the window of a rate; at least one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecentStarts {
    /// The first start of the last entry.
    since: Timestamp,
    entries: Entries,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(RecentStarts { since, entries });

/// How many starts there were, none of them later than the instant: in ascending order.
#[derive(Clone, Debug, Default, PartialEq)]
struct Entries(Vec<(Timestamp, u32)>);

impl RecentStarts {
    /// One start, at `now`.
    pub fn first(now: Timestamp) -> Self {
        Self { since: now, entries: Entries(vec![(now, 1)]), unknown: UnknownFields::default() }
    }

    /// How many starts it counts.
    pub(super) fn count(&self) -> u64 {
        self.entries.0.iter().map(|(_, count)| u64::from(*count)).sum()
    }

    /// It without the starts that have left the window of `per` at `now`; none if all have.
    pub(super) fn current(mut self, per: Duration, now: Timestamp) -> Option<Self> {
        self.entries.0.retain(|(at, _)| *at + per > now);
        (!self.entries.0.is_empty()).then_some(self)
    }

    /// When another start is admitted, if at most `count` are in any window of `per`: `now` or
    /// later. None if `count` is 0.
    pub(super) fn next(&self, count: u32, per: Duration, now: Timestamp) -> Option<Timestamp> {
        let mut inside = self.count();
        let mut next = now;
        for (at, starts) in &self.entries.0 {
            if inside < u64::from(count) {
                break;
            }
            inside -= u64::from(*starts);
            next = now.max(*at + per);
        }
        (inside < u64::from(count)).then_some(next)
    }

    /// Whether a start at `now` belongs to the last entry.
    fn joins_last(&self, count: u32, per: Duration, now: Timestamp) -> bool {
        let is_close = || now.since(self.since).as_millis() * u128::from(EXACT) < per.as_millis();
        let last = self.entries.0.last();
        last.is_some_and(|(at, _)| *at >= now || (count > EXACT && is_close()))
    }

    /// Adds a start at `now`, which no earlier one follows.
    pub(super) fn add(&mut self, count: u32, per: Duration, now: Timestamp) {
        let joins = self.joins_last(count, per, now);
        let is_full = self.is_full();
        let entries = &mut self.entries.0;
        if let Some((at, starts)) = entries.last_mut().filter(|_| joins) {
            *at = now.max(*at);
            *starts = starts.saturating_add(1);
            return;
        }
        if is_full {
            let (_, oldest) = entries.remove(0);
            entries[0].1 = entries[0].1.saturating_add(oldest);
        }
        self.since = now;
        entries.push((now, 1));
    }

    /// Whether it has the most entries that it can. A rate whose `count` just rose above [`EXACT`]
    /// may need more: then the oldest starts share an entry.
    fn is_full(&self) -> bool {
        self.entries.0.len() > EXACT as usize
    }

    /// How many bytes a start at `now` adds.
    pub(super) fn growth(&self, count: u32, per: Duration, now: Timestamp) -> usize {
        if self.is_full() || self.joins_last(count, per, now) { 0 } else { START_BYTES }
    }

    /// How many bytes its entries take.
    pub(super) fn bytes(&self) -> usize {
        self.entries.0.len() * START_BYTES
    }
}

// The list alternates between instants and counts. An instant is stored as the milliseconds since
// the one before it: four bytes instead of nine.
impl Serialize for Entries {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(2 * self.0.len()))?;
        let mut before = Timestamp::EPOCH;
        for (at, count) in &self.0 {
            list.serialize_element(&(at.millis() - before.millis()))?;
            list.serialize_element(count)?;
            before = *at;
        }
        list.end()
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Entries;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("instants and counts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Entries, A::Error> {
                let (mut entries, mut at) = (Vec::new(), 0i64);
                while let Some(step) = list.next_element::<i64>()? {
                    at = at.checked_add(step).ok_or_else(|| A::Error::custom("no instant"))?;
                    let count = list.next_element()?.ok_or_else(|| A::Error::custom("no count"))?;
                    entries.push((Timestamp::from_millis(at), count));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_seq(Reader)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        queue::{config::Rate, rate::RateCount},
        time::Seconds,
    };

    /// Attempts to start under a rate, and what a reference knows of them: the start of every one.
    struct Attempts {
        rate: Rate,
        count: Option<RateCount>,
        started: Vec<i64>,
    }

    impl Attempts {
        fn under(count: u32, per_millis: u64) -> Self {
            Self { rate: window(count, per_millis), count: None, started: Vec::new() }
        }

        /// How many starts are in the half-open span of `millis` that ends with `now`.
        fn within(&self, millis: i64, now: i64) -> usize {
            self.started.iter().filter(|at| **at > now - millis).count()
        }

        /// Tries to start at `now`, as a tick does after the ledger was read. Returns the instant
        /// at which it may start.
        fn try_at(&mut self, now: i64) -> i64 {
            let at = Timestamp::from_millis(now);
            self.count =
                self.count.take().map(stored).and_then(|count| self.rate.current(count, at));
            let next = self.rate.next_start(self.count.as_ref(), at).unwrap();
            if next <= at {
                let bytes = self.count.as_ref().map_or(0, RateCount::bytes);
                let growth = self.rate.growth(self.count.as_ref(), at);
                let after = self.rate.start(self.count.take(), at);
                assert_eq!(after.bytes(), bytes + growth);
                self.count = Some(after);
                self.started.push(now);
            }
            next.millis()
        }

        fn entries(&self) -> usize {
            match &self.count {
                Some(RateCount::Starts(starts)) => starts.entries.0.len(),
                _ => 0,
            }
        }
    }

    fn window(count: u32, per_millis: u64) -> Rate {
        Rate { count, per_seconds: Seconds::from_millis(per_millis), burst: None }
    }

    /// `count` as a store returns it, in at most as many bytes as it is charged for.
    fn stored(count: RateCount) -> RateCount {
        let RateCount::Starts(starts) = &count else { panic!("a window") };
        let bytes = rmp_serde::to_vec(&(("", ""), starts)).unwrap();
        assert!(bytes.len() <= count.bytes(), "{} bytes of {starts:?}", bytes.len());
        let (_, back): ((String, String), RecentStarts) = rmp_serde::from_slice(&bytes).unwrap();
        assert_eq!(back, *starts);
        count
    }

    #[test]
    fn five_per_second_are_five_in_any_second() {
        let mut attempts = Attempts::under(5, 1000);
        for at in [0, 0, 400, 400, 900] {
            assert_eq!(attempts.try_at(at), at);
        }
        assert_eq!(attempts.try_at(950), 1000, "the window is half open: two leave it at 1000");
        assert_eq!(attempts.try_at(999), 1000);
        assert_eq!(attempts.try_at(1000), 1000);
        assert_eq!(attempts.try_at(1000), 1000);
        assert_eq!(attempts.try_at(1000), 1400);
    }

    #[test]
    fn starts_of_one_part_of_a_window_share_an_entry() {
        let mut attempts = Attempts::under(100, 3200);
        for at in [0, 50, 99, 100, 199, 200] {
            attempts.try_at(at);
        }
        assert_eq!(attempts.entries(), 3);
        attempts.rate = window(6, 3200);
        assert_eq!(attempts.try_at(200), 3299, "three leave together, with the last of them");
    }

    #[test]
    fn a_rate_of_none_admits_nothing() {
        let at = Timestamp::EPOCH;
        assert_eq!(window(0, 1000).next_start(None, at), None);
        let starts = RateCount::Starts(RecentStarts::first(at));
        assert_eq!(window(0, 1000).next_start(Some(&starts), at), None);
    }

    #[test]
    fn the_fields_of_a_newer_release_stay_with_the_starts() {
        let (per, at) = (Duration::from_secs(1), Timestamp::from_millis);
        let unknown = UnknownFields::new([rmpv::Value::from(7)]);
        let mut starts = RecentStarts { unknown: unknown.clone(), ..RecentStarts::first(at(0)) };
        starts.add(5, per, at(500));
        assert_eq!(starts.current(per, at(1200)).unwrap().unknown, unknown);
    }

    #[test]
    fn a_broken_list_of_starts_is_refused() {
        for bad in [vec![1i64], vec![1, 1, 2], vec![i64::MAX, 1, 1, 1], vec![1, -1]] {
            let bytes = rmp_serde::to_vec(&bad).unwrap();
            assert!(rmp_serde::from_slice::<Entries>(&bytes).is_err(), "{bad:?}");
        }
    }

    fn any_per() -> impl Strategy<Value = u64> {
        prop_oneof![1u64..100, 100u64..5000, Just(2_592_000_000)]
    }

    fn any_count() -> impl Strategy<Value = u32> {
        prop_oneof![1u32..10, 30u32..35, 33u32..300, Just(1_000_000)]
    }

    /// Gaps between attempts, as parts of a window.
    fn any_gaps() -> impl Strategy<Value = Vec<f64>> {
        let gap = prop_oneof![4 => Just(0.0), 2 => 0.0..0.05, 1 => 0.0..1.5];
        prop::collection::vec(gap, 1..400)
    }

    proptest! {
        /// No window ever has more than `count` starts. Up to a count of 32 every start that fits
        /// is admitted; above it, every start that fits into 33/32 of the window.
        #[test]
        fn no_window_has_more_than_its_count(
            count in any_count(),
            per in any_per(),
            gaps in any_gaps(),
        ) {
            let (mut attempts, mut now) = (Attempts::under(count, per), 1_700_000_000_000i64);
            let slack = if count <= EXACT { 0 } else { (per / 32) as i64 };
            for gap in gaps {
                now += (gap * per as f64) as i64;
                let inside = attempts.within(per as i64, now);
                let surely = attempts.within(per as i64 + slack, now);
                let next = attempts.try_at(now);
                prop_assert!(next > now || inside < count as usize, "over at {now}");
                prop_assert!(next <= now || surely >= count as usize, "held at {now} until {next}");
                prop_assert!(attempts.entries() <= 33.min(count as usize));
                if next > now {
                    prop_assert!(next <= now + per as i64 + slack);
                    let mut early = Attempts { started: vec![], ..Attempts::under(count, per) };
                    early.count.clone_from(&attempts.count);
                    prop_assert!(early.try_at(next - 1) > next - 1, "before {next}");
                    prop_assert_eq!(early.try_at(next), next);
                }
            }
        }

        /// A changed rate counts the starts before its change, as far as the rates since then could
        /// see back.
        #[test]
        fn a_changed_rate_counts_the_starts_before_it(
            rates in prop::collection::vec((any_count(), any_per(), any_gaps()), 2..5),
        ) {
            let (mut attempts, mut now) = (Attempts::under(1, 1), 1_700_000_000_000i64);
            let (mut seen_since, mut admitted) = (now, 0);
            for (count, per, gaps) in rates {
                attempts.rate = window(count, per);
                for gap in gaps {
                    now += (gap * per as f64) as i64;
                    attempts.started.retain(|at| *at > seen_since);
                    let inside = attempts.within(per as i64, now);
                    if attempts.try_at(now) <= now {
                        prop_assert!(inside < count as usize);
                        admitted += 1;
                    }
                    seen_since = seen_since.max(now - per as i64);
                    prop_assert!(attempts.entries() <= 33);
                }
            }
            prop_assert!(admitted > 0);
        }
    }
}
