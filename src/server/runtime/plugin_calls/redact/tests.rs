//! Each part is removed from every field of a call that has it, and nothing else is.

use std::collections::BTreeMap;

use serde_json::json;
use tidegate_api::UsageView;
use tidegate_backends::wasm::record;
use tidegate_core::{port::policy::Usage, queue::plugin::Role, time::Timestamp};

use super::{values::Values, *};

fn throttled() -> ShownCall {
    let call = json!({"throttle": {
        "context": {"queue": "mail", "seed": u64::MAX, "config": {"shares": {"acme": 1, "x": 2}}},
        "round": {"ended": [{"id": "e", "succeeded": false, "message": "acme is down",
            "details": {"of": "acme", "x": "x"}, "attributes": {"tenant": "x"}}]},
        "running": [{"id": "acme-1", "attributes": {"tenant": "acme", "size": 12}}],
        "candidates": [{"id": "c", "attributes": {"tenant": "acme"},
            "earlier": [{"message": "no", "details": [1]}]}],
        "state": {"tokens:acme": "3", "other": ["of x or acme", "2026-01-01T00:00:00Z"]},
        "data": {"c": {"tenant": "acme", "card": "4111"}},
    }});
    let answer = json!({
        "decisions": [{"action": "hold", "reason": "acme is over 1"}], "more": true,
        "state": {"tokens:acme": "2"}, "state_expires": {"tokens:acme": "2026-01-01T00:00:00Z"},
    });
    ShownCall {
        id: "latest-1-1".into(),
        reason: "latest".into(),
        at: Timestamp::EPOCH,
        version: 1,
        shadow: false,
        role: Role::Throttler,
        queue: "mail".parse().unwrap(),
        usage: UsageView::from(&Usage::default()),
        decided: BTreeMap::new(),
        fault: Some(("rejected".into(), "no share for acme".into())),
        log: vec![("info".into(), "acme has 3".into())],
        redacted: Vec::new(),
        answer: raw(answer.to_string()),
        call: raw(call.to_string()),
    }
}

/// The call and the answer without these parts, and all of the record as text.
fn without(parts: &[&str]) -> (Value, Value, String) {
    let redacted = parts.iter().map(|part| part.parse().unwrap()).collect();
    let mut shown = ShownCall { redacted, ..throttled() };
    redact(&mut shown, Bodies::Kept);
    let json = |raw: &Option<Box<RawValue>>| {
        raw.as_ref().map_or(Value::Null, |raw| serde_json::from_str(raw.get()).unwrap())
    };
    let (call, answer) = (json(&shown.call), json(&shown.answer));
    if !call.is_null() {
        record::from_json(&call.to_string()).expect("it can be repeated");
    }
    (call, answer, serde_json::to_string(&shown).unwrap())
}

#[test]
fn the_values_of_an_attribute_are_replaced_everywhere() {
    let (call, answer, all) = without(&["attributes.tenant"]);
    let call = &call["throttle"];
    // Running jobs come first. A value is the same everywhere.
    assert_eq!(call["running"][0]["attributes"], json!({"tenant": "redacted-1", "size": 12}));
    assert_eq!(call["candidates"][0]["attributes"]["tenant"], "redacted-1");
    assert_eq!(call["round"]["ended"][0]["attributes"]["tenant"], "redacted-2");
    assert_eq!(call["context"]["config"]["shares"], json!({"redacted-1": 1, "redacted-2": 2}));
    assert_eq!(
        call["state"],
        json!({
            "tokens:redacted-1": "3",
            "other": ["of x or redacted-1", "2026-01-01T00:00:00Z"],
        })
    );
    assert_eq!(call["data"]["c"], json!({"tenant": "redacted-1", "card": "4111"}));
    let ended = &call["round"]["ended"][0];
    assert_eq!(ended["message"], "redacted-1 is down");
    assert_eq!(ended["details"], json!({"of": "redacted-1", "redacted-2": "redacted-2"}));
    assert_eq!(answer["decisions"][0]["reason"], "redacted-1 is over 1");
    assert_eq!(answer["state"], json!({"tokens:redacted-1": "2"}));
    assert!(answer["state_expires"]["tokens:redacted-1"].is_string());
    assert!(all.contains("no share for redacted-1") && all.contains("redacted-1 has 3"));
    assert_eq!(call["running"][0]["id"], "acme-1", "an id names the job, as everywhere");
    assert_eq!(call["context"]["seed"], u64::MAX);
    let (call, ..) = without(&["attributes"]);
    let attributes = &call["throttle"]["running"][0]["attributes"];
    assert_eq!(*attributes, json!({"size": "redacted-1", "tenant": "redacted-2"}));
}

