//! Cron patterns, recurrences and windows.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::driver::{fuzz, json, soup, text};
use crate::{
    calendar::{
        recurrence::{CRON_BYTES, Cron, Recurrence, RecurrenceRule},
        window::{ClockTime, FOLLOWED, Window, Zone, closing, next_opening},
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
        let rule =
            Recurrence { rule: RecurrenceRule::Cron(cron, zone), starts_at: None, ends_at: None };
        let mut last = at;
        for next in rule.all_after(at).take(5) {
            prop_assert!(next > last, "{} follows {}", next, last);
            last = next;
        }
        Ok(())
    });
}

/// A field of a cron pattern with the numbers that it matches, all below `end`.
fn field(end: u32) -> impl Strategy<Value = (String, BTreeSet<u32>)> {
    prop_oneof![
        Just(("*".to_owned(), (0..end).collect())),
        (0..end).prop_map(|one| (one.to_string(), [one].into())),
        (0..end, 0..end).prop_map(|(a, b)| (format!("{a},{b}"), [a, b].into())),
        (0..end, 0..end).prop_map(|(a, b)| {
            let (from, to) = (a.min(b), a.max(b));
            (format!("{from}-{to}"), (from..=to).collect())
        }),
        (1..end).prop_map(move |step| {
            (format!("*/{step}"), (0..end).step_by(step as usize).collect())
        }),
    ]
}

