//! The units of the options: sizes, counts, rates, spans and prices.

use std::time::Duration;

use crate::cli::args;
use tidegate_backends::cost::Prices;

/// Largest data of a job that a deployment can accept, in bytes.
const MAX_DATA_BYTES: f64 = 4_500_000.0;

/// Splits a number with a unit into the digits and the letters.
fn split(text: &str) -> Option<(f64, &str)> {
    let end =
        text.find(|letter: char| !(letter.is_ascii_digit() || letter == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse::<f64>().ok().filter(|number| number.is_finite())?, unit.trim()))
}

/// Reads a size such as `2KB`, in bytes.
pub(super) fn bytes(text: &str) -> Result<usize, String> {
    let read = split(text).and_then(|(number, unit)| {
        let size = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1.0,
            "kb" | "kib" | "k" => 1024.0,
            "mb" | "mib" | "m" => 1_048_576.0,
            _ => return None,
        };
        Some(number * size)
    });
    match read {
        None => Err("a size such as 300, 2KB or 1MB is expected".into()),
        Some(bytes) if !(1.0..=MAX_DATA_BYTES).contains(&bytes) => {
            Err("1 to 4500000 bytes are expected".into())
        }
        Some(bytes) => Ok(bytes.ceil() as usize),
    }
}

/// Reads a count such as `10M`.
pub(in crate::cli) fn count(text: &str) -> Result<f64, String> {
    let read = split(text).and_then(|(number, unit)| {
        let size = match unit {
            "" => 1.0,
            "k" | "K" => 1e3,
            "M" => 1e6,
            "G" | "B" => 1e9,
            _ => return None,
        };
        Some(number * size)
    });
    read.filter(|count| *count > 0.0 && *count <= 1e12)
        .ok_or_else(|| "a count such as 500, 20k or 10M is expected".into())
}

/// Reads a rate such as `300/min`, per second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    const HELP: &str = "a rate such as 5/s, 300/min or 1M/d is expected";
    let (number, time) = text.split_once('/').ok_or(HELP)?;
    let seconds = match time.trim() {
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(HELP.into()),
    };
    Ok(count(number.trim()).map_err(|_| HELP)? / seconds)
}

/// Reads a number from `least` to `most`.
pub(super) fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let read = text.parse::<f64>().ok().filter(|number| (least..=most).contains(number));
    read.ok_or_else(|| format!("a number from {least} to {most} is expected"))
}

/// Reads a span such as `36h`, in days.
pub(super) fn days(text: &str) -> Result<f64, String> {
    let span: Duration = args::span(text)?.duration();
    Ok(span.as_secs_f64() / 86_400.0)
}

/// Reads a price such as `write=0.70`.
pub(super) fn one_price(text: &str) -> Result<(String, f64), String> {
    let (name, dollars) = text.split_once('=').ok_or("NAME=DOLLARS is expected")?;
    if !Prices::NAMES.contains(&name) {
        return Err(format!("unknown price {name}: {}", Prices::NAMES.join(", ")));
    }
    Ok((name.to_owned(), number(dollars, 0.0, 1e6)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_counts_and_rates_are_read_in_their_units() {
        assert_eq!(
            [bytes("300"), bytes("2KB"), bytes("1.5kb"), bytes("1MB")],
            [Ok(300), Ok(2048), Ok(1536), Ok(1_048_576)]
        );
        assert_eq!((bytes("4500000"), bytes("4500001").is_err()), (Ok(4_500_000), true));
        assert_eq!([count("500"), count("20k"), count("10M")], [Ok(500.0), Ok(20e3), Ok(10e6)]);
        assert_eq!([rate("5/s"), rate("300/min"), rate("86.4k/d")], [Ok(5.0), Ok(5.0), Ok(1.0)]);
    }
}
