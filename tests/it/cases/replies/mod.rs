//! Replies by event: whatever the order of reply and attempt, a job processes each reply exactly
//! once.

mod order;
mod repeats;

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_core::{
    event::{Event, read},
    job::{Job, Outcome, type_config::TypeConfig},
    port::job_store::{RecordKind, RecordQuery},
};
use tidegate_engine::{
    events::ingest::{Ingestion, TriggerAction},
    request::NewJob,
    testkit::builders::name,
};

use super::harness::{Harness, work};

#[allow(clippy::needless_pass_by_value, reason = "the value is written where it is used")]
fn event(id: &str, data: Value) -> Event {
    let event = json!({"specversion": "1.0", "id": id, "source": "/replies", "type": "answer", "data": data});
    read::structured(&Bytes::from(event.to_string())).unwrap()
}

fn keyed(key: &str) -> NewJob {
    NewJob { correlation_key: Some(key.into()), ..work() }
}

async fn with_trigger(harness: &Harness) {
    harness.set_type("work", TypeConfig::default()).await;
    let rule = json!({"filter": {"type": "answer"}, "complete": {
        "type": "work", "correlation_key": {"$expr": "data.key"}, "attempt": {"$expr": "data.attempt"},
        "status": {"$expr": "data.failed && 'failed' || 'succeeded'"}, "message": {"$expr": "data.failed"}, "result": {"$expr": "data.answer"}}});
    harness
        .engine
        .put_trigger(&name("answers"), serde_json::from_value(rule).unwrap(), None)
        .await
        .unwrap();
}

async fn ingest(harness: &Harness, events: &[Event]) -> Ingestion {
    harness.engine.ingest(events).await
}

/// What the trigger did about one event.
async fn action(harness: &Harness, event: Event) -> TriggerAction {
    let mut answers = ingest(harness, &[event]).await.answers;
    answers.remove(0).unwrap().outcomes.remove(0).action
}

async fn kept(harness: &Harness) -> usize {
    let query =
        RecordQuery { kind: RecordKind::Reply, prefix: String::new(), after: None, limit: 100 };
    harness.store.records(&[query]).await.unwrap()[0].len()
}

fn ended(job: &Job) -> Option<Outcome> {
    job.life.ended()
}
