//! The tables of `tidegate simulate`.

use std::fmt::Write as _;

use crate::cli::{
    output::{self, OutputStyle},
    safe,
};
use tidegate_engine::simulate::{
    Agreement, Difference, Simulation, SimulationReport,
    policies::{Calls, FirstFault, LoggedLine},
    report::{Over, Row, Spread, Waits},
};

/// Most rows of a table of reasons.
const MAX_REASONS: usize = 20;

/// Returns the tables of one simulation, or of two side by side, with the decisions that differ. A
/// plugin's log has at most `log_lines` lines.
pub fn render(
    one: &Simulation,
    other: Option<&Simulation>,
    differences: Option<&(Vec<Difference>, u64)>,
    names: &[String; 2],
    log_lines: usize,
    look: OutputStyle,
) -> String {
    let mut parts = vec![match other {
        None => table(&one.report, look),
        Some(other) => both(&one.report, &other.report, names, look),
    }];
    for (name, simulation) in names.iter().zip([Some(one), other].into_iter().flatten()) {
        let of = if other.is_some() { format!("{name}: ") } else { String::new() };
        parts.extend(below(&simulation.report, &of, log_lines, look));
    }
    if let Some((first, count)) = differences {
        parts.push(format!(
            "{count} jobs were decided differently{}",
            if first.is_empty() { "" } else { "; the first:" }
        ));
        if !first.is_empty() {
            let rows = first.iter().map(|one| {
                [
                    format!("{} s", figure(one.at_seconds)),
                    one.job.clone(),
                    one.value.clone(),
                    one.one.clone(),
                    one.other.clone(),
                ]
            });
            parts.push(output::table(
                look,
                ["at", "job", one.report.by.as_str(), names[0].as_str(), names[1].as_str()],
                rows,
            ));
        }
    }
    if let Some((real, agreement)) = &one.real {
        parts.push(agreed(real, agreement, look));
    }
    parts.join("\n\n")
}

