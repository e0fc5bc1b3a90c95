//! `memory`: the memory of a server with 300 connected workers under load, and its CPU time while
//! they wait.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    BenchPlan, DATA, JOB_TYPE, embedded::within, figure::Figure, http, process::Process,
    worker::Worker,
};
use crate::cli::context::pause;

/// Workers, each with a connection that waits for a job.
const WORKERS: usize = 300;
/// The duration of a job.
const WORK: Duration = Duration::from_millis(50);
/// Connections that enqueue at the same time.
const CLIENTS: usize = 8;
/// The longest time to drain the backlog.
const PATIENCE: Duration = Duration::from_mins(5);

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let place = plan.new_place()?;
    let server = Process::serve(&place).await?;
    let empty = server.memory();
    let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut working = Vec::new();
    for number in 0..WORKERS {
        let mut worker = Worker::open(server.address, number, "default").await?;
        let (done, stop) = (Arc::clone(&done), Arc::clone(&stop));
        working.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                for lease in worker.lease(1, 60.0).await? {
                    pause(WORK).await;
                    worker.succeeded(&lease);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
            anyhow::Ok(())
        }));
    }
    let meter = server.meter();
    let request =
        http::request("POST", "/v1/jobs", &format!(r#"{{"type":"{JOB_TYPE}","data":{DATA}}}"#));
    let loading = tokio::spawn(http::load(server.address, CLIENTS, plan.window, request));
    let mut most = empty;
    while !loading.is_finished() {
        most = most.max(server.memory());
        pause(Duration::from_millis(50)).await;
    }
    let sent = loading.await??.requests;
    within(PATIENCE, async {
        while done.load(Ordering::Relaxed) < sent {
            most = most.max(server.memory());
            pause(Duration::from_millis(50)).await;
        }
    })
    .await?;
    let spent = meter.read();
    // The waiting lease calls contain the last reports.
    pause(Duration::from_millis(500)).await;
    let meter = server.meter();
    pause(plan.window).await;
    let idle = meter.read();
    stop.store(true, Ordering::Relaxed);
    working.iter().for_each(tokio::task::JoinHandle::abort);
    server.stop().await?;
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let what = format!("memory with {WORKERS} workers under load");
    let memory = Figure::cost(what, "MB", megabytes(most.all))
        .baseline("when it started", megabytes(empty.all))
        .among(spent.others_cores);
    Ok(vec![
        plan.by_store(memory.clone().reach(30.0), memory),
        Figure::cost("of it without the program's own file", "MB", megabytes(most.own))
            .baseline("when it started", megabytes(empty.own))
            .among(spent.others_cores),
        Figure::cost(
            format!("processor while {WORKERS} workers wait"),
            "% of a core",
            100.0 * idle.server.as_secs_f64() / idle.wall.as_secs_f64(),
        )
        .reach(1.0)
        .among(idle.others_cores),
    ])
}
