//! What a queue redacts in the records of calls.
//!
//! The values of attributes become `redacted-1`, `redacted-2` and so on, in the order in which they
//! appear. Equal values stay equal, so that a plugin that groups by an attribute decides in the
//! same way when the call is repeated. A value is also replaced where configuration, data, state
//! and texts contain it.
//!
//! The call must stay one that the plugin can read. So JSON numbers outside of attributes are not
//! replaced: `10` in a configuration is rarely the 10 of an attribute. Values with fewer than four
//! bytes, numbers and the words of JSON are replaced only as whole strings, because parts of other
//! texts would be taken for them.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};

use super::{ShownCall, raw};
use tidegate_core::{job, queue::plugin_calls::RedactedPart};

/// Fewest bytes of a value that is replaced as a part of a text.
const MIN_PART_BYTES: usize = 4;
/// The words of JSON. A plugin's state and texts have them with another meaning.
const JSON_WORDS: [&str; 3] = ["true", "false", "null"];
/// The message of a fault whose text is redacted.
const REDACTED: &str = "(redacted)";

/// Whether a record has the call and the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bodies {
    /// It has them.
    Kept,
    /// They are read for the values that texts may contain, and then dropped.
    Dropped,
}

/// Removes from `shown` what it is to lack. A part that cannot be read is removed as a whole.
/// `shown.redacted` keeps `data`, `state` and `failures` only if there was something to remove.
pub(super) fn redact(shown: &mut ShownCall, bodies: Bodies) {
    if !shown.redacted.is_empty() {
        remove(shown, bodies);
    }
    if bodies == Bodies::Dropped {
        (shown.call, shown.answer) = (None, None);
    }
}

