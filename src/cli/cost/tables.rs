//! The tables of `tidegate cost`, and the same numbers as JSON.

use serde_json::{Map, Value, json};

use super::Args;
use crate::cli::output::{self, OutputStyle};
use tidegate_backends::cost::{
    Case, Deployment, Line, Prices, Units, Workload,
    case::{CASES, FULL_BATCH},
    estimate::{month, total},
    price,
};

/// The requests of a job, and the cost of a million jobs in dollars.
pub(super) type Point = (Units, f64);

/// Returns each case with the requests of a job and the cost of a million, batched and single.
pub(super) fn rows(
    workload: &Workload,
    deployment: &Deployment,
    prices: &Prices,
) -> Vec<(&'static str, Point, Point)> {
    let row = |case: &Case| {
        let point = |batch: f64| {
            let one = Workload { jobs: 1e6, batch, ..workload.of_case(case) };
            (one.units(), total(&month(&one, deployment, prices)))
        };
        (case.name, point(FULL_BATCH), point(1.0))
    };
    CASES.iter().map(row).collect()
}

/// Returns the table of the cases.
pub(super) fn of_cases(look: OutputStyle, rows: &[(&'static str, Point, Point)]) -> String {
    let rows = rows.iter().map(|(name, (units, batched), (_, single))| {
        let calls = units.enqueue + units.tick + units.deliver;
        [
            (*name).to_owned(),
            format!("{:.2}", units.writes),
            format!("{:.2}", units.reads),
            format!("{:.2}", units.standard + units.fifo),
            format!("{calls:.2}"),
            dollars(*batched),
            dollars(*single),
        ]
    });
    output::table(
        look,
        ["a job", "writes", "reads", "SQS", "calls", "$ a million", "one by one"],
        rows,
    )
}

/// Returns the table of an idle month.
pub(super) fn of_idle(look: OutputStyle, idle: &[Line]) -> String {
    let rows = idle.iter().map(|line| {
        [line.service.to_owned(), line.what.to_owned(), amount(line.amount), dollars(line.dollars)]
    });
    let sum =
        [["total".to_owned(), "an idle month".to_owned(), String::new(), dollars(total(idle))]];
    output::table(look, ["idle", "what", "a month", "$ a month"], rows.chain(sum))
}

/// Returns the bill of a month.
pub(super) fn of_month(
    look: OutputStyle,
    workload: &Workload,
    lines: &[Line],
    idle: &[Line],
) -> String {
    let million = |dollars: f64| self::dollars(dollars / workload.jobs * 1e6);
    let row = |line: &Line| {
        [
            line.service.to_owned(),
            line.what.to_owned(),
            amount(line.amount),
            dollars(line.dollars),
            million(line.dollars),
        ]
    };
    let all = total(lines) + total(idle);
    let sums = [
        ["idle", "cost without jobs", "", &dollars(total(idle)), &million(total(idle))]
            .map(ToString::to_string),
        ["total", &format!("{} jobs", amount(workload.jobs)), "", &dollars(all), &million(all)]
            .map(ToString::to_string),
    ];
    output::table(
        look,
        ["service", "what", "a month", "$ a month", "$ a million jobs"],
        lines.iter().map(row).chain(sums),
    )
}

/// Returns the assumptions of an estimate in two sentences.
pub(super) fn footnote(args: &Args) -> String {
    let batch = args.workload().batch;
    let changed = if args.prices.is_empty() { "" } else { ", with those of --price" };
    format!(
        "List prices of {} on {}{changed}, without free tiers. Functions are called with \
         {batch:.1} messages and run {}, {} and {} ms (enqueue, tick, deliver) at {} MB on arm64.",
        args.region,
        price::AS_OF,
        args.enqueue_ms,
        args.tick_ms,
        args.deliver_ms,
        args.memory
    )
}

/// Returns the source of the prices as JSON.
pub(super) fn price_list(args: &Args) -> Value {
    let changed: Map<String, Value> =
        args.prices.iter().map(|(name, dollars)| (name.clone(), (*dollars).into())).collect();
    json!({
        "region": args.region,
        "as_of": price::AS_OF,
        "source": price::SOURCE,
        "changed": changed,
    })
}

/// Returns a point as JSON.
pub(super) fn point((units, dollars): Point) -> Map<String, Value> {
    let mut point: Map<String, Value> = units
        .named()
        .into_iter()
        .filter(|(name, _)| *name != "rows")
        .map(|(name, units)| (name.into(), units.into()))
        .collect();
    point.insert("dollars_per_million".into(), dollars.into());
    point
}

/// Returns the lines of a bill as JSON.
pub(super) fn shape(lines: &[Line]) -> Vec<Value> {
    let shape = |line: &Line| {
        json!({
            "service": line.service,
            "what": line.what,
            "amount": line.amount,
            "dollars": line.dollars,
        })
    };
    lines.iter().map(shape).collect()
}

/// Returns an amount of money: in cents below 100 dollars.
pub(super) fn dollars(dollars: f64) -> String {
    if dollars < 100.0 { format!("{dollars:.2}") } else { format!("{dollars:.0}") }
}

/// Returns an amount in about three digits.
fn amount(amount: f64) -> String {
    match amount {
        small if small < 10.0 => format!("{small:.2}"),
        some if some < 1e4 => format!("{some:.0}"),
        many if many < 1e6 => format!("{:.0}k", many / 1e3),
        more if more < 1e7 => format!("{:.1}M", more / 1e6),
        most => format!("{:.0}M", most / 1e6),
    }
}
