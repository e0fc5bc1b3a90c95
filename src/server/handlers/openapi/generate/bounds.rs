//! The bounds of properties: of their names, and those that their descriptions state.

use serde_json::{Map, Value, json};

use super::schemas::{NAME_PATTERN, SCHEMAS};

/// The bounds of properties and parameters that have the same meaning everywhere, by name.
fn bounds(name: &str) -> Option<Value> {
    let name_of_config = || json!({"minLength": 1, "maxLength": 64, "pattern": NAME_PATTERN});
    Some(match name {
        "attempt" | "max_attempts" => json!({"minimum": 0, "maximum": 65535}),
        "queue" | "schedule" | "trigger" | "plugin" => name_of_config(),
        _ => return None,
    })
}

/// Gives a property the bounds of its name, and those that its description states.
pub(super) fn bound_property(name: &str, property: &mut Map<String, Value>) {
    let own = bounds(name).filter(|_| property.contains_key("type"));
    property.extend(own.and_then(|own| own.as_object().cloned()).unwrap_or_default());
    let Some(text) = property.get("description").and_then(Value::as_str) else { return };
    let [range, most] = stated_bounds(text);
    let words = serde_json::to_string(&property).unwrap_or_default();
    let is = |kind: &str| words.contains(&format!("\"{kind}\""));
    let mut bound = |key: &str, value: f64| {
        let value = if value.fract() == 0.0 { json!(value as u64) } else { json!(value) };
        property.insert(key.into(), value);
    };
    if is("integer") || is("number") || words.contains(&format!("{SCHEMAS}Seconds\"")) {
        if let Some((least, most)) = range {
            bound("minimum", least);
            bound("maximum", most);
        }
    } else if is("array") {
        if let Some((_, most)) = most {
            bound("maxItems", most);
        }
    } else if is("string")
        && !is("object")
        && let Some((least, most)) = range.or(most)
    {
        bound("minLength", least);
        bound("maxLength", most);
    }
}

/// The bounds in the first sentence of a description, as least and most: `1 to 64`, and `at most
/// 64`.
fn stated_bounds(text: &str) -> [Option<(f64, f64)>; 2] {
    let sentence = text.split(". ").next().unwrap_or_default();
    let words: Vec<&str> = sentence
        .split_whitespace()
        .map(|word| word.trim_matches(|letter| "(),;:.".contains(letter)))
        .collect();
    let number = |word: &str| word.parse::<f64>().ok();
    let range = words.windows(3).find_map(|words| match words {
        [least, "to", most] => Some((number(least)?, number(most)?)),
        _ => None,
    });
    let most = words.windows(4).find_map(|words| match words {
        ["at", "most", most, "KiB"] => Some((0.0, number(most)? * 1024.0)),
        ["at", "most", most, _] => Some((0.0, number(most)?)),
        _ => None,
    });
    let last = match words[..] {
        [.., "at", "most", most] => number(most).map(|most| (0.0, most)),
        _ => None,
    };
    [range, most.or(last)]
}
