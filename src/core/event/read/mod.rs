//! CloudEvents in every mode in which they arrive.
//!
//! | mode | form |
//! |---|---|
//! | structured | one JSON or MessagePack object |
//! | batched | a list of such objects |
//! | binary | attributes as request headers or record metadata, data as the body |
//!
//! The data of a structured event is a slice of the input, byte for byte.

mod message_pack;

use std::{borrow::Cow, fmt};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

pub use message_pack::{batch_msgpack, structured_msgpack};

pub use super::value::payload_of;
use super::value::{Draft, Event, Extension, OCTETS, shortened};
use crate::{
    error_code::ErrorCode,
    job::{Payload, payload::MAX_DEPTH},
    validate::ValidationError,
};

/// Most events of a batch.
pub const MAX_EVENTS: usize = 1000;
/// The prefix of headers that are attributes.
const PREFIX: &str = "ce-";

/// Events, or the fault of each invalid one.
pub type Batch = Vec<Result<Event, ValidationError>>;

fn not_json(error: &serde_json::Error) -> ValidationError {
    ValidationError {
        code: ErrorCode::InvalidBody,
        field: String::new(),
        message: format!("must be JSON in the format of CloudEvents: {error}"),
    }
}

/// Reads an event from a JSON object.
///
/// # Errors
///
/// A fault that names the attribute; `invalid_body` if the input is not a JSON object.
pub fn structured(json: &Bytes) -> Result<Event, ValidationError> {
    let Fields(fields) = serde_json::from_slice(json).map_err(|error| not_json(&error))?;
    let mut draft = Draft::default();
    let mut data = Vec::new();
    for (name, raw) in fields {
        match &*name {
            "data" | "data_base64" => data.push((name, raw)),
            _ => {
                if let Some(value) = attribute(&name, raw)? {
                    draft.set(name.into_owned(), value)?;
                }
            }
        }
    }
    for (name, raw) in data {
        let payload = if name == "data" {
            Payload::json(json.slice_ref(raw.get().as_bytes()))
        } else {
            let Ok(Some(text)) = serde_json::from_str::<Option<Cow<'_, str>>>(raw.get()) else {
                return Err(ValidationError::new("data_base64", "must be a text"));
            };
            let bytes = BASE64_STANDARD.decode(text.as_bytes());
            let bytes = bytes.map_err(|error| {
                ValidationError::new("data_base64", format!("must be base64: {error}"))
            })?;
            // Base64 without a media type is binary.
            payload_of(draft.content_type().or(Some(OCTETS)), bytes.into())
        };
        draft.data(&name, payload)?;
    }
    draft.finish()
}

/// Makes an event of attributes and extensions, by name, and data.
///
/// # Errors
///
/// A fault that names the attribute.
pub fn parts(
    attributes: impl IntoIterator<Item = (String, Extension)>,
    data: Option<Payload>,
) -> Result<Event, ValidationError> {
    let mut draft = Draft::default();
    for (name, value) in attributes {
        draft.set(name, value)?;
    }
    if let Some(data) = data {
        draft.data("data", data)?;
    }
    draft.finish()
}

/// Bytes without a media type: JSON if they are a JSON value, else text if they are UTF-8, else
/// binary. With the guessed media type.
pub fn guessed(bytes: Bytes) -> (&'static str, Payload) {
    let json = Payload::json(bytes.clone());
    let media = match json.check(MAX_DEPTH) {
        Ok(()) => return ("application/json", json),
        Err(malformed) if malformed.is_too_deep() => return ("application/json", json),
        Err(_) if std::str::from_utf8(&bytes).is_ok() => "text/plain",
        Err(_) => OCTETS,
    };
    (media, payload_of(Some(media), bytes))
}

/// Reads a JSON list of events: each event, or its fault.
///
/// # Errors
///
/// `invalid_body` if the input is not a list; a fault if it has over 1000 events.
pub fn batch(json: &Bytes) -> Result<Batch, ValidationError> {
    let Texts(texts) = serde_json::from_slice(json)
        .map_err(|error| too_many(&error).unwrap_or_else(|| not_json(&error)))?;
    Ok(texts.into_iter().map(|raw| structured(&json.slice_ref(raw.get().as_bytes()))).collect())
}

/// The error of [`Texts`] for a list that is too long.
const TOO_MANY: &str = "more than 1000 events";

