//! Workers that lease jobs through the functions: within a limit, drained, and while they wait or
//! pause.

use std::time::Duration;

use tidegate_core::{
    event::trigger::{digest, hex},
    job::{Job, type_config::TypeConfig},
    port::{
        Clock, Committed, HintKind, Write,
        job_store::{Expect, Record, RecordKind, RecordQuery},
    },
    queue::{
        Ledger, QueueConfig,
        ledger::{BatchId, BatchRef, Bits},
    },
    stored::UnknownFields,
};
use tidegate_engine::{
    Demand, Dispatch, TickCache, TickInput,
    request::{LeaseRequest, Report, ReportOutcome},
    testkit::builders::name,
};

use super::model::{Cloud, job};

#[test]
fn a_worker_leases_within_a_limit_and_its_report_frees_it() {
    let cloud = Cloud::new(9);
    let limits = QueueConfig { concurrency: Some(1), ..QueueConfig::default() };
    cloud.now(cloud.server.put_queue(&name("q"), limits, None)).unwrap();
    let pull = TypeConfig { queue: name("q"), ..TypeConfig::default() };
    cloud.now(cloud.server.put_type(&name("pull"), pull, None)).unwrap();
    for number in 0..2 {
        cloud.now(cloud.server.enqueue(job("pull", number))).unwrap();
    }
    let ask = |reports| LeaseRequest {
        min: 0,
        queue: Some(name("q")),
        types: Vec::new(),
        max: 5,
        wait: Duration::ZERO,
        max_pause: Duration::ZERO,
        call: None,
        worker: Some("w".into()),
        lease_seconds: None,
        reports,
    };
    let first = cloud.now(cloud.server.lease(ask(Vec::new()))).unwrap().jobs;
    assert_eq!(first.len(), 1);
    assert!(cloud.now(cloud.server.lease(ask(Vec::new()))).unwrap().jobs.is_empty());
    let token = first[0].life.running().map(|run| run.token);
    let report = |id: &Job, token| Report {
        id: id.id.clone(),
        job_type: None,
        attempt: 1,
        token,
        outcome: ReportOutcome::Succeeded { result: None },
        checkpoint: None,
    };
    let second = cloud.now(cloud.server.lease(ask(vec![report(&first[0], token)]))).unwrap();
    assert!(second.reports[0].is_ok());
    assert_eq!(second.jobs.len(), 1);
    assert_ne!(second.jobs[0].id, first[0].id);
}

#[test]
fn a_queue_that_cannot_be_ticked_keeps_no_worker_from_others() {
    let cloud = Cloud::new(17);
    for queue in ["a", "b"] {
        let limits = QueueConfig { concurrency: Some(1), ..QueueConfig::default() };
        cloud.now(cloud.server.put_queue(&name(queue), limits, None)).unwrap();
        let config = TypeConfig { queue: name(queue), ..TypeConfig::default() };
        cloud.now(cloud.server.put_type(&name(queue), config, None)).unwrap();
        cloud.now(cloud.server.enqueue(job(queue, 0))).unwrap();
    }
    let missing = BatchRef {
        id: BatchId(7),
        count: 1,
        released: Bits::default(),
        check_at: cloud.time.now(),
        sent: true,
        sends: 0,
        unknown: UnknownFields::default(),
    };
    let store = &cloud.server.engine().ports().store;
    let (before, _) = cloud.now(store.ledger(&name("a"))).unwrap().unwrap();
    let was = Expect::Is(before.version);
    let ledger = Ledger { version: before.version + 1, batches: vec![missing], ..before };
    let write = Write::SetLedger { queue: name("a"), ledger, was };
    let committed = cloud.now(store.commit(vec![vec![write]])).unwrap();
    assert!(matches!(committed[..], [Committed::All]), "{committed:?}");
    let ask = |types: &[&str]| LeaseRequest {
        min: 0,
        queue: None,
        types: types.iter().map(|one| name(one)).collect(),
        max: 5,
        wait: Duration::ZERO,
        max_pause: Duration::ZERO,
        call: None,
        worker: Some("w".into()),
        lease_seconds: None,
        reports: Vec::new(),
    };
    assert!(cloud.now(cloud.server.lease(ask(&["a"]))).is_err());
    let leased = cloud.now(cloud.server.lease(ask(&["a", "b"]))).unwrap().jobs;
    assert_eq!(leased.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(), ["b-0"]);
}

