//! An outage of the store or the objects: results, retry decisions and bulk operations survive it.

use std::{
    fmt::{self, Display, Formatter},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory, path::Path,
};
use tidegate_backends::system::SystemEntropy;
use tidegate_core::{
    job::{Outcome, Payload, type_config::TypeConfig},
    port::{
        Target,
        job_store::{ListQuery, SharedStore, StateFilter},
        policy::NoPolicy,
        target::{Request, Response, TargetError},
    },
};
use tidegate_engine::{
    OBJECT_BYTES, Ports,
    memory::{FakeClock, MemoryStore, MemoryWorkQueue},
    request::{BulkKind, JobFilter, NewJob, Operation},
    testkit::{
        builders::name,
        faults::{Faults, FaultyStore},
    },
};
use tidegate_server::{
    Server,
    runtime::{Builder, Handled},
};

/// Object storage in memory with outages, in which every put and get fails.
#[derive(Debug, Default)]
pub struct Objects {
    inner: InMemory,
    away: AtomicBool,
    refused: AtomicUsize,
}

impl Objects {
    /// Starts or ends an outage.
    pub fn be_away(&self, away: bool) {
        self.away.store(away, Ordering::SeqCst);
    }

    /// Requests that failed.
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }

    fn be_there(&self) -> Result<()> {
        if self.away.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(object_store::Error::Generic { store: "test", source: "away".into() });
        }
        Ok(())
    }
}

impl Display for Objects {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("objects that may be away")
    }
}

#[async_trait]
impl ObjectStore for Objects {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.be_there()?;
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.be_there()?;
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// Answers 202 to every request, and counts them.
#[derive(Default)]
struct TakesForLater(AtomicUsize);

#[async_trait]
impl Target for TakesForLater {
    async fn call(&self, _: Request) -> Result<Response, TargetError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(Response { status: 202, headers: Vec::new(), body: bytes::Bytes::new() })
    }
}

/// The harness of a test. Time is simulated.
#[derive(Default)]
struct World {
    clock: Arc<FakeClock>,
    objects: Arc<Objects>,
    target: Arc<TakesForLater>,
}

impl World {
    fn server(&self, store: SharedStore) -> Builder {
        let ports = Ports {
            store,
            objects: Arc::clone(&self.objects) as _,
            work: Arc::new(MemoryWorkQueue::default()),
            clock: Arc::clone(&self.clock) as _,
            entropy: Arc::new(SystemEntropy),
            policy: Arc::new(NoPolicy),
        };
        Server::builder(ports, Arc::clone(&self.target) as _)
    }

    /// Moves the time on, a little at a time, until `good` answers.
    async fn until<T>(&self, what: &str, mut good: impl AsyncFnMut() -> Option<T>) -> T {
        for _ in 0..20_000 {
            if let Some(found) = good().await {
                return found;
            }
            self.clock.advance(Duration::from_millis(5));
            tokio::task::yield_now().await;
        }
        panic!("it never came to that: {what}")
    }
}

fn large() -> Payload {
    Payload::json(format!("\"{}\"", "x".repeat(OBJECT_BYTES)))
}

