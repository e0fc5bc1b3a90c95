//! Windows against an oracle that walks through time and knows only what the local clock shows.

use std::{collections::HashMap, sync::LazyLock};

use chrono::{DateTime, Datelike, Duration, NaiveDate, NaiveDateTime, Offset, TimeZone, Utc};
use chrono_tz::Tz;
use proptest::prelude::*;
use rstest::rstest;

use crate::{
    calendar::window::{Window, closing, next_opening},
    time::Timestamp,
};

fn window(json: &str) -> Window {
    serde_json::from_str(json).unwrap()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn window_of(from: &str, to: &str, tz: &str) -> Window {
    window(&format!(r#"{{"from": "{from}", "to": "{to}", "tz": "{tz}"}}"#))
}

#[rstest]
#[case::inside("08:00", "17:00", "2026-06-01T10:00:00Z", "2026-06-01T10:00:00Z")]
#[case::at_the_opening("08:00", "17:00", "2026-06-01T06:00:00Z", "2026-06-01T06:00:00Z")]
#[case::a_millisecond_early("08:00", "17:00", "2026-06-01T05:59:59.999Z", "2026-06-01T06:00:00Z")]
#[case::the_closing_is_outside("08:00", "17:00", "2026-06-01T15:00:00Z", "2026-06-02T06:00:00Z")]
#[case::over_midnight("22:00", "06:00:30", "2026-06-02T04:00:29.999Z", "2026-06-02T04:00:29.999Z")]
#[case::after_midnight("22:00", "06:00:30", "2026-06-02T04:00:30Z", "2026-06-02T20:00:00Z")]
#[case::an_opening_in_the_gap_is_at_its_end(
    "02:30",
    "08:00",
    "2026-03-28T23:00:00Z",
    "2026-03-29T01:00:00Z"
)]
#[case::a_window_in_the_gap_does_not_open(
    "02:10",
    "02:50",
    "2026-03-28T23:00:00Z",
    "2026-03-30T00:10:00Z"
)]
#[case::an_hour_that_comes_twice_opens_the_first_time(
    "02:30",
    "02:40",
    "2026-10-24T23:00:00Z",
    "2026-10-25T00:30:00Z"
)]
#[case::and_closes_the_second_time(
    "02:30",
    "02:40",
    "2026-10-25T01:39:59Z",
    "2026-10-25T01:39:59Z"
)]
#[case::the_hour_that_comes_twice_ends_once(
    "03:00",
    "03:10",
    "2026-10-25T00:50:00Z",
    "2026-10-25T02:00:00Z"
)]
#[case::a_closing_as_it_starts_is_not_put_off(
    "01:00",
    "02:00",
    "2026-10-25T00:00:00Z",
    "2026-10-26T00:00:00Z"
)]
#[case::a_closing_within_it_is("01:00", "02:00:01", "2026-10-25T01:00:00Z", "2026-10-25T01:00:00Z")]
fn the_next_opening_in_berlin(
    #[case] from: &str,
    #[case] to: &str,
    #[case] now: &str,
    #[case] expected: &str,
) {
    assert_eq!(next_opening(&[window_of(from, to, "Europe/Berlin")], at(now)), at(expected));
}

#[test]
fn without_windows_every_instant_is_open_and_none_closes() {
    let now = at("2026-06-01T10:00:00Z");
    assert_eq!((next_opening(&[], now), closing(&[], now)), (now, None));
}

