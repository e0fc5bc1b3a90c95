//! Pushes that were under way when the server stopped.
//!
//! Their workers may still work, or call back. So each keeps its slot until its lease ends, which is
//! its response timeout after its start, and is retried then. A type that accepts a second call
//! before that sets `retry_after_restart`.

use std::collections::BTreeMap;

use crate::runtime::{Server, deliver};
use tidegate_core::{
    job::{JobId, QueueName, TypeName},
    port::job_store::StateFilter,
    time::Timestamp,
};
use tidegate_engine::{Error, request::Report};

/// How many running jobs one read returns, and one commit reports.
const PAGE_JOBS: u32 = 1000;

/// The unanswered pushes of one type.
#[derive(Default)]
struct Unanswered {
    pushes: u64,
    /// When the last of their slots is free.
    until: Timestamp,
    retried: u64,
}

/// Logs until when the pushes that were under way keep their slots, and ends those whose types
/// retry them after a restart.
pub(in crate::runtime) async fn resume_pushes(server: &Server) -> Result<(), Error> {
    let depths = server.engine().ports().store.depth().await?.into_iter();
    let mut queues: Vec<QueueName> = depths
        .filter(|depth| depth.state == StateFilter::Running && depth.jobs > 0)
        .map(|depth| depth.queue)
        .collect();
    queues.sort_unstable();
    queues.dedup();
    for queue in queues {
        for (job_type, found) in resume_queue(server, &queue).await? {
            tracing::warn!(
                %queue,
                %job_type,
                pushes = found.pushes,
                retried = found.retried,
                until = %found.until,
                "pushes were under way when the server stopped: those that are not retried keep \
                 their slots until then, because their workers may still work or call back"
            );
        }
    }
    Ok(())
}

async fn resume_queue(
    server: &Server,
    queue: &QueueName,
) -> Result<BTreeMap<TypeName, Unanswered>, Error> {
    let engine = server.engine();
    let catalog = engine.catalog().await?;
    let mut types: BTreeMap<TypeName, Unanswered> = BTreeMap::new();
    let mut after: Option<JobId> = None;
    loop {
        let page = engine.ports().store.running(queue, after.as_ref(), PAGE_JOBS).await?;
        let mut reports: Vec<Report> = Vec::new();
        for job in page.iter().flatten() {
            let Some(until) = engine.unanswered_until(&catalog, job) else {
                continue;
            };
            let found = types.entry(job.spec.job_type.clone()).or_default();
            found.pushes += 1;
            let item = catalog.types.get(&job.spec.job_type);
            if item.is_some_and(|item| item.config.retry_after_restart) {
                found.retried += 1;
                reports.push(deliver::connection_lost(job, "the server stopped during the call"));
            } else {
                found.until = found.until.max(until);
            }
        }
        for answer in server.report(reports).await {
            // It is retried when its lease ends.
            if let Err(error) = answer {
                tracing::warn!(%queue, %error, "a push was not retried at the start");
            }
        }
        after = page.iter().flatten().next_back().map(|job| job.id.clone());
        if page.len() < PAGE_JOBS as usize || after.is_none() {
            return Ok(types);
        }
    }
}
