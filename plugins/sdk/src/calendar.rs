//! Days and instants without a time zone database, which a component does not have.

/// Milliseconds of a day.
pub const DAY: i64 = 86_400_000;

/// The number of the day `year`-`month`-`day` (Gregorian), counted from 1970-01-01.
pub const fn day_number(year: i64, month: i64, day: i64) -> i64 {
    // The year begins in March, so that the leap day is its last day.
    let year = year - (month <= 2) as i64;
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The year, month and day of a day's number.
pub const fn date(day_number: i64) -> (i64, i64, i64) {
    let shifted = day_number + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = (month_from_march + 2) % 12 + 1;
    (
        era * 400 + year_of_era + (month <= 2) as i64,
        month,
        day_of_year - (153 * month_from_march + 2) / 5 + 1,
    )
}

/// The weekday of a day's number: 0 is Sunday.
pub const fn weekday(day_number: i64) -> i64 {
    (day_number + 4).rem_euclid(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_of_eight_centuries_follows_the_one_before() {
        let lengths = |year: i64| {
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
        };
        let mut number = day_number(1600, 1, 1);
        for year in 1600..2400 {
            for (month, length) in (1..).zip(lengths(year)) {
                for day in 1..=length {
                    assert_eq!(day_number(year, month, day), number);
                    assert_eq!(date(number), (year, month, day));
                    number += 1;
                }
            }
        }
        assert_eq!(day_number(1970, 1, 1), 0);
        assert_eq!(weekday(0), 4);
    }
}
