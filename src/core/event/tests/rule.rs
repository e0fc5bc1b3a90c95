//! Which rules are valid, and how they are written.

use serde_json::{Map, json};

use super::trigger;
use crate::event::{Filter, Template, TriggerConfig, fields::JobFields, template::Compiled};

#[test]
fn an_invalid_rule_is_refused_with_its_field() {
    let many_headers: Map<_, _> = (0..32).map(|n| (format!("x-{n}"), json!("v"))).collect();
    for (config, code, field) in [
        (json!({}), "invalid_trigger", "enqueue"),
        (
            json!({"enqueue": {"type": "x"}, "complete": {"type": "x", "correlation_key": "k"}}),
            "invalid_trigger",
            "complete",
        ),
        (json!({"enqueue": {"priority": 1}}), "invalid_trigger", "enqueue.type"),
        (json!({"enqueue": {"type": "not a name"}}), "invalid_trigger", "enqueue.type"),
        (json!({"enqueue": {"type": "x", "id": "mine"}}), "unknown_field", "enqueue.id"),
        (json!({"enqueue": {"type": "x", "prioritty": 1}}), "unknown_field", "enqueue.prioritty"),
        (
            json!({"enqueue": {"type": "x", "priority": "high"}}),
            "invalid_trigger",
            "enqueue.priority",
        ),
        (
            json!({"enqueue": {"type": "x", "windows": [{"from": "8"}]}}),
            "invalid_trigger",
            "enqueue.windows",
        ),
        (
            json!({"enqueue": {"type": "x", "priority": {"$expr": "data["}}}),
            "invalid_expression",
            "enqueue.priority",
        ),
        (
            json!({"enqueue": {"type": "x", "data": {"a": [{"$expr": "nope()"}]}}}),
            "invalid_expression",
            "enqueue.data.a[0]",
        ),
        (
            json!({"enqueue": {"type": "x", "data": {"$expr": "id", "more": 1}}}),
            "invalid_expression",
            "enqueue.data",
        ),
        (
            json!({"enqueue": {"type": "x", "data": {"$expr": 7}}}),
            "invalid_expression",
            "enqueue.data",
        ),
        // Valid JSON that would make an invalid job of every event.
        (
            json!({"enqueue": {"type": "x", "max_attempts": 0}}),
            "invalid_max_attempts",
            "enqueue.max_attempts",
        ),
        (
            json!({"enqueue": {"type": "x", "run_at": "2030-01-01T00:00:00Z", "delay_seconds": 1}}),
            "invalid_trigger",
            "enqueue.delay_seconds",
        ),
        (
            json!({"enqueue": {"type": "x", "delay_seconds": 400_000_000}}),
            "invalid_trigger",
            "enqueue.delay_seconds",
        ),
        (
            json!({"enqueue": {"type": "x", "timeout_seconds": 0}}),
            "invalid_trigger",
            "enqueue.timeout_seconds",
        ),
        (
            json!({"enqueue": {"type": "x", "deadline_seconds": 0}}),
            "invalid_trigger",
            "enqueue.deadline_seconds",
        ),
        (
            json!({"enqueue": {"type": "x", "correlation_key": ""}}),
            "invalid_trigger",
            "enqueue.correlation_key",
        ),
        (
            json!({"enqueue": {"type": "x", "unique": {"key": "", "while": "live"}}}),
            "invalid_trigger",
            "enqueue.unique.key",
        ),
        (
            json!({"enqueue": {"type": "x", "attributes": {"a": "x".repeat(257)}}}),
            "invalid_trigger",
            "enqueue.attributes.a",
        ),
        (
            json!({"enqueue": {"type": "x", "keep_result": {"seconds": 400_000_000}}}),
            "invalid_trigger",
            "enqueue.keep_result.seconds",
        ),
        (
            json!({"enqueue": {"type": "x", "headers": {"Host": "x"}}}),
            "invalid_trigger",
            "enqueue.headers.Host",
        ),
        (
            json!({"enqueue": {"type": "x", "headers": many_headers}}),
            "invalid_trigger",
            "enqueue.headers",
        ),
        (
            json!({"enqueue": {"type": "x", "callback_url": "ftp://x"}}),
            "invalid_trigger",
            "enqueue.callback_url",
        ),
        (
            json!({"enqueue": {
                "type": "x",
                "retry": {"strategy": "exponential", "config": {"base_seconds": -1}},
            }}),
            "invalid_trigger",
            "enqueue.retry.config.base_seconds",
        ),
        (
            json!({"complete": {"correlation_key": {"$expr": "id"}}}),
            "invalid_trigger",
            "complete.type",
        ),
        (json!({"complete": {"type": "x"}}), "invalid_trigger", "complete.correlation_key"),
        (
            json!({
                "complete": {"type": "x", "correlation_key": {"$expr": "id"}, "status": "done"},
            }),
            "invalid_trigger",
            "complete.status",
        ),
        (
            json!({"complete": {"type": "x", "correlation_key": {"$expr": "id"}, "priority": 1}}),
            "unknown_field",
            "complete.priority",
        ),
        (
            json!({"complete": {"type": "x", "correlation_key": {"$expr": "id"}, "attempt": 0}}),
            "invalid_trigger",
            "complete.attempt",
        ),
        (
            json!({"filter": {"type": {}}, "enqueue": {"type": "x"}}),
            "invalid_trigger",
            "filter.type",
        ),
        (
            json!({"filter": {"data": {"no-slash": 1}}, "enqueue": {"type": "x"}}),
            "invalid_trigger",
            "filter.data",
        ),
        (
            json!({"filter": {"any": [{}, {"attribute": {"x": []}}]}, "enqueue": {"type": "x"}}),
            "invalid_trigger",
            "filter.any[1].attribute.x",
        ),
    ] {
        let fault = trigger(config.clone()).expect_err(&config.to_string());
        assert_eq!((fault.code.as_str(), fault.field.as_str()), (code, field), "{config}: {fault}");
    }
    for (config, why) in [
        (json!({"filter": {"typ": "x"}}), "unknown field `typ`"),
        (json!({"filters": {}}), "unknown field `filters`"),
        (json!({"filter": {"type": {"like": "x"}}}), "unknown field `like`"),
    ] {
        let error = serde_json::from_value::<TriggerConfig>(config).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn every_field_of_a_job_is_named_once() {
    let error = serde_json::from_value::<JobFields>(json!({"nothing": 1})).unwrap_err().to_string();
    for name in JobFields::names() {
        assert!(error.contains(&format!("`{name}`")), "{name}");
    }
    assert_eq!(error.matches('`').count() / 2, JobFields::names().count() + 1, "{error}");
    assert_eq!(JobFields::read(Map::new()).unwrap(), JobFields::default());
    let fault = JobFields::read(Map::from_iter([
        ("priority".into(), json!(1)),
        ("weight".into(), json!(-1)),
    ]))
    .unwrap_err();
    assert_eq!(fault.field, "weight");
}

#[test]
fn a_rule_is_written_as_it_was_read() {
    let config = json!({
        "filter": {"type": {"prefix": "order."}},
        "enqueue": {"type": "x", "data": {"a": {"$expr": "data.id"}}},
    });
    let read: TriggerConfig = serde_json::from_value(config.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), config);
    assert_eq!(Template(json!(1)).compile().unwrap(), Compiled::Literal(json!(1)));
    assert_eq!(Filter::default(), serde_json::from_value(json!({})).unwrap());
}
