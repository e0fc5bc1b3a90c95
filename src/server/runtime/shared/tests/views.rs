//! What any server shows of all.

use bytes::Bytes;
use serde_json::json;

use super::*;
use crate::runtime::testing::{event, send_event};
use tidegate_api::{HistoryPoint, HistoryRange, TriggerStatus};
use tidegate_backends::wasm::{PluginHost, Run};
use tidegate_core::{
    event::TriggerConfig,
    job::{PluginName, TriggerName},
    port::policy::{Call, Fault, FaultKind, Plugin, Policy as _, RetryCall},
    queue::plugin::Description,
    time::Seconds,
};
use tidegate_engine::{
    plugins::registry::{NewVersion, Stage},
    testkit::builders,
};

#[tokio::test]
async fn each_server_lists_what_a_worker_runs_by_all() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two("default").await;
    owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    owner.register_worker("w", Registration::default()).await.unwrap();
    owner.enqueue(job()).await.unwrap();
    let of_worker = LeaseRequest { worker: Some("w".into()), ..request() };
    let leased = deployment.within(BY_NOTICE, owner.lease(of_worker)).await.unwrap();
    let listed = async |server: &Server| {
        let workers = server.workers().await.unwrap();
        workers.into_iter().map(|worker| (worker.name, worker.running)).collect::<Vec<_>>()
    };
    for server in [&owner, &other] {
        assert_eq!(listed(server).await, [("w".to_owned(), 1)]);
    }
    let answers = other.report(vec![success(&leased.jobs[0])]);
    deployment.within(BY_NOTICE, answers).await.pop().unwrap().unwrap();
    deployment.pass(MAX_RUNNING_AGE).await;
    for server in [&owner, &other] {
        assert_eq!(listed(server).await, [("w".to_owned(), 0)]);
    }
}

#[tokio::test]
async fn the_owner_shows_the_weight_that_another_server_started() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two("default").await;
    let config = QueueConfig { concurrency: Some(3), ..QueueConfig::default() };
    owner.put_queue(&name("default"), config, None).await.unwrap();
    owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    other.enqueue(job()).await.unwrap();
    deployment.pass(BY_NOTICE).await;
    let leased = deployment.within(BY_NOTICE, other.lease(request())).await.unwrap();
    assert_eq!(leased.jobs.len(), 1);
    for server in [&owner, &other] {
        let status = server.queue_status(&name("default")).await.unwrap();
        assert_eq!(status.running_weight, 1);
    }
}

#[tokio::test]
async fn the_history_of_any_server_has_the_phases_of_jobs() {
    let deployment = Deployment::new();
    // The default queue, without a configuration.
    let (owner, other) = deployment.two(SWEEP).await;
    owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    for delay_seconds in [None, Some(Seconds::new(86_400)), None] {
        other.enqueue(NewJob { delay_seconds, ..job() }).await.unwrap();
    }
    deployment.pass(Duration::from_secs(130)).await;
    for server in [&owner, &other] {
        let queue = name("default");
        let history = server.queue_history(&queue, HistoryRange::Hour).await.unwrap();
        let last = history.points.last().expect("it was swept");
        assert_eq!((last.ready, last.scheduled, last.running), (2, 1, 0));
    }
}

/// The sum of a number over the steps of the hour of the default queue.
async fn sum(server: &Server, of: fn(&HistoryPoint) -> Option<u64>) -> u64 {
    let history = server.queue_history(&name("default"), HistoryRange::Hour).await.unwrap();
    history.points.iter().filter_map(of).sum()
}

