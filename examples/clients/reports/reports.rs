//! 500 reports of one run, and one summary when all of them have ended: `reports RUN` enqueues,
//! `reports` works until SIGTERM. `reports.ts` says how the last report is noticed.

use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{collections::BTreeMap, env};
use tidegate_client::{Attempt, BoxError, Client, Handler, JobType, Worker};
#[derive(Serialize, Deserialize)]
pub(crate) struct Report {
    run: String,
    customer: u32,
}
const REPORT: JobType<Report> = JobType::new("report");
pub(crate) const SUMMARY: JobType<String> = JobType::new("summary");
pub(crate) fn reports(client: &Client) -> Result<Worker, BoxError> {
    let mut worker = Worker::new(client.clone());
    let run = json!({ "$expr": "data.attributes.run" });
    let job =
        json!({ "type": "check", "data": run, "unique": { "key": run, "while": "scheduled" } });
    worker.config.trigger("report-ended", json!({ "job_types": ["report"], "enqueue": job }))?;
    let handler = Handler::new(REPORT.name(), render).concurrency(20);
    worker.handle(handler.config(json!({ "attributes": { "run": "/run" } })))?;
    let (checks, sums) = (client.clone(), client.clone());
    worker.handle(Handler::new("check", move |run, _| check(checks.clone(), run)))?;
    worker.handle(Handler::new(SUMMARY.name(), move |run, _| sum_up(sums.clone(), run)))?;
    Ok(worker)
}
async fn render(report: Report, job: Attempt) -> Result<u32, BoxError> {
    job.progress(50.0, &format!("customer {}", report.customer));
    Ok(1 + report.customer % 7)
}
async fn check(client: Client, run: String) -> Result<(), BoxError> {
    let left = [("type", "report"), ("attribute[run]", &run), ("state", "scheduled,running")];
    if client.jobs(left).next().await?.is_none() {
        SUMMARY.enqueue(&client, &run).id(&run).await?;
    }
    Ok(())
}
async fn sum_up(client: Client, run: String) -> Result<BTreeMap<String, u32>, BoxError> {
    let mut states = BTreeMap::new();
    for job in client.jobs([("type", "report"), ("attribute[run]", &run)]).all().await? {
        *states.entry(job.state().to_owned()).or_default() += 1;
    }
    Ok(states) // send it to the people who wait for it
}
pub(crate) async fn start(client: &Client, run: &str) -> Result<(), BoxError> {
    let report = |customer| Report { run: run.to_owned(), customer };
    let job = |customer| REPORT.job(&report(customer)).id(format!("{run}:{customer}"));
    let jobs = client.enqueue_many((0..500).map(job), None).await?; // again: no second report
    jobs.into_iter().try_for_each(|job| job.map(drop).map_err(Into::into))
}
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let client = Client::from_env()?;
    let worker = reports(&client)?;
    worker.apply().await?;
    let Some(run) = env::args().nth(1) else { return Ok(worker.run().await?) };
    start(&client, &run).await
}