#[test]
fn whole_parts_are_left_out() {
    let (call, answer, all) = without(&["data", "state", "failures", "texts"]);
    let call = &call["throttle"];
    assert_eq!((&call["data"], &call["state"]), (&json!({}), &json!({})));
    assert_eq!(call["round"]["ended"][0].get("message"), None);
    assert_eq!(call["candidates"][0]["earlier"], json!([{}]));
    assert_eq!(answer, json!({"decisions": [{"action": "hold"}], "more": true}));
    assert!(!all.contains("4111") && !all.contains("has 3") && !all.contains("no share"));
    assert!(all.contains("acme"), "attributes are not redacted");
    let (call, answer, _) = without(&[]);
    assert!(call.to_string().contains("4111") && answer["state"].is_object());
}

#[test]
fn a_retry_lacks_its_data_and_what_replaces_them() {
    let call = json!({"retry": {
        "failed": {"id": "a", "attributes": {"tenant": "acme"}, "earlier": [{"message": "no"}]},
        "last": {"message": "card 4111", "details": {"a": 1}}, "data": {"card": "4111"},
    }});
    let answer = json!({"retry": {"at": "2026-01-01T00:00:00Z", "data": {"card": "4111"}}});
    let parts = [RedactedPart::Data, RedactedPart::Failures];
    let mut shown = ShownCall {
        redacted: parts.to_vec(),
        call: raw(call.to_string()),
        answer: raw(answer.to_string()),
        ..throttled()
    };
    redact(&mut shown, Bodies::Kept);
    let call = shown.call.unwrap();
    assert!(!call.get().contains("4111") && !call.get().contains("message"), "{call}");
    assert!(shown.answer.is_none());
    record::from_json(call.get()).expect("it can be repeated");
}

#[test]
fn texts_of_an_unknown_call_are_left_out_with_the_attributes() {
    let redacted = vec!["attributes.tenant".parse().unwrap()];
    let mut shown = ShownCall { redacted, call: None, ..throttled() };
    redact(&mut shown, Bodies::Kept);
    assert!(!serde_json::to_string(&shown).unwrap().contains("acme"));
}

/// A throttler's call with every field, whose texts name their part.
fn full_throttle() -> Value {
    let failure = json!({
        "attempt": 1, "reason": "failed", "message": "FAILURE_m", "status": 500,
        "details": {"d": "FAILURE_d"}, "started-at": "2026-01-01T00:00:00Z",
        "ended-at": "2026-01-01T00:00:00Z", "not-before": "2026-01-01T00:00:00Z",
    });
    let ended = json!({
        "id": "e", "job-type": "t", "priority": 1, "weight": 1, "target-host": "a.example",
        "attributes": {"a": "ATTRIBUTE_e", "n": 71_717_171}, "attempt": 1,
        "started-at": "2026-01-01T00:00:00Z", "ended-at": "2026-01-01T00:00:00Z",
        "succeeded": false, "reason": "failed", "message": "FAILURE_e ATTRIBUTE_e",
        "status": 500, "details": {"ATTRIBUTE_e": "FAILURE_f"},
        "not-before": "2026-01-01T00:00:00Z",
    });
    let running = json!({
        "id": "r", "job-type": "t", "priority": 1, "weight": 1, "critical": true,
        "attributes": {"a": "ATTRIBUTE_r"}, "granted-at": "2026-01-01T00:00:00Z",
    });
    let candidate = json!({
        "id": "c", "job-type": "t", "priority": 1, "weight": 1, "attempt": 2, "attempts": 3,
        "attributes": {"a": "ATTRIBUTE_c"}, "created-at": "2026-01-01T00:00:00Z",
        "run-at": "2026-01-01T00:00:00Z", "expires-at": "2026-01-01T00:00:00Z",
        "deadline-at": "2026-01-01T00:00:00Z", "target-host": "a.example", "replay-of": "j",
        "correlation-key": "k", "earlier": [failure],
    });
    let group = json!({"count": 1, "weight": 1, "oldest-due-at": "2026-01-01T00:00:00Z",
        "at-least": true});
    json!({"throttle": {
        "context": {"queue": "mail", "now": "2026-01-01T00:00:00Z", "seed": 1,
            "config": {"ATTRIBUTE_r": "ATTRIBUTE_c"}},
        "round": {"concurrency": 1, "room": 1, "ended": [ended]},
        "running": [running], "candidates": [candidate],
        "waiting": {"groups": {"a": {"ATTRIBUTE_w": group.clone()}}, "others": group,
            "counted-at": "2026-01-01T00:00:00Z"},
        "state": {"STATE_k": "STATE_v",
            "STATE_ATTRIBUTE_w": ["ATTRIBUTE_c", "2026-01-01T00:00:00Z"]},
        "data": {"c": {"DATA_k": "DATA_v", "ATTRIBUTE_c": ["ATTRIBUTE_c"]}},
        "data-left-out": {"r": 1}, "texts-left-out": 1,
    }})
}

