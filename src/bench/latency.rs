//! `latency`: the time from the start of an enqueue request to the worker, on an idle server. Servers
//! on Postgres are also measured in pairs: one accepts the job, and the worker waits at the other one.
//! Their database takes requests for jobs in transactions, too.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use super::{
    BenchPlan, DATA, JOB_TYPE, clock,
    embedded::{Handling, handling, job, polling, within},
    figure::Figure,
    http::{self, Connection},
    meter::{Meter, ProcessorTime},
    place::{Place, Schema},
    process::Process,
    worker::Worker,
};
use crate::cli::context::pause;
use tidegate_backends::postgres::RawPostgres;
use tidegate_core::job::Job;
use tidegate_engine::request::{LeaseRequest, Report, ReportOutcome};
use tidegate_server::runtime::Server;

/// Most samples of each way.
pub(super) const SAMPLES: u64 = 200;
/// The pause before each sample, so that the previous one is finished.
const QUIET: Duration = Duration::from_millis(15);
/// The longest duration of a sample.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many times as long as a rate the samples without notices may take.
const WINDOWS: u32 = 4;
/// The pauses before samples that wait for a poll differ by less than this, so that not all of them begin
/// at the same time after a poll.
const SPREAD: Duration = Duration::from_millis(100);
/// The golden ratio's fraction: its multiples are spread evenly.
const GOLDEN: f64 = 0.618_034;
/// The goals for p50 and p99 in milliseconds.
const ON_SQLITE: [f64; 2] = [2.0, 8.0];
const ON_POSTGRES: [f64; 2] = [3.0, 15.0];
/// The same where servers find jobs by polling alone: without notices, and in the inbox.
const BY_POLLING: [f64; 2] = [30.0, 60.0];

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let goals = plan.by_store(ON_SQLITE, ON_POSTGRES);
    let samples = plan.scaled(SAMPLES);
    let mut figures = Vec::new();
    let ways = ["worker over HTTP", "worker over HTTP at another server"];
    for (way, number) in ways.into_iter().zip(1..=plan.by_store(1, 2)) {
        let place = plan.new_place()?;
        let servers = Process::serve_all(&place, number).await?;
        let meter = Process::meter_of(&servers);
        let (accepting, waiting) = (servers[0].address, servers[number - 1].address);
        let mut spans = over_http(accepting, waiting, samples).await?;
        figures.extend(self::figures(way, &mut spans, meter.read(), goals));
        Process::stop_all(servers).await?;
    }
    let place = plan.new_place()?;
    let meter = Meter::embedded(&place);
    let mut spans = in_process(&place, samples).await?;
    figures.extend(self::figures("handler in the process", &mut spans, meter.read(), goals));
    let place = plan.new_place()?;
    if let Place::Schema(schema) = &place {
        let meter = Meter::embedded(&place);
        let mut spans = by_polling(schema, plan.window * WINDOWS, samples).await?;
        let way = "worker at another server, by polling alone";
        figures.extend(self::figures(way, &mut spans, meter.read(), BY_POLLING));
    }
    let what = "a transaction of an application, worker over HTTP";
    figures.extend(by_transaction(plan, what, Way::Transaction).await?);
    let what = "a transaction with a notice, worker over HTTP";
    let with_notice = by_transaction(plan, what, Way::NotifyingTransaction).await?;
    // It has no goal.
    figures.extend(with_notice.into_iter().map(|figure| Figure { reach: None, ..figure }));
    Ok(figures)
}

fn figures(
    way: &str,
    spans: &mut [Duration],
    spent: ProcessorTime,
    goals: [f64; 2],
) -> [Figure; 2] {
    let mut figure = |name, share, reach| {
        Figure::cost(format!("idle latency, {way}: {name}"), "ms", clock::percentile(spans, share))
            .reach(reach)
            .among(spent.others_cores)
    };
    [figure("p50", 0.5, goals[0]), figure("p99", 0.99, goals[1])]
}

