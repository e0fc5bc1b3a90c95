//! The cost of metered requests, from the logs of the functions.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use anyhow::Context as _;
use serde_json::json;

use super::tables;
use crate::cli::{Context, ExitCode, context::UsageError, output};
use tidegate_backends::cost::{Metered, Prices};

/// Prints the metered requests in the log `file`, which must have a call.
pub(super) fn print(file: &Path, prices: &Prices, ctx: &Context) -> anyhow::Result<ExitCode> {
    let metered = read(file)?;
    let pieces = metered.pieces(prices);
    let a_job = |amount: f64| {
        if metered.jobs == 0 { 0.0 } else { amount / metered.jobs as f64 }
    };
    if ctx.json() {
        let pieces = pieces.map(|(what, count, million)| {
            let dollars = a_job(count as f64 * million);
            json!({"what": what, "count": count, "dollars_per_million_jobs": dollars})
        });
        ctx.print(json!({"jobs": metered.jobs, "metered": pieces}))?;
        return Ok(ExitCode::Ok);
    }
    let row = |(what, count, million): &(&str, u64, f64)| {
        let of = *count as f64;
        [
            (*what).to_owned(),
            count.to_string(),
            format!("{:.2}", a_job(of)),
            tables::dollars(a_job(of * million)),
        ]
    };
    let sum: f64 = pieces.iter().map(|(_, count, million)| *count as f64 * million).sum();
    let sum = [
        "together".to_owned(),
        format!("{} jobs", metered.jobs),
        String::new(),
        tables::dollars(a_job(sum)),
    ];
    ctx.print_tables(output::table(
        ctx.look,
        ["metered", "count", "a job", "$ a million jobs"],
        pieces.iter().map(row).chain([sum]),
    ))?;
    Ok(ExitCode::Ok)
}

/// Adds up the metered requests in the log `file`.
fn read(file: &Path) -> anyhow::Result<Metered> {
    let log: Box<dyn BufRead> = if file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(BufReader::new(
            File::open(file)
                .map_err(|error| UsageError(format!("--metered: {}: {error}", file.display())))?,
        ))
    };
    let mut metered = Metered::default();
    for line in log.split(b'\n') {
        metered.add(&String::from_utf8_lossy(
            &line.with_context(|| format!("{} cannot be read", file.display()))?,
        ));
    }
    if metered.calls == 0 {
        anyhow::bail!(
            "{} has no metered call: functions meter if their stack has a MetricsNamespace",
            file.display()
        );
    }
    Ok(metered)
}