/// As [`full_throttle`], of a retry strategy.
fn full_retry() -> Value {
    let throttle = full_throttle();
    let candidate = &throttle["throttle"]["candidates"][0];
    let last = &candidate["earlier"][0];
    let mut failed = candidate.clone();
    failed["attempt"] = last["attempt"].clone();
    failed["attributes"] = json!({"a": "ATTRIBUTE_c", "b": "ATTRIBUTE_r", "c": "ATTRIBUTE_w"});
    json!({"retry": {
        "context": throttle["throttle"]["context"], "failed": failed, "last": last,
        "state": throttle["throttle"]["state"], "data": {"DATA_k": ["DATA_v", "ATTRIBUTE_c"]},
        "data-left-out": 1, "texts-left-out": 1,
    }})
}

#[test]
fn no_field_of_a_call_has_a_redacted_part() {
    let state = json!({"STATE_n": "STATE_o", "ATTRIBUTE_c": "ATTRIBUTE_c"});
    let expires = json!({"STATE_n": "2026-01-01T00:00:00Z", "ATTRIBUTE_c": 1});
    let throttled_answer = json!({
        "decisions": [{"action": "hold", "reason": "TEXT_r ATTRIBUTE_c"}], "more": true,
        "state": state, "state_expires": expires,
    });
    let retry_answer = json!({
        "retry": {"at": "2026-01-01T00:00:00Z", "data": {"DATA_n": "ATTRIBUTE_c"}},
        "give_up": "TEXT_g ATTRIBUTE_c", "state": state, "state_expires": expires,
    });
    for (call, answer) in [(full_throttle(), throttled_answer), (full_retry(), retry_answer)] {
        record::from_json(&call.to_string()).expect("its fields are those of a call");
        for (part, canaries) in [
            ("data", &["DATA_"][..]),
            ("state", &["STATE_"]),
            ("failures", &["FAILURE_"]),
            ("texts", &["TEXT_"]),
            ("attributes", &["ATTRIBUTE_", "71717171"]),
        ] {
            for bodies in [Bodies::Kept, Bodies::Dropped] {
                let mut shown = ShownCall {
                    redacted: vec![part.parse().unwrap()],
                    fault: Some(("rejected".into(), "TEXT_f".into())),
                    log: vec![("info".into(), "TEXT_l ATTRIBUTE_c".into())],
                    call: raw(call.to_string()),
                    answer: raw(answer.to_string()),
                    ..throttled()
                };
                let before = serde_json::to_string(&shown).unwrap();
                redact(&mut shown, bodies);
                let text = serde_json::to_string(&shown).unwrap();
                assert_eq!(shown.redacted.len(), 1, "{part} is listed");
                for canary in canaries {
                    let is_there = call["retry"].is_null() || !canary.starts_with('7');
                    assert_eq!(before.contains(canary), is_there);
                    assert!(!text.contains(canary), "{part}: {text}");
                }
                assert_eq!(shown.call.is_some(), bodies == Bodies::Kept);
                if let Some(call) = shown.call {
                    record::from_json(call.get()).expect("it can be repeated");
                }
            }
        }
    }
}

