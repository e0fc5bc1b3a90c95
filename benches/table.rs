//! The DynamoDB store, and ticks of the engine on it, compared with the minimum of bare requests.
//!
//! `cargo bench --features aws --bench table`, with `dynoxide` on the PATH or in
//! `target/tools/bin`. The emulator is one process on the same machine, so only the ratio of the
//! two times is meaningful.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

#[path = "../tests/it/dynamodb/emulator.rs"]
#[allow(dead_code)]
mod emulator;

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use emulator::EmulatedTable;
use object_store::memory::InMemory;
use tidegate_backends::dynamodb::{
    DynamoStore, Key,
    table::{Change, Item, Table, Val},
};
use tidegate_core::{
    job::{
        Encoding, Event, Job, Payload, QueueName, Revision, Token, TypeName,
        type_config::TypeConfig,
    },
    port::{
        Clock,
        job_store::{DueQuery, JobStore, Txn, Write},
        policy::NoPolicy,
    },
    queue::{Order, QueueConfig},
    target::{Push, TargetConfig},
};
use tidegate_engine::{
    Demand, Dispatch, Engine, Ports, Rules, TickCache, TickInput,
    memory::{FakeClock, MemoryWorkQueue, SeededEntropy},
    request::NewJob,
    testkit::builders::{job, name},
};
use tokio::runtime::Runtime;

static NUMBER: AtomicU64 = AtomicU64::new(0);
const JOBS: usize = 250;

/// Items with the size of job rows, all in one partition.
fn rows() -> Vec<Change> {
    let row = |_| {
        let n = NUMBER.fetch_add(1, Ordering::Relaxed);
        let attrs = [
            ('r', Val::N(1)),
            ('j', Val::B(vec![b'1'; 220].into())),
            ('l', Val::B(vec![b'1'; 60].into())),
            ('d', Val::B(vec![b'1'; 100].into())),
        ];
        Change::Insert(Item::new(Key { p: "bare".into(), s: format!("{n:040}") }, attrs))
    };
    (0..JOBS).map(row).collect()
}

/// A bare conditional change of each row.
fn changes(rows: &[Change], was: u64) -> Vec<Change> {
    let change = |row: &Change| Change::Update {
        key: row.key().clone(),
        set: vec![('r', Val::N(was + 1)), ('l', Val::B(vec![b'2'; 100].into()))],
        remove: Vec::new(),
        when: ('r', Val::N(was)),
    };
    rows.iter().map(change).collect()
}

/// New jobs with ids that the store assigned.
fn jobs(store: &DynamoStore, clock: &FakeClock) -> Vec<Job> {
    let new = |_| {
        let n = NUMBER.fetch_add(1, Ordering::Relaxed);
        let now = clock.now();
        let mut job = job(&format!("01k{n:023}"))
            .created(now.millis())
            .due(now.millis())
            .data(Encoding::Json, vec![b'1'; 100])
            .build();
        job.id = store.assign_id(job.id.clone(), &job.spec, now);
        job
    };
    (0..JOBS).map(new).collect()
}

async fn all(table: &dyn Table, changes: &[Change]) {
    assert!(table.write(changes).await.unwrap().into_iter().all(|taken| taken));
}

/// Claims and ends the due jobs.
async fn claim_and_end(store: &DynamoStore, clock: &FakeClock) {
    let query = DueQuery {
        queue: name("default"),
        critical: false,
        types: vec![name("work")],
        partition: None,
        order: Order::Time { step_millis: 0 },
        until: clock.now(),
        after: None,
        limit: JOBS as u32,
        granted: None,
    };
    let page = store.due(&[query]).await.unwrap().remove(0);
    assert_eq!(page.jobs.len(), JOBS);
    let lease = Duration::from_secs(30);
    let claim = |job: &Job| Event::Claim {
        version: job.life.version,
        token: Token::new(7),
        worker: None,
        lease,
        granted: true,
        decided_at: clock.now(),
    };
    let running: Vec<Job> =
        page.jobs.iter().map(|job| job.apply(claim(job), clock.now()).unwrap()).collect();
    let set = |job: &Job| -> Txn {
        vec![Write::SetJob { job: job.clone(), was: Revision(job.life.revision.0 - 1), all: false }]
    };
    store.commit(running.iter().map(set).collect()).await.unwrap();
    let ended = running
        .iter()
        .map(|job| job.apply(Event::Succeed { attempt: 1, result: None }, clock.now()).unwrap());
    store.commit(ended.map(|job| set(&job)).collect()).await.unwrap();
}

fn engine(table: &Arc<EmulatedTable>, clock: &Arc<FakeClock>) -> Engine {
    let entropy = Arc::new(SeededEntropy::new(2));
    let store =
        DynamoStore::new(Arc::clone(table) as _, Arc::clone(clock) as _, Arc::clone(&entropy) as _);
    let ports = Ports {
        store: Arc::new(store),
        objects: Arc::new(InMemory::new()),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::clone(clock) as _,
        entropy,
        policy: Arc::new(NoPolicy),
    };
    Engine::new(ports, Rules::default())
}