#[test]
fn a_worker_is_drained_by_a_process_that_has_not_heard_of_it() {
    let cloud = Cloud::new(13);
    cloud.now(cloud.server.put_type(&name("pull"), TypeConfig::default(), None)).unwrap();
    cloud.now(cloud.server.enqueue(job("pull", 0))).unwrap();
    let ask = || LeaseRequest {
        min: 0,
        queue: None,
        types: vec![name("pull")],
        max: 1,
        wait: Duration::ZERO,
        max_pause: Duration::ZERO,
        call: None,
        worker: Some("elsewhere".into()),
        lease_seconds: None,
        reports: Vec::new(),
    };
    assert!(cloud.now(cloud.server.drain_worker("elsewhere", true)).unwrap().draining);
    assert!(cloud.now(cloud.server.lease(ask())).unwrap().jobs.is_empty());
    cloud.now(cloud.server.drain_worker("elsewhere", false)).unwrap();
    assert_eq!(cloud.now(cloud.server.lease(ask())).unwrap().jobs.len(), 1);

    let stopped = cloud.now(cloud.server.stop_worker("elsewhere")).unwrap();
    assert!(stopped.stopping && stopped.draining);
    assert!(cloud.now(cloud.server.lease(ask())).unwrap().jobs.is_empty());

    assert!(cloud.now(cloud.server.drain_worker(&"w".repeat(129), true)).is_err());
    assert!(cloud.now(cloud.server.stop_worker(&"w".repeat(129))).is_err());
    assert!(
        cloud.now(cloud.server.drain_worker("unknown", false)).is_err(),
        "an unknown worker cannot be drained"
    );
}

#[test]
fn a_worker_that_waits_is_given_a_job_that_comes_meanwhile() {
    let cloud = Cloud::new(10);
    cloud.now(cloud.server.put_type(&name("pull"), TypeConfig::default(), None)).unwrap();
    let start = cloud.time.now() + Duration::from_secs(1);
    let leased = std::sync::Arc::new(parking_lot::Mutex::new(None));
    let (server, time, result) =
        (cloud.server.clone(), std::sync::Arc::clone(&cloud.time), std::sync::Arc::clone(&leased));
    cloud.time.spawn(async move {
        let ask = LeaseRequest {
            min: 0,
            queue: None,
            types: vec![name("pull")],
            max: 1,
            wait: Duration::from_secs(20),
            max_pause: Duration::ZERO,
            call: None,
            worker: None,
            lease_seconds: None,
            reports: Vec::new(),
        };
        let jobs = server.lease(ask).await.unwrap().jobs;
        *result.lock() = Some((jobs.len(), time.now()));
    });
    cloud.enqueue_at(start + Duration::from_secs(5), job("pull", 0));
    cloud.time.run(start + Duration::from_mins(1));
    let (count, at) = leased.lock().expect("the call is over");
    assert_eq!(count, 1);
    assert!(at.since(start + Duration::from_secs(5)) < Duration::from_millis(1500), "{at}");
}

/// A request for one job of the queue `q`.
fn one(worker: &str, wait: u64, reports: Vec<Report>) -> LeaseRequest {
    LeaseRequest {
        min: 0,
        queue: Some(name("q")),
        types: Vec::new(),
        max: 1,
        wait: Duration::from_secs(wait),
        max_pause: Duration::ZERO,
        call: None,
        worker: Some(worker.into()),
        lease_seconds: None,
        reports,
    }
}

fn succeeded(job: &Job) -> Report {
    Report {
        id: job.id.clone(),
        job_type: None,
        attempt: job.life.attempt,
        token: job.life.running().map(|run| run.token),
        outcome: ReportOutcome::Succeeded { result: None },
        checkpoint: None,
    }
}

