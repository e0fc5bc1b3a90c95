//! Recurrence against an oracle that knows only what the local clock shows at each instant.
//!
//! The oracle walks through time. Whenever the clock shows a time that it has not shown before, the
//! oracle compares that time with the fields of the pattern.

use chrono::{Datelike, Duration, NaiveDateTime, Timelike};
use chrono_tz::Tz;
use proptest::prelude::*;
use rstest::rstest;

use super::window::{CHANGES, ZONES, shown};
use crate::{
    calendar::recurrence::{Cron, Recurrence, RecurrenceRule},
    time::{Seconds, Timestamp},
};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn cron(pattern: &str, zone: &str) -> Recurrence {
    Recurrence {
        rule: RecurrenceRule::Cron(pattern.parse().unwrap(), zone.parse().unwrap()),
        starts_at: None,
        ends_at: None,
    }
}

fn every(millis: u64, anchor: &str) -> Recurrence {
    Recurrence {
        rule: RecurrenceRule::Every { span: Seconds::from_millis(millis), anchor: at(anchor) },
        starts_at: None,
        ends_at: None,
    }
}

fn next(recurrence: &Recurrence, from: &str, count: usize) -> Vec<String> {
    recurrence
        .all_after(at(from))
        .take(count)
        .map(|at| at.to_string().replace(".000Z", "Z"))
        .collect()
}

#[rstest]
#[case::every_minute(
    "* * * * *",
    "UTC",
    "2026-01-01T00:00:30.5Z",
    &["2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"],
)]
#[case::strictly_after("* * * * *", "UTC", "2026-01-01T00:01:00Z", &["2026-01-01T00:02:00Z"])]
#[case::seconds_come_first(
    "*/20 30 6 * * *",
    "UTC",
    "2026-01-01T06:30:19.999Z",
    &["2026-01-01T06:30:20Z", "2026-01-01T06:30:40Z", "2026-01-02T06:30:00Z"],
)]
#[case::by_the_zone_s_clock(
    "0 9 * * MON-FRI",
    "America/New_York",
    "2026-01-02T15:00:00Z",
    &["2026-01-05T14:00:00Z"],
)]
#[case::either_day(
    "0 0 13 * FRI",
    "UTC",
    "2026-02-01T00:00:00Z",
    &["2026-02-06T00:00:00Z", "2026-02-13T00:00:00Z", "2026-02-20T00:00:00Z"],
)]
#[case::both_days(
    "0 0 13 * +FRI",
    "UTC",
    "2026-01-01T00:00:00Z",
    &["2026-02-13T00:00:00Z", "2026-03-13T00:00:00Z"],
)]
#[case::the_last_day(
    "0 12 L * *",
    "UTC",
    "2028-02-01T00:00:00Z",
    &["2028-02-29T12:00:00Z", "2028-03-31T12:00:00Z"],
)]
#[case::the_second_tuesday(
    "0 12 * * TUE#2",
    "UTC",
    "2026-01-01T00:00:00Z",
    &["2026-01-13T12:00:00Z"],
)]
#[case::a_nickname("@daily", "Asia/Kathmandu", "2026-01-01T00:00:00Z", &["2026-01-01T18:15:00Z"])]
#[case::leap_days("0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", &["2104-02-29T00:00:00Z"])]
// In Berlin 02:00 to 03:00 is skipped on 2026-03-29, and comes twice on 2026-10-25.
#[case::in_a_gap_once(
    "30 2 * * *",
    "Europe/Berlin",
    "2026-03-28T00:00:00Z",
    &["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"],
)]
#[case::all_of_a_gap_once(
    "*/10 2 * * *",
    "Europe/Berlin",
    "2026-03-28T01:50:00Z",
    &["2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"],
)]
#[case::with_what_is_due_at_its_end_once(
    "0 2,3 * * *",
    "Europe/Berlin",
    "2026-03-28T03:00:00Z",
    &["2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"],
)]
#[case::comes_twice_occurs_first(
    "30 2 * * *",
    "Europe/Berlin",
    "2026-10-24T12:00:00Z",
    &["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"],
)]
#[case::the_second_hour_is_silent(
    "*/30 * * * *",
    "Europe/Berlin",
    "2026-10-25T00:00:00Z",
    &["2026-10-25T00:30:00Z", "2026-10-25T02:00:00Z"],
)]
#[case::asked_within_it(
    "*/30 * * * *",
    "Europe/Berlin",
    "2026-10-25T01:10:00.25Z",
    &["2026-10-25T02:00:00Z"],
)]
#[case::half_an_hour_skipped(
    "15 2 * * *",
    "Australia/Lord_Howe",
    "2026-10-02T16:00:00Z",
    &["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"],
)]
#[case::half_an_hour_twice(
    "45 1 * * *",
    "Australia/Lord_Howe",
    "2026-04-04T00:00:00Z",
    &["2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"],
)]
#[case::a_day_skipped(
    "0 12 30 12 *",
    "Pacific/Apia",
    "2011-12-01T00:00:00Z",
    &["2011-12-30T10:00:00Z", "2012-12-29T22:00:00Z"],
)]
fn a_pattern_occurs(
    #[case] pattern: &str,
    #[case] zone: &str,
    #[case] from: &str,
    #[case] wanted: &[&str],
) {
    assert_eq!(next(&cron(pattern, zone), from, wanted.len()), wanted);
}

