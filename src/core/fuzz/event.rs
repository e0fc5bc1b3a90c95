//! CloudEvents in their modes and encodings, against `serde_json` and `rmpv`.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::driver::{bytes, fuzz, json, mutated, text};
use crate::event::{
    Event, read,
    value::{EXTENSIONS, Extension, HOPS},
};

const WORDS: &[&str] = &[
    "specversion",
    "1.0",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "2026-01-31T08:00:00Z",
    "datacontenttype",
    "application/json",
    "text/plain",
    "application/octet-stream",
    "dataschema",
    "urn:x",
    "data",
    "data_base64",
    "AAECAw==",
    "tidegatehops",
    "region",
];

/// An object with the required attributes and some others.
fn almost_event() -> impl Strategy<Value = Value> + Clone {
    let word = prop::sample::select(WORDS).prop_map(Value::from);
    let field = (prop::sample::select(WORDS), prop_oneof![2 => word, 1 => json(WORDS)]);
    prop::collection::vec(field, 0..4).prop_map(|fields| {
        let mut event = json!({"specversion": "1.0", "id": "1", "source": "s", "type": "t"});
        for (name, value) in fields {
            event[name] = value;
        }
        event
    })
}

/// What a reader of JSON sees of an event's data.
fn shown(event: &Event) -> Result<Option<Value>, TestCaseError> {
    let Some(data) = &event.data else { return Ok(None) };
    let json = data.to_json().map_err(|error| TestCaseError::fail(error.to_string()))?;
    // A number beyond every float is valid JSON and no value.
    Ok(serde_json::from_slice(&json).ok())
}

/// An accepted event is within the bounds, and is written and read again.
fn check(event: &Event) -> Result<(), TestCaseError> {
    prop_assert!(event.extensions.len() <= EXTENSIONS);
    let written = serde_json::to_vec(event).map_err(|error| {
        TestCaseError::fail(format!("accepted, and cannot be written: {error}"))
    })?;
    let again = read::structured(&written.clone().into()).map_err(|fault| {
        let written = String::from_utf8_lossy(&written).into_owned();
        TestCaseError::fail(format!("{written} is not read again: {fault:?}"))
    })?;
    prop_assert_eq!(shown(&again)?, shown(event)?);
    prop_assert_eq!(Event { data: None, ..again }, Event { data: None, ..event.clone() });
    Ok(())
}

/// Compares an event with the JSON object that it was read from.
fn compare(event: &Event, fields: &serde_json::Map<String, Value>) -> Result<(), TestCaseError> {
    let is_data = |name: &str| name == "data" || name == "data_base64";
    let given = fields.iter().filter(|(name, value)| !is_data(name) && !value.is_null());
    prop_assert_eq!(event.attributes().count(), given.clone().count());
    for (name, value) in given {
        let read = event.attribute(name);
        // The hops may be a text, as in a header.
        let whole = name == HOPS && matches!(read, Some(Extension::Whole(_)));
        let read = serde_json::to_value(read).unwrap();
        prop_assert!(read == *value || whole, "{} {} became {}", name, value, read);
    }
    if fields.contains_key("data_base64") {
        prop_assert!(event.data.is_some());
    } else {
        prop_assert_eq!(shown(event)?, fields.get("data").cloned());
    }
    Ok(())
}

#[test]
fn a_valid_event_in_json_is_read_and_written_as_it_is() {
    let optional = |name: &'static str, values: &'static [&'static str]| {
        prop::option::of(prop::sample::select(values)).prop_map(move |value| (name, value))
    };
    let attributes = (
        optional("subject", &["o-7", "é ü"]),
        optional("time", &["2026-01-31T08:00:00Z", "2026-01-31T08:00:00.5+01:00"]),
        optional("datacontenttype", &["application/json", "text/json"]),
        optional("dataschema", &["urn:x", "https://x/y"]),
        optional("region", &["east", "west"]),
    );
    let extension =
        prop_oneof![any::<bool>().prop_map(Value::from), any::<i32>().prop_map(Value::from)];
    let input = (attributes, prop::option::of(extension), prop::option::of(json(WORDS)));
    fuzz(input, |(texts, extension, data)| {
        let mut event = json!({"specversion": "1.0", "id": "1", "source": "/s", "type": "t"});
        let fields = event.as_object_mut().unwrap();
        let texts = [texts.0, texts.1, texts.2, texts.3, texts.4];
        fields.extend(
            texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?.into()))),
        );
        fields.extend(extension.map(|value| ("ext".to_owned(), value)));
        fields.extend(data.map(|data| ("data".to_owned(), data)));
        let read = read::structured(&event.to_string().into())
            .map_err(|fault| TestCaseError::fail(format!("{event} is refused: {fault}")))?;
        compare(&read, event.as_object().unwrap())
    });
}

#[test]
fn an_event_in_json_is_refused_or_written_and_read_again() {
    let almost = almost_event().prop_map(|event| event.to_string().into_bytes());
    fuzz(prop_oneof![3 => almost.clone(), 2 => mutated(almost), 1 => bytes(200)], |written| {
        let bytes = Bytes::from(written);
        let Ok(event) = read::structured(&bytes) else { return Ok(()) };
        serde_json::from_slice::<serde::de::IgnoredAny>(&bytes)
            .map_err(|error| TestCaseError::fail(format!("accepted, and no JSON: {error}")))?;
        if let Ok(Value::Object(fields)) = serde_json::from_slice(&bytes) {
            prop_assert_eq!(&fields["specversion"], "1.0");
            compare(&event, &fields)?;
        }
        check(&event)
    });
}

