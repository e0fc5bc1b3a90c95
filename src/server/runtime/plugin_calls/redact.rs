//! What a queue redacts in the records of calls.
//!
//! The values of attributes become `redacted-1`, `redacted-2` and so on, in the order in which they
//! appear. Equal values stay equal, so that a plugin that groups by an attribute decides in the
//! same way when the call is repeated. A value is also replaced where configuration, data, state
//! and texts contain it. Of values with fewer than four bytes, only whole strings are replaced
//! there: parts of other words would be taken for them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{ShownCall, raw};
use tidegate_core::queue::plugin_calls::RedactedPart;

/// Fewest bytes of a value that is replaced as a part of a text.
const MIN_PART_BYTES: usize = 4;
/// The message of a fault whose text is redacted.
const REDACTED: &str = "(redacted)";

/// Removes from `shown` what it is to lack. A part that cannot be read is removed as a whole.
pub(super) fn redact(shown: &mut ShownCall) {
    if shown.redacted.is_empty() {
        return;
    }
    let read = |json: &serde_json::value::RawValue| serde_json::from_str(json.get()).ok();
    let mut call: Option<Value> = shown.call.as_deref().and_then(read);
    let mut answer: Option<Value> = shown.answer.as_deref().and_then(read);
    let parts = shown.redacted.clone();
    let has = |part: &RedactedPart| parts.contains(part);
    if let Some(call) = &mut call {
        if has(&RedactedPart::Data) {
            call.pointer_mut("/throttle/data").into_iter().for_each(clear);
            call.pointer_mut("/retry/data").into_iter().for_each(|data| *data = Value::Null);
        }
        if has(&RedactedPart::State) {
            call.pointer_mut("/throttle/state").into_iter().for_each(clear);
        }
        if has(&RedactedPart::Failures) {
            each_failure(call, &mut |failure| {
                failure.remove("message");
                failure.remove("details");
            });
        }
    }
    if has(&RedactedPart::Data) && answer.as_ref().is_some_and(|a| !a["retry"]["data"].is_null()) {
        // Without the data, no answer would meet the expectation.
        answer = None;
    }
    if let Some(Value::Object(answer)) = &mut answer {
        if has(&RedactedPart::State) {
            answer.remove("state");
            answer.remove("state_expires");
        }
        if has(&RedactedPart::Texts) {
            remove_texts(answer);
        }
    }
    if has(&RedactedPart::Texts) {
        shown.log.clear();
        if let Some((_, message)) = &mut shown.fault {
            REDACTED.clone_into(message);
        }
    }
    let values = call.as_mut().map(|call| replace_attributes(call, &parts)).unwrap_or_default();
    if !values.is_empty() {
        if let Some(call) = &mut call {
            replace_in_call(call, &values);
        }
        if let Some(answer) = &mut answer {
            replace_in_answer(answer, &values);
        }
        let texts = shown.log.iter_mut().map(|(_, text)| text);
        let fault = shown.fault.iter_mut().map(|(_, message)| message);
        texts.chain(fault).for_each(|text| *text = values.replaced(text));
    } else if call.is_none() && parts.iter().any(is_attribute) {
        // The values are unknown, and the plugin's texts may contain them.
        (shown.answer, answer) = (None, None);
        shown.log.clear();
        if let Some((_, message)) = &mut shown.fault {
            REDACTED.clone_into(message);
        }
    }
    shown.call = call.and_then(|call| raw(call.to_string()));
    shown.answer = answer.and_then(|answer| raw(answer.to_string()));
}

fn is_attribute(part: &RedactedPart) -> bool {
    matches!(part, RedactedPart::Attributes | RedactedPart::Attribute(_))
}

/// Makes a map empty.
fn clear(map: &mut Value) {
    *map = Value::Object(Map::new());
}

/// Removes reasons and messages from an answer.
fn remove_texts(answer: &mut Map<String, Value>) {
    let decisions = answer.get_mut("decisions").and_then(Value::as_array_mut);
    for decision in decisions.into_iter().flatten().filter_map(Value::as_object_mut) {
        decision.remove("reason");
    }
    if let Some(message) = answer.get_mut("give_up") {
        *message = Value::Null;
    }
}

/// The objects in the list at `pointer`.
fn objects<'a>(
    call: &'a mut Value,
    pointer: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    let list = call.pointer_mut(pointer).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Calls `each` with the failed and ended attempts of a call.
fn each_failure(call: &mut Value, each: &mut dyn FnMut(&mut Map<String, Value>)) {
    objects(call, "/throttle/round/ended").for_each(&mut *each);
    for candidate in objects(call, "/throttle/candidates") {
        let earlier = candidate.get_mut("earlier").and_then(Value::as_array_mut);
        earlier.into_iter().flatten().filter_map(Value::as_object_mut).for_each(&mut *each);
    }
    objects(call, "/retry/failed/earlier").for_each(&mut *each);
    let last = call.pointer_mut("/retry/last").and_then(Value::as_object_mut);
    last.into_iter().for_each(each);
}

