//! The cost of calling a plugin, of the parts of a call, and of loading a plugin.
//!
//! `cargo bench --bench plugins`. The guest is a minimal throttler: it reads the counts of a
//! dimension and admits every candidate. The benchmark therefore measures the host: the instance,
//! the arguments, the counts and the answer.
//!
//! "parts of a call" has guests that differ in one part, so that the difference of two rows is the
//! cost of that part. "a call of" measures components in several languages: each `NAME.wasm` in the
//! folder `TIDEGATE_BENCH_PLUGINS`, as `tidegate plugin new` and `plugin build -o` make it.

#![allow(clippy::unwrap_used, missing_docs)]

#[allow(dead_code, reason = "tests use the rest")]
#[path = "../tests/it/plugins/guest.rs"]
mod guest;

use std::{fs, sync::Arc, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};
use guest::{CANDIDATES, GROUPS, Guest, PACKED, VALUES, WEIGHTS};
use object_store::{ObjectStore, memory::InMemory};
use tidegate_backends::wasm::{
    PluginHost, Run,
    compile::{Artifact, Compiler},
};
use tidegate_core::{
    job::Job,
    port::policy::{Plugin, Policy as _, Purpose, RunningSet, ThrottleCall},
    queue::{
        Grant, GrantBatch,
        ledger::{BatchId, Bits},
        plugin::Role,
    },
    stored::UnknownFields,
};
use tidegate_engine::{
    memory::FakeClock,
    testkit::builders::{at, job, name},
};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

fn host(objects: &Arc<InMemory>) -> PluginHost {
    let objects: Arc<dyn ObjectStore> = Arc::clone(objects) as _;
    PluginHost::new(objects, Arc::new(FakeClock::new(at(0))), Run::Here).unwrap()
}

