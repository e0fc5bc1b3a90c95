//! The capacities that workers registered, which outlast a restart of an embedded server.
//!
//! Each is a record that is kept for a week after its registration. A restarted server also reads
//! the running jobs, because a worker may still run some.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Server;
use tidegate_core::{
    event::trigger::{digest, hex},
    port::{
        Write,
        job_store::{Record, RecordKind, RecordQuery},
    },
};
use tidegate_engine::Error;

/// How long a capacity is kept after its registration.
const RETENTION: Duration = Duration::from_hours(7 * 24);
/// Most capacities that are kept.
const MAX_CAPACITIES: u64 = 10_000;
/// Records that one read returns.
const PAGE_RECORDS: u32 = 1000;

/// The capacities of workers that registered before the start, by name.
#[derive(Default)]
pub(super) struct Capacities(Mutex<HashMap<String, u32>>);

impl Capacities {
    /// The capacity of a worker that has not called since the start.
    pub(super) fn of(&self, worker: &str) -> Option<u32> {
        self.0.lock().get(worker).copied()
    }
}

/// A record's content.
#[derive(Serialize, Deserialize)]
struct Registered {
    worker: String,
    capacity: u32,
}

impl Server {
    /// Stores what a worker has registered.
    pub(super) async fn keep_capacity(
        &self,
        worker: &str,
        capacity: Option<u32>,
    ) -> Result<(), Error> {
        if self.inner.is_serverless() {
            return Ok(());
        }
        let (kind, name) = (RecordKind::Worker, hex(&digest(&[worker])));
        let (now, store) = (self.now(), &self.inner.engine.ports().store);
        let write = match capacity {
            Some(capacity) => {
                let registered = Registered { worker: worker.to_owned(), capacity };
                let bytes = serde_json::to_vec(&registered)
                    .map_err(|error| Error::Internal(error.to_string()))?;
                Write::PutRecord(Record { kind, name, until: now + RETENTION, bytes })
            }
            None => Write::RemoveRecord { kind, name, until: None },
        };
        store.commit(vec![vec![write]]).await?;
        self.inner.capacities.0.lock().remove(worker);
        store.purge(kind, now, MAX_CAPACITIES, PAGE_RECORDS).await?;
        Ok(())
    }

    /// Reads the capacities from before the start, and the jobs that run.
    pub(super) async fn load_capacities(&self) -> Result<(), Error> {
        let store = &self.inner.engine.ports().store;
        let mut query = RecordQuery {
            kind: RecordKind::Worker,
            prefix: String::new(),
            after: None,
            limit: PAGE_RECORDS,
        };
        loop {
            let page = store.records(std::slice::from_ref(&query)).await?.pop().unwrap_or_default();
            let mut capacities = self.inner.capacities.0.lock();
            for record in &page {
                match serde_json::from_slice::<Registered>(&record.bytes) {
                    Ok(Registered { worker, capacity }) => {
                        capacities.insert(worker, capacity);
                    }
                    Err(error) => tracing::error!(%error, "a worker's capacity cannot be read"),
                }
            }
            query.after = page.last().map(|record| record.name.clone());
            if page.len() < PAGE_RECORDS as usize {
                break;
            }
        }
        if self.inner.capacities.0.lock().is_empty() {
            return Ok(());
        }
        self.inner.engine.load_running().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;
    use crate::runtime::testing::builder_on;
    use tidegate_core::job::{Job, Payload, type_config::TypeConfig};
    use tidegate_engine::{
        memory::{FakeClock, MemoryStore},
        request::{LeaseRequest, NewJob, Report, ReportOutcome},
        testkit::builders::name,
    };

    async fn leased(server: &Server) -> Vec<Job> {
        let request = LeaseRequest {
            queue: None,
            types: vec![name("work")],
            max: 5,
            wait: Duration::ZERO,
            worker: Some("w".into()),
            lease_seconds: None,
            reports: Vec::new(),
        };
        server.lease(request).await.unwrap().jobs
    }

    #[tokio::test]
    async fn a_capacity_outlives_a_restart_until_it_is_taken_back() {
        let (clock, store) = (Arc::new(FakeClock::default()), Arc::new(MemoryStore::new()));
        let objects = Arc::new(InMemory::new());
        let start = async || {
            builder_on(&clock, Arc::clone(&store) as _, Arc::clone(&objects) as _)
                .start()
                .await
                .unwrap()
        };
        let server = start().await;
        server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        server.register_worker("w", Some(2)).await.unwrap();
        for _ in 0..8 {
            server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap();
        }
        let run = leased(&server).await;
        assert_eq!(run.len(), 2);
        drop(server);
        let server = start().await;
        assert!(leased(&server).await.is_empty(), "it still runs two");
        let report = |job: &Job| Report {
            id: job.id.clone(),
            job_type: None,
            attempt: job.life.attempt,
            token: None,
            outcome: ReportOutcome::Succeeded { result: None },
        };
        let reported = server.report(run.iter().map(report).collect()).await;
        assert!(reported.iter().all(Result::is_ok), "{reported:?}");
        assert_eq!(leased(&server).await.len(), 2);
        server.register_worker("w", None).await.unwrap();
        assert_eq!(leased(&server).await.len(), 4, "it takes any number");
    }
}
