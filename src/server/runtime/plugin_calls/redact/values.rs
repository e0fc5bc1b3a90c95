//! The values of redacted attributes: collects them from a call, and replaces them there and in the
//! answer and the texts.
//!
//! They become `redacted-1`, `redacted-2` and so on, in the order in which they appear. Equal values
//! stay equal, so that a plugin that groups by an attribute decides in the same way when the call is
//! repeated. A value is also replaced where configuration, data, state and texts contain it.
//!
//! The call must stay one that the plugin can read. So JSON numbers outside of attributes are not
//! replaced: `10` in a configuration is rarely the 10 of an attribute. Values with fewer than four
//! bytes, numbers and the words of JSON are replaced only as whole strings, because parts of other
//! texts would be taken for them.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};

use super::{FAILURE_TEXTS, STATES, each_failure, objects};
use tidegate_core::{job, queue::plugin_calls::RedactedPart};

/// Fewest bytes of a value that is replaced as a part of a text.
const MIN_PART_BYTES: usize = 4;
/// The words of JSON. A plugin's state and texts have them with another meaning.
const JSON_WORDS: [&str; 3] = ["true", "false", "null"];

/// The first bytes of a value that is replaced as a part of a text.
type Start = [u8; MIN_PART_BYTES];

/// The values that were replaced, each with its substitute.
#[derive(Default)]
pub(super) struct Values {
    /// By the text of the value.
    substitutes: BTreeMap<String, String>,
    /// Those that are replaced as parts of texts, the longest first, by their first bytes: the time
    /// for a text does not grow with the number of values.
    parts: HashMap<Start, Vec<(String, String)>>,
}

/// Whether a text is a number or a word of JSON.
fn is_literal(text: &str) -> bool {
    JSON_WORDS.contains(&text)
        || text.bytes().all(|byte| byte.is_ascii_digit())
        || text.parse::<serde_json::Number>().is_ok()
}

impl Values {
    pub(super) fn is_empty(&self) -> bool {
        self.substitutes.is_empty()
    }

    /// The substitute of a value.
    pub(super) fn substitute(&mut self, text: String) -> String {
        let number = self.substitutes.len() + 1;
        self.substitutes.entry(text).or_insert_with(|| format!("redacted-{number}")).clone()
    }

    /// The values, when there are no more.
    pub(super) fn finished(mut self) -> Self {
        for (text, with) in self.substitutes.iter().filter(|(text, _)| !is_literal(text)) {
            if let Some(start) = text.as_bytes().first_chunk::<MIN_PART_BYTES>() {
                self.parts.entry(*start).or_default().push((text.clone(), with.clone()));
            }
        }
        for parts in self.parts.values_mut() {
            parts.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        }
        self
    }

    /// The longest value with which `text` starts, and its substitute.
    fn part_at(&self, text: &str) -> Option<&(String, String)> {
        let parts = self.parts.get(text.as_bytes().first_chunk::<MIN_PART_BYTES>()?)?;
        parts.iter().find(|(part, _)| text.starts_with(part.as_str()))
    }

    /// `text` with the substitutes of the values in it.
    pub(super) fn replaced(&self, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        if let Some(with) = self.substitutes.get(text) {
            return with.clone();
        }
        let mut replaced = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let taken = if let Some((part, with)) = self.part_at(rest) {
                replaced.push_str(with);
                part.len()
            } else {
                replaced.push(first);
                first.len_utf8()
            };
            rest = &rest[taken..];
        }
        replaced
    }

    /// Replaces the values in all texts and keys of `value`.
    fn replace(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.replaced(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace(item)),
            Value::Object(fields) => {
                for (key, mut value) in std::mem::take(fields) {
                    self.replace(&mut value);
                    fields.insert(self.replaced(&key), value);
                }
            }
            Value::Number(_) | Value::Null | Value::Bool(_) => {}
        }
    }

    /// Replaces the values in the keys and texts of a state. Times of expiry stay, and so do texts
    /// that are short numbers or words of JSON: they count and mark, and rarely name a value.
    fn replace_state(&self, state: &mut Value) {
        let Some(entries) = state.as_object_mut() else { return };
        for (key, mut value) in std::mem::take(entries) {
            let text = match &mut value {
                Value::Array(pair) => pair.first_mut(),
                text => Some(text),
            };
            if let Some(Value::String(text)) = text {
                let is_short = text.len() < MIN_PART_BYTES || JSON_WORDS.contains(&text.as_str());
                if !(is_short && is_literal(text)) {
                    *text = self.replaced(text);
                }
            }
            entries.insert(self.replaced(&key), value);
        }
    }
}

