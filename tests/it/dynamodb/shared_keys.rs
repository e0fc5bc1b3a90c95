//! Keys that all requests share: none of them is read or written with every request. A partition
//! key answers 3000 reads and takes 1000 writes a second.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use object_store::memory::InMemory;
use tidegate_backends::{
    dynamodb::{
        DynamoStore,
        memory::MemoryTable,
        table::{Change, Item, Table, Val},
    },
    testkit::meter::table::Metered,
};
use tidegate_core::{
    job::{
        Payload,
        type_config::{Start, TypeConfig},
    },
    port::{
        Clock, Committed, JobStore, Target, Work, Write,
        job_store::{CurrentRecord, ItemKind, Txn},
        policy::NoPolicy,
        target::{Request, Response, TargetError},
    },
    queue::QueueConfig,
    target::{Push, TargetConfig},
};
use tidegate_engine::{
    Ports,
    memory::{FakeClock, MemoryWorkQueue, SeededEntropy},
    request::{NewJob, ReportOutcome},
    testkit::builders::{at, name},
    ungranted_work,
};

use tidegate_server::Server;

use crate::cases::harness::{Harness, report};

type Counted = Metered<MemoryTable>;

/// The reads of partition keys that start with `prefix` since the last call: of the one that is
/// read most, and of all.
fn reads(table: &Counted, prefix: &str) -> (f64, f64) {
    let of_keys = table.take_partitions().into_iter().filter(|(key, _)| key.starts_with(prefix));
    let counts: Vec<f64> = of_keys.map(|(_, bill)| bill.reads).collect();
    (counts.iter().copied().fold(0.0, f64::max), counts.iter().sum())
}

/// Queues whose jobs are pushed, each with one type of its own name, on a table that counts.
async fn queues(names: &[&str], start: Start) -> (Harness, Arc<Counted>) {
    let (table, clock) =
        (Counted::new(MemoryTable::new()), Arc::new(FakeClock::new(at(1_000_000))));
    let entropy = Arc::new(SeededEntropy::new(3));
    let store = DynamoStore::new(Arc::clone(&table) as _, Arc::clone(&clock) as _, entropy);
    let harness = Harness::at(Arc::new(store), clock);
    for queue in names {
        let config = QueueConfig::default();
        harness.engine.put_queue(&name(queue), config, None).await.unwrap();
        let target = TargetConfig::Push(Box::new(Push::to("http://worker.example/")));
        let push =
            TypeConfig { queue: name(queue), target: Some(target), start, ..TypeConfig::default() };
        harness.set_type(queue, push).await;
    }
    // The configuration is older than any write in flight.
    harness.wait(60);
    (harness, table)
}

/// The messages of new jobs of these types.
async fn messages(harness: &Harness, types: &[&str]) -> Vec<Work> {
    let jobs = types.iter().map(|of| NewJob::new(name(of), Payload::null()));
    let jobs = harness.enqueue_many(jobs.collect::<Vec<_>>()).await;
    jobs.iter().filter_map(ungranted_work).collect()
}

#[tokio::test]
async fn single_claims_of_a_queue_share_no_key() {
    let (harness, table) = queues(&["mail"], Start::Claim).await;
    let work = messages(&harness, &["mail"; 300]).await;
    harness.wait(1);
    reads(&table, "");
    for work in work {
        let claims = harness.engine.claim(std::slice::from_ref(&work), None).await.unwrap();
        assert!(claims[0].is_some());
    }
    let (most, all) = reads(&table, "C#");
    // A version of the configuration before each claim, and one with it, of sixteen copies.
    assert!(all <= 620.0, "{all}");
    assert!(most <= 620.0 / 16.0 * 2.0, "one key is read with every claim: {most}");
}

#[tokio::test]
async fn each_of_many_enqueues_reads_the_version_once() {
    let (harness, table) = queues(&["mail"], Start::Claim).await;
    harness.enqueue(NewJob::new(name("mail"), Payload::null())).await;
    reads(&table, "");
    for _ in 0..300 {
        harness.enqueue(NewJob::new(name("mail"), Payload::null())).await;
    }
    // With its write. The one before it is of the first enqueue.
    let (_, all) = reads(&table, "C#");
    assert!(all <= 300.0, "{all}");
}

