//! `tidegate cost`: estimates the cost of a deployment on AWS, without a server and without AWS.
//!
//! The numbers are those of [`tidegate_backends::cost`], which tests compare with metered runs.

mod metered;
mod tables;
mod units;

use std::{io, path::PathBuf};

use serde_json::{Value, json};

use super::{Context, ExitCode, context::UsageError};
use tidegate_backends::cost::{
    Deployment, Line, Prices, Workload,
    case::FULL_BATCH,
    estimate::{idle, month, total},
    price,
};
pub(super) use units::count;
use units::{bytes, days, number, one_price, rate};

/// Seconds of a month of thirty days.
const MONTH_SECONDS: f64 = 2_592_000.0;
/// Messages that arrive within this many seconds are assumed to be received together.
const BATCH_WINDOW_SECONDS: f64 = 0.2;

/// The options of `tidegate cost`.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[command(
    after_help = "Without --jobs-per-month or --rate: the cost of a million jobs by case, and of \
    an idle month.\n\
    What each job takes of each service is metered by the tests; how long functions run is \
    assumed, and can be set.\n\n\
    Examples:\n  \
    tidegate cost\n  \
    tidegate cost --size 2KB --jobs-per-month 10M\n  \
    tidegate cost --rate 5/s --limited --retries 0.1 --callbacks\n  \
    tidegate cost --rate 5/s --pull --waiting-workers 20\n  \
    tidegate cost --rate 100/s --delayed --deliver-ms 800 --price write=0.70 --json"
)]
pub struct Args {
    /// Size of each job's data, such as 300, 2KB or 1MB.
    #[arg(long, default_value = "300", value_parser = bytes, help_heading = "Jobs")]
    size: usize,
    /// Jobs per month, such as 10M.
    #[arg(
        long,
        value_name = "COUNT",
        value_parser = count,
        conflicts_with = "rate",
        help_heading = "Jobs",
    )]
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
    #[arg(
        long,
        value_name = "SHARE",
        default_value = "0",
        value_parser = |text: &str| number(text, 0.0, 1000.0),
        help_heading = "Jobs",
    )]
    retries: f64,
    /// Messages in each call of a function, 1 to 10 [default: those of 0.2 s; 10 without a rate].
    #[arg(
        long,
        value_name = "MESSAGES",
        value_parser = |text: &str| number(text, 1.0, 10.0),
        help_heading = "Jobs",
    )]
    batch: Option<f64>,
    /// Jobs in each enqueue call, 1 to 1000.
    #[arg(
        long,
        value_name = "JOBS",
        default_value = "1",
        value_parser = |text: &str| number(text, 1.0, 1000.0),
        help_heading = "Jobs",
    )]
    per_call: f64,
    /// Retention of each job after its end.
    #[arg(
        long,
        value_name = "SPAN",
        default_value = "30d",
        value_parser = days,
        help_heading = "Jobs",
    )]
    keep: f64,

    /// Memory of the functions in MB.
    #[arg(
        long,
        value_name = "MB",
        default_value = "512",
        value_parser = |text: &str| number(text, 128.0, 10_240.0),
        help_heading = "Assumptions",
    )]
    memory: f64,
    /// Duration of an API call, in milliseconds.
    #[arg(
        long,
        value_name = "MS",
        default_value = "30",
        value_parser = |text: &str| number(text, 1.0, 900_000.0),
        help_heading = "Assumptions",
    )]
    enqueue_ms: f64,
    /// Duration of a tick of a queue, in milliseconds.
    #[arg(
        long,
        value_name = "MS",
        default_value = "125",
        value_parser = |text: &str| number(text, 1.0, 900_000.0),
        help_heading = "Assumptions",
    )]
    tick_ms: f64,
    /// Duration of a batch of deliveries, in milliseconds: that of its slowest target.
    #[arg(
        long,
        value_name = "MS",
        default_value = "150",
        value_parser = |text: &str| number(text, 1.0, 900_000.0),
        help_heading = "Assumptions",
    )]
    deliver_ms: f64,
    /// Lambda pollers on each idle SQS queue, 2 to 5; the work queue always has 5.
    #[arg(
        long,
        default_value = "2",
        value_parser = |text: &str| number(text, 2.0, 5.0),
        help_heading = "Assumptions",
    )]
    pollers: f64,
    /// Queues that have jobs: the maintenance sweep reads each.
    #[arg(
        long,
        default_value = "1",
        value_parser = |text: &str| number(text, 0.0, 100_000.0),
        help_heading = "Assumptions",
    )]
    queues: f64,
    /// Pull workers that wait for jobs all the time.
    #[arg(
        long,
        default_value = "0",
        value_parser = |text: &str| number(text, 0.0, 1_000_000.0),
        help_heading = "Assumptions",
    )]
    waiting_workers: f64,
    /// The longest pause of a waiting worker, in seconds; 0: its requests are held for 20 s each.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "10",
        value_parser = |text: &str| number(text, 0.0, 60.0),
        help_heading = "Assumptions",
    )]
    worker_pause: f64,
    /// CloudWatch alarms of the stack; 19 with `Alarms=all`, and 21 with events.
    #[arg(
        long,
        default_value = "2",
        value_parser = |text: &str| number(text, 0.0, 1000.0),
        help_heading = "Assumptions",
    )]
    alarms: f64,
    /// CloudWatch metrics of the stack, those of each queue and type; 0 without a
    /// `MetricsNamespace`.
    #[arg(
        long,
        default_value = "0",
        value_parser = |text: &str| number(text, 0.0, 1_000_000.0),
        help_heading = "Assumptions",
    )]
    metrics: f64,
    /// Point-in-time recovery of the table is off (`PointInTimeRecovery`).
    #[arg(long, help_heading = "Assumptions")]
    no_recovery: bool,
    /// The region of the list prices.
    #[arg(
        long,
        default_value = price::REGIONS[0],
        value_parser = price::REGIONS,
        help_heading = "Prices",
    )]
    region: String,
    /// Override a price, NAME=DOLLARS: write, read, standard, fifo, fair, call (a million of each),
    /// gb-second, put, get (a million), table-gb, recovery-gb, object-gb, log-gb, transfer-gb (a
    /// gigabyte), alarm, metric.
    #[arg(
        long = "price",
        value_name = "NAME=DOLLARS",
        value_parser = one_price,
        help_heading = "Prices",
    )]
    prices: Vec<(String, f64)>,

    /// Add up the metered requests in the functions' logs instead of an estimate; `-` reads
    /// standard input. Functions meter if their stack has a `MetricsNamespace`.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "jobs_per_month", "rate", "plain", "delayed", "limited", "pull", "callbacks",
        ],
    )]
    metered: Option<PathBuf>,
}

