//! A tick of 1000 candidates on SQLite, with I/O: under constraints, and under an equivalent
//! `region-share` throttler.
//!
//! `cargo bench --bench tick`. Commits are durable (`synchronous=FULL`), so the disk counts. The
//! plugin is loaded before the measurement; `--bench plugins` measures loading.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{Criterion, criterion_group, criterion_main};
use object_store::{ObjectStore, memory::InMemory};
use tidegate_backends::{
    sqlite::SqliteStore,
    wasm::{
        PluginHost, Run,
        compile::{Artifact, Compiler},
    },
};
use tidegate_core::job::Payload;
use tidegate_engine::{
    Demand, Dispatch, Engine, Ports, Rules, TickCache, TickInput,
    memory::{FakeClock, MemoryWorkQueue, SeededEntropy},
    plugins::registry::{NewCode, NewVersion, Stage},
    request::NewJob,
    testkit::builders::{at, name},
};
use tokio::runtime::{Builder, Runtime};

const CANDIDATES: usize = 1000;

/// Shares of 40, 30 and 30 percent of `limit`, as constraints.
fn constraints(limit: u32) -> String {
    let share = |region: &str, percent: u32| {
        let limit = limit * percent / 100;
        format!(
            r#"{{"name": "{region}", "match": {{"attribute": {{"region": "{region}"}}}}, "concurrency": {limit}}}"#
        )
    };
    let shares = [share("east", 40), share("north", 30), share("west", 30)].join(", ");
    format!(r#"{{"concurrency": {limit}, "constraints": [{shares}]}}"#)
}

/// The same shares as the configuration of the shipped plugin.
fn throttler(limit: u32) -> String {
    let config = r#"{"attribute": "region", "shares": {"east": 40, "north": 30, "west": 30}}"#;
    format!(
        r#"{{"concurrency": {limit}, "throttler": {{"plugin": "region-share", "config": {config}}}}}"#
    )
}

/// The plugin's code, which all engines of a benchmark share.
struct Plugins {
    objects: Arc<dyn ObjectStore>,
    host: Arc<PluginHost>,
    version: NewVersion,
}

impl Plugins {
    async fn new() -> Self {
        let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let host = Arc::new(
            PluginHost::new(Arc::clone(&objects), Arc::new(FakeClock::new(at(0))), Run::Here)
                .unwrap(),
        );
        let component =
            fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/dist/region-share.wasm"))
                .unwrap();
        let Artifact { wasm, throttler, retry, compiled, code, .. } =
            host.compile(component.into(), &Compiler::Here).await.unwrap();
        let code = vec![NewCode { target: compiled.target, engine: compiled.engine, code }];
        Self { objects, host, version: NewVersion { wasm, throttler, retry, code } }
    }

    /// An engine on a new file, with `CANDIDATES` due jobs in a queue with `config`.
    async fn engine(&self, dir: &Path, config: &str, regions: &[&str]) -> Engine {
        let ports = Ports {
            store: Arc::new(SqliteStore::open(dir).unwrap()),
            objects: Arc::clone(&self.objects),
            work: Arc::new(MemoryWorkQueue::default()),
            clock: Arc::new(FakeClock::new(at(1_700_000_000_000))),
            entropy: Arc::new(SeededEntropy::new(7)),
            policy: Arc::clone(&self.host) as _,
        };
        let engine = Engine::new(ports, Rules::default());
        engine.push_plugin(&name("region-share"), self.version.clone(), Stage::Live).await.unwrap();
        engine
            .put_queue(&name("orders"), serde_json::from_str(config).unwrap(), None)
            .await
            .unwrap();
        let order = r#"{"queue": "orders", "attributes": {"region": "/region"}}"#;
        engine.put_type(&name("order"), serde_json::from_str(order).unwrap(), None).await.unwrap();
        let data = |index: usize| {
            Payload::json(format!(
                r#"{{"region": "{}", "order": {index}}}"#,
                regions[index % regions.len()]
            ))
        };
        let jobs = (0..CANDIDATES).map(|index| NewJob::new(name("order"), data(index))).collect();
        for enqueued in engine.enqueue(jobs).await {
            enqueued.unwrap();
        }
        engine
    }
}

/// One tick with a demand for all candidates: the number of claimed jobs, and the duration.
async fn tick(engine: &Engine) -> (usize, Duration) {
    let demand = Demand {
        min: 0,
        types: vec![name("order")],
        capacity: CANDIDATES as u32,
        worker: None,
        lease: None,
        dispatch: Dispatch::Claim,
        call: None,
    };
    let input = TickInput { demands: vec![demand], ..TickInput::default() };
    let start = Instant::now();
    let outcome = engine.tick(&name("orders"), &mut TickCache::default(), input).await.unwrap();
    (outcome.claimed.len(), start.elapsed())
}

fn ticks(c: &mut Criterion) {
    let runtime: Runtime = Builder::new_current_thread().build().unwrap();
    let plugins = runtime.block_on(Plugins::new());
    let mut group = c.benchmark_group("a tick of 1000 candidates");
    group.sample_size(30).measurement_time(Duration::from_secs(10));
    let cases: [(&str, u32, &[&str], usize); 2] = [
        (
            "all admitted",
            1000,
            &["east", "east", "north", "west", "east", "north", "west", "east", "north", "west"],
            1000,
        ),
        ("40 admitted", 100, &["east"], 40),
    ];
    for (case, limit, regions, admitted) in cases {
        for (rule, config) in
            [("constraints", constraints(limit)), ("region-share", throttler(limit))]
        {
            group.bench_function(format!("{case}, {rule}"), |b| {
                b.iter_custom(|rounds| {
                    (0..rounds)
                        .map(|_| {
                            let dir = tempfile::tempdir().unwrap();
                            runtime.block_on(async {
                                let engine = plugins.engine(dir.path(), &config, regions).await;
                                let (claimed, took) = tick(&engine).await;
                                assert_eq!(claimed, admitted);
                                took
                            })
                        })
                        .sum()
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, ticks);
criterion_main!(benches);
