//! What messages of SQS, SNS, Kinesis and Kafka have in common: bytes, and perhaps texts beside them.
//!
//! The one thing to know: a message that is an event of its own (a `CloudEvent`, or one of `EventBridge`, SNS or S3 that only took this way) is that
//! event, with its own id. So it does not matter to a trigger by which way it came, and one that came twice, or two ways, is one.

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::{
    record::{Read, Unread},
    source,
};
use crate::lambda::ingest::event_builder::Sketch;
use tidegate_core::event::{read, value::Extension};

/// How deep messages are looked for in messages: S3 in SNS in SQS is the longest way that AWS itself makes.
pub const LEVELS: usize = 3;

/// A message, and the event that it makes unless it is one.
pub struct Message {
    /// What its service says of it.
    pub sketch: Sketch,
    /// Headers or attributes: names, and values that are texts.
    pub beside: Vec<(String, String)>,
    /// What it carries.
    pub bytes: Option<Bytes>,
}

impl Message {
    /// Its events: mostly one. `raw` is the record, for what cannot be one, and `levels` how many messages may still be in each other.
    pub fn read(self, raw: &Bytes, levels: usize) -> Vec<Read> {
        if self.beside.iter().any(|(name, _)| attribute(name).as_deref() == Some("specversion")) {
            return vec![self.binary(raw)];
        }
        if let Some(events) = self.structured(raw) {
            return events;
        }
        if let Some(events) = self.bytes.as_ref().and_then(|bytes| within(bytes, levels)) {
            return events;
        }
        let media = self.media().map(str::to_owned);
        let sketch = match (self.bytes, media) {
            (None, _) => self.sketch,
            (Some(bytes), Some(media)) => {
                let data = read::payload_of(Some(&media), bytes);
                self.sketch.carry(&media, data)
            }
            (Some(bytes), None) => {
                let (media, data) = read::guessed(bytes);
                self.sketch.carry(media, data)
            }
        };
        let beside = self.beside.iter().filter(|(name, _)| !is_media(name));
        vec![sketch.beside(beside.map(|(name, value)| (name.as_str(), value.as_str()))).finish(raw)]
    }

    /// The event whose attributes stand beside its data: the binary mode of CloudEvents.
    fn binary(self, raw: &Bytes) -> Read {
        let own = self.beside.iter().filter_map(|(name, value)| Some((attribute(name)?, value)));
        let mut attributes: Vec<(String, Extension)> =
            own.map(|(name, value)| (name, Extension::Text(value.clone()))).collect();
        let media = self.media().map(str::to_owned);
        attributes.extend(
            media.clone().map(|media| ("datacontenttype".to_owned(), Extension::Text(media))),
        );
        let data = self.bytes.map(|bytes| read::payload_of(media.as_deref(), bytes));
        read::parts(attributes, data).map_err(|fault| Unread::faulty(raw, &fault))
    }

    /// The events that it says it holds whole: the structured mode of CloudEvents, and the batched one.
    fn structured(&self, raw: &Bytes) -> Option<Vec<Read>> {
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
                .map(|event| event.map_err(|fault| Unread::faulty(raw, &fault)))
                .collect(),
        )
    }

    /// The media type that it says it has, if it can be one.
    fn media(&self) -> Option<&str> {
        self.beside
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

/// The attribute of CloudEvents that a header of this name has: `ce_id` in Kafka, and in SQS and SNS `ce-id` too.
fn attribute(name: &str) -> Option<String> {
    let name = name.to_ascii_lowercase();
    name.strip_prefix("ce_").or_else(|| name.strip_prefix("ce-")).map(str::to_owned)
}

/// The events that `bytes` are, if they are any and not only data.
fn within(bytes: &Bytes, levels: usize) -> Option<Vec<Read>> {
    if levels == 0 || bytes.trim_ascii_start().first() != Some(&b'{') {
        return None;
    }
    let fields: HashMap<String, &RawValue> = serde_json::from_slice(bytes).ok()?;
    source::event_of(&fields, bytes, levels - 1)
}