#[tokio::test]
async fn only_the_current_configuration_refuses_a_job() {
    let (harness, _) = queues(&["mail"], Start::Claim).await;
    // This process knows the configuration, and another one changes it.
    harness.enqueue(NewJob::new(name("mail"), Payload::null())).await;
    harness.another().put_type(&name("later"), TypeConfig::default(), None).await.unwrap();
    let unknown = NewJob::new(name("unknown"), Payload::null());
    let later = NewJob::new(name("later"), Payload::null());
    let answers = harness.engine.enqueue(vec![later.clone(), unknown, later]).await;
    assert!(answers[0].is_ok() && answers[1].is_err() && answers[2].is_ok(), "{answers:?}");
}

#[tokio::test]
async fn work_of_many_queues_reads_the_configuration_once() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let (harness, table) = queues(&names, Start::Plain).await;
    // The first messages find that the queues have no ledgers.
    for _ in 0..2 {
        let work = messages(&harness, &names).await;
        harness.wait(2);
        reads(&table, "");
        let claims = harness.engine.claim(&work, None).await.unwrap();
        assert!(reads(&table, "C#").1 <= 1.0, "of its claims");
        for claimed in claims {
            let job = claimed.expect("it is due").job;
            let report = report(&job, ReportOutcome::Succeeded { result: None });
            let outcome = harness.engine.report(&job.spec.queue, vec![report]).await.unwrap();
            assert!(outcome.reports[0].is_ok());
        }
        assert!(reads(&table, "C#").1 <= 0.0, "of results a moment later");
    }
}

#[tokio::test]
async fn a_required_item_is_seen_to_change_in_another_process() {
    let (table, clock) =
        (Counted::new(MemoryTable::new()), Arc::new(FakeClock::new(at(1_000_000))));
    let store = |seed| {
        let entropy = Arc::new(SeededEntropy::new(seed));
        DynamoStore::new(Arc::clone(&table) as _, Arc::clone(&clock) as _, entropy)
    };
    let (ours, other) = (store(1), store(2));
    let set = async |was, version, bytes: Option<Vec<u8>>| {
        let (kind, name) = (ItemKind::Queue, "mail".to_owned());
        let write = Write::SetItem { kind, name, was, version, bytes };
        let committed = other.commit(vec![vec![write]]).await.unwrap();
        assert!(matches!(committed[..], [Committed::All]));
    };
    let require = async |version| {
        let write = Write::RequireItem { kind: ItemKind::Queue, name: "mail".into(), version };
        let txn: Txn = vec![write];
        ours.commit(vec![txn]).await.unwrap().remove(0)
    };
    let is_at = async |version: u64| {
        assert!(matches!(require(version).await, Committed::All), "{version}");
        let Committed::Conflict { current, .. } = require(version + 7).await else {
            panic!("it is at {version}");
        };
        match current {
            CurrentRecord::Nothing => assert_eq!(version, 0),
            CurrentRecord::Version(current) => assert_eq!(version, current),
            other => panic!("{other:?}"),
        }
    };
    is_at(0).await;
    set(0, 1, Some(b"{}".to_vec())).await;
    // At once, while a write may be in flight, and later.
    for seconds in [0, 10, 30, 100] {
        clock.advance(Duration::from_secs(seconds));
        ours.items_version().await.unwrap();
        is_at(1).await;
        is_at(1).await;
    }
    reads(&table, "");
    is_at(1).await;
    assert!(reads(&table, "C#queue").1 <= 0.0, "it is remembered");
    set(1, 2, Some(b"{}".to_vec())).await;
    is_at(2).await;
    clock.advance(Duration::from_secs(100));
    is_at(2).await;
    is_at(2).await;
    set(2, 3, None).await;
    is_at(0).await;
    clock.advance(Duration::from_secs(100));
    is_at(0).await;
    set(0, 4, Some(b"{}".to_vec())).await;
    is_at(4).await;
}