#[tokio::test]
async fn the_history_of_any_server_has_what_all_counted() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two(SWEEP).await;
    owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    for server in [&owner, &other, &other] {
        server.enqueue(job()).await.unwrap();
    }
    let mut leased = Vec::new();
    for server in [&owner, &other] {
        let of_worker = LeaseRequest {
            worker: Some("w".into()),
            lease_seconds: Some(Seconds::new(600)),
            ..request()
        };
        leased.extend(deployment.within(BY_NOTICE, server.lease(of_worker)).await.unwrap().jobs);
    }
    let answers = other.report(vec![success(&leased[0])]);
    deployment.within(BY_NOTICE, answers).await.pop().unwrap().unwrap();
    // Two minutes are added by then.
    deployment.pass(Duration::from_secs(135)).await;
    for server in [&owner, &other] {
        assert_eq!(sum(server, |point| point.enqueued).await, 3);
        assert_eq!(sum(server, |point| point.started).await, 2);
        assert_eq!(sum(server, |point| Some(point.finished)).await, 1);
        let has_delays = |point: &HistoryPoint| point.start_delay_seconds.map(|_| 1);
        assert_eq!(sum(server, has_delays).await, 1, "all of it was in one minute");
        let history = server.type_history(&name("work"), HistoryRange::Hour).await.unwrap();
        let last = history.points.last().unwrap();
        assert_eq!((last.ready, last.running), (1, 1));
        let of_worker = server.worker_history("w", HistoryRange::Hour).await.unwrap();
        let finished: u64 = of_worker.points.iter().map(|point| point.finished).sum();
        let last = of_worker.points.last().unwrap();
        assert_eq!((of_worker.step_seconds, finished, last.running), (60, 1, 1));
    }
}

#[tokio::test]
async fn what_a_server_counted_before_its_stop_is_in_the_history() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two(SWEEP).await;
    owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    owner.enqueue(job()).await.unwrap();
    deployment.within(BY_NOTICE, owner.stop()).await;
    // Another one adds it now.
    deployment.pass(Duration::from_secs(135)).await;
    assert_eq!(sum(&other, |point| point.enqueued).await, 1);
    // The steps of the day are sums of these.
    deployment.clock.advance(Duration::from_mins(3));
    deployment.pass(Duration::from_secs(5)).await;
    let day = other.queue_history(&name("default"), HistoryRange::Day).await.unwrap();
    let enqueued: u64 = day.points.iter().filter_map(|point| point.enqueued).sum();
    assert_eq!((enqueued, day.step_seconds), (1, 300));
}

/// The status of the trigger `uploads`, as `server` shows it.
async fn status(server: &Server) -> TriggerStatus {
    let trigger: TriggerName = name("uploads");
    let mut statuses = server.trigger_statuses(&[trigger], 200).await.unwrap();
    statuses.pop().flatten().unwrap()
}

#[tokio::test]
async fn each_server_shows_what_a_trigger_did_at_all() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two(SWEEP).await;
    owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let config = json!({"filter": {"type": "put"}, "enqueue": {"type": "work"}});
    let config: TriggerConfig = serde_json::from_value(config).unwrap();
    owner.put_trigger(&name("uploads"), config, None).await.unwrap();
    assert_eq!(status(&other).await.matched, 0);
    for (number, server) in [&owner, &other, &owner].into_iter().enumerate() {
        send_event(server, &number.to_string()).await;
        deployment.pass(2 * PART_INTERVAL).await;
    }
    deployment.pass(2 * PART_INTERVAL).await;
    for server in [&owner, &other] {
        let TriggerStatus { matched, enqueued, recent, .. } = status(server).await;
        let ids: Vec<&str> = recent.iter().map(|event| event.event.id.as_str()).collect();
        assert_eq!((matched, enqueued, &ids[..]), (3, 3, &["2", "1", "0"][..]));
    }
    other.delete_trigger(&name("uploads"), None).await.unwrap();
    assert_eq!(status(&owner).await.matched, 0);
}

