//! `tidegate cost`: estimates the cost of a deployment on AWS, without a server and without AWS.
//!
//! The numbers are those of [`tidegate_backends::cost`], which tests compare with metered runs.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;

use serde_json::{Value, json};

use super::{
    Context, ExitCode, args,
    context::UsageError,
    output::{self, OutputStyle},
};
use tidegate_backends::cost::{
    Deployment, Line, Metered, Prices, Workload,
    case::{CASES, FULL_BATCH},
    estimate::{idle, month, total},
    price,
};

/// Seconds of a month of thirty days.
const MONTH: f64 = 2_592_000.0;
/// Messages that arrive within this many seconds are assumed to be received together.
const TOGETHER: f64 = 0.2;
/// Largest data of a job that a deployment can accept, in bytes.
const MOST_BYTES: f64 = 4_500_000.0;

/// The options of `tidegate cost`.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[command(
    after_help = "Without --jobs-per-month or --rate: the cost of a million jobs by case, and of an idle month.\n\
    What each job takes of each service is metered by the tests; how long functions run is assumed, and can be set.\n\nExamples:\n  \
    tidegate cost\n  \
    tidegate cost --size 2KB --jobs-per-month 10M\n  \
    tidegate cost --rate 5/s --limited --retries 0.1 --callbacks\n  \
    tidegate cost --rate 100/s --delayed --deliver-ms 800 --price write=0.70 --json"
)]
pub struct Args {
    /// Size of each job's data, such as 300, 2KB or 1MB.
    #[arg(long, default_value = "300", value_parser = bytes, help_heading = "Jobs")]
    size: usize,
    /// Jobs per month, such as 10M.
    #[arg(long, value_name = "COUNT", value_parser = count, conflicts_with = "rate", help_heading = "Jobs")]
    jobs_per_month: Option<f64>,
    /// Job rate, such as 5/s, 300/min or 1M/d.
    #[arg(long, value_name = "COUNT/TIME", value_parser = rate, help_heading = "Jobs")]
    rate: Option<f64>,
    /// The types of the jobs use unclaimed dispatch.
    #[arg(long, conflicts_with_all = ["limited", "pull"], help_heading = "Jobs")]
    plain: bool,
    /// The jobs are due more than a minute after their enqueue.
    #[arg(long, conflicts_with = "pull", help_heading = "Jobs")]
    delayed: bool,
    /// The queue of the jobs has a limit, a rate or a throttler.
    #[arg(long, help_heading = "Jobs")]
    limited: bool,
    /// Workers lease the jobs.
    #[arg(long, help_heading = "Jobs")]
    pull: bool,
    /// Workers answer 202 and report each job by its own callback.
    #[arg(long, conflicts_with = "pull", help_heading = "Jobs")]
    callbacks: bool,
    /// Average number of retries of each job.
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = |text: &str| number(text, 0.0, 1000.0), help_heading = "Jobs")]
    retries: f64,
    /// Messages in each call of a function, 1 to 10 [default: those of 0.2 s; 10 without a rate].
    #[arg(long, value_name = "MESSAGES", value_parser = |text: &str| number(text, 1.0, 10.0), help_heading = "Jobs")]
    batch: Option<f64>,
    /// Jobs in each enqueue call, 1 to 1000.
    #[arg(long, value_name = "JOBS", default_value = "1", value_parser = |text: &str| number(text, 1.0, 1000.0), help_heading = "Jobs")]
    per_call: f64,
    /// Retention of each job after its end.
    #[arg(long, value_name = "SPAN", default_value = "7d", value_parser = days, help_heading = "Jobs")]
    keep: f64,

    /// Memory of the functions in MB.
    #[arg(long, value_name = "MB", default_value = "512", value_parser = |text: &str| number(text, 128.0, 10_240.0), help_heading = "Assumptions")]
    memory: f64,
    /// Duration of an API call, in milliseconds.
    #[arg(long, value_name = "MS", default_value = "8", value_parser = |text: &str| number(text, 1.0, 900_000.0), help_heading = "Assumptions")]
    enqueue_ms: f64,
    /// Duration of a tick of a queue, in milliseconds.
    #[arg(long, value_name = "MS", default_value = "60", value_parser = |text: &str| number(text, 1.0, 900_000.0), help_heading = "Assumptions")]
    tick_ms: f64,
    /// Duration of a batch of deliveries, in milliseconds: that of its slowest target.
    #[arg(long, value_name = "MS", default_value = "150", value_parser = |text: &str| number(text, 1.0, 900_000.0), help_heading = "Assumptions")]
    deliver_ms: f64,
    /// Lambda pollers on each SQS queue, 2 to 5; the work queue always has 5.
    #[arg(long, default_value = "5", value_parser = |text: &str| number(text, 2.0, 5.0), help_heading = "Assumptions")]
    pollers: f64,
    /// Queues that have jobs: the maintenance sweep reads each.
    #[arg(long, default_value = "1", value_parser = |text: &str| number(text, 0.0, 100_000.0), help_heading = "Assumptions")]
    queues: f64,
    /// CloudWatch alarms of the stack; 19 with events.
    #[arg(long, default_value = "17", value_parser = |text: &str| number(text, 0.0, 1000.0), help_heading = "Assumptions")]
    alarms: f64,
    /// Point-in-time recovery of the table is off (`PointInTimeRecovery`).
    #[arg(long, help_heading = "Assumptions")]
    no_recovery: bool,
    /// The region of the list prices.
    #[arg(long, default_value = price::REGIONS[0], value_parser = price::REGIONS, help_heading = "Prices")]
    region: String,
    /// Override a price, NAME=DOLLARS: write, read, standard, fifo, fair, call (a million of each), gb-second, put, get (a million),
    /// table-gb, recovery-gb, object-gb, log-gb (a gigabyte), alarm.
    #[arg(long = "price", value_name = "NAME=DOLLARS", value_parser = one_price, help_heading = "Prices")]
    prices: Vec<(String, f64)>,

    /// Add up the metered requests in the functions' logs instead of an estimate; `-` reads standard input. Functions meter if their
    /// stack has a `MetricsNamespace`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["jobs_per_month", "rate", "plain", "delayed", "limited", "pull", "callbacks"])]
    metered: Option<PathBuf>,
}