#[test]
fn days_name_the_day_of_the_opening() {
    let friday = [window(r#"{"from": "22:00", "to": "06:00", "days": ["fri"]}"#)];
    assert_eq!(
        next_opening(&friday, at("2026-06-06T05:59:00Z")),
        at("2026-06-06T05:59:00Z"),
        "Saturday morning still is Friday's"
    );
    assert_eq!(
        next_opening(&friday, at("2026-06-05T05:59:00Z")),
        at("2026-06-05T22:00:00Z"),
        "Friday morning is not"
    );
    assert_eq!(next_opening(&friday, at("2026-06-06T06:00:00Z")), at("2026-06-12T22:00:00Z"));
}

/// In 2010 the clocks of St John's went from Sunday 00:01 back to Saturday 23:01: for that minute
/// of Sunday, Friday's window, which closes on Saturday, is open.
#[test]
fn midnight_may_come_twice() {
    let friday =
        [window(r#"{"from": "23:58", "to": "23:50", "days": ["fri"], "tz": "America/St_Johns"}"#)];
    let sunday = at("2010-11-07T02:30:30Z");
    assert_eq!(next_opening(&friday, sunday), sunday);
    assert_eq!(closing(&friday, sunday), Some(at("2010-11-07T03:20:00Z")));
}

/// Samoa went from Thursday 2011-12-29 to Saturday the 31st.
#[test]
fn a_skipped_day_has_no_windows_but_lends_its_night() {
    let windows = |from, to| {
        [window(&format!(
            r#"{{"from": "{from}", "to": "{to}", "days": ["fri"], "tz": "Pacific/Apia"}}"#
        ))]
    };
    let thursday = at("2011-12-30T09:00:00Z");
    assert_eq!(
        next_opening(&windows("08:00", "17:00"), thursday),
        at("2012-01-05T18:00:00Z"),
        "Friday the 6th, 08:00 at +14"
    );
    assert_eq!(
        next_opening(&windows("22:00", "06:00"), thursday),
        at("2011-12-30T10:00:00Z"),
        "Saturday 00:00 to 06:00 is Friday's night"
    );
}

#[test]
fn windows_that_touch_or_overlap_close_as_one() {
    let windows = [
        window_of("08:00", "12:00", "UTC"),
        window_of("11:00", "14:00", "UTC"),
        window_of("14:00", "15:30", "UTC"),
    ];
    assert_eq!(closing(&windows, at("2026-06-01T08:30:00Z")), Some(at("2026-06-01T15:30:00Z")));
    assert_eq!(closing(&windows, at("2026-06-01T15:30:00Z")), None, "closed already");
    let always = [window_of("00:00", "12:00", "UTC"), window_of("12:00", "00:00", "UTC")];
    assert_eq!(closing(&always, at("2026-06-01T08:30:00Z")), None, "never closes");
}

#[test]
fn the_calendar_ends() {
    assert_eq!(next_opening(&[window_of("08:00", "09:00", "UTC")], Timestamp::MAX), Timestamp::MAX);
}

#[rstest]
#[case::no_width(r#"{"from": "08:00", "to": "08:00:00"}"#, "must differ")]
#[case::no_time(r#"{"from": "8:00", "to": "09:00"}"#, "local time")]
#[case::no_such_hour(r#"{"from": "08:00", "to": "24:00"}"#, "local time")]
#[case::no_such_second(r#"{"from": "08:00", "to": "09:00:60"}"#, "local time")]
#[case::signs(r#"{"from": "08:00", "to": "+9:00"}"#, "local time")]
#[case::other_letters(r#"{"from": "08:00", "to": "0é:00"}"#, "local time")]
#[case::no_day(r#"{"from": "08:00", "to": "09:00", "days": []}"#, "at least one of mon")]
#[case::not_a_day(
    r#"{"from": "08:00", "to": "09:00", "days": ["monday"]}"#,
    "unknown variant `monday`"
)]
#[case::no_zone(r#"{"from": "08:00", "to": "09:00", "tz": "Europe/Berlen"}"#, "IANA")]
#[case::unknown_field(r#"{"from": "08:00", "to": "09:00", "zone": "UTC"}"#, "unknown field `zone`")]
#[case::missing(r#"{"from": "08:00"}"#, "missing field `to`")]
fn a_window_that_makes_no_sense_is_refused(#[case] json: &str, #[case] why: &str) {
    let error = serde_json::from_str::<Window>(json).unwrap_err().to_string();
    assert!(error.contains(why), "{error}");
}

pub(crate) const ZONES: [&str; 8] = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Pacific/Apia",
    "UTC",
];

/// What the clock in `tz` shows at `second`.
pub(crate) fn shown(tz: Tz, second: i64) -> NaiveDateTime {
    let utc = DateTime::<Utc>::from_timestamp(second, 0).unwrap().naive_utc();
    utc + Duration::seconds(tz.offset_from_utc_datetime(&utc).fix().local_minus_utc().into())
}

/// The hours of 2010 to 2030 in which a zone's offset changes.
pub(crate) static CHANGES: LazyLock<HashMap<&str, Vec<i64>>> = LazyLock::new(|| {
    let offset = |tz: Tz, second: i64| {
        (shown(tz, second) - DateTime::<Utc>::from_timestamp(second, 0).unwrap().naive_utc())
            .num_seconds()
    };
    let hours = || (1_262_304_000..1_893_456_000).step_by(3600);
    let changes = |name: &str| {
        let tz: Tz = name.parse().unwrap();
        let found: Vec<i64> =
            hours().filter(|&hour| offset(tz, hour) != offset(tz, hour + 3600)).collect();
        if found.is_empty() { vec![1_500_000_000] } else { found }
    };
    ZONES.iter().map(|name| (*name, changes(name))).collect()
});

/// What a zone's clock shows at every minute of some weeks.
struct Walk {
    tz: Tz,
    minutes: Vec<(i64, NaiveDateTime)>,
}

impl Walk {
    fn around(tz: Tz, second: i64) -> Self {
        let middle = second.div_euclid(60) * 60;
        let minutes = (middle - 10 * 86_400..middle + 21 * 86_400)
            .step_by(60)
            .map(|second| (second, shown(tz, second)))
            .collect();
        Self { tz, minutes }
    }

    /// The edges of one opening, minute by minute, and second by second where it matters.
    fn edges(&self, from: NaiveDateTime, to: NaiveDateTime) -> (i64, i64) {
        let near = |around: NaiveDateTime| {
            let first = (around.and_utc().timestamp() - self.minutes[0].0) / 60 - 30 * 60;
            self.minutes[first.max(0) as usize..].iter().take(60 * 60)
        };
        let minute = near(from).find(|(_, shows)| *shows >= from).unwrap().0;
        let opens = (minute - 60..=minute).find(|&second| shown(self.tz, second) >= from).unwrap();
        let minute = near(to).rfind(|(_, shows)| *shows < to).unwrap().0;
        let closes =
            1 + (minute..minute + 60).rfind(|&second| shown(self.tz, second) < to).unwrap();
        (opens, closes)
    }
}

#[derive(Clone, Debug)]
struct Drawn {
    tz: &'static str,
    from: u32,
    to: u32,
    days: Vec<u32>,
}

impl Drawn {
    fn window(&self) -> Window {
        let clock = |seconds: u32| {
            format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
        };
        let names = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
        let days: Vec<_> = self.days.iter().map(|day| names[*day as usize]).collect();
        let json = serde_json::json!({
            "from": clock(self.from),
            "to": clock(self.to),
            "tz": self.tz,
            "days": days,
        });
        serde_json::from_value(json).unwrap()
    }

    /// Every opening near `second`, in seconds.
    fn openings(&self, second: i64) -> Vec<(i64, i64)> {
        let tz: Tz = self.tz.parse().unwrap();
        let midnight = |day: NaiveDate| day.and_hms_opt(0, 0, 0).unwrap();
        let walk = Walk::around(tz, second);
        let days = (-7..18).map(|days| shown(tz, second).date() + Duration::days(days));
        days.filter(|day| self.days.contains(&day.weekday().num_days_from_monday()))
            .map(|day| {
                let over = if self.to < self.from { 86_400 } else { 0 };
                let (from, to) = (
                    Duration::seconds(self.from.into()),
                    Duration::seconds((self.to + over).into()),
                );
                walk.edges(midnight(day) + from, midnight(day) + to)
            })
            .filter(|(from, to)| from < to)
            .collect()
    }
}

prop_compose! {
    /// Edges lie mostly where clocks change: in the first hours of the day.
    fn drawn(tz: &'static str)(
        from in prop_oneof![3 => (0u32..4 * 12).prop_map(|n| n * 300), 1 => 0u32..86_400],
        to in prop_oneof![2 => (0u32..4 * 12).prop_map(|n| n * 300), 2 => 0u32..86_400],
        days in prop::sample::subsequence((0u32..7).collect::<Vec<_>>(), 1..=7),
    ) -> Drawn {
        let to = if from == to { (to + 61) % 86_400 } else { to };
        Drawn { tz, from, to, days }
    }
}

/// One to three windows of any zones, and an instant near a change of the first one's clocks.
fn scene() -> impl Strategy<Value = (Vec<Drawn>, i64)> {
    let zone = || prop::sample::select(ZONES.to_vec());
    let windows = prop::collection::vec(zone().prop_flat_map(drawn), 1..=3);
    (windows, any::<prop::sample::Index>(), -2 * 86_400_000i64..2 * 86_400_000).prop_map(
        |(windows, change, off)| {
            let changes = &CHANGES[windows[0].tz];
            (windows, changes[change.index(changes.len())] * 1000 + off)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn openings_and_closings_are_those_of_the_walk((drawn, millis) in scene()) {
        let windows: Vec<_> = drawn.iter().map(Drawn::window).collect();
        let mut spans: Vec<_> = drawn
            .iter()
            .flat_map(|window| window.openings(millis.div_euclid(1000)))
            .map(|(from, to)| (from * 1000, to * 1000))
            .collect();
        spans.sort_unstable();
        let edges = spans.iter().flat_map(|(from, to)| [*from - 1, *from, *to - 1, *to]);
        let near: Vec<_> = edges
            .filter(|edge| edge.abs_diff(millis) < 3 * 86_400_000)
            .chain([millis])
            .collect();
        for millis in near {
            let now = Timestamp::from_millis(millis);
            let open = spans.iter().any(|(from, to)| (*from..*to).contains(&millis));
            let openings = spans.iter().map(|(from, _)| *from);
            let next = openings.filter(|from| *from > millis).min().unwrap();
            prop_assert_eq!(
                next_opening(&windows, now),
                if open { now } else { Timestamp::from_millis(next) },
                "at {}",
                now,
            );

            let mut end = millis;
            for (from, to) in &spans {
                if *from <= end {
                    end = end.max(*to);
                }
            }
            match closing(&windows, now).map(Timestamp::millis) {
                None => prop_assert!(!open || end - millis >= 8 * 86_400_000, "at {}", now),
                Some(closed) => prop_assert_eq!((open, closed), (true, end), "at {}", now),
            }
        }
    }

    #[test]
    fn a_window_reads_as_it_was_written_in_both_encodings((drawn, _) in scene()) {
        let windows: Vec<_> = drawn.iter().map(Drawn::window).collect();
        let json = serde_json::to_string(&windows).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Vec<Window>>(&json).unwrap(), &windows);
        // With something behind it, which a shifted field would swallow.
        let packed = rmp_serde::to_vec(&(&windows, "end")).unwrap();
        prop_assert_eq!(
            rmp_serde::from_slice::<(Vec<Window>, String)>(&packed).unwrap(),
            (windows.clone(), "end".to_owned()),
        );
        let named = rmp_serde::to_vec_named(&windows).unwrap();
        prop_assert_eq!(rmp_serde::from_slice::<Vec<Window>>(&named).unwrap(), windows);
    }
}
