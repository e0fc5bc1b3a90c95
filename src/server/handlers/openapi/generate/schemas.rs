//! The schemas of the document, in a form that means the same to every tool.
//!
//! What derives them writes `allOf` where one object embeds another, `oneOf` where choices overlap,
//! and defaults of null. Validators refuse what the server sends then, and generators of clients
//! write code that does not compile. So here:
//!
//! - an object that embeds others becomes one object with all properties;
//! - a choice is `anyOf`, and each object in it has a name of its own;
//! - a default is a sentence of the description: as a keyword, generators take the property for
//!   required;
//! - in requests, a property that may be left out may be null, and a patch requires nothing;
//! - numbers, texts and lists have the bounds that their descriptions state.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{
    bounds::bound_property,
    requests::{accept_null, patch_of, reachable, refer_to_patches, requested},
};

/// The prefix of a reference to a schema.
pub(super) const SCHEMAS: &str = "#/components/schemas/";
/// The form of the names of queues, types and other configurations.
pub(super) const NAME_PATTERN: &str = "^[A-Za-z0-9_.-]+$";
/// The form of the ids of jobs.
pub(super) const ID_PATTERN: &str = "^[A-Za-z0-9_.:-]+$";
/// The largest number of 32 bits without a sign, the type of counts and limits.
const MAX_U32: u64 = u32::MAX as u64;

/// Brings the schemas of `document` into the form that the module describes.
pub(super) fn complete(document: &mut Value) {
    each_object(document, &mut |object| {
        state_default(object);
        choose_any(object);
        bound_numbers(object);
    });
    let bodies = requested(&document["paths"]);
    let patched = refer_to_patches(&mut document["paths"]);
    let Value::Object(schemas) = &mut document["components"]["schemas"] else { return };
    schemas["Condition"] = condition(&schemas["Condition"]);
    schemas["Test"] = test(schemas["Test"].take());
    let mut flattened = flatten_all(schemas);
    flattened.extend(name_choices(schemas, &flattened));
    let requests = reachable(schemas, bodies);
    for name in flattened.intersection(&requests) {
        if schemas[name].get("properties").is_some() {
            schemas[name]["additionalProperties"] = false.into();
        }
    }
    for (_, schema) in schemas.iter_mut().filter(|(name, _)| requests.contains(*name)) {
        accept_null(schema);
    }
    for name in patched {
        let patch = patch_of(&schemas[&name], schemas);
        schemas.insert(format!("{name}Patch"), patch);
    }
    // An answer does not show it.
    let password = &mut schemas["BasicAuth"];
    password["required"] = json!(["username"]);
    password["properties"]["password"]["writeOnly"] = true.into();
    for schema in schemas.values_mut() {
        each_object(schema, &mut |object| {
            let properties = object.get_mut("properties").and_then(Value::as_object_mut);
            for (name, property) in properties.into_iter().flatten() {
                if let Some(property) = property.as_object_mut() {
                    bound_property(name, property);
                }
            }
        });
    }
}

/// Calls `visit` for each object in `value`, the inner ones first.
fn each_object(value: &mut Value, visit: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            object.values_mut().for_each(|inner| each_object(inner, visit));
            visit(object);
        }
        Value::Array(items) => items.iter_mut().for_each(|inner| each_object(inner, visit)),
        _ => {}
    }
}

/// Whether an object is a schema, and not the properties of one or an example.
fn is_schema(object: &Map<String, Value>) -> bool {
    ["type", "$ref", "oneOf", "anyOf", "allOf", "description"]
        .iter()
        .any(|key| object.get(*key).is_some_and(|value| !(value.is_object() && *key != "allOf")))
}

/// Moves a default into the description, unless that names it.
fn state_default(object: &mut Map<String, Value>) {
    if !is_schema(object) {
        return;
    }
    let Some(default) = object.remove("default") else { return };
    let description = object.get("description").and_then(Value::as_str).unwrap_or_default();
    let is_empty = |value: &Value| {
        value.is_null()
            || value.as_array().is_some_and(Vec::is_empty)
            || value.as_object().is_some_and(Map::is_empty)
            || value.as_str().is_some_and(str::is_empty)
    };
    if !is_empty(&default) && !description.contains("default") && !description.is_empty() {
        let text = format!("{description} Default: `{default}`.");
        object.insert("description".into(), text.into());
    }
}

/// Makes a choice `anyOf`: null and any value, or a text and a matching text, overlap. A choice
/// with any value is that value.
fn choose_any(object: &mut Map<String, Value>) {
    let Some(Value::Array(mut choices)) = object.remove("oneOf") else { return };
    let any = |choice: &Value| {
        let any = [json!("AnyValue"), json!("Template")];
        let refers = |name: &Value| {
            choice["$ref"] == json!(format!("{SCHEMAS}{}", name.as_str().unwrap_or_default()))
        };
        any.iter().any(refers)
    };
    if let Some(index) = choices.iter().position(any) {
        let Value::Object(alone) = choices.swap_remove(index) else { return };
        object.extend(alone);
        return;
    }
    // The description of the reference is that of the property.
    if let [first, null] = &mut choices[..]
        && null["type"] == "null"
        && let Some(text) = first.as_object_mut().and_then(|first| first.remove("description"))
    {
        object.entry("description").or_insert(text);
    }
    object.insert("anyOf".into(), choices.into());
}

