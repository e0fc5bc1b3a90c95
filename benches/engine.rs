//! The cost of an enqueue, a tick of a limited queue and an admission decision, without I/O.
//!
//! `cargo bench --bench engine`. The store is in memory; `--bench store` includes the disk.

#![allow(clippy::unwrap_used, missing_docs)]

use std::{hint::black_box, sync::Arc, time::Duration};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use object_store::memory::InMemory;
use tidegate_core::{
    job::{Job, Payload, type_config::TypeConfig},
    queue::{Admission, Candidate, Limits, QueueConfig, Usage, rate::RateCounts},
};
use tidegate_engine::{
    Demand, Dispatch, Engine, Ports, Rules, TickCache, TickInput,
    memory::{FakeClock, MemoryStore, MemoryWorkQueue, SeededEntropy},
    request::{NewJob, Report, ReportOutcome},
    testkit::builders::{at, job, name},
};
use tokio::runtime::Runtime;

const DATA: &str = r#"{"customer":"c-104729","amount":1299,"currency":"EUR","items":["a-1","b-2"],"note":"benchmark"}"#;

/// An engine on an empty store, with a queue of limit 10 and a type in it.
async fn engine() -> Engine {
    let ports = Ports {
        store: Arc::new(MemoryStore::default()),
        objects: Arc::new(InMemory::new()),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::new(FakeClock::new(at(1_700_000_000_000))),
        entropy: Arc::new(SeededEntropy::new(7)),
        policy: Arc::new(tidegate_core::port::policy::NoPolicy),
    };
    let engine = Engine::new(ports, Rules::default());
    let limited = QueueConfig { concurrency: Some(10), ..QueueConfig::default() };
    engine.put_queue(&name("limited"), limited, None).await.unwrap();
    engine
        .put_type(
            &name("work"),
            TypeConfig { queue: name("limited"), ..TypeConfig::default() },
            None,
        )
        .await
        .unwrap();
    engine
}

fn new_jobs(jobs: usize) -> Vec<NewJob> {
    (0..jobs).map(|_| NewJob::new(name("work"), Payload::json(DATA))).collect()
}

/// One tick that settles the running jobs and claims as many new ones.
async fn settle_and_claim(engine: &Engine, cache: &mut TickCache, running: Vec<Job>) -> Vec<Job> {
    let succeeded = |job: Job| Report {
        id: job.id,
        job_type: None,
        attempt: job.life.attempt,
        token: None,
        outcome: ReportOutcome::Succeeded { result: None },
        checkpoint: None,
    };
    let demand = Demand {
        min: 0,
        types: vec![name("work")],
        capacity: 10,
        worker: None,
        lease: None,
        dispatch: Dispatch::Claim,
        call: None,
    };
    let input = TickInput {
        reports: running.into_iter().map(succeeded).collect(),
        demands: vec![demand],
        ..TickInput::default()
    };
    let outcome = engine.tick(&name("limited"), cache, input).await.unwrap();
    assert_eq!(outcome.claimed.len(), 10);
    outcome.claimed.into_iter().map(|claimed| claimed.job).collect()
}

fn engine_in_memory(c: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let mut group = c.benchmark_group("engine");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    group.throughput(Throughput::Elements(1000));
    group.bench_function("enqueue 1000", |b| {
        let engine = runtime.block_on(engine());
        b.iter_batched(
            || new_jobs(1000),
            |jobs| runtime.block_on(engine.enqueue(jobs)),
            criterion::BatchSize::PerIteration,
        );
    });
    group.throughput(Throughput::Elements(1000));
    group.bench_function("100 ticks of limit 10", |b| {
        b.iter_batched(
            || {
                let engine = runtime.block_on(engine());
                runtime.block_on(engine.enqueue(new_jobs(1010)));
                engine
            },
            |engine| {
                runtime.block_on(async {
                    let (mut cache, mut running) = (TickCache::default(), Vec::new());
                    for _ in 0..100 {
                        running = settle_and_claim(&engine, &mut cache, running).await;
                    }
                    running
                })
            },
            criterion::BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn admission(c: &mut Criterion) {
    let json = r#"{"concurrency": 900, "constraints": [
        {"name": "per-tenant", "match": {}, "per": "tenant", "concurrency": 8},
        {"name": "east", "match": {"attribute": {"region": "east"}}, "rate": {"count": 100, "per_seconds": 1}}]}"#;
    let limits = Limits { queue: serde_json::from_str(json).unwrap(), ..Limits::default() };
    let region = |index: i64| if index % 2 == 0 { "east" } else { "west" };
    let candidate = |index: i64| {
        job(&format!("j{index}"))
            .attribute("tenant", index % 100)
            .attribute("region", region(index))
            .build()
    };
    let candidates: Vec<Job> = (0..1000).map(candidate).collect();
    let mut group = c.benchmark_group("admission");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(3))
        .throughput(Throughput::Elements(1000));
    group.bench_function("1000 candidates, three limits", |b| {
        b.iter(|| {
            let mut admission =
                Admission::new(&limits, Usage::default(), RateCounts::default(), at(0));
            for job in &candidates {
                black_box(admission.try_admit(Candidate::of(&job.spec)));
            }
            admission.finish()
        });
    });
    group.finish();
}

criterion_group!(benches, engine_in_memory, admission);
criterion_main!(benches);
