//! The jobs that triggers make of events.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{binary, carrying, event, trigger};
use crate::{
    event::{Decision, Event, Trigger, event_view::EventView, read, trigger::RequestedJob},
    job::Payload,
};

fn wanted(config: &Value, event: &Event) -> RequestedJob {
    let rule = trigger(config.clone()).unwrap();
    match rule.decide(&EventView::new(event, &BTreeMap::new())) {
        Some(Decision::Enqueue(wanted)) => *wanted,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rule_fills_the_fields_of_a_job() {
    let event = event();
    let job = wanted(
        &json!({"enqueue": {
            "type": {"$expr": "join('-', ['ship', region])"},
            "priority": {"$expr": "count"},
            "delay_seconds": 1.5,
            "correlation_key": {"$expr": "data.id"},
            "max_attempts": {"$expr": "data.missing"},
            "attributes": {
                "region": {"$expr": "region"},
                "none": {"$expr": "nothing"},
                "fixed": "x",
            },
            "headers": {"x-order": {"$expr": "data.id"}},
            "keep_result": "once",
            "unique": {"key": {"$expr": "id"}, "while": "live"},
            "retry": {"strategy": "exponential", "config": {"base_seconds": 1}},
            "data": {
                "order": {"$expr": "data.id"},
                "lines": [{"$expr": "data.lines[0]"}],
                "kind": "x",
            },
        }}),
        &event,
    );
    assert_eq!(
        (job.job_type.as_str(), job.fields.options.priority, job.fields.options.max_attempts),
        ("ship-east", Some(3), None)
    );
    assert_eq!(job.fields.correlation_key.as_deref(), Some("o-7"));
    assert_eq!(job.fields.options.attributes.keys().collect::<Vec<_>>(), ["fixed", "region"]);
    assert_eq!(
        serde_json::from_slice::<Value>(&job.data.bytes).unwrap(),
        json!({"order": "o-7", "lines": [{"sku": "a", "n": 2}], "kind": "x"})
    );
}

#[test]
fn without_data_a_job_carries_the_events_own_bytes() {
    let text = r#"{"specversion":"1.0","id":"1","source":"s","type":"t","data": {"n": 1.0e2}}"#;
    let event = read::structured(&Bytes::from(text)).unwrap();
    for config in [
        json!({"enqueue": {"type": "x"}}),
        json!({"enqueue": {"type": "x", "data": {"$expr": "data"}}}),
    ] {
        assert_eq!(wanted(&config, &event).data, Payload::json(r#"{"n": 1.0e2}"#));
    }
    let event = binary(&[], Some("image/png"), &[1, 2, 3]).unwrap();
    assert_eq!(
        wanted(&json!({"enqueue": {"type": "x"}}), &event).data.to_json().unwrap(),
        r#"{"$binary":"AQID"}"#
    );
    let empty = binary(&[], None, b"").unwrap();
    assert_eq!(wanted(&json!({"enqueue": {"type": "x"}}), &empty).data, Payload::null());
}

#[test]
fn a_job_s_id_follows_from_the_trigger_and_the_event() {
    let id = |name: &str, source: &str, id: &str| {
        let mut event = event();
        (event.source, event.id) = (source.into(), id.into());
        let config = serde_json::from_value(json!({"enqueue": {"type": "x"}})).unwrap();
        Trigger::new(&name.parse().unwrap(), &config).unwrap().job_id(&event)
    };
    assert_eq!(id("t", "s", "1"), id("t", "s", "1"));
    assert_eq!(
        id("t", "s", "1").as_str(),
        "ev-6eef537c2a366c6828cdc3855a2b501f1e6c3a24",
        "ids must not change between releases"
    );
    let all = [
        id("t", "s", "1"),
        id("u", "s", "1"),
        id("t", "r", "1"),
        id("t", "s", "2"),
        id("t", "s1", ""),
        id("ts", "", "1"),
    ];
    let unique: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(unique.len(), all.len());
}

/// The result of an expression is checked like a literal, so a dry run gets the server's message.
#[test]
fn a_rule_that_yields_an_invalid_job_fails() {
    let event = carrying(json!({"none": 0, "at": "2030-01-01T00:00:00Z", "key": ""}));
    for (enqueue, why) in [
        (json!({"max_attempts": {"$expr": "data.none"}}), "max_attempts: must be 1 to 65535"),
        (
            json!({"run_at": {"$expr": "data.at"}, "delay_seconds": 1}),
            "delay_seconds: must not be given together with run_at",
        ),
        (
            json!({"correlation_key": {"$expr": "data.key"}}),
            "correlation_key: must be 1 to 256 bytes",
        ),
        (
            json!({"attributes": {"a": {"$expr": "data.at"}, "": 1}}),
            "attributes: must have names of 1 to 64 bytes",
        ),
    ] {
        let mut config = json!({"enqueue": {"type": "x"}});
        config["enqueue"].as_object_mut().unwrap().extend(enqueue.as_object().unwrap().clone());
        let decided = trigger(config).unwrap().decide(&EventView::new(&event, &BTreeMap::new()));
        assert_eq!(decided, Some(Decision::Failed(why.into())));
    }
    let fine = json!({"enqueue": {
        "type": "x",
        "run_at": {"$expr": "data.nothing"},
        "delay_seconds": 1,
        "correlation_key": null,
    }});
    let decided = trigger(fine).unwrap().decide(&EventView::new(&event, &BTreeMap::new()));
    assert!(matches!(decided, Some(Decision::Enqueue(_))), "a null is left out: {decided:?}");
}
