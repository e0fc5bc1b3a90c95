//! Messages of SQS, SNS, Kinesis and Kafka: content, and possibly headers.
//!
//! The one thing to know: a message that contains an event (a `CloudEvent`, or an event of
//! `EventBridge`, SNS or S3) becomes that event, with its own id. So the route of an event does not
//! matter to a trigger, and an event that arrives twice or on two routes is one event.

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::{
    record::{EventResult, MalformedRecord},
    source,
};
use crate::lambda::ingest::event_builder::EventBuilder;
use tidegate_core::event::{read, value::Extension};

/// How deep messages in messages are read. The deepest nesting that AWS itself creates is S3 in SNS
/// in SQS.
pub(crate) const MAX_NESTING: usize = 3;

/// A message, and the event that it becomes unless it contains one.
pub(crate) struct RawMessage {
    /// The attributes from the metadata of the service.
    pub builder: EventBuilder,
    /// Headers or message attributes with text values, by name.
    pub headers: Vec<(String, String)>,
    /// The content.
    pub bytes: Option<Bytes>,
}

impl RawMessage {
    /// The events of the message, usually one. `raw` is the record, for an error. `nesting` is how
    /// many more messages may be nested.
    pub fn read(self, raw: &Bytes, nesting: usize) -> Vec<EventResult> {
        if self.headers.iter().any(|(name, _)| attribute(name).as_deref() == Some("specversion")) {
            return vec![self.binary(raw)];
        }
        if let Some(events) = self.structured(raw) {
            return events;
        }
        if let Some(events) = self.bytes.as_ref().and_then(|bytes| within(bytes, nesting)) {
            return events;
        }
        let media = self.media().map(str::to_owned);
        let builder = match (self.bytes, media) {
            (None, _) => self.builder,
            (Some(bytes), Some(media)) => {
                let data = read::payload_of(Some(&media), bytes);
                self.builder.data(&media, data)
            }
            (Some(bytes), None) => {
                let (media, data) = read::guessed(bytes);
                self.builder.data(media, data)
            }
        };
        let headers = self.headers.iter().filter(|(name, _)| !is_media(name));
        vec![
            builder
                .extensions(headers.map(|(name, value)| (name.as_str(), value.as_str())))
                .build(raw),
        ]
    }

    /// The event whose attributes are the headers: the binary mode of CloudEvents.
    fn binary(self, raw: &Bytes) -> EventResult {
        let own = self.headers.iter().filter_map(|(name, value)| Some((attribute(name)?, value)));
        let mut attributes: Vec<(String, Extension)> =
            own.map(|(name, value)| (name, Extension::Text(value.clone()))).collect();
        let media = self.media().map(str::to_owned);
        attributes.extend(
            media.clone().map(|media| ("datacontenttype".to_owned(), Extension::Text(media))),
        );
        let data = self.bytes.map(|bytes| read::payload_of(media.as_deref(), bytes));
        read::parts(attributes, data).map_err(|fault| MalformedRecord::faulty(raw, &fault))
    }

    /// The events that the content type declares: the structured and the batched mode of
    /// CloudEvents.
    fn structured(&self, raw: &Bytes) -> Option<Vec<EventResult>> {
        let media = self.media()?.split(';').next()?.trim().to_ascii_lowercase();
        let bytes = self.bytes.clone().unwrap_or_default();
        let read = match media.as_str() {
            "application/cloudevents+json" => Ok(vec![read::structured(&bytes)]),
            "application/cloudevents+msgpack" => Ok(vec![read::structured_msgpack(&bytes)]),
            "application/cloudevents-batch+json" => read::batch(&bytes),
            "application/cloudevents-batch+msgpack" => read::batch_msgpack(&bytes),
            _ => return None,
        };
        let events = read.unwrap_or_else(|fault| vec![Err(fault)]);
        Some(
            events
                .into_iter()
                .map(|event| event.map_err(|fault| MalformedRecord::faulty(raw, &fault)))
                .collect(),
        )
    }

    /// The declared media type, if it is well-formed.
    fn media(&self) -> Option<&str> {
        self.headers
            .iter()
            .find(|(name, _)| is_media(name))
            .map(|(_, value)| value.as_str())
            .filter(|media| media.contains('/'))
    }
}

fn is_media(name: &str) -> bool {
    ["content-type", "contenttype", "content_type"]
        .iter()
        .any(|media| name.eq_ignore_ascii_case(media))
}

/// The attribute of CloudEvents that a header of this name contains: `ce_id` in Kafka; in SQS and
/// SNS also `ce-id`.
fn attribute(name: &str) -> Option<String> {
    let name = name.to_ascii_lowercase();
    name.strip_prefix("ce_").or_else(|| name.strip_prefix("ce-")).map(str::to_owned)
}

/// The events that `bytes` contain; `None` if they are only data.
fn within(bytes: &Bytes, nesting: usize) -> Option<Vec<EventResult>> {
    if nesting == 0 || bytes.trim_ascii_start().first() != Some(&b'{') {
        return None;
    }
    let fields: HashMap<String, &RawValue> = serde_json::from_slice(bytes).ok()?;
    source::event_of(&fields, bytes, nesting - 1)
}
