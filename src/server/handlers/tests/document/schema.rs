//! Whether a value has the shape of a schema: as much of JSON Schema as the document uses.

use serde_json::Value;

use super::document;

/// Where `value` differs from `schema`: undocumented, missing and wrong values.
fn faults(document: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        return faults(
            document,
            document.pointer(reference.trim_start_matches('#')).unwrap(),
            value,
            at,
        );
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let each: Vec<_> =
            choices.iter().map(|choice| faults(document, choice, value, at)).collect();
        return if each.iter().any(Vec::is_empty) { Vec::new() } else { each.concat() };
    }
    let kind = kind_of(value);
    let allowed: Vec<&str> = schema["type"]
        .as_str()
        .into_iter()
        .chain(schema["type"].as_array().into_iter().flatten().filter_map(Value::as_str))
        .collect();
    let fits = |kind: &str| allowed.is_empty() || allowed.contains(&kind);
    let whole = kind == "integer" && fits("number");
    if !fits(kind) && !whole {
        return vec![format!("{at} is {kind}, not {allowed:?}")];
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return vec![format!("{at} is not one of {words:?}")];
    }
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .flat_map(|(n, item)| faults(document, &schema["items"], item, &format!("{at}[{n}]")))
            .collect(),
        Value::Object(fields) => {
            let known = schema["properties"].as_object();
            let missing = schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .filter(|name| !fields.contains_key(*name));
            let missing = missing.map(|name| format!("{at}.{name} is missing"));
            let inner = fields.iter().flat_map(|(name, inner)| {
                match known.and_then(|known| known.get(name)) {
                    Some(schema) => faults(document, schema, inner, &format!("{at}.{name}")),
                    None if known.is_some() => vec![format!("{at}.{name} is not documented")],
                    None => Vec::new(),
                }
            });
            missing.chain(inner).collect()
        }
        _ => Vec::new(),
    }
}

/// The type of a value, as JSON Schema names it.
fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Where `value` differs from the schema named `schema`.
pub(super) fn faults_of(schema: &str, value: &Value) -> Vec<String> {
    let document = document();
    let schema = document
        .pointer(&format!("/components/schemas/{schema}"))
        .unwrap_or_else(|| panic!("no schema {schema}"));
    faults(&document, schema, value, "")
}

/// Panics unless `value` has the shape of the schema named `schema`.
pub(super) fn conforms(schema: &str, value: &Value) {
    let faults = faults_of(schema, value);
    assert!(faults.is_empty(), "{faults:#?}\n{value:#}");
}