impl Args {
    fn per_second(&self) -> Option<f64> {
        self.rate.or_else(|| self.jobs_per_month.map(|jobs| jobs / MONTH_SECONDS))
    }

    fn workload(&self) -> Workload {
        let batch = self
            .batch
            .or_else(|| {
                self.per_second().map(|rate| (rate * BATCH_WINDOW_SECONDS).clamp(1.0, FULL_BATCH))
            })
            .unwrap_or(FULL_BATCH);
        Workload {
            jobs: self.per_second().map_or(1e6, |rate| rate * MONTH_SECONDS),
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
            waiting_workers: self.waiting_workers,
            worker_pause_s: self.worker_pause,
            alarms: self.alarms,
            metrics: self.metrics,
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
/// A price is unknown, the log of `--metered` cannot be read, or the output cannot be written.
pub fn run(args: &Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.metered {
        return metered::print(file, &args.prices()?, ctx);
    }
    let prices = args.prices()?;
    let idle = idle(&args.deployment(), &prices);
    if args.per_second().is_some() {
        print_month(args, &prices, &idle, ctx)?;
    } else {
        print_cases(args, &prices, &idle, ctx)?;
    }
    Ok(ExitCode::Ok)
}

/// The cost of a deployment with the defaults of the template, for people: idle, and with `jobs`
/// small jobs a month.
#[cfg(feature = "aws")]
pub(super) fn of_deployment(region: &str, jobs: Option<f64>) -> String {
    let (prices, source) = match Prices::of(region) {
        Some(prices) => (prices, region),
        // The regions differ by some percent.
        None => (price::LIST, price::REGIONS[0]),
    };
    let deployment = Deployment::default();
    let idle = total(&idle(&deployment, &prices));
    let with_jobs = jobs.map(|jobs| {
        let rate = jobs / MONTH_SECONDS;
        let batch = (rate * BATCH_WINDOW_SECONDS).clamp(1.0, FULL_BATCH);
        let workload = Workload { jobs, batch, ..Workload::default() };
        let all = idle + total(&month(&workload, &deployment, &prices));
        format!(", {all:.2} USD with {jobs:.0} jobs of 300 bytes a month")
    });
    format!(
        "Estimated cost: {idle:.2} USD a month when idle{} (list prices of {source} on {}, without free tiers; `tidegate cost` has the details)",
        with_jobs.unwrap_or_default(),
        price::AS_OF
    )
}

/// Prints the bill of a month at the rate of the options.
fn print_month(args: &Args, prices: &Prices, idle: &[Line], ctx: &Context) -> io::Result<()> {
    let workload = args.workload();
    let lines = month(&workload, &args.deployment(), prices);
    if ctx.json() {
        return ctx.print(json!({
            "jobs_per_month": workload.jobs,
            "month": tables::shape(&lines),
            "idle": tables::shape(idle),
            "dollars_per_month": total(&lines) + total(idle),
            "dollars_per_million": total(&lines) / workload.jobs * 1e6,
            "messages_per_call": workload.batch,
            "prices": tables::price_list(args),
        }));
    }
    ctx.print_tables(tables::of_month(ctx.look, &workload, &lines, idle))?;
    ctx.print(format_args!("\n{}", tables::footnote(args)))
}

/// Prints the cost of a million jobs of each case, and of an idle month.
fn print_cases(args: &Args, prices: &Prices, idle: &[Line], ctx: &Context) -> io::Result<()> {
    let rows = tables::rows(&args.workload(), &args.deployment(), prices);
    if ctx.json() {
        let cases: Vec<Value> = rows
            .into_iter()
            .map(|(name, batched, single)| {
                json!({
                    "case": name, "batched": tables::point(batched),
                    "single": tables::point(single),
                })
            })
            .collect();
        return ctx.print(json!({
            "cases": cases,
            "idle": tables::shape(idle),
            "idle_dollars_per_month": total(idle),
            "prices": tables::price_list(args),
        }));
    }
    ctx.print_tables(tables::of_cases(ctx.look, &rows))?;
    let idle = tables::of_idle(ctx.look, idle);
    ctx.print(format_args!("\n{idle}\n\n{}", tables::footnote(args)))
}

#[cfg(test)]
mod tests;
