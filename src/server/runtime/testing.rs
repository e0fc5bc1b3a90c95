//! Servers in memory for the tests of this folder. Only the tests move time.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use async_trait::async_trait;
use futures_util::poll;
use object_store::{ObjectStore, memory::InMemory};
use parking_lot::Mutex;

use super::{Builder, Server};
use tidegate_backends::system::SystemEntropy;
use tidegate_core::{
    event::Event,
    port::{
        JobStore, StoreError, StoreLayer, Target,
        job_store::{DuePage, DueQuery, SharedStore},
        policy::NoPolicy,
        store_layer::Operation,
        target::{Request, Response, TargetError},
    },
};
use tidegate_engine::{
    Ports,
    memory::{FakeClock, MemoryStore, MemoryWorkQueue},
    testkit::objects::FaultyObjects,
};

/// Answers every push.
pub(super) struct AcceptAll;

#[async_trait]
impl Target for AcceptAll {
    async fn call(&self, _: Request) -> Result<Response, TargetError> {
        Ok(Response { status: 200, headers: Vec::new(), body: bytes::Bytes::new() })
    }
}

/// A store that counts commits, and refuses them while a test wants it.
pub(super) struct RefusingStore {
    store: SharedStore,
    commits: AtomicUsize,
    refuses: AtomicBool,
}

impl RefusingStore {
    /// A store that passes all calls on to `store`.
    pub(super) fn new(store: SharedStore) -> Arc<Self> {
        let (commits, refuses) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { store, commits, refuses })
    }

    /// Refuses commits from now on, or no longer.
    pub(super) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Relaxed);
    }

    /// How many commits it did not refuse.
    pub(super) fn commits(&self) -> usize {
        self.commits.load(Ordering::Relaxed)
    }
}

impl StoreLayer for RefusingStore {
    fn inner(&self) -> &dyn JobStore {
        &*self.store
    }

    async fn around<T: Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        if operation == Operation::Commit {
            if self.refuses.load(Ordering::Relaxed) {
                return Err(StoreError::unavailable("refused"));
            }
            self.commits.fetch_add(1, Ordering::Relaxed);
        }
        call.await
    }
}

/// A store that records its calls, apart from those for pages of critical jobs alone.
pub(super) struct RecordingStore {
    store: SharedStore,
    calls: Mutex<Vec<Operation>>,
}

impl RecordingStore {
    /// A store that passes all calls on to `store`.
    pub(super) fn new(store: SharedStore) -> Arc<Self> {
        Arc::new(Self { store, calls: Mutex::default() })
    }

    /// The calls since the last call of this.
    pub(super) fn take(&self) -> Vec<Operation> {
        std::mem::take(&mut *self.calls.lock())
    }
}

impl StoreLayer for RecordingStore {
    fn inner(&self) -> &dyn JobStore {
        &*self.store
    }

    async fn around<T: Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.calls.lock().push(operation);
        call.await
    }

    async fn due(&self, queries: &[DueQuery]) -> Result<Vec<DuePage>, StoreError> {
        if queries.iter().any(|query| !query.critical) {
            self.calls.lock().push(Operation::Due);
        }
        self.inner().due(queries).await
    }
}

/// A builder of a server with an empty store.
pub(crate) fn builder(clock: &Arc<FakeClock>) -> Builder {
    builder_on(clock, Arc::new(MemoryStore::new()), Arc::new(InMemory::new()))
}

/// A builder of a server on `store` and `objects`.
pub(super) fn builder_on(
    clock: &Arc<FakeClock>,
    store: SharedStore,
    objects: Arc<dyn ObjectStore>,
) -> Builder {
    Server::builder(Ports { store, objects, ..ports(clock) }, Arc::new(AcceptAll))
}

/// Ports with an empty store.
pub(super) fn ports(clock: &Arc<FakeClock>) -> Ports {
    Ports {
        store: Arc::new(MemoryStore::new()),
        objects: Arc::new(InMemory::new()),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: Arc::clone(clock) as _,
        entropy: Arc::new(SystemEntropy),
        policy: Arc::new(NoPolicy),
    }
}

/// A server with an empty store, on objects with faults.
pub(super) async fn server_on_faulty_objects() -> (Server, Arc<FaultyObjects>) {
    let objects = Arc::new(FaultyObjects::default());
    let clock = Arc::new(FakeClock::default());
    let store = Arc::new(MemoryStore::new());
    let server = builder_on(&clock, store, Arc::clone(&objects) as _).start().await.unwrap();
    (server, objects)
}

/// The event `id` of type `put`.
pub(super) fn event(id: &str) -> Event {
    Event {
        id: id.to_owned(),
        source: "/bucket".into(),
        event_type: "put".into(),
        subject: None,
        time: None,
        data_content_type: None,
        data_schema: None,
        extensions: BTreeMap::new(),
        data: None,
    }
}

/// Sends the event `id` of type `put` to `server`.
pub(super) async fn send_event(server: &Server, id: &str) {
    let answers = server.ingest(&[event(id)]).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

/// Yields until `good` returns `true`.
pub(super) async fn until(what: &str, mut good: impl AsyncFnMut() -> bool) {
    for _ in 0..1_000_000 {
        if good().await {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never came to that: {what}")
}

/// The result of `future`, which needs no time to pass.
pub(super) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut result = None;
    until(what, async || {
        if let Poll::Ready(ready) = poll!(&mut future) {
            result = Some(ready);
        }
        result.is_some()
    })
    .await;
    result.expect("it is ready")
}

/// The result of `work`, while the time passes.
pub(crate) async fn in_time<T>(clock: &FakeClock, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let mut result = None;
    until("it returns", async || {
        clock.advance(Duration::from_millis(100));
        if let Poll::Ready(ready) = poll!(&mut work) {
            result = Some(ready);
        }
        result.is_some()
    })
    .await;
    result.expect("it returned")
}

/// Events of the stream as texts: the name of each, what its data names, and its state. Empty for a
/// comment.
pub(super) fn shown_events(frames: &[u8]) -> Vec<String> {
    let text = std::str::from_utf8(frames).expect("it is text");
    let event = |event: &str| {
        let mut lines = event.lines();
        let kind = lines.next().unwrap_or_default().trim_start_matches("event: ").to_owned();
        let data = lines.nth(1).unwrap_or_default().trim_start_matches("data: ");
        let data: serde_json::Value = serde_json::from_str(data).expect("it is JSON");
        let of = ["id", "queue", "worker", "type", "changes", "resumed"];
        let of = of.map(|name| &data[name]);
        let of = of.into_iter().find(|value| !value.is_null()).cloned().unwrap_or_default();
        let state = data["state"].as_str().or(data["change"].as_str()).unwrap_or_default();
        format!("{kind} {of} {state}").replace('"', "").trim_end().to_owned()
    };
    text.split_terminator("\n\n").filter(|event| !event.starts_with(':')).map(event).collect()
}

/// The id of the last event in `frames`.
pub(super) fn last_event_id(frames: &[u8]) -> String {
    let text = std::str::from_utf8(frames).expect("it is text");
    text.lines().rev().find_map(|line| line.strip_prefix("id: ")).expect("it has one").to_owned()
}