#[tokio::test]
async fn an_item_read_within_its_change_is_not_remembered() {
    let (table, clock) =
        (Counted::new(MemoryTable::new()), Arc::new(FakeClock::new(at(1_000_000))));
    let entropy = Arc::new(SeededEntropy::new(1));
    let store = DynamoStore::new(Arc::clone(&table) as _, Arc::clone(&clock) as _, entropy);
    let (kind, queue) = (ItemKind::Queue, "mail".to_owned());
    let set =
        Write::SetItem { kind, name: queue.clone(), was: 0, version: 1, bytes: Some(vec![b'1']) };
    store.commit(vec![vec![set]]).await.unwrap();
    clock.advance(Duration::from_mins(1));
    // Another process changes the queue. The version of the configuration is visible first.
    let version = Val::N((clock.now().millis() as u64) << 22);
    let of = |item: &Item| item.key.s == "version";
    let versions = table.table().items().into_iter().filter(of);
    let changes: Vec<Change> =
        versions.map(|item| Change::Put(Item::new(item.key, [('v', version.clone())]))).collect();
    assert_eq!(changes.len(), 17);
    table.write(&changes).await.unwrap();
    let require = async || {
        let write = Write::RequireItem { kind, name: queue.as_str().into(), version: 1 };
        store.commit(vec![vec![write]]).await.unwrap().remove(0)
    };
    store.items_version().await.unwrap();
    assert!(matches!(require().await, Committed::All), "the change is not answered yet");
    let item = table.table().items().into_iter().find(|item| item.key.p == "C#queue").unwrap();
    let changed = Item::new(item.key, item.attrs.into_iter().chain([('v', Val::N(2))]));
    table.write(&[Change::Put(changed)]).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(require().await, Committed::Conflict { .. }));
        clock.advance(Duration::from_mins(1));
    }
}

#[tokio::test]
async fn jobs_due_soon_read_no_horizon_again() {
    let (table, clock) =
        (Counted::new(MemoryTable::new()), Arc::new(FakeClock::new(at(1_000_000))));
    let (entropy, work) = (Arc::new(SeededEntropy::new(3)), Arc::new(MemoryWorkQueue::default()));
    let store =
        DynamoStore::new(Arc::clone(&table) as _, Arc::clone(&clock) as _, entropy.clone() as _);
    let ports = Ports {
        store: Arc::new(store),
        objects: Arc::new(InMemory::new()),
        work: Arc::clone(&work) as _,
        clock: Arc::clone(&clock) as _,
        entropy,
        policy: Arc::new(NoPolicy),
    };
    let server = Server::builder(ports, Arc::new(Unused)).serverless().start().await.unwrap();
    let target = TargetConfig::Push(Box::new(Push::to("http://worker.example/")));
    let push = TypeConfig { target: Some(target), ..TypeConfig::default() };
    server.put_type(&name("work"), push, None).await.unwrap();
    let enqueue = async |seconds| {
        let run_at = Some(clock.now() + Duration::from_secs(seconds));
        let new = NewJob { run_at, ..NewJob::new(name("work"), Payload::null()) };
        server.enqueue(new).await.unwrap();
        server.flush().await.unwrap();
        work.take(10, clock.now() + Duration::from_hours(1)).len()
    };
    server.maintenance_sweep(clock.now() + Duration::from_mins(1)).await;
    assert_eq!(enqueue(10).await, 1);
    reads(&table, "");
    for second in 0..50 {
        clock.advance(Duration::from_secs(1));
        assert_eq!(enqueue(second + 1).await, 1, "it is sent");
    }
    assert!(reads(&table, "C#horizon").1 <= 0.0);
    // What is due after the known horizon is sent if a sweep has moved it on.
    assert_eq!(enqueue(140).await, 0);
    clock.advance(Duration::from_secs(10));
    let other = Harness::at(server.engine().ports().store.clone(), Arc::clone(&clock));
    assert_eq!(other.look_ahead().await.unwrap().sent, 1);
    assert_eq!(enqueue(145).await, 1);
    reads(&table, "");
    assert_eq!(enqueue(120).await, 1);
    assert!(reads(&table, "C#horizon").1 <= 0.0);
}

/// The target of jobs that are not delivered.
struct Unused;

#[async_trait]
impl Target for Unused {
    async fn call(&self, _: Request) -> Result<Response, TargetError> {
        unreachable!("nothing is delivered")
    }
}
