//! A serverless deployment with plugins: what it records of their calls.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use object_store::{ObjectStore, memory::InMemory};
use tidegate_backends::{
    dynamodb::{DynamoStore, memory::MemoryTable},
    http::{Guard, HttpTarget},
    system::{SystemClock, SystemEntropy},
    wasm::{PluginHost, Run, compile::Compiler},
};
use tidegate_core::{
    job::{Payload, PluginName, QueueName, type_config::TypeConfig},
    port::{HintKind, job_store::SharedStore, policy::NoPolicy},
    queue::QueueConfig,
};
use tidegate_engine::{
    Ports,
    memory::{MemoryStore, MemoryWorkQueue},
    plugins::registry::Stage,
    request::NewJob,
    testkit::builders::name,
};
use tidegate_server::{
    Server,
    runtime::{ShownCall, Wanted},
};

use crate::plugins::guest::Guest;

/// Enqueues a job and ticks its queue, as functions do, until `done` accepts the recorded calls.
async fn tick_until(
    server: &Server,
    plugin: &PluginName,
    queue: &QueueName,
    done: impl Fn(&[ShownCall]) -> bool,
) -> Vec<ShownCall> {
    server.enqueue(NewJob::new(name("work"), Payload::null())).await.unwrap();
    let ticked = async {
        loop {
            let until = server.now() + Duration::from_secs(10);
            server.tick_queue(queue, vec![HintKind::Due], until).await.unwrap();
            server.flush().await.unwrap();
            let calls = server.plugin_calls(plugin, Wanted::All).await.unwrap();
            if done(&calls) {
                return calls;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), ticked).await.expect("it is recorded")
}

/// A function on a store and objects that it shares with others.
async fn function(store: &SharedStore, objects: &Arc<dyn ObjectStore>) -> Server {
    let host = PluginHost::new(Arc::clone(objects), Arc::new(SystemClock), Run::Aside).unwrap();
    let ports = Ports {
        store: Arc::clone(store),
        objects: Arc::clone(objects),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        policy: Arc::new(NoPolicy),
    };
    let target = Arc::new(HttpTarget::new(Guard::default()).unwrap());
    let server = Server::builder(ports, target).plugins(Arc::new(host), Compiler::Here);
    server.serverless().start().await.unwrap()
}

/// Adds a plugin that throttles a queue, and a type of the queue.
async fn configure(server: &Server) -> (PluginName, QueueName) {
    let (plugin, queue): (PluginName, QueueName) = (name("share"), name("q"));
    let good = Guest::throttler().component();
    server.push_component(&plugin, good.into(), Stage::Live).await.unwrap();
    let throttler = r#"{"throttler": {"plugin": "share"}}"#;
    let config: QueueConfig = serde_json::from_str(throttler).unwrap();
    server.put_queue(&queue, config, None).await.unwrap();
    let pushed = r#"{"queue": "q", "target": {"url": "https://example.com/"}}"#;
    let pushed: TypeConfig = serde_json::from_str(pushed).unwrap();
    server.put_type(&name("work"), pushed, None).await.unwrap();
    (plugin, queue)
}

/// The number of samples, each of a minute of its own.
fn samples(calls: &[ShownCall]) -> usize {
    let samples = calls.iter().filter(|call| call.reason == "sample");
    let minutes: Vec<i64> = samples.map(|call| call.at.millis() / 60_000).collect();
    assert_eq!(minutes.iter().collect::<BTreeSet<_>>().len(), minutes.len(), "{calls:?}");
    minutes.len()
}

#[tokio::test]
async fn functions_on_a_table_store_one_sample_a_minute() {
    let table = Arc::new(MemoryTable::new());
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    let store: SharedStore = Arc::new(DynamoStore::new(table, clock, entropy));
    let objects = Arc::new(InMemory::new()) as Arc<dyn ObjectStore>;
    let first = function(&store, &objects).await;
    let (plugin, queue) = configure(&first).await;
    let second = function(&store, &objects).await;
    for server in [&first, &second] {
        let mut calls = Vec::new();
        while server.plugin_seen(&plugin).await.unwrap().live.health.calls == 0 {
            calls = tick_until(server, &plugin, &queue, |_| true).await;
        }
        assert!(samples(&calls) > 0);
    }
}

#[tokio::test]
async fn a_function_stores_a_sample_filtered_calls_and_faults() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let server = function(&store, &(Arc::new(InMemory::new()) as Arc<dyn ObjectStore>)).await;
    let (plugin, queue) = configure(&server).await;

    let has = |reason: &'static str| {
        move |calls: &[ShownCall]| calls.iter().any(|call| call.reason == reason)
    };
    let calls = tick_until(&server, &plugin, &queue, has("sample")).await;
    assert_eq!(calls.len(), 1, "none is in memory: {calls:?}");
    // Within a minute no other sample is stored, but what a filter selects is.
    let recording = serde_json::from_value(serde_json::json!({
        "filter": {"type": "work", "action": "run"}, "until": server.now() + Duration::from_mins(10),
    }));
    server.record_plugin_calls(&plugin, Some(recording.unwrap())).await.unwrap();
    let calls = tick_until(&server, &plugin, &queue, has("filter")).await;
    assert!(samples(&calls) > 0 && calls[0].decided["run"] == 1, "{calls:?}");

    let broken = Guest::throttler().decide("(unreachable)").component();
    server.push_component(&plugin, broken.into(), Stage::Live).await.unwrap();
    let calls = tick_until(&server, &plugin, &queue, has("fault")).await;
    assert_eq!(calls[0].fault.as_ref().unwrap().0, "trapped");
    let whole = server.plugin_call(&plugin, &calls[0].id).await.unwrap();
    assert!(whole.call.unwrap().get().contains("candidates"));
}