/// The value of an attribute as the text that a plugin sees.
fn attribute_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => job::Value::Number(number.clone()).text(),
        other => other.to_string(),
    }
}

/// Replaces the values of redacted attributes of all jobs, and of what waits. Returns them.
pub(super) fn replace_attributes(call: &mut Value, parts: &[RedactedPart]) -> Values {
    let mut values = Values::default();
    let is_redacted = |name: &str| {
        parts.iter().any(|part| match part {
            RedactedPart::Attributes => true,
            RedactedPart::Attribute(redacted) => redacted == name,
            _ => false,
        })
    };
    let mut of_job = |job: &mut Map<String, Value>| {
        let attributes = job.get_mut("attributes").and_then(Value::as_object_mut);
        for (name, value) in attributes.into_iter().flatten() {
            if is_redacted(name) {
                *value = values.substitute(attribute_text(value)).into();
            }
        }
    };
    for list in ["/throttle/running", "/throttle/candidates", "/throttle/round/ended"] {
        objects(call, list).for_each(&mut of_job);
    }
    let failed = call.pointer_mut("/retry/failed").and_then(Value::as_object_mut);
    failed.into_iter().for_each(of_job);
    let waiting = call.pointer_mut("/throttle/waiting/groups").and_then(Value::as_object_mut);
    for (name, groups) in waiting.into_iter().flatten() {
        if let Some(groups) = groups.as_object_mut().filter(|_| is_redacted(name)) {
            for (value, count) in std::mem::take(groups) {
                groups.insert(values.substitute(value), count);
            }
        }
    }
    values.finished()
}

/// Replaces the values in the configuration, the data, the state and the texts of failures.
pub(super) fn replace_in_call(call: &mut Value, values: &Values) {
    for place in ["/throttle/context/config", "/retry/context/config", "/retry/data"] {
        call.pointer_mut(place).into_iter().for_each(|value| values.replace(value));
    }
    for place in STATES {
        call.pointer_mut(place).into_iter().for_each(|state| values.replace_state(state));
    }
    // The keys of the data are ids of jobs.
    let data = call.pointer_mut("/throttle/data").and_then(Value::as_object_mut);
    data.into_iter().flatten().for_each(|(_, value)| values.replace(value));
    each_failure(call, &mut |failure| {
        for field in FAILURE_TEXTS {
            failure.get_mut(field).into_iter().for_each(|value| values.replace(value));
        }
    });
}

/// Replaces the values in the reasons, the messages, the data and the state of an answer.
pub(super) fn replace_in_answer(answer: &mut Value, values: &Values) {
    for decision in objects(answer, "/decisions") {
        decision.get_mut("reason").into_iter().for_each(|reason| values.replace(reason));
    }
    for place in ["/give_up", "/retry/data"] {
        answer.pointer_mut(place).into_iter().for_each(|value| values.replace(value));
    }
    answer.pointer_mut("/state").into_iter().for_each(|state| values.replace_state(state));
    let expires = answer.pointer_mut("/state_expires").and_then(Value::as_object_mut);
    if let Some(expires) = expires {
        let replaced = std::mem::take(expires).into_iter();
        expires.extend(replaced.map(|(key, at)| (values.replaced(&key), at)));
    }
}