/// Returns a number in about three digits.
fn figure(number: f64) -> String {
    // A sum of nothing is -0.
    let number = number + 0.0;
    let text = match number.abs() {
        0.0..10.0 => format!("{number:.2}"),
        10.0..1000.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// The columns of a report after the value.
const COLUMNS: [&str; 10] = [
    "jobs",
    "ended",
    "unfinished",
    "wait median",
    "p99",
    "longest",
    "most/limit",
    "mean",
    "used",
    "retries, moved",
];

fn cells(row: &Row) -> [String; 10] {
    let Waits { median, p99, longest } = row.wait_seconds;
    let seconds = |seconds| format!("{} s", figure(seconds));
    let unfinished = [(row.waiting, "waiting"), (row.running, "running")];
    [
        row.jobs.to_string(),
        ends(row),
        listed(&unfinished),
        seconds(median),
        seconds(p99),
        seconds(longest),
        format!(
            "{}/{}",
            row.most_running,
            row.limit.map_or_else(output::dash, |limit| limit.to_string())
        ),
        figure(row.mean_running),
        row.utilisation.map_or_else(output::dash, |part| format!("{:.0} %", part * 100.0)),
        listed(&[(row.retries, "retries"), (row.rescheduled, "moved")]),
    ]
}

fn ends(row: &Row) -> String {
    listed(&[
        (row.succeeded, "succeeded"),
        (row.failed, "failed"),
        (row.expired, "expired"),
        (row.cancelled, "cancelled"),
        (row.dropped, "dropped"),
    ])
}

fn listed(counts: &[(u64, &str)]) -> String {
    let some: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if some.is_empty() { output::dash() } else { some.join(", ") }
}

/// Returns `first` followed by `rest`, `N` items in total.
fn joined<T: Clone, const N: usize>(first: &[T], rest: &[T]) -> [T; N] {
    std::array::from_fn(|index| {
        first.get(index).unwrap_or_else(|| &rest[index - first.len()]).clone()
    })
}

/// Returns the table of one report.
fn table(report: &SimulationReport, look: OutputStyle) -> String {
    let rows = report
        .groups
        .iter()
        .chain([&report.all])
        .map(|row| joined::<_, 11>(std::slice::from_ref(&row.value), &cells(row)));
    output::table(look, joined::<_, 11>(&[report.by.as_str()], &COLUMNS), rows)
}

/// Returns the table of two reports: for each value both rows, and their difference.
fn both(
    one: &SimulationReport,
    other: &SimulationReport,
    names: &[String; 2],
    look: OutputStyle,
) -> String {
    let mut rows = Vec::new();
    let mut values: Vec<&str> =
        one.groups.iter().chain(&other.groups).map(|row| row.value.as_str()).collect();
    values.sort_unstable();
    values.dedup();
    let find = |report: &SimulationReport, value: &str| {
        report.groups.iter().find(|row| row.value == value).cloned()
    };
    let pairs = values
        .iter()
        .map(|value| (find(one, value), find(other, value)))
        .chain([(Some(one.all.clone()), Some(other.all.clone()))]);
    for pair in pairs {
        let mut row = |value: &str, of: &str, cells: &[String]| {
            rows.push(joined::<_, 12>(&[value.to_owned(), of.to_owned()], cells));
        };
        match pair {
            (Some(a), Some(b)) => {
                row(&a.value, &names[0], &cells(&a));
                row("", &names[1], &cells(&b));
                row("", "difference", &change(&a, &b));
            }
            (Some(a), None) => row(&a.value, &names[0], &cells(&a)),
            (None, Some(b)) => row(&b.value, &names[1], &cells(&b)),
            (None, None) => {}
        }
    }
    output::table(look, joined::<_, 12>(&[one.by.as_str(), "of"], &COLUMNS), rows)
}

/// Returns the difference of `b` from `a`, by column.
fn change(a: &Row, b: &Row) -> [String; 10] {
    let number = |a: f64, b: f64, unit: &str| match figure(b - a) {
        zero if zero == "0" || zero == "-0" => output::dash(),
        more if b > a => format!("+{more}{unit}"),
        less => format!("{less}{unit}"),
    };
    let count = |a: u64, b: u64| number(a as f64, b as f64, "");
    let used = |row: &Row| row.utilisation.unwrap_or_default() * 100.0;
    [
        count(a.jobs, b.jobs),
        count(a.succeeded, b.succeeded),
        count(a.waiting + a.running, b.waiting + b.running),
        number(a.wait_seconds.median, b.wait_seconds.median, " s"),
        number(a.wait_seconds.p99, b.wait_seconds.p99, " s"),
        number(a.wait_seconds.longest, b.wait_seconds.longest, " s"),
        count(a.most_running, b.most_running),
        number(a.mean_running, b.mean_running, ""),
        number(used(a), used(b), " points"),
        count(a.retries + a.rescheduled, b.retries + b.rescheduled),
    ]
}

/// Returns the parts below the table of a report.
fn below(report: &SimulationReport, of: &str, log_lines: usize, look: OutputStyle) -> Vec<String> {
    let over = match report.over {
        Over::Done => "every job has ended",
        Over::Duration => "its duration has passed",
        Over::Stalled => "the waiting jobs can never start",
        Over::Ticks => "it reached the maximum number of ticks",
        Over::Stopped => "it was stopped",
    };
    let mut parts = vec![format!(
        "{of}over after {} s: {over}. {} ticks",
        figure(report.seconds),
        report.ticks
    )];
    parts.extend(held(report, look));
    parts.extend(calls(report, look));
    parts.extend(report.calls.iter().filter_map(|(role, calls)| first_fault(role, calls)));
    parts.extend(report.calls.iter().filter_map(|(role, calls)| log(role, calls, log_lines)));
    if !report.expectations.is_empty() {
        let rows = report.expectations.iter().map(|one| {
            let met = if one.met { "met" } else { "NOT MET" };
            [one.name.clone(), one.wanted.clone(), one.got.clone(), met.to_owned()]
        });
        parts.push(output::table(look, ["expected", "wanted", "got", ""], rows));
    }
    parts
}

/// Returns the table of the reasons that held jobs, most frequent first.
fn held(report: &SimulationReport, look: OutputStyle) -> Option<String> {
    let reasons = report.groups.iter().flat_map(|row| {
        row.held.iter().map(|(reason, count)| (row.value.clone(), reason.clone(), *count))
    });
    let mut held: Vec<(String, String, u64)> = reasons.collect();
    held.extend(
        report
            .held
            .iter()
            .filter(|(rule, _)| !rule.starts_with("throttler"))
            .map(|(rule, count)| (output::dash(), rule.clone(), *count)),
    );
    held.sort_by(|a, b| (b.2, &a.0, &a.1).cmp(&(a.2, &b.0, &b.1)));
    held.truncate(MAX_REASONS);
    if !held.is_empty() {
        let rows =
            held.into_iter().map(|(value, reason, count)| [count.to_string(), value, reason]);
        return Some(output::table(look, ["times held", report.by.as_str(), "by"], rows));
    }
    None
}

/// Returns the table of the plugin's calls.
fn calls(report: &SimulationReport, look: OutputStyle) -> Option<String> {
    if report.calls.is_empty() {
        return None;
    }
    let rows = report.calls.iter().map(|(role, calls)| {
        let spread = |spread: Option<Spread>, unit: &str, by: u64| {
            spread.map_or_else(output::dash, |spread| {
                format!("{}/{}{unit}", spread.median / by, spread.most / by)
            })
        };
        let faults: Vec<String> =
            calls.faults.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let faults = if faults.is_empty() { output::dash() } else { faults.join(", ") };
        [
            (*role).to_owned(),
            calls.calls.to_string(),
            spread(calls.fuel, "", 1),
            spread(calls.took_micros, " us", 1),
            spread(calls.memory_bytes, " KiB", 1024),
            faults,
        ]
    });
    Some(output::table(
        look,
        ["plugin", "calls", "fuel median/most", "time", "memory", "faults"],
        rows,
    ))
}

/// Returns the first fault of a plugin in full, with what the plugin logged in that call.
pub(super) fn first_fault(role: &str, calls: &Calls) -> Option<String> {
    let FirstFault { at_seconds, kind, message, log } = calls.first_fault.as_ref()?;
    let at = figure(*at_seconds);
    let mut text =
        format!("first fault of the {role}, at {at} s: {kind}: {}", safe::indented(message));
    for LoggedLine { level, message, .. } in log {
        let _ = write!(text, "\n  {level:5} {}", safe::indented(message));
    }
    Some(text)
}

/// Returns the first lines of a plugin's log, at most `most`.
pub(super) fn log(role: &str, calls: &Calls, most: usize) -> Option<String> {
    let shown = calls.log.len().min(most);
    if shown == 0 {
        return None;
    }
    let rest = match calls.logged - shown as u64 {
        0 => String::new(),
        rest => format!("; {rest} more lines follow"),
    };
    let mut text = format!("log of the {role}{rest}:");
    for LoggedLine { at_seconds, level, message } in &calls.log[..shown] {
        let at = figure(*at_seconds);
        let _ = write!(text, "\n  {at:>8} s {level:5} {}", safe::indented(message));
    }
    Some(text)
}

/// Returns the comparison of a simulated trace with the live queue.
fn agreed(real: &SimulationReport, agreement: &Agreement, look: OutputStyle) -> String {
    let waits = |of: &str, waits: Waits| {
        [
            of.to_owned(),
            format!("{} s", figure(waits.median)),
            format!("{} s", figure(waits.p99)),
            format!("{} s", figure(waits.longest)),
        ]
    };
    let rows = [
        waits("the live queue", agreement.real_wait_seconds),
        waits("simulated", agreement.simulated_wait_seconds),
    ];
    let table = output::table(look, ["waits of", "median", "p99", "longest"], rows);
    let overlap: Vec<String> = agreement
        .overlap
        .iter()
        .map(|(value, part)| {
            let value = if value.is_empty() { "all".into() } else { safe::line(value) };
            format!("{value} {:.0} %", part * 100.0)
        })
        .collect();
    format!(
        "{table}\n\n\
         {} jobs started in both, {} s apart on average. Overlap of the running jobs: {}. \
         The live queue took {} s.",
        agreement.jobs,
        figure(agreement.mean_difference_seconds),
        overlap.join(", "),
        figure(real.seconds),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let shown = [0.0, -0.0, 0.004, 1.5, 9.126, 42.0, 99.95, 1234.5].map(figure);
        assert_eq!(shown, ["0", "0", "0", "1.5", "9.13", "42", "100", "1234"]);
    }
}
