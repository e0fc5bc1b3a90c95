//! When the message of a late job is sent again: pure rules.

use std::{collections::BTreeSet, time::Duration};

use tidegate_core::{port::job_store::DueRange, time::Timestamp};

/// How late a job is when its message is presumed lost.
pub(super) const MESSAGE_LOST_AFTER: Duration = Duration::from_mins(2);
/// Ranges of due times that one pass distinguishes: those of six weeks. Older jobs are all read.
const MAX_RANGES: u32 = 4000;

/// What a pass over the late jobs sends again.
///
/// The instant from which a job is late is its due time, or the one at which its target should have
/// answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resend {
    /// When the pass before it began; none if there was none.
    pub previous: Option<Timestamp>,
    /// The time of the pass.
    pub now: Timestamp,
}

impl Resend {
    /// Whether a job that is late from `start` on should have been sent again at all.
    pub(super) fn is_late(self, start: Timestamp) -> bool {
        resends(self.now.since(start)) > 0
    }

    /// Whether a job that is late from `start` on is sent again by this pass.
    pub(super) fn is_due(self, start: Timestamp) -> bool {
        let sends = |at: Timestamp| resends(at.since(start));
        sends(self.now) > self.previous.map_or(0, sends)
    }

    /// The parts of `within` in which jobs may be due that this pass sends again, if each is late
    /// after one of the times in `responses`: in order, without overlaps.
    pub(super) fn ranges(self, responses: &BTreeSet<Duration>, within: DueRange) -> Vec<DueRange> {
        let mut ranges: Vec<DueRange> = Vec::new();
        let mut add = |from: Option<Timestamp>, until: Timestamp| {
            let range = DueRange { from: from.max(within.from), until: until.min(within.until) };
            if range.from.is_none_or(|from| from < range.until) {
                ranges.push(range);
            }
        };
        for response in responses {
            for sends in 1..=MAX_RANGES {
                let age = *response + resend_age(sends);
                let until = self.now - age;
                let from = self.previous.map(|previous| previous - age);
                let is_last = sends == MAX_RANGES || within.from.is_some_and(|from| until <= from);
                add(from.filter(|_| sends < MAX_RANGES), until);
                if is_last || from.is_none() {
                    break;
                }
            }
        }
        ranges.sort_unstable_by_key(|range| (range.from, range.until));
        ranges.dedup_by(|next, range| {
            let overlaps = next.from.is_none_or(|from| from <= range.until);
            if overlaps {
                range.until = range.until.max(next.until);
            }
            overlaps
        });
        ranges
    }
}

/// How often a job that is late by `lateness` should have been sent again.
fn resends(lateness: Duration) -> u32 {
    match (lateness.as_secs() / MESSAGE_LOST_AFTER.as_secs()) as u32 {
        0 => 0,
        intervals @ 1..8 => intervals.ilog2() + 1,
        intervals => 3 + intervals / 8,
    }
}

/// How late a job is when it should have been sent again `sends` times, at least once.
fn resend_age(sends: u32) -> Duration {
    MESSAGE_LOST_AFTER * if sends <= 3 { 1 << (sends - 1) } else { 8 * (sends - 3) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SeededEntropy;
    use tidegate_core::port::Entropy;

    #[test]
    fn late_jobs_are_sent_again_after_twice_the_time_each() {
        let minutes: Vec<u64> = (0..60)
            .filter(|n| {
                resends(Duration::from_mins(*n)) > resends(Duration::from_mins(n.saturating_sub(1)))
            })
            .collect();
        assert_eq!(minutes, [2, 4, 8, 16, 32, 48]);
    }

    #[test]
    fn a_resend_age_is_the_least_with_so_many_resends() {
        for sends in 1..200 {
            let age = resend_age(sends);
            assert_eq!(resends(age), sends);
            assert_eq!(resends(age.saturating_sub(Duration::from_millis(1))), sends - 1);
        }
    }

    /// The ranges hold exactly the jobs of the last weeks that the rule sends again, whatever the
    /// times are.
    #[test]
    fn ranges_hold_the_jobs_that_are_sent_again_and_no_more() {
        let entropy = SeededEntropy::new(3);
        let draw = |below: u64| (entropy.bits() % u128::from(below)) as u64;
        let day = Duration::from_hours(24);
        let start = Timestamp::from_millis(1_800_000_000_000);
        let (mut inside, mut outside) = (0, 0);
        for _ in 0..300 {
            let interval = [1, 61_000, 900_000, 7_200_000][draw(4) as usize];
            let now = start + Duration::from_millis(draw(1000));
            let previous = (draw(8) > 0).then(|| now - Duration::from_millis(draw(interval)));
            let resend = Resend { previous, now };
            let response = Duration::from_millis(draw(2) * draw(600_000));
            let from = (draw(4) > 0).then(|| now - Duration::from_millis(draw(80_000_000)));
            let until = now - Duration::from_millis(draw(300_000));
            let within = DueRange { from, until };
            let ranges = resend.ranges(&[response].into(), within);
            assert!(
                ranges.windows(2).all(|pair| pair[1].from.is_some_and(|from| pair[0].until < from)),
                "{ranges:?}"
            );
            let check = |at: Timestamp| {
                let held = ranges.iter().any(|range| range.contains(at));
                let expected = within.contains(at) && resend.is_due(at + response);
                assert_eq!(held, expected, "{at} {resend:?} {response:?} {within:?}");
                held
            };
            for _ in 0..200 {
                let at = now - Duration::from_millis(draw(day.as_millis() as u64));
                let held = check(at);
                (inside, outside) = (inside + u64::from(held), outside + u64::from(!held));
            }
            for range in ranges.iter().rev().take(50) {
                let edges = [Some(range.until), range.from];
                // What is older than six weeks is in one range.
                let is_distinguished = |at: &Timestamp| now.since(*at) < day * 40;
                for at in edges.into_iter().flatten().filter(is_distinguished) {
                    check(at);
                    check(at + Duration::from_millis(1));
                }
            }
        }
        assert!(inside > 1000 && outside > 1000, "{inside} inside, {outside} outside");
    }

    #[test]
    fn the_ranges_of_several_response_times_are_joined() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let minutes = Duration::from_mins;
        let resend = Resend { previous: Some(now - minutes(1)), now };
        let within = DueRange { from: Some(now - minutes(10)), until: now - minutes(2) };
        let ranges = resend.ranges(&[Duration::ZERO, minutes(1)].into(), within);
        let ages: Vec<_> = ranges
            .iter()
            .map(|range| (range.from.map(|from| now.since(from)), now.since(range.until)))
            .collect();
        let range = |from, until| (Some(minutes(from)), minutes(until));
        assert_eq!(ages, [range(10, 8), range(6, 2)]);
    }

    #[test]
    fn the_first_pass_reads_every_late_job() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let within = DueRange { from: None, until: now };
        let resend = Resend { previous: None, now };
        let until = now - MESSAGE_LOST_AFTER;
        assert_eq!(
            resend.ranges(&[Duration::ZERO].into(), within),
            [DueRange { from: None, until }]
        );
    }
}
