//! Tables and properties of events, filters, expressions and triggers.

mod complete;
mod enqueue;
mod expression;
mod filter;
mod read;
mod rule;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Event, Trigger, TriggerConfig, read as reader};
use crate::{job::TriggerName, validate::ValidationError};

fn bytes(value: &Value) -> Bytes {
    value.to_string().into()
}

/// An event with every attribute, as JSON.
fn whole() -> Value {
    json!({
        "specversion": "1.0",
        "id": "1",
        "source": "/shop",
        "type": "order.paid",
        "subject": "o-7",
        "time": "2026-01-31T08:00:00.5+01:00",
        "datacontenttype": "application/json",
        "dataschema": "https://x/y",
        "region": "east",
        "count": 3,
        "flag": true,
        "data": {
            "id": "o-7",
            "total": 12.5,
            "lines": [{"sku": "a", "n": 2}, {"sku": "b", "n": 1}],
            "ok": true,
        },
    })
}

fn event() -> Event {
    reader::structured(&bytes(&whole())).unwrap()
}

/// The event of [`whole`] with other data.
fn carrying(data: Value) -> Event {
    let mut event = whole();
    event["data"] = data;
    reader::structured(&bytes(&event)).unwrap()
}

/// An event in binary mode with these headers in addition to the required ones.
fn binary(
    headers: &[(&str, &str)],
    content_type: Option<&str>,
    body: &'static [u8],
) -> Result<Event, ValidationError> {
    let required =
        [("ce-specversion", "1.0"), ("CE-Id", "1"), ("ce-source", "/s"), ("ce-type", "t")];
    let headers = required.iter().chain(headers).map(|(name, value)| (*name, value.as_bytes()));
    reader::binary(headers, content_type, Bytes::from_static(body))
}

fn trigger(config: Value) -> Result<Trigger, ValidationError> {
    let config: TriggerConfig = serde_json::from_value(config).unwrap();
    Trigger::new(&"t".parse::<TriggerName>().unwrap(), &config)
}
