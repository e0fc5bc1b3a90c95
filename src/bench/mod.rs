//! The load generator: the performance of the server on this machine, and the limits of the
//! machine. The jobs are on SQLite, or in a Postgres database that servers share.
//!
//! A figure alone means little, because machines differ and are shared. Each measurement therefore
//! also runs a baseline (a handler that only commits, a store without a queue, workers that only
//! sleep). The table has both, with the CPU time that other programs used.
//!
//! Read [`figure`] (the result of a measurement), [`place`] (where the jobs are), [`process`] and
//! [`embedded`] (the server under test), [`meter`], then one of the measurements. [`peers`] are other
//! job queues. `tidegate bench` is the command line of this module.

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
mod idle;
mod latency;
mod lateness;
mod limit;
mod log;
mod loose_limit;
mod memory;
mod meter;
mod peers;
mod place;
mod postmaster;
mod process;
mod raw;
mod restore;
mod rickover;
mod single;
mod storage;
mod stream;
mod worker;

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use clap::ValueEnum;

use self::place::Place;
pub(crate) use self::{
    bare::serve as serve_bare,
    figure::{Figure, table},
    place::Database,
};

/// For how many seconds a rate is measured, unless the command line says otherwise.
pub(crate) const DEFAULT_SECONDS: f64 = 5.0;
/// The environment variable with the database under test, which has a password.
pub(crate) const STORE_VARIABLE: &str = "TIDEGATE_BENCH_STORE";

/// The measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Enqueues of one job each over HTTP on 64 connections; baseline: a bare handler with group
    /// commit.
    Enqueue,
    /// Enqueues of 1000 jobs each over HTTP; baseline: inserts into the store.
    Batch,
    /// Events that a trigger turns into jobs, in batches of 1000; baseline: enqueues in batches of
    /// 1000.
    Events,
    /// Jobs claimed, run by a handler in the process and recorded one by one; baseline: an insert
    /// and two updates in SQLite, or the claim and the end in Postgres.
    Drain,
    /// From enqueue to worker on an idle server; with --store also to a worker at another server, and
    /// from a transaction of an application.
    Latency,
    /// The start delay of jobs with a due time.
    Lateness,
    /// From enqueue to the call of a target while 256 calls of another queue hang; baseline:
    /// without them.
    Hanging,
    /// A queue with limit 10, jobs of 10 ms and ten workers over HTTP (with --store, of three servers,
    /// also without `peer_url`); baseline: the workers without a queue.
    Limit,
    /// A drain over HTTP with a limit that never binds, on one server and on three, also without
    /// `peer_url`; baseline: without the limit. Needs --store.
    LooseLimit,
    /// Memory with 300 workers under load, and CPU time while they wait.
    Memory,
    /// CPU time of Postgres while the workers of three servers wait. Needs --store, and Postgres on this
    /// machine.
    Idle,
    /// Enqueues, drains, limits, idle latency and idle load with a million scheduled jobs; baseline:
    /// without them.
    Backlog,
    /// Operations that change, cancel and replay 100,000 jobs.
    Bulk,
    /// Enqueues while a thousand clients read the stream of changes; baseline: without them.
    Stream,
    /// Enqueue first, then start the workers, all over HTTP; see --drain and --clients.
    Rickover,
    /// Enqueues and a drain of a server with a replicated log (`serve --log`), in storage whose
    /// requests take 0, 20 and 60 ms. Not with --store.
    Log,
    /// From the start of a server on an empty directory until it is ready, if its log has a million jobs in
    /// a snapshot, in storage whose requests take 0, 20 and 60 ms. Not with --store.
    Restore,
}

/// The parameters of every measurement.
pub(crate) struct BenchPlan {
    /// How long a rate is measured.
    pub window: Duration,
    /// The parent of the servers' data directories.
    pub dir: PathBuf,
    /// The database of servers that share it; none for one server on a data directory.
    pub database: Option<Database>,
    /// The program that measures other job queues on the database.
    pub peers: Option<PathBuf>,
    /// Jobs that `drain`, `loose-limit` and `rickover` run.
    pub drain: u64,
    /// Connections of `rickover`, and workers of `loose-limit`.
    pub clients: usize,
    /// Scheduled jobs that wait in `backlog`, most jobs that `bulk` changes, and jobs in the snapshot of
    /// `restore`.
    pub waiting: u64,
}

