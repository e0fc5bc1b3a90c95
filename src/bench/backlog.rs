//! `backlog`: the effect of a million scheduled jobs. Half of them wait in the queue under test,
//! half in the limited queue.

use std::{slice, time::Duration};

use super::{
    BenchPlan, DATA, drain,
    embedded::{accepting, far, fill, job},
    figure::Figure,
    limit,
    place::Place,
    process::Process,
    single,
};
use crate::cli::context::pause;
use tidegate_core::{
    job::{Payload, TypeName, type_config::TypeConfig},
    queue::QueueConfig,
};
use tidegate_engine::request::NewJob;

/// The name of the baseline.
const WITHOUT: &str = "with an empty store";
/// The share of the baseline that is the goal.
const REACH: f64 = 0.8;
/// Most retries to start a server on a directory that is about to be released.
const MAX_START_RETRIES: u32 = 100;

/// The figures, with and without the backlog.
struct Rates {
    enqueue: f64,
    drain: f64,
    limit: f64,
    others_cores: f64,
}

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let place = plan.new_place()?;
    let without = rates(&place, plan).await?;
    let place = plan.new_place()?;
    wait(&place, plan.waiting).await?;
    let with = rates(&place, plan).await?;
    let figure = |what, ours, baseline| {
        Figure::rate(format!("{what} with {} waiting", plan.waiting), "jobs/s", ours)
            .share(WITHOUT, baseline, REACH)
            .among(with.others_cores)
    };
    Ok(vec![
        figure("enqueue", with.enqueue, without.enqueue),
        figure("drain", with.drain, without.drain),
        figure("limit 10", with.limit, without.limit),
    ])
}

/// Fills the store of `place` with jobs that are due tomorrow.
async fn wait(place: &Place, jobs: u64) -> anyhow::Result<()> {
    let server = accepting(place).await?;
    server.put_queue(&limit::QUEUE.parse()?, QueueConfig::default(), None).await?;
    let limited: TypeName = limit::QUEUE.parse()?;
    server
        .put_type(
            &limited,
            TypeConfig { queue: limit::QUEUE.parse()?, ..TypeConfig::default() },
            None,
        )
        .await?;
    let waiting = |job: NewJob, number| NewJob { run_at: Some(far(&server, number)), ..job };
    fill(&server, jobs / 2, |number| waiting(job(), number)).await?;
    fill(&server, jobs / 2, |number| {
        waiting(NewJob::new(limited.clone(), Payload::json(DATA)), number)
    })
    .await?;
    server.stop().await;
    Ok(())
}

async fn rates(place: &Place, plan: &BenchPlan) -> anyhow::Result<Rates> {
    let (drain, spent) = drain::run(place, plan.drain).await?;
    let mut tries = 0;
    let server = loop {
        // The embedded server releases a directory when its last task ends.
        match Process::serve(place).await {
            Ok(server) => break server,
            Err(error) if tries < MAX_START_RETRIES && format!("{error:#}").contains("ended") => {
                tries += 1;
                pause(Duration::from_millis(20)).await;
            }
            Err(error) => return Err(error),
        }
    };
    let (limit, ..) = limit::run(slice::from_ref(&server), 10, limit::jobs(plan)).await?;
    let enqueue = single::run(&server, plan.window).await?.rate();
    server.stop().await?;
    Ok(Rates { enqueue, drain, limit, others_cores: spent.others_cores })
}
