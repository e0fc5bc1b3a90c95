//! What pull workers registered, as stored records.
//!
//! An embedded server stores capacities, which outlast its restart for a week after the worker was
//! last heard. If processes share the store, each registration is stored for ten minutes: they share
//! no memory, and count the workers of a queue by these records.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    Server,
    workers::{WORKER_EXPIRY, Workers},
};
use tidegate_core::{
    event::trigger::{digest, hex},
    job::{QueueName, TypeName},
    port::{
        Write,
        job_store::{Record, RecordKind, RecordQuery, StoreError},
    },
};
use tidegate_engine::{Error, request::Registration};

/// How long a capacity is kept after the worker was last heard, give or take a day.
const RETENTION: Duration = Duration::from_hours(7 * 24);
/// Most registrations that are kept, and that are read.
const MAX_REGISTRATIONS: u64 = 10_000;
/// Most records that are read for them.
const MAX_RECORDS: usize = 10 * MAX_REGISTRATIONS as usize;
/// How old the registrations may be that are counted.
const MAX_STORED_AGE: Duration = Duration::from_secs(5);
/// Records that one read returns.
const PAGE_RECORDS: u32 = 1000;

/// A record's content.
#[derive(Serialize, Deserialize)]
struct Registered {
    worker: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capacity: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queue: Option<QueueName>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    types: Vec<TypeName>,
}

impl Registered {
    fn read(record: &Record) -> Option<Self> {
        serde_json::from_slice(&record.bytes)
            .inspect_err(|error| tracing::error!(%error, "a worker's registration cannot be read"))
            .ok()
    }
}

fn record_name(worker: &str) -> String {
    hex(&digest(&[worker]))
}

impl Server {
    /// Stores what a worker has registered: an embedded server only the capacity.
    pub(super) async fn keep_registration(
        &self,
        worker: &str,
        registration: &Registration,
    ) -> Result<(), Error> {
        let is_shared = self.inner.shares_store();
        let Registration { capacity, queue, types } = match registration {
            whole if is_shared => whole.clone(),
            // An embedded server learns the rest from lease requests.
            Registration { capacity: Some(capacity), .. } => Registration::of_capacity(*capacity),
            _ => return self.remove_registration(worker).await,
        };
        let registered = Registered { worker: worker.to_owned(), capacity, queue, types };
        let bytes =
            serde_json::to_vec(&registered).map_err(|error| Error::Internal(error.to_string()))?;
        let (kind, now) = (RecordKind::Worker, self.now());
        let until = now + if is_shared { WORKER_EXPIRY } else { RETENTION };
        let record = Record { kind, name: record_name(worker), until, bytes };
        let store = &self.inner.engine.ports().store;
        store.commit(vec![vec![Write::PutRecord(record)]]).await?;
        *self.inner.stored_workers.lock() = None;
        // The table of a serverless deployment expires them.
        if !self.inner.is_serverless()
            && let Err(error) = store.purge(kind, now, MAX_REGISTRATIONS, PAGE_RECORDS).await
        {
            tracing::warn!(%error, "old registrations of workers were not removed");
        }
        Ok(())
    }

    /// Removes what is stored of a worker.
    pub(super) async fn remove_registration(&self, worker: &str) -> Result<(), Error> {
        let (kind, name) = (RecordKind::Worker, record_name(worker));
        let write = Write::RemoveRecord { kind, name, until: None };
        self.inner.engine.ports().store.commit(vec![vec![write]]).await?;
        *self.inner.stored_workers.lock() = None;
        Ok(())
    }

    /// Reads the capacities from before the start. Those that are damaged are left out: their
    /// workers register them again.
    pub(super) async fn load_capacities(&self) -> Result<(), Error> {
        let registered = match self.registered("").await {
            Err(error @ StoreError::Corrupt(_)) => {
                tracing::error!(error = %error.chain(), "capacities of workers cannot be read");
                return Ok(());
            }
            registered => registered?,
        };
        let capacities = registered.iter().filter_map(Registered::read);
        self.inner.workers.restore(
            capacities.filter_map(|Registered { worker, capacity, .. }| Some((worker, capacity?))),
        );
        Ok(())
    }

