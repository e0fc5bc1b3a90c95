//! Keys that all requests share: none of them is read or written with every request. A partition
//! key answers 3000 reads and takes 1000 writes a second.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use object_store::memory::InMemory;
use parking_lot::Mutex;
use tidegate_backends::dynamodb::{
    DynamoStore, Key,
    memory::MemoryTable,
    table::{Change, Exchange, Item, Page, PageQuery, Table, Val},
};
use tidegate_core::{
    job::{
        Payload,
        type_config::{Start, TypeConfig},
    },
    port::{
        Clock, Committed, JobStore, StoreError, Target, Work, Write,
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

/// A table that counts the reads of each partition key.
#[derive(Default)]
struct Counted {
    table: MemoryTable,
    reads: Mutex<HashMap<String, usize>>,
}

impl Counted {
    /// The reads of partition keys that start with `prefix` since the last call: of the one that is
    /// read most, and of all.
    fn reads(&self, prefix: &str) -> (usize, usize) {
        let mut reads = self.reads.lock();
        let of_prefix = reads.iter().filter(|(key, _)| key.starts_with(prefix));
        let counts: Vec<usize> = of_prefix.map(|(_, count)| *count).collect();
        reads.retain(|key, _| !key.starts_with(prefix));
        (counts.iter().copied().max().unwrap_or(0), counts.iter().sum())
    }
}

#[async_trait]
impl Table for Counted {
    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, StoreError> {
        for key in keys {
            *self.reads.lock().entry(key.p.clone()).or_default() += 1;
        }
        self.table.get(keys).await
    }

    async fn query(&self, query: &PageQuery) -> Result<Page, StoreError> {
        *self.reads.lock().entry(query.p.clone()).or_default() += 1;
        self.table.query(query).await
    }

    async fn write(&self, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        self.table.write(changes).await
    }

    async fn together(&self, changes: &[Change]) -> Result<bool, StoreError> {
        self.table.together(changes).await
    }

    async fn exchange(&self, exchange: &Exchange) -> Result<Option<Item>, StoreError> {
        self.table.exchange(exchange).await
    }
}

/// Queues whose jobs are pushed, each with one type of its own name, on a table that counts.
async fn queues(names: &[&str], start: Start) -> (Harness, Arc<Counted>) {
    let (table, clock) = (Arc::new(Counted::default()), Arc::new(FakeClock::new(at(1_000_000))));
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
    table.reads("");
    for work in work {
        let claims = harness.engine.claim(std::slice::from_ref(&work), None).await.unwrap();
        assert!(claims[0].is_some());
    }
    let (most, all) = table.reads("C#");
    // A version of the configuration before each claim, and one with it, of sixteen copies.
    assert!(all <= 620, "{all}");
    assert!(most <= 620 / 16 * 2, "one key is read with every claim: {most}");
}

#[tokio::test]
async fn work_of_many_queues_reads_the_configuration_once() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let (harness, table) = queues(&names, Start::Plain).await;
    // The first messages find that the queues have no ledgers.
    for _ in 0..2 {
        let work = messages(&harness, &names).await;
        harness.wait(2);
        table.reads("");
        let claims = harness.engine.claim(&work, None).await.unwrap();
        assert_eq!(table.reads("C#").1, 1, "of its claims");
        for claimed in claims {
            let job = claimed.expect("it is due").job;
            let report = report(&job, ReportOutcome::Succeeded { result: None });
            let outcome = harness.engine.report(&job.spec.queue, vec![report]).await.unwrap();
            assert!(outcome.reports[0].is_ok());
        }
        assert_eq!(table.reads("C#").1, 0, "of results a moment later");
    }
}

#[tokio::test]
async fn a_required_item_is_seen_to_change_in_another_process() {
    let (table, clock) = (Arc::new(Counted::default()), Arc::new(FakeClock::new(at(1_000_000))));
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
        let write = Write::RequireItem { kind: ItemKind::Queue, name: "mail".to_owned(), version };
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
    table.reads("");
    is_at(1).await;
    assert_eq!(table.reads("C#queue").1, 0, "it is remembered");
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
    let (table, clock) = (Arc::new(Counted::default()), Arc::new(FakeClock::new(at(1_000_000))));
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
    let versions = table.table.items().into_iter().filter(of);
    let changes: Vec<Change> =
        versions.map(|item| Change::Put(Item::new(item.key, [('v', version.clone())]))).collect();
    assert_eq!(changes.len(), 17);
    table.write(&changes).await.unwrap();
    let require = async || {
        let write = Write::RequireItem { kind, name: queue.clone(), version: 1 };
        store.commit(vec![vec![write]]).await.unwrap().remove(0)
    };
    store.items_version().await.unwrap();
    assert!(matches!(require().await, Committed::All), "the change is not answered yet");
    let item = table.table.items().into_iter().find(|item| item.key.p == "C#queue").unwrap();
    let changed = Item::new(item.key, item.attrs.into_iter().chain([('v', Val::N(2))]));
    table.write(&[Change::Put(changed)]).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(require().await, Committed::Conflict { .. }));
        clock.advance(Duration::from_mins(1));
    }
}

#[tokio::test]
async fn jobs_due_soon_read_no_horizon_again() {
    let (table, clock) = (Arc::new(Counted::default()), Arc::new(FakeClock::new(at(1_000_000))));
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
    table.reads("");
    for second in 0..50 {
        clock.advance(Duration::from_secs(1));
        assert_eq!(enqueue(second + 1).await, 1, "it is sent");
    }
    assert_eq!(table.reads("C#horizon").1, 0);
    // What is due after the known horizon is sent if a sweep has moved it on.
    assert_eq!(enqueue(140).await, 0);
    clock.advance(Duration::from_secs(10));
    let other = Harness::at(server.engine().ports().store.clone(), Arc::clone(&clock));
    assert_eq!(other.look_ahead().await.unwrap().sent, 1);
    assert_eq!(enqueue(145).await, 1);
    table.reads("");
    assert_eq!(enqueue(120).await, 1);
    assert_eq!(table.reads("C#horizon").1, 0);
}

/// The target of jobs that are not delivered.
struct Unused;

#[async_trait]
impl Target for Unused {
    async fn call(&self, _: Request) -> Result<Response, TargetError> {
        unreachable!("nothing is delivered")
    }
}
