//! When a queue's task is told of new jobs, and when it need not be. Time stands still but where a test moves it, so a job that
//! nobody is told of waits for ever.

use std::{pin::pin, task::Poll};

use futures_util::poll;
use object_store::memory::InMemory;

use super::*;
use crate::{
    Server,
    runtime::{Builder, embedded::handler::Handled},
};
use tidegate_backends::system::SystemEntropy;
use tidegate_core::time::Seconds;
use tidegate_core::{
    job::{Payload, type_config::TypeConfig},
    port::{
        Target,
        policy::NoPolicy,
        target::{Request, Response, TargetError},
    },
    queue::QueueConfig,
    target::{Pull, Push, TargetConfig},
};
use tidegate_engine::{
    Ports, Rules,
    memory::{FakeClock, MemoryStore, MemoryWorkQueue},
    request::{LeaseRequest, NewJob},
    testkit::builders::name,
};

/// Answers every push.
struct Takes;

#[async_trait::async_trait]
impl Target for Takes {
    async fn call(&self, _: Request) -> Result<Response, TargetError> {
        Ok(Response { status: 200, headers: Vec::new(), body: bytes::Bytes::new() })
    }
}

fn builder(clock: &Arc<FakeClock>) -> Builder {
    let ports = Ports {
        store: Arc::new(MemoryStore::new()),
        objects: Arc::new(InMemory::new()),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::clone(clock) as _,
        entropy: Arc::new(SystemEntropy),
        policy: Arc::new(NoPolicy),
    };
    Server::builder(ports, Arc::new(Takes))
}

