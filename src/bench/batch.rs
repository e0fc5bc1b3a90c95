//! `batch`: a thousand jobs per request, over HTTP.

use std::time::Duration;

use super::{
    BenchPlan, DATA, JOB_TYPE,
    figure::Figure,
    http::{self, Load},
    meter::ProcessorTime,
    place::Place,
    process::Process,
    raw,
};

/// Jobs of one request.
const JOBS: usize = 1000;
/// The number of sending connections.
const CONNECTIONS: usize = 4;
/// Rows that the baseline inserts.
const ROWS: u64 = 200_000;

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let raw = raw::inserts(&plan.new_place()?, plan.scaled(ROWS), JOBS).await?;
    let place = plan.new_place()?;
    let server = Process::serve(&place).await?;
    let (load, spent) = run(&server, plan.window).await?;
    server.stop().await?;
    let jobs = load.requests * JOBS as u64;
    let what = format!("batch of {JOBS}, {CONNECTIONS} connections");
    let rate = Figure::rate(what, "jobs/s", jobs_per_second(&load));
    let rate = match place {
        Place::Directory(_) => rate.reach(60_000.0).baseline("SQLite's inserts", raw),
        Place::Schema(_) => rate.reach(40_000.0).share("Postgres' inserts", raw, 0.5),
    };
    let figures = [
        rate.among(spent.others_cores),
        Figure::cost("batch: server's processor per job", "us", spent.micros_per(jobs))
            .among(spent.others_cores),
    ];
    Ok(figures.into_iter().chain(spent.postgres_figure("batch", jobs)).collect())
}

/// Enqueues batches for `window`.
pub(super) async fn run(
    server: &Process,
    window: Duration,
) -> anyhow::Result<(Load, ProcessorTime)> {
    let request = http::request("POST", "/v1/jobs/batch", &body(JOBS, |_| String::new()));
    http::load(server.address, CONNECTIONS, window / 10, request.clone()).await?;
    let meter = server.meter();
    let load = http::load(server.address, CONNECTIONS, window, request).await?;
    Ok((load, meter.read()))
}

/// Returns the rate of `load` in jobs.
pub(super) fn jobs_per_second(load: &Load) -> f64 {
    load.rate() * JOBS as f64
}

/// Returns a batch of `jobs` jobs. `more` returns further fields of each, every one after a comma.
pub(super) fn body(jobs: usize, more: impl Fn(usize) -> String) -> String {
    let jobs: Vec<String> = (0..jobs)
        .map(|index| format!(r#"{{"type":"{JOB_TYPE}","data":{DATA}{}}}"#, more(index)))
        .collect();
    format!(r#"{{"jobs":[{}]}}"#, jobs.join(","))
}
