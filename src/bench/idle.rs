//! `idle`: the CPU time of Postgres while the workers of three servers wait and no job comes.

use std::time::Duration;

use anyhow::Context as _;

use super::{BenchPlan, figure::Figure, meter::ProcessorTime, process::Process, worker::Worker};
use crate::cli::context::pause;

/// Servers that share the database.
pub(super) const SERVERS: usize = 3;
/// The name of the figure about Postgres.
pub(super) const POSTGRES: &str = "idle: processor of Postgres per server";
/// Workers that wait at each of them.
const WORKERS: usize = 10;
/// How long the servers run before: what they do at a start is no idle load.
const SETTLING: Duration = Duration::from_secs(2);

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let place = plan.new_place()?;
    let servers = Process::serve_all(&place, SERVERS).await?;
    let spent = run(&servers, plan.window).await?;
    Process::stop_all(servers).await?;
    let postgres = spent.postgres.context("Postgres does not run on this machine")?;
    Ok(vec![
        Figure::cost(POSTGRES, "% of a core", percent(postgres, spent.wall, SERVERS))
            .reach(1.0)
            .among(spent.others_cores),
        Figure::cost(
            "idle: processor of a server",
            "% of a core",
            percent(spent.server, spent.wall, SERVERS),
        )
        .among(spent.others_cores),
    ])
}

/// Lets workers wait at all servers for twice as long as a rate is measured: little is to be seen, and
/// CPU time is counted in hundredths of a second. Returns what was used meanwhile.
pub(super) async fn run(servers: &[Process], window: Duration) -> anyhow::Result<ProcessorTime> {
    let mut working = Vec::new();
    for number in 0..servers.len() * WORKERS {
        let address = servers[number % servers.len()].address;
        let mut worker = Worker::open(address, number, "default").await?;
        working.push(tokio::spawn(async move {
            while let Ok(leases) = worker.lease(1, 60.0).await {
                if !leases.is_empty() {
                    break;
                }
            }
        }));
    }
    pause(SETTLING.min(window)).await;
    let meter = Process::meter_of(servers);
    pause(window * 2).await;
    let spent = meter.read();
    anyhow::ensure!(
        working.iter().all(|worker| !worker.is_finished()),
        "a waiting worker was refused, or got a job"
    );
    working.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(spent)
}

/// Returns the share of a core that each of `servers` has used in `wall`, in percent.
pub(super) fn percent(used: Duration, wall: Duration, servers: usize) -> f64 {
    100.0 * used.as_secs_f64() / wall.as_secs_f64() / servers as f64
}
