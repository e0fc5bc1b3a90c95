//! `backlog`: the effect of a million scheduled jobs. Some of them wait in each queue under test: without
//! a limit, with a limit of ten, and with one that never binds.

use std::time::Duration;

use super::{
    BenchPlan, DATA, JOB_TYPE, batch, clock, drain,
    embedded::{accepting, far, fill},
    figure::{Better, Figure},
    idle, latency, limit, loose_limit,
    place::Place,
    process::Process,
    rickover, single,
    worker::Worker,
};
use crate::cli::context::pause;
use tidegate_backends::postgres::RawPostgres;
use tidegate_core::{
    job::{Payload, TypeName, type_config::TypeConfig},
    queue::QueueConfig,
};
use tidegate_engine::request::NewJob;

/// The name of the baseline.
const WITHOUT: &str = "with an empty store";
/// The share of the baseline that is the goal of a rate, and of a cost.
const REACH: (f64, f64) = (0.8, 1.2);
/// The types of the jobs that wait. The queues of the last two have their names.
const WAITING: [&str; 3] = [JOB_TYPE, limit::QUEUE, loose_limit::LIMITED];
/// Servers that share a database, where more than one is measured.
const SERVERS: usize = 3;
/// Most retries to start a server on a directory that is about to be released.
const MAX_START_RETRIES: u32 = 100;

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let place = plan.new_place()?;
    let without = Box::pin(figures(&place, plan)).await?;
    let place = plan.new_place()?;
    wait(&place, plan.waiting).await?;
    let with = Box::pin(figures(&place, plan)).await?;
    Ok(with
        .into_iter()
        .zip(without)
        .map(|(with, without)| compared(with, without.ours, plan.waiting))
        .collect())
}

/// Returns the figure with the backlog next to `without`, that with an empty store.
fn compared(with: Figure, without: f64, waiting: u64) -> Figure {
    let reach = match with.better {
        Better::Higher => REACH.0,
        Better::Lower => REACH.1,
    };
    let what = format!("{} with {waiting} waiting", with.what);
    Figure { what, ..with }.share(WITHOUT, without, reach)
}

/// Fills the store of `place` with jobs that are due tomorrow.
async fn wait(place: &Place, jobs: u64) -> anyhow::Result<()> {
    let server = accepting(place).await?;
    for name in WAITING {
        let job_type: TypeName = name.parse()?;
        if name != JOB_TYPE {
            server.put_queue(&name.parse()?, QueueConfig::default(), None).await?;
            let config = TypeConfig { queue: name.parse()?, ..TypeConfig::default() };
            server.put_type(&job_type, config, None).await?;
        }
        fill(&server, jobs / WAITING.len() as u64, |number| NewJob {
            run_at: Some(far(&server, number)),
            ..NewJob::new(job_type.clone(), Payload::json(DATA))
        })
        .await?;
    }
    server.stop().await;
    Ok(())
}

/// Measures servers on `place`: one, then several if they share it, then one of these. Enqueues are the
/// last, because they leave jobs that are due.
async fn figures(place: &Place, plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let (drained, spent) = drain::run(place, plan.drain).await?;
    let mut servers = vec![serve(place).await?];
    let over_http = drain_over_http(&servers, plan).await?;
    let (limited, ..) = limit::run(&servers, limit::LIMIT, limit::jobs(plan)).await?;
    loose_limit::configure(&servers[0]).await?;
    let mut rates = vec![
        ("drain", drained),
        ("drain over HTTP", over_http),
        ("limit 10", limited),
        ("drain with a loose limit", drain_loose(&servers, plan).await?),
    ];
    let mut costs = Vec::new();
    if let Place::Schema(schema) = place {
        servers.extend(Process::serve_all(place, SERVERS - servers.len()).await?);
        let (limited, ..) = limit::run(&servers, limit::LIMIT, limit::jobs(plan)).await?;
        rates.push(("limit 10 of three servers", limited));
        let loose = drain_loose(&servers, plan).await?;
        rates.push(("drain with a loose limit of three servers", loose));
        // Or the database would do this in the next minute, which is no idle load.
        RawPostgres::open(schema.settings()?, clock::now()).await?.vacuum().await?;
        let spent = idle::run(&servers, plan.window).await?;
        costs.extend(spent.postgres.map(|postgres| {
            let percent = idle::percent(postgres, spent.wall, SERVERS);
            (idle::POSTGRES, "% of a core", percent)
        }));
    }
    let waiting = servers.last().map_or(servers[0].address, |server| server.address);
    let samples = plan.scaled(latency::SAMPLES);
    let mut spans = latency::over_http(servers[0].address, waiting, samples).await?;
    for (what, share) in [("idle latency: p50", 0.5), ("idle latency: p99", 0.99)] {
        costs.push((what, "ms", clock::percentile(&mut spans, share)));
    }
    Process::stop_all(servers.split_off(1)).await?;
    let (batches, _) = batch::run(&servers[0], plan.window).await?;
    rates.push(("batch", batch::jobs_per_second(&batches)));
    rates.push(("enqueue", single::run(&servers[0], plan.window).await?.rate()));
    Process::stop_all(servers).await?;
    let rates = rates.into_iter().map(|(what, rate)| Figure::rate(what, "jobs/s", rate));
    let costs = costs.into_iter().map(|(what, unit, cost)| Figure::cost(what, unit, cost));
    Ok(rates.chain(costs).map(|figure| figure.among(spent.others_cores)).collect())
}

/// Starts a server on `place`, where an embedded one has run.
async fn serve(place: &Place) -> anyhow::Result<Process> {
    let mut tries = 0;
    loop {
        // The embedded server releases a directory when its last task ends.
        match Process::serve(place).await {
            Ok(server) => return Ok(server),
            Err(error) if tries < MAX_START_RETRIES && format!("{error:#}").contains("ended") => {
                tries += 1;
                pause(Duration::from_millis(20)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns the jobs per second that workers finish over HTTP.
async fn drain_over_http(servers: &[Process], plan: &BenchPlan) -> anyhow::Result<f64> {
    limit::enqueue(&servers[0], JOB_TYPE, plan.drain).await?;
    let workers = Worker::open_all(servers, plan.clients, "default").await?;
    let start = clock::instant();
    rickover::drain(workers, plan.drain, rickover::SHORT_WAIT).await?;
    Ok(plan.drain as f64 / start.elapsed().as_secs_f64())
}

/// Returns the jobs per second that workers finish in the queue with the loose limit.
async fn drain_loose(servers: &[Process], plan: &BenchPlan) -> anyhow::Result<f64> {
    let took = loose_limit::turn(servers, loose_limit::LIMITED, plan.clients, plan.drain).await?;
    Ok(plan.drain as f64 / took.as_secs_f64())
}
