//! `tidegate bench`: the arguments and the output of the load generator in [`crate::bench`].

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use clap::ValueEnum as _;

use super::{Context, ExitCode};
use crate::bench::{self, BenchPlan, Measure};

/// Measure the performance of the server on this machine.
///
/// Each measurement starts a server on an empty directory, and prints its figure and that of a
/// baseline without a queue. No other program should run at the same time.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The measurements [default: all].
    #[arg(value_enum)]
    pub measures: Vec<Measure>,
    /// Enqueue this many jobs first, then start the workers and measure from the first to the last.
    #[arg(long, value_name = "N")]
    pub drain: Option<u64>,
    /// Clients that enqueue, and then work, with --drain.
    #[arg(long, value_name = "M", default_value_t = 100)]
    pub clients: usize,
    /// How long a rate is measured, in seconds.
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Scheduled jobs in the measurement `backlog`.
    #[arg(long, default_value_t = 1_000_000)]
    pub waiting: u64,
    /// Run each measurement this many times and print the best of each figure.
    #[arg(long, default_value_t = 1)]
    pub best_of: usize,
    /// The parent of the servers' data directories [default: the system's temporary directory].
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Serve the bare handler of a baseline on this address, with its table in --dir.
    #[arg(long, hide = true)]
    pub bare_handler: Option<SocketAddr>,
}

/// Runs the measurements and prints the figures.
///
/// # Errors
///
/// A server that does not start, or rejects a request of a measurement.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let dir = args.dir.unwrap_or_else(std::env::temp_dir);
    if let Some(listen) = args.bare_handler {
        bench::serve_bare(listen, &dir).await?;
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
    let measures = match (args.measures.is_empty(), args.drain) {
        (false, _) => args.measures,
        (true, Some(_)) => vec![Measure::Rickover],
        (true, None) => Measure::value_variants().to_vec(),
    };
    let progress = |name: &str, run, of| ctx.note(format_args!("{name} ({run} of {of}) ..."));
    let figures = bench::run(&measures, args.best_of.max(1), &plan, progress).await?;
    if ctx.json() {
        ctx.print(serde_json::to_string_pretty(&figures)?)?;
    } else {
        ctx.print(bench::table(ctx.look, &figures))?;
    }
    Ok(ExitCode::Ok)
}
