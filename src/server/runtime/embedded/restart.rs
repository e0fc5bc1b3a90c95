//! Pushes that were under way when the server stopped.
//!
//! Their workers may still work, or call back. So each keeps its slot until its lease ends, which
//! is its response timeout after its start, and is retried then. A type that accepts a second call
//! before that sets `retry_after_restart`.

use std::collections::{BTreeMap, BTreeSet};

use crate::runtime::{Server, deliver};
use tidegate_core::{
    job::{JobId, QueueName, TypeName},
    port::job_store::{StateFilter, last_id},
    time::Timestamp,
};
use tidegate_engine::{Error, request::Report};

/// How many running jobs one read returns, and one commit reports.
const PAGE_JOBS: u32 = 1000;

/// The pushes that were under way when the server stopped.
#[derive(Default)]
pub(in crate::runtime) struct CutPushes {
    types: BTreeMap<(QueueName, TypeName), CutCounts>,
    /// The ends of those whose types retry them after a restart.
    ends: Vec<Report>,
}

/// The cut pushes of one type in one queue.
#[derive(Default)]
struct CutCounts {
    pushes: u64,
    retried: u64,
    /// When the last of the slots is free that are kept.
    until: Option<Timestamp>,
}

impl CutPushes {
    /// Finds them, before any queue is ticked.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(in crate::runtime) async fn find(server: &Server) -> Result<Self, Error> {
        let depths = server.engine().ports().store.depth(None).await?.counts.into_iter();
        let queues: BTreeSet<QueueName> = depths
            .filter(|depth| depth.state == StateFilter::Running && depth.jobs > 0)
            .map(|depth| depth.queue)
            .collect();
        let mut cut = Self::default();
        for queue in queues {
            cut.find_in(server, &queue).await?;
        }
        Ok(cut)
    }

    async fn find_in(&mut self, server: &Server, queue: &QueueName) -> Result<(), Error> {
        let engine = server.engine();
        let catalog = engine.catalog().await?;
        let mut after: Option<JobId> = None;
        loop {
            let page = engine.ports().store.running(queue, after.as_ref(), PAGE_JOBS).await?;
            for job in page.iter().flatten() {
                let Some(until) = engine.unanswered_until(&catalog, job) else {
                    continue;
                };
                let key = (queue.clone(), job.spec.job_type.clone());
                let found = self.types.entry(key).or_default();
                found.pushes += 1;
                let item = catalog.types.get(&job.spec.job_type);
                if item.is_some_and(|item| item.config.retry_after_restart) {
                    found.retried += 1;
                    let why = "the server stopped during the call";
                    self.ends.push(deliver::connection_lost(job, why));
                } else {
                    found.until = found.until.max(Some(until));
                }
            }
            after = last_id(&page);
            if page.len() < PAGE_JOBS as usize || after.is_none() {
                return Ok(());
            }
        }
    }

    /// Lets the queues be ticked, and ends those whose types retry them after a restart. From then
    /// on a new push looks like one that a crash has cut. Logs until when the others keep their
    /// slots.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(in crate::runtime) async fn resume(self, server: &Server) -> Result<(), Error> {
        server.wake_all().await?;
        for ((queue, job_type), found) in self.types {
            tracing::warn!(
                %queue,
                %job_type,
                pushes = found.pushes,
                retried = found.retried,
                until = found.until.map(tracing::field::display),
                "pushes were under way when the server stopped: those that are not retried keep \
                 their slots until then, because their workers may still work or call back"
            );
        }
        let mut ends = self.ends.into_iter().peekable();
        while ends.peek().is_some() {
            for answer in server.report(ends.by_ref().take(PAGE_JOBS as usize).collect()).await {
                // It is retried when its lease ends.
                if let Err(error) = answer {
                    tracing::warn!(%error, "a push was not retried at the start");
                }
            }
        }
        Ok(())
    }
}