/// Returns the times from the server at `accepting` to a worker that waits at `waiting`.
pub(super) async fn over_http(
    accepting: SocketAddr,
    waiting: SocketAddr,
    samples: u64,
) -> anyhow::Result<Vec<Duration>> {
    let client = Connection::open(accepting).await?;
    let request =
        http::request("POST", "/v1/jobs", &format!(r#"{{"type":"{JOB_TYPE}","data":{DATA}}}"#));
    to_worker(waiting, samples, Duration::ZERO, Way::Http(client, request)).await
}

/// Measures the times from the start of transactions that request a job in the database, by `way` on a
/// connection to it, to a worker that waits. Returns no figures without a database.
async fn by_transaction(
    plan: &BenchPlan,
    what: &str,
    way: fn(RawPostgres) -> Way,
) -> anyhow::Result<Vec<Figure>> {
    let place = plan.new_place()?;
    let Place::Schema(schema) = &place else { return Ok(Vec::new()) };
    let server = Process::serve(&place).await?;
    let meter = server.meter();
    let application = RawPostgres::open(schema.settings()?, clock::now()).await?;
    let samples = plan.scaled(SAMPLES);
    let mut spans = to_worker(server.address, samples, SPREAD, way(application)).await?;
    let figures = figures(what, &mut spans, meter.read(), BY_POLLING);
    server.stop().await?;
    Ok(figures.into())
}

/// A way to enqueue a job.
enum Way {
    /// This request on a connection to a server.
    Http(Connection, Vec<u8>),
    /// A transaction in the database of the servers, which is a single statement.
    Transaction(RawPostgres),
    /// The same, and it notifies the servers.
    NotifyingTransaction(RawPostgres),
}

impl Way {
    async fn enqueue(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Http(client, request) => client.send(request).await?.ok().map(drop),
            Self::Transaction(application) => Ok(application.enqueue(JOB_TYPE, DATA).await?),
            Self::NotifyingTransaction(application) => {
                Ok(application.enqueue_and_notify(JOB_TYPE, DATA).await?)
            }
        }
    }
}

/// Returns the times from the start of each enqueue by `way` to a worker that waits at `waiting`. The pauses
/// before differ by less than `spread`.
async fn to_worker(
    waiting: SocketAddr,
    samples: u64,
    spread: Duration,
    mut way: Way,
) -> anyhow::Result<Vec<Duration>> {
    let mut worker = Worker::open(waiting, 0, "default").await?;
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
    let mut spans = Vec::new();
    for number in 0..samples {
        pause(QUIET + spread.mul_f64((GOLDEN * number as f64).fract())).await;
        let sent = clock::instant();
        way.enqueue().await?;
        match within(PATIENCE, arrivals.recv()).await? {
            Some(arrived) => spans.push(arrived.saturating_duration_since(sent)),
            None => return working.await?.map(|()| spans),
        }
    }
    working.abort();
    Ok(spans)
}

async fn in_process(place: &Place, samples: u64) -> anyhow::Result<Vec<Duration>> {
    let (server, handling) = handling(place, 1).await?;
    let mut spans = Vec::new();
    for _ in 0..samples {
        pause(QUIET).await;
        spans.push(sample(&server, &handling).await?);
    }
    server.stop().await;
    Ok(spans)
}

/// Returns at most `samples` times between two servers without notices, as many as there are within
/// `window`.
async fn by_polling(
    place: &Schema,
    window: Duration,
    samples: u64,
) -> anyhow::Result<Vec<Duration>> {
    let (accepting, leasing) = (polling(place).await?, polling(place).await?);
    let (mut spans, mut reports) = (Vec::new(), Vec::new());
    let start = clock::instant();
    while spans.is_empty() || ((spans.len() as u64) < samples && start.elapsed() < window) {
        let (server, request) = (leasing.clone(), lease(std::mem::take(&mut reports)));
        let waiting = tokio::spawn(async move {
            let leased = server.lease(request).await;
            (clock::instant(), leased)
        });
        let part = (GOLDEN * spans.len() as f64).fract();
        pause(QUIET + SPREAD.mul_f64(part)).await;
        let sent = clock::instant();
        Box::pin(accepting.enqueue(job())).await?;
        let (arrived, leased) = within(PATIENCE, waiting).await??;
        for job in leased?.jobs {
            spans.push(arrived.saturating_duration_since(sent));
            reports.push(success(job));
        }
    }
    leasing.lease(LeaseRequest { max: 0, ..lease(reports) }).await?;
    accepting.stop().await;
    leasing.stop().await;
    Ok(spans)
}

/// Returns the request for a job of a worker that sends `reports` with it.
fn lease(reports: Vec<Report>) -> LeaseRequest {
    LeaseRequest {
        queue: Some("default".parse().expect("a good name")),
        types: Vec::new(),
        max: 1,
        min: 0,
        wait: PATIENCE,
        max_pause: Duration::ZERO,
        call: None,
        worker: Some("bench".to_owned()),
        lease_seconds: None,
        reports,
    }
}

/// Returns the report that a job has succeeded.
fn success(job: Job) -> Report {
    Report {
        id: job.id,
        job_type: None,
        attempt: job.life.attempt,
        token: None,
        outcome: ReportOutcome::Succeeded { result: None },
        checkpoint: None,
    }
}

/// Returns the time from the start of an enqueue at `server` to the handler.
async fn sample(server: &Server, handling: &Handling) -> anyhow::Result<Duration> {
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
    Ok(span)
}
