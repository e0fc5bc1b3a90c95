//! `hanging`: the time from the start of an enqueue request to the call of the target, alone and
//! while every call of another queue's target hangs.

use std::{
    future::pending,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{Router, http::StatusCode, routing::post};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};

use super::{
    BenchPlan, DATA, clock,
    embedded::within,
    figure::Figure,
    http::{self, Connection},
    process::Process,
};
use crate::cli::context::pause;

/// Most samples of each.
const SAMPLES: u64 = 600;
/// The pause before each sample, so that the previous one is finished.
const QUIET: Duration = Duration::from_millis(15);
/// Jobs whose target hangs: more than the concurrent calls of a queue.
const HANGING: usize = 600;
/// Concurrent calls of one queue's targets.
const CALLS: usize = 256;
/// The longest duration of a sample.
const PATIENCE: Duration = Duration::from_secs(30);
/// The goal: how much slower the p99 of a healthy queue may be while another queue hangs.
const MAX_SLOWDOWN: f64 = 1.2;

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let place = plan.new_place()?;
    let server = Process::serve(&place).await?;
    let meter = server.meter();
    let (mut targets, mut tasks) = Targets::start().await?;
    for name in ["healthy", "hanging"] {
        server.ask("PUT", &format!("/v1/queues/{name}"), r#"{"concurrency":1000}"#).await?;
        let target = format!(
            r#"{{"queue":"{name}","target":{{"url":"http://{}/{name}"}}}}"#,
            targets.address
        );
        server.ask("PUT", &format!("/v1/job-types/{name}"), &target).await?;
    }
    let samples = plan.scaled(SAMPLES);
    let mut alone = sample(&server, &mut targets.arrivals, samples).await?;
    let jobs = vec![format!(r#"{{"type":"hanging","data":{DATA}}}"#); HANGING].join(",");
    server.ask("POST", "/v1/jobs/batch", &format!(r#"{{"jobs":[{jobs}]}}"#)).await?;
    within(PATIENCE, async {
        while targets.hang.load(Ordering::Relaxed) < CALLS {
            pause(QUIET).await;
        }
    })
    .await?;
    let mut loaded = sample(&server, &mut targets.arrivals, samples).await?;
    let spent = meter.read();
    // Their calls would delay the stop of the server.
    tasks.abort_all();
    drop(server);
    let mut figure = |name: &str, share| {
        let (ours, alone) =
            (clock::percentile(&mut loaded, share), clock::percentile(&mut alone, share));
        let figure = Figure::cost(format!("push during {CALLS} hanging calls: {name}"), "ms", ours)
            .among(spent.others_cores);
        (figure, alone)
    };
    let ((usual, usual_alone), (late, late_alone)) = (figure("p50", 0.5), figure("p99", 0.99));
    Ok(vec![usual.baseline("alone", usual_alone), late.share("alone", late_alone, MAX_SLOWDOWN)])
}

/// Returns the time to the target of each of `samples` jobs.
async fn sample(
    server: &Process,
    arrivals: &mut mpsc::UnboundedReceiver<Instant>,
    samples: u64,
) -> anyhow::Result<Vec<Duration>> {
    let mut client = Connection::open(server.address).await?;
    let request =
        http::request("POST", "/v1/jobs", &format!(r#"{{"type":"healthy","data":{DATA}}}"#));
    let mut spans = Vec::new();
    for _ in 0..samples {
        pause(QUIET).await;
        let sent = clock::instant();
        client.send(&request).await?.ok()?;
        if let Some(arrived) = within(PATIENCE, arrivals.recv()).await? {
            spans.push(arrived.saturating_duration_since(sent));
        }
    }
    Ok(spans)
}

/// Two targets: one reports its calls, the other never responds.
struct Targets {
    address: SocketAddr,
    arrivals: mpsc::UnboundedReceiver<Instant>,
    /// Calls that hang.
    hang: Arc<AtomicUsize>,
}

impl Targets {
    async fn start() -> anyhow::Result<(Self, JoinSet<()>)> {
        let (called, arrivals) = mpsc::unbounded_channel();
        let hang = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&hang);
        let routes = Router::new()
            .route(
                "/healthy",
                post(move || {
                    // The receiver is gone after the measurement.
                    let _ = called.send(clock::instant());
                    async { StatusCode::OK }
                }),
            )
            .route(
                "/hanging",
                post(move || {
                    counted.fetch_add(1, Ordering::Relaxed);
                    pending::<StatusCode>()
                }),
            );
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // It serves until the end of the measurement.
            let _ = axum::serve(listener, routes).await;
        });
        Ok((Self { address, arrivals, hang }, tasks))
    }
}
