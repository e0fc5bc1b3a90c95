//! The schemas of requests: what may be null, and the merge patches of configurations.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::schemas::{SCHEMAS, referred};

/// The names of the schemas that bodies of requests are.
pub(super) fn requested(paths: &Value) -> BTreeSet<String> {
    let operations = paths.as_object().into_iter().flatten();
    let operations = operations.flat_map(|(_, item)| item.as_object().into_iter().flatten());
    operations
        .flat_map(|(_, operation)| {
            let content = operation["requestBody"]["content"].as_object().into_iter().flatten();
            content.flat_map(|(_, media)| references(&media["schema"])).collect::<Vec<_>>()
        })
        .collect()
}

/// Makes each merge patch of a configuration refer to a schema of its own. Returns the names of the
/// configurations.
pub(super) fn refer_to_patches(paths: &mut Value) -> BTreeSet<String> {
    let mut patched = BTreeSet::new();
    for (_, item) in paths.as_object_mut().into_iter().flatten() {
        let body = item.pointer_mut("/patch/requestBody/content");
        for (_, media) in body.and_then(Value::as_object_mut).into_iter().flatten() {
            let Some(name) = referred(&media["schema"]).map(str::to_owned) else { continue };
            if !name.ends_with("Patch") {
                media["schema"] = json!({"$ref": format!("{SCHEMAS}{name}Patch")});
                patched.insert(name);
            }
        }
    }
    patched
}

/// A merge patch of a configuration: no property is required, on no level. An object in it may have
/// some of its properties.
pub(super) fn patch_of(config: &Value, all: &Map<String, Value>) -> Value {
    let mut patch = config.clone();
    if let Some(patch) = patch.as_object_mut() {
        patch.remove("required");
    }
    let properties = patch.get_mut("properties").and_then(Value::as_object_mut);
    for (_, property) in properties.into_iter().flatten() {
        let kinds = kinds(property, all);
        if !kinds.contains("object") || property.get("additionalProperties").is_some() {
            continue;
        }
        let description = property.get("description").cloned().unwrap_or_default();
        *property = json!({"description": description, "type": kinds});
    }
    patch
}

/// The types that a value of `schema` can have.
fn kinds(schema: &Value, all: &Map<String, Value>) -> BTreeSet<String> {
    if let Some(schema) = referred(schema).and_then(|name| all.get(name)) {
        return kinds(schema, all);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        return choices.iter().flat_map(|choice| kinds(choice, all)).collect();
    }
    let own = schema["type"].as_str().into_iter();
    let list = schema["type"].as_array().into_iter().flatten().filter_map(Value::as_str);
    own.chain(list).map(str::to_owned).collect()
}

/// The names of the schemas that `value` refers to.
fn references(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let own = referred(value).map(str::to_owned);
            own.into_iter().chain(fields.values().flat_map(references)).collect()
        }
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

/// The names of the schemas that can be reached from `start`.
pub(super) fn reachable(schemas: &Map<String, Value>, start: BTreeSet<String>) -> BTreeSet<String> {
    let mut found = start.clone();
    let mut next: Vec<String> = start.into_iter().collect();
    while let Some(name) = next.pop() {
        for name in schemas.get(&name).map(references).unwrap_or_default() {
            if found.insert(name.clone()) {
                next.push(name);
            }
        }
    }
    found
}

/// Lets the properties of a request's object that may be left out be null.
pub(super) fn accept_null(schema: &mut Value) {
    if schema.get("additionalProperties") != Some(&json!(false)) {
        return;
    }
    let required: BTreeSet<String> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect();
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    let optional = properties.into_iter().flatten().filter(|(name, _)| !required.contains(*name));
    for (_, property) in optional {
        let Some(property) = property.as_object_mut() else { continue };
        if let Some(Value::String(kind)) = property.get("type").cloned() {
            property.insert("type".into(), json!([kind, "null"]));
            if let Some(Value::Array(words)) = property.get_mut("enum") {
                words.push(Value::Null);
            }
        } else if let Some(reference) = property.remove("$ref") {
            if reference == json!(format!("{SCHEMAS}AnyValue")) {
                property.insert("$ref".into(), reference);
                continue;
            }
            let choices = json!([{ "$ref": reference }, {"type": "null"}]);
            property.insert("anyOf".into(), choices);
        } else if let Some(Value::Array(choices)) = property.get_mut("anyOf")
            && !choices.iter().any(|choice| choice["type"] == "null")
        {
            choices.push(json!({"type": "null"}));
        }
    }
}