/// In UTC, against a search through all minutes. Each pattern matches at least once a week.
#[test]
fn a_cron_pattern_occurs_at_the_first_matching_minute() {
    let fields = (field(60), field(24), field(7));
    fuzz((fields, 0..4_102_444_800_000i64), |((minutes, hours, weekdays), at)| {
        let written = format!("{} {} * * {}", minutes.0, hours.0, weekdays.0);
        let cron: Cron = written
            .parse()
            .map_err(|error| TestCaseError::fail(format!("{written} is refused: {error}")))?;
        let rule = RecurrenceRule::Cron(cron, Zone::default());
        let rule = Recurrence { rule, starts_at: None, ends_at: None };
        let matches = |minute: &i64| {
            // 1970-01-01 was a Thursday; the weekdays of cron start with Sunday.
            minutes.1.contains(&(minute.rem_euclid(60) as u32))
                && hours.1.contains(&(minute.div_euclid(60).rem_euclid(24) as u32))
                && weekdays.1.contains(&((minute.div_euclid(1440) + 4).rem_euclid(7) as u32))
        };
        let first = at.div_euclid(60_000) + 1;
        let expected = (first..first + 8 * 1440).find(matches);
        let expected = expected.map(|minute| Timestamp::from_millis(minute * 60_000));
        prop_assert_eq!(rule.after(Timestamp::from_millis(at)), expected, "{}", written);
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
        let rule = RecurrenceRule::Every { span: Seconds::from_millis(span), anchor };
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
    let clock = (0..25u32, 0..61u32, prop::option::of(0..61u32)).prop_map(|(h, m, s)| match s {
        None => format!("{h:02}:{m:02}"),
        Some(s) => format!("{h:02}:{m:02}:{s:02}"),
    });
    let day = prop::sample::select(&DAYS[..]);
    let days = prop::option::of(prop::collection::vec(day, 0..4));
    let tz = prop::option::of(prop::sample::select(&ZONES[..]));
    let times = (clock.clone(), clock, tz, days).prop_map(|(from, to, tz, days)| {
        let mut window = json!({"from": from, "to": to});
        window.as_object_mut().unwrap().extend(tz.map(|tz| ("tz".to_owned(), json!(tz))));
        window.as_object_mut().unwrap().extend(days.map(|days| ("days".to_owned(), json!(days))));
        window
    });
    let written = prop_oneof![1 => json(WORDS), 1 => almost, 2 => times];
    fuzz((written, instant()), |(written, at)| {
        let read = serde_json::from_value::<Window>(written.clone());
        let Ok(window) = read else {
            prop_assert!(!is_valid(&written), "{} is refused", written);
            return Ok(());
        };
        let again = serde_json::to_value(window).unwrap();
        prop_assert_eq!(parts(&again), parts(&written), "{} became {}", written, again);
        prop_assert_eq!(serde_json::from_value::<Window>(again).unwrap(), window);
        check_edges(&[window], at)
    });
}

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// A clock time by its definition, in seconds: two digits each, in range, the seconds optional.
fn clock_seconds(text: &str) -> Option<u32> {
    let two = |part: &str| {
        let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse::<u32>().ok().filter(|_| digits)
    };
    let numbers = text.split(':').map(two).collect::<Option<Vec<_>>>()?;
    let (hour, minute, second) = match numbers[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    (hour < 24 && minute < 60 && second < 60).then_some(hour * 3600 + minute * 60 + second)
}

/// The times, the zone and the days of a window in JSON, with defaults.
fn parts(window: &Value) -> (Option<u32>, Option<u32>, &str, BTreeSet<&str>) {
    let seconds = |name: &str| window[name].as_str().and_then(clock_seconds);
    let days = match window["days"].as_array() {
        None => DAYS.into(),
        Some(days) => days.iter().filter_map(Value::as_str).collect(),
    };
    (seconds("from"), seconds("to"), window["tz"].as_str().unwrap_or("UTC"), days)
}

/// Whether a window in JSON has valid times, a zone of [`ZONES`] and valid days.
fn is_valid(window: &Value) -> bool {
    let Some(fields) = window.as_object() else { return false };
    let (from, to, tz, days) = parts(window);
    let known = |name: &String| ["from", "to", "tz", "days"].contains(&name.as_str());
    let listed = fields.get("days").is_none_or(|days| {
        let valid = |day: &Value| day.as_str().is_some_and(|day| DAYS.contains(&day));
        days.as_array().is_some_and(|days| days.iter().all(valid))
    });
    fields.keys().all(known)
        && fields.get("tz").is_none_or(Value::is_string)
        && from.is_some()
        && to.is_some()
        && from != to
        && ZONES.contains(&tz)
        && listed
        && !days.is_empty()
}

/// In UTC, against arithmetic on the seconds of the week.
#[test]
fn windows_in_utc_open_and_close_at_their_times() {
    let days = prop::sample::subsequence(&DAYS[..], 1..=7);
    let window = (0..1440u32, 0..1440u32, days)
        .prop_filter("a window is not empty", |(from, to, _)| from != to);
    let windows = prop::collection::vec(window, 1..4);
    fuzz((windows, 0..4_102_444_800_000i64), |(drawn, at)| {
        let clock = |minute: u32| format!("{:02}:{:02}", minute / 60, minute % 60);
        let windows: Vec<Window> = drawn
            .iter()
            .map(|(from, to, days)| json!({"from": clock(*from), "to": clock(*to), "days": days}))
            .map(|window| serde_json::from_value(window).unwrap())
            .collect();
        let today = at.div_euclid(86_400_000);
        let openings: Vec<(i64, i64)> = (today - 1..today + 20)
            .flat_map(|day| drawn.iter().map(move |window| (day, window)))
            // 1970-01-01 was a Thursday.
            .filter(|(day, (_, _, days))| days.contains(&DAYS[(day + 3).rem_euclid(7) as usize]))
            .map(|(day, (from, to, _))| {
                let opens = day * 86_400_000 + i64::from(*from) * 60_000;
                (opens, opens + i64::from((to + 1440 - from) % 1440) * 60_000)
            })
            .collect();
        let open_until = |at: i64| {
            let open = openings.iter().filter(|(from, to)| *from <= at && at < *to);
            open.map(|(_, to)| *to).max()
        };
        let next = openings.iter().map(|(from, _)| *from).filter(|from| *from > at).min();
        let opens = if open_until(at).is_some() { Some(at) } else { next };
        let instant = Timestamp::from_millis(at);
        prop_assert_eq!(Some(next_opening(&windows, instant).millis()), opens);
        let mut end = at;
        while let Some(to) = open_until(end).filter(|_| end < at + FOLLOWED.as_millis() as i64) {
            end = to;
        }
        let closes = (end > at && end < at + FOLLOWED.as_millis() as i64).then_some(end);
        prop_assert_eq!(closing(&windows, instant).map(Timestamp::millis), closes);
        Ok(())
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
fn a_clock_time_is_read_by_its_definition() {
    const PARTS: &[&str] = &[
        "0", "1", "2", "9", "23", "24", "59", "60", ":", "08:00", ":00", ":59", ":60", "é", "+",
        " ",
    ];
    let two = || (0..99u8).prop_map(|number| format!("{number:02}"));
    let near = prop::collection::vec(two(), 1..=4).prop_map(|parts| parts.join(":"));
    let valid = (0..86_400u32)
        .prop_map(|at| format!("{:02}:{:02}:{:02}", at / 3600, at / 60 % 60, at % 60));
    fuzz(prop_oneof![soup(PARTS, 6), near, valid, text(8)], |written| {
        let expected = clock_seconds(&written);
        let Ok(time) = written.parse::<ClockTime>() else {
            prop_assert_eq!(expected, None, "{} is refused", written);
            return Ok(());
        };
        prop_assert_eq!(clock_seconds(&time.to_string()), expected, "{} became {}", written, time);
        prop_assert_eq!(time.to_string().parse::<ClockTime>(), Ok(time));
        prop_assert!(written.starts_with(&time.to_string()), "{} became {}", written, time);
        Ok(())
    });
}