#[tokio::test]
async fn each_server_shows_the_faults_of_a_plugin_at_all() {
    let deployment = Deployment::new();
    let mut servers = Vec::new();
    for _ in 0..2 {
        let (objects, clock) = (Arc::new(InMemory::new()), &deployment.clock);
        let host = PluginHost::new(objects, Arc::clone(clock) as _, Run::Here).unwrap();
        let host = Arc::new(host);
        let builder = deployment.builder(Arc::clone(&deployment.store), None, None);
        let server = builder.run_plugins(Arc::clone(&host)).start().await.unwrap();
        servers.push((server, host));
    }
    let share: PluginName = name("share");
    let version = NewVersion {
        wasm: Bytes::from("v1"),
        throttler: None,
        retry: Some(Description::default()),
        code: vec![],
    };
    let (first, _) = &servers[0];
    first.push_plugin(&share, version, Stage::Live).await.unwrap();
    let item = first.plugin(&share).await.unwrap();
    let plugin = Plugin { name: share.clone(), version: Arc::clone(item.numbered(1).unwrap()) };
    let call = Call::Retry(Arc::new(RetryCall {
        queue: name("default"),
        now: first.now(),
        seed: 0,
        config: "{}".into(),
        job: builders::job("j").build(),
        data: None,
        not_before: None,
        host: None,
        state: Arc::default(),
    }));
    let fault = Fault { kind: FaultKind::Trapped, message: "no".into() };
    for (_, host) in &servers {
        host.report_fault(&plugin, &call, &fault);
    }
    deployment.pass(3 * PART_INTERVAL).await;
    for (server, _) in &servers {
        let health = server.plugin_seen(&share).await.unwrap().live.health;
        assert_eq!((health.faults, health.failing), (2, true));
        assert_eq!(health.last_fault.map(|fault| fault.message).as_deref(), Some("no"));
    }
    first.delete_plugin(&share).await.unwrap();
    assert_eq!(servers[1].0.plugin_seen(&share).await.unwrap().live.health.faults, 0);
}

/// What `server` shows in its gauges of dead letters and pending replies.
fn swept(server: &Server) -> [Option<u64>; 2] {
    let shared = server.inner.shared.as_ref().expect("it shares its store");
    let SweptCounts { dead_letters, pending_replies } = *shared.swept.lock();
    [dead_letters, pending_replies]
}

async fn keep_dead_letter(server: &Server, id: &str) {
    server.engine().keep_malformed(&[(event(id), "malformed".into())]).await.unwrap();
}

#[tokio::test]
async fn each_server_shows_how_many_dead_letters_there_are() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two(SWEEP).await;
    for (count, server) in [(1, &other), (2, &owner)] {
        keep_dead_letter(server, &count.to_string()).await;
        deployment.pass(3 * BEAT_INTERVAL).await;
        for server in [&owner, &other] {
            assert_eq!(swept(server), [Some(count), Some(0)]);
        }
    }
}

#[tokio::test]
async fn a_server_that_lost_the_sweep_shows_what_its_owner_counts() {
    let (deployment, former, owner) = loop {
        let deployment = Deployment::new();
        let first = deployment.start().await;
        keep_dead_letter(&first, "0").await;
        deployment.pass(BEAT_INTERVAL).await;
        assert_eq!(swept(&first), [Some(1), Some(0)]);
        let later = deployment.start().await;
        let is_known = async || members(&first) == 2 && members(&later) == 2;
        deployment.until(BY_NOTICE, is_known).await;
        if later.inner.owns(SWEEP) {
            break (deployment, first, later);
        }
    };
    keep_dead_letter(&former, "1").await;
    deployment.pass(3 * BEAT_INTERVAL).await;
    for server in [&former, &owner] {
        assert_eq!(swept(server), [Some(2), Some(0)]);
    }
}

/// A dashboard shows the most that a server holds: an old number would stay in it.
#[tokio::test]
async fn a_server_without_workers_shows_no_held_jobs() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two("default").await;
    let config = QueueConfig { concurrency: Some(1), ..QueueConfig::default() };
    owner.put_queue(&name("default"), config, None).await.unwrap();
    owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    for _ in 0..3 {
        owner.enqueue(job()).await.unwrap();
    }
    let held = |server: &Server| {
        let queue: QueueName = name("default");
        let queues = server.inner.queues.lock();
        queues.get(&queue).map_or(0, |known| known.snapshot().held.values().sum::<u64>())
    };
    for server in [&owner, &other] {
        let no_wait = LeaseRequest { max: 3, wait: Duration::ZERO, ..request() };
        deployment.within(BY_NOTICE, server.lease(no_wait)).await.unwrap();
    }
    assert!(held(&other) > 0, "its worker got none of the jobs");
    deployment.pass(Duration::from_secs(10)).await;
    for server in [&owner, &other] {
        assert_eq!(held(server), 0);
    }
}
