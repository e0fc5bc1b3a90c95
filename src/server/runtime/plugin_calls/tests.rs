//! Calls are stored, found after a restart, redacted, listed without inputs, and replaced by later
//! ones.

mod samples;

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use object_store::memory::InMemory;
use serde_json::json;

use super::*;
use crate::runtime::testing::builder_on;
use tidegate_backends::wasm::{PluginHost, Run, diagnostics::LogLevel, recording::Unstored};
use tidegate_core::{
    port::{
        Clock as _, JobStore, StoreError, StoreLayer, Write,
        job_store::{Record, RecordKind, RecordQuery, SharedStore},
        policy::{Fault, FaultKind, ThrottleAnswer, Usage},
        store_layer::Operation,
    },
    queue::{QueueConfig, plugin::Description, plugin_calls::CallFilter},
};
use tidegate_engine::{
    memory::{FakeClock, MemoryStore},
    plugins::registry::{NewVersion, Stage},
    testkit::{builders::name, faults::FaultyStore},
};

const PLUGIN: &str = "share";

/// A server on `store` that has the plugin and the queue.
async fn start(clock: &Arc<FakeClock>, store: &SharedStore, serverless: bool) -> Server {
    let builder = builder_on(clock, Arc::clone(store), Arc::new(InMemory::new()));
    let builder = if serverless { builder.serverless() } else { builder };
    let server = builder.start().await.unwrap();
    push(&server).await;
    server
}

/// Adds a version of the plugin, and the queue.
async fn push(server: &Server) {
    let version = NewVersion {
        wasm: Bytes::from("v1"),
        throttler: Some(Description::default()),
        retry: None,
        code: vec![],
    };
    server.push_plugin(&name(PLUGIN), version, Stage::Live).await.unwrap();
    server.put_queue(&name("mail"), QueueConfig::default(), None).await.unwrap();
}

fn unstored(clock: &FakeClock, reason: Reason, number: u64, call: &str) -> Unstored {
    let answer = match reason {
        Reason::Fault => {
            Err(Fault { kind: FaultKind::Trapped, message: format!("no share for acme {number}") })
        }
        _ => {
            Ok(Answer::Throttle(ThrottleAnswer { decisions: Vec::new(), more: true, state: None }))
        }
    };
    let call = RecordedCall {
        number,
        at: clock.now(),
        version: 1,
        role: Role::Throttler,
        shadow: false,
        queue: name("mail"),
        usage: Usage::default(),
        answer,
        log: vec![(LogLevel::Info, format!("line {number} of acme"))],
        call: Some(Arc::from(call)),
    };
    Unstored { plugin: name(PLUGIN), reason, call: Arc::new(call) }
}

/// A call about a job of the tenant acme.
fn a_call() -> String {
    json!({"throttle": {
        "context": {"queue": "mail"},
        "candidates": [{"id": "a", "attributes": {"tenant": "acme"}}],
        "data": {"a": {"card": "4111"}},
    }})
    .to_string()
}

/// The records of calls, at most 10, without the claims of minutes.
async fn records(store: &SharedStore) -> Vec<Record> {
    let query =
        RecordQuery { kind: RecordKind::PluginCall, prefix: String::new(), after: None, limit: 20 };
    let mut records = store.records(&[query]).await.unwrap().remove(0);
    records.retain(|record| !record.name.contains(".minute-"));
    records.truncate(10);
    records
}

/// Writes a record as it is.
async fn plant(store: &SharedStore, record: Record) {
    store.commit(vec![vec![Write::PutRecord(record)]]).await.unwrap();
}

/// Whether a record is the body of a call.
fn is_body(record: &Record) -> bool {
    record.name.contains(".body-")
}

async fn ids(server: &Server) -> Vec<String> {
    let calls = server.plugin_calls(&name(PLUGIN), Wanted::All).await.unwrap();
    assert!(calls.iter().all(|call| call.call.is_none() && call.answer.is_none()));
    calls.into_iter().map(|call| call.id).collect()
}

