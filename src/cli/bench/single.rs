//! `enqueue`: one job per request, over HTTP, durable before it is answered.

use super::{
    DATA, JOB_TYPE, Plan, TempDir, clock,
    figure::Figure,
    http::{self, Load},
    process::{Process, Spent},
};

/// How many connections enqueue at once.
const CONNECTIONS: usize = 64;
/// What ours is compared with.
const BARE: &str = "bare handler";

/// The measure.
pub(super) async fn measure(plan: &Plan) -> anyhow::Result<Vec<Figure>> {
    let (_, raw, raw_spent) = {
        let dir = TempDir::new(&plan.dir)?;
        let bare = Process::bare(&dir.0).await?;
        let (load, spent) = run(&bare, plan).await?;
        (dir, load, spent)
    };
    let dir = TempDir::new(&plan.dir)?;
    let server = Process::serve(&dir.0).await?;
    let (ours, spent) = run(&server, plan).await?;
    server.stop().await?;
    let (mut raw_latencies, mut latencies) = (raw.latencies.clone(), ours.latencies.clone());
    let mut milliseconds = |share| (clock::percentile(&mut latencies, share), clock::percentile(&mut raw_latencies, share));
    let ((p50, raw_p50), (p99, raw_p99)) = (milliseconds(0.5), milliseconds(0.99));
    let what = format!("enqueue, {CONNECTIONS} connections");
    Ok(vec![
        Figure::rate(&what, "jobs/s", ours.rate()).reach(15_000.0).share(BARE, raw.rate(), 0.5).among(spent.others_cores),
        Figure::cost(format!("{what}: p50"), "ms", p50).beside(BARE, raw_p50).among(spent.others_cores),
        Figure::cost(format!("{what}: p99"), "ms", p99).beside(BARE, raw_p99).among(spent.others_cores),
        Figure::cost("enqueue: server's processor per job", "us", spent.micros_per(ours.requests))
            .beside(BARE, raw_spent.micros_per(raw.requests))
            .among(spent.others_cores),
    ])
}

/// What a server reaches, ours or the bare one.
pub(super) async fn run(server: &Process, plan: &Plan) -> anyhow::Result<(Load, Spent)> {
    let request = http::request("POST", "/v1/jobs", &format!(r#"{{"type":"{JOB_TYPE}","data":{DATA}}}"#));
    http::load(server.address, CONNECTIONS, plan.window / 10, request.clone()).await?;
    let meter = server.meter();
    let load = http::load(server.address, CONNECTIONS, plan.window, request).await?;
    Ok((load, meter.read()))
}
