//! `lateness`: the time from due time to worker over HTTP, without limits or other jobs.

use std::time::Duration;

use anyhow::Context as _;

use super::{
    BenchPlan, JOB_TYPE, clock, embedded::within, figure::Figure, process::Process, worker::Worker,
};

/// Jobs.
const JOBS: u64 = 300;
/// The delay of the first job; the others are due one after the other.
const FIRST: Duration = Duration::from_secs(2);
const APART: Duration = Duration::from_millis(10);
/// The longest duration of the measurement.
const PATIENCE: Duration = Duration::from_mins(1);

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let place = plan.new_place()?;
    let server = Process::serve(&place).await?;
    let from = clock::now() + FIRST;
    let due = move |number: u64| from + APART * number as u32;
    let job = |number| {
        format!(
            r#"{{"type":"{JOB_TYPE}","data":{0},"run_at":"{1}"}}"#,
            due(number).millis(),
            due(number)
        )
    };
    let jobs: Vec<String> = (0..JOBS).map(job).collect();
    let meter = server.meter();
    let timers = tokio::spawn(async move {
        let mut late = Vec::new();
        for number in 0..JOBS {
            let at = Duration::from_millis(due(number).millis() as u64);
            tokio::time::sleep_until(
                tokio::time::Instant::now() + at.saturating_sub(clock::since_epoch()),
            )
            .await;
            late.push(clock::since_epoch().saturating_sub(at));
        }
        late
    });
    server.ask("POST", "/v1/jobs/batch", &format!(r#"{{"jobs":[{}]}}"#, jobs.join(","))).await?;
    let mut worker = Worker::open(server.address, 0, "default").await?;
    let mut late = Vec::new();
    let work = async {
        while late.len() < JOBS as usize {
            let leases = worker.lease(100, 20.0).await?;
            let now = clock::since_epoch();
            for lease in leases {
                let due = Duration::from_millis(lease.job.data.get().parse()?);
                late.push(now.checked_sub(due).context("a job started before its due time")?);
                worker.succeeded(&lease);
            }
        }
        worker.lease(0, 0.0).await
    };
    within(PATIENCE, work).await??;
    let others = meter.read().others_cores;
    let mut timers = timers.await?;
    server.stop().await?;
    let mut figure = |name, share| {
        let baseline = clock::percentile(&mut timers, share);
        Figure::cost(
            format!("lateness of {JOBS} delayed jobs: {name}"),
            "ms",
            clock::percentile(&mut late, share),
        )
        .baseline("timer", baseline)
        .among(others)
    };
    Ok(vec![figure("p50", 0.5), figure("p99", 0.99).reach(20.0)])
}
