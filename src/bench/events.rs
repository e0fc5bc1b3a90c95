//! `events`: CloudEvents in batches of a thousand that a trigger turns into jobs. The baseline
//! enqueues jobs in batches of a thousand. Both run in the process, one batch after the other.

use bytes::Bytes;

use super::{
    BenchPlan, DATA, JOB_TYPE, clock,
    embedded::{accepting, job},
    figure::Figure,
    meter::Meter,
};
use tidegate_core::event::read;
use tidegate_server::runtime::Server;

/// Events, or jobs, of one batch.
const BATCH: u64 = 1000;
/// The attributes of each event, except for its id.
const ATTRIBUTES: &str = r#""specversion":"1.0","source":"/bench","type":"order.paid""#;
/// The goal in events per second; or half the rate of enqueues, if that is less.
const GOAL: f64 = 10_000.0;

/// Takes the measurement.
pub(super) async fn measure(plan: &BenchPlan) -> anyhow::Result<Vec<Figure>> {
    let place = plan.new_place()?;
    let server = accepting(&place).await?;
    let rule = serde_json::json!({
        "filter": {"type": {"prefix": "order."}, "data": {"/currency": "EUR"}},
        "enqueue": {
            "type": JOB_TYPE, "priority": {"$expr": "length(data.items)"},
            "attributes": {"customer": {"$expr": "data.customer"}},
        },
    });
    server.put_trigger(&"bench".parse()?, serde_json::from_value(rule)?, None).await?;
    let enqueues = enqueue(&server, plan).await?;
    let meter = Meter::embedded(&place);
    let (events, rate) = ingest(&server, plan).await?;
    let spent = meter.read();
    server.stop().await;
    Ok(vec![
        Figure::rate(
            format!("events, batches of {BATCH}, a trigger enqueues each"),
            "events/s",
            rate,
        )
        .reach(GOAL.min(enqueues / 2.0))
        .baseline("enqueues", enqueues)
        .among(spent.others_cores),
        Figure::cost("events: processor per event", "us", spent.micros_per(events))
            .among(spent.others_cores),
    ])
}

/// Returns the enqueued jobs per second.
async fn enqueue(server: &Server, plan: &BenchPlan) -> anyhow::Result<f64> {
    let start = clock::instant();
    let mut done = 0;
    while start.elapsed() < plan.window {
        for answer in server.enqueue_many((0..BATCH).map(|_| job()).collect()).await {
            answer?;
        }
        done += BATCH;
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

/// Returns the number of ingested events and the events per second. Each is parsed and becomes a
/// job.
async fn ingest(server: &Server, plan: &BenchPlan) -> anyhow::Result<(u64, f64)> {
    let start = clock::instant();
    let mut done = 0;
    while start.elapsed() < plan.window {
        let events: Vec<String> = (done..done + BATCH)
            .map(|n| format!(r#"{{{ATTRIBUTES},"id":"{n}","data":{DATA}}}"#))
            .collect();
        let batch = read::batch(&Bytes::from(format!("[{}]", events.join(","))))
            .map_err(|fault| anyhow::anyhow!("{fault}"))?;
        let batch = batch
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
            .map_err(|fault| anyhow::anyhow!("{fault}"))?;
        for answer in server.ingest(&batch).await {
            anyhow::ensure!(
                answer?.outcomes.iter().map(|applied| applied.action.word()).eq(["enqueued"]),
                "an event was not enqueued"
            );
        }
        done += BATCH;
    }
    Ok((done, done as f64 / start.elapsed().as_secs_f64()))
}