#[test]
fn spans_are_counted_from_the_anchor_and_nothing_drifts() {
    let rule = every(90_000, "2026-01-01T00:00:00Z");
    assert_eq!(
        next(&rule, "2026-01-01T00:00:00Z", 2),
        ["2026-01-01T00:01:30Z", "2026-01-01T00:03:00Z"]
    );
    assert_eq!(
        next(&rule, "2025-12-31T23:59:00Z", 2),
        ["2026-01-01T00:00:00Z", "2026-01-01T00:01:30Z"],
        "before the anchor too"
    );
    assert_eq!(
        next(&every(1500, "1970-01-01T00:00:00.250Z"), "2026-01-01T00:00:00Z", 1),
        ["2026-01-01T00:00:00.250Z"]
    );
}

#[test]
fn nothing_occurs_before_the_start_or_after_the_end() {
    let bounds = |starts: &str, ends: &str| Recurrence {
        starts_at: Some(at(starts)),
        ends_at: Some(at(ends)),
        ..cron("0 * * * *", "UTC")
    };
    let both = bounds("2026-01-01T02:00:00Z", "2026-01-01T03:00:00Z");
    assert_eq!(
        next(&both, "2026-01-01T00:00:00Z", 5),
        ["2026-01-01T02:00:00Z", "2026-01-01T03:00:00Z"],
        "both included"
    );
    assert_eq!(next(&both, "2026-01-01T02:00:00Z", 5), ["2026-01-01T03:00:00Z"]);
    assert_eq!(both.after(at("2026-01-01T03:00:00Z")), None);
}

#[test]
fn what_never_comes_is_said_to_be_none() {
    assert_eq!(cron("0 0 30 2 *", "UTC").after(at("2026-01-01T00:00:00Z")), None);
    assert_eq!(every(1000, "1970-01-01T00:00:00Z").after(Timestamp::MAX), None);
}

#[rstest]
#[case::too_few("* * * *")]
#[case::too_many("* * * * * * 2026")]
#[case::no_such_minute("60 * * * *")]
#[case::no_such_month("0 0 1 13 *")]
#[case::words("every day")]
#[case::nothing("")]
fn what_is_no_pattern_is_refused(#[case] pattern: &str) {
    let error = pattern.parse::<Cron>().unwrap_err().to_string();
    assert!(error.starts_with("must be a cron pattern of 5 fields"), "{error}");
}

#[test]
fn a_pattern_has_a_bound() {
    let long = format!("0 {} * * *", vec!["1"; 130].join(","));
    assert!(long.parse::<Cron>().unwrap_err().to_string().ends_with("of at most 256 bytes"));
}

