use std::fmt::Debug;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::*;
use crate::{
    event::trigger::TriggerItem,
    job::type_config::TypeItem,
    queue::{config::QueueItem, plugin::PluginItem},
    schedule::ScheduleItem,
};

fn queue() -> Value {
    json!({
        "config": {
            "concurrency": 5, "order": "priority", "order_step_seconds": 30, "ageing_seconds": 60,
            "partition_by": "tenant",
            "constraints": [
                {
                    "name": "c", "per": "x", "concurrency": 2,
                    "match": {"type": "t", "attribute": {"region": "east"}},
                    "rate": {"count": 1, "per_seconds": 2, "burst": 3},
                },
                {"name": "d", "match": {}, "concurrency": 1},
            ],
            "throttler": {"plugin": "guard", "config": {"free": {"n": 1}}, "on_failure": "hold"},
        },
        "paused": true, "version": 3,
    })
}

fn job_type() -> Value {
    json!({
        "config": {
            "queue": "q", "delivery": "at_least_once", "max_attempts": 2, "concurrency": 3,
            "timeout_seconds": 5, "response_timeout_seconds": 5, "lease_seconds": 5,
            "deadline_seconds": 9, "retry": {"strategy": "exponential", "config": {"max_seconds": 9}},
            "priority": 1, "weight": 2, "attributes": {"a": "/a"},
            "windows": [{"from": "01:00", "to": "02:00", "tz": "UTC", "days": ["mon"]}],
            "keep_result": "once", "retention_seconds": 5, "hold_slot_until": "report",
            "start": "claim", "on_response_timeout": "wait",
            "callback_url": "https://example.org/", "headers": {"a": "b"},
        },
        "version": 4, "leaving": false,
    })
}

fn schedule() -> Value {
    json!({
        "config": {
            "type": "t", "every_seconds": 60, "missed": "all", "max_missed": 7, "paused": true,
            "priority": 3, "unique": {"key": "k", "while": "live", "period_seconds": 5},
        },
        "data": {"json": "{}"},
        "version": 1, "rule": 1, "since": "2026-01-01T00:00:00Z",
    })
}

fn trigger() -> Value {
    json!({
        "config": {"filter": {"type": ["a"]}, "enqueue": {"type": "t", "data": {"$expr": "data"}}},
        "version": 2,
    })
}

fn plugin() -> Value {
    let description = json!({
        "about": "a", "config_schema": null, "state_version": 1, "group_by": [],
        "needs_running_jobs": false, "needs_data": false, "needs_ended": true,
    });
    json!({
        "version": 2, "live": 1, "shadow": null, "was_live": [],
        "versions": [{
            "number": 1, "sha256": "ab", "bytes": 7, "pushed_at": "2026-01-01T00:00:00Z",
            "throttler": description, "retry": null,
            "compiled": [{"target": "t", "engine": "e", "sha256": "cd"}],
        }],
    })
}

/// Objects that have any fields, or that are read as a whole.
const CLOSED: [&str; 9] = [
    "attributes",
    "headers",
    "data",
    "enqueue",
    "filter",
    "constraints",
    "unique",
    "throttler",
    "windows",
];
/// Fields of the configurations of plugins and retry strategies, which are closed too.
const OF_CONFIG: [&str; 2] = ["free", "max_seconds"];

/// `value` with a field of a newer release in every object that may have one.
fn extended(value: &Value, name: &str) -> Value {
    match value {
        Value::Object(_) | Value::Array(_) if CLOSED.contains(&name) => value.clone(),
        Value::Object(fields) if OF_CONFIG.iter().any(|name| fields.contains_key(*name)) => {
            value.clone()
        }
        Value::Object(fields) => {
            let inner = |(name, value): (&String, &Value)| (name.clone(), extended(value, name));
            let mut fields: Map<String, Value> = fields.iter().map(inner).collect();
            fields.insert("of_a_newer_release".into(), json!({"deep": [1, {"x": null}]}));
            Value::Object(fields)
        }
        Value::Array(items) => items.iter().map(|item| extended(item, name)).collect(),
        other => other.clone(),
    }
}

fn is_read_and_kept<T: DeserializeOwned + Serialize + PartialEq + Debug>(plain: &Value) {
    let (value, document) = read::<T>(plain.to_string().as_bytes()).unwrap();
    assert!(document.is_none(), "{plain}");
    let stored = extended(plain, "");
    let (same, document) = read::<T>(stored.to_string().as_bytes()).unwrap();
    assert_eq!(same, value, "a reader does not see the fields");
    let document = document.expect("it has unknown fields");
    let written = document.updated(serde_json::to_value(&same).unwrap());
    assert_eq!(written, stored, "an unchanged document stays as it is");
}

