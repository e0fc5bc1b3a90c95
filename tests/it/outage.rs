//! An outage of the store or the objects: results, retry decisions and bulk operations survive it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tidegate_backends::system::SystemEntropy;
use tidegate_core::{
    job::{
        Outcome, Payload,
        lifecycle::Reason,
        type_config::{Start, TypeConfig},
    },
    port::{
        Target,
        job_store::{JobFilter, ListQuery, SharedStore, StateFilter},
        policy::NoPolicy,
        target::{Request, Response, TargetError},
    },
    target::{Push, TargetConfig},
    time::Seconds,
};
use tidegate_engine::{
    OBJECT_BYTES, Ports,
    memory::{FakeClock, MemoryStore, MemoryWorkQueue},
    request::{BulkChange, BulkPatch, BulkRequest, NewJob, Operation},
    testkit::{
        builders::name,
        faults::{Faults, FaultyStore},
        objects::{FaultyObjects, ObjectRequest},
    },
};
use tidegate_server::{
    Server,
    runtime::{Builder, Handled},
};

/// The requests that fail in an outage of the object storage.
pub const OUTAGE: [ObjectRequest; 2] = [ObjectRequest::Put, ObjectRequest::Get];

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

/// Answers every request with a result that is stored as an object.
struct AnswersAtLength;

#[async_trait]
impl Target for AnswersAtLength {
    async fn call(&self, _: Request) -> Result<Response, TargetError> {
        let headers = vec![("content-type".into(), "application/json".into())];
        Ok(Response { status: 200, headers, body: large().bytes })
    }
}

/// Answers 202, after which its store is unavailable.
struct TakesBeforeAnOutage(Arc<FaultyStore>);

#[async_trait]
impl Target for TakesBeforeAnOutage {
    async fn call(&self, _: Request) -> Result<Response, TargetError> {
        self.0.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
        Ok(Response { status: 202, headers: Vec::new(), body: bytes::Bytes::new() })
    }
}

/// The harness of a test. Time is simulated.
#[derive(Default)]
struct World {
    clock: Arc<FakeClock>,
    objects: Arc<FaultyObjects>,
    target: Arc<TakesForLater>,
}

impl World {
    fn server(&self, store: SharedStore) -> Builder {
        self.server_with(store, Arc::clone(&self.target) as _)
    }