#[test]
fn a_pattern_is_kept_as_it_was_written() {
    let json = r#""0 9 * * mon-fri""#;
    let cron: Cron = serde_json::from_str(json).unwrap();
    assert_eq!(serde_json::to_string(&cron).unwrap(), json);
}

/// A pattern as sets of what each field may be.
#[derive(Clone, Debug)]
struct Fields {
    /// Second, minute, hour, day, month, weekday; none means any.
    sets: [Option<Vec<u32>>; 6],
}

impl Fields {
    fn pattern(&self) -> String {
        let field = |set: &Option<Vec<u32>>| {
            let texts =
                set.as_ref().map(|set| set.iter().map(ToString::to_string).collect::<Vec<_>>());
            texts.map_or_else(|| "*".to_owned(), |texts| texts.join(","))
        };
        self.sets.iter().map(field).collect::<Vec<_>>().join(" ")
    }

    fn fits(&self, local: NaiveDateTime) -> bool {
        let has = |field: usize, value: u32| {
            self.sets[field].as_ref().is_none_or(|set| set.contains(&value))
        };
        let (day, weekday) = (has(3, local.day()), has(5, local.weekday().num_days_from_sunday()));
        let of_day = if self.sets[3].is_some() && self.sets[5].is_some() {
            day || weekday
        } else {
            day && weekday
        };
        has(0, local.second())
            && has(1, local.minute())
            && has(2, local.hour())
            && has(4, local.month())
            && of_day
    }

    /// The occurrences after `from` up to `to`, in seconds. The changes of the zone's clock and the
    /// times that the pattern matches are multiples of `step`.
    fn walk(&self, tz: Tz, from: i64, to: i64, step: usize) -> Vec<i64> {
        let stride = Duration::seconds(step as i64);
        // What was shown before the walk began.
        let mut reached =
            (from - 2 * 86_400..=from).step_by(60).map(|second| shown(tz, second)).max().unwrap();
        let mut found = Vec::new();
        for second in (from..=to).step_by(step).skip(1) {
            let now = shown(tz, second);
            let fresh =
                std::iter::successors(Some(reached + stride), |local| Some(*local + stride));
            if fresh.take_while(|local| *local <= now).any(|local| self.fits(local)) {
                found.push(second);
            }
            reached = reached.max(now);
        }
        found
    }
}

fn some_of(values: Vec<u32>, most: usize) -> impl Strategy<Value = Option<Vec<u32>>> {
    let most = most.min(values.len());
    prop_oneof![1 => Just(None), 3 => prop::sample::subsequence(values, 1..=most).prop_map(Some)]
}

/// A zone, one of its changes, a pattern whose hours lie near that change, and an instant near it.
fn scene() -> impl Strategy<Value = (&'static str, i64, Fields, i64)> {
    let place = (prop::sample::select(ZONES.to_vec()), any::<prop::sample::Index>());
    place.prop_flat_map(|(zone, index)| {
        let changes = &CHANGES[zone];
        let change = changes[index.index(changes.len())];
        let local = shown(zone.parse().unwrap(), change);
        let hours = (-2..=3)
            .map(|off| (local + Duration::hours(off)).hour())
            .collect::<std::collections::BTreeSet<_>>();
        let days = (-1..=2)
            .map(|off| (local + Duration::days(off)).day())
            .collect::<std::collections::BTreeSet<_>>();
        let fields = (
            some_of((0..60).step_by(5).collect(), 4),
            some_of((0..60).step_by(5).collect(), 4),
            some_of(hours.into_iter().collect(), 3),
            prop_oneof![2 => Just(None), 1 => some_of(days.into_iter().collect(), 2)],
            prop_oneof![2 => Just(None), 1 => some_of((0..7).collect(), 4)],
        );
        (Just(zone), Just(change), fields, -4 * 3_600_000i64..4 * 3_600_000).prop_map(
            |(zone, change, fields, off)| {
                let (second, minute, hour, day, weekday) = fields;
                (zone, change, Fields { sets: [second, minute, hour, day, None, weekday] }, off)
            },
        )
    })
}