    /// The workers that registered in the last ten minutes, as stored by processes that share the store a
    /// few seconds ago or later. Every worker asks for their number every few seconds.
    pub(super) async fn stored_workers(&self) -> Result<Arc<Workers>, Error> {
        let now = self.now();
        if let Some((at, workers)) = &*self.inner.stored_workers.lock()
            && *at <= now
            && now.since(*at) < MAX_STORED_AGE
        {
            return Ok(Arc::clone(workers));
        }
        let workers = Arc::new(self.workers_of(&self.registered("").await?));
        *self.inner.stored_workers.lock() = Some((now, Arc::clone(&workers)));
        Ok(workers)
    }

    /// The worker of this name, if it registered in the last ten minutes.
    pub(super) async fn stored_worker(&self, name: &str) -> Result<Workers, Error> {
        Ok(self.workers_of(&self.registered(&record_name(name)).await?))
    }

    fn workers_of(&self, registered: &[Record]) -> Workers {
        let now = self.now();
        let current = registered.iter().filter(|record| record.until > now).filter_map(|record| {
            let Registered { worker, capacity, queue, types } = Registered::read(record)?;
            let seen_at = record.until - WORKER_EXPIRY;
            Some((worker, Registration { capacity, queue, types }, seen_at))
        });
        Workers::of_registrations(current)
    }

