//! `drain`: waiting jobs are claimed and run by a handler in the process; each outcome is recorded
//! alone.

use std::time::Duration;

use super::{
    BenchPlan, clock,
    embedded::{accepting, fill, handling, job, succeeded, within},
    figure::Figure,
    meter::{Meter, ProcessorTime},
    place::Place,
    raw,
};
use crate::cli::context::pause;

/// Jobs that run at once on a data directory.
const CONCURRENCY: u32 = 256;
/// Jobs that run at once on Postgres: as many as those of pg-boss, with which `--peers` compares.
const CONCURRENCY_ON_POSTGRES: u32 = 1000;
/// Rows in one transaction of the baseline.
const ROWS: usize = 100;
/// The longest duration of a drain.
const PATIENCE: Duration = Duration::from_mins(10);

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let raw = raw::cycles(&plan.new_place()?, plan.drain, ROWS).await?;
    let (rate, spent) = run(&plan.new_place()?, plan.drain).await?;
    let (goal, baseline, share) = plan
        .by_store((20_000.0, "SQLite's cycle", 0.4), (15_000.0, "Postgres' claims and ends", 0.5));
    let figures = [
        Figure::rate(format!("drain {}", plan.drain), "jobs/s", rate)
            .reach(goal)
            .share(baseline, raw, share)
            .among(spent.others_cores),
        Figure::cost("drain: processor per job", "us", spent.micros_per(plan.drain))
            .reach(100.0)
            .among(spent.others_cores),
    ];
    Ok(figures.into_iter().chain(spent.postgres_figure("drain", plan.drain)).collect())
}

/// Drains `jobs` jobs from the server on `place` and returns the jobs per second, from the start of
/// the first to the record of the last.
pub(super) async fn run(place: &Place, jobs: u64) -> anyhow::Result<(f64, ProcessorTime)> {
    let server = accepting(place).await?;
    fill(&server, jobs, |_| job()).await?;
    server.stop().await;
    drop(server);
    let concurrency = match place {
        Place::Directory(_) => CONCURRENCY,
        Place::Schema(_) => CONCURRENCY_ON_POSTGRES,
    };
    let (server, handling) = handling(place, concurrency).await?;
    let meter = Meter::embedded(place);
    handling.started().notified().await;
    let start = clock::instant();
    // Each look at the store is work for it, so the first one is after the last job has begun.
    within(PATIENCE, async {
        while handling.calls() < jobs {
            pause(Duration::from_millis(1)).await;
        }
    })
    .await?;
    succeeded(&server, jobs, PATIENCE).await?;
    let (wall, spent) = (start.elapsed(), meter.read());
    anyhow::ensure!(handling.calls() == jobs, "{} calls for {jobs} jobs", handling.calls());
    server.stop().await;
    Ok((jobs as f64 / wall.as_secs_f64(), spent))
}
