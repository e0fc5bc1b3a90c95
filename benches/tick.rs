//! A tick of 1000 candidates on SQLite, with I/O: under constraints, and under an equivalent
//! `region-share` throttler. A tick over a backlog of 1000 tenants, without and with the groups of
//! what waits, and the count of that backlog. Calls of the plugin are recorded in memory, as in a
//! server.
//!
//! `cargo bench --bench tick`. Commits are durable (`synchronous=FULL`), so the disk counts. The
//! plugin is loaded before the measurement; `--bench plugins` measures loading.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::{
    collections::BTreeMap,
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
        recording::RecordingRules,
    },
};
use tidegate_core::{job::Payload, queue::plugin::Description};
use tidegate_engine::{
    Demand, Dispatch, Engine, Ports, Rules, TickCache, TickInput,
    memory::{FakeClock, MemoryWorkQueue, SeededEntropy},
    plugins::registry::{NewCode, NewVersion, Stage},
    request::NewJob,
    testkit::{
        FnPolicy,
        builders::{at, name},
        policies::{each, hold},
    },
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
        host.set_recording_rules(RecordingRules { latest: true, ..RecordingRules::default() });
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

/// Jobs and tenants of the backlog.
const BACKLOG: usize = 100_000;
const TENANTS: usize = 1000;

/// An engine on a new file with the backlog, whose throttler holds every job. It groups what waits
/// by these attributes.
async fn backlog(dir: &Path, waiting_by: &[&str]) -> Engine {
    let policy = FnPolicy::default().throttling(|_, call| {
        let groups: usize = call.waiting.groups.values().map(BTreeMap::len).sum();
        assert!(groups <= TENANTS, "{groups}");
        Ok(each(call, |_| hold("its share is in use")))
    });
    let ports = Ports {
        store: Arc::new(SqliteStore::open(dir).unwrap()),
        objects: Arc::new(InMemory::new()),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::new(FakeClock::new(at(1_700_000_000_000))),
        entropy: Arc::new(SeededEntropy::new(7)),
        policy: Arc::new(policy),
    };
    let engine = Engine::new(ports, Rules::default());
    let code = vec![NewCode { target: "t".into(), engine: "e".into(), code: "code".into() }];
    let waiting_by = waiting_by.iter().map(|name| (*name).to_owned()).collect();
    let description = Description { waiting_by, ..Description::default() };
    let version =
        NewVersion { wasm: "wasm".into(), throttler: Some(description), retry: None, code };
    engine.push_plugin(&name("shares"), version, Stage::Live).await.unwrap();
    let config =
        r#"{"concurrency": 10, "partition_by": "tenant", "throttler": {"plugin": "shares"}}"#;
    engine.put_queue(&name("orders"), serde_json::from_str(config).unwrap(), None).await.unwrap();
    let order = r#"{"queue": "orders", "attributes": {"tenant": "/tenant"}}"#;
    engine.put_type(&name("order"), serde_json::from_str(order).unwrap(), None).await.unwrap();
    for from in (0..BACKLOG).step_by(1000) {
        let data = |index| Payload::json(format!(r#"{{"tenant": "t{:04}"}}"#, index % TENANTS));
        let jobs = (from..from + 1000).map(|index| NewJob::new(name("order"), data(index)));
        for enqueued in engine.enqueue(jobs.collect()).await {
            enqueued.unwrap();
        }
    }
    engine
}

fn waiting(c: &mut Criterion) {
    let runtime: Runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let mut group = c.benchmark_group("a backlog of 100,000 jobs of 1000 tenants");
    group.sample_size(20).measurement_time(Duration::from_secs(5));
    for (case, waiting_by) in [("a tick", &[][..]), ("a tick with groups", &["tenant"])] {
        let dir = tempfile::tempdir().unwrap();
        let engine = runtime.block_on(backlog(dir.path(), waiting_by));
        let mut cache = TickCache::default();
        let mut tick = || {
            let demand = Demand {
                min: 0,
                types: vec![name("order")],
                capacity: 10,
                worker: None,
                lease: None,
                dispatch: Dispatch::Claim,
                call: None,
            };
            let input =
                TickInput { demands: vec![demand], queue_changed: true, ..TickInput::default() };
            let start = Instant::now();
            let queue = name("orders");
            let outcome = runtime.block_on(engine.tick(&queue, &mut cache, input));
            assert!(outcome.unwrap().claimed.is_empty());
            start.elapsed()
        };
        // The first ones begin the ledger.
        tick();
        runtime.block_on(engine.count_waiting(at(i64::MAX / 2))).unwrap();
        tick();
        group.bench_function(case, |b| b.iter_custom(|rounds| (0..rounds).map(|_| tick()).sum()));
        if !waiting_by.is_empty() {
            let store = Arc::clone(&engine.ports().store);
            group.bench_function("a count", |b| {
                b.iter(|| {
                    let (queue, types) = (name("orders"), [name("order")]);
                    let now = at(1_700_000_000_000);
                    let count = store.count_waiting(&queue, &types, now, None, 1000, 1000);
                    assert_eq!(runtime.block_on(count).unwrap().counts.len(), TENANTS);
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, ticks, waiting);
criterion_main!(benches);
