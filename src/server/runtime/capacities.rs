//! The capacities that workers registered, which outlast a restart of an embedded server.
//!
//! Each is a record that is kept for a week after the worker was last heard.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Server;
use tidegate_core::{
    event::trigger::{digest, hex},
    port::{
        Write,
        job_store::{Record, RecordKind, RecordQuery, StoreError},
    },
};
use tidegate_engine::Error;

/// How long a capacity is kept after the worker was last heard, give or take a day.
const RETENTION: Duration = Duration::from_hours(7 * 24);
/// Most capacities that are kept.
const MAX_CAPACITIES: u64 = 10_000;
/// Records that one read returns.
const PAGE_RECORDS: u32 = 1000;

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
        if let Err(error) = store.purge(kind, now, MAX_CAPACITIES, PAGE_RECORDS).await {
            tracing::warn!(%error, "old capacities of workers were not removed");
        }
        Ok(())
    }

    /// Reads the capacities from before the start. Those that are damaged are left out: their
    /// workers register them again.
    pub(super) async fn load_capacities(&self) -> Result<(), Error> {
        let store = &self.inner.engine.ports().store;
        let mut query = RecordQuery {
            kind: RecordKind::Worker,
            prefix: String::new(),
            after: None,
            limit: PAGE_RECORDS,
        };
        loop {
            let page = match store.records(std::slice::from_ref(&query)).await {
                Err(error @ StoreError::Corrupt(_)) => {
                    tracing::error!(error = %error.chain(), "capacities of workers cannot be read");
                    return Ok(());
                }
                pages => pages?.pop().unwrap_or_default(),
            };
            self.inner.workers.restore(page.iter().filter_map(|record| {
                serde_json::from_slice::<Registered>(&record.bytes)
                    .inspect_err(
                        |error| tracing::error!(%error, "a worker's capacity cannot be read"),
                    )
                    .map(|Registered { worker, capacity }| (worker, capacity))
                    .ok()
            }));
            query.after = page.last().map(|record| record.name.clone());
            if page.len() < PAGE_RECORDS as usize {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;
    use crate::runtime::testing::builder_on;
    use tidegate_core::{
        job::{Job, Payload, type_config::TypeConfig},
        port::{Clock as _, Committed, JobStore, StoreLayer, store_layer::Operation},
    };
    use tidegate_engine::{
        memory::{FakeClock, MemoryStore},
        request::{LeaseRequest, NewJob, Report, ReportOutcome},
        testkit::builders::name,
    };

    /// What outlives a server's process.
    #[derive(Default)]
    struct Machine {
        clock: Arc<FakeClock>,
        store: Arc<MemoryStore>,
        objects: Arc<InMemory>,
    }

    impl Machine {
        async fn start(&self) -> Server {
            let Self { clock, store, objects } = self;
            let builder = builder_on(clock, Arc::clone(store) as _, Arc::clone(objects) as _);
            builder.start().await.unwrap()
        }
    }

    async fn leased(server: &Server) -> Vec<Job> {
        let request = LeaseRequest {
            queue: None,
            types: vec![name("work")],
            max: 5,
            wait: Duration::ZERO,
            max_pause: Duration::ZERO,
            worker: Some("w".into()),
            lease_seconds: None,
            reports: Vec::new(),
        };
        server.lease(request).await.unwrap().jobs
    }

    #[tokio::test]
    async fn a_capacity_outlives_a_restart_until_it_is_taken_back() {
        let machine = Machine::default();
        let server = machine.start().await;
        server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        server.register_worker("w", Some(2)).await.unwrap();
        let enqueue = || server.enqueue(NewJob::new(name("work"), Payload::null()));
        for _ in 0..7 {
            enqueue().await.unwrap();
        }
        let waiting = enqueue().await.unwrap().job.id;
        let run = leased(&server).await;
        assert_eq!(run.len(), 2);
        drop(server);
        let server = machine.start().await;
        assert!(leased(&server).await.is_empty(), "it still runs two");
        let explained = server.explain(&waiting, None).await.unwrap();
        assert_eq!(explained.workers.and_then(|workers| workers.capacity), Some(2));
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

    #[tokio::test]
    async fn a_damaged_capacity_is_left_out_alone() {
        let machine = Machine::default();
        let server = machine.start().await;
        server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        server.register_worker("w", Some(2)).await.unwrap();
        for _ in 0..5 {
            server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap();
        }
        drop(server);
        let kind = RecordKind::Worker;
        let until = machine.clock.now() + RETENTION;
        let damaged = [&b"{"[..], b"{\"worker\": \"v\"}", b"{\"worker\": \"u\", \"capacity\": -1}"];
        for (n, bytes) in damaged.into_iter().enumerate() {
            let record = Record { kind, name: n.to_string(), until, bytes: bytes.to_vec() };
            let write = vec![vec![Write::PutRecord(record)]];
            assert!(matches!(machine.store.commit(write).await.unwrap()[0], Committed::All));
        }
        let server = machine.start().await;
        assert_eq!(leased(&server).await.len(), 2, "of the worker whose record is whole");
    }

    /// A store whose records cannot be read.
    struct NoRecords(Arc<MemoryStore>);

    impl StoreLayer for NoRecords {
        fn inner(&self) -> &dyn JobStore {
            &*self.0
        }

        async fn around<T: Send>(
            &self,
            operation: Operation,
            call: impl Future<Output = Result<T, StoreError>> + Send,
        ) -> Result<T, StoreError> {
            match operation {
                Operation::Records => Err(StoreError::corrupt("a page of the file is damaged")),
                _ => call.await,
            }
        }
    }

    #[tokio::test]
    async fn a_server_starts_without_capacities_that_cannot_be_read() {
        let machine = Machine::default();
        let server = machine.start().await;
        server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        server.register_worker("w", Some(2)).await.unwrap();
        for _ in 0..5 {
            server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap();
        }
        drop(server);
        let store = Arc::new(NoRecords(Arc::clone(&machine.store)));
        let builder = builder_on(&machine.clock, store, Arc::clone(&machine.objects) as _);
        let server = builder.start().await.unwrap();
        assert_eq!(leased(&server).await.len(), 5, "its worker registers again");
    }

    #[tokio::test]
    async fn a_worker_that_calls_keeps_its_capacity_past_a_week() {
        let machine = Machine::default();
        let server = machine.start().await;
        server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
        server.register_worker("w", Some(2)).await.unwrap();
        for _ in 0..8 {
            machine.clock.advance(Duration::from_hours(24));
            assert!(leased(&server).await.is_empty());
        }
        // Any registration removes what is too old.
        server.register_worker("other", Some(1)).await.unwrap();
        drop(server);
        let server = machine.start().await;
        for _ in 0..8 {
            server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap();
        }
        assert_eq!(leased(&server).await.len(), 2);
    }
}
