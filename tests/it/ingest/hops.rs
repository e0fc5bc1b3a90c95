//! Event loops through AWS services: an event makes a job, its target is a service, and the service
//! emits the next event.

use serde_json::{Value, json};
use tidegate_core::port::target::ServiceMessage;

use super::harness::{Harness, message, recorded, records};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn body(sent: &ServiceMessage) -> Value {
    serde_json::from_slice(&sent.body).unwrap()
}

/// A message of a queue as `ingest` is called with it.
fn from_queue(sent: &ServiceMessage, id: &str) -> Value {
    assert!(sent.attributes.len() <= 10, "a queue hands no more on to a function");
    let mut record = message(id, body(sent).to_string());
    let attribute = |(name, value): &(&str, String)| {
        let value = json!({"stringValue": value, "stringListValues": [], "binaryListValues": [], "dataType": "String"});
        ((*name).to_owned(), value)
    };
    record["messageAttributes"] = Value::Object(sent.attributes.iter().map(attribute).collect());
    records([record])
}

/// A message of a topic.
fn from_topic(sent: &ServiceMessage, id: &str) -> Value {
    let mut notification = recorded("sns");
    let message = &mut notification["Records"][0]["Sns"];
    message["MessageId"] = json!(id);
    message["Message"] = Value::String(body(sent).to_string());
    let attribute = |(name, value): &(&str, String)| {
        ((*name).to_owned(), json!({"Type": "String", "Value": value}))
    };
    message["MessageAttributes"] = Value::Object(sent.attributes.iter().map(attribute).collect());
    notification
}

/// A message of a topic that a queue is subscribed to.
fn from_topic_by_queue(sent: &ServiceMessage, id: &str) -> Value {
    records([message(id, from_topic(sent, id)["Records"][0]["Sns"].to_string())])
}

/// An event of a bus, which carries only its detail. A function that puts its input on a bus makes
/// the same.
fn from_bus(sent: &ServiceMessage, id: &str) -> Value {
    let mut event = recorded("eventbridge");
    event["id"] = json!(id);
    event["detail"] = body(sent);
    event
}

/// What a service makes of a message, with this id.
type Back = fn(&ServiceMessage, &str) -> Value;

#[tokio::test]
async fn an_event_loop_keeps_its_hop_count_and_trace_and_is_stopped() {
    let sqs =
        json!({"sqs": {"queue_url": "https://sqs.eu-central-1.amazonaws.com/111122223333/work"}});
    let sns = json!({"sns": {"topic_arn": "arn:aws:sns:eu-central-1:111122223333:work"}});
    let bus = json!({"event_bridge": {"bus": "work", "source": "tidegate"}});
    let function = json!({"lambda": {"function": "work", "invocation": "event"}});
    let ways: [(Value, Back); 5] = [
        (sqs, from_queue),
        (sns.clone(), from_topic),
        (sns, from_topic_by_queue),
        (bus, from_bus),
        (function, from_bus),
    ];
    for (mut target, back) in ways {
        target["complete"] = json!("on_delivery");
        let harness = Harness::empty().await;
        let config = serde_json::from_value(json!({"target": target.clone()})).unwrap();
        harness.server.put_type(&"round".parse().unwrap(), config, None).await.unwrap();
        harness.trigger("all", json!({"enqueue": {"type": "round"}})).await;
        let mut first = message("first", "{}");
        let trace = json!({"stringValue": TRACE, "stringListValues": [], "binaryListValues": [], "dataType": "String"});
        first["messageAttributes"] = json!({"traceparent": trace});
        harness.taken(&records([first])).await;
        for turn in 1..=8 {
            let sent = harness.deliver().await;
            assert_eq!(sent.len(), 1, "turn {turn} by {target}");
            assert_eq!(
                body(&sent[0])["headers"],
                json!({"ce-tidegatehops": turn.to_string(), "traceparent": TRACE}),
                "{target}"
            );
            harness.taken(&back(&sent[0], &format!("turn-{turn}"))).await;
        }
        assert_eq!((harness.deliver().await.len(), harness.dead().await.len()), (0, 0), "{target}");
    }
}

#[tokio::test]
async fn foreign_headers_in_data_do_not_make_an_event_malformed() {
    let harness = Harness::seeing().await;
    let bodies = [
        json!({"headers": {"ce-tidegatehops": "many"}}),
        json!({"headers": {"ce-tidegatehops": 9}}),
        json!({"headers": ["ce-tidegatehops"]}),
        json!({"headers": {"ce-tidegatehops": "70000"}}),
    ];
    let messages =
        bodies.iter().enumerate().map(|(n, body)| message(&n.to_string(), body.to_string()));
    harness.taken(&records(messages)).await;
    assert_eq!((harness.seen().await.len(), harness.dead().await.len()), (bodies.len(), 0));
}