#[test]
fn every_configuration_is_read_without_unknown_fields() {
    is_read_and_kept::<QueueItem>(&queue());
    is_read_and_kept::<TypeItem>(&job_type());
    is_read_and_kept::<ScheduleItem>(&schedule());
    is_read_and_kept::<TriggerItem>(&trigger());
    is_read_and_kept::<PluginItem>(&plugin());
}

#[test]
fn a_change_keeps_the_fields_of_what_it_leaves() {
    let stored = extended(&queue(), "");
    let (mut queue, document) = read::<QueueItem>(stored.to_string().as_bytes()).unwrap();
    let document = document.unwrap();
    queue.config.concurrency = None;
    queue.paused = false;
    let written = document.updated(serde_json::to_value(&queue).unwrap());
    let field = "of_a_newer_release";
    let kept = |pointer: &str| written.pointer(pointer).unwrap().get(field).is_some();
    assert_eq!(
        (&written["paused"], &written["config"]["concurrency"]),
        (&json!(false), &json!(null))
    );
    for pointer in ["", "/config"] {
        assert!(kept(pointer), "{pointer}: {written}");
    }
    queue.config.constraints.remove(0);
    queue.config.throttler = None;
    let written = document.updated(serde_json::to_value(&queue).unwrap());
    assert_eq!(written["config"]["constraints"].as_array().unwrap().len(), 1);
    assert_eq!(written["config"].get("throttler"), None);
}

#[test]
fn an_object_in_the_place_of_another_keeps_nothing_of_it() {
    let document = Document {
        stored: json!({"a": {"url": 1, "new": 2}, "b": {"x": {"new": 1}}}),
        known: json!({"a": {"url": 1}, "b": {"x": {}}}),
    };
    let list = Document {
        stored: json!([{"number": 1, "new": 1}, {"number": 2, "new": {"x": 1}, "of": [1]}]),
        known: json!([{"number": 1}, {"number": 2, "of": [1]}]),
    };
    assert_eq!(
        list.updated(json!([{"number": 2, "of": [1, 2]}, {"number": 3}])),
        json!([{"number": 2, "new": {"x": 1}, "of": [1, 2]}, {"number": 3}])
    );
    assert_eq!(document.updated(json!({"a": {"pull": true}})), json!({"a": {"pull": true}}));
    assert_eq!(document.updated(json!({"a": {"url": 3}})), json!({"a": {"url": 3, "new": 2}}));
    assert_eq!(
        document.updated(json!({"a": {"url": 1}, "b": {"x": {}, "y": 1}})),
        json!({"a": {"url": 1, "new": 2}, "b": {"x": {"new": 1}, "y": 1}})
    );
}

#[test]
fn a_condition_or_a_limit_without_a_part_is_refused() {
    fn refused<T: DeserializeOwned + Serialize>(whole: &Value, pointer: &str, part: Value) {
        let mut whole = whole.clone();
        *whole.pointer_mut(pointer).unwrap() = part;
        assert!(read::<T>(whole.to_string().as_bytes()).is_err(), "{whole}");
    }
    let (queue, job_type) = (queue(), job_type());
    let constraint = "/config/constraints/0";
    for (part, value) in [
        ("match/attribute", json!({"n": {"newer_than": 1}})),
        ("match", json!({"country": "de"})),
        ("rate", json!({"count": 1, "per_seconds": 1, "sliding": true})),
    ] {
        refused::<QueueItem>(&queue, &format!("{constraint}/{part}"), value);
    }
    refused::<QueueItem>(&queue, constraint, json!({"name": "n", "concurrency": 1, "unless": 2}));
    refused::<QueueItem>(&queue, "/config/throttler", json!({"plugin": "p", "quota": 1}));
    let window = json!([{"from": "01:00", "to": "02:00", "except": ["2026-12-24"]}]);
    refused::<TypeItem>(&job_type, "/config/windows", window);
    let target = json!({"url": "https://example.org", "through": "a tunnel"});
    refused::<TypeItem>(&job_type, "/config/delivery", json!("twice"));
    refused::<TypeItem>(&job_type, "/config/keep_result", json!({"seconds": 1, "copies": 2}));
    let mut with_target = job_type;
    with_target["config"]["target"] = Value::Null;
    refused::<TypeItem>(&with_target, "/config/target", target);
    refused::<TriggerItem>(&trigger(), "/config/filter", json!({"subject_like": "a%"}));
}