/// The values that were replaced, each with its substitute.
#[derive(Default)]
struct Values {
    /// By the text of the value.
    substitutes: BTreeMap<String, String>,
    /// Those that are replaced as parts of texts, the longest first.
    parts: Vec<(String, String)>,
}

impl Values {
    fn is_empty(&self) -> bool {
        self.substitutes.is_empty()
    }

    /// The substitute of a value.
    fn substitute(&mut self, text: String) -> String {
        let number = self.substitutes.len() + 1;
        self.substitutes.entry(text).or_insert_with(|| format!("redacted-{number}")).clone()
    }

    fn finished(mut self) -> Self {
        let long = self.substitutes.iter().filter(|(text, _)| text.len() >= MIN_PART_BYTES);
        self.parts = long.map(|(text, with)| (text.clone(), with.clone())).collect();
        self.parts.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        self
    }

    /// `text` with the substitutes of the values in it.
    fn replaced(&self, text: &str) -> String {
        if let Some(with) = self.substitutes.get(text) {
            return with.clone();
        }
        let mut replaced = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let part = self.parts.iter().find(|(part, _)| rest.starts_with(part.as_str()));
            let taken = if let Some((part, with)) = part {
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

    /// Replaces the values in all texts and keys of `value`, and the numbers that are such values.
    fn replace(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.replaced(text),
            Value::Number(number) => {
                if let Some(with) = self.substitutes.get(&number.to_string()) {
                    *value = with.clone().into();
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace(item)),
            Value::Object(fields) => {
                for (key, mut value) in std::mem::take(fields) {
                    self.replace(&mut value);
                    fields.insert(self.replaced(&key), value);
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }
}

/// Replaces the values of redacted attributes of all jobs.
fn replace_attributes(call: &mut Value, parts: &[RedactedPart]) -> Values {
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
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                *value = values.substitute(text).into();
            }
        }
    };
    for list in ["/throttle/running", "/throttle/candidates", "/throttle/round/ended"] {
        objects(call, list).for_each(&mut of_job);
    }
    let failed = call.pointer_mut("/retry/failed").and_then(Value::as_object_mut);
    failed.into_iter().for_each(of_job);
    values.finished()
}

/// Replaces the values in the configuration, the data, the state and the texts of failures.
fn replace_in_call(call: &mut Value, values: &Values) {
    let places =
        ["/throttle/context/config", "/throttle/state", "/retry/context/config", "/retry/data"];
    for place in places {
        call.pointer_mut(place).into_iter().for_each(|value| values.replace(value));
    }
    // The keys of the data are ids of jobs.
    let data = call.pointer_mut("/throttle/data").and_then(Value::as_object_mut);
    data.into_iter().flatten().for_each(|(_, value)| values.replace(value));
    each_failure(call, &mut |failure| {
        for field in ["message", "details"] {
            failure.get_mut(field).into_iter().for_each(|value| values.replace(value));
        }
    });
}

/// Replaces the values in the reasons, the messages, the data and the state of an answer.
fn replace_in_answer(answer: &mut Value, values: &Values) {
    for decision in objects(answer, "/decisions") {
        decision.get_mut("reason").into_iter().for_each(|reason| values.replace(reason));
    }
    for place in ["/give_up", "/retry/data", "/state"] {
        answer.pointer_mut(place).into_iter().for_each(|value| values.replace(value));
    }
    let expires = answer.pointer_mut("/state_expires").and_then(Value::as_object_mut);
    if let Some(expires) = expires {
        let replaced = std::mem::take(expires).into_iter();
        expires.extend(replaced.map(|(key, at)| (values.replaced(&key), at)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidegate_api::UsageView;
    use tidegate_backends::wasm::record;
    use tidegate_core::{port::policy::Usage, queue::plugin::Role, time::Timestamp};

    use super::*;

    fn throttled() -> ShownCall {
        let call = json!({"throttle": {
            "context": {"queue": "mail", "seed": u64::MAX, "config": {"shares": {"acme": 1, "x": 2}}},
            "round": {"ended": [{"id": "e", "succeeded": false, "message": "acme is down",
                "details": {"of": "acme", "x": "x"}, "attributes": {"tenant": "x"}}]},
            "running": [{"id": "acme-1", "attributes": {"tenant": "acme", "size": 12}}],
            "candidates": [{"id": "c", "attributes": {"tenant": "acme"},
                "earlier": [{"message": "no", "details": [1]}]}],
            "state": {"tokens:acme": "3", "other": ["of x or acme", "2026-01-01T00:00:00Z"]},
            "data": {"c": {"tenant": "acme", "card": "4111"}},
        }});
        let answer = json!({
            "decisions": [{"action": "hold", "reason": "acme is over 1"}], "more": true,
            "state": {"tokens:acme": "2"}, "state_expires": {"tokens:acme": "2026-01-01T00:00:00Z"},
        });
        ShownCall {
            id: "latest-1-1".into(),
            reason: "latest".into(),
            at: Timestamp::EPOCH,
            version: 1,
            shadow: false,
            role: Role::Throttler,
            queue: "mail".parse().unwrap(),
            usage: UsageView::from(&Usage::default()),
            decided: BTreeMap::new(),
            fault: Some(("rejected".into(), "no share for acme".into())),
            log: vec![("info".into(), "acme has 3".into())],
            redacted: Vec::new(),
            answer: raw(answer.to_string()),
            call: raw(call.to_string()),
        }
    }

    /// The call and the answer without these parts, and all of the record as text.
    fn without(parts: &[&str]) -> (Value, Value, String) {
        let redacted = parts.iter().map(|part| part.parse().unwrap()).collect();
        let mut shown = ShownCall { redacted, ..throttled() };
        redact(&mut shown);
        let json = |raw: &Option<Box<serde_json::value::RawValue>>| {
            raw.as_ref().map_or(Value::Null, |raw| serde_json::from_str(raw.get()).unwrap())
        };
        let (call, answer) = (json(&shown.call), json(&shown.answer));
        if !call.is_null() {
            record::from_json(&call.to_string()).expect("it can be repeated");
        }
        (call, answer, serde_json::to_string(&shown).unwrap())
    }

    #[test]
    fn the_values_of_an_attribute_are_replaced_everywhere() {
        let (call, answer, all) = without(&["attributes.tenant"]);
        let call = &call["throttle"];
        // Running jobs come first. A value is the same everywhere.
        assert_eq!(call["running"][0]["attributes"], json!({"tenant": "redacted-1", "size": 12}));
        assert_eq!(call["candidates"][0]["attributes"]["tenant"], "redacted-1");
        assert_eq!(call["round"]["ended"][0]["attributes"]["tenant"], "redacted-2");
        assert_eq!(call["context"]["config"]["shares"], json!({"redacted-1": 1, "redacted-2": 2}));
        assert_eq!(
            call["state"],
            json!({
                "tokens:redacted-1": "3",
                "other": ["of x or redacted-1", "2026-01-01T00:00:00Z"],
            })
        );
        assert_eq!(call["data"]["c"], json!({"tenant": "redacted-1", "card": "4111"}));
        let ended = &call["round"]["ended"][0];
        assert_eq!(ended["message"], "redacted-1 is down");
        assert_eq!(ended["details"], json!({"of": "redacted-1", "redacted-2": "redacted-2"}));
        assert_eq!(answer["decisions"][0]["reason"], "redacted-1 is over 1");
        assert_eq!(answer["state"], json!({"tokens:redacted-1": "2"}));
        assert!(answer["state_expires"]["tokens:redacted-1"].is_string());
        assert!(all.contains("no share for redacted-1") && all.contains("redacted-1 has 3"));
        assert_eq!(call["running"][0]["id"], "acme-1", "an id names the job, as everywhere");
        assert_eq!(call["context"]["seed"], u64::MAX);
        let (call, ..) = without(&["attributes"]);
        let attributes = &call["throttle"]["running"][0]["attributes"];
        assert_eq!(*attributes, json!({"size": "redacted-1", "tenant": "redacted-2"}));
    }

    #[test]
    fn whole_parts_are_left_out() {
        let (call, answer, all) = without(&["data", "state", "failures", "texts"]);
        let call = &call["throttle"];
        assert_eq!((&call["data"], &call["state"]), (&json!({}), &json!({})));
        assert_eq!(call["round"]["ended"][0].get("message"), None);
        assert_eq!(call["candidates"][0]["earlier"], json!([{}]));
        assert_eq!(answer, json!({"decisions": [{"action": "hold"}], "more": true}));
        assert!(!all.contains("4111") && !all.contains("has 3") && !all.contains("no share"));
        assert!(all.contains("acme"), "attributes are not redacted");
        let (call, answer, _) = without(&[]);
        assert!(call.to_string().contains("4111") && answer["state"].is_object());
    }

    #[test]
    fn a_retry_lacks_its_data_and_what_replaces_them() {
        let call = json!({"retry": {
            "failed": {"id": "a", "attributes": {"tenant": "acme"}, "earlier": [{"message": "no"}]},
            "last": {"message": "card 4111", "details": {"a": 1}}, "data": {"card": "4111"},
        }});
        let answer = json!({"retry": {"at": "2026-01-01T00:00:00Z", "data": {"card": "4111"}}});
        let parts = [RedactedPart::Data, RedactedPart::Failures];
        let mut shown = ShownCall {
            redacted: parts.to_vec(),
            call: raw(call.to_string()),
            answer: raw(answer.to_string()),
            ..throttled()
        };
        redact(&mut shown);
        let call = shown.call.unwrap();
        assert!(!call.get().contains("4111") && !call.get().contains("message"), "{call}");
        assert!(shown.answer.is_none());
        record::from_json(call.get()).expect("it can be repeated");
    }

    #[test]
    fn texts_of_an_unknown_call_are_left_out_with_the_attributes() {
        let redacted = vec!["attributes.tenant".parse().unwrap()];
        let mut shown = ShownCall { redacted, call: None, ..throttled() };
        redact(&mut shown);
        assert!(!serde_json::to_string(&shown).unwrap().contains("acme"));
    }
}
