//! Instants and list cursors.

use proptest::prelude::*;

use super::driver::{fuzz, soup, text};
use crate::{port::listing::Cursor, time::Timestamp};

const DATES: &[&str] = &[
    "0000",
    "0001",
    "1969",
    "2026",
    "9999",
    "-",
    "-01",
    "-02-29",
    "-12-31",
    "T",
    "t",
    " ",
    "00",
    "23",
    "24",
    ":",
    ":59",
    ":60",
    ".",
    ".9999",
    ".0000001",
    "Z",
    "z",
    "+00:00",
    "-23:59",
    "+14:00",
    "2024-02-29T23:59:59",
    "9999-12-31T23:59:59",
    "0000-12-31T23:59:59",
    "0001-01-01T00:00:00",
];

/// RFC 3339 text at the edges of the calendar.
fn edge() -> impl Strategy<Value = String> {
    let year = prop::sample::select(&["0000", "0001", "1969", "2026", "9999"][..]);
    let date = prop::sample::select(&["-01-01", "-02-29", "-06-30", "-12-31"][..]);
    let clock = prop::sample::select(&["T00:00:00", "t12:30:59", " 23:59:59", "T23:59:60"][..]);
    let fraction = prop::sample::select(&["", ".9", ".9999", ".0000001", ".999"][..]);
    let offset = prop::sample::select(&["Z", "z", "+00:00", "-23:59", "+14:00"][..]);
    (year, date, clock, fraction, offset).prop_map(|(y, d, c, f, o)| [y, d, c, f, o].concat())
}

#[test]
fn an_instant_that_is_read_is_written_and_read_again() {
    fuzz(prop_oneof![3 => edge(), 1 => soup(DATES, 5), 1 => text(30)], |written| {
        let Ok(at) = written.parse::<Timestamp>() else { return Ok(()) };
        prop_assert_eq!(at.to_string().parse::<Timestamp>(), Ok(at));
        let reference = chrono::DateTime::parse_from_rfc3339(&written)
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        // A fraction of a millisecond is rounded up.
        let early = at.millis() - reference.timestamp_millis();
        prop_assert!((0..=1).contains(&early), "{} ms off", early);
        Ok(())
    });
}

#[test]
fn every_instant_of_the_calendar_is_read_as_it_was_written() {
    fuzz(-62_135_596_800_000..=Timestamp::MAX.millis(), |millis| {
        let at = Timestamp::from_millis(millis);
        prop_assert_eq!(at.to_string().parse::<Timestamp>(), Ok(at));
        Ok(())
    });
}

#[test]
fn a_cursor_is_read_as_it_was_written() {
    fuzz((any::<i64>(), text(20)), |(millis, tie)| {
        let cursor = Cursor { created_at: Timestamp::from_millis(millis), tie };
        prop_assert_eq!(cursor.to_string().parse::<Cursor>(), Ok(cursor));
        Ok(())
    });
}

#[test]
fn a_cursor_is_read_by_its_definition() {
    const PARTS: &[&str] =
        &["_", "-", "+", "0", "17", "9223372036854775807", "01jb", ".", " ", "é"];
    let millis = prop_oneof![any::<i64>().prop_map(|millis| millis.to_string()), soup(PARTS, 2)];
    let near = (millis, soup(PARTS, 4)).prop_map(|(millis, tie)| format!("{millis}_{tie}"));
    fuzz(prop_oneof![2 => near, 1 => soup(PARTS, 8), 1 => text(30)], |written| {
        // A whole number, the first underscore, and any text.
        let expected = written.find('_').and_then(|at| {
            let created_at = Timestamp::from_millis(written[..at].parse().ok()?);
            Some(Cursor { created_at, tie: written[at + 1..].to_owned() })
        });
        let cursor = written.parse::<Cursor>().ok();
        prop_assert_eq!(&cursor, &expected);
        if let Some(cursor) = cursor {
            prop_assert_eq!(cursor.to_string().parse::<Cursor>(), Ok(cursor));
        }
        Ok(())
    });
}
