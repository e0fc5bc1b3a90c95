//! A simulation with a version of a plugin that has no code for this server.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::{ObjectStore, memory::InMemory, path::Path};
use tidegate_backends::{
    http::{Guard, HttpTarget},
    system::{SystemClock, SystemEntropy},
    wasm::{
        PluginHost, Run,
        compile::{Artifact, Compiler},
    },
};
use tidegate_core::{
    job::{Payload, PluginName, QueueName, type_config::TypeConfig},
    queue::QueueConfig,
};
use tidegate_engine::{
    Ports,
    memory::{MemoryStore, MemoryWorkQueue},
    plugins::registry::{NewVersion, Stage},
    request::NewJob,
    simulate::By,
    testkit::builders::name,
};
use tidegate_server::{Server, runtime::WhatIf};

/// The names and sizes of all objects.
async fn objects(store: &InMemory) -> BTreeMap<Path, u64> {
    let all = store.list(None).map_ok(|object| (object.location, object.size));
    all.try_collect().await.unwrap()
}

#[tokio::test]
async fn a_simulation_compiles_a_version_and_stores_nothing() {
    let stored = Arc::new(InMemory::new());
    let shared = Arc::clone(&stored) as Arc<dyn ObjectStore>;
    let host = PluginHost::new(Arc::clone(&shared), Arc::new(SystemClock), Run::Aside).unwrap();
    let host = Arc::new(host);
    let ports = Ports {
        store: Arc::new(MemoryStore::new()),
        objects: shared,
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        policy: Arc::new(tidegate_core::port::policy::NoPolicy),
    };
    let target = Arc::new(HttpTarget::new(Guard::default()).unwrap());
    let server = Server::builder(ports, target).plugins(Arc::clone(&host), Compiler::Here);
    let server = server.start().await.unwrap();
    let (plugin, queue): (PluginName, QueueName) = (name("pace"), name("q"));

    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/plugins/dist/rate-limit.wasm");
    let live = Bytes::from(std::fs::read(file).unwrap());
    server.push_component(&plugin, live.clone(), Stage::Live).await.unwrap();
    // A custom section makes it another version, which decides as the first one.
    let other = Bytes::from([&live[..], &[0, 5, 4], b"note"].concat());
    let Artifact { wasm, throttler, retry, .. } =
        host.compile(other, &Compiler::Here).await.unwrap();
    let without_code = NewVersion { wasm, throttler, retry, code: Vec::new() };
    let pushed = server.push_plugin(&plugin, without_code, Stage::Kept).await.unwrap();
    assert_eq!((pushed.number, pushed.item.live), (2, 1));

    let throttler = r#"{"throttler": {"plugin": "pace", "config": {"count": 1}}}"#;
    let config: QueueConfig = serde_json::from_str(throttler).unwrap();
    server.put_queue(&queue, config.clone(), None).await.unwrap();
    let of_queue = TypeConfig { queue: queue.clone(), ..TypeConfig::default() };
    server.put_type(&name("work"), of_queue, None).await.unwrap();
    for _ in 0..2 {
        server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap();
    }
    let before = (objects(&stored).await, server.plugin(&plugin).await.unwrap());
    let what = |version| WhatIf {
        over: Duration::from_hours(1),
        queue: config.clone(),
        types: BTreeMap::new(),
        throttler_version: Some(version),
        by: By::Type,
        workers: None,
    };
    let simulated = server.simulate_queue(&queue, what(2)).await.unwrap();
    assert_eq!((simulated.jobs, simulated.recorded.is_none()), (2, true));
    assert_eq!((objects(&stored).await, server.plugin(&plugin).await.unwrap()), before);
    assert!(before.1.numbered(2).unwrap().compiled.is_empty());
    assert!(server.simulate_queue(&queue, what(3)).await.is_err(), "there is no such version");
}
