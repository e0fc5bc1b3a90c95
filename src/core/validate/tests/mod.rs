//! Every bound of a configuration: a value just inside is accepted, and one just outside is refused
//! with the name of its field.

mod job;
mod job_type;
mod queue;

use serde_json::{Value, json};

use super::{ValidationError, check_queue, check_type};

fn queue(json: Value) -> Result<(), ValidationError> {
    check_queue(&serde_json::from_value(json).unwrap())
}

fn job_type(json: Value) -> Result<(), ValidationError> {
    check_type(&serde_json::from_value(json).unwrap())
}

/// A queue with one constraint that has `fields` in addition to its name and limit.
fn constraint(fields: &Value) -> Value {
    let mut constraint = json!({"name": "c", "concurrency": 1});
    constraint.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({ "constraints": [constraint] })
}

fn matching(matcher: &Value) -> Value {
    constraint(&json!({ "match": matcher }))
}

fn nested(levels: usize) -> Value {
    (1..levels).fold(json!({"type": "a"}), |inner, _| json!({ "not": inner }))
}

fn attributes(count: usize) -> Value {
    (0..count).map(|n| (format!("a{n}"), json!(1))).collect::<serde_json::Map<_, _>>().into()
}

fn push(fields: &Value) -> Value {
    let mut target = json!({"url": "http://127.0.0.1:9000/work"});
    target.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({ "target": target })
}
