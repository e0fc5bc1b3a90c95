//! What was read: a record's events, or why it has none.

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

/// The type of the event that stands for a record of which none can be made.
pub const UNREAD: &str = "tidegate.unread";
/// Most bytes of a record that is kept as it came.
const KEPT_BYTES: usize = 128 << 10;

/// A record: the events that it holds, and by what name it can be asked for again.
pub struct Record {
    pub again: RedeliveryScope,
    pub events: Vec<Read>,
}

/// By what name a source is told which records are to come again.
pub enum RedeliveryScope {
    /// By this one of the record's own.
    Named(String),
    /// By none: all of an invocation come again.
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

/// An event, or what came in its place.
pub type Read = Result<Event, Unread>;

/// What cannot be an event, and why.
pub struct Unread {
    pub reason: String,
    /// The record, in JSON, as it came.
    raw: Bytes,
}

impl Unread {
    /// `raw`, which is `wrong`.
    pub fn new(raw: &Bytes, wrong: impl std::fmt::Display) -> Self {
        Self { reason: wrong.to_string(), raw: raw.clone() }
    }

    /// `raw`, which makes an event with a fault.
    pub fn faulty(raw: &Bytes, fault: &ValidationError) -> Self {
        let field = if fault.field.is_empty() { "the event" } else { &fault.field };
        Self::new(raw, format_args!("{field} {}", fault.message))
    }

    /// The event that stands for it, and why it is none: the same at a second delivery. `others` of its record came before it, as
    /// in a batch of events: each is kept.
    pub fn kept(&self, others: usize) -> (Event, String) {
        let raw = Payload::json(self.raw.clone());
        let data = match raw.check(MAX_DEPTH) {
            Ok(()) if raw.bytes.len() <= KEPT_BYTES => raw,
            _ => left_out(raw.bytes.len()),
        };
        let known: Known = serde_json::from_slice(&self.raw).unwrap_or_default();
        let nth = if others == 0 { String::new() } else { format!("-{}", others + 1) };
        let by_content = || hex(&digest(&[&String::from_utf8_lossy(&self.raw)])[..20]) + &nth;
        let named = stand_in(
            known.id.map_or_else(by_content, |id| if id.is_empty() { id } else { id + &nth }),
            known.source.unwrap_or_else(|| "aws:lambda".into()),
            data.clone(),
        );
        let event = named.or_else(|_| stand_in(by_content(), "aws:lambda".into(), data));
        (event.expect("a digest and a word make an event"), self.reason.clone())
    }
}

/// What most services call a record and where it is from.
#[derive(Default, Deserialize)]
struct Known {
    #[serde(rename = "eventID", alias = "messageId", alias = "id")]
    id: Option<String>,
    #[serde(rename = "eventSourceARN", alias = "source")]
    source: Option<String>,
}

fn stand_in(id: String, source: String, data: Payload) -> Result<Event, ValidationError> {
    let attributes =
        [("specversion", "1.0".into()), ("id", id), ("source", source), ("type", UNREAD.into())];
    read::parts(
        attributes.map(|(name, value)| (name.to_owned(), Extension::Text(value))),
        Some(data),
    )
}

/// `event` without its data, since it is over `limit`, and why.
pub fn too_large(event: &Event, limit: usize) -> (Event, String) {
    let bytes = event.size();
    let data = event.data.as_ref().map(|data| left_out(data.bytes.len()));
    let kept = Event { data, data_content_type: Some("application/json".into()), ..event.clone() };
    (kept, format!("the event has {bytes} bytes, and at most {limit} are allowed"))
}

fn left_out(bytes: usize) -> Payload {
    let said: Value = json!({ "left_out_bytes": bytes });
    Payload::json(said.to_string())
}
