//! Bodies in which a list replaces an object.

use serde_json::{Value, json};

/// Fields whose values may be anything.
pub const ANYTHING: [&str; 5] = ["data", "result", "details", "config", "error"];

/// `body` once for each object in it, which is replaced by the list of its values.
///
/// Languages that write an empty object as an empty list send such bodies. A server that read them
/// field by field would take `[]` for "no limits".
pub fn with_lists(body: &Value) -> Vec<Value> {
    match body {
        Value::Object(fields) => {
            let own = Value::Array(fields.values().cloned().collect());
            let checked = fields.iter().filter(|(name, _)| !ANYTHING.contains(&name.as_str()));
            let inner = checked.flat_map(|(name, value)| {
                with_lists(value).into_iter().map(move |wrong| {
                    let mut body = body.clone();
                    body[name] = wrong;
                    body
                })
            });
            std::iter::once(own).chain(inner).collect()
        }
        Value::Array(items) => {
            // Alone: another item of a batch would be accepted.
            let inner = items.iter().flat_map(with_lists).map(|wrong| json!([wrong]));
            inner.collect()
        }
        _ => Vec::new(),
    }
}
