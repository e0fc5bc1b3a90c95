//! The source of an invocation, and its records.
//!
//! The one thing to know: only the format tells the services apart. A payload of unknown format is
//! kept as a dead letter, so that no source redelivers it for ever.

use std::{borrow::Cow, collections::HashMap};

use axum::{body::Body, http::Request};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    kafka,
    message::MAX_NESTING,
    proxy,
    record::{EventResult, MalformedRecord, Record, RedeliveryScope},
    services,
};
use tidegate_core::event::read as cloud_events;

/// The content of an invocation.
pub enum Invocation {
    /// Records, in their order.
    Records(Vec<Record>),
    /// A request to API Gateway.
    Request(Box<Request<Body>>),
}

/// The fields of a JSON object, unparsed.
pub type Fields<'a> = HashMap<String, &'a RawValue>;

/// The invocation with this payload.
pub fn read(payload: &Bytes) -> Invocation {
    let whole =
        |events| Invocation::Records(vec![Record { redelivery: RedeliveryScope::Whole, events }]);
    let Ok(fields) = serde_json::from_slice::<Fields<'_>>(payload) else {
        return whole(vec![Err(MalformedRecord::new(payload, "the payload is not a JSON object"))]);
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
    whole(event_of(&fields, payload, MAX_NESTING).unwrap_or_else(|| {
        vec![Err(MalformedRecord::new(payload, "the payload matches no supported service"))]
    }))
}

/// The record of a service that sends `Records`.
fn record(raw: &Bytes) -> Record {
    let read = match service(raw).as_deref() {
        Some("aws:sqs") => services::sqs(raw),
        Some("aws:sns") => services::sns(raw),
        Some("aws:s3") => services::s3(raw),
        Some("aws:kinesis") => services::kinesis(raw),
        Some("aws:dynamodb") => services::dynamodb(raw),
        Some(other) => Err(format!("the record is of {other}, which is not supported")),
        None => Err("the record names no service".to_owned()),
    };
    read.unwrap_or_else(|reason| Record {
        redelivery: RedeliveryScope::Whole,
        events: vec![Err(MalformedRecord::new(raw, reason))],
    })
}

/// The events in an object that is a `CloudEvent` or an event of a service; `None` if it is only
/// data.
pub(crate) fn event_of(
    fields: &Fields<'_>,
    bytes: &Bytes,
    nesting: usize,
) -> Option<Vec<EventResult>> {
    let has = |names: &[&str]| names.iter().all(|name| fields.contains_key(*name));
    if has(&["specversion"]) {
        return Some(vec![
            cloud_events::structured(bytes).map_err(|fault| MalformedRecord::faulty(bytes, &fault)),
        ]);
    }
    if has(&["detail-type", "detail", "source", "account", "id"]) {
        return Some(vec![services::event_bridge(bytes)]);
    }
    if has(&["MessageId", "TopicArn", "Message"])
        && text(fields, "Type").as_deref() == Some("Notification")
    {
        return Some(services::notification(bytes, nesting));
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

/// The service that a record names.
fn service(raw: &Bytes) -> Option<String> {
    #[derive(Deserialize)]
    struct Of {
        #[serde(rename = "eventSource", alias = "EventSource")]
        service: String,
    }
    serde_json::from_slice::<Of>(raw).ok().map(|of| of.service)
}

/// The text in the field `name`.
pub fn text<'a>(fields: &Fields<'a>, name: &str) -> Option<Cow<'a, str>> {
    serde_json::from_str(fields.get(name)?.get()).ok()
}
