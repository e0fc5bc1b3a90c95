//! `restore`: from the start of a server on an empty directory, whose log has jobs, until it is ready:
//! it reads a snapshot and the records behind it, and leads.

use std::time::Duration;

use super::{
    BenchPlan, JOB_TYPE, clock, embedded::within, figure::Figure, limit, log::DELAYS,
    process::Process, storage::Storage,
};
use crate::cli::context::pause;

/// The longest time until the snapshot is made.
const PATIENCE: Duration = Duration::from_mins(10);
/// The jobs in records behind the snapshot: one for this many in it.
const JOBS_PER_RECORDED: u64 = 100;
/// The goal for a million jobs, in seconds.
const MOST_SECONDS: f64 = 60.0;

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let storage = Storage::start(Duration::ZERO).await?;
    fill(plan, &storage).await?;
    let mut figures = Vec::new();
    for delay in DELAYS {
        storage.set_delay(delay);
        let place = plan.new_place()?;
        let start = clock::instant();
        let server = Process::start_with_log(&place, &storage).await?;
        let took = start.elapsed();
        server.stop().await?;
        let what = format!("restore of {} jobs, {} ms", plan.waiting, delay.as_millis());
        figures.push(Figure::cost(what, "s", took.as_secs_f64()).reach(MOST_SECONDS));
    }
    Ok(figures)
}

/// Fills the log in `storage` with a snapshot that has the jobs, and some records behind it.
async fn fill(plan: &BenchPlan, storage: &Storage) -> anyhow::Result<()> {
    let place = plan.new_place()?;
    let server = Process::serve_with_log(&place, storage).await?;
    limit::enqueue(&server, JOB_TYPE, plan.waiting).await?;
    server.stop().await?;
    // A server that begins to lead makes a snapshot of the state before.
    let server = Process::start_with_log(&place, storage).await?;
    let made = async {
        while !storage.has_newest_snapshot().await? {
            pause(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    within(PATIENCE, made).await??;
    limit::enqueue(&server, JOB_TYPE, plan.waiting / JOBS_PER_RECORDED).await?;
    server.stop().await
}
