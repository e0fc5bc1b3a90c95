//! The SQLite store under load: inserting jobs, and claiming and finishing them, while others wait.
//!
//! `cargo bench --bench store`. Commits are durable (`synchronous=FULL`), so the disk counts.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tidegate_backends::sqlite::SqliteStore;
use tidegate_core::{
    job::{Encoding, Event, Job, Token},
    port::job_store::{DueQuery, JobStore, Txn, Write},
    queue::Order,
};
use tidegate_engine::testkit::builders::{at, job, name};
use tokio::runtime::Runtime;

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A typical job: an increasing id like a ULID, a due time, 100 bytes of data.
fn fresh(due: i64) -> Job {
    let n = NUMBER.fetch_add(1, Ordering::Relaxed);
    let created = 1_700_000_000_000 + n as i64 / 50;
    job(&format!("01k{n:023}"))
        .created(created)
        .due(due)
        .data(Encoding::Json, vec![b'1'; 100])
        .build()
}

async fn insert(store: &SqliteStore, jobs: usize, due: i64) {
    store.commit((0..jobs).map(|_| vec![Write::AddJob(fresh(due))]).collect()).await.unwrap();
}

/// Claims and finishes the next due jobs: one read, two commits.
async fn claim_and_finish(store: &SqliteStore, limit: u32) {
    let query = DueQuery {
        queue: name("default"),
        critical: false,
        types: vec![name("work")],
        partition: None,
        order: Order::Time { step_millis: 60_000 },
        until: at(1000),
        after: None,
        limit,
        granted: None,
    };
    let page = store.due(&[query]).await.unwrap().remove(0);
    assert_eq!(page.jobs.len(), limit as usize);
    let claim = |job: &Job| {
        let event = Event::Claim {
            version: job.life.version,
            token: Token::new(7),
            worker: None,
            lease: Duration::from_secs(30),
            granted: false,
            decided_at: at(1000),
        };
        job.apply(event, at(1000)).unwrap()
    };
    let running: Vec<Job> = page.jobs.iter().map(claim).collect();
    let set = |job: &Job| -> Txn {
        let was = tidegate_core::job::Revision(job.life.revision.0 - 1);
        vec![Write::SetJob { job: job.clone(), was, all: false }]
    };
    store.commit(running.iter().map(set).collect()).await.unwrap();
    let ended: Vec<Job> = running
        .iter()
        .map(|job| job.apply(Event::Succeed { attempt: 1, result: None }, at(1001)).unwrap())
        .collect();
    store.commit(ended.iter().map(set).collect()).await.unwrap();
}

fn store(c: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let mut group = c.benchmark_group("sqlite");
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    let waiting: usize = std::env::var("WAITING").map_or(0, |text| text.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path()).unwrap();
    for _ in 0..waiting / 1000 {
        runtime.block_on(insert(&store, 1000, i64::from(u32::MAX)));
    }

    group.throughput(Throughput::Elements(1000));
    group.bench_function(BenchmarkId::new("insert 1000", waiting), |b| {
        b.iter(|| runtime.block_on(insert(&store, 1000, 5)));
    });
    group.throughput(Throughput::Elements(8000));
    group.bench_function(BenchmarkId::new("insert 1000 by 8 concurrent callers", waiting), |b| {
        b.iter(|| {
            runtime
                .block_on(futures_util::future::join_all((0..8).map(|_| insert(&store, 1000, 5))))
        });
    });
    group.throughput(Throughput::Elements(1));
    group.bench_function(BenchmarkId::new("insert one", waiting), |b| {
        b.iter(|| runtime.block_on(insert(&store, 1, 5)));
    });
    group.throughput(Throughput::Elements(256));
    group.bench_function(BenchmarkId::new("claim and finish 256", waiting), |b| {
        b.iter_custom(|rounds| {
            runtime.block_on(async {
                for _ in 0..rounds {
                    insert(&store, 256, 5).await;
                }
                let start = Instant::now();
                for _ in 0..rounds {
                    claim_and_finish(&store, 256).await;
                }
                start.elapsed()
            })
        });
    });
    group.finish();
}

criterion_group!(benches, store);
criterion_main!(benches);