#[tokio::test]
async fn stored_calls_outlive_the_process_for_a_week() {
    let (clock, store) = (Arc::new(FakeClock::default()), Arc::new(MemoryStore::new()));
    let store: SharedStore = store;
    let server = start(&clock, &store, false).await;
    server
        .inner
        .store_calls(vec![
            unstored(&clock, Reason::Fault, 1, &a_call()),
            unstored(&clock, Reason::Filter, 2, &a_call()),
        ])
        .await
        .unwrap();
    let stored = ids(&server).await;
    assert_eq!(stored.len(), 2);
    server.stop().await;

    let server = start(&clock, &store, false).await;
    assert_eq!(ids(&server).await, stored);
    let call = server.plugin_call(&name(PLUGIN), &stored[1]).await.unwrap();
    assert_eq!((call.reason.as_str(), call.log[0].1.as_str()), ("fault", "line 1 of acme"));
    assert_eq!(call.fault.unwrap(), ("trapped".to_owned(), "no share for acme 1".to_owned()));
    assert_eq!(call.call.unwrap().get(), a_call());
    let call = server.plugin_call(&name(PLUGIN), &stored[0]).await.unwrap();
    assert_eq!(call.answer.unwrap().get(), r#"{"decisions":[],"more":true}"#);
    let faults = server.plugin_calls(&name(PLUGIN), Wanted::Faults).await.unwrap();
    assert_eq!((faults.len(), &faults[0].id), (1, &stored[1]));
    for id in ["", "fault", "fault-000-1-1", "latest-1-1", "fault-999-1-1", "x-1-2-3"] {
        let error = server.plugin_call(&name(PLUGIN), id).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{id}: {error}");
    }

    clock.advance(Duration::from_hours(7 * 24));
    assert!(ids(&server).await.is_empty());
    server.inner.drop_old_plugin_calls().await.unwrap();
    assert_eq!(records(&store).await, []);
}

#[tokio::test]
async fn later_calls_replace_the_oldest_ones_of_their_reason() {
    let (clock, store) = (Arc::new(FakeClock::default()), Arc::new(MemoryStore::new()));
    let store: SharedStore = store;
    for serverless in [false, true] {
        let server = start(&clock, &store, serverless).await;
        server.inner.store_calls(vec![unstored(&clock, Reason::Sample, 0, "{}")]).await.unwrap();
        for number in 1..=120 {
            clock.advance(Duration::from_secs(1));
            let call = unstored(&clock, Reason::Fault, number, &a_call());
            server.inner.store_calls(vec![call]).await.unwrap();
        }
        let faults = server.plugin_calls(&name(PLUGIN), Wanted::Faults).await.unwrap();
        let messages: Vec<String> = faults.into_iter().map(|call| call.fault.unwrap().1).collect();
        let latest = (71..=120).rev().map(|number| format!("no share for acme {number}"));
        assert_eq!(messages, latest.collect::<Vec<_>>());
        assert!(ids(&server).await.len() > 50, "a sample is no fault");
        let whole = server.plugin_call(&name(PLUGIN), &ids(&server).await[0]).await.unwrap();
        assert_eq!(whole.call.unwrap().get(), a_call(), "an input is replaced with its call");
        server.delete_plugin(&name(PLUGIN)).await.unwrap();
        assert_eq!(records(&store).await, []);
        let server = start(&clock, &store, serverless).await;
        assert!(ids(&server).await.is_empty(), "they are deleted with their plugin");
        server.delete_plugin(&name(PLUGIN)).await.unwrap();
    }
}

#[tokio::test]
async fn the_queue_defines_what_is_stored_of_its_calls() {
    let (clock, store) = (Arc::new(FakeClock::default()), Arc::new(MemoryStore::new()));
    let store: SharedStore = store;
    let server = start(&clock, &store, false).await;
    let configure = async |calls: serde_json::Value| {
        let config: QueueConfig = serde_json::from_value(json!({"plugin_calls": calls})).unwrap();
        server.put_queue(&name("mail"), config, None).await.unwrap();
    };
    configure(json!({"redact": ["data", "attributes.tenant"]})).await;
    let call = unstored(&clock, Reason::Fault, 1, &a_call());
    server.inner.store_calls(vec![call]).await.unwrap();
    let stored = records(&store).await;
    assert_eq!(stored.len(), 2, "the call and its body");
    let id = ids(&server).await.remove(0);
    let call = server.plugin_call(&name(PLUGIN), &id).await.unwrap();
    let text = serde_json::to_string(&call).unwrap();
    assert!(!text.contains("acme") && !text.contains("4111"), "{text}");
    assert!(text.contains("no share for redacted-1") && text.contains("line 1 of redacted-1"));

    configure(json!({"store": false})).await;
    let call = unstored(&clock, Reason::Fault, 2, &a_call());
    server.inner.store_calls(vec![call]).await.unwrap();
    assert_eq!(records(&store).await, stored);
}

#[tokio::test]
async fn a_call_that_is_too_large_is_stored_without_its_input() {
    let (clock, store) = (Arc::new(FakeClock::default()), Arc::new(MemoryStore::new()));
    let store: SharedStore = store;
    let server = start(&clock, &store, false).await;
    // Digits of a generator cannot be compressed well.
    let mut state = 1_u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        format!("{state:x}")
    };
    let texts: Vec<String> = (0..20_000).map(|_| noise()).collect();
    let call = json!({"throttle": {"state": {"k": texts.concat()}}}).to_string();
    let too_large =
        [unstored(&clock, Reason::Fault, 1, &call), unstored(&clock, Reason::Filter, 2, &call)];
    server.inner.store_calls(too_large.into()).await.unwrap();
    let ids = ids(&server).await;
    let answered = server.plugin_call(&name(PLUGIN), &ids[0]).await.unwrap();
    assert!(answered.call.is_none() && answered.answer.is_some());
    let failed = server.plugin_call(&name(PLUGIN), &ids[1]).await.unwrap();
    assert!(failed.call.is_none() && failed.fault.is_some() && failed.log.len() == 1);
    assert_eq!(records(&store).await.iter().filter(|record| is_body(record)).count(), 1);
}