/// A cloud with a pulled type in the queue `q` of this concurrency.
fn pulled(seed: u64, concurrency: Option<u32>) -> Cloud {
    let cloud = Cloud::new(seed);
    let limits = QueueConfig { concurrency, ..QueueConfig::default() };
    cloud.now(cloud.server.put_queue(&name("q"), limits, None)).unwrap();
    let pull = TypeConfig { queue: name("q"), ..TypeConfig::default() };
    cloud.now(cloud.server.put_type(&name("pull"), pull, None)).unwrap();
    cloud
}

type Log = std::sync::Arc<parking_lot::Mutex<Vec<(usize, tidegate_core::time::Timestamp)>>>;

/// Workers that take one job after the other, each for `takes`, for ten minutes. Returns when each
/// job started, with the number of jobs that ran then.
fn start_workers(cloud: &Cloud, count: usize, takes: Duration) -> Log {
    let log = Log::default();
    let running = std::sync::Arc::new(parking_lot::Mutex::new(0));
    for number in 0..count {
        let (server, time) = (cloud.server.clone(), std::sync::Arc::clone(&cloud.time));
        let (log, running) = (std::sync::Arc::clone(&log), std::sync::Arc::clone(&running));
        let end = time.now() + Duration::from_mins(10);
        cloud.time.spawn(async move {
            let mut reports = Vec::new();
            while time.now() < end {
                let ask = one(&format!("w{number}"), 20, std::mem::take(&mut reports));
                let leased = server.lease(ask).await.unwrap();
                server.flush().await.unwrap();
                for job in leased.jobs {
                    *running.lock() += 1;
                    log.lock().push((*running.lock(), time.now()));
                    time.sleep_until(time.now() + takes).await;
                    *running.lock() -= 1;
                    reports.push(succeeded(&job));
                }
            }
        });
    }
    log
}

#[test]
fn many_workers_use_the_whole_limit_and_never_more() {
    let cloud = pulled(21, Some(4));
    let jobs = (0..200).map(|number| job("pull", number)).collect();
    for enqueued in cloud.now(cloud.server.enqueue_many(jobs)) {
        enqueued.unwrap();
    }
    let start = cloud.time.now();
    let log = start_workers(&cloud, 12, Duration::from_secs(1));
    cloud.time.run(start + Duration::from_mins(3));
    let log = log.lock();
    assert_eq!(log.len(), 200);
    assert_eq!(log.iter().map(|(running, _)| *running).max(), Some(4));
    let took = log.last().unwrap().1.since(start);
    assert!(took < Duration::from_secs(75), "200 jobs of 1 s, four at once, take {took:?}");
}

#[test]
fn a_job_wakes_a_worker_that_waits_with_or_without_a_limit() {
    for concurrency in [None, Some(4)] {
        let cloud = pulled(22, concurrency);
        let start = cloud.time.now() + Duration::from_mins(1);
        let log = start_workers(&cloud, 6, Duration::from_millis(200));
        for number in 0..10 {
            let at = start + Duration::from_secs(7 * number as u64);
            cloud.enqueue_at(at, job("pull", number));
        }
        let mut later = job("pull", 99);
        later.delay_seconds = Some(tidegate_core::time::Seconds::new(30));
        cloud.enqueue_at(start + Duration::from_secs(80), later);
        cloud.time.run(start + Duration::from_mins(3));
        let starts: Vec<_> = log.lock().iter().map(|(_, at)| *at).collect();
        assert_eq!(starts.len(), 11, "{concurrency:?}");
        for (number, at) in starts.iter().enumerate() {
            let due = if number < 10 { 7 * number as u64 } else { 110 };
            let delay = at.since(start + Duration::from_secs(due));
            assert!(delay < Duration::from_millis(1800), "{concurrency:?}, {number}: {delay:?}");
        }
    }
}