/// A throttler that reads the counts of regions and then admits every candidate.
fn guest() -> Guest {
    Guest::throttler()
        .import(GROUPS)
        .group_by(&["region"])
        .items(r#"(data (i32.const 2048) "region")"#)
        .decide("(call $groups (i32.const 2) (i32.const 2048) (i32.const 6) (i32.const 2064)) (call $run (local.get $n))")
}

async fn compiled(component: Vec<u8>, objects: &Arc<InMemory>) -> (Artifact, Plugin) {
    let artifact = host(objects).compile(component.into(), &Compiler::Here).await.unwrap();
    artifact.put(&**objects).await.unwrap();
    let version = Arc::new(artifact.version(1, at(0)));
    (artifact, Plugin { name: name("guest"), version })
}

/// A job with three attributes.
fn work(index: usize) -> Job {
    let region = ["east", "north", "west"][index % 3];
    let id = format!("01jq8x4w5v6t7s8r9qpnmk{index:05}");
    job(&id)
        .attribute("region", region)
        .attribute("customer", "c-104729")
        .attribute("rows", index as i64)
        .build()
}

fn grant(job: &Job) -> Grant {
    Grant {
        waits_until: None,
        job: job.id.clone(),
        version: job.life.version,
        job_type: job.spec.job_type.clone(),
        priority: job.spec.priority,
        weight: job.spec.weight,
        critical: false,
        attributes: job.spec.attributes.clone(),
        granted_at: at(0),
        unknown: UnknownFields::default(),
    }
}

fn call(candidates: usize, running: usize) -> Arc<ThrottleCall> {
    Arc::new(call_with("{}", candidates, running))
}

fn call_with(config: &str, candidates: usize, running: usize) -> ThrottleCall {
    let grants: Vec<Grant> = (0..running).map(|index| grant(&work(index))).collect();
    let batch = |(index, grants): (usize, &[Grant])| {
        (
            Arc::new(GrantBatch {
                id: BatchId(index as u64),
                ledger_version: 0,
                grants: grants.to_vec(),
                state: None,
                unknown: UnknownFields::default(),
            }),
            Bits::default(),
        )
    };
    ThrottleCall {
        queue: name("orders"),
        now: at(0),
        seed: 7,
        config: config.into(),
        concurrency: Some(100),
        room: 100,
        running: RunningSet {
            batches: grants.chunks(100).enumerate().map(batch).collect(),
            admitted: Arc::default(),
        },
        candidates: (0..candidates).map(work).collect(),
        ended: Arc::default(),
        state: Arc::default(),
        data: [].into(),
        hosts: Arc::default(),
        waiting: Arc::default(),
    }
}

fn calls(c: &mut Criterion) {
    let (runtime, objects) = (runtime(), Arc::default());
    let (_, plugin) = runtime.block_on(compiled(guest().component(), &objects));
    let host = host(&objects);
    let mut group = c.benchmark_group("a call");
    group.sample_size(20).measurement_time(Duration::from_secs(3));
    for (candidates, running) in [(0, 0), (100, 100), (1000, 100), (100, 10_000)] {
        let call = call(candidates, running);
        group.bench_function(format!("{candidates} candidates, {running} running"), |b| {
            b.iter(|| {
                runtime.block_on(host.throttle(&plugin, Arc::clone(&call), Purpose::Live)).unwrap()
            });
        });
    }
    group.finish();
}

/// The guests whose calls differ in one part.
fn parts_of_a_call() -> [(&'static str, Guest); 5] {
    let by_column = || {
        Guest::throttler()
            .world("throttler-by-column", "")
            .import(CANDIDATES)
            .items(r#"(data (i32.const 2048) "region")"#)
    };
    let runs = "(call $run (call $offered))";
    let read = "(call $weights (i32.const 0) (i32.const 2064))
        (call $values (i32.const 2048) (i32.const 6) (i32.const 2064))";
    // `hold` with a reason of six letters.
    let holds = "(local.set $r (call $run (call $offered))) (local.set $p (call $first (local.get $r)))
        (loop $each
          (i32.store8 (local.get $p) (i32.const 1)) (i32.store8 offset=24 (local.get $p) (i32.const 1))
          (i32.store offset=28 (local.get $p) (i32.const 2048)) (i32.store offset=32 (local.get $p) (i32.const 6))
          (local.set $p (i32.add (local.get $p) (i32.const 40)))
          (br_if $each (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (call $offered))))
        (local.get $r)";
    [
        ("no candidate is read", by_column().decide(runs)),
        (
            "two columns are read",
            by_column().import(WEIGHTS).import(VALUES).decide(&[read, runs].concat()),
        ),
        (
            "the packed candidates are read",
            by_column().import(PACKED).decide(&["(call $packed (i32.const 2064))", runs].concat()),
        ),
        ("records are passed", Guest::throttler()),
        ("no candidate is read, each is held with a reason", by_column().decide(holds)),
    ]
}

/// The instance alone, and calls with 100 candidates and 100 running jobs that differ in one part.
fn parts(c: &mut Criterion) {
    let runtime = runtime();
    let mut group = c.benchmark_group("parts of a call");
    group.sample_size(20).measurement_time(Duration::from_secs(3));
    let call = call(100, 100);
    for (index, (part, guest)) in parts_of_a_call().into_iter().enumerate() {
        let objects = Arc::default();
        let (_, plugin) = runtime.block_on(compiled(guest.component(), &objects));
        let host = host(&objects);
        if index == 0 {
            group.bench_function("the instance, to check a configuration", |b| {
                b.iter(|| runtime.block_on(host.check(&plugin, Role::Throttler, "{}")).unwrap());
            });
        }
        group.bench_function(part, |b| {
            b.iter(|| {
                runtime.block_on(host.throttle(&plugin, Arc::clone(&call), Purpose::Live)).unwrap()
            });
        });
    }
    group.finish();
}

/// Calls of the components in `TIDEGATE_BENCH_PLUGINS`, which are those of the templates.
fn languages(c: &mut Criterion) {
    let Some(folder) = std::env::var_os("TIDEGATE_BENCH_PLUGINS") else { return };
    let runtime = runtime();
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|end| end == "wasm")).collect();
    files.sort();
    for file in files {
        let language = file.file_stem().unwrap().to_str().unwrap();
        let mut group = c.benchmark_group(format!("a call of {language}"));
        group.sample_size(20).measurement_time(Duration::from_secs(3));
        let objects = Arc::default();
        let (_, plugin) = runtime.block_on(compiled(fs::read(&file).unwrap(), &objects));
        let host = host(&objects);
        let config = r#"{"limit": 1000000}"#;
        group.bench_function("the instance, to check a configuration", |b| {
            b.iter(|| runtime.block_on(host.check(&plugin, Role::Throttler, config)).unwrap());
        });
        for (candidates, running) in [(0, 0), (100, 100), (1000, 100), (100, 10_000)] {
            let call = Arc::new(call_with(config, candidates, running));
            group.bench_function(format!("{candidates} candidates, {running} running"), |b| {
                b.iter(|| {
                    runtime
                        .block_on(host.throttle(&plugin, Arc::clone(&call), Purpose::Live))
                        .unwrap()
                });
            });
        }
        group.finish();
    }
}

/// Loads a small plugin and one of the size of a Rust plugin, which compiles to about 300 KB.
fn loading(c: &mut Criterion) {
    let (runtime, objects) = (runtime(), Arc::default());
    let (_, plugin) = runtime.block_on(compiled(guest().component(), &objects));
    let large: Arc<InMemory> = Arc::default();
    let function = format!(
        "(func (param i32) (result i32) {} (local.get 0))",
        "(local.set 0 (i32.mul (local.get 0) (i32.const 77)))".repeat(100)
    );
    let padded =
        guest().items(&(r#"(data (i32.const 2048) "region")"#.to_owned() + &function.repeat(600)));
    let padded = runtime.block_on(async {
        let artifact =
            host(&large).compile(padded.component().into(), &Compiler::Here).await.unwrap();
        artifact.put(&*large).await.unwrap();
        println!("the large plugin compiles to {} bytes", artifact.code.len());
        Plugin { name: name("large"), version: Arc::new(artifact.version(1, at(0))) }
    });
    let mut group = c.benchmark_group("load");
    group.sample_size(20).measurement_time(Duration::from_secs(3));
    for (size, plugin, objects) in
        [("a small plugin", plugin, objects), ("a plugin of the usual size", padded, large)]
    {
        group.bench_function(size, |b| {
            b.iter_batched(
                || host(&objects),
                |host| runtime.block_on(host.load(&plugin)).unwrap(),
                criterion::BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, calls, parts, languages, loading);
criterion_main!(benches);
