//! An event in the making.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;

use super::record::{Read, Unread};
use tidegate_core::{
    event::{
        read,
        value::{ATTRIBUTES, EXTENSIONS, Extension, NAME_BYTES, TEXT_BYTES},
    },
    job::{Encoding, Payload, trace},
    time::Timestamp,
};
use tidegate_engine::events::ingest::HOPS_HEADER;

/// What a service says of a record, as far as it is known by now.
pub struct Sketch {
    attributes: BTreeMap<String, Extension>,
    data: Option<Payload>,
}

impl Sketch {
    /// What names it, and its type: without one of these there is no event.
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

    /// What else is known of it. What no attribute can be (nothing, over 1024 bytes, with control characters) is left out.
    #[must_use]
    pub fn say(mut self, name: &str, value: Option<impl Into<String>>) -> Self {
        if let Some(value) = value.map(Into::into).filter(|value| fits(value)) {
            self.attributes.insert(name.to_owned(), Extension::Text(value));
        }
        self
    }

    /// When it happened, in milliseconds since the epoch.
    #[must_use]
    pub fn at(self, millis: Option<i64>) -> Self {
        self.say("time", millis.map(|millis| Timestamp::from_millis(millis).to_string()))
    }

    /// What stands beside its data, as extensions. What is there already stays, and there are never too many.
    #[must_use]
    pub fn beside<'a>(mut self, beside: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        for (name, value) in beside {
            let name = extension_name(name);
            let own = ATTRIBUTES.contains(&name.as_str())
                || name == "data"
                || self.attributes.contains_key(&name);
            let room = self.attributes.len() < EXTENSIONS;
            if room && !own && (1..=NAME_BYTES).contains(&name.len()) && fits(value) {
                self.attributes.insert(name, Extension::Text(value.to_owned()));
            }
        }
        self
    }

    /// What it carries, of this media type.
    #[must_use]
    pub fn carry(mut self, media: &str, data: Payload) -> Self {
        self.data = Some(data);
        self.say("datacontenttype", Some(media))
    }

    /// The event, or why `raw` makes none.
    pub fn finish(self, raw: &Bytes) -> Read {
        let headers = self.data.as_ref().map(headers_in).unwrap_or_default();
        let Self { attributes, data } =
            self.beside(headers.iter().map(|(name, value)| (*name, value.as_str())));
        read::parts(attributes, data).map_err(|fault| Unread::faulty(raw, &fault))
    }
}

/// How far round a job is that was handed to a service, and its trace: of its own headers, which the message has in its body, since not
/// every service has room beside that.
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
    // Whatever else calls itself so makes no event a bad one.
    headers.retain(|name, value| name != HOPS_HEADER || value.parse::<u16>().is_ok());
    [HOPS_HEADER, trace::PARENT, trace::STATE]
        .into_iter()
        .filter_map(|name| Some((name, headers.remove(name)?)))
        .collect()
}

fn fits(value: &str) -> bool {
    (1..=TEXT_BYTES).contains(&value.len()) && !value.chars().any(char::is_control)
}

/// The name of a header or attribute as an extension may be called: small letters and digits, without what marks it as one of CloudEvents.
fn extension_name(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let own = name.strip_prefix("ce_").or_else(|| name.strip_prefix("ce-")).unwrap_or(&name);
    own.chars().filter(char::is_ascii_alphanumeric).collect()
}
