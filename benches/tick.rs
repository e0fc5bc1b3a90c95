//! A tick of 1000 candidates on SQLite, with I/O: under constraints, and under an equivalent
//! `region-share` throttler. A tick over a backlog of 1000 tenants under a plugin that reads the groups
//! of what waits, and under one that does not, and the count of that backlog. Calls of the plugins are
//! recorded in memory, as in a server.
//!
//! `cargo bench --bench tick`. Commits are durable (`synchronous=FULL`), so the disk counts. The
//! plugin is loaded before the measurement; `--bench plugins` measures loading.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

#[allow(dead_code, reason = "tests use the rest")]
#[path = "../tests/it/plugins/guest.rs"]
mod guest;

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{Criterion, criterion_group, criterion_main};
use guest::{Guest, WAITING};
use object_store::{ObjectStore, memory::InMemory};
use tidegate_backends::{
    sqlite::SqliteStore,
    wasm::{
        PluginHost, Run,
        compile::{Artifact, Compiler},
        recording::RecordingRules,
    },
};
use tidegate_core::job::{Job, Payload};
use tidegate_engine::{
    Demand, Dispatch, Engine, Ports, Rules, TickCache, TickInput,
    memory::{FakeClock, MemoryWorkQueue, SeededEntropy},
    plugins::registry::{NewCode, NewVersion, Stage},
    request::{NewJob, Report, ReportOutcome},
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
    async fn new(component: Vec<u8>) -> Self {
        let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let host = Arc::new(
            PluginHost::new(Arc::clone(&objects), Arc::new(FakeClock::new(at(0))), Run::Here)
                .unwrap(),
        );
        host.set_recording_rules(RecordingRules { latest: true, ..RecordingRules::default() });
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
    let region_share = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/dist/region-share.wasm");
    let plugins = runtime.block_on(Plugins::new(fs::read(region_share).unwrap()));
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

/// A plugin that runs the first job of each call if it `starts` jobs, and holds the others. It reads the
/// groups of the tenants that wait if it `groups` them.
fn holding(starts: bool, groups: bool) -> Guest {
    let skip = if starts {
        "(local.set $i (i32.const 1)) (local.set $p (i32.add (local.get $p) (i32.const 40)))"
    } else {
        ""
    };
    let run =
        "(local.set $r (call $run (local.get $n))) (local.set $p (call $first (local.get $r)))";
    let hold = "(loop $each
          (i32.store8 (local.get $p) (i32.const 1))
          (local.set $p (i32.add (local.get $p) (i32.const 40)))
          (br_if $each (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n))))
        (local.get $r)";
    // It traps if there are none.
    let read = "(call $waiting (i32.const 2048) (i32.const 6) (i32.const 2064))
        (if (i32.eqz (i32.load (i32.const 2068))) (then (unreachable)))";
    if !groups {
        return Guest::throttler().decide(&[run, skip, hold].concat());
    }
    Guest::throttler()
        .import(WAITING)
        .waiting_by(&["tenant"])
        .items(r#"(data (i32.const 2048) "tenant")"#)
        .decide(&[read, run, skip, hold].concat())
}

/// An engine on a new file with the backlog, whose throttler is `plugin`.
async fn backlog(dir: &Path, plugin: Guest) -> Engine {
    let plugins = Plugins::new(plugin.component()).await;
    let ports = Ports {
        store: Arc::new(SqliteStore::open(dir).unwrap()),
        objects: Arc::clone(&plugins.objects),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::new(FakeClock::new(at(1_700_000_000_000))),
        entropy: Arc::new(SeededEntropy::new(7)),
        policy: Arc::clone(&plugins.host) as _,
    };
    let engine = Engine::new(ports, Rules::default());
    engine.push_plugin(&name("shares"), plugins.version, Stage::Live).await.unwrap();
    let config =
        r#"{"concurrency": 3, "partition_by": "tenant", "throttler": {"plugin": "shares"}}"#;
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

fn succeeded(job: Job) -> Report {
    Report {
        attempt: job.life.attempt,
        token: job.life.running().map(|run| run.token),
        id: job.id,
        job_type: None,
        outcome: ReportOutcome::Succeeded { result: None },
        checkpoint: None,
    }
}

fn waiting(c: &mut Criterion) {
    let runtime: Runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let mut group = c.benchmark_group("a backlog of 100,000 jobs of 1000 tenants");
    group.sample_size(20).measurement_time(Duration::from_secs(5));
    let cases = [
        ("a tick", false, false),
        ("a tick with groups", false, true),
        ("a tick that starts jobs", true, false),
        ("a tick with groups that starts jobs", true, true),
    ];
    for (case, starts, groups) in cases {
        let dir = tempfile::tempdir().unwrap();
        let engine = runtime.block_on(backlog(dir.path(), holding(starts, groups)));
        let (mut cache, mut reports) = (TickCache::default(), Vec::new());
        let mut tick = || {
            let demand = Demand {
                min: 0,
                types: vec![name("order")],
                capacity: 3,
                worker: None,
                lease: None,
                dispatch: Dispatch::Claim,
                call: None,
            };
            let input = TickInput {
                demands: vec![demand],
                reports: std::mem::take(&mut reports),
                queue_changed: true,
                ..TickInput::default()
            };
            let start = Instant::now();
            let queue = name("orders");
            let outcome = runtime.block_on(engine.tick(&queue, &mut cache, input)).unwrap();
            let took = start.elapsed();
            // The first ticks of an engine may start nothing.
            assert!(starts || outcome.claimed.is_empty());
            reports = outcome.claimed.into_iter().map(|claimed| succeeded(claimed.job)).collect();
            took
        };
        // The first ones begin the ledger.
        tick();
        runtime.block_on(engine.count_waiting(at(i64::MAX / 2))).unwrap();
        tick();
        group.bench_function(case, |b| b.iter_custom(|rounds| (0..rounds).map(|_| tick()).sum()));
        if groups && !starts {
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
