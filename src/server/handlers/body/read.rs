//! JSON text read into structs, with the field to blame when it does not fit.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate_core::error_code::ErrorCode;

use super::super::error::Problem;
use tidegate_core::job::payload::MAX_DEPTH;
use tidegate_core::strict::strict;

/// JSON text as a `T`, which may borrow from it.
///
/// # Errors
///
/// 400 with the path of the wrong field.
pub fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Problem> {
    if json.is_empty() {
        return Err(Problem::new(ErrorCode::InvalidBody, "the request has no body"));
    }
    let mut reader = serde_json::Deserializer::from_slice(json);
    let value = if let Ok(value) = T::deserialize(strict(&mut reader)) {
        value
    } else {
        // Tracking the path costs an allocation per field, so only a body that fails is read with
        // it.
        reader = serde_json::Deserializer::from_slice(json);
        serde_path_to_error::deserialize(strict(&mut reader))
            .map_err(|error| wrong(&error, json))?
    };
    reader.end().map_err(|error| malformed(&error))?;
    Ok(value)
}

pub(super) fn too_deep(field: String) -> Problem {
    Problem::invalid_as(
        ErrorCode::NestingTooDeep,
        field,
        format!("is nested deeper than {MAX_DEPTH}"),
    )
}

fn malformed(error: &serde_json::Error) -> Problem {
    Problem::new(ErrorCode::InvalidBody, format!("the body is not JSON: {error}"))
}

/// The ends of messages that name a type of Rust, and the words that clients understand.
const TYPES: [(&str, &str); 5] = [
    ("expected u16", "expected a whole number from 0 to 65535"),
    ("expected u32", "expected a whole number from 0 to 4294967295"),
    ("expected i32", "expected a whole number from -2147483648 to 2147483647"),
    ("expected f64", "expected a number"),
    ("expected a boolean", "expected true or false"),
];
/// The beginnings of messages that name a JSON value as Rust does.
const VALUES: [(&str, &str); 2] = [
    ("invalid type: sequence", "invalid type: list"),
    ("invalid type: map", "invalid type: object"),
];

/// Fields of other systems, and what they are here.
const HINTS: [(&str, &str); 2] = [
    ("run_after", "write run_at, or delay_seconds"),
    ("delivery_strategy", "a job type has it: PUT /v1/job-types/{type} with delivery"),
];

/// The fields of a JSON object at the top level that have a hint, with the hint. Of the fields of
/// another system, the first unknown one may have none.
fn hints(json: &[u8]) -> Vec<(&'static str, &'static str)> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(json).unwrap_or_default();
    HINTS.into_iter().filter(|(name, _)| fields.contains_key(*name)).collect()
}

/// What is wrong with the body `json`, with the wrong field if it is known.
fn wrong(error: &serde_path_to_error::Error<serde_json::Error>, json: &[u8]) -> Problem {
    let inner = error.inner();
    if !inner.is_data() {
        return malformed(inner);
    }
    let mut message = inner.to_string();
    // The position is useless next to the name of the field.
    if let Some(position) = message.rfind(" at line ") {
        message.truncate(position);
    }
    for (rust, words) in TYPES {
        if let Some(start) = message.strip_suffix(rust) {
            message = format!("{start}{words}");
        }
    }
    for (rust, words) in VALUES {
        if let Some(rest) = message.strip_prefix(rust) {
            message = format!("{words}{rest}");
        }
    }
    let path = error.path().to_string();
    let path = if path == "." { String::new() } else { path };
    let named = |prefix: &str| {
        message.strip_prefix(prefix)?.split_once('`').map(|(name, _)| name.to_owned())
    };
    let inside = |name: String| match path.as_str() {
        "" => name,
        path if path == name || path.ends_with(&format!(".{name}")) => path.to_owned(),
        path => format!("{path}.{name}"),
    };
    match (named("unknown field `"), named("missing field `"), named("duplicate field `")) {
        (Some(name), ..) => {
            let hints = hints(json);
            if let Some((_, hint)) = hints.iter().find(|(known, _)| *known == name) {
                message = format!("unknown field `{name}`: {hint}");
            } else if let Some((known, hint)) = hints.first() {
                message = format!("unknown fields `{name}` and `{known}`: {hint}");
            }
            Problem::invalid_as(ErrorCode::UnknownField, inside(name), message)
        }
        (_, Some(name), _) => Problem::invalid(inside(name), "is required"),
        (.., Some(name)) => Problem::invalid(inside(name), "is given twice"),
        _ => Problem::invalid(path, message),
    }
}

/// The field of an object in JSON text that nests lists and objects deeper than `most` levels, if
/// there is one. The name is empty if the text is not an object.
pub(super) fn too_deep_in(json: &[u8], most: usize) -> Option<String> {
    let (mut depth, mut at) = (0usize, 0);
    // The latest string at the top level: the name of the field whose value is being read.
    let mut name = 0..0;
    while let Some(&byte) = json.get(at) {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                if depth > most {
                    return Some(String::from_utf8_lossy(&json[name]).into_owned());
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                at += 1;
                let start = at;
                while let Some(&inner) = json.get(at) {
                    match inner {
                        b'"' => break,
                        b'\\' => at += 2,
                        _ => at += 1,
                    }
                }
                if depth == 1 && json[0] == b'{' {
                    name = start..at.min(json.len());
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}
