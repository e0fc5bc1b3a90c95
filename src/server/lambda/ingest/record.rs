//! A record: its events, or why it has none.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use tidegate_core::{
    event::{
        Event, read,
        trigger::{digest, hex},
        value::Extension,
    },
    job::{Payload, payload::MAX_DEPTH},
    validate::ValidationError,
};

/// The type of the event that represents a malformed record.
pub(crate) const MALFORMED_TYPE: &str = "tidegate.malformed";
/// Most bytes of a malformed record that are kept. A larger one is left out.
const MAX_KEPT_BYTES: usize = 128 << 10;

/// A record: its events, and the scope of its redelivery.
pub struct Record {
    pub redelivery: RedeliveryScope,
    pub events: Vec<EventResult>,
}

/// What a source must redeliver if the record fails.
pub enum RedeliveryScope {
    /// The record with this name.
    Named(String),
    /// All records of the invocation.
    Whole,
}

impl RedeliveryScope {
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Named(name) => Some(name),
            Self::Whole => None,
        }
    }
}

/// An event, or the record that cannot be one.
pub type EventResult = Result<Event, MalformedRecord>;

/// A record that cannot be an event, and why.
pub struct MalformedRecord {
    pub reason: String,
    /// The record as it arrived, in JSON.
    raw: Bytes,
}

impl MalformedRecord {
    /// The record `raw`, with the reason.
    pub fn new(raw: &Bytes, reason: impl std::fmt::Display) -> Self {
        Self { reason: reason.to_string(), raw: raw.clone() }
    }

    /// The record `raw`, whose event is not valid.
    pub fn faulty(raw: &Bytes, fault: &ValidationError) -> Self {
        let field = if fault.field.is_empty() { "the event" } else { &fault.field };
        Self::new(raw, format_args!("{field} {}", fault.message))
    }

    /// The event that represents the record, and why it is malformed. A redelivery gives the same
    /// event. `others` malformed events came before it in the same record: each gets an id of its
    /// own.
    pub fn kept(&self, others: usize) -> (Event, String) {
        let raw = Payload::json(self.raw.clone());
        let data = match raw.check(MAX_DEPTH) {
            Ok(()) if raw.bytes.len() <= MAX_KEPT_BYTES => raw,
            _ => left_out(raw.bytes.len()),
        };
        let identity: RecordIdentity = serde_json::from_slice(&self.raw).unwrap_or_default();
        let nth = if others == 0 { String::new() } else { format!("-{}", others + 1) };
        let by_content = || hex(&digest(&[&String::from_utf8_lossy(&self.raw)])[..20]) + &nth;
        let named = stand_in(
            identity.id.map_or_else(by_content, |id| if id.is_empty() { id } else { id + &nth }),
            identity.source.unwrap_or_else(|| "aws:lambda".into()),
            data.clone(),
        );
        let event = named.or_else(|_| stand_in(by_content(), "aws:lambda".into(), data));
        (event.expect("a digest and a constant source make a valid event"), self.reason.clone())
    }
}

/// The id and the source of a record, as most services name them.
#[derive(Default, Deserialize)]
struct RecordIdentity {
    #[serde(rename = "eventID", alias = "messageId", alias = "id")]
    id: Option<String>,
    #[serde(rename = "eventSourceARN", alias = "source")]
    source: Option<String>,
}

fn stand_in(id: String, source: String, data: Payload) -> Result<Event, ValidationError> {
    let attributes = [
        ("specversion", "1.0".into()),
        ("id", id),
        ("source", source),
        ("type", MALFORMED_TYPE.into()),
    ];
    read::parts(
        attributes.map(|(name, value)| (name.to_owned(), Extension::Text(value))),
        Some(data),
    )
}

/// `event` without its data, because it has more than `limit` bytes, and the reason.
pub fn too_large(event: &Event, limit: usize) -> (Event, String) {
    let bytes = event.size();
    let data = event.data.as_ref().map(|data| left_out(data.bytes.len()));
    let kept = Event { data, data_content_type: Some("application/json".into()), ..event.clone() };
    (kept, format!("the event has {bytes} bytes, and at most {limit} are allowed"))
}

fn left_out(bytes: usize) -> Payload {
    let data: Value = json!({ "left_out_bytes": bytes });
    Payload::json(data.to_string())
}