fn push() -> TypeConfig {
    TypeConfig {
        target: Some(TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:9/")))),
        ..TypeConfig::default()
    }
}

async fn enqueue(server: &Server, job_type: &str) -> Job {
    server.enqueue(NewJob::new(name(job_type), Payload::null())).await.unwrap().job
}

fn ask() -> LeaseRequest {
    LeaseRequest {
        queue: None,
        types: vec![name("work")],
        max: 1,
        wait: Duration::from_secs(20),
        worker: None,
        lease_seconds: None,
        reports: Vec::new(),
    }
}

/// Yields until `good` says so.
async fn until(what: &str, mut good: impl AsyncFnMut() -> bool) {
    for _ in 0..1_000_000 {
        if good().await {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never came to that: {what}")
}

/// Until nobody takes jobs of the queue, so that its task is not told of them.
async fn idle(server: &Server) {
    let handle = server.inner.queue(&name("default"));
    until("nobody asks", async || {
        handle.idle_under.load(Ordering::SeqCst) == server.inner.engine.seen_version()
    })
    .await;
}

async fn ended(server: &Server, job: &Job) {
    until("it ended", async || server.job(&job.id, None).await.unwrap().life.ended().is_some())
        .await;
}

/// A server whose only queue has one job that nobody asks for.
async fn unasked() -> (Server, Arc<FakeClock>) {
    let clock = Arc::new(FakeClock::default());
    let server = builder(&clock).start().await.unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    enqueue(&server, "work").await;
    idle(&server).await;
    (server, clock)
}

#[test]
fn a_task_is_told_of_a_job_unless_nobody_takes_it_under_the_same_configuration() {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let handle =
        QueueHandle { sender, idle_under: Arc::new(AtomicU64::new(7)), snapshot: Arc::default() };
    handle.on_enqueued(7);
    assert!(receiver.is_empty());
    handle.on_enqueued(8);
    handle.idle_under.store(NOT_IDLE, Ordering::Relaxed);
    handle.on_enqueued(7);
    assert_eq!(receiver.len(), 2);
    assert!(matches!(receiver.try_recv(), Ok(Message::Wake)));
}

#[tokio::test]
async fn a_worker_that_asks_finds_what_the_task_was_not_told_of() {
    let (server, _) = unasked().await;
    enqueue(&server, "work").await;
    for _ in 0..2 {
        assert_eq!(server.lease(ask()).await.unwrap().jobs.len(), 1);
    }
}

#[tokio::test]
async fn a_worker_that_waits_is_told_and_the_task_is_idle_again_once_it_was_served() {
    let (server, _) = unasked().await;
    server.lease(ask()).await.unwrap();
    for _ in 0..3 {
        let mut lease = pin!(server.lease(ask()));
        for _ in 0..50 {
            assert!(poll!(&mut lease).is_pending());
            tokio::task::yield_now().await;
        }
        let job = enqueue(&server, "work").await;
        let mut leased = None;
        until("it is leased", async || match poll!(&mut lease) {
            Poll::Ready(answer) => leased.replace(answer.unwrap()).is_none(),
            Poll::Pending => false,
        })
        .await;
        assert_eq!(leased.unwrap().jobs[0].id, job.id);
        server.inner.wake(&name("default"));
        idle(&server).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_worker_that_begins_to_wait_while_a_job_is_enqueued_gets_it() {
    let (server, _) = unasked().await;
    server.lease(ask()).await.unwrap();
    for _ in 0..2000 {
        let lease = tokio::spawn({
            let server = server.clone();
            async move { server.lease(ask()).await.unwrap().jobs.len() }
        });
        enqueue(&server, "work").await;
        until("it is leased", async || lease.is_finished()).await;
        assert_eq!(lease.await.unwrap(), 1);
    }
}

#[tokio::test]
async fn a_job_for_later_starts_at_its_time_if_somebody_waits_by_then() {
    let (server, clock) = unasked().await;
    server.lease(ask()).await.unwrap();
    let later = NewJob {
        delay_seconds: Some(Seconds::new(2)),
        ..NewJob::new(name("work"), Payload::null())
    };
    let job = server.enqueue(later).await.unwrap().job;
    let mut lease = pin!(server.lease(ask()));
    for _ in 0..50 {
        assert!(poll!(&mut lease).is_pending());
        tokio::task::yield_now().await;
    }
    // Sooner than the task looks by itself.
    clock.advance(Duration::from_secs(2));
    assert_eq!(lease.await.unwrap().jobs[0].id, job.id);
}

#[tokio::test]
async fn a_limit_a_pause_and_their_end_are_seen_by_a_task_that_nobody_asked() {
    let (server, clock) = unasked().await;
    let closed = QueueConfig { concurrency: Some(0), ..QueueConfig::default() };
    server.put_queue(&name("default"), closed, None).await.unwrap();
    idle(&server).await;
    server.pause_queue(&name("default"), true).await.unwrap();
    idle(&server).await;
    enqueue(&server, "work").await;
    let mut lease = pin!(server.lease(LeaseRequest { wait: Duration::from_mins(1), ..ask() }));
    for _ in 0..50 {
        assert!(poll!(&mut lease).is_pending());
        tokio::task::yield_now().await;
    }
    server.pause_queue(&name("default"), false).await.unwrap();
    let open = QueueConfig { concurrency: Some(1), ..QueueConfig::default() };
    server.put_queue(&name("default"), open, None).await.unwrap();
    let mut leased = None;
    until("it is leased", async || {
        // A head that is new takes a while to admit.
        clock.advance(Duration::from_millis(10));
        match poll!(&mut lease) {
            Poll::Ready(answer) => leased.replace(answer.unwrap()).is_none(),
            Poll::Pending => false,
        }
    })
    .await;
    assert_eq!(leased.unwrap().jobs.len(), 1);
}

#[tokio::test]
async fn a_type_that_comes_to_be_pushed_is_pushed_at_once() {
    let (server, _) = unasked().await;
    let job = enqueue(&server, "work").await;
    server.put_type(&name("work"), push(), None).await.unwrap();
    ended(&server, &job).await;
    let next = enqueue(&server, "work").await;
    ended(&server, &next).await;
}

#[tokio::test]
async fn the_first_job_of_a_type_that_it_makes_is_pushed_at_once() {
    let clock = Arc::new(FakeClock::default());
    let rules = Rules {
        create_unknown_types: true,
        default_target: Some(Push::to("http://127.0.0.1:9/")),
        ..Rules::default()
    };
    let server = builder(&clock).rules(rules).start().await.unwrap();
    let pulled = TypeConfig {
        target: Some(TargetConfig::Pull(Pull { pull: true })),
        ..TypeConfig::default()
    };
    server.put_type(&name("work"), pulled, None).await.unwrap();
    enqueue(&server, "work").await;
    idle(&server).await;
    let job = enqueue(&server, "new").await;
    ended(&server, &job).await;
}

#[tokio::test]
async fn what_comes_while_a_handler_is_full_is_run_when_it_is_free() {
    let clock = Arc::new(FakeClock::default());
    let (free, gate) = tokio::sync::watch::channel(false);
    let server = builder(&clock)
        .handler(name("work"), 1, move |_| {
            let mut gate = gate.clone();
            Box::pin(async move {
                gate.wait_for(|free| *free).await.unwrap();
                Handled::Succeeded(None)
            })
        })
        .start()
        .await
        .unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let first = enqueue(&server, "work").await;
    until("it runs", async || server.job(&first.id, None).await.unwrap().life.running().is_some())
        .await;
    server.inner.wake(&name("default"));
    idle(&server).await;
    let second = enqueue(&server, "work").await;
    free.send_replace(true);
    ended(&server, &first).await;
    ended(&server, &second).await;
}
