//! Leases of the embedded server: workers that wait for several queues, workers that disconnect,
//! jobs with missing bodies.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod batches;
mod repeated;

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::poll;
use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
use serde_json::json;
use tidegate_backends::{
    http::{Guard, HttpTarget},
    system::SystemEntropy,
};
use tidegate_core::{
    job::{
        Body, Job, JobId, Payload,
        lifecycle::{EndedAs, Reason},
        type_config::TypeConfig,
    },
    port::{job_store::SharedStore, policy::NoPolicy},
    queue::QueueConfig,
    time::Seconds,
};
use tidegate_engine::{
    OBJECT_BYTES, Ports,
    memory::{FakeClock, MemoryStore, MemoryWorkQueue},
    request::{LeaseRequest, NewJob, Registration, Report, ReportOutcome, WorkerStatus},
    testkit::builders::name,
};
use tidegate_server::Server;

struct Harness {
    server: Server,
    clock: Arc<FakeClock>,
    objects: Arc<InMemory>,
    store: SharedStore,
}

/// A server with types `a` and `b`, in queues of these names. Time is simulated.
async fn harness() -> Harness {
    let (clock, objects) = (Arc::new(FakeClock::default()), Arc::new(InMemory::new()));
    let store: SharedStore = Arc::new(MemoryStore::new());
    let server = start(&store, &clock, &objects).await;
    for letter in ["a", "b"] {
        server.put_queue(&name(letter), QueueConfig::default(), None).await.unwrap();
        let config = TypeConfig {
            queue: name(letter),
            lease_seconds: Seconds::new(3600),
            ..TypeConfig::default()
        };
        server.put_type(&name(letter), config, None).await.unwrap();
    }
    Harness { server, clock, objects, store }
}

async fn start(store: &SharedStore, clock: &Arc<FakeClock>, objects: &Arc<InMemory>) -> Server {
    let ports = Ports {
        store: Arc::clone(store),
        objects: Arc::clone(objects) as _,
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::clone(clock) as _,
        entropy: Arc::new(SystemEntropy),
        policy: Arc::new(NoPolicy),
    };
    Server::builder(ports, Arc::new(HttpTarget::new(Guard::default()).unwrap()))
        .start()
        .await
        .unwrap()
}

fn ask(types: &[&str], max: u32) -> LeaseRequest {
    LeaseRequest {
        min: 0,
        queue: None,
        types: types.iter().map(|of| name(of)).collect(),
        max,
        wait: Duration::from_secs(20),
        max_pause: Duration::ZERO,
        call: None,
        worker: None,
        lease_seconds: None,
        reports: Vec::new(),
    }
}

async fn enqueue(server: &Server, job_type: &str) -> Job {
    server.enqueue(NewJob::new(name(job_type), Payload::null())).await.unwrap().job
}

