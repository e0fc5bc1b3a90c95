//! The replies that triggers make of events.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{carrying, trigger};
use crate::{
    event::{
        Decision, Event,
        event_view::EventView,
        trigger::{Reply, TriggerOutcome},
    },
    job::Payload,
};

fn replied(complete: &Value, event: &Event) -> Result<Reply, String> {
    match trigger(json!({ "complete": complete }))
        .unwrap()
        .decide(&EventView::new(event, &BTreeMap::new()))
    {
        Some(Decision::Complete(reply)) => Ok(*reply),
        Some(Decision::Failed(why)) => Err(why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rule_makes_the_reply_to_a_job() {
    let event = carrying(json!({
        "key": "k-1", "number": 17, "attempt": "2", "ok": false, "why": "no stock",
        "answer": {"a": 1},
    }));
    let base = |more: Value| {
        let mut complete = json!({"type": "ask", "correlation_key": {"$expr": "data.key"}});
        complete.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        complete
    };
    let reply = replied(&base(json!({"result": {"$expr": "data.answer"}})), &event).unwrap();
    assert_eq!(
        (reply.job_type.as_str(), reply.correlation_key.as_str(), reply.attempt),
        ("ask", "k-1", None)
    );
    assert_eq!(reply.said, TriggerOutcome::Succeeded(Some(Payload::json(r#"{"a":1}"#))));
    let plain = replied(&base(json!({})), &event).unwrap();
    assert_eq!(
        plain.said,
        TriggerOutcome::Succeeded(event.data.clone()),
        "the event's data is the result"
    );
    let by_number = json!({
        "correlation_key": {"$expr": "data.number"},
        "attempt": {"$expr": "data.attempt"},
    });
    let by_number = replied(&base(by_number), &event).unwrap();
    assert_eq!((by_number.correlation_key.as_str(), by_number.attempt), ("17", Some(2)));
    let failed = replied(
        &base(json!({
            "status": {"$expr": "data.ok"},
            "message": {"$expr": "data.why"},
            "error": {"code": 7},
            "retryable": false,
        })),
        &event,
    )
    .unwrap();
    assert_eq!(
        failed.said,
        TriggerOutcome::Failed {
            message: Some("no stock".into()),
            details: Some(r#"{"code":7}"#.into()),
            retryable: false
        }
    );
    let words = replied(
        &base(json!({"status": {"$expr": "data.ok && 'succeeded' || 'failed'"}, "error": null})),
        &event,
    )
    .unwrap();
    assert_eq!(
        words.said,
        TriggerOutcome::Failed { message: None, details: None, retryable: true }
    );
    for (more, why) in [
        (json!({"correlation_key": {"$expr": "data.missing"}}), "correlation_key: must be a text"),
        (json!({"status": {"$expr": "data.why"}}), "status: must be succeeded"),
        (json!({"status": {"$expr": "data.missing"}}), "status: must not be null"),
        (json!({"attempt": {"$expr": "data.why"}}), "attempt: must be a whole number"),
        (json!({"attempt": {"$expr": "`-1`"}}), "attempt: must be a whole number"),
        (
            json!({"status": "failed", "message": {"$expr": "data.number"}}),
            "message: must be a text",
        ),
        (json!({"type": {"$expr": "data.answer"}}), "type: must be a text"),
        (json!({"result": {"$expr": "length(data.number)"}}), "result: "),
    ] {
        let error = replied(&base(more), &event).unwrap_err();
        assert!(error.starts_with(why), "{error}");
    }
}

#[test]
fn the_texts_of_a_failure_are_cut_at_their_bounds() {
    let event = carrying(json!({"why": "é".repeat(5000), "more": "x".repeat(20_000)}));
    let complete = json!({
        "type": "ask",
        "correlation_key": "k",
        "status": "failed",
        "message": {"$expr": "data.why"},
        "error": {"$expr": "data.more"},
    });
    let TriggerOutcome::Failed { message, details, .. } = replied(&complete, &event).unwrap().said
    else {
        panic!("it failed")
    };
    assert_eq!(
        (message.unwrap().len(), details.as_deref()),
        (4096, Some(r#"{"left_out_bytes":20002}"#))
    );
}