#[test]
fn a_worker_that_accepts_pauses_is_answered_at_once() {
    let cloud = pulled(23, Some(2));
    let ask = || LeaseRequest { max_pause: Duration::from_secs(8), ..one("w", 20, Vec::new()) };
    let leased = cloud.now(cloud.server.lease(ask())).unwrap();
    assert_eq!(leased.pause, Some(Duration::from_secs(1)), "nothing is known yet");
    cloud.time.run(cloud.time.now() + Duration::from_secs(20));
    let leased = cloud.now(cloud.server.lease(ask())).unwrap();
    assert_eq!(leased.pause, Some(Duration::from_secs(5)), "a quarter of the idle time");
    cloud.time.run(cloud.time.now() + Duration::from_mins(5));
    let leased = cloud.now(cloud.server.lease(ask())).unwrap();
    assert_eq!(leased.pause, Some(Duration::from_secs(8)), "no more than it accepts");
    let mut soon = job("pull", 0);
    soon.delay_seconds = Some(tidegate_core::time::Seconds::new(3));
    cloud.now(cloud.server.enqueue(soon)).unwrap();
    let leased = cloud.now(cloud.server.lease(ask())).unwrap();
    assert_eq!(leased.pause, Some(Duration::from_secs(3)), "until the next job is due");
    cloud.time.run(cloud.time.now() + Duration::from_secs(3));
    let leased = cloud.now(cloud.server.lease(ask())).unwrap();
    assert_eq!((leased.jobs.len(), leased.pause), (1, None));
    let refused = LeaseRequest { max_pause: Duration::from_secs(61), ..ask() };
    assert!(cloud.now(cloud.server.lease(refused)).is_err());
}

/// A tick of the queue `q` that offers jobs of `job_type` to a call that waits.
fn offering(job_type: &str) -> TickInput {
    let demand = Demand {
        min: 0,
        types: vec![name(job_type)],
        capacity: 1,
        worker: None,
        lease: None,
        dispatch: Dispatch::Offer,
        call: None,
    };
    TickInput { demands: vec![demand], queue_changed: true, ..TickInput::default() }
}

/// The records of demands.
fn demands(cloud: &Cloud) -> Vec<Record> {
    let prefix = format!("{}.", hex(&digest(&["q"])[..16]));
    let query = RecordQuery { kind: RecordKind::Demand, prefix, after: None, limit: 10 };
    cloud.now(cloud.server.engine().ports().store.records(&[query])).unwrap().remove(0)
}

/// Starts a call for one job of `job_type`, and returns where its jobs will be.
fn start_call(cloud: &Cloud, job_type: &str) -> std::sync::Arc<parking_lot::Mutex<Vec<Job>>> {
    let leased: std::sync::Arc<parking_lot::Mutex<Vec<Job>>> = std::sync::Arc::default();
    let (server, result) = (cloud.server.clone(), std::sync::Arc::clone(&leased));
    let ask = LeaseRequest { types: vec![name(job_type)], ..one("w", 4, Vec::new()) };
    cloud.time.spawn(async move {
        *result.lock() = server.lease(ask).await.unwrap().jobs;
        server.flush().await.unwrap();
    });
    leased
}

#[test]
fn an_offer_to_an_earlier_call_of_a_place_is_given_back() {
    let cloud = pulled(24, Some(1));
    let other = TypeConfig { queue: name("q"), ..TypeConfig::default() };
    cloud.now(cloud.server.put_type(&name("other"), other, None)).unwrap();
    let wait = |seconds| cloud.time.run(cloud.time.now() + Duration::from_secs(seconds));
    let first = start_call(&cloud, "pull");
    wait(2);
    let [posted] = &demands(&cloud)[..] else { panic!("one call waits") };
    wait(5);
    assert!(first.lock().is_empty());
    cloud.now(cloud.server.enqueue(job("pull", 0))).unwrap();
    let (engine, cache) = (cloud.server.engine(), &mut TickCache::default());
    let offers = cloud.now(engine.tick(&name("q"), cache, offering("pull"))).unwrap().offers;
    let [(0, work)] = &offers[..] else { panic!("it is offered: {offers:?}") };
    // The answer of a slow tick is written when another call has the place.
    let second = start_call(&cloud, "other");
    wait(1);
    assert_eq!(demands(&cloud)[0].name, posted.name, "the place is free again");
    let mut content: serde_json::Value = serde_json::from_slice(&posted.bytes).unwrap();
    content["offers"] = serde_json::json!([{
        "job": work.job, "version": work.version, "granted_at": work.granted_at,
    }]);
    let answer = Record { bytes: serde_json::to_vec(&content).unwrap(), ..posted.clone() };
    let store = &engine.ports().store;
    cloud.now(store.commit(vec![vec![Write::PutRecord(answer)]])).unwrap();
    wait(2);
    assert!(second.lock().is_empty(), "it did not ask for this type");
    let third = start_call(&cloud, "pull");
    wait(2);
    let leased = third.lock();
    assert_eq!(leased.len(), 1, "the slot is free before the grant is checked");
    assert_eq!(leased[0].life.attempt, 1, "no attempt was used up");
}

