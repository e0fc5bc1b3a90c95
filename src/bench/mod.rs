//! The load generator: the performance of the server on this machine, and the limits of the
//! machine.
//!
//! A figure alone means little, because machines differ and are shared. Each measurement therefore
//! also runs a baseline (a handler that only commits, SQLite without a queue, workers that only
//! sleep). The table has both, with the CPU time that other programs used.
//!
//! Read [`figure`] (the result of a measurement), [`process`] (the server under test), then one of
//! the measurements. `tidegate bench` is the command line of this module.

mod backlog;
mod bare;
mod batch;
mod bulk;
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
mod stream;
mod worker;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use clap::ValueEnum;
use tempfile::TempDir;

pub(crate) use self::{
    bare::serve as serve_bare,
    figure::{Figure, table},
};

/// The measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Enqueues of one job each over HTTP on 64 connections; baseline: a bare handler with group
    /// commit on SQLite.
    Enqueue,
    /// Enqueues of 1000 jobs each over HTTP; baseline: inserts into SQLite.
    Batch,
    /// Events that a trigger turns into jobs, in batches of 1000; baseline: enqueues in batches of
    /// 1000.
    Events,
    /// Jobs claimed, run by a handler in the process and recorded one by one; baseline: an insert
    /// and two updates in SQLite.
    Drain,
    /// From enqueue to worker on an idle server.
    Latency,
    /// The start delay of jobs with a due time.
    Lateness,
    /// From enqueue to the call of a target while 256 calls of another queue hang; baseline:
    /// without them.
    Hanging,
    /// A queue with limit 10, jobs of 10 ms and ten workers over HTTP; baseline: the workers
    /// without a queue.
    Limit,
    /// Memory with 300 workers under load, and CPU time while they wait.
    Memory,
    /// `enqueue`, `drain` and `limit` with a million scheduled jobs; baseline: without them.
    Backlog,
    /// Operations that change, cancel and replay 100,000 jobs.
    Bulk,
    /// Enqueues while a thousand clients read the stream of changes; baseline: without them.
    Stream,
    /// Enqueue first, then start the workers, all over HTTP; see --drain and --clients.
    Rickover,
}

/// The parameters of every measurement.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// How long a rate is measured.
    pub window: Duration,
    /// The parent of the servers' data directories.
    pub dir: PathBuf,
    /// Jobs that `drain` and `rickover` run.
    pub drain: u64,
    /// Connections of `rickover`.
    pub clients: usize,
    /// Scheduled jobs that wait in `backlog`.
    pub waiting: u64,
}

/// Takes each measurement `best_of` times and returns the best of each figure.
///
/// `progress` is called before each run, with the name of the measurement, the run and `best_of`.
///
/// # Errors
///
/// A server that does not start, or rejects a request of a measurement.
pub async fn run(
    measures: &[Measure],
    best_of: usize,
    plan: &BenchPlan,
    progress: impl Fn(&str, usize, usize),
) -> anyhow::Result<Vec<Figure>> {
    let mut all = Vec::new();
    for &measure in measures {
        let mut best: Option<Vec<Figure>> = None;
        for run in 1..=best_of {
            progress(&name(measure), run, best_of);
            let figures =
                take(measure, plan).await.with_context(|| format!("measure {}", name(measure)))?;
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
    Ok(all)
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
        Measure::Bulk => bulk::measure(plan).await,
        Measure::Stream => stream::measure(plan).await,
        Measure::Rickover => rickover::measure(plan).await,
    }
}

/// Returns the name of a measurement on the command line.
fn name(measure: Measure) -> String {
    measure.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The type of the jobs.
const JOB_TYPE: &str = "bench";

/// The data of each job: about a hundred bytes.
const DATA: &str = concat!(
    r#"{"customer":"c-104729","amount":1299,"currency":"EUR","items":["a-1","b-2","c-3"],"#,
    r#""note":"bench"}"#,
);

/// Returns a new directory in `parent`, which is removed when it is dropped.
fn temp_dir(parent: &Path) -> anyhow::Result<TempDir> {
    std::fs::create_dir_all(parent)
        .and_then(|()| tempfile::Builder::new().prefix("tidegate-bench-").tempdir_in(parent))
        .with_context(|| format!("no directory can be created in {}", parent.display()))
}
