//! `batch`: a thousand jobs per request, over HTTP.

use super::{BenchPlan, DATA, JOB_TYPE, figure::Figure, http, process::Process, raw, temp_dir};

/// Jobs of one request.
const JOBS: usize = 1000;
/// The number of sending connections.
const CONNECTIONS: usize = 4;
/// Rows that the baseline inserts into SQLite.
const ROWS: u64 = 200_000;

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let raw_dir = temp_dir(&plan.dir)?;
    let path = raw_dir.path().to_owned();
    let raw = tokio::task::spawn_blocking(move || raw::inserts(&path, ROWS, JOBS)).await??;
    drop(raw_dir);
    let dir = temp_dir(&plan.dir)?;
    let server = Process::serve(dir.path()).await?;
    let request = http::request("POST", "/v1/jobs/batch", &body(JOBS, |_| String::new()));
    http::load(server.address, CONNECTIONS, plan.window / 10, request.clone()).await?;
    let meter = server.meter();
    let load = http::load(server.address, CONNECTIONS, plan.window, request).await?;
    let spent = meter.read();
    server.stop().await?;
    Ok(vec![
        Figure::rate(
            format!("batch of {JOBS}, {CONNECTIONS} connections"),
            "jobs/s",
            load.rate() * JOBS as f64,
        )
        .reach(60_000.0)
        .baseline("SQLite's inserts", raw)
        .among(spent.others_cores),
        Figure::cost(
            "batch: server's processor per job",
            "us",
            spent.micros_per(load.requests * JOBS as u64),
        )
        .among(spent.others_cores),
    ])
}

/// Returns a batch of `jobs` jobs. `more` returns further fields of each, every one after a comma.
pub(super) fn body(jobs: usize, more: impl Fn(usize) -> String) -> String {
    let jobs: Vec<String> = (0..jobs)
        .map(|index| format!(r#"{{"type":"{JOB_TYPE}","data":{DATA}{}}}"#, more(index)))
        .collect();
    format!(r#"{{"jobs":[{}]}}"#, jobs.join(","))
}