/// Counts the reads of records.
struct CountingStore {
    inner: SharedStore,
    reads: Arc<AtomicUsize>,
}

impl StoreLayer for CountingStore {
    fn inner(&self) -> &dyn JobStore {
        &*self.inner
    }

    async fn around<T: Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.reads.fetch_add(usize::from(operation == Operation::Records), Ordering::Relaxed);
        call.await
    }
}

#[tokio::test]
async fn a_list_reads_no_inputs() {
    let (clock, reads) = (Arc::new(FakeClock::default()), Arc::new(AtomicUsize::new(0)));
    let counting = CountingStore { inner: Arc::new(MemoryStore::new()), reads: Arc::clone(&reads) };
    let store: SharedStore = Arc::new(counting);
    // A function has no tasks of its own that read records.
    let server = start(&clock, &store, true).await;
    let calls = [Reason::Fault, Reason::Filter, Reason::Sample].into_iter().zip(1..);
    let calls = calls.map(|(reason, number)| unstored(&clock, reason, number, &a_call()));
    server.inner.store_calls(calls.collect()).await.unwrap();
    let listed = ids(&server).await;
    // In the place of each body is a call. A list that read it would have the call twice.
    let (bodies, calls): (Vec<_>, Vec<_>) = records(&store).await.into_iter().partition(is_body);
    assert_eq!((bodies.len(), calls.len()), (3, 3));
    for (body, call) in bodies.into_iter().zip(calls) {
        assert_eq!(body.name.replace("body-", ""), call.name);
        plant(&store, Record { bytes: call.bytes, ..body }).await;
    }
    reads.store(0, Ordering::Relaxed);
    assert_eq!(ids(&server).await, listed);
    assert_eq!(reads.load(Ordering::Relaxed), 1, "one read lists the calls of all reasons");
    for id in &listed {
        assert!(server.plugin_call(&name(PLUGIN), id).await.unwrap().call.is_none());
    }
    for number in 4..=150 {
        let call = unstored(&clock, Reason::Filter, number, &a_call());
        server.inner.store_calls(vec![call]).await.unwrap();
    }
    reads.store(0, Ordering::Relaxed);
    assert_eq!(ids(&server).await.len(), 102);
    assert_eq!(reads.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_body_of_another_call_is_not_taken_for_that_of_a_call() {
    let (clock, store) = (Arc::new(FakeClock::default()), Arc::new(MemoryStore::new()));
    let store: SharedStore = store;
    let server = start(&clock, &store, false).await;
    for number in 1..=2 {
        let call = unstored(&clock, Reason::Filter, number, &a_call());
        server.inner.store_calls(vec![call]).await.unwrap();
    }
    let (mut bodies, _): (Vec<_>, Vec<_>) = records(&store).await.into_iter().partition(is_body);
    let (second, first) = (bodies.pop().unwrap(), bodies.pop().unwrap());
    let second_bytes = second.bytes.clone();
    plant(&store, Record { bytes: first.bytes, ..second.clone() }).await;
    let ids = ids(&server).await;
    let has_body = async |id: &String| {
        let call = server.plugin_call(&name(PLUGIN), id).await.unwrap();
        (call.call.is_some(), call.answer.is_some())
    };
    assert_eq!((has_body(&ids[1]).await, has_body(&ids[0]).await), ((true, true), (false, false)));
    plant(&store, Record { bytes: b"no call".to_vec(), ..second.clone() }).await;
    assert_eq!(has_body(&ids[0]).await, (false, false), "it cannot be read");
    plant(&store, Record { bytes: second_bytes, ..second }).await;
    assert_eq!(has_body(&ids[0]).await, (true, true));
}

#[tokio::test]
async fn a_crash_between_a_call_and_its_body_leaves_the_call() {
    let clock = Arc::new(FakeClock::default());
    let faulty = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), 1));
    let store: SharedStore = Arc::clone(&faulty) as _;
    // A function has no tasks of its own that write.
    let server = start(&clock, &store, true).await;
    let call = |number| vec![unstored(&clock, Reason::Fault, number, &a_call())];
    faulty.crash_after(1);
    server.inner.store_calls(call(1)).await.unwrap_err();
    faulty.revive();
    let id = ids(&server).await.remove(0);
    assert!(server.plugin_call(&name(PLUGIN), &id).await.unwrap().call.is_none());
    server.inner.store_calls(call(2)).await.unwrap();
    assert_eq!(ids(&server).await.len(), 2, "its place is taken");
    server.delete_plugin(&name(PLUGIN)).await.unwrap();
    assert_eq!(records(&store).await, []);
}

