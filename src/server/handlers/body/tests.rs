use serde::Deserialize;
use serde_json::value::RawValue;

use super::*;
use tidegate_core::{
    event::TriggerConfig, job::type_config::TypeConfig, queue::QueueConfig,
    schedule::ScheduleConfig, time::Timestamp,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::option_option, reason = "absent differs from null")]
struct Ask<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    data: &'a RawValue,
    #[serde(default, deserialize_with = "tidegate_core::strict::present")]
    expires_at: Option<Option<Timestamp>>,
}

fn json(text: &str) -> Body {
    Body::new(Encoding::Json, Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

fn refusal<'a, T: Deserialize<'a> + std::fmt::Debug>(
    body: &'a Body,
) -> (&'static str, Option<String>, String) {
    let problem = body.read::<T>().unwrap_err();
    (problem.code(), problem.field().map(str::to_owned), problem.detail().to_owned())
}

#[test]
fn data_is_a_slice_of_the_body() {
    let body = json(r#"{"type": "a", "data": {"n":1.0e2,  "s":"\u00e9"} }"#);
    let ask: Ask<'_> = body.read().unwrap();
    let data = body.value(ask.data, "data", 100).unwrap();
    assert_eq!(data, Payload::json(r#"{"n":1.0e2,  "s":"\u00e9"}"#));
    assert!(body.json.as_ptr_range().contains(&data.bytes.as_ptr()));
}

#[test]
fn messagepack_data_is_kept_byte_for_byte() {
    // {"type": "a", "data": uint8 7 written in more bytes than it needs}
    let bytes = [&[0x82, 0xa4][..], b"type", &[0xa1, b'a', 0xa4], b"data", &[0xcc, 7]].concat();
    let body = Body::new(Encoding::MessagePack, bytes.into()).unwrap();
    let ask: Ask<'_> = body.read().unwrap();
    assert_eq!(ask.kind, "a");
    let data = body.value(ask.data, "data", 100).unwrap();
    assert_eq!(
        data,
        Payload { encoding: Encoding::MessagePack, bytes: Bytes::from_static(&[0xcc, 7]) }
    );
}

#[test]
fn absent_differs_from_null() {
    assert_eq!(json(r#"{"type":"a","data":null}"#).read::<Ask<'_>>().unwrap().expires_at, None);
    assert_eq!(
        json(r#"{"type":"a","data":null,"expires_at":null}"#).read::<Ask<'_>>().unwrap().expires_at,
        Some(None)
    );
}

#[test]
fn a_wrong_field_is_named() {
    let body = json(r#"{"type":"a","data":1,"priorty":5}"#);
    let (code, field, detail) = refusal::<Ask<'_>>(&body);
    assert_eq!((code, field.as_deref()), ("unknown_field", Some("priorty")));
    assert!(
        detail.starts_with("priorty: unknown field `priorty`, expected one of `type`"),
        "{detail}"
    );

    let body = json(r#"{"type":"a"}"#);
    assert_eq!(
        refusal::<Ask<'_>>(&body),
        ("invalid_field", Some("data".into()), "data: is required".into())
    );
    let body = json(r#"{"type":5,"data":1}"#);
    let (_, field, detail) = refusal::<Ask<'_>>(&body);
    assert_eq!(
        (field.as_deref(), detail.as_str()),
        (Some("type"), "type: invalid type: integer `5`, expected a string")
    );
    let body = json(r#"{"type":"a","data":1,"expires_at":"soon"}"#);
    let (_, field, detail) = refusal::<Ask<'_>>(&body);
    assert_eq!(field.as_deref(), Some("expires_at"));
    assert!(detail.contains("RFC 3339"), "{detail}");
}

#[test]
fn a_wrong_number_is_refused_with_its_bounds() {
    let body = json(r#"{"concurrency":-1}"#);
    let (_, _, detail) = refusal::<TypeConfig>(&body);
    assert_eq!(
        detail,
        "concurrency: invalid value: integer `-1`, expected a whole number from 0 to 4294967295"
    );
}

#[test]
fn a_nested_field_is_named_with_its_path() {
    let body = json(r#"{"constraints":[{"name":"a","rate":{"count":1,"per":2}}]}"#);
    assert_eq!(refusal::<QueueConfig>(&body).1.as_deref(), Some("constraints[0].rate.per"));
    let body =
        json(r#"{"windows":[{"from":"08:00","to":"09:00"},{"from":"08:00","too":"09:00"}]}"#);
    assert_eq!(refusal::<TypeConfig>(&body).1.as_deref(), Some("windows[1].too"));
}

#[test]
fn a_body_that_is_not_json_is_invalid() {
    for text in ["", "{", "{}x", "nul", "\u{7f}"] {
        assert_eq!(refusal::<TypeConfig>(&json(text)).0, "invalid_body", "{text}");
    }
}

#[test]
fn nesting_is_bounded_and_ignores_brackets_in_strings() {
    for (depth, fits) in [(64, true), (65, false)] {
        let body =
            json(&format!(r#"{{"type":"a","data":{}1{}}}"#, "[".repeat(depth), "]".repeat(depth)));
        let ask: Ask<'_> = body.read().unwrap();
        assert_eq!(
            body.checked(ask.data, "data", 1000).map_err(|p| p.code()).err(),
            (!fits).then_some("nesting_too_deep")
        );
    }
    let hostile = Bytes::from("[".repeat(100_000));
    assert_eq!(Body::new(Encoding::Json, hostile).unwrap_err().code(), "nesting_too_deep");
    let hostile = format!(r#"{{"type":"a","data":{}"#, "[".repeat(1000));
    assert_eq!(Body::new(Encoding::Json, hostile.into()).unwrap_err().field(), Some("data"));
    let harmless = format!(r#"["{}", "\"{}"]"#, "[".repeat(200), "{".repeat(200));
    assert!(Body::new(Encoding::Json, harmless.into()).is_ok());
}

#[test]
fn data_over_its_bound_is_refused() {
    let body = json(r#"{"type":"a","data":"1234"}"#);
    let ask: Ask<'_> = body.read().unwrap();
    assert!(body.value(ask.data, "data", 6).is_ok());
    let problem = body.value(ask.data, "data", 5).unwrap_err();
    assert_eq!(
        (problem.status().as_u16(), problem.code(), problem.field()),
        (413, "data_too_large", Some("data"))
    );
}

/// Every struct that a request may be.
#[test]
fn a_list_is_no_object() {
    fn refuses<'a, T: Deserialize<'a> + std::fmt::Debug>() {
        for text in ["[]", "[1]", r#"["a", {}]"#] {
            let problem = read::<T>(text.as_bytes()).unwrap_err();
            assert_eq!(problem.code(), "invalid_field", "{text}");
            assert_eq!(problem.detail(), "invalid type: list, expected an object");
        }
    }
    refuses::<QueueConfig>();
    refuses::<TypeConfig>();
    refuses::<ScheduleConfig>();
    refuses::<TriggerConfig>();
    refuses::<tidegate_api::NewJobBody<'_>>();
    refuses::<tidegate_api::PatchBody<'_>>();
    refuses::<tidegate_api::ReplayBody<'_>>();
    refuses::<tidegate_api::BatchBody<'_>>();
    refuses::<tidegate_api::LeaseBody<'_>>();
    refuses::<tidegate_api::ReportBody<'_>>();
    refuses::<tidegate_api::HeartbeatBody<'_>>();
    refuses::<tidegate_api::RegistrationBody>();
    refuses::<tidegate_api::BulkBody>();
    refuses::<tidegate_api::NewTokenBody>();
}

#[test]
fn a_list_within_an_object_is_no_object_either() {
    for (text, field) in [
        (r#"{"windows": [["05:00", "06:00"]]}"#, "windows[0]"),
        (r#"{"retry": ["exponential", {}]}"#, "retry"),
        (r#"{"target": ["http://h/"]}"#, "target"),
        (r#"{"target": {"url": "http://h/", "basic_auth": ["u", "p"]}}"#, "target.basic_auth"),
    ] {
        let (_, named, detail) = refusal::<TypeConfig>(&json(text));
        assert_eq!(named.as_deref(), Some(field), "{detail}");
        assert!(detail.contains("list, expected an object"), "{detail}");
    }
    for (text, field) in [
        (r#"{"constraints": [["c", {}, null, 5]]}"#, "constraints[0]"),
        (r#"{"constraints": [{"name": "c", "rate": [1, 2]}]}"#, "constraints[0].rate"),
        (r#"{"constraints": [{"name": "c", "match": []}]}"#, "constraints[0].match"),
        (r#"{"throttler": ["p", {}]}"#, "throttler"),
    ] {
        let (_, named, detail) = refusal::<QueueConfig>(&json(text));
        assert_eq!(named.as_deref(), Some(field), "{detail}");
    }
}

#[test]
fn a_list_stops_at_its_bound_while_it_is_read() {
    let windows = |count: usize| {
        let one = r#"{"from": "08:00", "to": "09:00"}"#;
        format!(r#"{{"windows": [{}]}}"#, vec![one; count].join(","))
    };
    assert!(read::<TypeConfig>(windows(1000).as_bytes()).is_ok());
    let (code, field, detail) = refusal::<TypeConfig>(&json(&windows(1001)));
    assert_eq!((code, field.as_deref()), ("invalid_field", Some("windows")));
    assert_eq!(detail, "windows: must have at most 1000 items");
}

#[test]
fn a_field_given_twice_in_messagepack_is_refused() {
    let name = [&[0xab][..], b"concurrency"].concat();
    let bytes = [&[0x82][..], &name, &[5], &name, &[9]].concat();
    let body = Body::new(Encoding::MessagePack, bytes.into()).unwrap();
    let (_, field, detail) = refusal::<QueueConfig>(&body);
    assert_eq!(field.as_deref(), Some("concurrency"));
    assert_eq!(detail, "concurrency: is given twice");
}

#[test]
fn malformed_messagepack_is_described_in_a_sentence() {
    for (bytes, detail) in [
        (&[0x81][..], "it ends in the middle of a value"),
        (&[0xc1], "byte 0 begins no value"),
        (&[0x80, 0x80], "it goes on after its value, from byte 1"),
    ] {
        let problem = Body::new(Encoding::MessagePack, bytes.to_vec().into()).unwrap_err();
        assert_eq!(problem.detail(), format!("the body is not valid MessagePack: {detail}"));
    }
    let empty = Body::new(Encoding::MessagePack, Bytes::new()).unwrap();
    assert_eq!(refusal::<QueueConfig>(&empty).2, "the request has no body");
}