    fn server_with(&self, store: SharedStore, target: Arc<dyn Target>) -> Builder {
        let ports = Ports {
            store,
            objects: Arc::clone(&self.objects) as _,
            work: Arc::new(MemoryWorkQueue::default()),
            clock: Arc::clone(&self.clock) as _,
            entropy: Arc::new(SystemEntropy),
            policy: Arc::new(NoPolicy),
        };
        Server::builder(ports, target)
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
    let all = ListQuery {
        filter: JobFilter { job_type: Some(name("tidegate.callback")), ..JobFilter::default() },
        limit: 10,
        ..ListQuery::default()
    };
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
async fn an_unclaimed_result_that_is_never_stored_fails_its_attempt() {
    let world = World::default();
    world.objects.fail(OUTAGE);
    let server = world.server_with(Arc::new(MemoryStore::new()), Arc::new(AnswersAtLength));
    let server = server.start().await.unwrap();
    let config = TypeConfig {
        target: Some(TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:9/")))),
        start: Start::Plain,
        max_attempts: Some(1),
        response_timeout_seconds: Seconds::new(5),
        ..TypeConfig::default()
    };
    server.put_type(&name("work"), config, None).await.unwrap();
    let job = server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap().job;
    let ended = async || {
        Some(server.job(&job.id, None).await.unwrap()).filter(|job| job.life.ended().is_some())
    };
    let ended = world.until("its attempt fails", ended).await;
    let message = ended.life.error.and_then(|error| error.message).unwrap();
    assert!(message.starts_with("its result cannot be stored"), "{message}");
    server.stop().await;
}

#[tokio::test]
async fn an_accepted_unclaimed_dispatch_fails_with_its_lease() {
    let (world, store) = (World::default(), faulty());
    let target = Arc::new(TakesBeforeAnOutage(Arc::clone(&store)));
    let server = world.server_with(Arc::clone(&store) as _, target).start().await.unwrap();
    let config = TypeConfig {
        target: Some(TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:9/")))),
        start: Start::Plain,
        max_attempts: Some(1),
        response_timeout_seconds: Seconds::new(5),
        ..TypeConfig::default()
    };
    server.put_type(&name("work"), config, None).await.unwrap();
    let job = server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap().job;
    world.until("its heartbeat fails", async || (store.failed() > 2).then_some(())).await;
    world.clock.advance(Duration::from_mins(5));
    let failed = store.failed();
    world.until("its lease is over", async || (store.failed() > failed).then_some(())).await;
    store.set_faults(Faults::default());
    let ended = async || {
        Some(server.job(&job.id, None).await.unwrap()).filter(|job| job.life.ended().is_some())
    };
    let ended = world.until("its attempt fails", ended).await;
    assert_eq!(ended.life.error.map(|error| error.reason), Some(Reason::LeaseExpired));
    server.stop().await;
}

#[tokio::test]
async fn a_result_waits_for_object_storage_without_a_second_run() {
    let world = World::default();
    world.objects.fail(OUTAGE);
    let server = world.server(Arc::new(MemoryStore::new()));
    let server = server
        .handler(name("work"), 1, |_| Box::pin(async { Handled::Succeeded(Some(large())) }))
        .start()
        .await
        .unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let job = server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap().job;
    world.until("it asked again", async || (world.objects.failed() > 2).then_some(())).await;
    assert!(server.job(&job.id, None).await.unwrap().life.running().is_some());
    world.objects.fail([]);
    let ended = async || {
        Some(server.job(&job.id, None).await.unwrap()).filter(|job| job.life.ended().is_some())
    };
    let ended = world.until("it ends", ended).await;
    assert_eq!((ended.life.ended(), ended.life.attempt), (Some(Outcome::Succeeded), 1));
    let result = server.result(&job.id, None, Duration::ZERO).await.unwrap();
    assert_eq!(result.value, Some(large()));
    server.stop().await;
}

/// More jobs than two pages of an operation.
const JOBS: usize = 1250;

async fn filled(server: &Server) {
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let jobs = (0..JOBS).map(|_| NewJob::new(name("work"), Payload::null())).collect();
    assert!(server.enqueue_many(jobs).await.iter().all(Result::is_ok));
}

async fn cancel_all(server: &Server) -> Operation {
    let filter = JobFilter {
        job_type: Some(name("work")),
        states: vec![StateFilter::Scheduled],
        ..JobFilter::default()
    };
    server.bulk(BulkRequest::new(BulkChange::Cancel, filter), None).await.unwrap()
}

async fn cancelled(server: &Server) -> u64 {
    let depth = server.engine().ports().store.depth(None).await.unwrap().counts;
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
    for most in [1, 501] {
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

/// Each change of many jobs happens once, and is counted once, although answers of the store are
/// lost and commits are refused.
#[tokio::test]
async fn bulk_changes_happen_once_whatever_the_store_answers() {
    for atomic in [true, false] {
        let (world, store) = (World::default(), faulty());
        let flight = if atomic { Duration::ZERO } else { Duration::from_secs(1) };
        let store = Arc::new(Arc::into_inner(store).unwrap().with_flight(flight));
        let server = world.server(Arc::clone(&store) as _).start().await.unwrap();
        filled(&server).await;
        let faults = Faults { lose_answer: 0.2, unavailable: 0.2, cut: 0.1, ..Faults::default() };
        let run = async |change: BulkChange, filter: JobFilter| {
            let operation = server.bulk(BulkRequest::new(change, filter), None).await.unwrap();
            store.set_faults(faults);
            let over = async || {
                let now = server.operation(&operation.id).await.unwrap();
                (now.ended_at.is_some() || now.done == JOBS as u64).then_some(())
            };
            world.until("it is nearly over", over).await;
            store.set_faults(Faults::default());
            let over = async || {
                let now = server.operation(&operation.id).await.unwrap();
                Some(now).filter(|operation| operation.ended_at.is_some())
            };
            world.until("it is over", over).await
        };
        let jobs = JOBS as u64;
        let all = || JobFilter { job_type: Some(name("work")), ..JobFilter::default() };
        let priority = BulkPatch { priority: Some(Some(7)), ..BulkPatch::default() };
        let patched = run(BulkChange::Patch(priority), all()).await;
        assert_eq!((patched.done, patched.refused), (jobs, 0), "{atomic} {patched:?}");
        let listed = async || {
            let query = ListQuery { filter: all(), limit: 1000, ..ListQuery::default() };
            server.list(&query).await.unwrap().jobs
        };
        // A repeat of the page changes nothing again.
        assert!(
            listed().await.iter().all(|job| job.spec.priority == 7 && job.life.revision.0 == 2)
        );
        let cancel = run(BulkChange::Cancel, all()).await;
        assert_eq!((cancel.done, cancel.refused), (jobs, 0), "{atomic} {cancel:?}");
        assert_eq!(cancelled(&server).await, jobs);
        let replay = run(BulkChange::Replay { again: false }, all()).await;
        assert_eq!((replay.done, replay.skipped, replay.refused), (jobs, 0, 0), "{replay:?}");
        let depth = server.engine().ports().store.depth(None).await.unwrap().counts;
        let all: u64 = depth.iter().map(|depth| depth.jobs).sum();
        assert_eq!(all, 2 * jobs, "each job has one replay");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_bulk_operation_resumes_at_its_page_after_a_crash() {
    let (world, store) = (World::default(), faulty());
    let server = world.server(Arc::clone(&store) as _).start().await.unwrap();
    filled(&server).await;
    let operation = cancel_all(&server).await;
    world
        .until("it is past its first page", async || {
            (cancelled(&server).await >= 750).then_some(())
        })
        .await;
    // The process dies.
    store.crash_after(0);
    let next = world.server(Arc::clone(store.inner())).start().await.unwrap();
    let before = next.operation(&operation.id).await.unwrap();
    assert_eq!((before.matched, before.done), (500, 500), "its first page");
    let over = async || {
        Some(next.operation(&operation.id).await.unwrap())
            .filter(|operation| operation.ended_at.is_some())
    };
    let over = world.until("it is over", over).await;
    // The jobs of its second page that were cancelled already are not found again.
    assert!(
        over.state == "done" && (500..JOBS as u64).contains(&over.done) && over.refused == 0,
        "{over:?}"
    );
    assert_eq!(cancelled(&next).await, JOBS as u64);
    next.stop().await;
}
