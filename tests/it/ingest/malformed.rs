//! Malformed and unmappable events: each becomes a dead letter with its reason, and no batch is
//! redelivered for it.

use serde_json::{Value, json};
use tidegate_core::error_code::ErrorCode;
use tidegate_engine::Error;

use super::harness::{Harness, message, recorded, records};

/// A recorded invocation with one value replaced.
fn with(kind: &str, path: &str, value: Value) -> Value {
    let mut payload = recorded(kind);
    *payload.pointer_mut(path).unwrap_or_else(|| panic!("{kind} has no {path}")) = value;
    payload
}

/// A recorded invocation without one field.
fn without(kind: &str, path: &str, field: &str) -> Value {
    let mut payload = recorded(kind);
    assert!(payload.pointer_mut(path).unwrap().as_object_mut().unwrap().remove(field).is_some());
    payload
}

#[tokio::test]
async fn a_malformed_record_is_a_dead_letter_and_others_go_on() {
    let deep = format!("{}{}", "[".repeat(70), "]".repeat(70));
    let cases = [
        // Records of no known source.
        (json!([]), 0, "the payload is not a JSON object"),
        (json!("hello"), 0, "the payload is not a JSON object"),
        (json!(null), 0, "the payload is not a JSON object"),
        (json!({}), 0, "the payload matches no supported service"),
        (
            json!({"eventSource": "aws:kafka", "records": []}),
            0,
            "the payload matches no supported service",
        ),
        (
            json!({"eventSource": "aws:rmq", "rmqMessagesByQueue": {}}),
            0,
            "the payload matches no supported service",
        ),
        (without("eventbridge", "", "detail-type"), 0, "the payload matches no supported service"),
        (
            json!({"Records": [{"eventSource": "aws:ses", "ses": {}}]}),
            0,
            "the record is of aws:ses, which is not supported",
        ),
        (json!({"Records": [7]}), 0, "the record names no service"),
        // Records that their service would not send.
        (without("sqs", "/Records/0", "body"), 1, "the message has no body"),
        (with("sqs", "/Records/0/messageId", json!(null)), 1, "id must not be empty"),
        (
            without("sns", "/Records/0/Sns", "MessageId"),
            0,
            "the record does not match the format of its service: missing field `MessageId`",
        ),
        (
            with("sns", "/Records/0/Sns/Timestamp", json!("noon")),
            0,
            "the record does not match the format of its service: ",
        ),
        (
            without("kinesis", "/Records/0/kinesis", "data"),
            3,
            "the record does not match the format of its service: missing field `data`",
        ),
        (
            with("kinesis", "/Records/0/kinesis/data", json!("not base64")),
            3,
            "the record does not match the format of its service: Invalid ",
        ),
        (
            without("dynamodb", "/Records/2", "dynamodb"),
            2,
            "the record does not match the format of its service: missing field `dynamodb`",
        ),
        (without("s3", "/Records/0/s3/object", "key"), 2, "the record names no object"),
        (
            with("s3", "/Records/0/s3", json!([])),
            2,
            "the record does not match the format of its service: ",
        ),
        (
            with("msk", "/records/replies-0/0/value", json!("not base64")),
            5,
            "the record's value is not valid base64: ",
        ),
        (
            with("msk", "/records/replies-0/0/key", json!("*")),
            5,
            "the record's key is not valid base64: ",
        ),
        (
            without("msk", "/records/replies-0/0", "offset"),
            5,
            "the record does not match the format of Kafka's poller: missing field `offset`",
        ),
        (
            with("msk", "/records/replies-0/0/timestamp", json!(1.5)),
            5,
            "the record does not match the format of Kafka's poller: ",
        ),
        (with("eventbridge", "/id", json!("")), 0, "id must not be empty"),
        (with("eventbridge", "/id", json!("a\nb")), 0, "id must not have control characters"),
        // Events that their sender should not send.
        (without("cloudevent", "", "type"), 0, "type is required"),
        (with("cloudevent", "/specversion", json!("0.3")), 0, "specversion must be 1.0"),
        (
            records([message("1", "{}"), message("2", r#"{"specversion": "1.0", "id": "1"}"#)]),
            1,
            "source is required",
        ),
        (records([message("1", "{}"), message("2", deep)]), 1, "data must have at most 64 levels"),
        (
            with("sqs-cloudevents", "/Records/1/messageAttributes/ce-id/stringValue", json!("")),
            3,
            "id must not be empty",
        ),
        (with("sqs-cloudevents", "/Records/1/body", json!("no JSON")), 3, "data expected ident"),
        (
            with("sqs-cloudevents", "/Records/2/body", json!("{}")),
            2,
            "the event must be JSON in the format of CloudEvents: ",
        ),
    ];
    for (payload, good, reason) in cases {
        let harness = Harness::seeing().await;
        harness.taken(&payload).await;
        let (letter, event) = harness.one_dead().await;
        assert!(letter.reason.starts_with(reason), "{:?} for {payload:#}", letter.reason);
        assert_eq!(
            (letter.trigger, &event["type"]),
            (None, &json!("tidegate.malformed")),
            "{payload:#}"
        );
        assert!(event.get("data").is_some(), "it is kept as it came: {event}");
        assert_eq!(harness.seen().await.len(), good, "{payload:#}");
        harness.taken(&payload).await;
        assert_eq!(harness.dead().await.len(), 1, "kept once, however often it comes: {payload:#}");
    }
}

#[tokio::test]
async fn a_malformed_record_names_its_origin_and_is_not_replayable() {
    let harness = Harness::seeing().await;
    let payload = without("sqs", "/Records/0", "body");
    harness.taken(&payload).await;
    let (letter, event) = harness.one_dead().await;
    let record = &payload["Records"][0];
    assert_eq!(
        (&event["id"], &event["source"], &event["data"]),
        (&record["messageId"], &record["eventSourceARN"], record)
    );
    let refused = harness.server.replay_dead_letter(&letter.id).await.unwrap_err();
    assert!(
        matches!(refused, Error::Conflict { code: ErrorCode::NotReplayable, .. }),
        "{refused:?}"
    );
    assert_eq!(
        harness
            .server
            .dead_letters(Some(&"all".parse().unwrap()), None, 100)
            .await
            .unwrap()
            .0
            .len(),
        0
    );
    harness.server.delete_dead_letter(&letter.id).await.unwrap();
    assert_eq!(harness.dead().await.len(), 0);
}

#[tokio::test]
async fn each_invalid_event_of_a_batch_keeps_its_reason() {
    let harness = Harness::seeing().await;
    let good = json!({"specversion": "1.0", "id": "1", "source": "/s", "type": "t"});
    let batch =
        json!([{"specversion": "1.0", "id": "1"}, good, {"specversion": "0.3"}, 7]).to_string();
    let mut payload = records([message("one", batch)]);
    payload["Records"][0]["messageAttributes"] = json!({"content-type": {"dataType": "String", "stringValue": "application/cloudevents-batch+json"}});
    for _ in 0..2 {
        harness.taken(&payload).await;
        let mut reasons: Vec<String> =
            harness.dead().await.into_iter().map(|letter| letter.reason).collect();
        reasons.sort_unstable();
        assert_eq!(
            (reasons.len(), harness.seen().await.len()),
            (3, 1),
            "each, and each once: {reasons:?}"
        );
        assert!(
            reasons[0].starts_with("source is required") && reasons[2].starts_with("the event"),
            "{reasons:?}"
        );
    }
}

#[tokio::test]
async fn an_event_over_the_limit_is_kept_without_its_data() {
    let harness = Harness::seeing().await;
    let large = format!("\"{}\"", "x".repeat(300_000));
    harness
        .taken(&records([message("1", "{}"), message("large", large), message("2", "{}")]))
        .await;
    let (letter, event) = harness.one_dead().await;
    assert!(letter.reason.ends_with("bytes, and at most 262144 are allowed"), "{}", letter.reason);
    assert_eq!(
        (&event["id"], &event["data"]),
        (&json!("large"), &json!({"left_out_bytes": 300_002}))
    );
    assert_eq!(harness.seen().await.len(), 2);
    // And so is a record that is both.
    let harness = Harness::seeing().await;
    let record = json!({"eventSource": "aws:ses", "eventSourceARN": "arn:x", "messageId": "m", "data": "x".repeat(300_000)});
    harness.taken(&records([record])).await;
    let (_, event) = harness.one_dead().await;
    assert_eq!(
        (&event["id"], event["data"]["left_out_bytes"].as_u64() > Some(300_000)),
        (&json!("m"), true)
    );
}

#[tokio::test]
async fn a_failing_expression_is_a_dead_letter_and_the_batch_goes_on() {
    let harness = Harness::empty().await;
    harness.trigger("all", json!({"enqueue": {"type": "seen", "data": {"$expr": "@"}, "priority": {"$expr": "length(data.order)"}}})).await;
    harness.taken(&recorded("msk")).await;
    let dead = harness.dead().await;
    assert!(dead.iter().all(|letter| {
        letter.trigger.as_ref().is_some_and(|trigger| trigger.as_str() == "all")
    }));
    assert_eq!((harness.seen().await.len(), dead.len()), (3, 3));
    // After the fix they become the same events.
    harness.trigger("all", json!({"enqueue": {"type": "seen", "data": {"$expr": "@"}}})).await;
    for letter in dead {
        harness.server.replay_dead_letter(&letter.id).await.unwrap();
    }
    assert_eq!((harness.seen().await.len(), harness.dead().await.len()), (6, 0));
}

#[tokio::test]
async fn unmatched_events_leave_nothing_behind() {
    let harness = Harness::empty().await;
    harness
        .trigger("other", json!({"filter": {"type": "other"}, "enqueue": {"type": "seen"}}))
        .await;
    let before = harness.store.writes();
    let record = recorded("kinesis")["Records"][0].take();
    let record = |n: usize| {
        let mut record = record.clone();
        record["eventID"] = json!(format!("shardId-000000000006:{n}"));
        record
    };
    // As many as Lambda hands over at once.
    harness.taken(&records((0..10_000).map(record))).await;
    assert_eq!(
        (harness.store.writes() - before, harness.seen().await.len(), harness.dead().await.len()),
        (0, 0, 0)
    );
}

#[tokio::test]
async fn a_loop_is_stopped_on_every_route() {
    for (hops, seen) in [("7", 2), ("8", 0)] {
        let harness = Harness::seeing().await;
        harness
            .taken(&with(
                "sns",
                "/Records/0/Sns/MessageAttributes/ce-tidegatehops/Value",
                json!(hops),
            ))
            .await;
        let bytes: Vec<u8> = hops.bytes().collect();
        let mut kafka = recorded("kafka-self-managed");
        kafka["records"]["replies-0"][0]["headers"] = json!([{"ce_tidegatehops": bytes}]);
        harness.taken(&kafka).await;
        assert_eq!(
            (harness.seen().await.len(), harness.dead().await.len()),
            (seen, 0),
            "after {hops}"
        );
    }
}
