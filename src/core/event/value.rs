//! An event: the attributes of CloudEvents 1.0, checked, and the data as it arrived.

use crate::error_code::ErrorCode;
use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::{Serialize, Serializer, ser::Error as _, ser::SerializeMap};
use serde_json::value::RawValue;

use crate::{
    job::{Encoding, Payload, payload::MAX_DEPTH},
    time::Timestamp,
    validate::ValidationError,
};

/// Most bytes of an attribute's text.
pub const TEXT_BYTES: usize = 1024;
/// Most bytes of an extension's name.
pub const NAME_BYTES: usize = 64;
/// Most extensions of one event.
pub const EXTENSIONS: usize = 32;
/// The extension with the number of triggers that led to the event.
pub const HOPS: &str = "tidegatehops";
/// The attributes that CloudEvents defines.
pub const ATTRIBUTES: [&str; 8] =
    ["specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema"];

/// An event from elsewhere. Two events with the same `source` and `id` are the same event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its id, unique within its source.
    pub id: String,
    /// Where it happened: a URI reference.
    pub source: String,
    /// What kind of thing happened.
    pub event_type: String,
    /// What it is about, within its source.
    pub subject: Option<String>,
    /// When it happened, RFC 3339, as its sender wrote it.
    pub time: Option<String>,
    /// The media type of its data.
    pub data_content_type: Option<String>,
    /// The schema that its data follows.
    pub data_schema: Option<String>,
    /// Further attributes from its sender.
    pub extensions: BTreeMap<String, Extension>,
    /// Its data: JSON and MessagePack byte for byte, text as a JSON text, anything else as binary.
    pub data: Option<Payload>,
}

/// The value of an extension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Extension {
    /// True or false.
    Flag(bool),
    /// A whole number.
    Whole(i32),
    /// A text; instants, URIs and binary are texts too.
    Text(String),
}

impl Event {
    /// The number of triggers that led to it.
    pub fn hops(&self) -> u32 {
        match self.extensions.get(HOPS) {
            Some(Extension::Whole(hops)) => hops.unsigned_abs(),
            _ => 0,
        }
    }

    /// The bytes of its data and its texts.
    pub fn size(&self) -> usize {
        let texts = [
            Some(&self.id),
            Some(&self.source),
            Some(&self.event_type),
            self.subject.as_ref(),
            self.data_schema.as_ref(),
        ];
        let text = |value: &Extension| {
            if let Extension::Text(text) = value { text.len() } else { 4 }
        };
        let extensions: usize =
            self.extensions.iter().map(|(name, value)| name.len() + text(value)).sum();
        self.data.as_ref().map_or(0, |data| data.bytes.len())
            + texts.into_iter().flatten().map(String::len).sum::<usize>()
            + extensions
    }

    /// The value of the attribute or extension `name`, as filters see it.
    pub fn attribute(&self, name: &str) -> Option<Extension> {
        let text = |text: &str| Some(Extension::Text(text.to_owned()));
        match name {
            "specversion" => text("1.0"),
            "id" => text(&self.id),
            "source" => text(&self.source),
            "type" => text(&self.event_type),
            "subject" => self.subject.as_deref().and_then(text),
            "time" => self.time.as_deref().and_then(text),
            "datacontenttype" => self.data_content_type.as_deref().and_then(text),
            "dataschema" => self.data_schema.as_deref().and_then(text),
            other => self.extensions.get(other).cloned(),
        }
    }

    /// All its attributes and extensions.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, Extension)> {
        let own = ATTRIBUTES.into_iter().filter_map(|name| Some((name, self.attribute(name)?)));
        own.chain(self.extensions.iter().map(|(name, value)| (name.as_str(), value.clone())))
    }
}

/// In the JSON format of CloudEvents. [`super::read::structured`] reads an event from it that is
/// equal as JSON: data in MessagePack comes back as JSON, unless its media type is MessagePack.
impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.attributes() {
            map.serialize_entry(name, &value)?;
        }
        if let Some(data) = &self.data {
            if let Some(bytes) = bytes_of(data, self.data_content_type.as_deref()) {
                map.serialize_entry("data_base64", &BASE64_STANDARD.encode(bytes))?;
            } else {
                let json = data.to_json().map_err(S::Error::custom)?;
                map.serialize_entry(
                    "data",
                    serde_json::from_slice::<&RawValue>(&json).map_err(S::Error::custom)?,
                )?;
            }
        }
        map.end()
    }
}

