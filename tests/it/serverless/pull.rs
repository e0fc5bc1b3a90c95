//! Workers that lease jobs through the functions: within a limit, drained, and while they wait.

use std::time::Duration;

use tidegate_core::{
    job::{Job, type_config::TypeConfig},
    port::{Clock, Committed, Write, job_store::Expect},
    queue::{
        Ledger, QueueConfig,
        ledger::{BatchId, BatchRef, Bits},
    },
    stored::UnknownFields,
};
use tidegate_engine::{
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
        queue: Some(name("q")),
        types: Vec::new(),
        max: 5,
        wait: Duration::ZERO,
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
        queue: None,
        types: types.iter().map(|one| name(one)).collect(),
        max: 5,
        wait: Duration::ZERO,
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
        queue: None,
        types: vec![name("pull")],
        max: 1,
        wait: Duration::ZERO,
        worker: Some("elsewhere".into()),
        lease_seconds: None,
        reports: Vec::new(),
    };
    assert!(cloud.now(cloud.server.drain_worker("elsewhere", true)).unwrap().draining);
    assert!(cloud.now(cloud.server.lease(ask())).unwrap().jobs.is_empty());
    cloud.now(cloud.server.drain_worker("elsewhere", false)).unwrap();
    assert_eq!(cloud.now(cloud.server.lease(ask())).unwrap().jobs.len(), 1);

    assert!(cloud.now(cloud.server.drain_worker(&"w".repeat(129), true)).is_err());
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
            queue: None,
            types: vec![name("pull")],
            max: 1,
            wait: Duration::from_secs(20),
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