/// Gives a count the bounds of its type. `int32` is that of Java and of C#, and half as large.
fn bound_numbers(object: &mut Map<String, Value>) {
    if object.get("format") == Some(&json!("int32")) && object.get("minimum") == Some(&json!(0)) {
        object.insert("format".into(), "int64".into());
        object.entry("maximum").or_insert(MAX_U32.into());
    }
    if object.get("propertyNames") == Some(&json!({"type": "string"})) {
        object.remove("propertyNames");
    }
}

/// A condition: a value, a list of values, or comparisons.
fn condition(derived: &Value) -> Value {
    let value = json!({"type": ["string", "number", "boolean"]});
    json!({
        "description": derived["description"],
        "anyOf": [
            value,
            {"type": "array", "items": value},
            {"$ref": format!("{SCHEMAS}Test")},
        ],
    })
}

/// Comparisons, whose values are those of conditions.
fn test(mut derived: Value) -> Value {
    let kinds = json!(["string", "number", "boolean"]);
    for (name, property) in derived["properties"].as_object_mut().into_iter().flatten() {
        match name.as_str() {
            "eq" | "lt" | "lte" | "gt" | "gte" => property["type"] = kinds.clone(),
            "in" => property["items"] = json!({ "type": kinds }),
            _ => {}
        }
    }
    derived
}

/// The name of the schema that `schema` refers to.
pub(super) fn referred(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix(SCHEMAS)
}

/// Replaces `allOf` by one object with all properties; of a choice, by a choice of such objects.
/// Returns the names of the schemas that were such compositions.
fn flatten_all(schemas: &mut Map<String, Value>) -> BTreeSet<String> {
    let all = schemas.clone();
    let composed = all.iter().filter(|(_, schema)| schema.get("allOf").is_some());
    for schema in schemas.values_mut() {
        each_object(schema, &mut |object| {
            let Some(Value::Array(parts)) = object.remove("allOf") else { return };
            if let [only] = &parts[..] {
                let only = only.as_object().cloned().unwrap_or_default();
                object.extend(only.into_iter().filter(|(key, _)| key != "description"));
                return;
            }
            let Value::Object(whole) = merged(&parts, &all) else { return };
            object.extend(whole.into_iter().filter(|(key, _)| key != "description"));
        });
    }
    composed.map(|(name, _)| name.clone()).collect()
}

/// One schema for a value that all of `parts` describe.
fn merged(parts: &[Value], all: &Map<String, Value>) -> Value {
    let parts: Vec<&Value> =
        parts.iter().map(|part| referred(part).map_or(part, |name| &all[name])).collect();
    if let Some(place) = parts.iter().position(|part| part.get("anyOf").is_some()) {
        let others: Vec<Value> = parts
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != place)
            .map(|(_, part)| (*part).clone())
            .collect();
        let choices = parts[place]["anyOf"].as_array().into_iter().flatten();
        let choices = choices
            .map(|choice| merged(&[std::slice::from_ref(choice), &others[..]].concat(), all));
        return json!({ "anyOf": choices.collect::<Vec<_>>() });
    }
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for part in parts {
        properties.extend(part["properties"].as_object().cloned().unwrap_or_default());
        required.extend(part["required"].as_array().cloned().unwrap_or_default());
    }
    json!({"type": "object", "properties": properties, "required": required})
}

/// Gives each object of a choice a schema of its own, so that generators find a name for it.
/// Returns the new names of the choices in `flattened`.
fn name_choices(
    schemas: &mut Map<String, Value>,
    flattened: &BTreeSet<String>,
) -> BTreeSet<String> {
    let (mut named, mut of_flattened) = (BTreeMap::new(), BTreeSet::new());
    for (parent, schema) in schemas.iter_mut() {
        let Some(choices) = schema.get_mut("anyOf").and_then(Value::as_array_mut) else {
            continue;
        };
        for choice in choices.iter_mut().filter(|choice| choice.get("properties").is_some()) {
            let name = format!("{parent}{}", suffix(choice));
            if flattened.contains(parent) {
                of_flattened.insert(name.clone());
            }
            let reference = json!({"$ref": format!("{SCHEMAS}{name}")});
            named.insert(name, std::mem::replace(choice, reference));
        }
    }
    schemas.extend(named);
    of_flattened
}

/// What tells an object of a choice from the others: its only word, or its first required field.
fn suffix(choice: &Value) -> String {
    let properties = choice["properties"].as_object().into_iter().flatten();
    let word = properties
        .filter_map(|(_, property)| property["enum"].as_array())
        .find_map(|words| if let [only] = &words[..] { only.as_str() } else { None });
    let first = || choice["required"][0].as_str();
    let words = word.or_else(first).unwrap_or("other").split('_');
    words
        .map(|word| {
            let mut letters = word.chars();
            let first = letters.next().map(|letter| letter.to_ascii_uppercase());
            first.into_iter().chain(letters).collect::<String>()
        })
        .collect()
}
