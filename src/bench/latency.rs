//! `latency`: the time from the start of an enqueue request to the worker, on an idle server.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use super::{
    BenchPlan, DATA, JOB_TYPE, clock,
    embedded::{handling, job, within},
    figure::Figure,
    http::{self, Connection},
    process::{Meter, Process, ProcessorTime},
    temp_dir,
    worker::Worker,
};
use crate::cli::context::pause;

/// Samples of each way.
const SAMPLES: usize = 200;
/// The pause before each sample, so that the previous one is finished.
const QUIET: Duration = Duration::from_millis(15);
/// The longest duration of a sample.
const PATIENCE: Duration = Duration::from_secs(30);

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let dir = temp_dir(&plan.dir)?;
    let server = Process::serve(dir.path()).await?;
    let meter = server.meter();
    let mut spans = over_http(&server).await?;
    let mut figures = figures("worker over HTTP", &mut spans, meter.read());
    server.stop().await?;
    let dir = temp_dir(&plan.dir)?;
    let meter = Meter::embedded();
    let mut spans = in_process(dir.path()).await?;
    figures.extend(self::figures("handler in the process", &mut spans, meter.read()));
    Ok(figures)
}

fn figures(way: &str, spans: &mut [Duration], spent: ProcessorTime) -> Vec<Figure> {
    let mut figure = |name, share, reach| {
        Figure::cost(format!("idle latency, {way}: {name}"), "ms", clock::percentile(spans, share))
            .reach(reach)
            .among(spent.others_cores)
    };
    vec![figure("p50", 0.5, 2.0), figure("p99", 0.99, 8.0)]
}

async fn over_http(server: &Process) -> anyhow::Result<Vec<Duration>> {
    let mut worker = Worker::open(server.address, 0, "default").await?;
    let (got, mut arrivals) = mpsc::unbounded_channel::<Instant>();
    let working = tokio::spawn(async move {
        loop {
            for lease in worker.lease(1, 20.0).await? {
                if got.send(clock::instant()).is_err() {
                    return anyhow::Ok(());
                }
                worker.succeeded(&lease);
            }
        }
    });
    let mut client = Connection::open(server.address).await?;
    let request =
        http::request("POST", "/v1/jobs", &format!(r#"{{"type":"{JOB_TYPE}","data":{DATA}}}"#));
    let mut spans = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        pause(QUIET).await;
        let sent = clock::instant();
        client.send(&request).await?.ok()?;
        match within(PATIENCE, arrivals.recv()).await? {
            Some(arrived) => spans.push(arrived.saturating_duration_since(sent)),
            None => return working.await?.map(|()| spans),
        }
    }
    working.abort();
    Ok(spans)
}

async fn in_process(dir: &Path) -> anyhow::Result<Vec<Duration>> {
    let (server, handling) = handling(dir, 1).await?;
    let mut spans = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        pause(QUIET).await;
        let sent = clock::instant();
        let enqueue = async {
            Box::pin(server.enqueue(job())).await?;
            anyhow::Ok(())
        };
        let started = async {
            handling.started().notified().await;
            Ok(sent.elapsed())
        };
        let ((), span) = within(PATIENCE, async { tokio::try_join!(enqueue, started) }).await??;
        spans.push(span);
    }
    server.stop().await;
    Ok(spans)
}