    /// The records of registrations whose names begin with `prefix`, at most
    /// [`MAX_REGISTRATIONS`] that have not expired. The table may drop the others days later.
    async fn registered(&self, prefix: &str) -> Result<Vec<Record>, StoreError> {
        let (kind, prefix, now) = (RecordKind::Worker, prefix.to_owned(), self.now());
        let mut query = RecordQuery { kind, prefix, after: None, limit: PAGE_RECORDS };
        let (mut registered, mut read) = (Vec::new(), 0);
        loop {
            let store = &self.inner.engine.ports().store;
            let page = store.records(std::slice::from_ref(&query)).await?.pop().unwrap_or_default();
            // A page without the records that cannot be read may be short.
            let Some(last) = page.last() else { return Ok(registered) };
            query.after = Some(last.name.clone());
            read += page.len();
            registered.extend(page.into_iter().filter(|record| record.until > now));
            if registered.len() >= MAX_REGISTRATIONS as usize || read >= MAX_RECORDS {
                return Ok(registered);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;
    use crate::runtime::testing::builder_on;
    use tidegate_core::{
        job::{Job, JobId, Payload, type_config::TypeConfig},
        port::{Clock as _, Committed, JobStore, StoreLayer, store_layer::Operation},
        queue::QueueConfig,
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

        /// A server with the worker `w` of capacity 2, and with jobs of type `work`.
        async fn with_jobs(&self, jobs: usize) -> Server {
            let server = self.start().await;
            server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
            server.register_worker("w", Registration::of_capacity(2)).await.unwrap();
            enqueue(&server, jobs).await;
            server
        }
    }

    /// Enqueues jobs of type `work`. Returns the last one's id.
    async fn enqueue(server: &Server, jobs: usize) -> Option<JobId> {
        let mut last = None;
        for _ in 0..jobs {
            let new = NewJob::new(name("work"), Payload::null());
            last = Some(server.enqueue(new).await.unwrap().job.id);
        }
        last
    }

    async fn leased(server: &Server) -> Vec<Job> {
        let request = LeaseRequest {
            min: 0,
            queue: None,
            types: vec![name("work")],
            max: 5,
            wait: Duration::ZERO,
            max_pause: Duration::ZERO,
            call: None,
            worker: Some("w".into()),
            lease_seconds: None,
            reports: Vec::new(),
        };
        server.lease(request).await.unwrap().jobs
    }

    #[tokio::test]
    async fn processes_without_shared_memory_count_their_workers_together() {
        let machine = Machine::default();
        let Machine { clock, store, objects } = &machine;
        let process = async || {
            let builder = builder_on(clock, Arc::clone(store) as _, Arc::clone(objects) as _);
            builder.serverless().start().await.unwrap()
        };
        let (one, other) = (process().await, process().await);
        one.put_queue(&name("mail"), QueueConfig::default(), None).await.unwrap();
        for (job_type, queue) in [("letter", "mail"), ("work", "default")] {
            let config = TypeConfig { queue: name(queue), ..TypeConfig::default() };
            one.put_type(&name(job_type), config, None).await.unwrap();
        }
        let of = |queue: Option<&str>, types: &[&str]| Registration {
            queue: queue.map(name),
            types: types.iter().map(|of| name(of)).collect(),
            ..Registration::of_capacity(2)
        };
        one.register_worker("a", of(None, &["letter"])).await.unwrap();
        one.register_worker("b", of(Some("mail"), &[])).await.unwrap();
        one.register_worker("c", of(None, &["work"])).await.unwrap();
        one.register_worker("d", of(None, &[])).await.unwrap();
        let counted = async |server: &Server| {
            (
                server.queue_status(&name("mail")).await.unwrap().workers,
                server.queue_status(&name("default")).await.unwrap().workers,
            )
        };
        for server in [&one, &other] {
            assert_eq!(counted(server).await, (2, 1));
            let listed = server.workers().await.unwrap().into_iter();
            assert_eq!(listed.map(|worker| worker.name).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        }
        other.forget_worker("a", true).await.unwrap();
        assert!(one.forget_worker("a", true).await.is_err(), "it is gone");
        other.drain_worker("c", true).await.unwrap();
        clock.advance(MAX_STORED_AGE);
        assert_eq!(counted(&one).await, (1, 0), "one left, one is drained");
        clock.advance(Duration::from_secs(54));
        one.register_worker("a", of(None, &["letter"])).await.unwrap();
        clock.advance(Duration::from_secs(1));
        assert_eq!(counted(&other).await, (1, 0), "without those that are silent for a minute");
        clock.advance(Duration::from_mins(10));
        assert_eq!(other.workers().await.unwrap().len(), 1, "the drained one");
    }

    #[tokio::test]
    async fn a_worker_that_registers_again_keeps_its_capacity_past_a_week() {
        let machine = Machine::default();
        let server = machine.start().await;
        for _ in 0..16 {
            server.register_worker("w", Registration::of_capacity(2)).await.unwrap();
            machine.clock.advance(Duration::from_hours(12));
        }
        server.register_worker("other", Registration::of_capacity(1)).await.unwrap();
        drop(server);
        let server = machine.start().await;
        assert_eq!(server.inner.workers.capacity("w"), Some(2));
    }

    #[tokio::test]
    async fn a_capacity_outlives_a_restart_until_it_is_taken_back() {
        let machine = Machine::default();
        let server = machine.with_jobs(7).await;
        let waiting = enqueue(&server, 1).await.unwrap();
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
            checkpoint: None,
        };
        let reported = server.report(run.iter().map(report).collect()).await;
        assert!(reported.iter().all(Result::is_ok), "{reported:?}");
        assert_eq!(leased(&server).await.len(), 2);
        server.register_worker("w", Registration::default()).await.unwrap();
        assert_eq!(leased(&server).await.len(), 4, "it takes any number");
    }

    #[tokio::test]
    async fn a_damaged_capacity_is_left_out_alone() {
        let machine = Machine::default();
        drop(machine.with_jobs(5).await);
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
        drop(machine.with_jobs(5).await);
        let store = Arc::new(NoRecords(Arc::clone(&machine.store)));
        let builder = builder_on(&machine.clock, store, Arc::clone(&machine.objects) as _);
        let server = builder.start().await.unwrap();
        assert_eq!(leased(&server).await.len(), 5, "its worker registers again");
    }

    #[tokio::test]
    async fn a_worker_that_calls_keeps_its_capacity_past_a_week() {
        let machine = Machine::default();
        let server = machine.with_jobs(0).await;
        for _ in 0..8 {
            machine.clock.advance(Duration::from_hours(24));
            assert!(leased(&server).await.is_empty());
        }
        // Any registration removes what is too old.
        server.register_worker("other", Registration::of_capacity(1)).await.unwrap();
        drop(server);
        let server = machine.start().await;
        enqueue(&server, 8).await;
        assert_eq!(leased(&server).await.len(), 2);
    }
}
