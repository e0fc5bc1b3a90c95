//! One value in two encodings: JSON and MessagePack.
//!
//! A value that only MessagePack has becomes a JSON object of one key, and that object becomes the
//! value on the way back. So MessagePack that is shown as JSON loses nothing:
//!
//! ```text
//!   binary                         {"$binary": "base64"}
//!   an extension                   {"$ext": {"type": -1, "data": "base64"}}
//!   NaN, the infinities            {"$float": "NaN"}, "Infinity", "-Infinity"
//!   a map with a key that is not   {"$map": [[key, value], ...]}; also a map that
//!   a text                         would be read as one of these objects
//! ```
//!
//! Numbers are kept as whole numbers or doubles. The last of several equal keys in a map counts.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Value as Json, json};

/// The JSON that shows `value`.
pub(super) fn json_of(value: rmpv::Value) -> Json {
    use rmpv::Value as V;
    match value {
        V::Nil => Json::Null,
        V::Boolean(value) => value.into(),
        V::Integer(number) => number.as_i64().map_or_else(|| number.as_u64().into(), Json::from),
        V::F32(number) => json_of_float(number.into()),
        V::F64(number) => json_of_float(number),
        V::String(text) => text.into_str().into(),
        V::Binary(bytes) => json!({ "$binary": BASE64.encode(bytes) }),
        V::Ext(kind, bytes) => json!({ "$ext": { "type": kind, "data": BASE64.encode(bytes) } }),
        V::Array(list) => list.into_iter().map(json_of).collect(),
        V::Map(map) if map.iter().all(|(key, _)| key.is_str()) => {
            let object: serde_json::Map<_, _> = map
                .into_iter()
                .map(|(key, value)| (key.as_str().unwrap_or_default().to_owned(), json_of(value)))
                .collect();
            if meaning(&object).is_some() {
                json!({ "$map": object.into_iter().collect::<Vec<_>>() })
            } else {
                object.into()
            }
        }
        V::Map(map) => {
            let pairs = map.into_iter().map(|(key, value)| [json_of(key), json_of(value)]);
            json!({ "$map": pairs.collect::<Vec<_>>() })
        }
    }
}

fn json_of_float(number: f64) -> Json {
    match serde_json::Number::from_f64(number) {
        Some(number) => number.into(),
        None if number.is_nan() => json!({ "$float": "NaN" }),
        None => json!({ "$float": if number > 0.0 { "Infinity" } else { "-Infinity" } }),
    }
}

/// The MessagePack value that `json` shows.
pub(super) fn message_pack_of(json: Json) -> rmpv::Value {
    use rmpv::Value as V;
    match json {
        Json::Null => V::Nil,
        Json::Bool(value) => value.into(),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => number.into(),
            (None, Some(number)) => number.into(),
            (None, None) => V::F64(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => text.into(),
        Json::Array(list) => V::Array(list.into_iter().map(message_pack_of).collect()),
        Json::Object(object) => match meaning(&object) {
            Some(Meaning::Value(value)) => value,
            Some(Meaning::Map) => V::Map(object.into_values().flat_map(pairs).collect()),
            None => V::Map(
                object
                    .into_iter()
                    .map(|(key, value)| (key.into(), message_pack_of(value)))
                    .collect(),
            ),
        },
    }
}

/// The meaning of a JSON object of one key.
enum Meaning {
    /// This value.
    Value(rmpv::Value),
    /// A map, as a list of its pairs.
    Map,
}

/// The meaning of `object`, if it has one of these special forms. Reads only the form itself, so
/// that nested ones are read once.
fn meaning(object: &serde_json::Map<String, Json>) -> Option<Meaning> {
    use rmpv::Value as V;
    let (key, value) = object.iter().next().filter(|_| object.len() == 1)?;
    let bytes = |value: &Json| BASE64.decode(value.as_str()?).ok();
    let value = match key.as_str() {
        "$binary" => V::Binary(bytes(value)?),
        "$ext" if value.as_object()?.len() == 2 => {
            V::Ext(i8::try_from(value.get("type")?.as_i64()?).ok()?, bytes(value.get("data")?)?)
        }
        "$float" => V::F64(match value.as_str()? {
            "NaN" => f64::NAN,
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            _ => return None,
        }),
        "$map" => {
            let listed = value
                .as_array()?
                .iter()
                .all(|pair| pair.as_array().is_some_and(|pair| pair.len() == 2));
            return listed.then_some(Meaning::Map);
        }
        _ => return None,
    };
    Some(Meaning::Value(value))
}

/// The pairs of a listed map.
fn pairs(listed: Json) -> Vec<(rmpv::Value, rmpv::Value)> {
    let Json::Array(listed) = listed else {
        return Vec::new();
    };
    let pair = |pair| match pair {
        Json::Array(pair) => <[Json; 2]>::try_from(pair)
            .ok()
            .map(|[key, value]| (message_pack_of(key), message_pack_of(value))),
        _ => None,
    };
    listed.into_iter().filter_map(pair).collect()
}
