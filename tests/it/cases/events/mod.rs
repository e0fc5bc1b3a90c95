//! Events enqueue jobs, once for each event; an event that cannot be mapped becomes a dead letter.

mod dead_letters;
mod ends;
mod enqueues;

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_core::event::{Event, read};
use tidegate_engine::{events::ingest::TriggerAction, testkit::builders::name};

use super::harness::Harness;

#[allow(clippy::needless_pass_by_value, reason = "the value is written where it is used")]
fn event(id: &str, more: Value) -> Event {
    let mut event = json!({"specversion": "1.0", "id": id, "source": "/shop", "type": "order", "data": {"id": id}});
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    read::structured(&Bytes::from(event.to_string())).unwrap()
}

async fn put(harness: &Harness, trigger: &str, rule: Value) {
    harness
        .engine
        .put_trigger(&name(trigger), serde_json::from_value(rule).unwrap(), None)
        .await
        .unwrap();
}

async fn done(harness: &Harness, event: &Event) -> Vec<TriggerAction> {
    let answer =
        harness.engine.ingest(std::slice::from_ref(event)).await.answers.remove(0).unwrap();
    answer.outcomes.into_iter().map(|applied| applied.action).collect()
}
