//! A deployment in memory that records every event that its triggers see, and every message that it
//! sends.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use object_store::memory::InMemory;
use parking_lot::Mutex;
use serde_json::{Value, json, value::RawValue};
use tidegate_backends::dynamodb::{DynamoStore, memory::MemoryTable};
use tidegate_core::{
    job::type_config::TypeConfig,
    port::{
        Target,
        job_store::ListQuery,
        policy::NoPolicy,
        target::{Request, Response, ServiceMessage, TargetError},
    },
};
use tidegate_engine::{
    Ports, Rules,
    events::dead_letters::DeadLetter,
    memory::{FakeClock, MemoryWorkQueue, SeededEntropy},
    testkit::{builders::name, faults::FaultyStore},
};
use tidegate_server::{
    Server,
    auth::TokenItem,
    lambda::{Ingest, ingest::IngestFailed},
};

/// The SHA-256 of `secret`, in base64, as the token `tg_first_secret`.
const FIRST: &str = "first:K7gNU3sdo+OL0wNhqoVWhr3g6s1xYv72ol/pe/Unols=";

pub struct Harness {
    pub server: Server,
    pub store: Arc<FaultyStore>,
    pub work: Arc<MemoryWorkQueue>,
    sent: Arc<Services>,
    ingest: Ingest,
}

/// Services that accept every message.
#[derive(Default)]
struct Services(Mutex<Vec<ServiceMessage>>);

#[async_trait]
impl Target for Services {
    async fn call(&self, request: Request) -> Result<Response, TargetError> {
        Err(TargetError::NotConnected(request.url))
    }

    async fn send(&self, message: ServiceMessage) -> Result<Response, TargetError> {
        self.0.lock().push(message);
        Ok(Response { status: 200, headers: Vec::new(), body: Bytes::new() })
    }
}

impl Harness {
    /// One whose trigger makes a job of every event, with the event as its data.
    pub async fn seeing() -> Self {
        let harness = Self::empty().await;
        harness.trigger("all", json!({"enqueue": {"type": "seen", "data": {"$expr": "@"}}})).await;
        harness
    }

    /// One with a job type and no trigger.
    pub async fn empty() -> Self {
        let (clock, entropy) = (Arc::new(FakeClock::default()), Arc::new(SeededEntropy::new(7)));
        let table = DynamoStore::new(Arc::new(MemoryTable::new()), clock.clone(), entropy.clone());
        let store = Arc::new(FaultyStore::new(Arc::new(table), 7));
        let (work, sent) = (Arc::new(MemoryWorkQueue::default()), Arc::new(Services::default()));
        let ports = Ports {
            store: store.clone(),
            objects: Arc::new(InMemory::new()),
            work: work.clone(),
            clock,
            entropy,
            policy: Arc::new(NoPolicy),
        };
        let rules =
            Rules { accept_target: tidegate_backends::aws_targets::accept, ..Rules::default() };
        let server =
            Server::builder(ports, sent.clone()).rules(rules).serverless().start().await.unwrap();
        server.put_type(&name("seen"), TypeConfig::default(), None).await.unwrap();
        let ingest = Ingest::new(server.clone(), TokenItem::of_admin_setting(FIRST));
        Self { server, store, work, sent, ingest }
    }

    /// Delivers the work that waits. What was sent to services then.
    pub async fn deliver(&self) -> Vec<ServiceMessage> {
        let now = self.server.now();
        let work = self.work.take(100, now);
        let done = self.server.deliver(work, now + Duration::from_mins(1)).await;
        assert!(done.into_iter().all(|done| done));
        std::mem::take(&mut *self.sent.0.lock())
    }

    pub async fn trigger(&self, trigger: &str, rule: Value) {
        self.server
            .put_trigger(&name(trigger), serde_json::from_value(rule).unwrap(), None)
            .await
            .unwrap();
    }

    /// Calls the function with `payload`.
    pub async fn call(&self, payload: &Value) -> Result<Value, IngestFailed> {
        self.call_text(payload.to_string()).await
    }

    /// The same, byte for byte.
    pub async fn call_text(&self, payload: String) -> Result<Value, IngestFailed> {
        self.ingest.call(RawValue::from_string(payload).unwrap()).await
    }

    /// Calls it with what must be taken as a whole.
    pub async fn taken(&self, payload: &Value) {
        assert_eq!(
            self.call(payload).await.unwrap(),
            json!({"batchItemFailures": []}),
            "{payload:#}"
        );
    }

    /// The data of every job: the events that were seen, by their source and id.
    pub async fn seen(&self) -> Vec<Value> {
        let page =
            self.server.list(&ListQuery { limit: 1000, ..ListQuery::default() }).await.unwrap();
        let mut seen: Vec<Value> = Vec::new();
        for job in &page.jobs {
            let data = self.server.engine().data(job).await.unwrap();
            seen.push(serde_json::from_slice(&data.to_json().unwrap()).unwrap());
        }
        seen.sort_by_key(|event| (event["source"].to_string(), event["id"].to_string()));
        seen
    }

    pub async fn dead(&self) -> Vec<DeadLetter> {
        self.server.dead_letters(None, None, 100).await.unwrap().0
    }

    /// The one dead letter: its reason, and the event.
    pub async fn one_dead(&self) -> (DeadLetter, Value) {
        let mut dead = self.dead().await;
        assert_eq!(dead.len(), 1, "{dead:?}");
        let letter = dead.remove(0);
        let event = serde_json::from_str(letter.event.get()).unwrap();
        (letter, event)
    }
}

/// An invocation as it is recorded in `tests/events`.
pub fn recorded(file: &str) -> Value {
    serde_json::from_str(&text(&format!("{file}.json"))).unwrap()
}

pub fn text(file: &str) -> String {
    let path = format!("{}/tests/events/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A message of a queue.
pub fn message(id: &str, body: impl Into<String>) -> Value {
    let mut message = recorded("sqs")["Records"][1].take();
    message["messageId"] = json!(id);
    message["body"] = Value::String(body.into());
    message
}

pub fn records(records: impl IntoIterator<Item = Value>) -> Value {
    json!({"Records": records.into_iter().collect::<Vec<_>>()})
}
