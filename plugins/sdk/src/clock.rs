//! Local time in any time zone. The host has the database of time zones; in a test, the library
//! `chrono-tz` has it.

pub use crate::bindings::throttler::tidegate::plugin::clock::{LocalTime, Shown};

/// Local time in `zone`, a name of the IANA time zone database such as `Europe/Berlin`, at a time
/// in milliseconds since 1970.
///
/// # Errors
///
/// What is wrong with an argument.
pub fn local(zone: &str, at: u64) -> Result<Shown, String> {
    #[cfg(target_arch = "wasm32")]
    return crate::bindings::throttler::tidegate::plugin::clock::local(zone, at);
    #[cfg(not(target_arch = "wasm32"))]
    native::local(zone, at)
}

/// The time at which `zone` shows `time`, in milliseconds since 1970. If it shows it twice, the
/// first one. If it skips it, the time of the change.
///
/// # Errors
///
/// What is wrong with an argument.
pub fn instant(zone: &str, time: LocalTime) -> Result<u64, String> {
    #[cfg(target_arch = "wasm32")]
    return crate::bindings::throttler::tidegate::plugin::clock::instant(zone, time);
    #[cfg(not(target_arch = "wasm32"))]
    native::instant(zone, time)
}

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use chrono::{
        DateTime, Datelike as _, MappedLocalTime, NaiveDate, NaiveDateTime, Offset as _, TimeDelta,
        TimeZone as _, Timelike as _,
    };
    use chrono_tz::Tz;

    use super::{LocalTime, Shown};

    fn parse(zone: &str) -> Result<Tz, String> {
        zone.parse().map_err(|_| {
            "zone: must be the IANA name of a time zone such as Europe/Berlin".to_owned()
        })
    }

    pub(super) fn local(zone: &str, at: u64) -> Result<Shown, String> {
        let at = i64::try_from(at).ok().and_then(DateTime::from_timestamp_millis);
        let at = at.filter(|at| at.year() < 10_000).ok_or("at: must be before the year 10000")?;
        let shown = at.with_timezone(&parse(zone)?);
        let time = LocalTime {
            year: shown.year(),
            month: shown.month() as u8,
            day: shown.day() as u8,
            hour: shown.hour() as u8,
            minute: shown.minute() as u8,
            second: shown.second() as u8,
            millisecond: shown.timestamp_subsec_millis() as u16,
        };
        let weekday = shown.weekday().number_from_monday() as u8;
        Ok(Shown { time, weekday, offset: shown.offset().fix().local_minus_utc() })
    }

    pub(super) fn instant(zone: &str, time: LocalTime) -> Result<u64, String> {
        let zone = parse(zone)?;
        let date = NaiveDate::from_ymd_opt(time.year, time.month.into(), time.day.into())
            .filter(|date| (1970..=9998).contains(&date.year()))
            .ok_or("time: must be a date from 1970 to 9998")?;
        let (hour, minute, second) = (time.hour.into(), time.minute.into(), time.second.into());
        let local = date
            .and_hms_milli_opt(hour, minute, second, time.millisecond.into())
            .filter(|_| time.millisecond < 1000)
            .ok_or("time: must be a time of day from 00:00:00.000 to 23:59:59.999")?;
        let at = match zone.from_local_datetime(&local) {
            MappedLocalTime::Single(at) | MappedLocalTime::Ambiguous(at, _) => {
                at.timestamp_millis()
            }
            MappedLocalTime::None => change(zone, local),
        };
        Ok(u64::try_from(at).unwrap_or(0))
    }

    /// The time of the change that skips `local`, found by halving: no zone is 16 hours off UTC.
    fn change(zone: Tz, local: NaiveDateTime) -> i64 {
        let millis = |at: NaiveDateTime| at.and_utc().timestamp_millis();
        let shows = |at: i64| {
            let at = DateTime::from_timestamp_millis(at).unwrap_or_default();
            millis(at.with_timezone(&zone).naive_local())
        };
        let around = |hours| millis(local + TimeDelta::hours(hours));
        let (mut before, mut after) = (around(-16), around(16));
        while after - before > 1 {
            let middle = before + (after - before) / 2;
            if shows(middle) < millis(local) { before = middle } else { after = middle }
        }
        after
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn time(month: u8, day: u8, hour: u8, minute: u8) -> LocalTime {
            LocalTime { year: 2026, month, day, hour, minute, second: 0, millisecond: 0 }
        }

        #[test]
        fn local_time_and_its_instant_belong_together() {
            let nine = time(7, 1, 9, 0);
            let at = instant("Europe/Berlin", nine).expect("a time");
            let shown = local("Europe/Berlin", at).expect("a time");
            assert_eq!((shown.time, shown.weekday, shown.offset), (nine, 3, 7200));
        }

        #[test]
        fn a_skipped_time_is_the_change_and_of_two_the_first_counts() {
            let utc = |time| instant("UTC", time);
            for skipped in [time(3, 29, 2, 0), time(3, 29, 2, 30)] {
                assert_eq!(instant("Europe/Berlin", skipped), utc(time(3, 29, 1, 0)));
            }
            assert_eq!(instant("Europe/Berlin", time(10, 25, 2, 30)), utc(time(10, 25, 0, 30)));
        }

        #[test]
        fn the_error_names_the_argument() {
            let error = |zone, time| instant(zone, time).unwrap_err();
            assert!(error("Berlin", time(1, 1, 0, 0)).starts_with("zone: "));
            assert!(error("UTC", time(2, 30, 0, 0)).starts_with("time: must be a date"));
            assert!(error("UTC", time(2, 1, 24, 0)).starts_with("time: must be a time of day"));
            assert!(local("UTC", u64::MAX).unwrap_err().starts_with("at: "));
        }
    }
}