#[tokio::test]
async fn a_record_with_its_input_is_shown_without_it() {
    let (clock, store) = (Arc::new(FakeClock::default()), Arc::new(MemoryStore::new()));
    let store: SharedStore = store;
    let server = start(&clock, &store, false).await;
    let call = unstored(&clock, Reason::Filter, 1, &a_call());
    server.inner.store_calls(vec![call]).await.unwrap();
    let id = ids(&server).await.remove(0);
    let whole = server.plugin_call(&name(PLUGIN), &id).await.unwrap();
    assert!(whole.call.is_some() && whole.answer.is_some());
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&serde_json::to_vec(&whole).unwrap()).unwrap();
    let bytes = encoder.finish().unwrap();
    let (bodies, mut calls): (Vec<_>, Vec<_>) =
        records(&store).await.into_iter().partition(is_body);
    let remove = Write::RemoveRecord {
        kind: RecordKind::PluginCall,
        name: bodies[0].name.clone(),
        until: None,
    };
    store.commit(vec![vec![remove]]).await.unwrap();
    plant(&store, Record { bytes, ..calls.remove(0) }).await;
    assert_eq!(ids(&server).await, [id.as_str()]);
    assert!(server.plugin_call(&name(PLUGIN), &id).await.unwrap().call.is_none());
}

#[tokio::test]
async fn calls_of_a_deleted_queue_are_redacted_and_not_stored() {
    let (clock, store) = (Arc::new(FakeClock::default()), Arc::new(MemoryStore::new()));
    let store: SharedStore = store;
    let server = start(&clock, &store, false).await;
    server.delete_queue(&name("mail"), None).await.unwrap();
    let call = unstored(&clock, Reason::Fault, 1, &a_call());
    server.inner.store_calls(vec![call.clone()]).await.unwrap();
    assert_eq!(records(&store).await, []);
    let catalog = server.inner.engine.catalog().await.unwrap();
    for bodies in [Bodies::Kept, Bodies::Dropped] {
        let shown = ShownCall::of_failed(&call.call, &catalog, bodies);
        assert_eq!(shown.call.is_some(), bodies == Bodies::Kept);
        let text = serde_json::to_string(&shown).unwrap();
        assert!(!text.contains("acme") && !text.contains("4111"), "{text}");
    }
    assert!(recording_of(&catalog, &name("default")).store, "it exists unconfigured");
}

#[tokio::test]
async fn a_deleted_plugin_has_no_filter_and_no_new_records() {
    let (clock, store) = (Arc::new(FakeClock::default()), Arc::new(MemoryStore::new()));
    let store: SharedStore = store;
    let objects: Arc<dyn object_store::ObjectStore> = Arc::new(InMemory::new());
    let host = PluginHost::new(Arc::clone(&objects), Arc::clone(&clock) as _, Run::Here).unwrap();
    let builder = builder_on(&clock, Arc::clone(&store), objects).run_plugins(Arc::new(host));
    let server = builder.start().await.unwrap();
    push(&server).await;
    let recording = CallRecording {
        filter: CallFilter::default(),
        until: clock.now() + Duration::from_mins(1),
    };
    server.record_plugin_calls(&name(PLUGIN), Some(recording)).await.unwrap();
    server.delete_plugin(&name(PLUGIN)).await.unwrap();
    let catalog = server.inner.engine.catalog().await.unwrap();
    assert_eq!(*server.inner.recorded_calls.ruled_by.lock(), Some(catalog.version));
    let call = unstored(&clock, Reason::Filter, 1, &a_call());
    server.inner.store_calls(vec![call]).await.unwrap();
    assert_eq!(records(&store).await, []);
}
