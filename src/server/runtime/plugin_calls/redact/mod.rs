//! What a queue redacts in the records of calls: which parts are removed from a call, its answer and
//! its texts.
//!
//! | part | what is removed |
//! |---|---|
//! | `data` | the data of the jobs, and an answer that replaces them |
//! | `state` | the state of the plugin, before and after the call |
//! | `failures` | the messages and details of failed and ended attempts |
//! | `texts` | the log, the message of the fault, the reasons and messages of the answer |
//! | `attributes`, `attributes.NAME` | nothing: [`values`] replaces the values everywhere |

mod values;

use serde_json::{Map, Value, value::RawValue};

use self::values::{replace_attributes, replace_in_answer, replace_in_call};
use super::{ShownCall, raw};
use tidegate_core::queue::plugin_calls::RedactedPart;

/// The states of the two roles in a call.
const STATES: [&str; 2] = ["/throttle/state", "/retry/state"];
/// The texts of a failed or ended attempt.
const FAILURE_TEXTS: [&str; 2] = ["message", "details"];
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
    let read = |json: &RawValue| serde_json::from_str(json.get()).ok();
    let mut call: Option<Value> = shown.call.as_deref().and_then(read);
    let mut answer: Option<Value> = shown.answer.as_deref().and_then(read);
    let parts = shown.redacted.clone();
    if let Some(call) = &mut call {
        shown.redacted.retain(|part| match part {
            RedactedPart::Data => has_data(call, answer.as_ref()),
            RedactedPart::State => has_state(call, answer.as_ref()),
            RedactedPart::Failures => has_failures(call),
            _ => true,
        });
        remove_from_call(call, &parts);
    }
    answer = answer.and_then(|answer| without_parts(answer, &parts));
    if parts.contains(&RedactedPart::Texts) {
        remove_texts(shown);
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
        remove_texts(shown);
    }
    if bodies == Bodies::Kept {
        shown.call = call.and_then(|call| raw(call.to_string()));
        shown.answer = answer.and_then(|answer| raw(answer.to_string()));
    }
}

/// Removes data, state and failures from a call.
fn remove_from_call(call: &mut Value, parts: &[RedactedPart]) {
    if parts.contains(&RedactedPart::Data) {
        call.pointer_mut("/throttle/data").into_iter().for_each(clear);
        call.pointer_mut("/retry/data").into_iter().for_each(|data| *data = Value::Null);
    }
    if parts.contains(&RedactedPart::State) {
        for place in STATES {
            call.pointer_mut(place).into_iter().for_each(clear);
        }
    }
    if parts.contains(&RedactedPart::Failures) {
        each_failure(call, &mut |failure| {
            for field in FAILURE_TEXTS {
                failure.remove(field);
            }
        });
    }
}

/// An answer without data, state and texts. There is none without its data, because no answer would
/// meet the expectation.
fn without_parts(mut answer: Value, parts: &[RedactedPart]) -> Option<Value> {
    if parts.contains(&RedactedPart::Data) && !answer["retry"]["data"].is_null() {
        return None;
    }
    if let Value::Object(answer) = &mut answer {
        if parts.contains(&RedactedPart::State) {
            answer.remove("state");
            answer.remove("state_expires");
        }
        if parts.contains(&RedactedPart::Texts) {
            remove_reasons(answer);
        }
    }
    Some(answer)
}

/// Removes the log and the message of a fault.
fn remove_texts(shown: &mut ShownCall) {
    shown.log.clear();
    if let Some((_, message)) = &mut shown.fault {
        REDACTED.clone_into(message);
    }
}

/// Whether the object at one of `places` has an entry.
fn has_entries(json: &Value, places: &[&str]) -> bool {
    let mut objects = places.iter().filter_map(|place| json.pointer(place)?.as_object());
    objects.any(|object| !object.is_empty())
}

fn has_data(call: &Value, answer: Option<&Value>) -> bool {
    let is_given = |json: &Value| !json["retry"]["data"].is_null();
    let of_jobs = ["/throttle/data", "/throttle/data-left-out"];
    has_entries(call, &of_jobs) || is_given(call) || answer.is_some_and(is_given)
}

fn has_state(call: &Value, answer: Option<&Value>) -> bool {
    has_entries(call, &STATES) || answer.is_some_and(|answer| answer.get("state").is_some())
}

fn has_failures(call: &mut Value) -> bool {
    let mut has = false;
    each_failure(call, &mut |failure| {
        let mut texts = FAILURE_TEXTS.iter().filter_map(|field| failure.get(*field));
        has |= texts.any(|text| !text.is_null());
    });
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
fn remove_reasons(answer: &mut Map<String, Value>) {
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

#[cfg(test)]
mod tests;