#[tokio::test]
async fn completion_callback_treats_202_as_delivered() {
    let world = World::default();
    let server = world.server(Arc::new(MemoryStore::new()));
    let server = server
        .handler(name("work"), 1, |_| Box::pin(async { Handled::Succeeded(None) }))
        .start()
        .await
        .unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let job = NewJob::new(name("work"), Payload::null()).with_options(|options| {
        options.callback_url = Some("http://127.0.0.1:9/callback".parse().unwrap());
    });
    server.enqueue(job).await.unwrap();
    let all =
        ListQuery { job_type: Some(name("tidegate.callback")), limit: 10, ..ListQuery::default() };
    let ended = async || {
        server
            .list(&all)
            .await
            .unwrap()
            .jobs
            .pop()
            .filter(|callback| callback.life.ended().is_some())
    };
    let callback = world.until("the callback has ended", ended).await;
    assert_eq!((callback.life.ended(), callback.life.attempt), (Some(Outcome::Succeeded), 1));
    world.clock.advance(Duration::from_hours(48));
    tokio::task::yield_now().await;
    assert_eq!(world.target.0.load(Ordering::SeqCst), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_result_waits_for_object_storage_without_a_second_run() {
    let world = World::default();
    world.objects.be_away(true);
    let server = world.server(Arc::new(MemoryStore::new()));
    let server = server
        .handler(name("work"), 1, |_| Box::pin(async { Handled::Succeeded(Some(large())) }))
        .start()
        .await
        .unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let job = server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap().job;
    world.until("it asked again", async || (world.objects.refused() > 2).then_some(())).await;
    assert!(server.job(&job.id, None).await.unwrap().life.running().is_some());
    world.objects.be_away(false);
    let ended = async || {
        Some(server.job(&job.id, None).await.unwrap()).filter(|job| job.life.ended().is_some())
    };
    let ended = world.until("it ends", ended).await;
    assert_eq!((ended.life.ended(), ended.life.attempt), (Some(Outcome::Succeeded), 1));
    assert_eq!(server.result(&job.id, None, Duration::ZERO).await.unwrap(), Some(Some(large())));
    server.stop().await;
}

/// More jobs than two pages of an operation.
const JOBS: usize = 450;

async fn filled(server: &Server) {
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let jobs = (0..JOBS).map(|_| NewJob::new(name("work"), Payload::null())).collect();
    assert!(server.enqueue_many(jobs).await.iter().all(Result::is_ok));
}

async fn cancel_all(server: &Server) -> Operation {
    let filter = JobFilter {
        job_type: Some(name("work")),
        queue: None,
        states: vec![StateFilter::Scheduled],
        attributes: tidegate_core::job::Attributes::default(),
        from: None,
        to: None,
    };
    server.bulk(BulkKind::Cancel, filter, None).await.unwrap()
}

async fn cancelled(server: &Server) -> u64 {
    let depth = server.engine().ports().store.depth().await.unwrap();
    depth
        .iter()
        .filter(|depth| depth.state == StateFilter::Ended(Outcome::Cancelled))
        .map(|depth| depth.jobs)
        .sum()
}

fn faulty() -> Arc<FaultyStore> {
    Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), 1).with_flight(Duration::ZERO))
}

#[tokio::test]
async fn a_bulk_operation_survives_a_store_outage() {
    let (world, store) = (World::default(), faulty());
    let server = world.server(Arc::clone(&store) as _).start().await.unwrap();
    filled(&server).await;
    let operation = cancel_all(&server).await;
    for most in [50, 250] {
        world
            .until("it is under way", async || (cancelled(&server).await >= most).then_some(()))
            .await;
        let failed = store.failed();
        store.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
        world.until("it waits", async || (store.failed() > failed + 2).then_some(())).await;
        store.set_faults(Faults::default());
    }
    let over = async || {
        Some(server.operation(&operation.id).await.unwrap())
            .filter(|operation| operation.ended_at.is_some())
    };
    let over = world.until("it is over", over).await;
    let jobs = JOBS as u64;
    assert_eq!(
        (over.state.as_str(), over.matched, over.done, over.refused, over.error),
        ("done", jobs, jobs, 0, None)
    );
    assert_eq!(cancelled(&server).await, jobs);
    server.stop().await;
}

#[tokio::test]
async fn a_bulk_operation_resumes_at_its_page_after_a_crash() {
    let (world, store) = (World::default(), faulty());
    let server = world.server(Arc::clone(&store) as _).start().await.unwrap();
    filled(&server).await;
    let operation = cancel_all(&server).await;
    world
        .until("it is past its first page", async || {
            (cancelled(&server).await >= 250).then_some(())
        })
        .await;
    // The process dies.
    store.crash_after(0);
    let next = world.server(Arc::clone(store.inner())).start().await.unwrap();
    let before = next.operation(&operation.id).await.unwrap();
    assert_eq!((before.matched, before.done), (200, 200), "its first page");
    let over = async || {
        Some(next.operation(&operation.id).await.unwrap())
            .filter(|operation| operation.ended_at.is_some())
    };
    let over = world.until("it is over", over).await;
    // The jobs of its second page that were cancelled already are not found again.
    assert!(
        over.state == "done" && (300..JOBS as u64).contains(&over.done) && over.refused == 0,
        "{over:?}"
    );
    assert_eq!(cancelled(&next).await, JOBS as u64);
    next.stop().await;
}
