//! `idle`: the CPU time of Postgres while the workers of three servers wait and no job comes.

use std::time::Duration;

use anyhow::Context as _;

use super::{BenchPlan, figure::Figure, process::Process, worker::Worker};
use crate::cli::context::pause;

/// Servers that share the database.
const SERVERS: usize = 3;
/// Workers that wait at each of them.
const WORKERS: usize = 10;
/// How long the servers run before: what they do at a start is no idle load.
const SETTLING: Duration = Duration::from_secs(2);

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let place = plan.new_place()?;
    let servers = Process::serve_all(&place, SERVERS).await?;
    let mut working = Vec::new();
    for number in 0..SERVERS * WORKERS {
        let address = servers[number % SERVERS].address;
        let mut worker = Worker::open(address, number, "default").await?;
        working.push(tokio::spawn(async move {
            while let Ok(leases) = worker.lease(1, 60.0).await {
                if !leases.is_empty() {
                    break;
                }
            }
        }));
    }
    pause(SETTLING.min(plan.window)).await;
    let meter = Process::meter_of(&servers);
    // Twice as long as a rate: little is to be seen, and CPU time is counted in hundredths of a second.
    pause(plan.window * 2).await;
    let spent = meter.read();
    anyhow::ensure!(
        working.iter().all(|worker| !worker.is_finished()),
        "a waiting worker was refused, or got a job"
    );
    working.iter().for_each(tokio::task::JoinHandle::abort);
    Process::stop_all(servers).await?;
    let percent =
        |time: Duration| 100.0 * time.as_secs_f64() / spent.wall.as_secs_f64() / SERVERS as f64;
    let postgres = spent.postgres.context("Postgres does not run on this machine")?;
    Ok(vec![
        Figure::cost("idle: processor of Postgres per server", "% of a core", percent(postgres))
            .reach(1.0)
            .among(spent.others_cores),
        Figure::cost("idle: processor of a server", "% of a core", percent(spent.server))
            .among(spent.others_cores),
    ])
}