/// An event that is being built.
#[derive(Default)]
pub(super) struct Draft {
    given: BTreeMap<String, Extension>,
    data: Option<Payload>,
}

impl Draft {
    /// Adds an attribute.
    pub fn set(&mut self, name: String, value: Extension) -> Result<(), ValidationError> {
        if !(1..=NAME_BYTES).contains(&name.len())
            || !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        {
            return Err(ValidationError::new(
                shortened(&name),
                format!("must be a name of 1 to {NAME_BYTES} lower-case letters and digits"),
            ));
        }
        if let Extension::Text(text) = &value {
            if text.len() > TEXT_BYTES {
                return Err(ValidationError::new(
                    name,
                    format!("must be at most {TEXT_BYTES} bytes"),
                ));
            }
            if text.chars().any(char::is_control) {
                return Err(ValidationError::new(name, "must not have control characters"));
            }
        }
        if self.given.len() == EXTENSIONS + ATTRIBUTES.len() {
            return Err(ValidationError::new(
                name,
                format!("must not be given: an event has at most {EXTENSIONS} extensions"),
            ));
        }
        match self.given.insert(name.clone(), value) {
            None => Ok(()),
            Some(_) => Err(ValidationError::new(name, "must be given only once")),
        }
    }

    /// Sets its data; `field` is the name of the data in its source.
    pub fn data(&mut self, field: &str, data: Payload) -> Result<(), ValidationError> {
        data.check(MAX_DEPTH).map_err(|malformed| malformed_data(field, &malformed))?;
        match self.data.replace(data) {
            None => Ok(()),
            Some(_) => {
                Err(ValidationError::new(field, "must not be given together with other data"))
            }
        }
    }

