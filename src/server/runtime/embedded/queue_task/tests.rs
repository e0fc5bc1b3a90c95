//! When a queue's task gets a message about new jobs, and when it needs none. Only the tests move
//! time, so a job without a message would wait for ever.

mod reads;
mod slow_store;

use std::{pin::pin, task::Poll};

use futures_util::poll;
use object_store::memory::InMemory;

use super::*;
use crate::{
    Server,
    runtime::{
        Options,
        embedded::handler::Handled,
        testing::{builder, builder_on, ports, until},
    },
};
use tidegate_api::NewLogLine;
use tidegate_core::{
    job::{
        Outcome, Payload,
        lifecycle::HandBack,
        type_config::{TypeConfig, TypeItem},
    },
    port::job_store::{ItemKind, JobStore as _, SharedStore, Write},
    queue::QueueConfig,
    target::{Pull, Push, TargetConfig},
    time::Seconds,
};
use tidegate_engine::{
    Engine, Ports, Rules,
    memory::{FakeClock, MemoryStore},
    request::{LeaseRequest, NewJob},
    testkit::{
        builders::name,
        objects::{FaultyObjects, ObjectRequest},
    },
};

fn push() -> TypeConfig {
    TypeConfig {
        target: Some(TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:9/")))),
        ..TypeConfig::default()
    }
}

async fn enqueue(server: &Server, job_type: &str) -> Job {
    server.enqueue(NewJob::new(name(job_type), Payload::null())).await.unwrap().job
}

fn request() -> LeaseRequest {
    LeaseRequest {
        min: 0,
        queue: None,
        types: vec![name("work")],
        max: 1,
        wait: Duration::from_secs(20),
        max_pause: Duration::ZERO,
        call: None,
        worker: None,
        lease_seconds: None,
        reports: Vec::new(),
    }
}

/// Waits until the task is idle, so that new jobs send it no message.
async fn idle(server: &Server) {
    let handle = server.inner.queue(&name("default"));
    until("the task is idle", async || {
        handle.idle_under.load(Ordering::SeqCst) == server.inner.engine.seen_version()
    })
    .await;
}

async fn ended(server: &Server, job: &Job) {
    until("it ended", async || server.job(&job.id, None).await.unwrap().life.ended().is_some())
        .await;
}

/// A server whose only queue has one job and an idle task.
async fn idle_server() -> (Server, Arc<FakeClock>) {
    let clock = Arc::new(FakeClock::default());
    let server = builder(&clock).start().await.unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    enqueue(&server, "work").await;
    idle(&server).await;
    (server, clock)
}

#[test]
fn only_an_idle_task_gets_no_message_about_a_new_job() {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let handle =
        QueueHandle { sender, idle_under: Arc::new(AtomicU64::new(7)), snapshot: Arc::default() };
    handle.on_enqueued(7);
    assert!(receiver.is_empty());
    handle.on_enqueued(8);
    handle.idle_under.store(NOT_IDLE, Ordering::Relaxed);
    handle.on_enqueued(7);
    assert_eq!(receiver.len(), 2);
    assert!(matches!(receiver.try_recv(), Ok(TaskMessage::Wake)));
}

#[tokio::test]
async fn a_lease_finds_jobs_that_the_idle_task_got_no_message_about() {
    let (server, _) = idle_server().await;
    enqueue(&server, "work").await;
    for _ in 0..2 {
        assert_eq!(server.lease(request()).await.unwrap().jobs.len(), 1);
    }
}

#[tokio::test]
async fn a_served_worker_leaves_the_task_idle_again() {
    let (server, _) = idle_server().await;
    server.lease(request()).await.unwrap();
    for _ in 0..3 {
        let mut lease = pin!(server.lease(request()));
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
async fn a_worker_that_starts_to_wait_during_an_enqueue_gets_the_job() {
    let (server, _) = idle_server().await;
    server.lease(request()).await.unwrap();
    for _ in 0..2000 {
        let lease = tokio::spawn({
            let server = server.clone();
            async move { server.lease(request()).await.unwrap().jobs.len() }
        });
        enqueue(&server, "work").await;
        until("it is leased", async || lease.is_finished()).await;
        assert_eq!(lease.await.unwrap(), 1);
    }
}

#[tokio::test]
async fn a_delayed_job_starts_on_time_for_a_waiting_worker() {
    let (server, clock) = idle_server().await;
    server.lease(request()).await.unwrap();
    let later = NewJob {
        delay_seconds: Some(Seconds::new(2)),
        ..NewJob::new(name("work"), Payload::null())
    };
    let job = server.enqueue(later).await.unwrap().job;
    let mut lease = pin!(server.lease(request()));
    for _ in 0..50 {
        assert!(poll!(&mut lease).is_pending());
        tokio::task::yield_now().await;
    }
    // Sooner than the task polls.
    clock.advance(Duration::from_secs(2));
    assert_eq!(lease.await.unwrap().jobs[0].id, job.id);
}

#[tokio::test]
async fn an_idle_task_sees_limits_and_pauses_begin_and_end() {
    let (server, clock) = idle_server().await;
    let closed = QueueConfig { concurrency: Some(0), ..QueueConfig::default() };
    server.put_queue(&name("default"), closed, None).await.unwrap();
    idle(&server).await;
    server.pause_queue(&name("default"), true).await.unwrap();
    idle(&server).await;
    enqueue(&server, "work").await;
    let mut lease = pin!(server.lease(LeaseRequest { wait: Duration::from_mins(1), ..request() }));
    for _ in 0..50 {
        assert!(poll!(&mut lease).is_pending());
        tokio::task::yield_now().await;
    }
    server.pause_queue(&name("default"), false).await.unwrap();
    let open = QueueConfig { concurrency: Some(1), ..QueueConfig::default() };
    server.put_queue(&name("default"), open, None).await.unwrap();
    let mut leased = None;
    until("it is leased", async || {
        // A new ledger admits only after its settling time.
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
async fn a_type_that_becomes_pushed_is_pushed_at_once() {
    let (server, _) = idle_server().await;
    let job = enqueue(&server, "work").await;
    server.put_type(&name("work"), push(), None).await.unwrap();
    ended(&server, &job).await;
    let next = enqueue(&server, "work").await;
    ended(&server, &next).await;
}

#[tokio::test]
async fn a_worker_gets_no_job_of_a_type_that_is_pushed_now() {
    let clock = Arc::new(FakeClock::default());
    let store: SharedStore = Arc::new(MemoryStore::new());
    let server = builder_on(&clock, Arc::clone(&store), Arc::new(InMemory::new()));
    let server = server.start().await.unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let mut lease = pin!(server.lease(request()));
    for _ in 0..50 {
        assert!(poll!(&mut lease).is_pending());
        tokio::task::yield_now().await;
    }
    // The server has not read this change when its task ticks.
    let other = Engine::new(Ports { store, ..ports(&clock) }, Rules::default());
    other.put_type(&name("work"), push(), None).await.unwrap();
    let job = NewJob::new(name("work"), Payload::null());
    let job = other.enqueue(vec![job]).await.remove(0).unwrap().job;
    server.inner.wake(&name("default"));
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    assert!(poll!(&mut lease).is_pending(), "it is pushed, not pulled");
    ended(&server, &job).await;
}

#[tokio::test]
async fn the_first_job_of_a_created_type_is_pushed_at_once() {
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
async fn first_jobs_create_a_bounded_number_of_types() {
    let store = Arc::new(MemoryStore::new());
    let item = TypeItem { config: TypeConfig::default(), version: 1, leaving: false };
    let bytes = serde_json::to_vec(&item).unwrap();
    // Jobs before these have created most types. Each reads all, so these are written as they are.
    let created = (0..990).map(|number| {
        let (kind, name, bytes) = (ItemKind::Type, format!("new-{number}"), Some(bytes.clone()));
        vec![Write::SetItem { kind, name, was: 0, version: 1, bytes }]
    });
    store.commit(created.collect()).await.unwrap();
    let rules = Rules { create_unknown_types: true, ..Rules::default() };
    let builder = builder_on(&Arc::new(FakeClock::default()), store, Arc::new(InMemory::new()));
    let server = builder.rules(rules).start().await.unwrap();
    let first = |number: usize| NewJob::new(name(&format!("new-{number}")), Payload::null());
    // The server has made the types of its callbacks and events.
    for number in 990..998 {
        server.enqueue(first(number)).await.unwrap();
    }
    let refused = server.enqueue(first(998)).await.unwrap_err();
    assert_eq!(refused.code().as_str(), "too_many_types");
    server.put_type(&name("new-1000"), TypeConfig::default(), None).await.unwrap();
    for known in [7, 1000] {
        server.enqueue(first(known)).await.unwrap();
    }
}

#[tokio::test]
async fn nothing_of_a_server_is_left_after_its_stop() {
    let options = Options { shutdown: Duration::ZERO, ..Options::default() };
    let server = builder(&Arc::new(FakeClock::default()))
        .options(options)
        .handler(name("work"), 1, |_| Box::pin(std::future::pending()))
        .start()
        .await
        .unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let job = enqueue(&server, "work").await;
    until("it runs", async || server.job(&job.id, None).await.unwrap().life.running().is_some())
        .await;
    let inner = Arc::downgrade(&server.inner);
    server.stop().await;
    drop(server);
    assert!(inner.upgrade().is_none(), "a task holds the server");
}

#[tokio::test]
async fn the_time_of_a_stop_begins_with_its_first_drain() {
    let clock = Arc::new(FakeClock::default());
    let server = builder(&clock).start().await.unwrap();
    let until = server.now() + server.options().shutdown;
    assert_eq!(server.drain().await, until);
    clock.advance(Duration::from_secs(1));
    assert_eq!(server.drain().await, until);
}

#[tokio::test]
async fn a_task_that_is_always_busy_ends_with_its_server() {
    let server = builder(&Arc::new(FakeClock::default())).start().await.unwrap();
    let busy = server.inner.spawn(async {
        loop {
            tokio::task::consume_budget().await;
        }
    });
    server.stop().await;
    assert!(busy.await.unwrap().is_none());
}

#[tokio::test]
async fn a_job_that_found_its_handler_full_runs_when_it_is_free() {
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

#[tokio::test]
async fn a_result_that_cannot_be_stored_frees_its_handler() {
    let (clock, objects) = (Arc::new(FakeClock::default()), Arc::new(FaultyObjects::default()));
    let server = builder_on(&clock, Arc::new(MemoryStore::new()), Arc::clone(&objects) as _)
        .handler(name("work"), 1, |call| {
            let len = if call.job.id.as_str() == "large" { 64 << 10 } else { 1 };
            let result = Payload::json(format!("\"{}\"", "x".repeat(len)));
            Box::pin(async { Handled::Succeeded(Some(result)) })
        })
        .start()
        .await
        .unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    objects.fail([ObjectRequest::Put]);
    let first = NewJob { id: Some(name("large")), ..NewJob::new(name("work"), Payload::null()) };
    let first = server.enqueue(first).await.unwrap().job;
    until("it runs", async || server.job(&first.id, None).await.unwrap().life.running().is_some())
        .await;
    let second = enqueue(&server, "work").await;
    until("the handler is free", async || {
        clock.advance(Duration::from_millis(100));
        server.job(&second.id, None).await.unwrap().life.ended().is_some()
    })
    .await;
    objects.fail([]);
    until("its retry succeeds", async || {
        clock.advance(Duration::from_millis(100));
        server.job(&first.id, None).await.unwrap().life.ended() == Some(Outcome::Succeeded)
    })
    .await;
}

#[tokio::test]
async fn a_handler_stores_a_checkpoint_and_log_lines() {
    let (clock, objects) = (Arc::new(FakeClock::default()), Arc::new(FaultyObjects::default()));
    let server = builder_on(&clock, Arc::new(MemoryStore::new()), objects as _)
        .handler(name("work"), 1, |call| {
            Box::pin(async move {
                if let Some(kept) = call.checkpoint() {
                    return Handled::Succeeded(Some(kept));
                }
                let text = "half way".to_owned();
                call.log(vec![NewLogLine { text, ..NewLogLine::default() }]).await.unwrap();
                call.store_checkpoint(Payload::json("7")).await.unwrap();
                Handled::HandedBack(HandBack::default())
            })
        })
        .start()
        .await
        .unwrap();
    server.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let job = enqueue(&server, "work").await;
    ended(&server, &job).await;
    let result = server.result(&job.id, None, Duration::ZERO).await.unwrap().value.unwrap();
    assert_eq!(&result.bytes[..], b"7");
    let page = server.log(&job.id, None, None, (0, 10), Duration::ZERO).await.unwrap();
    assert_eq!((page.lines.len(), page.lines[0].text.as_str()), (1, "half way"));
}
