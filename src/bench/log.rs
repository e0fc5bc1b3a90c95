//! `log`: a server with a replicated log, in object storage whose requests take 0, 20 and 60 ms.

use std::{slice, time::Duration};

use super::{
    BenchPlan, DATA, JOB_TYPE, batch, clock, figure::Figure, http, limit, process::Process,
    rickover::drain, storage::Storage, worker::Worker,
};

/// The times of a request to the storage.
pub(super) const DELAYS: [Duration; 3] =
    [Duration::ZERO, Duration::from_millis(20), Duration::from_millis(60)];
/// The delay at which the rates have goals, which are lower for none.
const SLOWEST: Duration = DELAYS[2];
/// Connections of the measurement of the time of an answer.
const FEW: usize = 16;
/// Connections that enqueue single jobs, and the goal of each.
const SINGLES: [(usize, f64); 2] = [(256, 3000.0), (512, 5000.0)];
/// Connections that send batches.
const BATCHES: usize = 16;
/// Jobs of a batch.
const BATCH: usize = 1000;
/// The workers of the drain.
const WORKERS: usize = 1024;
/// How long a lease request waits for a job. A report and a claim take a request to the storage each, after
/// the one that is under way.
const WAIT: Duration = Duration::from_millis(300);
/// How much longer than a request to the storage an answer may take, in milliseconds.
const MORE_MS: f64 = 15.0;

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for delay in DELAYS {
        figures.extend(with_delay(plan, delay).await?);
    }
    Ok(figures)
}

async fn with_delay(plan: &BenchPlan, delay: Duration) -> anyhow::Result<Vec<Figure>> {
    let (place, storage) = (plan.new_place()?, Storage::start(delay).await?);
    let server = Process::serve_with_log(&place, &storage).await?;
    let with = format!("with a log, {} ms", delay.as_millis());
    let goal =
        |figure: Figure, goal: f64| if delay == SLOWEST { figure.reach(goal) } else { figure };
    let single =
        http::request("POST", "/v1/jobs", &format!(r#"{{"type":"{JOB_TYPE}","data":{DATA}}}"#));
    http::load(server.address, FEW, plan.window / 10, single.clone()).await?;
    let mut figures = Vec::new();

    let meter = server.meter();
    let mut few = http::load(server.address, FEW, plan.window, single.clone()).await?;
    let p50 = clock::percentile(&mut few.latencies, 0.5);
    figures.push(
        Figure::cost(format!("enqueue {with}, {FEW} connections: p50"), "ms", p50)
            .reach(delay.as_secs_f64() * 1000.0 + MORE_MS)
            .among(meter.read().others_cores),
    );
    for (connections, least) in SINGLES {
        let meter = server.meter();
        let load = http::load(server.address, connections, plan.window, single.clone()).await?;
        let what = format!("enqueue {with}, {connections} connections");
        let rate = Figure::rate(what, "jobs/s", load.rate()).among(meter.read().others_cores);
        figures.push(goal(rate, least));
    }
    let meter = server.meter();
    let request = http::request("POST", "/v1/jobs/batch", &batch::body(BATCH, |_| String::new()));
    let load = http::load(server.address, BATCHES, plan.window, request).await?;
    let what = format!("batch of {BATCH} {with}, {BATCHES} connections");
    let rate = Figure::rate(what, "jobs/s", load.rate() * BATCH as f64);
    figures.push(goal(rate.among(meter.read().others_cores), 10_000.0));
    server.stop().await?;

    // Without the jobs from before.
    let (place, storage) = (plan.new_place()?, Storage::start(delay).await?);
    let server = Process::serve_with_log(&place, &storage).await?;
    limit::enqueue(&server, JOB_TYPE, plan.drain).await?;
    let workers = Worker::open_all(slice::from_ref(&server), WORKERS, "default").await?;
    let meter = server.meter();
    drain(workers, plan.drain, WAIT).await?;
    let drained = meter.read();
    server.stop().await?;
    let what = format!("drain {} {with}, {WORKERS} workers", plan.drain);
    let rate = plan.drain as f64 / drained.wall.as_secs_f64();
    figures.push(goal(Figure::rate(what, "jobs/s", rate).among(drained.others_cores), 5000.0));
    Ok(figures)
}