/// Splits a number with a unit into the digits and the letters.
fn split(text: &str) -> Option<(f64, &str)> {
    let end =
        text.find(|letter: char| !(letter.is_ascii_digit() || letter == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse::<f64>().ok().filter(|number| number.is_finite())?, unit.trim()))
}

fn bytes(text: &str) -> Result<usize, String> {
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
        Some(bytes) if !(1.0..=MOST_BYTES).contains(&bytes) => {
            Err("1 to 4500000 bytes are expected".into())
        }
        Some(bytes) => Ok(bytes.ceil() as usize),
    }
}

fn count(text: &str) -> Result<f64, String> {
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

fn rate(text: &str) -> Result<f64, String> {
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

fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let read = text.parse::<f64>().ok().filter(|number| (least..=most).contains(number));
    read.ok_or_else(|| format!("a number from {least} to {most} is expected"))
}

fn days(text: &str) -> Result<f64, String> {
    let span: Duration = args::span(text)?.duration();
    Ok(span.as_secs_f64() / 86_400.0)
}

fn one_price(text: &str) -> Result<(String, f64), String> {
    let (name, dollars) = text.split_once('=').ok_or("NAME=DOLLARS is expected")?;
    if !Prices::NAMES.contains(&name) {
        return Err(format!("unknown price {name}: {}", Prices::NAMES.join(", ")));
    }
    Ok((name.to_owned(), number(dollars, 0.0, 1e6)?))
}

impl Args {
    fn per_second(&self) -> Option<f64> {
        self.rate.or_else(|| self.jobs_per_month.map(|jobs| jobs / MONTH))
    }

    fn workload(&self) -> Workload {
        let batch = self
            .batch
            .or_else(|| self.per_second().map(|rate| (rate * TOGETHER).clamp(1.0, FULL_BATCH)))
            .unwrap_or(FULL_BATCH);
        Workload {
            jobs: self.per_second().map_or(1e6, |rate| rate * MONTH),
            size: self.size,
            plain: self.plain,
            delayed: self.delayed,
            limited: self.limited,
            pulled: self.pull,
            callbacks: self.callbacks,
            retries: self.retries,
            batch,
            per_call: self.per_call,
            kept_days: self.keep,
        }
    }

    fn deployment(&self) -> Deployment {
        Deployment {
            memory_mb: self.memory,
            enqueue_ms: self.enqueue_ms,
            tick_ms: self.tick_ms,
            deliver_ms: self.deliver_ms,
            pollers: self.pollers,
            queues: self.queues,
            alarms: self.alarms,
            recovery: !self.no_recovery,
            ..Deployment::default()
        }
    }

    fn prices(&self) -> anyhow::Result<Prices> {
        let known = Prices::of(&self.region);
        let mut prices = known.ok_or_else(|| {
            UsageError(format!("the prices of --region {} are not known", self.region))
        })?;
        for (name, dollars) in &self.prices {
            *prices.named(name).ok_or_else(|| UsageError(format!("unknown --price {name}")))? =
                *dollars;
        }
        Ok(prices)
    }
}

/// Prints the cost.
///
/// # Errors
///
/// The reader is gone.
pub fn run(args: &Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.metered {
        return metered(file, &args.prices()?, ctx);
    }
    let (workload, deployment, prices) = (args.workload(), args.deployment(), args.prices()?);
    let idle = idle(&deployment, &prices);
    if args.per_second().is_some() {
        let lines = month(&workload, &deployment, &prices);
        if ctx.json() {
            ctx.print(json!({
                "jobs_per_month": workload.jobs, "month": shape(&lines), "idle": shape(&idle),
                "dollars_per_month": total(&lines) + total(&idle), "dollars_per_million": total(&lines) / workload.jobs * 1e6,
                "messages_per_call": workload.batch, "prices": about(args),
            }))?;
        } else {
            ctx.print(of_month(ctx.look, &workload, &lines, &idle))?;
            ctx.print(format_args!("\n{}", footnote(args)))?;
        }
        return Ok(ExitCode::Ok);
    }
    if ctx.json() {
        let cases: Vec<Value> = rows(&workload, &deployment, &prices)
            .into_iter()
            .map(|(name, dense, lone)| {
                let point = |(units, dollars): (tidegate_backends::cost::Units, f64)| {
                    let mut point: serde_json::Map<String, Value> = units
                        .named()
                        .into_iter()
                        .filter(|(name, _)| *name != "rows")
                        .map(|(name, units)| (name.into(), units.into()))
                        .collect();
                    point.insert("dollars_per_million".into(), dollars.into());
                    point
                };
                json!({"case": name, "dense": point(dense), "lone": point(lone)})
            })
            .collect();
        ctx.print(json!({"cases": cases, "idle": shape(&idle), "idle_dollars_per_month": total(&idle), "prices": about(args)}))?;
    } else {
        ctx.print(of_cases(ctx.look, &rows(&workload, &deployment, &prices)))?;
        ctx.print(format_args!("\n{}\n\n{}", of_idle(ctx.look, &idle), footnote(args)))?;
    }
    Ok(ExitCode::Ok)
}

/// Prints the metered requests in the log `file`, which must have a call.
fn metered(file: &Path, prices: &Prices, ctx: &Context) -> anyhow::Result<ExitCode> {
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
    let pieces = metered.pieces(prices);
    let a_job = |amount: f64| {
        if metered.jobs == 0 { 0.0 } else { amount / metered.jobs as f64 }
    };
    if ctx.json() {
        let pieces = pieces
            .map(|(what, count, million)| json!({"what": what, "count": count, "dollars_per_million_jobs": a_job(count as f64 * million)}));
        ctx.print(json!({"jobs": metered.jobs, "metered": pieces}))?;
        return Ok(ExitCode::Ok);
    }
    let row = |(what, count, million): &(&str, u64, f64)| {
        let of = *count as f64;
        [
            (*what).to_owned(),
            count.to_string(),
            format!("{:.2}", a_job(of)),
            dollars(a_job(of * million)),
        ]
    };
    let sum: f64 = pieces.iter().map(|(_, count, million)| *count as f64 * million).sum();
    let sum = [
        "together".to_owned(),
        format!("{} jobs", metered.jobs),
        String::new(),
        dollars(a_job(sum)),
    ];
    ctx.print(output::table(
        ctx.look,
        ["metered", "count", "a job", "$ a million jobs"],
        pieces.iter().map(row).chain([sum]),
    ))?;
    Ok(ExitCode::Ok)
}

type Point = (tidegate_backends::cost::Units, f64);

/// Returns each case with the requests of a job and the cost of a million, batched and single.
fn rows(
    workload: &Workload,
    deployment: &Deployment,
    prices: &Prices,
) -> Vec<(&'static str, Point, Point)> {
    let row = |case: &tidegate_backends::cost::Case| {
        let point = |batch: f64| {
            let one = Workload { jobs: 1e6, batch, ..workload.of_case(case) };
            (one.units(), total(&month(&one, deployment, prices)))
        };
        (case.name, point(FULL_BATCH), point(1.0))
    };
    CASES.iter().map(row).collect()
}

fn of_cases(look: OutputStyle, rows: &[(&'static str, Point, Point)]) -> String {
    let rows = rows.iter().map(|(name, (units, dense), (_, lone))| {
        let calls = units.enqueue + units.tick + units.deliver;
        [
            (*name).to_owned(),
            format!("{:.2}", units.writes),
            format!("{:.2}", units.reads),
            format!("{:.2}", units.standard + units.fifo),
            format!("{calls:.2}"),
            dollars(*dense),
            dollars(*lone),
        ]
    });
    output::table(
        look,
        ["a job", "writes", "reads", "SQS", "calls", "$ a million", "one by one"],
        rows,
    )
}

fn of_idle(look: OutputStyle, idle: &[Line]) -> String {
    let rows = idle.iter().map(|line| {
        [line.service.to_owned(), line.what.to_owned(), amount(line.amount), dollars(line.dollars)]
    });
    let sum =
        [["total".to_owned(), "an idle month".to_owned(), String::new(), dollars(total(idle))]];
    output::table(look, ["idle", "what", "a month", "$ a month"], rows.chain(sum))
}

fn of_month(look: OutputStyle, workload: &Workload, lines: &[Line], idle: &[Line]) -> String {
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

fn footnote(args: &Args) -> String {
    let batch = args.workload().batch;
    let changed = if args.prices.is_empty() { "" } else { ", with those of --price" };
    format!(
        "List prices of {} on {}{changed}, without free tiers. Functions are called with {batch:.1} messages and run \
         {}, {} and {} ms (enqueue, tick, deliver) at {} MB on arm64.",
        args.region,
        price::AS_OF,
        args.enqueue_ms,
        args.tick_ms,
        args.deliver_ms,
        args.memory
    )
}

fn about(args: &Args) -> Value {
    let changed: serde_json::Map<String, Value> =
        args.prices.iter().map(|(name, dollars)| (name.clone(), (*dollars).into())).collect();
    json!({"region": args.region, "as_of": price::AS_OF, "source": price::SOURCE, "changed": changed})
}

fn shape(lines: &[Line]) -> Vec<Value> {
    let shape = |line: &Line| json!({"service": line.service, "what": line.what, "amount": line.amount, "dollars": line.dollars});
    lines.iter().map(shape).collect()
}

fn dollars(dollars: f64) -> String {
    if dollars < 100.0 { format!("{dollars:.2}") } else { format!("{dollars:.0}") }
}

/// An amount in three digits or so.
fn amount(amount: f64) -> String {
    match amount {
        small if small < 10.0 => format!("{small:.2}"),
        some if some < 1e4 => format!("{some:.0}"),
        many if many < 1e6 => format!("{:.0}k", many / 1e3),
        more if more < 1e7 => format!("{:.1}M", more / 1e6),
        most => format!("{:.0}M", most / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, testing::FakeServer};

    async fn said(args: &[&str]) -> String {
        let server = FakeServer::answering(|_| (500, Value::Null)).await;
        let (code, out) = server.run(&[&["cost"], args].concat()).await;
        assert_eq!(code, ExitCode::Ok, "{out}");
        assert!(server.seen().is_empty(), "it sends no request");
        out
    }

    #[tokio::test]
    async fn without_a_rate_every_case_and_an_idle_month_are_told() {
        insta::assert_snapshot!(said(&[]).await);
    }

    #[tokio::test]
    async fn a_rate_gives_the_bill_of_a_month() {
        insta::assert_snapshot!(
            said(&["--size", "2KB", "--jobs-per-month", "10M", "--retries", "0.1"]).await
        );
        insta::assert_snapshot!(
            said(&["--size", "20KB", "--rate", "5/s", "--limited", "--callbacks"]).await
        );
    }

    #[tokio::test]
    async fn programs_get_the_same_as_json() {
        let read = |out: String| serde_json::from_str::<Value>(&out).unwrap();
        let month = read(said(&["--rate", "1/s", "--json"]).await);
        let sum: f64 = ["month", "idle"]
            .iter()
            .flat_map(|part| month[*part].as_array().unwrap())
            .map(|line| line["dollars"].as_f64().unwrap())
            .sum();
        assert!((month["dollars_per_month"].as_f64().unwrap() - sum).abs() < 1e-9, "{month}");
        assert_eq!(month["prices"]["as_of"], price::AS_OF);
        let cases = read(said(&["--json", "--price", "write=0"]).await);
        assert_eq!(cases["cases"].as_array().unwrap().len(), CASES.len());
        assert_eq!(cases["prices"]["changed"], json!({"write": 0.0}));
    }

    #[tokio::test]
    async fn what_was_metered_is_added_up_and_priced() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let lines = [
            r#"{"level":"INFO"}"#,
            r#"{"_aws":{},"kind":"write","tidegate_dynamodb_units_total":9}"#,
            r#"{"_aws":{},"kind":"fifo","tidegate_sqs_requests_total":4}"#,
            r#"{"_aws":{},"queue":"q","tidegate_enqueued_total":2,"type":"t"}"#,
            r#"{"_aws":{},"tidegate_lambda_invocations_total":3}"#,
        ];
        std::fs::write(log.path(), lines.join("\n")).unwrap();
        let path = log.path().to_str().unwrap();
        insta::assert_snapshot!(said(&["--metered", path]).await);
        let read: Value =
            serde_json::from_str(&said(&["--metered", path, "--json"]).await).unwrap();
        assert_eq!((&read["jobs"], &read["metered"][0]["count"]), (&json!(2), &json!(9)));
        let server = FakeServer::answering(|_| (500, Value::Null)).await;
        assert_eq!(server.run(&["cost", "--metered", "/nowhere/at/all"]).await.0, ExitCode::Usage);
        // A log without metered calls is an error, not a bill of zero.
        std::fs::write(log.path(), lines[0]).unwrap();
        assert_eq!(server.run(&["cost", "--metered", path]).await.0, ExitCode::Refused);
    }

    #[test]
    fn what_is_asked_for_wrongly_is_named() {
        for (wrong, named) in [
            (&["--size", "2 apples"][..], "--size"),
            (&["--size", "0"], "--size"),
            (&["--size", "1GB"], "--size"),
            (&["--jobs-per-month=-3"], "--jobs-per-month"),
            (&["--jobs-per-month", "0"], "--jobs-per-month"),
            (&["--rate", "5"], "--rate"),
            (&["--rate", "5/year"], "--rate"),
            (&["--rate", "5/s", "--jobs-per-month", "5"], "--jobs-per-month"),
            (&["--retries=-1"], "--retries"),
            (&["--retries", "NaN"], "--retries"),
            (&["--batch", "11"], "--batch"),
            (&["--per-call", "0"], "--per-call"),
            (&["--memory", "1"], "--memory"),
            (&["--keep", "long"], "--keep"),
            (&["--region", "mars"], "--region"),
            (&["--price", "gold=1"], "--price"),
            (&["--price", "write=-1"], "--price"),
            (&["--plain", "--limited"], "--plain"),
            (&["--pull", "--delayed"], "--delayed"),
        ] {
            let error = Cli::try_parse_from([&["tidegate", "cost"], wrong].concat())
                .unwrap_err()
                .to_string();
            assert!(error.contains(named), "{wrong:?}: {error}");
        }
    }

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
