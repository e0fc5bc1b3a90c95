//! `tidegate bench`: what the server reaches on this machine, beside what the machine itself allows.
//!
//! The one thing to know: a figure alone says little, since machines differ and are shared. Each measure
//! therefore runs something bare right beside ours (a handler that does nothing but commit, SQLite
//! without a queue, workers that only sleep) and shows both, with the processor that others used meanwhile.
//!
//! Read [`figure`] (what a measure answers), [`process`] (the server under test), then a measure.

mod backlog;
mod bare;
mod batch;
mod clock;
mod drain;
mod embedded;
mod events;
mod figure;
mod hanging;
mod http;
mod latency;
mod lateness;
mod limit;
mod memory;
mod process;
mod raw;
mod rickover;
mod single;
mod worker;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use clap::ValueEnum;
use tempfile::TempDir;

use self::figure::Figure;
use super::{Context, ExitCode};

/// Measure what the server reaches on this machine.
///
/// Each measure starts a server of its own on an empty directory, and shows what it reaches beside what
/// the machine allows without a queue. Nothing else should run meanwhile.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What to measure [default: everything].
    #[arg(value_enum)]
    pub measures: Vec<Measure>,
    /// Enqueue this many jobs while nothing runs, then start the workers and measure from the first to the last.
    #[arg(long, value_name = "N")]
    pub drain: Option<u64>,
    /// How many clients enqueue, and then work, with --drain.
    #[arg(long, value_name = "M", default_value_t = 100)]
    pub clients: usize,
    /// How long a rate is measured, in seconds.
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// How many scheduled jobs wait in the measure `backlog`.
    #[arg(long, default_value_t = 1_000_000)]
    pub waiting: u64,
    /// Take each measure this many times and show the best of each figure.
    #[arg(long, default_value_t = 1)]
    pub best_of: usize,
    /// Where the servers' data goes meanwhile [default: the system's temporary directory].
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Serve the bare handler on this address, with its table in --dir: how a measure starts what it compares with.
    #[arg(long, hide = true)]
    pub bare_handler: Option<SocketAddr>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Enqueues of one job each over HTTP, 64 connections, beside a bare handler that commits to SQLite in groups.
    Enqueue,
    /// Enqueues of 1000 jobs each over HTTP, beside SQLite's inserts.
    Batch,
    /// Events of which a trigger makes jobs, in batches of 1000, beside enqueues in batches of 1000.
    Events,
    /// Jobs claimed, run by a handler in the process and recorded one by one, beside SQLite's insert and two updates.
    Drain,
    /// From enqueue to worker while nothing else happens.
    Latency,
    /// How late jobs with a due time start.
    Lateness,
    /// From enqueue to the call of a target while 256 calls of another queue hang, beside the same alone.
    Hanging,
    /// A queue with limit 10, jobs of 10 ms, ten workers over HTTP, beside the workers without a queue.
    Limit,
    /// Memory with 300 workers under load, and the processor while they wait.
    Memory,
    /// `enqueue`, `drain` and `limit` with a million scheduled jobs waiting, beside the same without.
    Backlog,
    /// Enqueue while nothing runs, then start the workers, all over HTTP; see --drain and --clients.
    Rickover,
}

/// What every measure is told.
#[derive(Clone, Debug)]
struct BenchPlan {
    window: Duration,
    dir: PathBuf,
    drain: u64,
    clients: usize,
    waiting: u64,
}

/// Measures and shows the figures.
///
/// # Errors
///
/// A server that does not start, or refuses what a measure asks of it.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let dir = args.dir.unwrap_or_else(std::env::temp_dir);
    if let Some(listen) = args.bare_handler {
        bare::serve(listen, &dir).await?;
        return Ok(ExitCode::Ok);
    }
    let plan = BenchPlan {
        window: Duration::try_from_secs_f64(args.seconds)
            .context("--seconds must be a number of seconds")?,
        dir,
        drain: args.drain.unwrap_or(30_000).max(1),
        clients: args.clients.clamp(1, 5000),
        waiting: args.waiting,
    };
    let chosen = match (args.measures.is_empty(), args.drain) {
        (false, _) => args.measures,
        (true, Some(_)) => vec![Measure::Rickover],
        (true, None) => Measure::value_variants().to_vec(),
    };
    let mut all = Vec::new();
    for measure in chosen {
        let mut best: Option<Vec<Figure>> = None;
        for round in 1..=args.best_of.max(1) {
            ctx.note(format_args!("{} ({round} of {}) ...", name(measure), args.best_of.max(1)));
            let figures =
                take(measure, &plan).await.with_context(|| format!("measure {}", name(measure)))?;
            best = Some(match best {
                None => figures,
                Some(best) => best
                    .into_iter()
                    .zip(figures)
                    .map(|(best, figure)| best.better(figure))
                    .collect(),
            });
        }
        all.extend(best.unwrap_or_default());
    }
    if ctx.json() {
        ctx.print(serde_json::to_string_pretty(&all)?)?;
    } else {
        ctx.print(figure::table(ctx.look, &all))?;
    }
    Ok(ExitCode::Ok)
}

async fn take(measure: Measure, plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    match measure {
        Measure::Enqueue => single::measure(plan).await,
        Measure::Batch => batch::measure(plan).await,
        Measure::Events => events::measure(plan).await,
        Measure::Drain => drain::measure(plan).await,
        Measure::Latency => latency::measure(plan).await,
        Measure::Lateness => lateness::measure(plan).await,
        Measure::Hanging => hanging::measure(plan).await,
        Measure::Limit => limit::measure(plan).await,
        Measure::Memory => memory::measure(plan).await,
        Measure::Backlog => backlog::measure(plan).await,
        Measure::Rickover => rickover::measure(plan).await,
    }
}

/// What a measure is called on the command line.
fn name(measure: Measure) -> String {
    measure.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The type of the jobs that are measured.
const JOB_TYPE: &str = "bench";

/// What each job carries: about a hundred bytes.
const DATA: &str = r#"{"customer":"c-104729","amount":1299,"currency":"EUR","items":["a-1","b-2","c-3"],"note":"bench"}"#;

/// Returns a new directory in `parent`, which is removed when it is dropped.
fn temp_dir(parent: &Path) -> anyhow::Result<TempDir> {
    std::fs::create_dir_all(parent)
        .and_then(|()| tempfile::Builder::new().prefix("tidegate-bench-").tempdir_in(parent))
        .with_context(|| format!("no directory can be created in {}", parent.display()))
}