    /// The media type of its data, if it was set already.
    pub fn content_type(&self) -> Option<&str> {
        match self.given.get("datacontenttype") {
            Some(Extension::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The event.
    pub fn finish(mut self) -> Result<Event, ValidationError> {
        let mut text = |name: &str| match self.given.remove(name) {
            None => Ok(None),
            Some(Extension::Text(text)) if text.is_empty() => {
                Err(ValidationError::new(name, "must not be empty"))
            }
            Some(Extension::Text(text)) => Ok(Some(text)),
            Some(_) => Err(ValidationError::new(name, "must be a text")),
        };
        let required = |name: &str, value: Option<String>| {
            value.ok_or_else(|| ValidationError::new(name, "is required"))
        };
        let version = required("specversion", text("specversion")?)?;
        if version != "1.0" {
            return Err(ValidationError::new("specversion", "must be 1.0"));
        }
        let event = Event {
            id: required("id", text("id")?)?,
            source: required("source", text("source")?)?,
            event_type: required("type", text("type")?)?,
            subject: text("subject")?,
            time: text("time")?,
            data_content_type: text("datacontenttype")?,
            data_schema: text("dataschema")?,
            extensions: self.given,
            data: self.data,
        };
        let spaced = |text: &str| text.chars().any(char::is_whitespace);
        if spaced(&event.source) {
            return Err(ValidationError::new("source", "must be a URI reference, without spaces"));
        }
        if event.data_schema.as_deref().is_some_and(|uri| spaced(uri) || !uri.contains(':')) {
            return Err(ValidationError::new("dataschema", "must be a URI"));
        }
        if event.time.as_deref().is_some_and(|time| time.parse::<Timestamp>().is_err()) {
            return Err(ValidationError::new(
                "time",
                "must be an RFC 3339 instant such as 2026-01-31T08:00:00Z",
            ));
        }
        if event.data_content_type.as_deref().is_some_and(|media| !media.contains('/')) {
            return Err(ValidationError::new(
                "datacontenttype",
                "must be a media type such as application/json",
            ));
        }
        checked(event)
    }
}

/// The event, with its extensions checked.
fn checked(mut event: Event) -> Result<Event, ValidationError> {
    if event.extensions.len() > EXTENSIONS {
        return Err(ValidationError::new("", format!("must have at most {EXTENSIONS} extensions")));
    }
    if let Some(reserved) = event.extensions.keys().find(|name| *name == "data") {
        return Err(ValidationError::new(reserved.clone(), "must not be the name of an extension"));
    }
    if let Some(hops) = event.extensions.get_mut(HOPS) {
        // The value of a header is a text.
        let whole = match hops {
            Extension::Whole(hops) => u16::try_from(*hops).ok(),
            Extension::Text(text) => text.parse::<u16>().ok(),
            Extension::Flag(_) => None,
        };
        *hops = Extension::Whole(
            whole
                .ok_or_else(|| {
                    ValidationError::new(HOPS, "must be a whole number from 0 to 65535")
                })?
                .into(),
        );
    }
    Ok(event)
}

/// The fault of data that does not have the form of its media type.
pub(super) fn malformed_data(
    field: &str,
    malformed: &crate::job::payload::Malformed,
) -> ValidationError {
    let fault = ValidationError::new(field, malformed.to_string());
    if malformed.is_too_deep() {
        ValidationError { code: ErrorCode::NestingTooDeep, ..fault }
    } else {
        fault
    }
}

/// The media type of bytes whose type is unknown.
pub(crate) const OCTETS: &str = "application/octet-stream";

/// Bytes of this media type as a payload; JSON without one, as in CloudEvents.
///
/// JSON and MessagePack stay as they are, and are not checked here. UTF-8 text becomes a JSON text,
/// anything else binary.
pub fn payload_of(content_type: Option<&str>, bytes: Bytes) -> Payload {
    let Some(content_type) = content_type else {
        return Payload { encoding: Encoding::Json, bytes };
    };
    let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if matches!(media.as_str(), "application/json" | "text/json") || media.ends_with("+json") {
        return Payload { encoding: Encoding::Json, bytes };
    }
    if is_msgpack(&media) {
        return Payload { encoding: Encoding::MessagePack, bytes };
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) if media.starts_with("text/") => {
            Payload::json(serde_json::Value::from(text).to_string())
        }
        _ => binary(&bytes),
    }
}

fn is_msgpack(media: &str) -> bool {
    let media = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    matches!(
        media.as_str(),
        "application/msgpack" | "application/x-msgpack" | "application/vnd.msgpack"
    ) || media.ends_with("+msgpack")
}

/// Bytes as a binary value of MessagePack; JSON has none.
fn binary(bytes: &[u8]) -> Payload {
    let len = bytes.len() as u32;
    let mut packed = Vec::with_capacity(bytes.len() + 5);
    packed.push(0xc6);
    packed.extend_from_slice(&len.to_be_bytes());
    packed.extend_from_slice(bytes);
    Payload { encoding: Encoding::MessagePack, bytes: packed.into() }
}

/// The bytes from which [`payload_of`] makes `data` again, if JSON cannot express `data`.
fn bytes_of<'a>(data: &'a Payload, content_type: Option<&str>) -> Option<&'a [u8]> {
    let content_type = content_type.unwrap_or(OCTETS);
    let back = |bytes: &'a [u8]| payload_of(Some(content_type), Bytes::copy_from_slice(bytes));
    match data.encoding {
        Encoding::MessagePack if is_msgpack(content_type) => Some(&data.bytes),
        _ => binary_of(data).filter(|bytes| binary_of(&back(bytes)) == Some(bytes)),
    }
}

/// The bytes of a payload that is one binary value.
fn binary_of(payload: &Payload) -> Option<&[u8]> {
    let bytes = &payload.bytes;
    let header_bytes = match (payload.encoding, bytes.first()?) {
        (Encoding::MessagePack, 0xc4) => 2,
        (Encoding::MessagePack, 0xc5) => 3,
        (Encoding::MessagePack, 0xc6) => 5,
        _ => return None,
    };
    bytes.get(header_bytes..)
}

/// A name, cut for an error message.
pub(super) fn shortened(name: &str) -> String {
    name.chars().take(NAME_BYTES).collect()
}