#[test]
fn a_batch_in_json_reads_each_event_as_if_it_were_alone() {
    let list = prop::collection::vec(prop_oneof![almost_event(), json(WORDS)], 0..5);
    let list = list.prop_map(|list| Value::from(list).to_string().into_bytes());
    let long = (read::MAX_EVENTS - 1..=read::MAX_EVENTS + 1)
        .prop_map(|count| format!("[{}]", vec!["0"; count].join(",")).into_bytes());
    fuzz(prop_oneof![20 => list.clone(), 10 => mutated(list), 1 => long], |written| {
        let bytes = Bytes::from(written);
        let list: Option<Vec<Box<serde_json::value::RawValue>>> =
            serde_json::from_slice(&bytes).ok();
        let list = list.filter(|list| list.len() <= read::MAX_EVENTS);
        let batch = read::batch(&bytes).ok();
        prop_assert_eq!(batch.as_ref().map(Vec::len), list.as_ref().map(Vec::len));
        let (Some(batch), Some(list)) = (batch, list) else { return Ok(()) };
        for (read, raw) in batch.iter().zip(list) {
            prop_assert_eq!(read, &read::structured(&raw.get().to_owned().into()));
        }
        Ok(())
    });
}

/// JSON as MessagePack.
fn packed(value: &Value) -> Vec<u8> {
    rmp_serde::to_vec(value).unwrap()
}

#[test]
fn an_event_in_messagepack_is_the_same_as_in_json() {
    fuzz(almost_event(), |event| {
        let of_json = read::structured(&event.to_string().into());
        let of_msgpack = read::structured_msgpack(&packed(&event).into());
        if event.get("data_base64").is_some() {
            return Ok(());
        }
        match (of_json, of_msgpack) {
            (Ok(json), Ok(msgpack)) => {
                prop_assert_eq!(shown(&json)?, shown(&msgpack)?);
                prop_assert_eq!(Event { data: None, ..json }, Event { data: None, ..msgpack });
            }
            (Err(_), Err(_)) => {}
            (json, msgpack) => prop_assert!(false, "{json:?} in JSON, {msgpack:?} in MessagePack"),
        }
        Ok(())
    });
}

#[test]
fn an_event_in_messagepack_is_refused_or_written_and_read_again() {
    let almost = almost_event().prop_map(|event| packed(&event));
    fuzz(prop_oneof![3 => mutated(almost), 1 => bytes(200)], |written| {
        let bytes = Bytes::from(written);
        let Ok(event) = read::structured_msgpack(&bytes) else { return Ok(()) };
        let mut rest = &bytes[..];
        prop_assert!(rmpv::decode::read_value_ref(&mut rest).is_ok() && rest.is_empty());
        check(&event)
    });
}

#[test]
fn a_batch_in_messagepack_is_refused_or_whole() {
    let list = prop::collection::vec(almost_event(), 0..4);
    let list = list.prop_map(|list| packed(&Value::from(list)));
    // A list of four bytes of length that says what it has not.
    let lying = (any::<u32>(), bytes(60))
        .prop_map(|(count, rest)| [&[0xdd][..], &count.to_be_bytes(), &rest].concat());
    fuzz(prop_oneof![3 => mutated(list), 1 => lying], |written| {
        let bytes = Bytes::from(written);
        let Ok(batch) = read::batch_msgpack(&bytes) else { return Ok(()) };
        let mut rest = &bytes[..];
        let list = rmpv::decode::read_value_ref(&mut rest).unwrap();
        prop_assert_eq!(list.as_array().map(Vec::len), Some(batch.len()));
        prop_assert!(rest.is_empty());
        batch.iter().flatten().try_for_each(check)
    });
}

#[test]
fn an_event_in_headers_is_refused_or_written_and_read_again() {
    let value = prop_oneof![
        bytes(12),
        text(8).prop_map(String::into_bytes),
        mutated(Just(b"\"a%C3%A9\\\"\"".to_vec()))
    ];
    let name = prop::sample::select(
        &["subject", "time", "dataschema", "region", "Tidegatehops", "é", ""][..],
    );
    let media = prop::option::of(prop::sample::select(
        &["application/json", "text/plain", "a/b", "application/msgpack", "json"][..],
    ));
    let body = prop_oneof![bytes(40), json(WORDS).prop_map(|body| body.to_string().into_bytes())];
    fuzz((prop::collection::vec((name, value), 0..3), media, body), |(extra, media, body)| {
        let mut headers: Vec<(String, Vec<u8>)> =
            [("specversion", "1.0"), ("id", "1"), ("source", "s"), ("type", "t")]
                .map(|(name, value)| (format!("ce-{name}"), value.into()))
                .into();
        headers.extend(extra.into_iter().map(|(name, value)| (format!("CE-{name}"), value)));
        let headers = headers.iter().map(|(name, value)| (name.as_str(), &value[..]));
        let Ok(event) = read::binary(headers, media, body.into()) else { return Ok(()) };
        check(&event)
    });
}

#[test]
fn bytes_without_a_media_type_become_data_that_is_shown() {
    fuzz(
        prop_oneof![bytes(60), json(WORDS).prop_map(|body| body.to_string().into_bytes())],
        |written| {
            let (media, data) = read::guessed(written.clone().into());
            let parses = serde_json::from_slice::<serde::de::IgnoredAny>(&written).is_ok();
            prop_assert_eq!(media == "application/json", parses);
            prop_assert!(data.to_json().is_ok());
            Ok(())
        },
    );
}
