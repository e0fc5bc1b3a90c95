//! Whose an invocation is, and what it holds.
//!
//! The one thing to know: only the shape tells the services apart. What has none that is known here is kept as a dead letter, so that
//! nobody sends it again and again.

use std::{borrow::Cow, collections::HashMap};

use axum::{body::Body, http::Request};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    kafka,
    message::LEVELS,
    proxy,
    record::{Read, Record, RedeliveryScope, Unread},
    services,
};
use tidegate_core::event::read as cloud_events;

/// What a function was called with.
pub enum Invocation {
    /// Records, in the order in which they came.
    Records(Vec<Record>),
    /// A request that API Gateway hands on.
    Request(Box<Request<Body>>),
}

/// The fields of a JSON object, each as it was written.
pub type Fields<'a> = HashMap<String, &'a RawValue>;

/// What `payload` is.
pub fn read(payload: &Bytes) -> Invocation {
    let whole =
        |events| Invocation::Records(vec![Record { again: RedeliveryScope::Whole, events }]);
    let Ok(fields) = serde_json::from_slice::<Fields<'_>>(payload) else {
        return whole(vec![Err(Unread::new(payload, "what came is no JSON object"))]);
    };
    if let Some(request) = fields.get("requestContext").and_then(|_| proxy::request(payload)) {
        return Invocation::Request(Box::new(request));
    }
    if let Some(records) = list(&fields) {
        return Invocation::Records(
            records
                .into_iter()
                .map(|raw| record(&payload.slice_ref(raw.get().as_bytes())))
                .collect(),
        );
    }
    if let Some(records) = kafka::records(&fields, payload) {
        return Invocation::Records(records);
    }
    whole(event_of(&fields, payload, LEVELS).unwrap_or_else(|| {
        vec![Err(Unread::new(payload, "what came is of no service that is known here"))]
    }))
}

/// The record of a service that hands them over in `Records`.
fn record(raw: &Bytes) -> Record {
    let read = match service(raw).as_deref() {
        Some("aws:sqs") => services::sqs(raw),
        Some("aws:sns") => services::sns(raw),
        Some("aws:s3") => services::s3(raw),
        Some("aws:kinesis") => services::kinesis(raw),
        Some("aws:dynamodb") => services::dynamodb(raw),
        Some(other) => Err(format!("the record is of {other}, which is not known here")),
        None => Err("the record does not say of which service it is".to_owned()),
    };
    read.unwrap_or_else(|why| Record {
        again: RedeliveryScope::Whole,
        events: vec![Err(Unread::new(raw, why))],
    })
}

/// The events that an object is if it is a `CloudEvent` or a service's own, wherever it was found; none if it is only data.
pub fn event_of(fields: &Fields<'_>, bytes: &Bytes, levels: usize) -> Option<Vec<Read>> {
    let has = |names: &[&str]| names.iter().all(|name| fields.contains_key(*name));
    if has(&["specversion"]) {
        return Some(vec![
            cloud_events::structured(bytes).map_err(|fault| Unread::faulty(bytes, &fault)),
        ]);
    }
    if has(&["detail-type", "detail", "source", "account", "id"]) {
        return Some(vec![services::event_bridge(bytes)]);
    }
    if has(&["MessageId", "TopicArn", "Message"])
        && text(fields, "Type").as_deref() == Some("Notification")
    {
        return Some(services::notification(bytes, levels));
    }
    let records: Vec<Bytes> =
        list(fields)?.into_iter().map(|raw| bytes.slice_ref(raw.get().as_bytes())).collect();
    let of_s3 =
        !records.is_empty() && records.iter().all(|raw| service(raw).as_deref() == Some("aws:s3"));
    of_s3.then(|| records.iter().flat_map(|raw| record(raw).events).collect())
}

/// The items of `Records`.
fn list<'a>(fields: &Fields<'a>) -> Option<Vec<&'a RawValue>> {
    serde_json::from_str(fields.get("Records")?.get()).ok()
}

/// Which service a record says it is of.
fn service(raw: &Bytes) -> Option<String> {
    #[derive(Deserialize)]
    struct Of {
        #[serde(rename = "eventSource", alias = "EventSource")]
        service: String,
    }
    serde_json::from_slice::<Of>(raw).ok().map(|of| of.service)
}

/// The text under `name`.
pub fn text<'a>(fields: &Fields<'a>, name: &str) -> Option<Cow<'a, str>> {
    serde_json::from_str(fields.get(name)?.get()).ok()
}