fn remove(shown: &mut ShownCall, bodies: Bodies) {
    let read = |json: &serde_json::value::RawValue| serde_json::from_str(json.get()).ok();
    let mut call: Option<Value> = shown.call.as_deref().and_then(read);
    let mut answer: Option<Value> = shown.answer.as_deref().and_then(read);
    let parts = shown.redacted.clone();
    let has = |part: &RedactedPart| parts.contains(part);
    if call.is_some() {
        let has_parts = |part: &RedactedPart| match part {
            RedactedPart::Data => has_data(call.as_ref(), answer.as_ref()),
            RedactedPart::State => has_state(call.as_ref(), answer.as_ref()),
            RedactedPart::Failures => has_failures(&mut call.clone()),
            _ => true,
        };
        shown.redacted.retain(has_parts);
    }
    if let Some(call) = &mut call {
        if has(&RedactedPart::Data) {
            call.pointer_mut("/throttle/data").into_iter().for_each(clear);
            call.pointer_mut("/retry/data").into_iter().for_each(|data| *data = Value::Null);
        }
        if has(&RedactedPart::State) {
            for place in STATES {
                call.pointer_mut(place).into_iter().for_each(clear);
            }
        }
        if has(&RedactedPart::Failures) {
            each_failure(call, &mut |failure| {
                for field in FAILURE_TEXTS {
                    failure.remove(field);
                }
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
        if bodies == Bodies::Kept {
            if let Some(call) = &mut call {
                replace_in_call(call, &values);
            }
            if let Some(answer) = &mut answer {
                replace_in_answer(answer, &values);
            }
        }
        let texts = shown.log.iter_mut().map(|(_, text)| text);
        let fault = shown.fault.iter_mut().map(|(_, message)| message);
        texts.chain(fault).for_each(|text| *text = values.replaced(text));
    } else if call.is_none() && parts.iter().any(is_attribute) {
        // The values are unknown, and the plugin's texts may contain them.
        answer = None;
        shown.log.clear();
        if let Some((_, message)) = &mut shown.fault {
            REDACTED.clone_into(message);
        }
    }
    if bodies == Bodies::Kept {
        shown.call = call.and_then(|call| raw(call.to_string()));
        shown.answer = answer.and_then(|answer| raw(answer.to_string()));
    }
}

/// The states of the two roles in a call.
const STATES: [&str; 2] = ["/throttle/state", "/retry/state"];
/// The texts of a failed or ended attempt.
const FAILURE_TEXTS: [&str; 2] = ["message", "details"];

/// Whether the object at one of `places` has an entry.
fn has_entries(json: &Value, places: &[&str]) -> bool {
    let mut objects = places.iter().filter_map(|place| json.pointer(place)?.as_object());
    objects.any(|object| !object.is_empty())
}

fn has_data(call: Option<&Value>, answer: Option<&Value>) -> bool {
    let is_given = |json: Option<&Value>| json.is_some_and(|json| !json["retry"]["data"].is_null());
    let of_jobs = ["/throttle/data", "/throttle/data-left-out"];
    call.is_some_and(|call| has_entries(call, &of_jobs)) || is_given(call) || is_given(answer)
}

fn has_state(call: Option<&Value>, answer: Option<&Value>) -> bool {
    call.is_some_and(|call| has_entries(call, &STATES))
        || answer.is_some_and(|answer| answer.get("state").is_some())
}

fn has_failures(call: &mut Option<Value>) -> bool {
    let mut has = false;
    if let Some(call) = call {
        each_failure(call, &mut |failure| {
            let mut texts = FAILURE_TEXTS.iter().filter_map(|field| failure.get(*field));
            has |= texts.any(|text| !text.is_null());
        });
    }
    has
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

/// The first bytes of a value that is replaced as a part of a text.
type Start = [u8; MIN_PART_BYTES];

/// The values that were replaced, each with its substitute.
#[derive(Default)]
struct Values {
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
    fn is_empty(&self) -> bool {
        self.substitutes.is_empty()
    }

    /// The substitute of a value.
    fn substitute(&mut self, text: String) -> String {
        let number = self.substitutes.len() + 1;
        self.substitutes.entry(text).or_insert_with(|| format!("redacted-{number}")).clone()
    }

    /// The values, when there are no more.
    fn finished(mut self) -> Self {
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
    fn replaced(&self, text: &str) -> String {
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

/// Replaces the values of redacted attributes of all jobs, and of what waits.
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
fn replace_in_call(call: &mut Value, values: &Values) {
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
fn replace_in_answer(answer: &mut Value, values: &Values) {
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
        redact(&mut shown, Bodies::Kept);
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
        redact(&mut shown, Bodies::Kept);
        let call = shown.call.unwrap();
        assert!(!call.get().contains("4111") && !call.get().contains("message"), "{call}");
        assert!(shown.answer.is_none());
        record::from_json(call.get()).expect("it can be repeated");
    }

    #[test]
    fn texts_of_an_unknown_call_are_left_out_with_the_attributes() {
        let redacted = vec!["attributes.tenant".parse().unwrap()];
        let mut shown = ShownCall { redacted, call: None, ..throttled() };
        redact(&mut shown, Bodies::Kept);
        assert!(!serde_json::to_string(&shown).unwrap().contains("acme"));
    }

    /// A throttler's call with every field, whose texts name their part.
    fn full_throttle() -> Value {
        let failure = json!({
            "attempt": 1, "reason": "failed", "message": "FAILURE_m", "status": 500,
            "details": {"d": "FAILURE_d"}, "started-at": "2026-01-01T00:00:00Z",
            "ended-at": "2026-01-01T00:00:00Z", "not-before": "2026-01-01T00:00:00Z",
        });
        let ended = json!({
            "id": "e", "job-type": "t", "priority": 1, "weight": 1, "target-host": "a.example",
            "attributes": {"a": "ATTRIBUTE_e", "n": 71_717_171}, "attempt": 1,
            "started-at": "2026-01-01T00:00:00Z", "ended-at": "2026-01-01T00:00:00Z",
            "succeeded": false, "reason": "failed", "message": "FAILURE_e ATTRIBUTE_e",
            "status": 500, "details": {"ATTRIBUTE_e": "FAILURE_f"},
            "not-before": "2026-01-01T00:00:00Z",
        });
        let running = json!({
            "id": "r", "job-type": "t", "priority": 1, "weight": 1, "critical": true,
            "attributes": {"a": "ATTRIBUTE_r"}, "granted-at": "2026-01-01T00:00:00Z",
        });
        let candidate = json!({
            "id": "c", "job-type": "t", "priority": 1, "weight": 1, "attempt": 2, "attempts": 3,
            "attributes": {"a": "ATTRIBUTE_c"}, "created-at": "2026-01-01T00:00:00Z",
            "run-at": "2026-01-01T00:00:00Z", "expires-at": "2026-01-01T00:00:00Z",
            "deadline-at": "2026-01-01T00:00:00Z", "target-host": "a.example", "replay-of": "j",
            "correlation-key": "k", "earlier": [failure],
        });
        let group = json!({"count": 1, "weight": 1, "oldest-due-at": "2026-01-01T00:00:00Z",
            "at-least": true});
        json!({"throttle": {
            "context": {"queue": "mail", "now": "2026-01-01T00:00:00Z", "seed": 1,
                "config": {"ATTRIBUTE_r": "ATTRIBUTE_c"}},
            "round": {"concurrency": 1, "room": 1, "ended": [ended]},
            "running": [running], "candidates": [candidate],
            "waiting": {"groups": {"a": {"ATTRIBUTE_w": group.clone()}}, "others": group,
                "counted-at": "2026-01-01T00:00:00Z"},
            "state": {"STATE_k": "STATE_v",
                "STATE_ATTRIBUTE_w": ["ATTRIBUTE_c", "2026-01-01T00:00:00Z"]},
            "data": {"c": {"DATA_k": "DATA_v", "ATTRIBUTE_c": ["ATTRIBUTE_c"]}},
            "data-left-out": {"r": 1}, "texts-left-out": 1,
        }})
    }

    /// As [`full_throttle`], of a retry strategy.
    fn full_retry() -> Value {
        let throttle = full_throttle();
        let candidate = &throttle["throttle"]["candidates"][0];
        let last = &candidate["earlier"][0];
        let mut failed = candidate.clone();
        failed["attempt"] = last["attempt"].clone();
        failed["attributes"] = json!({"a": "ATTRIBUTE_c", "b": "ATTRIBUTE_r", "c": "ATTRIBUTE_w"});
        json!({"retry": {
            "context": throttle["throttle"]["context"], "failed": failed, "last": last,
            "state": throttle["throttle"]["state"], "data": {"DATA_k": ["DATA_v", "ATTRIBUTE_c"]},
            "data-left-out": 1, "texts-left-out": 1,
        }})
    }

    #[test]
    fn no_field_of_a_call_has_a_redacted_part() {
        let state = json!({"STATE_n": "STATE_o", "ATTRIBUTE_c": "ATTRIBUTE_c"});
        let expires = json!({"STATE_n": "2026-01-01T00:00:00Z", "ATTRIBUTE_c": 1});
        let throttled_answer = json!({
            "decisions": [{"action": "hold", "reason": "TEXT_r ATTRIBUTE_c"}], "more": true,
            "state": state, "state_expires": expires,
        });
        let retry_answer = json!({
            "retry": {"at": "2026-01-01T00:00:00Z", "data": {"DATA_n": "ATTRIBUTE_c"}},
            "give_up": "TEXT_g ATTRIBUTE_c", "state": state, "state_expires": expires,
        });
        for (call, answer) in [(full_throttle(), throttled_answer), (full_retry(), retry_answer)] {
            record::from_json(&call.to_string()).expect("its fields are those of a call");
            for (part, canaries) in [
                ("data", &["DATA_"][..]),
                ("state", &["STATE_"]),
                ("failures", &["FAILURE_"]),
                ("texts", &["TEXT_"]),
                ("attributes", &["ATTRIBUTE_", "71717171"]),
            ] {
                for bodies in [Bodies::Kept, Bodies::Dropped] {
                    let mut shown = ShownCall {
                        redacted: vec![part.parse().unwrap()],
                        fault: Some(("rejected".into(), "TEXT_f".into())),
                        log: vec![("info".into(), "TEXT_l ATTRIBUTE_c".into())],
                        call: raw(call.to_string()),
                        answer: raw(answer.to_string()),
                        ..throttled()
                    };
                    let before = serde_json::to_string(&shown).unwrap();
                    redact(&mut shown, bodies);
                    let text = serde_json::to_string(&shown).unwrap();
                    assert_eq!(shown.redacted.len(), 1, "{part} is listed");
                    for canary in canaries {
                        let is_there = call["retry"].is_null() || !canary.starts_with('7');
                        assert_eq!(before.contains(canary), is_there);
                        assert!(!text.contains(canary), "{part}: {text}");
                    }
                    assert_eq!(shown.call.is_some(), bodies == Bodies::Kept);
                    if let Some(call) = shown.call {
                        record::from_json(call.get()).expect("it can be repeated");
                    }
                }
            }
        }
    }

    #[test]
    fn numbers_words_and_expiry_of_a_call_stay_as_they_are() {
        let call = json!({"throttle": {
            "context": {"config": {"limit": 10, "name": "10", "strict": true, "empty": ""}},
            "candidates": [{"id": "a", "attributes": {"cost": 10, "flag": "true", "day": "2026",
                "none": "", "year": "2027-01-01T00:00:00Z"}}],
            "state": {"count": "10", "on": "true", "10": ["2026", "2027-01-01T00:00:00Z"],
                "json": "{\"ok\":true,\"at\":2026}"},
        }});
        let redacted = vec![RedactedPart::Attributes];
        let mut shown = ShownCall { redacted, call: raw(call.to_string()), ..throttled() };
        redact(&mut shown, Bodies::Kept);
        let call: Value = serde_json::from_str(shown.call.unwrap().get()).unwrap();
        let cost = &call["throttle"]["candidates"][0]["attributes"]["cost"];
        let config = &call["throttle"]["context"]["config"];
        assert_eq!(*config, json!({"limit": 10, "name": cost, "strict": true, "empty": ""}));
        let day = &call["throttle"]["candidates"][0]["attributes"]["day"];
        let state = json!({
            "count": "10", "on": "true", cost.as_str().unwrap(): [day, "2027-01-01T00:00:00Z"],
            "json": "{\"ok\":true,\"at\":2026}",
        });
        assert_eq!(call["throttle"]["state"], state);
    }

    #[test]
    fn equal_numbers_have_one_substitute() {
        let call = json!({"throttle": {
            "context": {"config": {"shares": {"5": 1}}},
            "running": [{"attributes": {"size": 5.0}}],
            "candidates": [{"id": "a", "attributes": {"size": 5}}],
            "waiting": {"groups": {"size": {"5": {"count": 1}}}},
        }});
        let redacted = vec!["attributes.size".parse().unwrap()];
        let mut shown = ShownCall { redacted, call: raw(call.to_string()), ..throttled() };
        redact(&mut shown, Bodies::Kept);
        let call: Value = serde_json::from_str(shown.call.unwrap().get()).unwrap();
        let call = &call["throttle"];
        assert_eq!(call["running"][0]["attributes"]["size"], "redacted-1");
        assert_eq!(call["candidates"][0]["attributes"]["size"], "redacted-1");
        assert_eq!(call["context"]["config"]["shares"], json!({"redacted-1": 1}));
        assert_eq!(call["waiting"]["groups"]["size"], json!({"redacted-1": {"count": 1}}));
    }

    #[test]
    fn a_part_that_was_empty_is_not_lacking() {
        let call = json!({"throttle": {"candidates": [{"id": "a", "earlier": [{}]}]}});
        let redacted: Vec<RedactedPart> =
            ["data", "state", "failures", "texts"].map(|part| part.parse().unwrap()).into();
        let answer = raw(json!({"decisions": []}).to_string());
        let call = raw(call.to_string());
        let mut shown = ShownCall { redacted: redacted.clone(), call, answer, ..throttled() };
        redact(&mut shown, Bodies::Kept);
        assert_eq!(shown.redacted, [RedactedPart::Texts]);
        let mut shown = ShownCall { redacted: redacted.clone(), call: None, ..throttled() };
        redact(&mut shown, Bodies::Kept);
        assert_eq!(shown.redacted, redacted, "what an unknown call had is unknown");
    }

    #[test]
    fn the_longest_value_is_replaced_as_a_part_of_a_text() {
        let mut values = Values::default();
        for text in ["acme", "acme-east", "äöü", "x", "1234"] {
            values.substitute(text.to_owned());
        }
        let values = values.finished();
        let replaced = values.replaced("é acme-east, acme-west, äöü, x 1234 acm");
        assert_eq!(replaced, "é redacted-2, redacted-1-west, redacted-3, x 1234 acm");
    }
}
