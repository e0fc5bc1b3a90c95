//! Each kind of event as AWS documents it, and the event that a trigger receives.
//!
//! `tests/events/{name}.json` is an invocation, and `tests/events/seen/{name}.json` has its events.
//! `tests/events/README.md` names the source of each. `UPDATE_EXPECT=1` writes the events again,
//! for you to read.

use serde_json::{Value, json};

use super::harness::{Harness, recorded, text};

const KINDS: [&str; 16] = [
    "cloudevent",
    "dynamodb",
    "eventbridge",
    "eventbridge-s3",
    "eventbridge-schedule",
    "kafka-self-managed",
    "kinesis",
    "msk",
    "s3",
    "sns",
    "sns-s3",
    "sns-text",
    "sqs",
    "sqs-cloudevents",
    "sqs-fifo",
    "sqs-within",
];

#[tokio::test]
async fn every_kind_of_event_is_seen_as_the_table_in_the_docs_says() {
    for kind in KINDS {
        let harness = Harness::seeing().await;
        harness.taken(&recorded(kind)).await;
        let seen = harness.seen().await;
        assert_eq!(harness.dead().await.len(), 0, "{kind}: {:?}", harness.dead().await);
        let file = format!("seen/{kind}.json");
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            let path = format!("{}/tests/events/{file}", env!("CARGO_MANIFEST_DIR"));
            std::fs::write(path, serde_json::to_string_pretty(&seen).unwrap() + "\n").unwrap();
        }
        let expected: Vec<Value> = serde_json::from_str(&text(&file)).unwrap();
        assert_eq!(seen, expected, "{kind}");
    }
}

/// A second delivery by its service: everything that belongs to the delivery and not to the record
/// differs.
fn delivered_again(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(delivered_again),
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    "receiptHandle" => *value = json!("another"),
                    "ApproximateReceiveCount" => *value = json!("2"),
                    "bootstrapServers" => {
                        let servers: Vec<&str> = value.as_str().unwrap().split(',').rev().collect();
                        *value = json!(servers.join(","));
                    }
                    _ => delivered_again(value),
                }
            }
        }
        _ => {}
    }
}

#[tokio::test]
async fn a_second_delivery_of_any_kind_makes_no_second_job() {
    for kind in KINDS {
        let harness = Harness::seeing().await;
        harness.taken(&recorded(kind)).await;
        let first = harness.seen().await.len();
        assert_ne!(first, 0, "{kind}");
        let mut again = recorded(kind);
        delivered_again(&mut again);
        harness.taken(&again).await;
        assert_eq!(harness.seen().await.len(), first, "{kind}");
    }
}

#[tokio::test]
async fn an_event_is_the_same_by_whichever_way_it_came() {
    let harness = Harness::seeing().await;
    for (kind, events) in [
        ("eventbridge", 1),
        ("s3", 4),
        ("sqs-within", 7),
        ("cloudevent", 8),
        ("sqs-cloudevents", 11),
        ("msk", 16),
        ("kinesis", 19),
    ] {
        harness.taken(&recorded(kind)).await;
        assert_eq!(harness.seen().await.len(), events, "{kind}");
    }
}

#[tokio::test]
async fn data_is_kept_byte_for_byte() {
    let harness = Harness::empty().await;
    harness.trigger("all", json!({"enqueue": {"type": "seen"}})).await;
    let detail = r#"{"total": 12.50, "big": 12345678901234567890123, "total": 1e2}"#;
    let event = format!(
        r#"{{"version": "0", "id": "1", "detail-type": "paid", "source": "my.shop", "account": "1", "time": "2026-05-04T10:11:12Z",
            "region": "eu-central-1", "resources": [], "detail": {detail}}}"#
    );
    assert_eq!(harness.call_text(event).await.unwrap(), json!({"batchItemFailures": []}));
    let page = harness
        .server
        .list(&tidegate_core::port::job_store::ListQuery { limit: 10, ..Default::default() })
        .await
        .unwrap();
    assert_eq!(page.jobs.len(), 1);
    assert_eq!(harness.server.engine().data(&page.jobs[0]).await.unwrap().bytes, detail);
}

#[tokio::test]
async fn new_jobs_are_published_before_the_answer() {
    let harness = Harness::empty().await;
    let push = json!({"target": {"url": "https://worker.example/work"}});
    harness
        .server
        .put_type(&"push".parse().unwrap(), serde_json::from_value(push).unwrap(), None)
        .await
        .unwrap();
    harness.trigger("all", json!({"enqueue": {"type": "push"}})).await;
    harness.taken(&recorded("msk")).await;
    assert_eq!(harness.work.take(100, harness.server.now()).len(), 6);
}
