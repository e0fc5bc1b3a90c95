//! Which bytes are an event, in each of the modes.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{binary, bytes, event, whole};
use crate::{
    event::{Event, read, value::Extension},
    job::{Encoding, Payload},
};

#[test]
fn a_structured_event_is_read_and_written_whole() {
    let event = event();
    assert_eq!(
        (event.id.as_str(), event.source.as_str(), event.event_type.as_str()),
        ("1", "/shop", "order.paid")
    );
    assert_eq!(event.extensions["count"], Extension::Whole(3));
    assert_eq!(event.extensions["flag"], Extension::Flag(true));
    assert_eq!(serde_json::to_value(&event).unwrap(), whole());
}

#[test]
fn data_is_kept_byte_for_byte() {
    let data = r#"{"n": 1.0e2,  "b":10000000000000000000000}"#;
    let text =
        format!(r#"{{"specversion":"1.0","id":"1","source":"s","type":"t","data": {data}}}"#);
    let event = read::structured(&Bytes::from(text)).unwrap();
    assert_eq!(event.data.unwrap(), Payload::json(data));
}

#[test]
fn binary_data_stays_binary() {
    let encoded = |media: &str, base64: &str| {
        let event = json!({
            "specversion": "1.0", "id": "1", "source": "s", "type": "t",
            "datacontenttype": media, "data_base64": base64,
        });
        read::structured(&bytes(&event)).unwrap()
    };
    let event = encoded("image/png", "AP8B");
    let data = event.data.clone().unwrap();
    assert_eq!(data.encoding, Encoding::MessagePack);
    assert_eq!(data.to_json().unwrap(), r#"{"$binary":"AP8B"}"#);
    assert_eq!(read::structured(&Bytes::from(serde_json::to_vec(&event).unwrap())).unwrap(), event);
    // Base64 of JSON is JSON if that is the media type.
    let event = encoded("application/json", "eyJhIjoxfQ==");
    assert_eq!(event.data.unwrap(), Payload::json(r#"{"a":1}"#));
}

/// An event that was read and written is read back with the same data, whatever its media type.
#[test]
fn every_written_event_is_read_back() {
    let medias = [
        "",
        "application/json",
        "application/msgpack",
        "Application/X+MsgPack",
        "text/plain; charset=utf-8",
        "image/png",
    ];
    let value = proptest::prop_oneof![
        proptest::strategy::Just(rmpv::Value::Binary(b"{\"a\": 1}".to_vec())),
        proptest::strategy::Just(rmpv::Value::Binary(b"no JSON".to_vec())),
        proptest::strategy::Just(rmpv::Value::Binary(vec![0xc4, 1, 7])),
        proptest::strategy::Just(rmpv::Value::Binary(vec![0xff; 300])),
        proptest::strategy::Just(rmpv::Value::Array(vec![
            rmpv::Value::Binary(vec![1]),
            rmpv::Value::Nil
        ])),
        proptest::strategy::Just(rmpv::Value::from("text")),
        proptest::strategy::Just(rmpv::Value::Map(vec![("n".into(), 0.5.into())])),
    ];
    let bytes = |value: &rmpv::Value| {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, value).unwrap();
        bytes
    };
    proptest::proptest!(|(value in value, structured: bool, media in 0..medias.len())| {
        let (media, data) = (medias[media], bytes(&value));
        let event = if structured {
            let mut attributes =
                vec![("specversion", "1.0"), ("id", "1"), ("source", "s"), ("type", "t")];
            attributes.extend((!media.is_empty()).then_some(("datacontenttype", media)));
            let mut fields: Vec<_> = attributes
                .into_iter()
                .map(|(name, text)| (name.into(), text.into()))
                .collect();
            fields.push(("data".into(), value));
            read::structured_msgpack(&Bytes::from(bytes(&rmpv::Value::Map(fields))))
        } else {
            let headers = [
                ("ce-specversion", &b"1.0"[..]),
                ("ce-id", b"1"),
                ("ce-source", b"s"),
                ("ce-type", b"t"),
            ];
            let media = Some(media).filter(|media| !media.is_empty());
            read::binary(headers.into_iter(), media, data.into())
        };
        // Bytes that are not JSON are refused if the media type is JSON.
        let Ok(event) = event else { return Ok(()) };
        let written = Bytes::from(serde_json::to_vec(&event).unwrap());
        let again = read::structured(&written).unwrap();
        let shown = |event: &Event| {
            let json = event.data.as_ref().unwrap().to_json().unwrap();
            serde_json::from_slice::<Value>(&json).unwrap()
        };
        proptest::prop_assert_eq!(shown(&again), shown(&event));
        proptest::prop_assert_eq!(Event { data: None, ..again }, Event { data: None, ..event });
    });
}

#[test]
fn a_refused_event_names_the_invalid_attribute() {
    let with = |name: &str, value: Value| {
        let mut event = whole();
        if value == json!("(absent)") {
            drop(event.as_object_mut().unwrap().remove(name));
        } else {
            event[name] = value;
        }
        event.to_string()
    };
    let absent = || json!("(absent)");
    let mut cases: Vec<(String, &str)> = Vec::new();
    for name in ["id", "source", "type", "specversion"] {
        for value in [
            absent(),
            json!(null),
            json!(""),
            json!(7),
            json!(["a"]),
            json!("x".repeat(1025)),
            json!("a\u{0}b"),
        ] {
            cases.push((with(name, value), name));
        }
    }
    cases.extend([
        (with("specversion", json!("0.3")), "specversion"),
        (with("source", json!("has space")), "source"),
        (with("time", json!("yesterday")), "time"),
        (with("datacontenttype", json!("json")), "datacontenttype"),
        (with("dataschema", json!("relative")), "dataschema"),
        (with("Region", json!("east")), "Region"),
        (with("my_ext", json!("east")), "my_ext"),
        (with("region", json!(1.5)), "region"),
        (with("region", json!(2_147_483_648_i64)), "region"),
        (with("region", json!({"a": 1})), "region"),
        (with("tidegatehops", json!(-1)), "tidegatehops"),
        (with("tidegatehops", json!("many")), "tidegatehops"),
        (with("data_base64", json!("AA==")), "data_base64"),
        (with("data_base64", json!(7)), "data_base64"),
        (r#"{"specversion":"1.0","id":"1","id":"2","source":"s","type":"t"}"#.into(), "id"),
        (
            r#"{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"*"}"#.into(),
            "data_base64",
        ),
        (r#"{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"a":}}"#.into(), ""),
        ("[]".into(), ""),
        ("{".into(), ""),
        (String::new(), ""),
        (format!("{{\"data\":{}{}}}", "[".repeat(100), "]".repeat(100)), "data"),
    ]);
    for (text, field) in cases {
        let fault = read::structured(&Bytes::from(text.clone())).expect_err(&text);
        assert_eq!(fault.field, field, "{fault:?} for {text}");
    }
    let long = read::structured(&Bytes::from(with(&"x".repeat(65), json!("east")))).unwrap_err();
    assert_eq!(long.field, "x".repeat(64));
    let mut many = whole();
    for n in 0..40 {
        many[format!("ext{n}")] = json!("x");
    }
    assert!(read::structured(&bytes(&many)).unwrap_err().to_string().contains("at most 32"));
}

#[test]
fn a_batch_has_one_answer_per_event() {
    let batch = read::batch(&bytes(&json!([whole(), {"id": "2"}, 7, whole()]))).unwrap();
    assert_eq!(batch.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, false, true]);
    assert_eq!(read::batch(&Bytes::from("[]")).unwrap(), []);
    assert_eq!(read::batch(&bytes(&whole())).unwrap_err().code.as_str(), "invalid_body");
    let many = format!("[{}]", vec!["0"; 1001].join(","));
    assert_eq!(
        read::batch(&Bytes::from(many)).unwrap_err().message,
        "must have at most 1000 events"
    );
}

#[test]
fn binary_mode_reads_attributes_from_headers() {
    let event = binary(
        &[("ce-subject", "a%20b%e2%82%ac"), ("x-other", "1"), ("Ce-Note", "\"q \\\"x\\\"\"")],
        Some("text/plain"),
        "grün".as_bytes(),
    )
    .unwrap();
    assert_eq!(event.subject.as_deref(), Some("a b€"));
    assert_eq!(event.extensions["note"], Extension::Text("q \"x\"".into()));
    assert_eq!(event.data, Some(Payload::json("\"grün\"")));
    let json = binary(&[], Some("application/cloud+json; charset=utf-8"), b"{\"a\": 1}").unwrap();
    assert_eq!(json.data, Some(Payload::json("{\"a\": 1}")));
    assert_eq!(json.data_content_type.as_deref(), Some("application/cloud+json; charset=utf-8"));
    assert_eq!(
        binary(&[], None, b"[1]").unwrap().data,
        Some(Payload::json("[1]")),
        "JSON without a media type"
    );
    assert_eq!(
        binary(&[], Some("application/msgpack"), &[0x91, 7]).unwrap().data.unwrap().encoding,
        Encoding::MessagePack
    );
    assert_eq!(
        binary(&[], Some("application/octet-stream"), &[0, 255])
            .unwrap()
            .data
            .unwrap()
            .to_json()
            .unwrap(),
        r#"{"$binary":"AP8="}"#
    );
    assert_eq!(
        binary(&[], Some("text/plain"), &[0, 255]).unwrap().data.unwrap().to_json().unwrap(),
        r#"{"$binary":"AP8="}"#
    );
    assert_eq!(binary(&[("ce-tidegatehops", "3")], None, b"").unwrap().hops(), 3);
}

#[test]
fn an_invalid_header_is_named() {
    for (headers, content_type, body, field) in [
        (&[("ce-id", "2")][..], None, &b""[..], "ce-id"),
        (&[("ce-my_ext", "2")], None, b"", "ce-my_ext"),
        (&[("ce-time", "soon")], None, b"", "ce-time"),
        (&[("ce-subject", "%ff")], None, b"", "ce-subject"),
        (&[("ce-datacontenttype", "a/b")], None, b"", "ce-datacontenttype"),
        (&[], Some("application/json"), b"{", "data"),
        (&[], Some("application/msgpack"), &[0xc1], "data"),
        (&[], Some("nonsense"), b"{}", "datacontenttype"),
    ] {
        assert_eq!(binary(headers, content_type, body).unwrap_err().field, field);
    }
    let nothing = read::binary(std::iter::empty(), None, Bytes::new()).unwrap_err();
    assert_eq!(
        (nothing.field.as_str(), nothing.message.as_str()),
        ("ce-specversion", "is required")
    );
}

#[test]
fn an_event_is_read_from_message_pack() {
    let event: Value = json!({
        "specversion": "1.0", "id": "1", "source": "s", "type": "t", "count": 3,
        "subject": null, "data": {"a": [1, 2]},
    });
    let packed = Payload::json(event.to_string()).to_msgpack().unwrap();
    let read = read::structured_msgpack(&packed).unwrap();
    assert_eq!((&read.extensions["count"], read.subject.as_deref()), (&Extension::Whole(3), None));
    assert_eq!(read.data.unwrap().to_json().unwrap(), r#"{"a":[1,2]}"#);
    let batch = Payload::json(json!([event, {"id": 7}, event]).to_string()).to_msgpack().unwrap();
    let batch = read::batch_msgpack(&batch).unwrap();
    assert_eq!(batch.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    for broken in [
        &b""[..],
        &[0x81],
        &[0xc1],
        &[0x81, 0xa1, b'a', 0xc1],
        &[0x80, 0x80],
        &[0x90],
        &[0xdd, 0xff, 0xff, 0xff, 0xff],
        &[0x91, 0xdf, 0xff, 0xff, 0xff, 0xff],
    ] {
        assert!(read::structured_msgpack(&Bytes::copy_from_slice(broken)).is_err(), "{broken:?}");
        assert!(
            broken == [0x90] || read::batch_msgpack(&Bytes::copy_from_slice(broken)).is_err(),
            "{broken:?}"
        );
    }
}

#[test]
fn reading_any_bytes_ends_without_a_panic() {
    proptest::proptest!(|(noise: Vec<u8>)| {
        let noise = Bytes::from(noise);
        let _ = read::structured(&noise);
        let _ = read::batch(&noise);
        let _ = read::structured_msgpack(&noise);
        let _ = read::batch_msgpack(&noise);
        let _ = read::binary([("ce-id", &noise[..])].into_iter(), None, noise.clone());
    });
}
