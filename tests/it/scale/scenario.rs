//! A scenario: a text file with the load, the deployment and the bounds.
//!
//! ```text
//! # The first line is the title.
//! jobs: 300000
//! spread: 0 s
//! shards: 8
//! bound: last start <= 300
//! known: last start 640 at small
//! ```
//!
//! A bound that does not hold yet has a line `known`, which states the measured value at a size:
//! `small` (the part that `./test` runs, usually a tenth) or `full`. The scenario fails if the
//! value is worse than that by a tenth, and if the bound holds: then the line must be removed.

use std::{fmt::Write as _, time::Duration};

/// What a queue may run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    None,
    Concurrency(f64),
    PerSecond(f64),
}

/// What happens apart from the jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    None,
    /// `tick` does not run for so long, from the first due time on.
    TickOff(Duration),
    /// `deliver` does not run for so long, from the first due time on.
    DeliverOff(Duration),
    /// The messages of the jobs are lost.
    MessagesLost,
}

/// A bound of a measured value.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    pub what: String,
    /// Whether it is the largest permitted value, or the least.
    pub at_most: bool,
    pub value: f64,
}

impl Bound {
    fn holds(&self, value: f64) -> bool {
        if self.at_most { value <= self.value } else { value >= self.value }
    }
}

/// A measured value of a bound that does not hold.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    what: String,
    value: f64,
    size: String,
}

/// A scenario at full size.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub title: String,
    pub jobs: f64,
    /// The part of the load, and of the limits, that `./test` runs.
    pub part: f64,
    /// The time in which the jobs are due.
    pub spread: Duration,
    /// Bytes of each job's data.
    pub data: usize,
    /// How long each call of a target takes.
    pub takes: Duration,
    pub limit: Limit,
    pub priority: bool,
    pub tenants: f64,
    /// Queues among which the jobs are divided.
    pub queues: f64,
    /// Queues without jobs.
    pub idle: f64,
    /// Workers that lease one job at a time; none if the jobs are pushed.
    pub workers: f64,
    pub shards: u8,
    pub memory: f64,
    /// The part of AWS's limits that the table has.
    pub capacity: f64,
    /// Jobs a second of another queue, which has no limit.
    pub others: f64,
    pub fault: Fault,
    /// How long it runs, from the first due time on.
    pub lasts: Duration,
    pub bounds: Vec<Bound>,
    known: Vec<Known>,
}

fn number(text: &str) -> Result<f64, String> {
    text.trim().replace(',', "").parse().map_err(|_| format!("{text:?} is no number"))
}

/// A span: `10 s`, `5 min`, `24 h`.
fn span(text: &str) -> Result<Duration, String> {
    let (count, unit) = text.trim().split_once(' ').ok_or("a span is a number and a unit")?;
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("{unit:?} is no unit of time")),
    };
    Ok(Duration::from_secs_f64(number(count)? * seconds))
}

fn limit(text: &str) -> Result<Limit, String> {
    match text.split_once(' ') {
        Some(("concurrency", most)) => Ok(Limit::Concurrency(number(most)?)),
        Some((rate, "per second")) => Ok(Limit::PerSecond(number(rate)?)),
        _ => Err(format!("{text:?} is no limit")),
    }
}

fn fault(text: &str) -> Result<Fault, String> {
    if text == "messages lost" {
        return Ok(Fault::MessagesLost);
    }
    match text.split_once(" off for ") {
        Some(("tick", time)) => Ok(Fault::TickOff(span(time)?)),
        Some(("deliver", time)) => Ok(Fault::DeliverOff(span(time)?)),
        _ => Err(format!("{text:?} is no fault")),
    }
}

fn bound(text: &str) -> Result<Bound, String> {
    let (at_most, parts) = match text.split_once("<=") {
        Some(parts) => (true, parts),
        None => (false, text.split_once(">=").ok_or("a bound has <= or >=")?),
    };
    Ok(Bound { what: parts.0.trim().to_owned(), at_most, value: number(parts.1)? })
}

fn known(text: &str) -> Result<Known, String> {
    let (what, size) = text.rsplit_once(" at ").ok_or("a known value has a size")?;
    let (what, value) = what.rsplit_once(' ').ok_or("a known value has a name and a number")?;
    let value = if value == "never" { f64::INFINITY } else { number(value)? };
    Ok(Known { what: what.to_owned(), value, size: size.to_owned() })
}

