//! A trial: what a trigger would do about an event, without doing it. It depends on the rule and
//! the event alone.

use serde::Serialize;
use serde_json::{Value, json};
use tidegate_core::{
    event::{
        Decision, Event, Trigger, Triggers,
        trigger::{Reply, RequestedJob, TriggerOutcome},
    },
    job::Payload,
};

/// What a trigger would do about an event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// `enqueued`, `completed`, `unmatched` (the filter does not match), or `dead_lettered` (the
    /// rule cannot map the event).
    pub action: &'static str,
    /// The job as the body of `POST /v1/jobs`, or the reply as the report of a worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<Value>,
    /// Why there is no job and no reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What `trigger` would do about `event`.
pub fn trial(trigger: &Trigger, event: &Event) -> Trial {
    let rules = Triggers::new(vec![trigger.clone()]);
    let (action, job, reason) = match rules.decide_one(trigger, event) {
        None => ("unmatched", None, None),
        Some(Decision::Failed(reason)) => ("dead_lettered", None, Some(reason)),
        Some(Decision::Enqueue(wanted)) => ("enqueued", Some(job(&wanted)), None),
        Some(Decision::Complete(reply)) => ("completed", Some(report(&reply)), None),
    };
    Trial { action, job, reason }
}

/// A job as the body of `POST /v1/jobs`.
fn job(wanted: &RequestedJob) -> Value {
    let mut shown = serde_json::to_value(&wanted.fields).unwrap_or_default();
    if let Some(fields) = shown.as_object_mut() {
        fields.retain(|_, value| !value.is_null() && *value != Value::Bool(false));
        fields.insert("id".into(), wanted.id.as_str().into());
        fields.insert("type".into(), wanted.job_type.as_str().into());
        fields.insert("data".into(), value_of(&wanted.data));
    }
    shown
}

/// A reply as the report of a worker.
fn report(reply: &Reply) -> Value {
    let mut shown = json!({"type": reply.job_type, "correlation_key": reply.correlation_key});
    let more = match &reply.said {
        TriggerOutcome::Succeeded(result) => {
            json!({"status": "succeeded", "result": result.as_ref().map(value_of)})
        }
        TriggerOutcome::Failed { message, details, retryable } => {
            let error: Option<Value> =
                details.as_ref().and_then(|text| serde_json::from_str(text).ok());
            json!({"status": "failed", "message": message, "error": error, "retryable": retryable})
        }
    };
    if let (Some(fields), Some(more)) = (shown.as_object_mut(), more.as_object()) {
        fields.extend(reply.attempt.map(|attempt| ("attempt".to_owned(), attempt.into())));
        fields.extend(
            more.iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| (name.clone(), value.clone())),
        );
    }
    shown
}

/// Data as a JSON value, null if it is malformed.
fn value_of(payload: &Payload) -> Value {
    payload.to_json().ok().and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default()
}