/// The duration of a tick of a new limited queue that admits and dispatches [`JOBS`] jobs.
async fn tick(engine: &Engine, clock: &FakeClock, dispatch: Dispatch) -> Duration {
    let own = format!("q{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let (queue, job_type): (QueueName, TypeName) = (name(&own), name(&own));
    engine
        .put_queue(&queue, QueueConfig { concurrency: Some(2000), ..QueueConfig::default() }, None)
        .await
        .unwrap();
    let target = Some(TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:1/"))));
    engine
        .put_type(
            &job_type,
            TypeConfig { queue: queue.clone(), target, ..TypeConfig::default() },
            None,
        )
        .await
        .unwrap();
    let mut cache = TickCache::default();
    let demands = |capacity| {
        vec![Demand {
            min: 0,
            types: vec![job_type.clone()],
            capacity,
            worker: None,
            lease: None,
            dispatch,
            call: None,
        }]
    };
    // A new ledger must age before it admits up to its limit.
    for _ in 0..2 {
        engine
            .tick(&queue, &mut cache, TickInput { demands: demands(1), ..TickInput::default() })
            .await
            .unwrap();
        clock.advance(Duration::from_secs(11));
    }
    let new = (0..JOBS)
        .map(|_| NewJob::new(job_type.clone(), Payload::json(format!("\"{}\"", "x".repeat(100)))))
        .collect();
    assert!(engine.enqueue(new).await.into_iter().all(|accepted| accepted.is_ok()));
    clock.advance(Duration::from_secs(1));
    let demands = demands(JOBS as u32);
    let start = Instant::now();
    let outcome = engine
        .tick(&queue, &mut cache, TickInput { demands, ..TickInput::default() })
        .await
        .unwrap();
    let took = start.elapsed();
    let dispatched = match dispatch {
        Dispatch::Claim => outcome.claimed.len(),
        Dispatch::Queue => outcome.sent,
        Dispatch::Offer => outcome.offers.len(),
    };
    assert_eq!(dispatched, JOBS);
    took
}

fn table(c: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let table = Arc::new(EmulatedTable::new());
    let clock = Arc::new(FakeClock::default());
    let store = DynamoStore::new(
        Arc::clone(&table) as _,
        Arc::clone(&clock) as _,
        Arc::new(SeededEntropy::new(1)),
    );
    let mut group = c.benchmark_group("dynamodb");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(5))
        .throughput(Throughput::Elements(JOBS as u64));
    group.bench_function("bare: insert", |b| b.iter(|| runtime.block_on(all(&*table, &rows()))));
    group.bench_function("store: add jobs", |b| {
        b.iter(|| {
            let txns =
                jobs(&store, &clock).into_iter().map(|job| vec![Write::AddJob(job)]).collect();
            black_box(runtime.block_on(store.commit(txns)).unwrap())
        });
    });
    group.bench_function("bare: change once", |b| {
        b.iter_custom(|rounds| (0..rounds).map(|_| bare_changes(&runtime, &*table, 1)).sum());
    });
    let engine = engine(&table, &clock);
    for (name, dispatch) in [
        ("engine: a tick admits and sends", Dispatch::Queue),
        ("engine: a tick admits and claims", Dispatch::Claim),
    ] {
        group.bench_function(name, |b| {
            b.iter_custom(|rounds| {
                (0..rounds).map(|_| runtime.block_on(tick(&engine, &clock, dispatch))).sum()
            });
        });
    }
    group.bench_function("bare: change twice", |b| {
        b.iter_custom(|rounds| (0..rounds).map(|_| bare_changes(&runtime, &*table, 2)).sum());
    });
    group.bench_function("store: read, claim and end", |b| {
        b.iter_custom(|rounds| (0..rounds).map(|_| runtime.block_on(claims(&store, &clock))).sum());
    });
    group.finish();
}

/// The duration of `times` successive changes of new rows.
fn bare_changes(runtime: &Runtime, table: &dyn Table, times: u64) -> Duration {
    let rows = rows();
    runtime.block_on(async {
        all(table, &rows).await;
        let start = Instant::now();
        for was in 1..=times {
            all(table, &changes(&rows, was)).await;
        }
        start.elapsed()
    })
}

/// The duration of claiming and ending new jobs.
async fn claims(store: &DynamoStore, clock: &FakeClock) -> Duration {
    // Each round has its own hour, and no due jobs of earlier ones.
    clock.advance(Duration::from_hours(1));
    cancel_due(store, clock).await;
    let txns = jobs(store, clock).into_iter().map(|job| vec![Write::AddJob(job)]).collect();
    store.commit(txns).await.unwrap();
    let start = Instant::now();
    claim_and_end(store, clock).await;
    start.elapsed()
}

/// Cancels all due jobs.
async fn cancel_due(store: &DynamoStore, clock: &FakeClock) {
    loop {
        let query = DueQuery {
            queue: name("default"),
            critical: false,
            types: vec![name("work")],
            partition: None,
            order: Order::Time { step_millis: 0 },
            until: clock.now(),
            after: None,
            limit: 1000,
            granted: None,
        };
        let page = store.due(&[query]).await.unwrap().remove(0);
        if page.jobs.is_empty() {
            return;
        }
        let ended = page
            .jobs
            .iter()
            .map(|job| job.apply(Event::Cancel { force: true }, clock.now()).unwrap());
        let txns = ended
            .map(|job| {
                vec![Write::SetJob { was: Revision(job.life.revision.0 - 1), job, all: false }]
            })
            .collect();
        store.commit(txns).await.unwrap();
    }
}

criterion_group!(benches, table);
criterion_main!(benches);
