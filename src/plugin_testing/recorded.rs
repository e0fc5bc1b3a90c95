//! A recorded call as a case that `tidegate plugin test` can repeat.

use serde_json::{Map, Value, json};

/// Returns the case of `call`, as the server records it with a fault. The case expects any answer.
///
/// # Errors
///
/// The call is neither a throttler's nor a retry strategy's.
pub fn recorded(name: &str, call: &Value) -> Result<Value, String> {
    let (role, inside) = match (call.get("throttle"), call.get("retry")) {
        (Some(throttle), None) => ("throttler", throttle),
        (None, Some(retry)) => ("retry", retry),
        _ => return Err("the call is neither a throttler's nor a retry strategy's".to_owned()),
    };
    let mut case =
        Map::from_iter([("name".to_owned(), name.into()), ("role".to_owned(), role.into())]);
    for (field, value) in inside["context"].as_object().into_iter().flatten() {
        case.insert(field.clone(), value.clone());
    }
    let left_out = match &inside["data-left-out"] {
        Value::Object(jobs) => jobs.len(),
        Value::Null => 0,
        _ => 1,
    };
    if left_out > 0 {
        case.insert(
            "name".to_owned(),
            format!("{name} (without the data of {left_out} jobs, which was too large to record)")
                .into(),
        );
    }
    if let Some(count) = inside["texts-left-out"].as_u64() {
        let text = format!("{name} (without messages and details of {count} attempts)");
        case.insert("name".to_owned(), text.into());
    }
    let list = |value: &Value| {
        value.as_array().cloned().unwrap_or_default().into_iter().map(renamed).collect::<Vec<_>>()
    };
    if role == "throttler" {
        case.insert("concurrency".to_owned(), inside["round"]["concurrency"].clone());
        case.insert("room".to_owned(), inside["round"]["room"].clone());
        case.insert("ended".to_owned(), list(&inside["round"]["ended"]).into());
        case.insert("running".to_owned(), list(&inside["running"]).into());
        let mut candidates = list(&inside["candidates"]);
        for candidate in &mut candidates {
            let data = candidate["id"].as_str().and_then(|id| inside["data"].get(id));
            if let (Some(data), Some(fields)) = (data, candidate.as_object_mut()) {
                fields.insert("data".to_owned(), data.clone());
            }
        }
        case.insert("candidates".to_owned(), candidates.into());
        if let Some(waiting) = inside.get("waiting").filter(|waiting| !waiting.is_null()) {
            case.insert("waiting".to_owned(), waiting_of(waiting));
        }
    } else {
        let mut job = renamed(inside["failed"].clone());
        if let (Some(fields), false) = (job.as_object_mut(), inside["data"].is_null()) {
            fields.insert("data".to_owned(), inside["data"].clone());
        }
        case.insert("job".to_owned(), job);
        case.insert("failure".to_owned(), renamed(inside["last"].clone()));
    }
    let (mut state, mut expires) = (Map::new(), Map::new());
    for (key, value) in inside["state"].as_object().into_iter().flatten() {
        let pair = value.as_array().map(Vec::as_slice);
        if let Some([text, at]) = pair {
            expires.insert(key.clone(), at.clone());
            state.insert(key.clone(), text.clone());
        } else {
            state.insert(key.clone(), value.clone());
        }
    }
    case.insert("state".to_owned(), state.into());
    case.insert("state_expires".to_owned(), expires.into());
    case.insert("expect".to_owned(), json!({}));
    case.retain(|_, value| !value.is_null());
    Ok(case.into())
}

/// Returns what waits with the field names of cases. Attributes and values stay as they are.
fn waiting_of(waiting: &Value) -> Value {
    let groups = waiting["groups"].as_object().into_iter().flatten().map(|(name, groups)| {
        let groups = groups.as_object().into_iter().flatten();
        let groups = groups.map(|(value, group)| (value.clone(), renamed(group.clone())));
        (name.clone(), Value::Object(groups.collect()))
    });
    let mut written = Map::from_iter([("groups".to_owned(), Value::Object(groups.collect()))]);
    for (field, value) in [("others", &waiting["others"]), ("counted_at", &waiting["counted-at"])] {
        if !value.is_null() {
            written.insert(field.to_owned(), renamed(value.clone()));
        }
    }
    written.into()
}

/// Returns an object with the field names of cases and without null fields.
fn renamed(value: Value) -> Value {
    let Value::Object(fields) = value else {
        return value;
    };
    let name = |name: String| {
        if name == "job-type" { "type".to_owned() } else { name.replace('-', "_") }
    };
    let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
    let fields = fields.map(|(field, value)| match value {
        Value::Array(failures) if field == "earlier" => {
            (field, failures.into_iter().map(renamed).collect())
        }
        value => (name(field), value),
    });
    fields.collect::<Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin_testing::Case;
    use tidegate_backends::wasm::record;

    #[test]
    fn a_recorded_call_becomes_a_case_that_makes_the_same_call() {
        for text in [
            r#"{"name": "a", "role": "throttler", "queue": "mail", "now": 1000,
                "seed": 18446744073709551615, "config": {"limit": 2.5}, "concurrency": 7, "room": 3,
                "running": [{"type": "t", "attributes": {"region": "east"}, "critical": true}],
                "candidates": [
                    {"data": {"rows": [1]}, "expires_at": 5000}, {"id": "b", "attempt": 4}],
                "ended": [{"reason": "timeout", "status": 504, "details": {"a": 1},
                    "message": "no", "target_host": "a.example", "not_before": 2000}],
                "waiting": {"groups": {"region": {"job-type": {"count": 3, "at_least": true}}},
                    "others": {"count": 9, "weight": 12}, "counted_at": 500},
                "state": {"k": "v", "l": "w"}, "state_expires": {"l": 9000}}"#,
            r#"{"name": "a", "role": "retry", "job": {"attempt": 2, "data": {"x": 1},
                    "target_host": "b.example", "replay_of": "j0", "correlation_key": "k",
                    "earlier": [{"reason": "lease_expired", "ended_at": 7000}]},
                "failure": {"message": "no", "details": [1], "not_before": 90000},
                "state": {"k": "v", "l": "w"}, "state_expires": {"l": 9000}}"#,
        ] {
            let original =
                record::to_json(&Case::read(text).unwrap().pop().unwrap().call().unwrap());
            let again = recorded("again", &serde_json::from_str(&original).unwrap()).unwrap();
            let case = Case::read(&again.to_string()).unwrap().pop().unwrap();
            assert_eq!(case.name, "again");
            assert_eq!(record::to_json(&case.call().unwrap()), original);
            assert!(record::from_json(&original).is_ok());
            let as_recorded = Case::read(&original).unwrap().pop().unwrap();
            assert_eq!(record::to_json(&as_recorded.call().unwrap()), original, "a log has it so");
        }
        let short =
            json!({"throttle": {"candidates": [{"id": "a"}], "data-left-out": {"a": 70_000}}});
        assert!(
            recorded("a", &short).unwrap()["name"]
                .as_str()
                .unwrap()
                .contains("without the data of 1 jobs")
        );
        assert!(record::from_json(&short.to_string()).is_ok());
        assert!(recorded("a", &json!({"describe": {}})).is_err());
    }
}
