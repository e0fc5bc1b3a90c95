//! `enqueue`: one job per HTTP request, durable before the response.

use std::time::Duration;

use super::{
    BenchPlan, DATA, JOB_TYPE, clock, figure::Figure, http, meter::ProcessorTime, process::Process,
};

/// The number of connections that enqueue.
const CONNECTIONS: usize = 64;
/// The name of the baseline.
const BARE: &str = "bare handler";

/// The number of turns of both. They alternate, so that other load on the machine affects both.
const TURNS: u32 = 5;

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let (bare_place, place) = (plan.new_place()?, plan.new_place()?);
    let (bare, server) = (Process::bare(&bare_place).await?, Process::serve(&place).await?);
    let (mut raw, mut ours) = (Run::default(), Run::default());
    for _ in 0..TURNS {
        raw.add(run(&bare, plan.window / TURNS).await?);
        ours.add(run(&server, plan.window / TURNS).await?);
    }
    server.stop().await?;
    let mut milliseconds = |share| {
        (
            clock::percentile(&mut ours.latencies, share),
            clock::percentile(&mut raw.latencies, share),
        )
    };
    let ((p50, raw_p50), (p99, raw_p99)) = (milliseconds(0.5), milliseconds(0.99));
    let others = ours.others_cores();
    let what = format!("enqueue, {CONNECTIONS} connections");
    let figures = [
        Figure::rate(&what, "jobs/s", ours.rate())
            .reach(plan.by_store(15_000.0, 10_000.0))
            .share(BARE, raw.rate(), 0.5)
            .among(others),
        Figure::cost(format!("{what}: p50"), "ms", p50).baseline(BARE, raw_p50).among(others),
        Figure::cost(format!("{what}: p99"), "ms", p99).baseline(BARE, raw_p99).among(others),
        Figure::cost("enqueue: server's processor per job", "us", ours.micros())
            .baseline(BARE, raw.micros())
            .among(others),
    ];
    let postgres = ours.postgres_micros().zip(raw.postgres_micros()).map(|(ours, raw)| {
        Figure::cost("enqueue: processor of Postgres per job", "us", ours)
            .baseline(BARE, raw)
            .among(others)
    });
    Ok(figures.into_iter().chain(postgres).collect())
}

/// Measures a server for `window`: tidegate or the bare one.
pub(super) async fn run(server: &Process, window: Duration) -> anyhow::Result<Run> {
    let request =
        http::request("POST", "/v1/jobs", &format!(r#"{{"type":"{JOB_TYPE}","data":{DATA}}}"#));
    http::load(server.address, CONNECTIONS, window / 10, request.clone()).await?;
    let meter = server.meter();
    let load = http::load(server.address, CONNECTIONS, window, request).await?;
    Ok(Run { latencies: load.latencies, wall: load.wall, spent: vec![meter.read()] })
}

/// The results of a server in its turns so far.
#[derive(Default)]
pub(super) struct Run {
    latencies: Vec<Duration>,
    wall: Duration,
    spent: Vec<ProcessorTime>,
}

impl Run {
    pub(super) fn add(&mut self, other: Self) {
        self.latencies.extend(other.latencies);
        self.wall += other.wall;
        self.spent.extend(other.spent);
    }

    /// Returns the requests per second.
    pub(super) fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.wall.as_secs_f64()
    }

    /// Returns the CPU time of the server per request, in microseconds.
    pub(super) fn micros(&self) -> f64 {
        let server: Duration = self.spent.iter().map(|spent| spent.server).sum();
        server.as_secs_f64() * 1e6 / self.latencies.len().max(1) as f64
    }

    /// Returns the CPU time of Postgres per request, in microseconds, if it is known.
    fn postgres_micros(&self) -> Option<f64> {
        let postgres: Option<Duration> = self.spent.iter().map(|spent| spent.postgres).sum();
        Some(postgres?.as_secs_f64() * 1e6 / self.latencies.len().max(1) as f64)
    }

    pub(super) fn others_cores(&self) -> f64 {
        self.spent.iter().map(|spent| spent.others_cores).sum::<f64>()
            / self.spent.len().max(1) as f64
    }
}