fn too_many(error: &serde_json::Error) -> Option<ValidationError> {
    error.to_string().starts_with(TOO_MANY).then(over)
}

fn over() -> ValidationError {
    ValidationError::new("", format!("must have at most {MAX_EVENTS} events"))
}

/// Reads an event whose attributes are headers (or other metadata) and whose data is the body.
///
/// Other headers are ignored.
///
/// # Errors
///
/// A fault that names the header.
pub fn binary<'a>(
    headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    content_type: Option<&str>,
    body: Bytes,
) -> Result<Event, ValidationError> {
    let mut draft = Draft::default();
    let named = |fault: ValidationError| ValidationError {
        field: format!("{PREFIX}{}", fault.field),
        ..fault
    };
    for (header, value) in headers {
        let Some(name) = header
            .get(..PREFIX.len())
            .filter(|start| start.eq_ignore_ascii_case(PREFIX))
            .and(header.get(PREFIX.len()..))
        else {
            continue;
        };
        let name = name.to_ascii_lowercase();
        if name == "datacontenttype" {
            return Err(named(ValidationError::new(
                name,
                "must not be given in this mode: Content-Type is the media type",
            )));
        }
        let text = decoded(value).ok_or_else(|| {
            named(ValidationError::new(shortened(&name), "must be UTF-8, percent-encoded"))
        })?;
        draft.set(name, Extension::Text(text)).map_err(named)?;
    }
    if let Some(content_type) = content_type {
        draft.set("datacontenttype".into(), Extension::Text(content_type.to_owned()))?;
    }
    if !body.is_empty() {
        draft.data("data", payload_of(content_type, body))?;
    }
    draft.finish().map_err(|fault| {
        if fault.field.is_empty() || fault.field == "datacontenttype" {
            fault
        } else {
            named(fault)
        }
    })
}

/// A header's value: percent-encoded UTF-8, which may be in double quotes.
fn decoded(value: &[u8]) -> Option<String> {
    let value = value.trim_ascii();
    let quoted = value
        .strip_prefix(b"\"")
        .and_then(|rest| rest.strip_suffix(b"\""))
        .filter(|_| value.len() > 1);
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = quoted.unwrap_or(value).iter();
    while let Some(byte) = rest.next() {
        let digits = rest
            .as_slice()
            .get(..2)
            .filter(|digits| *byte == b'%' && digits.iter().all(u8::is_ascii_hexdigit));
        match (byte, digits) {
            (_, Some(digits)) => {
                bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                rest.nth(1);
            }
            (b'\\', None) if quoted.is_some() => bytes.extend(rest.next()),
            (byte, None) => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// The value of an attribute; none if it is null, which means not set.
fn attribute(name: &str, raw: &RawValue) -> Result<Option<Extension>, ValidationError> {
    let wrong = |message: &str| Err(ValidationError::new(shortened(name), message));
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'"') => serde_json::from_str(text)
            .map(|text| Some(Extension::Text(text)))
            .or_else(|_| wrong("must be a text in UTF-8")),
        Some(b't') => Ok(Some(Extension::Flag(true))),
        Some(b'f') => Ok(Some(Extension::Flag(false))),
        Some(b'n') => Ok(None),
        Some(b'{' | b'[') => wrong("must be a text, a whole number, true or false"),
        _ => match text.parse() {
            Ok(whole) => Ok(Some(Extension::Whole(whole))),
            Err(_) => wrong("must be a whole number from -2147483648 to 2147483647, or a text"),
        },
    }
}

/// The fields of a JSON object in their order, with duplicates.
struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// The items of a JSON list, at most [`MAX_EVENTS`]. A longer list is not read to its end.
struct Texts<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event: a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some((name, raw)) = map.next_entry::<Name<'de>, &'de RawValue>()? {
                    if fields.len() > 256 {
                        return Err(A::Error::custom("it has more than 256 fields"));
                    }
                    fields.push((name.0, raw));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// A field's name, borrowed where it can be.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Texts<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Some1000;
        impl<'de> Visitor<'de> for Some1000 {
            type Value = Texts<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a batch: a JSON list of events")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut texts = Vec::new();
                while let Some(raw) = list.next_element()? {
                    if texts.len() == MAX_EVENTS {
                        return Err(A::Error::custom(TOO_MANY));
                    }
                    texts.push(raw);
                }
                Ok(Texts(texts))
            }
        }
        deserializer.deserialize_seq(Some1000)
    }
}
