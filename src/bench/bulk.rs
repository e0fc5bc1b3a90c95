//! `bulk`: operations that change, cancel and replay every job of a filter.

use std::time::Duration;

use super::{
    BenchPlan, clock,
    embedded::{accepting, far, fill, job, job_type, within},
    figure::Figure,
    temp_dir,
};
use crate::cli::context::pause;
use tidegate_core::port::JobFilter;
use tidegate_engine::request::{BulkChange, BulkPatch, BulkRequest, NewJob};
use tidegate_server::runtime::Server;

/// Jobs that each operation changes.
const JOBS: u64 = 100_000;
/// Jobs per second that are the goal.
const REACH: f64 = 20_000.0;
/// How long an operation may take.
const PATIENCE: Duration = Duration::from_mins(5);

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let dir = temp_dir(&plan.dir)?;
    let server = accepting(dir.path()).await?;
    fill(&server, JOBS, |number| NewJob { run_at: Some(far(&server, number)), ..job() }).await?;
    let priority = BulkPatch { priority: Some(Some(7)), ..BulkPatch::default() };
    let mut figures = Vec::new();
    for (what, change) in [
        ("change", BulkChange::Patch(priority)),
        ("cancel", BulkChange::Cancel),
        ("replay", BulkChange::Replay { again: false }),
    ] {
        let start = clock::instant();
        run(&server, change).await?;
        let rate = JOBS as f64 / start.elapsed().as_secs_f64();
        figures
            .push(Figure::rate(format!("bulk {what} of {JOBS} jobs"), "jobs/s", rate).reach(REACH));
    }
    server.stop().await;
    Ok(figures)
}

/// Runs an operation on every job of the type, until it has ended.
async fn run(server: &Server, change: BulkChange) -> anyhow::Result<()> {
    let filter = JobFilter { job_type: Some(job_type()), ..JobFilter::default() };
    let begun = server.bulk(BulkRequest::new(change, filter), None).await?;
    let ended = async {
        loop {
            let operation = server.operation(&begun.id).await?;
            if operation.ended_at.is_some() {
                anyhow::ensure!(operation.done == JOBS, "not all jobs are changed: {operation:?}");
                return Ok(());
            }
            pause(Duration::from_millis(5)).await;
        }
    };
    within(PATIENCE, ended).await?
}
