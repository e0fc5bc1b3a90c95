//! Cron patterns, recurrences and windows.

use proptest::prelude::*;
use serde_json::json;

use super::driver::{fuzz, json, soup, text};
use crate::{
    calendar::{
        recurrence::{CRON_BYTES, Cron, Recurrence, Rule},
        window::{ClockTime, Window, Zone, closing, next_opening},
    },
    time::{Seconds, Timestamp},
};

const ZONES: [&str; 7] = [
    "UTC",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "America/New_York",
    "Africa/Casablanca",
    "Asia/Kolkata",
];

fn zone() -> impl Strategy<Value = Zone> {
    prop::sample::select(&ZONES[..]).prop_map(|name| name.parse().unwrap())
}

fn instant() -> impl Strategy<Value = Timestamp> {
    let edges = [i64::MIN, -62_135_596_800_000, -1, 0, Timestamp::MAX.millis(), i64::MAX];
    prop_oneof![
        8 => (0..4_102_444_800_000i64).prop_map(Timestamp::from_millis),
        1 => prop::sample::select(edges.to_vec()).prop_map(Timestamp::from_millis),
    ]
}

/// Text that is a cron pattern more often than not.
fn pattern() -> impl Strategy<Value = String> {
    const PARTS: &[&str] = &[
        "*",
        "*/5",
        "0",
        "7",
        "30",
        "59",
        "60",
        "1-5",
        "5-1",
        "0/15",
        "1,2,3",
        "L",
        "LW",
        "15W",
        "5#3",
        "MON",
        "sun-tue",
        "FEB",
        "?",
        "31",
        "29",
        "1-31/7",
        "W",
        "#",
        "@daily",
        "-",
        ",",
        "H",
        "99999999999",
        "é",
        "*/0",
        "0-0",
    ];
    let field = prop::sample::select(PARTS);
    prop_oneof![
        6 => prop::collection::vec(field, 4..=7).prop_map(|fields| fields.join(" ")),
        1 => soup(PARTS, 9),
        1 => text(20),
    ]
}

#[test]
fn a_cron_pattern_is_refused_or_occurs_in_order() {
    fuzz((pattern(), zone(), instant()), |(written, zone, at)| {
        let Ok(cron) = written.parse::<Cron>() else { return Ok(()) };
        prop_assert!(written.len() <= CRON_BYTES);
        prop_assert_eq!(cron.to_string().parse::<Cron>(), Ok(cron.clone()));
        let rule = Recurrence { rule: Rule::Cron(cron, zone), starts_at: None, ends_at: None };
        let mut last = at;
        for next in rule.all_after(at).take(5) {
            prop_assert!(next > last, "{} follows {}", next, last);
            last = next;
        }
        Ok(())
    });
}

#[test]
fn an_interval_occurs_on_its_grid_and_in_order() {
    // What a schedule may say: a year at most, and instants of the calendar.
    let span = prop_oneof![1..100_000u64, 1..=31_536_000_000u64];
    let instant =
        || (-62_135_596_800_000..=Timestamp::MAX.millis()).prop_map(Timestamp::from_millis);
    fuzz((span, instant(), instant(), instant()), |(span, anchor, at, ends)| {
        let rule = Rule::Every { span: Seconds::from_millis(span), anchor };
        let rule = Recurrence { rule, starts_at: None, ends_at: Some(ends) };
        let mut last = at;
        for next in rule.all_after(at).take(5) {
            prop_assert!(next > last && next <= ends, "{} follows {}", next, last);
            let off = i128::from(next.millis()) - i128::from(anchor.millis());
            prop_assert_eq!(off % i128::from(span), 0);
            last = next;
        }
        Ok(())
    });
}

#[test]
fn a_window_that_is_read_is_written_and_read_again() {
    const WORDS: &[&str] = &[
        "from",
        "to",
        "tz",
        "days",
        "08:00",
        "23:59:59",
        "24:00",
        "Europe/Berlin",
        "UTC",
        "mon",
        "sun",
        "Mon",
        "8:00",
    ];
    let almost = (json(WORDS), json(WORDS), json(WORDS), json(WORDS))
        .prop_map(|(from, to, tz, days)| json!({"from": from, "to": to, "tz": tz, "days": days}));
    let times = (json(WORDS), soup(&["mon", "sun"], 1))
        .prop_map(|(to, day)| json!({"from": "22:00", "to": to, "days": [day]}));
    fuzz((prop_oneof![json(WORDS), almost, times], instant()), |(written, at)| {
        let Ok(window) = serde_json::from_value::<Window>(written) else { return Ok(()) };
        let again = serde_json::to_value(window).unwrap();
        prop_assert_eq!(serde_json::from_value::<Window>(again).unwrap(), window);
        check_edges(&[window], at)
    });
}

#[test]
fn windows_open_and_close_in_order_at_any_instant() {
    let window = (0..86_400u32, 0..86_400u32, prop::sample::select(&ZONES[..])).prop_filter_map(
        "a window is not empty",
        |(from, to, tz)| {
            let clock = |at: u32| format!("{:02}:{:02}:{:02}", at / 3600, at / 60 % 60, at % 60);
            serde_json::from_value(json!({"from": clock(from), "to": clock(to), "tz": tz})).ok()
        },
    );
    fuzz((prop::collection::vec(window, 0..5), instant()), |(windows, at)| {
        check_edges(&windows, at)
    });
}

fn check_edges(windows: &[Window], at: Timestamp) -> Result<(), TestCaseError> {
    let opens = next_opening(windows, at);
    prop_assert!(opens >= at || opens == Timestamp::MAX, "opens at {} before {}", opens, at);
    // An opening is inside a window: nothing is awaited there.
    prop_assert_eq!(next_opening(windows, opens), opens);
    if let Some(closes) = closing(windows, at) {
        prop_assert!(closes > at, "closes at {} before {}", closes, at);
        prop_assert_eq!(opens, at, "only an open window closes");
    }
    Ok(())
}

#[test]
fn a_clock_time_that_is_read_is_written_and_read_again() {
    let parts: &[&str] =
        &["0", "1", "2", "9", "23", "59", "60", ":", "08:00", ":00", "é", "+", " "];
    fuzz(prop_oneof![soup(parts, 6), text(8)], |written| {
        let Ok(time) = written.parse::<ClockTime>() else { return Ok(()) };
        prop_assert_eq!(time.to_string().parse::<ClockTime>(), Ok(time));
        prop_assert!(written.starts_with(&time.to_string()), "{} became {}", written, time);
        Ok(())
    });
}
