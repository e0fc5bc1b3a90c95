//! The embedded server with in-process handlers, on both embedded stores.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use object_store::memory::InMemory;
use tidegate_backends::{
    http::{Guard, HttpTarget},
    sqlite::SqliteStore,
    system::{SystemClock, SystemEntropy},
};
use tidegate_core::{
    job::{
        Payload,
        type_config::{Delivery, TypeConfig},
    },
    port::{
        Target,
        job_store::SharedStore,
        target::{Request, Response, TargetError},
    },
    queue::QueueConfig,
    target::{Push, TargetConfig},
    time::Seconds,
};
use tidegate_engine::{
    Ports,
    memory::{MemoryStore, MemoryWorkQueue},
    request::NewJob,
    testkit::{
        builders::name,
        faults::{Faults, FaultyStore},
    },
};
use tidegate_server::{
    Server,
    runtime::{Handled, Options},
};
use tokio::sync::mpsc;
use tracing::level_filters::LevelFilter;

use crate::logged::Log;

fn ports(store: SharedStore) -> Ports {
    Ports {
        store,
        objects: Arc::new(InMemory::new()),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        policy: Arc::new(tidegate_core::port::policy::NoPolicy),
    }
}

async fn a_limit_of_three_is_kept(store: SharedStore) {
    let running = Arc::new(AtomicU64::new(0));
    let most = Arc::new(AtomicU64::new(0));
    let (running_in, most_in) = (Arc::clone(&running), Arc::clone(&most));
    let server =
        Server::builder(ports(store), Arc::new(HttpTarget::new(Guard::default()).unwrap()))
            .handler(name("work"), 16, move |_| {
                let (running, most) = (Arc::clone(&running_in), Arc::clone(&most_in));
                Box::pin(async move {
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    Handled::Succeeded(None)
                })
            })
            .start()
            .await
            .unwrap();
    let limit = QueueConfig { concurrency: Some(3), ..QueueConfig::default() };
    server.put_queue(&name("default"), limit, None).await.unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let jobs = (0..200).map(|_| NewJob::new(name("work"), Payload::null())).collect();
    let enqueued = server.enqueue_many(jobs).await;
    for job in enqueued {
        let id = job.unwrap().job.id;
        server.result(&id, None, Duration::from_secs(20)).await.unwrap().ended().expect("it ends");
    }
    assert_eq!(running.load(Ordering::SeqCst), 0);
    assert!((1..=3).contains(&most.load(Ordering::SeqCst)), "at most three at once: {most:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_result_of_work_done_here_outlasts_a_store_that_fails() {
    let store =
        Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), 1).with_flight(Duration::ZERO));
    let broken = Arc::clone(&store);
    let server = Server::builder(
        ports(Arc::clone(&store) as SharedStore),
        Arc::new(HttpTarget::new(Guard::default()).unwrap()),
    )
    .handler(name("once"), 1, move |_| {
        broken.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
        Box::pin(async { Handled::Succeeded(Some(Payload::json("7"))) })
    })
    .start()
    .await
    .unwrap();
    let once = TypeConfig { delivery: Delivery::AtMostOnce, ..TypeConfig::default() };
    server.put_type(&name("once"), once, None).await.unwrap();
    let job = server.enqueue(NewJob::new(name("once"), Payload::null())).await.unwrap().job;
    while store.failed() == 0 {
        tokio::task::yield_now().await;
    }
    store.set_faults(Faults::default());
    let result = server.result(&job.id, None, Duration::from_secs(30)).await.unwrap();
    assert_eq!(result.value, Some(Payload::json("7")));
    server.stop().await;
}

/// A worker that answers 202 to every job, while the store begins to fail.
struct TakesForLater(Arc<FaultyStore>);

#[async_trait::async_trait]
impl Target for TakesForLater {
    async fn call(&self, _: Request) -> Result<Response, TargetError> {
        self.0.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
        Ok(Response { status: 202, headers: Vec::new(), body: bytes::Bytes::new() })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_push_keeps_its_slot_through_a_store_failure() {
    let store =
        Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), 1).with_flight(Duration::ZERO));
    let target = Arc::new(TakesForLater(Arc::clone(&store)));
    let server =
        Server::builder(ports(Arc::clone(&store) as SharedStore), target).start().await.unwrap();
    let push = TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:9/")));
    let later = TypeConfig {
        target: Some(push),
        timeout_seconds: Seconds::new(7200),
        ..TypeConfig::default()
    };
    server.put_type(&name("later"), later, None).await.unwrap();
    let job = server.enqueue(NewJob::new(name("later"), Payload::null())).await.unwrap().job;
    while store.failed() == 0 {
        tokio::task::yield_now().await;
    }
    store.set_faults(Faults::default());
    loop {
        let job = server.job(&job.id, None).await.unwrap();
        let run = job.life.running().expect("it runs until its callback comes");
        if run.lease_until == run.timeout_at {
            break;
        }
        tokio::task::yield_now().await;
    }
    server.stop().await;
}

#[tokio::test]
async fn a_job_that_is_late_at_a_stop_is_logged_once() {
    let (log, _logging) = Log::capture(LevelFilter::WARN);
    let (starts, mut started) = mpsc::unbounded_channel();
    let ports = ports(Arc::new(MemoryStore::new()));
    let server = Server::builder(ports, Arc::new(HttpTarget::new(Guard::default()).unwrap()))
        .options(Options { shutdown: Duration::ZERO, ..Options::default() })
        .handler(name("work"), 1, move |_| {
            starts.send(()).unwrap();
            Box::pin(std::future::pending())
        })
        .start()
        .await
        .unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap();
    started.recv().await.unwrap();
    server.drain().await;
    server.stop().await;
    let text = log.text();
    assert_eq!(text.matches("still running at the stop").count(), 1, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_kept_in_memory() {
    a_limit_of_three_is_kept(Arc::new(MemoryStore::new())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_kept_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    a_limit_of_three_is_kept(Arc::new(SqliteStore::open(dir.path()).unwrap())).await;
}