impl BenchPlan {
    /// Returns why `measure` cannot be taken with this plan; none if it can.
    pub(crate) fn refusal(&self, measure: Measure) -> Option<&'static str> {
        match (measure, &self.database) {
            (Measure::Idle | Measure::LooseLimit, None) => Some("it needs --store"),
            (Measure::Log | Measure::Restore, Some(_)) => Some("servers with --store have no log"),
            (Measure::Idle, Some(database)) if !database.is_here() => {
                Some("it needs Postgres on this machine")
            }
            _ => None,
        }
    }

    /// Returns a new place for the jobs of servers.
    fn new_place(&self) -> anyhow::Result<Place> {
        match &self.database {
            Some(database) => Ok(database.new_schema()),
            None => Place::directory(&self.dir),
        }
    }

    /// Returns `most`, or a part of it if rates are measured for less than the default time.
    fn scaled(&self, most: u64) -> u64 {
        let part = (self.window.as_secs_f64() / DEFAULT_SECONDS).min(1.0);
        ((most as f64 * part) as u64).max(1)
    }

    /// Returns the value for the store under test.
    fn by_store<T>(&self, on_sqlite: T, on_postgres: T) -> T {
        if self.database.is_some() { on_postgres } else { on_sqlite }
    }
}

/// Takes each measurement `best_of` times and returns the best of each figure, and then the figures of
/// the peers. The schemas of a measurement are dropped after it.
///
/// `progress` is called before each run, with the name of the measurement, the run and `best_of`.
///
/// # Errors
///
/// A server that does not start, or rejects a request of a measurement; the peers'.
pub(crate) async fn run(
    measures: &[Measure],
    best_of: usize,
    plan: &BenchPlan,
    progress: impl Fn(&str, usize, usize),
) -> anyhow::Result<Vec<Figure>> {
    let mut all = Vec::new();
    let mut firsts = Vec::new();
    for &measure in measures {
        let mut best: Option<Vec<Figure>> = None;
        for run in 1..=best_of {
            progress(&name(measure), run, best_of);
            let taken = Box::pin(take(measure, plan)).await;
            let dropped = match &plan.database {
                Some(database) => database.drop_schemas().await,
                None => Ok(()),
            };
            let figures = taken.with_context(|| format!("measure {}", name(measure)))?;
            dropped?;
            best = Some(match best {
                None => figures,
                Some(best) => best
                    .into_iter()
                    .zip(figures)
                    .map(|(best, figure)| best.better(figure))
                    .collect(),
            });
        }
        let best = best.unwrap_or_default();
        firsts.extend(best.first().cloned().map(|first| (measure, first)));
        all.extend(best);
    }
    if let (Some(program), Some(database)) = (&plan.peers, &plan.database) {
        progress("peers", 1, 1);
        all.extend(peers::compare(program, database, plan, &firsts).await?);
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
        Measure::LooseLimit => loose_limit::measure(plan).await,
        Measure::Memory => memory::measure(plan).await,
        Measure::Idle => idle::measure(plan).await,
        Measure::Backlog => backlog::measure(plan).await,
        Measure::Bulk => bulk::measure(plan).await,
        Measure::Stream => stream::measure(plan).await,
        Measure::Rickover => rickover::measure(plan).await,
        Measure::Log => log::measure(plan).await,
        Measure::Restore => restore::measure(plan).await,
    }
}

/// Returns the name of a measurement on the command line.
pub(crate) fn name(measure: Measure) -> String {
    measure.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The type of the jobs.
const JOB_TYPE: &str = "bench";

/// The data of each job: about a hundred bytes.
const DATA: &str = concat!(
    r#"{"customer":"c-104729","amount":1299,"currency":"EUR","items":["a-1","b-2","c-3"],"#,
    r#""note":"bench"}"#,
);