impl Scenario {
    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// The first line that cannot be read, and why.
    pub fn parse(text: &str) -> Result<Self, String> {
        let title = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let mut read = Self {
            title: title.ok_or("the first line is a title")?.to_owned(),
            jobs: 0.0,
            part: 0.1,
            spread: Duration::ZERO,
            data: 300,
            takes: Duration::from_millis(100),
            limit: Limit::None,
            priority: false,
            tenants: 0.0,
            queues: 1.0,
            idle: 0.0,
            workers: 0.0,
            shards: 1,
            memory: 512.0,
            capacity: 1.0,
            others: 0.0,
            fault: Fault::None,
            lasts: Duration::from_mins(30),
            bounds: Vec::new(),
            known: Vec::new(),
        };
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            read.line(line).map_err(|why| format!("{line}: {why}"))?;
        }
        Ok(read)
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let (name, value) = line.split_once(": ").ok_or("a line is a name, a colon and a value")?;
        match name {
            "jobs" => self.jobs = number(value)?,
            "part" => self.part = number(value)?,
            "spread" => self.spread = span(value)?,
            "data" => self.data = number(value)? as usize,
            "takes" => self.takes = span(value)?,
            "limit" => self.limit = limit(value)?,
            "order" if value == "priority" => self.priority = true,
            "tenants" => self.tenants = number(value)?,
            "queues" => self.queues = number(value)?,
            "idle queues" => self.idle = number(value)?,
            "workers" => self.workers = number(value)?,
            "shards" => self.shards = number(value)? as u8,
            "memory" => self.memory = number(value)?,
            "capacity" => self.capacity = number(value)?,
            "others a second" => self.others = number(value)?,
            "fault" => self.fault = fault(value)?,
            "lasts" => self.lasts = span(value)?,
            "bound" => self.bounds.push(bound(value)?),
            "known" => self.known.push(known(value)?),
            _ => return Err("the name is unknown".into()),
        }
        Ok(())
    }

    /// Compares what was measured at a size with the bounds. Prints each comparison, and returns
    /// what is wrong.
    pub fn judge(&self, size: &str, measured: &[(&'static str, f64)]) -> (String, Vec<String>) {
        let (mut table, mut wrong) = (String::new(), Vec::new());
        for bound in &self.bounds {
            let Some((_, value)) = measured.iter().find(|(what, _)| *what == bound.what) else {
                wrong.push(format!("{} is not measured", bound.what));
                continue;
            };
            let known = self.known.iter().find(|one| one.what == bound.what && one.size == size);
            let sign = if bound.at_most { "<=" } else { ">=" };
            let outcome = match (bound.holds(*value), known) {
                (true, None) => "holds".to_owned(),
                (true, Some(_)) => {
                    wrong.push(format!("{} holds: remove its known value", bound.what));
                    "holds, and is known not to".to_owned()
                }
                (false, None) => {
                    wrong.push(format!("{} is {value:.3}", bound.what));
                    "DOES NOT HOLD".to_owned()
                }
                (false, Some(known)) => {
                    let worst = known.value * if bound.at_most { 1.1 } else { 0.9 };
                    let is_worse = if bound.at_most { *value > worst } else { *value < worst };
                    if is_worse {
                        wrong.push(format!("{} is {value:.3}, known {}", bound.what, known.value));
                    }
                    format!("known: {}", known.value)
                }
            };
            let _ = writeln!(
                table,
                "  {:24} {value:>12.3}  {sign} {:<10} {outcome}",
                bound.what, bound.value
            );
        }
        (table, wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# A title\njobs: 1,000\nspread: 2 min\nlimit: concurrency 5\n\
                        fault: tick off for 24 h\nbound: p99 <= 2\nbound: busy >= 90\n\
                        known: p99 10 at small\n";

    #[test]
    fn a_file_is_read_and_a_wrong_line_is_named() {
        let read = Scenario::parse(TEXT).unwrap();
        assert_eq!((read.jobs, read.spread), (1000.0, Duration::from_mins(2)));
        assert_eq!(read.limit, Limit::Concurrency(5.0));
        assert_eq!(read.fault, Fault::TickOff(Duration::from_hours(24)));
        let error = Scenario::parse("# A title\nspread: soon\n").unwrap_err();
        assert!(error.starts_with("spread: soon"), "{error}");
    }

    #[test]
    fn a_known_value_may_neither_get_worse_nor_hold() {
        let read = Scenario::parse(TEXT).unwrap();
        let wrong = |size, p99, busy| read.judge(size, &[("p99", p99), ("busy", busy)]).1;
        assert_eq!(wrong("small", 10.5, 95.0), [""; 0]);
        assert_eq!(wrong("small", 11.5, 95.0), ["p99 is 11.500, known 10"]);
        assert_eq!(wrong("small", 1.5, 95.0), ["p99 holds: remove its known value"]);
        assert_eq!(wrong("full", 1.5, 80.0), ["busy is 80.000"]);
        assert_eq!(wrong("full", 10.0, 95.0), ["p99 is 10.000"]);
    }
}
