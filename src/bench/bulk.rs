//! `bulk`: operations that change, cancel and replay every job of a filter.

use std::time::Duration;

use super::{
    BenchPlan, clock,
    embedded::{accepting, far, fill, job, job_type, within},
    figure::Figure,
};
use crate::cli::context::pause;
use tidegate_core::port::JobFilter;
use tidegate_engine::request::{BulkChange, BulkPatch, BulkRequest, NewJob};
use tidegate_server::runtime::Server;

/// Most jobs that each operation changes.
const JOBS: u64 = 100_000;
/// Jobs per second that are the goal on SQLite.
const REACH: f64 = 20_000.0;
/// How long an operation may take.
const PATIENCE: Duration = Duration::from_mins(5);

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let place = plan.new_place()?;
    let server = accepting(&place).await?;
    let jobs = plan.waiting.clamp(1, JOBS);
    fill(&server, jobs, |number| NewJob { run_at: Some(far(&server, number)), ..job() }).await?;
    let priority = BulkPatch { priority: Some(Some(7)), ..BulkPatch::default() };
    let mut figures = Vec::new();
    for (what, change) in [
        ("change", BulkChange::Patch(priority)),
        ("cancel", BulkChange::Cancel),
        ("replay", BulkChange::Replay { again: false }),
    ] {
        let start = clock::instant();
        run(&server, change, jobs).await?;
        let rate = jobs as f64 / start.elapsed().as_secs_f64();
        let figure = Figure::rate(format!("bulk {what} of {jobs} jobs"), "jobs/s", rate);
        figures.push(plan.by_store(figure.clone().reach(REACH), figure));
    }
    server.stop().await;
    Ok(figures)
}

/// Runs an operation on the `jobs` jobs of the type until it has ended.
async fn run(server: &Server, change: BulkChange, jobs: u64) -> anyhow::Result<()> {
    let filter = JobFilter { job_type: Some(job_type()), ..JobFilter::default() };
    let begun = server.bulk(BulkRequest::new(change, filter), None).await?;
    let ended = async {
        loop {
            let operation = server.operation(&begun.id).await?;
            if operation.ended_at.is_some() {
                anyhow::ensure!(operation.done == jobs, "not all jobs are changed: {operation:?}");
                return Ok(());
            }
            pause(Duration::from_millis(5)).await;
        }
    };
    within(PATIENCE, ended).await?
}
