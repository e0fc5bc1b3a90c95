//! `tidegate bench`: the arguments and the output of the load generator in [`crate::bench`].

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use clap::ValueEnum as _;

use super::{Context, ExitCode, UsageError};
use crate::bench::{self, BenchPlan, Database, Measure};

/// Measure the performance of the server on this machine.
///
/// Each measurement starts a server on an empty directory, or servers on empty tables with --store, and
/// prints its figure and that of a baseline without a queue. No other program should run at the same
/// time.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The measurements [default: all that can be taken].
    #[arg(value_enum)]
    pub measures: Vec<Measure>,
    /// Measure servers on this Postgres database instead: `postgres://HOST/DATABASE`. It must have no
    /// deployment. The tables are in schemas of their own, which are dropped. A password is safer in
    /// the environment.
    #[arg(long, value_name = "URL", env = bench::STORE_VARIABLE, hide_env_values = true)]
    pub store: Option<String>,
    /// With --store: also run this program, which measures other job queues on the database, and
    /// compare `enqueue`, `batch` and `drain` with its rates: benches/peers/measure in the repository.
    #[arg(long, value_name = "PROGRAM", requires = "store")]
    pub peers: Option<PathBuf>,
    /// Enqueue this many jobs first, then start the workers and measure from the first to the last.
    #[arg(long, value_name = "N")]
    pub drain: Option<u64>,
    /// Clients that enqueue, and then work, with --drain; workers of `loose-limit`.
    #[arg(long, value_name = "M", default_value_t = 100)]
    pub clients: usize,
    /// How long a rate is measured, in seconds.
    #[arg(long, default_value_t = bench::DEFAULT_SECONDS)]
    pub seconds: f64,
    /// Scheduled jobs in the measurement `backlog`, jobs in `restore`, and most jobs in `bulk`, which has
    /// 100,000.
    #[arg(long, default_value_t = 1_000_000)]
    pub waiting: u64,
    /// Run each measurement this many times. Print the best of each figure, with the baseline of that run,
    /// and the lowest and the highest share of the baseline in all runs.
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
        bench::serve_bare(listen, &dir, args.store.as_deref()).await?;
        return Ok(ExitCode::Ok);
    }
    if let Some(program) = args.peers.as_ref().filter(|program| !program.is_file()) {
        bail!(UsageError(format!("--peers: there is no file {}", program.display())));
    }
    let database = match &args.store {
        Some(address) => Some(Database::open(address).await.context("--store")?),
        None => None,
    };
    let plan = BenchPlan {
        window: Duration::try_from_secs_f64(args.seconds)
            .context("--seconds must be a number of seconds")?,
        dir,
        database,
        peers: args.peers,
        drain: args.drain.unwrap_or(30_000).max(1),
        clients: args.clients.clamp(1, 5000),
        waiting: args.waiting,
    };
    let measures = match (args.measures.is_empty(), args.drain) {
        (false, _) => args.measures,
        (true, Some(_)) => vec![Measure::Rickover],
        (true, None) => {
            let all = Measure::value_variants().iter().copied();
            all.filter(|measure| plan.refusal(*measure).is_none()).collect()
        }
    };
    for measure in &measures {
        if let Some(reason) = plan.refusal(*measure) {
            bail!(UsageError(format!("{}: {reason}", bench::name(*measure))));
        }
    }
    let progress = |name: &str, run, of| ctx.note(format_args!("{name} ({run} of {of}) ..."));
    let measuring = Box::pin(bench::run(&measures, args.best_of.max(1), &plan, progress));
    let figures = tokio::select! {
        figures = measuring => figures,
        stopped = tokio::signal::ctrl_c() => {
            // The servers have ended, and their schemas must not stay.
            if let Some(database) = &plan.database {
                database.drop_schemas().await?;
            }
            stopped?;
            bail!("interrupted");
        }
    };
    let figures = figures?;
    if ctx.json() {
        ctx.print(serde_json::to_string_pretty(&figures)?)?;
    } else {
        ctx.print(bench::table(ctx.look, &figures))?;
    }
    Ok(ExitCode::Ok)
}
