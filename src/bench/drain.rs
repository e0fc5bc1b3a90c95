//! `drain`: waiting jobs are claimed and run by a handler in the process; each outcome is recorded
//! alone.

use std::{path::Path, time::Duration};

use super::{
    BenchPlan, clock,
    embedded::{accepting, fill, handling, job, succeeded},
    figure::Figure,
    process::{Meter, ProcessorTime},
    raw, temp_dir,
};

/// Jobs that run at once.
const CONCURRENCY: u32 = 256;
/// Rows in one transaction of the baseline.
const ROWS: usize = 100;
/// The longest duration of a drain.
const PATIENCE: Duration = Duration::from_mins(10);

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let raw_dir = temp_dir(&plan.dir)?;
    let (path, jobs) = (raw_dir.path().to_owned(), plan.drain);
    let raw = tokio::task::spawn_blocking(move || raw::cycles(&path, jobs, ROWS)).await??;
    drop(raw_dir);
    let dir = temp_dir(&plan.dir)?;
    let (rate, spent) = run(dir.path(), plan.drain).await?;
    Ok(vec![
        Figure::rate(format!("drain {}", plan.drain), "jobs/s", rate)
            .reach(20_000.0)
            .share("SQLite's cycle", raw, 0.4)
            .among(spent.others_cores),
        Figure::cost("drain: processor per job", "us", spent.micros_per(plan.drain))
            .reach(100.0)
            .among(spent.others_cores),
    ])
}

/// Drains `jobs` jobs from the server on `dir` and returns the jobs per second, from the start of
/// the first to the record of the last.
pub(super) async fn run(dir: &Path, jobs: u64) -> anyhow::Result<(f64, ProcessorTime)> {
    let server = accepting(dir).await?;
    fill(&server, jobs, |_| job()).await?;
    server.stop().await;
    drop(server);
    let (server, handling) = handling(dir, CONCURRENCY).await?;
    let meter = Meter::embedded();
    handling.started().notified().await;
    let start = clock::instant();
    succeeded(&server, jobs, PATIENCE).await?;
    let (wall, spent) = (start.elapsed(), meter.read());
    anyhow::ensure!(handling.calls() == jobs, "{} calls for {jobs} jobs", handling.calls());
    server.stop().await;
    Ok((jobs as f64 / wall.as_secs_f64(), spent))
}