#[test]
fn no_job_is_offered_or_started_without_a_ledger() {
    let cloud = pulled(25, None);
    cloud.now(cloud.server.enqueue(job("pull", 0))).unwrap();
    let (engine, cache) = (cloud.server.engine(), &mut TickCache::default());
    let outcome = cloud.now(engine.tick(&name("q"), cache, offering("pull"))).unwrap();
    assert!(outcome.offers.is_empty());
    assert!(outcome.claimed.is_empty(), "no worker would have it");
    let leased = cloud.now(cloud.server.lease(one("w", 0, Vec::new()))).unwrap().jobs;
    assert_eq!((leased.len(), leased[0].life.attempt), (1, 1));
}

#[test]
fn a_tick_that_leaves_demands_to_another_still_releases_grants() {
    let cloud = pulled(26, Some(1));
    cloud.now(cloud.server.enqueue(job("pull", 0))).unwrap();
    let leased = cloud.now(cloud.server.lease(one("w", 0, Vec::new()))).unwrap().jobs;
    let (engine, queue) = (cloud.server.engine(), name("q"));
    let store = &engine.ports().store;
    let ledger = || cloud.now(store.ledger(&queue)).unwrap().unwrap();
    let grant = ledger().1[0].grants[0].clone();
    cloud.now(engine.report(&queue, vec![succeeded(&leased[0])])).unwrap();
    assert_eq!(ledger().0.batches.len(), 1, "a report outside a tick only hints");
    cloud.leave_release(grant.digest());
    // Another process shows that it serves the demands of the queue.
    let shown = Record {
        kind: RecordKind::Demand,
        name: format!("{}.-", hex(&digest(&["q"])[..16])),
        until: cloud.time.now() + Duration::from_secs(3),
        bytes: b"null".to_vec(),
    };
    cloud.now(store.commit(vec![vec![Write::PutRecord(shown)]])).unwrap();
    let until = cloud.time.now() + Duration::from_mins(1);
    cloud.now(cloud.server.tick_queue(&queue, vec![HintKind::Due], until)).unwrap();
    assert_eq!(ledger().0.batches, []);
}

#[test]
fn a_call_of_an_older_release_is_answered_where_it_looks() {
    let cloud = pulled(27, Some(1));
    let _leased = start_call(&cloud, "pull");
    cloud.time.run(cloud.time.now() + Duration::from_secs(2));
    let [posted] = &demands(&cloud)[..] else { panic!("one call waits") };
    // Its records have no group.
    let until = cloud.time.now() + Duration::from_secs(40);
    let mut content: serde_json::Value = serde_json::from_slice(&posted.bytes).unwrap();
    content["until"] = serde_json::to_value(until).unwrap();
    let older = Record {
        name: posted.name.replacen('.', "-", 1),
        until,
        bytes: serde_json::to_vec(&content).unwrap(),
        ..posted.clone()
    };
    let store = &cloud.server.engine().ports().store;
    cloud.now(store.commit(vec![vec![Write::PutRecord(older.clone())]])).unwrap();
    // A process looks for them every ten seconds.
    cloud.time.run(cloud.time.now() + Duration::from_secs(11));
    cloud.now(cloud.server.enqueue(job("pull", 0))).unwrap();
    let until = cloud.time.now() + Duration::from_mins(1);
    cloud.now(cloud.server.tick_queue(&name("q"), vec![HintKind::Due], until)).unwrap();
    let (kind, prefix) = (RecordKind::Demand, older.name);
    let query = RecordQuery { kind, prefix, after: None, limit: 10 };
    let found = cloud.now(store.records(&[query])).unwrap().remove(0).remove(0);
    let content: serde_json::Value = serde_json::from_slice(&found.bytes).unwrap();
    assert_eq!(content["offers"][0]["job"], "pull-0");
}