/// The job, once `good` accepts it.
async fn when(server: &Server, id: &JobId, good: impl Fn(&Job) -> bool) -> Job {
    for _ in 0..100_000 {
        let job = server.job(id, None).await.unwrap();
        if good(&job) {
            return job;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never came to that: {:?}", server.job(id, None).await)
}

#[tokio::test]
async fn a_worker_waiting_for_several_queues_gets_any_job_at_once() {
    let Harness { server, clock, .. } = harness().await;
    let mut lease = pin!(server.lease(ask(&["a", "b"], 5)));
    // Until it waits.
    for _ in 0..50 {
        assert!(poll!(&mut lease).is_pending());
        tokio::task::yield_now().await;
    }
    let job = enqueue(&server, "b").await;
    let mut found = None;
    for _ in 0..1000 {
        if let std::task::Poll::Ready(leased) = poll!(&mut lease) {
            found = leased.unwrap().jobs.pop();
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(found.expect("without a tick of the clock").id, job.id);

    let later =
        NewJob { delay_seconds: Some(Seconds::new(10)), ..NewJob::new(name("a"), Payload::null()) };
    let later = server.enqueue(later).await.unwrap().job;
    let waiting = tokio::spawn({
        let server = server.clone();
        async move { server.lease(ask(&["a", "b"], 5)).await.unwrap().jobs }
    });
    // A demand for another type makes the tick read that type only.
    for _ in 0..50 {
        server.lease(LeaseRequest { wait: Duration::ZERO, ..ask(&["b"], 1) }).await.unwrap();
        assert!(!waiting.is_finished());
    }
    clock.advance(Duration::from_secs(10));
    assert_eq!(waiting.await.unwrap()[0].id, later.id, "at its due time");

    let none = tokio::spawn({
        let server = server.clone();
        async move { server.lease(ask(&["a", "b"], 5)).await.unwrap().jobs }
    });
    while !none.is_finished() {
        clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    assert!(none.await.unwrap().is_empty(), "the wait ends");
    server.stop().await;
}

#[tokio::test]
async fn a_lease_has_a_bounded_number_of_bytes() {
    let Harness { server, .. } = harness().await;
    let large = || Payload::json(format!("\"{}\"", "x".repeat((4 << 20) - 2)));
    for letter in ["a", "a", "b"].repeat(13) {
        server.enqueue(NewJob::new(name(letter), large())).await.unwrap();
    }
    let at_once = |types| LeaseRequest { wait: Duration::ZERO, ..ask(types, 1000) };
    // 64 MiB have 16 jobs. What does not fit stays due, for the next call and for those that wait.
    let (first, second) = tokio::join!(server.lease(ask(&["a"], 20)), server.lease(ask(&["a"], 9)));
    let leased = [first, second].map(|leased| leased.unwrap().jobs.len());
    assert_eq!(leased, [16, 9]);
    assert_eq!(server.lease(at_once(&["a", "b"])).await.unwrap().jobs.len(), 14);
    server.stop().await;
}

#[tokio::test]
async fn who_waits_for_several_queues_is_answered_at_the_stop() {
    let Harness { server, .. } = harness().await;
    let mut lease = pin!(server.lease(ask(&["a", "b"], 5)));
    for _ in 0..50 {
        assert!(poll!(&mut lease).is_pending());
        tokio::task::yield_now().await;
    }
    server.stop().await;
    for _ in 0..1000 {
        if let std::task::Poll::Ready(leased) = poll!(&mut lease) {
            assert!(leased.unwrap().jobs.is_empty());
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it waits still");
}

#[tokio::test]
async fn a_job_with_a_missing_body_fails_and_blocks_no_other() {
    let Harness { server, objects, .. } = harness().await;
    let large =
        || NewJob::new(name("a"), Payload::json(format!("\"{}\"", "x".repeat(OBJECT_BYTES))));
    let broken = server.enqueue(large()).await.unwrap().job;
    let whole = server.enqueue(large()).await.unwrap().job;
    let Body::Object { key, .. } = &broken.data else { panic!("it is large") };
    objects.delete(&Path::from(key.as_str())).await.unwrap();
    let leased = server.lease(ask(&["a"], 5)).await.unwrap();
    assert_eq!(leased.jobs.iter().map(|job| &job.id).collect::<Vec<_>>(), [&whole.id]);
    let broken = when(&server, &broken.id, |job| !job.life.history.is_empty()).await;
    let error = broken.life.history[0].error.as_ref().unwrap();
    assert_eq!(error.reason, Reason::NotDelivered);
    assert!(error.message.as_ref().unwrap().contains("body"), "{error:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_job_leased_to_a_gone_worker_is_retried_before_lease_end() {
    for types in [&["a"][..], &["a", "b"]] {
        let Harness { server, .. } = harness().await;
        let job = {
            let mut lease = Box::pin(server.lease(ask(types, 5)));
            // Until it waits.
            for _ in 0..50 {
                assert!(poll!(&mut lease).is_pending());
                tokio::task::yield_now().await;
            }
            let job = enqueue(&server, "a").await;
            if types.len() > 1 {
                // It is notified, and reads the queue.
                while server.job(&job.id, None).await.unwrap().life.running().is_none() {
                    assert!(poll!(&mut lease).is_pending());
                    tokio::task::yield_now().await;
                }
            }
            when(&server, &job.id, |job| job.life.running().is_some()).await
        };
        let job = when(&server, &job.id, |job| job.life.running().is_none()).await;
        assert_eq!(job.life.history[0].ended_as(), EndedAs::Released);
        assert_eq!((job.life.run_at().is_some(), job.life.counted_attempts()), (true, 0));
        server.stop().await;
    }
}

/// A request for jobs of these types, at most `max`, with this id.
fn repeatable(server: &Server, id: &str, types: &[&str], max: u32) -> LeaseRequest {
    let call = server.repeatable_call(&format!("request-{id:0>16}"), None).unwrap();
    LeaseRequest { call: Some(call), wait: Duration::ZERO, ..ask(types, max) }
}

/// The leases that `worker` gets at once, if it sends these reports and requests all that it can
/// run.
async fn leased_by(server: &Server, worker: &str, done: &[Job]) -> Vec<Job> {
    let report = |job: &Job| {
        let token = job.life.running().map(|run| run.token);
        Report {
            id: job.id.clone(),
            job_type: None,
            attempt: job.life.attempt,
            token,
            outcome: ReportOutcome::Succeeded { result: None },
            checkpoint: None,
        }
    };
    let reports = done.iter().map(report).collect();
    let ask = LeaseRequest {
        worker: Some(worker.into()),
        wait: Duration::ZERO,
        max_pause: Duration::ZERO,
        call: None,
        reports,
        ..ask(&["a"], 100)
    };
    server.lease(ask).await.unwrap().jobs
}

#[tokio::test]
async fn a_worker_is_leased_no_more_than_it_runs_at_once() {
    let Harness { server, .. } = harness().await;
    server.register_worker("w", Registration::of_capacity(3)).await.unwrap();
    for _ in 0..10 {
        enqueue(&server, "a").await;
    }
    let first = leased_by(&server, "w", &[]).await;
    assert_eq!(first.len(), 3);
    assert!(leased_by(&server, "w", &[]).await.is_empty(), "it runs as many as it can");
    assert_eq!(
        leased_by(&server, "w", &first[..2]).await.len(),
        2,
        "in the place of those that it reports"
    );
    assert_eq!(
        leased_by(&server, "other", &[]).await.len(),
        5,
        "who said nothing has as many as it asks for"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_drain_outlasts_a_restart_and_the_silent_are_not_listed() {
    let Harness { server, clock, objects, store } = harness().await;
    for worker in ["drained", "silent"] {
        server.register_worker(worker, Registration::default()).await.unwrap();
    }
    assert!(server.drain_worker("drained", true).await.unwrap().draining);
    enqueue(&server, "a").await;
    assert!(leased_by(&server, "drained", &[]).await.is_empty());
    server.stop().await;
    let server = start(&store, &clock, &objects).await;
    assert!(leased_by(&server, "drained", &[]).await.is_empty());
    server.register_worker("silent", Registration::default()).await.unwrap();
    let listed = async || {
        server
            .workers()
            .await
            .unwrap()
            .into_iter()
            .map(|worker| (worker.name, worker.draining))
            .collect::<Vec<_>>()
    };
    assert_eq!(listed().await, [("drained".to_owned(), true), ("silent".to_owned(), false)]);
    clock.advance(Duration::from_mins(11));
    assert_eq!(listed().await, [("drained".to_owned(), true)]);
    assert!(!server.drain_worker("drained", false).await.unwrap().draining);
    assert_eq!(leased_by(&server, "drained", &[]).await.len(), 1);
    server.drain_worker("drained", true).await.unwrap();
    server.forget_worker("drained", true).await.unwrap();
    assert_eq!(listed().await, [("drained".to_owned(), true)], "a worker that stops stays drained");
    server.forget_worker("drained", false).await.unwrap();
    enqueue(&server, "a").await;
    assert_eq!(
        leased_by(&server, "drained", &[]).await.len(),
        1,
        "who is forgotten is no longer drained"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_stop_ends_when_its_worker_leaves_and_a_drain_stays() {
    let Harness { server, clock, objects, store } = harness().await;
    for worker in ["plain", "drained"] {
        server.register_worker(worker, Registration::default()).await.unwrap();
    }
    server.drain_worker("drained", true).await.unwrap();
    for worker in ["plain", "drained"] {
        let stopped = server.stop_worker(worker).await.unwrap();
        assert!(stopped.stopping && stopped.draining, "{stopped:?}");
    }
    enqueue(&server, "a").await;
    assert!(leased_by(&server, "plain", &[]).await.is_empty(), "it gets no more jobs");
    server.stop().await;
    let server = start(&store, &clock, &objects).await;
    let states = async || {
        let workers = server.workers().await.unwrap().into_iter();
        workers.map(|of| (of.name, of.draining, of.stopping)).collect::<Vec<_>>()
    };
    let of = |name: &str, draining, stopping| (name.to_owned(), draining, stopping);
    assert_eq!(states().await, [of("drained", true, true), of("plain", true, true)]);
    for worker in ["plain", "drained"] {
        server.forget_worker(worker, true).await.unwrap();
    }
    assert_eq!(states().await, [of("drained", true, false)], "as before the stop");
    assert_eq!(leased_by(&server, "plain", &[]).await.len(), 1, "its successor works");
    // A drain of a worker that is to end stays, too, and an undrain withdraws both.
    server.stop_worker("plain").await.unwrap();
    server.drain_worker("plain", true).await.unwrap();
    server.forget_worker("plain", true).await.unwrap();
    assert_eq!(states().await[1], of("plain", true, false));
    server.stop_worker("plain").await.unwrap();
    let undrained = server.drain_worker("plain", false).await.unwrap();
    assert!(!undrained.draining && !undrained.stopping, "{undrained:?}");
    assert_eq!(states().await, [of("drained", true, false)]);
    server.stop().await;
}

/// The workers of `a`, and why a job of it waits.
async fn explained(server: &Server, id: &JobId) -> (WorkerStatus, &'static str, String) {
    let why = server.explain(id, None).await.unwrap();
    (why.workers.unwrap(), why.held_by.unwrap().kind, why.reason)
}

#[tokio::test]
async fn explain_counts_the_workers_of_a_type() {
    let Harness { server, clock, .. } = harness().await;
    let first = enqueue(&server, "a").await;
    let (workers, kind, reason) = explained(&server, &first.id).await;
    assert_eq!((workers.known, workers.last_seen_at, kind), (Some(0), None, "worker"));
    assert!(reason.starts_with("no worker is known"), "{reason}");

    for worker in ["w1", "w2"] {
        server.register_worker(worker, Registration::of_capacity(1)).await.unwrap();
    }
    enqueue(&server, "a").await;
    let third = enqueue(&server, "a").await;
    let seen = server.now();
    for worker in ["w1", "w2"] {
        assert_eq!(leased_by(&server, worker, &[]).await.len(), 1);
    }
    clock.advance(Duration::from_millis(1300));
    let (workers, kind, reason) = explained(&server, &third.id).await;
    let two = Some(2);
    let busy = WorkerStatus {
        known: two,
        polling: Some(0),
        busy: two,
        draining: Some(0),
        in_use: 2,
        capacity: two,
        last_seen_at: Some(seen),
    };
    assert_eq!((workers, kind), (busy.clone(), "worker"));
    let all = "all 2 workers of its type are busy; 2 of 2 in use; last heard 1.3 s ago";
    assert_eq!(reason, all);

    // A limit is named before the workers, whose state stays visible.
    let config = QueueConfig { concurrency: Some(0), ..QueueConfig::default() };
    server.put_queue(&name("a"), config, None).await.unwrap();
    let (workers, kind, _) = explained(&server, &third.id).await;
    assert_eq!((workers, kind), (busy, "concurrency"));
    let held = server.queue_status(&name("a")).await.unwrap().held;
    assert_eq!((held[0].by.kind, held[0].jobs), ("concurrency", 1), "and the queue agrees");
    server.put_queue(&name("a"), QueueConfig::default(), None).await.unwrap();

    for worker in ["w1", "w2"] {
        server.drain_worker(worker, true).await.unwrap();
    }
    let (workers, kind, reason) = explained(&server, &third.id).await;
    assert_eq!((workers.draining, kind), (two, "worker"));
    assert!(reason.starts_with("all 2 workers of its type are drained"), "{reason}");
    let held = server.explain_queue(&name("a")).await.unwrap();
    assert_eq!((held.held[0].by.kind, &held.workers["a"]), ("worker", &workers));
    server.stop().await;
}

#[tokio::test]
async fn explain_counts_workers_without_a_name() {
    let Harness { server, .. } = harness().await;
    let request = || LeaseRequest { wait: Duration::ZERO, ..ask(&["a"], 1) };
    enqueue(&server, "a").await;
    assert_eq!(server.lease(request()).await.unwrap().jobs.len(), 1);
    let second = enqueue(&server, "a").await;
    let (workers, ..) = explained(&server, &second.id).await;
    assert_eq!((workers.known, workers.busy, workers.in_use), (Some(1), Some(1), 1));
    assert_eq!(workers.capacity, None, "it has not registered one");
    // Workers of another type are others.
    let other = enqueue(&server, "b").await;
    assert_eq!(explained(&server, &other.id).await.0.known, Some(0));
    assert_eq!(server.lease(request()).await.unwrap().jobs.len(), 1);

    let mut waiting = pin!(server.lease(ask(&["a"], 5)));
    for _ in 0..50 {
        assert!(poll!(&mut waiting).is_pending());
        tokio::task::yield_now().await;
    }
    let workers = server.explain_queue(&name("a")).await.unwrap().workers.remove("a");
    let workers = workers.unwrap();
    assert_eq!((workers.known, workers.polling), (Some(1), Some(1)), "it waits for more");
    server.stop().await;
}

#[tokio::test]
async fn desired_workers_never_count_jobs_that_are_due_later() {
    let Harness { server, clock, .. } = harness().await;
    enqueue(&server, "a").await;
    let run = leased_by(&server, "w", &[]).await;
    clock.advance(Duration::from_secs(1));
    leased_by(&server, "w", &run).await;
    let jobs = async |count: usize, delay_seconds| {
        let new = || NewJob { delay_seconds, ..NewJob::new(name("a"), Payload::null()) };
        let answers = server.enqueue_many((0..count).map(|_| new()).collect()).await;
        assert!(answers.iter().all(Result::is_ok));
    };
    let desired = async || server.queue_status(&name("a")).await.unwrap().desired_workers;
    for _ in 0..5 {
        jobs(1000, Some(Seconds::new(72_000))).await;
    }
    jobs(999, None).await;
    assert_eq!(desired().await, 17, "of one second each");
    jobs(1, None).await;
    assert_eq!(desired().await, 17);
    jobs(1000, None).await;
    assert_eq!(desired().await, 34, "what is due counts in full");
    server.stop().await;
}

#[tokio::test]
async fn desired_workers_keep_to_constraints_and_rates() {
    let Harness { server, .. } = harness().await;
    let jobs = (0..600).map(|_| NewJob::new(name("a"), Payload::null())).collect();
    assert!(server.enqueue_many(jobs).await.iter().all(Result::is_ok));
    let desired = async || server.queue_status(&name("a")).await.unwrap().desired_workers;
    assert_eq!(desired().await, 600, "before the first run, each takes its lease of an hour");
    let config = server.job_type(&name("a")).await.unwrap().config;
    let config = TypeConfig { lease_seconds: Seconds::new(1), ..config };
    server.put_type(&name("a"), config, None).await.unwrap();
    assert_eq!(desired().await, 10, "or of a second");
    for (constraint, wanted) in [
        (json!({"name": "one", "concurrency": 1}), 1),
        (json!({"name": "one", "rate": {"count": 1, "per_seconds": 60}}), 1),
        (json!({"name": "one", "rate": {"count": 3, "per_seconds": 1}}), 3),
        (json!({"name": "one", "concurrency": 0}), 0),
    ] {
        let config = serde_json::from_value(json!({"constraints": [constraint]})).unwrap();
        server.put_queue(&name("a"), config, None).await.unwrap();
        assert_eq!(desired().await, wanted, "{constraint}");
    }
    server.stop().await;
}

#[tokio::test]
async fn the_running_weight_is_right_without_a_limit() {
    let Harness { server, clock, objects, store } = harness().await;
    let weight =
        async |server: &Server| server.queue_status(&name("a")).await.unwrap().running_weight;
    for (weight, critical) in [(3, false), (4, false), (5, true)] {
        let job = NewJob::new(name("a"), Payload::null()).with_options(|options| {
            options.weight = Some(weight);
            options.critical = critical;
        });
        server.enqueue(job).await.unwrap();
    }
    assert_eq!(weight(&server).await, 0);
    assert_eq!(leased_by(&server, "w", &[]).await.len(), 3);
    assert_eq!(weight(&server).await, 7, "without the critical one");
    server.stop().await;
    let server = start(&store, &clock, &objects).await;
    assert_eq!(weight(&server).await, 7, "after a restart, too");
    server.stop().await;
}

#[tokio::test]
async fn workers_that_share_a_queue_are_counted() {
    let Harness { server, clock, .. } = harness().await;
    let workers = async || server.queue_status(&name("a")).await.unwrap().workers;
    assert_eq!(workers().await, 0);
    for worker in ["w1", "w2", "w3"] {
        leased_by(&server, worker, &[]).await;
    }
    assert_eq!(workers().await, 3);
    assert_eq!(server.queue_status(&name("b")).await.unwrap().workers, 0);
    server.drain_worker("w3", true).await.unwrap();
    assert_eq!(workers().await, 2);
    clock.advance(Duration::from_secs(61));
    enqueue(&server, "a").await;
    assert_eq!(leased_by(&server, "w1", &[]).await.len(), 1);
    clock.advance(Duration::from_secs(61));
    assert_eq!(workers().await, 1, "the one that runs a job");
    server.stop().await;
}

#[tokio::test]
async fn a_waiting_lease_ends_when_its_worker_leaves() {
    for types in [&["a"][..], &["a", "b"]] {
        let Harness { server, .. } = harness().await;
        let waiting = tokio::spawn({
            let (server, worker) = (server.clone(), Some("w".to_owned()));
            let request = LeaseRequest { worker, ..ask(types, 5) };
            async move { server.lease(request).await.unwrap().jobs }
        });
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        assert!(!waiting.is_finished() && server.workers().await.unwrap().len() == 1);
        server.forget_worker("w", true).await.unwrap();
        // The clock does not move, so the wait cannot end by itself.
        let ended = tokio::time::timeout(Duration::from_secs(20), waiting).await;
        assert!(ended.expect("its wait ends").unwrap().is_empty());
        assert!(server.workers().await.unwrap().is_empty());
        server.stop().await;
    }
}

#[tokio::test]
async fn desired_workers_drain_the_due_jobs_in_a_minute_within_limits() {
    let Harness { server, clock, .. } = harness().await;
    enqueue(&server, "a").await;
    let run = leased_by(&server, "w", &[]).await;
    clock.advance(Duration::from_secs(30));
    leased_by(&server, "w", &run).await;
    let status = async || server.queue_status(&name("a")).await.unwrap();
    let later = || NewJob {
        delay_seconds: Some(Seconds::new(86_400)),
        ..NewJob::new(name("a"), Payload::null())
    };
    assert!(
        server.enqueue_many((0..1000).map(|_| later()).collect()).await.iter().all(Result::is_ok)
    );
    assert_eq!(
        (status().await.desired_workers, status().await.oldest_due_at),
        (0, None),
        "nothing is due"
    );
    let since = server.now();
    server
        .enqueue(
            NewJob::new(name("a"), Payload::null()).with_options(|options| options.critical = true),
        )
        .await
        .unwrap();
    clock.advance(Duration::from_secs(1));
    assert_eq!(
        (status().await.desired_workers, status().await.oldest_due_at),
        (1, Some(since)),
        "critical jobs wait, too"
    );
    for _ in 0..9 {
        enqueue(&server, "a").await;
    }
    assert_eq!(status().await.desired_workers, 5, "ten of half a minute");
    let config = server.job_type(&name("a")).await.unwrap().config;
    server.put_type(&name("a"), TypeConfig { weight: 2, ..config.clone() }, None).await.unwrap();
    server
        .put_queue(&name("a"), QueueConfig { concurrency: Some(7), ..QueueConfig::default() }, None)
        .await
        .unwrap();
    assert_eq!(status().await.desired_workers, 3, "of weight two, three fit");
    server.put_type(&name("a"), TypeConfig { concurrency: Some(2), ..config }, None).await.unwrap();
    assert_eq!(status().await.desired_workers, 2);
    server.pause_queue(&name("a"), true).await.unwrap();
    assert_eq!(status().await.desired_workers, 0);
    server.stop().await;
}