fn instants(seconds: &[i64]) -> Vec<Timestamp> {
    seconds.iter().map(|second| Timestamp::from_millis(second * 1000)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn near_a_change_every_time_occurs_as_in_the_walk((zone, change, fields, off) in scene()) {
        let tz: Tz = zone.parse().unwrap();
        let (from, to) = (change - 4 * 3600, change + 5 * 3600);
        // Listed seconds are multiples of 5, as the zones' changes are.
        let step = if fields.sets[0].is_some() { 5 } else { 1 };
        let walked = instants(&fields.walk(tz, from, to, step));
        let rule = cron(&fields.pattern(), zone);
        let (start, end) = (Timestamp::from_millis(from * 1000), Timestamp::from_millis(to * 1000));
        let found: Vec<_> = rule.all_after(start).take_while(|at| *at <= end).collect();
        prop_assert_eq!(&found, &walked, "{} in {}", fields.pattern(), zone);

        // The next occurrence after any instant is the same.
        let asked = Timestamp::from_millis(change * 1000 + off);
        let wanted = walked.iter().find(|at| **at > asked).copied();
        prop_assert_eq!(
            rule.after(asked).filter(|at| *at <= end),
            wanted,
            "{} in {} after {}",
            fields.pattern(),
            zone,
            asked,
        );
        let latest = rule.latest(start, asked, 3);
        let upto: Vec<_> = walked.iter().copied().filter(|at| *at <= asked).collect();
        prop_assert_eq!(&latest[..], &upto[upto.len().saturating_sub(3)..]);
    }

    #[test]
    fn over_weeks_days_are_those_of_the_calendar(
        zone in prop::sample::select(ZONES.to_vec()),
        day in 0i64..3650,
        hours in some_of((0..24).collect(), 2),
        days in some_of((1..=31).collect(), 3),
        months in some_of((1..=12).collect(), 6),
        weekdays in some_of((0..7).collect(), 2),
    ) {
        let hours = Some(hours.unwrap_or_else(|| vec![0, 13]));
        let fields = Fields {
            sets: [Some(vec![0]), Some(vec![30]), hours, days, months, weekdays],
        };
        let tz: Tz = zone.parse().unwrap();
        let from = 1_420_070_400 + day * 86_400;
        let to = from + 40 * 86_400;
        let walked = instants(&fields.walk(tz, from, to, 60));
        let found: Vec<_> = cron(&fields.pattern(), zone)
            .all_after(Timestamp::from_millis(from * 1000))
            .take_while(|at| *at <= Timestamp::from_millis(to * 1000))
            .collect();
        prop_assert_eq!(found, walked, "{} in {}", fields.pattern(), zone);
    }

    #[test]
    fn spans_are_whole_ones_from_the_anchor(
        span in 1000u64..100_000_000,
        anchor in -1_000_000_000_000i64..4_000_000_000_000,
        now in 0i64..4_000_000_000_000,
    ) {
        let anchor = Timestamp::from_millis(anchor);
        let rule = Recurrence {
            rule: RecurrenceRule::Every { span: Seconds::from_millis(span), anchor },
            starts_at: None,
            ends_at: None,
        };
        let next = rule.after(Timestamp::from_millis(now)).unwrap().millis();
        prop_assert_eq!((next - anchor.millis()).rem_euclid(span as i64), 0);
        prop_assert!(next > now && next - now <= span as i64);
    }

    #[test]
    fn the_latest_are_the_last_of_all(
        span in 1000u64..10_000_000,
        length in 0u64..100_000_000,
        most in 0usize..50,
    ) {
        let from = at("2026-01-01T00:00:00Z");
        let until = from + std::time::Duration::from_millis(length);
        let rule = every(span, "2026-01-01T00:00:00.777Z");
        let all: Vec<_> = rule.all_after(from).take_while(|at| *at <= until).collect();
        prop_assert_eq!(
            &rule.latest(from, until, most)[..],
            &all[all.len().saturating_sub(most)..],
        );
    }
}
