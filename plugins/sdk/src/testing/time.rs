//! Instants in the format of cases.

use serde::{Deserialize, Deserializer, de};

use crate::calendar::{DAY, day_number};

/// Milliseconds since 1970, parsed from that number or from RFC 3339.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instant(pub u64);

impl<'de> Deserialize<'de> for Instant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Millis(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Millis(millis) => Ok(Self(millis)),
            Written::Text(text) => {
                let millis = rfc3339(&text).and_then(|millis| u64::try_from(millis).ok());
                millis.map(Self).ok_or_else(|| {
                    de::Error::custom(format!(
                        "{text:?} is not an instant like 2026-01-31T09:30:00Z"
                    ))
                })
            }
        }
    }
}

/// The milliseconds since 1970 of an RFC 3339 text such as `2026-01-31T09:30:00.250+01:00`.
fn rfc3339(text: &str) -> Option<i64> {
    let (date, rest) = text.split_at_checked(10)?;
    let (clock, rest) = rest.strip_prefix(['T', 't', ' '])?.split_at_checked(8)?;
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(clock, ':')?;
    let digits = rest.strip_prefix('.').map_or("", |rest| {
        &rest[..rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len()]
    });
    let millis: i64 = format!("{digits:0<3}").get(..3)?.parse().ok()?;
    let zone = if digits.is_empty() { rest } else { &rest[digits.len() + 1..] };
    let offset = match zone.split_at_checked(1)? {
        ("Z" | "z", "") => 0,
        (sign @ ("+" | "-"), zone) => {
            let [hours, minutes] = numbers(zone, ':')?;
            (hours * 60 + minutes) * if sign == "+" { 1 } else { -1 }
        }
        _ => return None,
    };
    ((1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61)
        .then(|| {
            day_number(year, month, day) * DAY
                + (hour * 60 + minute - offset) * 60_000
                + second * 1000
                + millis
        })
}

fn numbers<const N: usize>(text: &str, between: char) -> Option<[i64; N]> {
    let numbers: Option<Vec<i64>> = text.split(between).map(|part| part.parse().ok()).collect();
    numbers?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_read_with_its_zone_and_its_fraction() {
        assert_eq!(rfc3339("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(rfc3339("2026-01-01T00:00:00Z"), Some(1_767_225_600_000));
        assert_eq!(rfc3339("2026-01-01T01:30:00.25+01:30"), Some(1_767_225_600_250));
        for wrong in [
            "",
            "2026-01-01",
            "2026-13-01T00:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00Zulu",
        ] {
            assert_eq!(rfc3339(wrong), None, "{wrong}");
        }
    }
}
