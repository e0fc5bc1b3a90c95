//! Builds an event from the metadata and the content of a record.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;

use super::record::{EventResult, MalformedRecord};
use tidegate_core::{
    event::{
        read,
        value::{ATTRIBUTES, EXTENSIONS, Extension, NAME_BYTES, TEXT_BYTES},
    },
    job::{Encoding, Payload, trace},
    time::Timestamp,
};
use tidegate_engine::events::ingest::HOPS_HEADER;

/// The attributes and the data of an event, as far as they are known.
pub struct EventBuilder {
    attributes: BTreeMap<String, Extension>,
    data: Option<Payload>,
}

impl EventBuilder {
    /// A builder with the required attributes.
    pub fn new(
        id: impl Into<String>,
        source: impl Into<String>,
        event_type: impl Into<String>,
    ) -> Self {
        let own = [
            ("specversion", "1.0".into()),
            ("id", id.into()),
            ("source", source.into()),
            ("type", event_type.into()),
        ];
        Self {
            attributes: own.map(|(name, value)| (name.to_owned(), Extension::Text(value))).into(),
            data: None,
        }
    }

    /// Sets an attribute. A value that no attribute can have (empty, over 1024 bytes, with control
    /// characters) is left out.
    #[must_use]
    pub fn attribute(mut self, name: &str, value: Option<impl Into<String>>) -> Self {
        if let Some(value) = value.map(Into::into).filter(|value| fits(value)) {
            self.attributes.insert(name.to_owned(), Extension::Text(value));
        }
        self
    }

    /// Sets the time of the event, in milliseconds since the epoch.
    #[must_use]
    pub fn time(self, millis: Option<i64>) -> Self {
        self.attribute("time", millis.map(|millis| Timestamp::from_millis(millis).to_string()))
    }

    /// Adds headers as extensions, up to the bound of extensions. Attributes that are already set
    /// stay.
    #[must_use]
    pub fn extensions<'a>(mut self, headers: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        for (name, value) in headers {
            let name = extension_name(name);
            let is_set = ATTRIBUTES.contains(&name.as_str())
                || name == "data"
                || self.attributes.contains_key(&name);
            let has_room = self.attributes.len() < EXTENSIONS;
            if has_room && !is_set && (1..=NAME_BYTES).contains(&name.len()) && fits(value) {
                self.attributes.insert(name, Extension::Text(value.to_owned()));
            }
        }
        self
    }

    /// Sets the data and its media type.
    #[must_use]
    pub fn data(mut self, media: &str, data: Payload) -> Self {
        self.data = Some(data);
        self.attribute("datacontenttype", Some(media))
    }

    /// The event, or why the record `raw` is malformed.
    pub fn build(self, raw: &Bytes) -> EventResult {
        let headers = self.data.as_ref().map(headers_in).unwrap_or_default();
        let Self { attributes, data } =
            self.extensions(headers.iter().map(|(name, value)| (*name, value.as_str())));
        read::parts(attributes, data).map_err(|fault| MalformedRecord::faulty(raw, &fault))
    }
}

/// The hop count and the trace of a job that was sent to a service. They are among the job's
/// headers in the body of the message, because not every service has message attributes.
fn headers_in(data: &Payload) -> Vec<(&'static str, String)> {
    #[derive(Deserialize)]
    struct Message {
        headers: BTreeMap<String, String>,
    }
    if data.encoding != Encoding::Json || data.bytes.trim_ascii_start().first() != Some(&b'{') {
        return Vec::new();
    }
    let Ok(Message { mut headers }) = serde_json::from_slice(&data.bytes) else {
        return Vec::new();
    };
    // A malformed hop count is left out: it must not make the event malformed.
    headers.retain(|name, value| name != HOPS_HEADER || value.parse::<u16>().is_ok());
    [HOPS_HEADER, trace::PARENT, trace::STATE]
        .into_iter()
        .filter_map(|name| Some((name, headers.remove(name)?)))
        .collect()
}

fn fits(value: &str) -> bool {
    (1..=TEXT_BYTES).contains(&value.len()) && !value.chars().any(char::is_control)
}

/// The name of a header as the name of an extension: lower-case letters and digits, without the
/// prefix of CloudEvents.
fn extension_name(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let own = name.strip_prefix("ce_").or_else(|| name.strip_prefix("ce-")).unwrap_or(&name);
    own.chars().filter(char::is_ascii_alphanumeric).collect()
}