#[test]
fn numbers_words_and_expiry_of_a_call_stay_as_they_are() {
    let call = json!({"throttle": {
        "context": {"config": {"limit": 10, "name": "10", "strict": true, "empty": ""}},
        "candidates": [{"id": "a", "attributes": {"cost": 10, "flag": "true", "day": "2026",
            "none": "", "year": "2027-01-01T00:00:00Z"}}],
        "state": {"count": "10", "on": "true", "10": ["2026", "2027-01-01T00:00:00Z"],
            "json": "{\"ok\":true,\"at\":2026}"},
    }});
    let redacted = vec![RedactedPart::Attributes];
    let mut shown = ShownCall { redacted, call: raw(call.to_string()), ..throttled() };
    redact(&mut shown, Bodies::Kept);
    let call: Value = serde_json::from_str(shown.call.unwrap().get()).unwrap();
    let cost = &call["throttle"]["candidates"][0]["attributes"]["cost"];
    let config = &call["throttle"]["context"]["config"];
    assert_eq!(*config, json!({"limit": 10, "name": cost, "strict": true, "empty": ""}));
    let day = &call["throttle"]["candidates"][0]["attributes"]["day"];
    let state = json!({
        "count": "10", "on": "true", cost.as_str().unwrap(): [day, "2027-01-01T00:00:00Z"],
        "json": "{\"ok\":true,\"at\":2026}",
    });
    assert_eq!(call["throttle"]["state"], state);
}

#[test]
fn equal_numbers_have_one_substitute() {
    let call = json!({"throttle": {
        "context": {"config": {"shares": {"5": 1}}},
        "running": [{"attributes": {"size": 5.0}}],
        "candidates": [{"id": "a", "attributes": {"size": 5}}],
        "waiting": {"groups": {"size": {"5": {"count": 1}}}},
    }});
    let redacted = vec!["attributes.size".parse().unwrap()];
    let mut shown = ShownCall { redacted, call: raw(call.to_string()), ..throttled() };
    redact(&mut shown, Bodies::Kept);
    let call: Value = serde_json::from_str(shown.call.unwrap().get()).unwrap();
    let call = &call["throttle"];
    assert_eq!(call["running"][0]["attributes"]["size"], "redacted-1");
    assert_eq!(call["candidates"][0]["attributes"]["size"], "redacted-1");
    assert_eq!(call["context"]["config"]["shares"], json!({"redacted-1": 1}));
    assert_eq!(call["waiting"]["groups"]["size"], json!({"redacted-1": {"count": 1}}));
}

#[test]
fn a_part_that_was_empty_is_not_lacking() {
    let call = json!({"throttle": {"candidates": [{"id": "a", "earlier": [{}]}]}});
    let redacted: Vec<RedactedPart> =
        ["data", "state", "failures", "texts"].map(|part| part.parse().unwrap()).into();
    let answer = raw(json!({"decisions": []}).to_string());
    let call = raw(call.to_string());
    let mut shown = ShownCall { redacted: redacted.clone(), call, answer, ..throttled() };
    redact(&mut shown, Bodies::Kept);
    assert_eq!(shown.redacted, [RedactedPart::Texts]);
    let mut shown = ShownCall { redacted: redacted.clone(), call: None, ..throttled() };
    redact(&mut shown, Bodies::Kept);
    assert_eq!(shown.redacted, redacted, "what an unknown call had is unknown");
}

#[test]
fn the_longest_value_is_replaced_as_a_part_of_a_text() {
    let mut values = Values::default();
    for text in ["acme", "acme-east", "äöü", "x", "1234"] {
        values.substitute(text.to_owned());
    }
    let values = values.finished();
    let replaced = values.replaced("é acme-east, acme-west, äöü, x 1234 acm");
    assert_eq!(replaced, "é redacted-2, redacted-1-west, redacted-3, x 1234 acm");
}
