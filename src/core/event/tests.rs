//! Tables: what is an event and what is not, what filters let pass, what expressions and templates yield, which rules are good.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{
    Decision, Event, Filter, Template, Trigger, TriggerConfig, Triggers,
    expression::Expression,
    fields::JobFields,
    read,
    trigger::{Reply, TriggerOutcome, Wanted},
    value::Extension,
};
use crate::event::event_view::EventView;
use crate::{
    job::{Encoding, Payload, TriggerName},
    validate::ValidationError,
};

fn bytes(value: &Value) -> Bytes {
    value.to_string().into()
}

fn whole() -> Value {
    json!({"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.paid", "subject": "o-7", "time": "2026-01-31T08:00:00.5+01:00",
           "datacontenttype": "application/json", "dataschema": "https://x/y", "region": "east", "count": 3, "flag": true,
           "data": {"id": "o-7", "total": 12.5, "lines": [{"sku": "a", "n": 2}, {"sku": "b", "n": 1}], "ok": true}})
}

fn event() -> Event {
    read::structured(&bytes(&whole())).unwrap()
}

/// An event of this type and data.
fn carrying(data: Value) -> Event {
    let mut event = whole();
    event["data"] = data;
    read::structured(&bytes(&event)).unwrap()
}

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
    let text = r#"{"specversion":"1.0","id":"1","source":"s","type":"t","data": {"n": 1.0e2,  "b":10000000000000000000000}}"#;
    let event = read::structured(&Bytes::from(text)).unwrap();
    assert_eq!(event.data.unwrap(), Payload::json(r#"{"n": 1.0e2,  "b":10000000000000000000000}"#));
}

#[test]
fn binary_data_stays_binary() {
    let text = r#"{"specversion":"1.0","id":"1","source":"s","type":"t","datacontenttype":"image/png","data_base64":"AP8B"}"#;
    let event = read::structured(&Bytes::from(text)).unwrap();
    let data = event.data.clone().unwrap();
    assert_eq!(data.encoding, Encoding::MessagePack);
    assert_eq!(data.to_json().unwrap(), r#"{"$binary":"AP8B"}"#);
    assert_eq!(read::structured(&Bytes::from(serde_json::to_vec(&event).unwrap())).unwrap(), event);
    // Base64 of JSON is JSON if the media type says so.
    let text = r#"{"specversion":"1.0","id":"1","source":"s","type":"t","datacontenttype":"application/json","data_base64":"eyJhIjoxfQ=="}"#;
    assert_eq!(
        read::structured(&Bytes::from(text)).unwrap().data.unwrap(),
        Payload::json(r#"{"a":1}"#)
    );
}

/// Whatever data has been read, and whatever its media type says: what is written is read again, and shows the same.
#[test]
fn every_event_is_read_again_from_what_is_written_of_it() {
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
            let mut attributes = vec![("specversion", "1.0"), ("id", "1"), ("source", "s"), ("type", "t")];
            attributes.extend((!media.is_empty()).then_some(("datacontenttype", media)));
            let mut fields: Vec<_> = attributes.into_iter().map(|(name, text)| (name.into(), text.into())).collect();
            fields.push(("data".into(), value));
            read::structured_msgpack(&Bytes::from(bytes(&rmpv::Value::Map(fields))))
        } else {
            let headers = [("ce-specversion", &b"1.0"[..]), ("ce-id", b"1"), ("ce-source", b"s"), ("ce-type", b"t")];
            read::binary(headers.into_iter(), Some(media).filter(|media| !media.is_empty()), data.into())
        };
        // Bytes that are no JSON are no event if they are said to be.
        let Ok(event) = event else { return Ok(()) };
        let written = Bytes::from(serde_json::to_vec(&event).unwrap());
        let again = read::structured(&written).unwrap();
        let shown = |event: &Event| serde_json::from_slice::<Value>(&event.data.as_ref().unwrap().to_json().unwrap()).unwrap();
        proptest::prop_assert_eq!(shown(&again), shown(&event));
        proptest::prop_assert_eq!(Event { data: None, ..again }, Event { data: None, ..event });
    });
}

#[test]
fn what_is_no_event_is_refused_with_the_attribute_that_is_to_blame() {
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
fn a_batch_has_an_answer_for_each() {
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

fn binary(
    headers: &[(&str, &str)],
    content_type: Option<&str>,
    body: &'static [u8],
) -> Result<Event, ValidationError> {
    let required =
        [("ce-specversion", "1.0"), ("CE-Id", "1"), ("ce-source", "/s"), ("ce-type", "t")];
    let headers = required.iter().chain(headers).map(|(name, value)| (*name, value.as_bytes()));
    read::binary(headers, content_type, Bytes::from_static(body))
}

#[test]
fn the_binary_mode_takes_attributes_from_headers_and_the_body_as_it_is() {
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
        "no media type says JSON"
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
fn a_wrong_header_is_named() {
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
fn message_pack_says_the_same() {
    let event: Value = json!({"specversion": "1.0", "id": "1", "source": "s", "type": "t", "count": 3, "subject": null, "data": {"a": [1, 2]}});
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

/// Whatever bytes come in, reading them ends with an answer.
#[test]
fn no_bytes_are_too_strange() {
    proptest::proptest!(|(noise: Vec<u8>)| {
        let noise = Bytes::from(noise);
        let _ = read::structured(&noise);
        let _ = read::batch(&noise);
        let _ = read::structured_msgpack(&noise);
        let _ = read::batch_msgpack(&noise);
        let _ = read::binary([("ce-id", &noise[..])].into_iter(), None, noise.clone());
    });
}

#[test]
fn filters_see_the_whole_of_a_text_however_long_it_is() {
    let url = format!("https://x/{}", "y".repeat(5000));
    let event = carrying(json!({"url": url}));
    for (filter, passes) in [
        (json!({"data": {"/url": {"prefix": "https://x"}}}), true),
        (json!({"data": {"/url": {"exists": false}}}), false),
        (json!({"not": {"data": {"/url": {"prefix": "https://x"}}}}), false),
        (json!({"data": {"/url": {"gt": "https://x/z"}}}), false),
    ] {
        let rule = trigger(json!({"filter": filter, "enqueue": {"type": "x"}})).unwrap();
        assert_eq!(!Triggers::new(vec![rule]).decide(&event).is_empty(), passes, "{filter}");
    }
}

#[test]
fn filters_look_at_attributes_and_data() {
    let event = event();
    for (filter, passes) in [
        (json!({}), true),
        (json!({"type": "order.paid"}), true),
        (json!({"type": ["a", "order.paid"]}), true),
        (
            json!({"type": {"prefix": "order."}, "source": "/shop", "subject": {"exists": true}}),
            true,
        ),
        (json!({"type": "order"}), false),
        (json!({"source": {"prefix": "/warehouse"}}), false),
        (json!({"attribute": {"region": "east", "count": {"gte": 3}, "flag": true}}), true),
        (json!({"attribute": {"region": "west"}}), false),
        (json!({"attribute": {"nothing": {"exists": false}}}), true),
        (json!({"attribute": {"nothing": "x"}}), false),
        (json!({"attribute": {"datacontenttype": "application/json"}}), true),
        (json!({"data": {"/total": {"gt": 12, "lt": 13}, "/lines/1/sku": "b", "/ok": true}}), true),
        (json!({"data": {"/total": {"gt": 13}}}), false),
        (json!({"data": {"/lines": {"exists": true}}}), false),
        (json!({"data": {"/missing": {"exists": false}}}), true),
        (
            json!({"any": [{"type": "x"}, {"data": {"/id": "o-7"}}], "all": [{"subject": "o-7"}], "not": {"attribute": {"region": "west"}}}),
            true,
        ),
        (json!({"not": {"data": {"/id": "o-7"}}}), false),
    ] {
        let rule = trigger(json!({"filter": filter, "enqueue": {"type": "x"}})).unwrap();
        assert_eq!(Triggers::new(vec![rule]).decide(&event).len(), usize::from(passes), "{filter}");
    }
}

#[test]
fn expressions_yield_values() {
    let event = event();
    let look = EventView::new(&event, &BTreeMap::new());
    for (text, wanted) in [
        ("id", json!("1")),
        ("type", json!("order.paid")),
        ("region", json!("east")),
        ("count", json!(3)),
        ("flag", json!(true)),
        ("nothing", json!(null)),
        ("data.id", json!("o-7")),
        ("data.total", json!(12.5)),
        ("data.lines[*].sku", json!(["a", "b"])),
        ("data.lines[?n > `1`].sku | [0]", json!("a")),
        ("sum(data.lines[*].n)", json!(3)),
        ("length(data.lines)", json!(2)),
        ("join('-', [source, data.id])", json!("/shop-o-7")),
        ("data.{order: id, first: lines[0].sku}", json!({"order": "o-7", "first": "a"})),
        ("data.missing || 'default'", json!("default")),
        ("data.ok && 'succeeded' || 'failed'", json!("succeeded")),
        ("to_number(data.id)", json!(null)),
        ("data.lines[::-1].sku", json!(["b", "a"])),
        ("sort_by(data.lines, &n)[0].sku", json!("b")),
        ("`{\"a\": [1]}`", json!({"a": [1]})),
    ] {
        let rule = trigger(json!({"enqueue": {"type": "x", "data": [{"$expr": text}]}})).unwrap();
        let Some(Decision::Enqueue(wanted_job)) = rule.decide(&look) else {
            panic!("{text}: {:?}", rule.decide(&look))
        };
        let yielded: Value = serde_json::from_slice(&wanted_job.data.bytes).unwrap();
        assert_eq!(yielded, json!([wanted]), "{text}");
    }
}

#[test]
fn what_is_no_bounded_expression_is_refused() {
    for (text, why) in [
        ("", "is no JMESPath expression"),
        ("data.", "is no JMESPath expression"),
        ("data..id", "is no JMESPath expression"),
        ("data[", "is no JMESPath expression"),
        ("nofunction(data)", "no function of JMESPath"),
        ("length()", "takes at least 1"),
        ("length(data, data)", "and it takes 1"),
        ("data[2147483647]", "must not count past"),
        ("data[::2147483647]", "must not count past"),
        ("data[::0]", "step 0"),
        (&format!("data{}", ".a".repeat(600)), "at most 1024 bytes"),
        (&format!("a{}", ".a".repeat(200)), "steps after one another"),
        (&format!("{}a{}", "(".repeat(65), ")".repeat(65)), "at most 64 brackets"),
        (&format!("{}a", "!".repeat(65)), "at most 64 brackets"),
        (&format!("a{}", "[*]".repeat(340)), "at most 64 brackets"),
        (&format!("a{}", ".*".repeat(500)), "at most 64 brackets"),
        ("[@,@]|".repeat(20).trim_end_matches('|'), "more than 200 times"),
        (&format!("data{}", "[].[@,@][]".repeat(9)), "more than 200 times"),
        (
            "map(&map(&map(&[@,@,@,@,@,@], [@,@,@,@,@,@]), [@,@,@,@,@,@]), data)",
            "more than 200 times",
        ),
    ] {
        let error = Expression::read(text).expect_err(text);
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn an_expression_that_would_answer_too_much_is_stopped() {
    let data =
        json!({"glue": "g".repeat(2000), "list": vec!["x"; 2000], "long": "y".repeat(200_000)});
    for text in [
        "join(data.glue, data.list)",
        "[data.long, data.long, data.long, data.long, data.long, data.long]",
    ] {
        let rule = trigger(json!({"enqueue": {"type": "x", "data": {"$expr": text}}})).unwrap();
        let event = carrying(data.clone());
        let decision = rule.decide(&EventView::new(&event, &BTreeMap::new()));
        assert!(
            matches!(&decision, Some(Decision::Failed(why)) if why.contains("more than 1048576 bytes")),
            "{text}: {decision:?}"
        );
    }
}

/// Whatever text a rule's author writes, reading it ends with an answer, and so does evaluating what was taken.
#[test]
fn no_expression_is_too_strange() {
    let event = event();
    let parts = [
        "data", "lines", ".", "[*]", "[]", "[?", "]", "(", ")", "&", "|", "||", "&&", "!", "@",
        "*", "`1`", "'x'", "length(", "map(&", ",", "{a:", "}", "[0]", "[-1:]", "==",
    ];
    proptest::proptest!(|(picks in proptest::collection::vec(0..parts.len(), 0..24))| {
        let text: String = picks.iter().map(|pick| parts[*pick]).collect();
        if let Ok(rule) = trigger(json!({"enqueue": {"type": "x", "data": {"$expr": text}}})) {
            let _ = rule.decide(&EventView::new(&event, &BTreeMap::new()));
        }
    });
}

fn trigger(config: Value) -> Result<Trigger, ValidationError> {
    let config: TriggerConfig = serde_json::from_value(config).unwrap();
    Trigger::new(&"t".parse::<TriggerName>().unwrap(), &config)
}

fn wanted(config: &Value, event: &Event) -> Wanted {
    let rule = trigger(config.clone()).unwrap();
    match rule.decide(&EventView::new(event, &BTreeMap::new())) {
        Some(Decision::Enqueue(wanted)) => *wanted,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rule_fills_the_fields_of_a_job() {
    let event = event();
    let job = wanted(
        &json!({"enqueue": {
            "type": {"$expr": "join('-', ['ship', region])"}, "priority": {"$expr": "count"}, "delay_seconds": 1.5,
            "correlation_key": {"$expr": "data.id"}, "max_attempts": {"$expr": "data.missing"},
            "attributes": {"region": {"$expr": "region"}, "none": {"$expr": "nothing"}, "fixed": "x"},
            "headers": {"x-order": {"$expr": "data.id"}}, "keep_result": "once", "unique": {"key": {"$expr": "id"}, "while": "live"},
            "retry": {"strategy": "exponential", "config": {"base_seconds": 1}},
            "data": {"order": {"$expr": "data.id"}, "lines": [{"$expr": "data.lines[0]"}], "kind": "x"},
        }}),
        &event,
    );
    assert_eq!(
        (job.job_type.as_str(), job.fields.options.priority, job.fields.options.max_attempts),
        ("ship-east", Some(3), None)
    );
    assert_eq!(job.fields.correlation_key.as_deref(), Some("o-7"));
    assert_eq!(job.fields.options.attributes.keys().collect::<Vec<_>>(), ["fixed", "region"]);
    assert_eq!(
        serde_json::from_slice::<Value>(&job.data.bytes).unwrap(),
        json!({"order": "o-7", "lines": [{"sku": "a", "n": 2}], "kind": "x"})
    );
}

#[test]
fn without_data_a_job_carries_the_events_own_bytes() {
    let text = r#"{"specversion":"1.0","id":"1","source":"s","type":"t","data": {"n": 1.0e2}}"#;
    let event = read::structured(&Bytes::from(text)).unwrap();
    for config in [
        json!({"enqueue": {"type": "x"}}),
        json!({"enqueue": {"type": "x", "data": {"$expr": "data"}}}),
    ] {
        assert_eq!(wanted(&config, &event).data, Payload::json(r#"{"n": 1.0e2}"#));
    }
    let event = binary(&[], Some("image/png"), &[1, 2, 3]).unwrap();
    assert_eq!(
        wanted(&json!({"enqueue": {"type": "x"}}), &event).data.to_json().unwrap(),
        r#"{"$binary":"AQID"}"#
    );
    let empty = binary(&[], None, b"").unwrap();
    assert_eq!(wanted(&json!({"enqueue": {"type": "x"}}), &empty).data, Payload::null());
}

#[test]
fn a_job_s_id_follows_from_the_trigger_and_the_event() {
    let id = |name: &str, source: &str, id: &str| {
        let mut event = event();
        (event.source, event.id) = (source.into(), id.into());
        let config = serde_json::from_value(json!({"enqueue": {"type": "x"}})).unwrap();
        Trigger::new(&name.parse().unwrap(), &config).unwrap().job_id(&event)
    };
    assert_eq!(id("t", "s", "1"), id("t", "s", "1"));
    assert_eq!(
        id("t", "s", "1").as_str(),
        "ev-6eef537c2a366c6828cdc3855a2b501f1e6c3a24",
        "ids must stay what they are from release to release"
    );
    let all = [
        id("t", "s", "1"),
        id("u", "s", "1"),
        id("t", "r", "1"),
        id("t", "s", "2"),
        id("t", "s1", ""),
        id("ts", "", "1"),
    ];
    let unique: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(unique.len(), all.len());
}

#[test]
fn a_bad_rule_is_refused_with_the_field_that_is_to_blame() {
    for (config, code, field) in [
        (json!({}), "invalid_trigger", "enqueue"),
        (
            json!({"enqueue": {"type": "x"}, "complete": {"type": "x", "correlation_key": "k"}}),
            "invalid_trigger",
            "complete",
        ),
        (json!({"enqueue": {"priority": 1}}), "invalid_trigger", "enqueue.type"),
        (json!({"enqueue": {"type": "not a name"}}), "invalid_trigger", "enqueue.type"),
        (json!({"enqueue": {"type": "x", "id": "mine"}}), "unknown_field", "enqueue.id"),
        (json!({"enqueue": {"type": "x", "prioritty": 1}}), "unknown_field", "enqueue.prioritty"),
        (
            json!({"enqueue": {"type": "x", "priority": "high"}}),
            "invalid_trigger",
            "enqueue.priority",
        ),
        (
            json!({"enqueue": {"type": "x", "windows": [{"from": "8"}]}}),
            "invalid_trigger",
            "enqueue.windows",
        ),
        (
            json!({"enqueue": {"type": "x", "priority": {"$expr": "data["}}}),
            "invalid_expression",
            "enqueue.priority",
        ),
        (
            json!({"enqueue": {"type": "x", "data": {"a": [{"$expr": "nope()"}]}}}),
            "invalid_expression",
            "enqueue.data.a[0]",
        ),
        (
            json!({"enqueue": {"type": "x", "data": {"$expr": "id", "more": 1}}}),
            "invalid_expression",
            "enqueue.data",
        ),
        (
            json!({"enqueue": {"type": "x", "data": {"$expr": 7}}}),
            "invalid_expression",
            "enqueue.data",
        ),
        // What could be read, and would be refused of every event.
        (
            json!({"enqueue": {"type": "x", "max_attempts": 0}}),
            "invalid_max_attempts",
            "enqueue.max_attempts",
        ),
        (
            json!({"enqueue": {"type": "x", "run_at": "2030-01-01T00:00:00Z", "delay_seconds": 1}}),
            "invalid_trigger",
            "enqueue.delay_seconds",
        ),
        (
            json!({"enqueue": {"type": "x", "delay_seconds": 400_000_000}}),
            "invalid_trigger",
            "enqueue.delay_seconds",
        ),
        (
            json!({"enqueue": {"type": "x", "timeout_seconds": 0}}),
            "invalid_trigger",
            "enqueue.timeout_seconds",
        ),
        (
            json!({"enqueue": {"type": "x", "deadline_seconds": 0}}),
            "invalid_trigger",
            "enqueue.deadline_seconds",
        ),
        (
            json!({"enqueue": {"type": "x", "correlation_key": ""}}),
            "invalid_trigger",
            "enqueue.correlation_key",
        ),
        (
            json!({"enqueue": {"type": "x", "unique": {"key": "", "while": "live"}}}),
            "invalid_trigger",
            "enqueue.unique.key",
        ),
        (
            json!({"enqueue": {"type": "x", "attributes": {"a": "x".repeat(257)}}}),
            "invalid_trigger",
            "enqueue.attributes.a",
        ),
        (
            json!({"enqueue": {"type": "x", "keep_result": {"seconds": 400_000_000}}}),
            "invalid_trigger",
            "enqueue.keep_result.seconds",
        ),
        (
            json!({"enqueue": {"type": "x", "headers": {"Host": "x"}}}),
            "invalid_trigger",
            "enqueue.headers.Host",
        ),
        (
            json!({"enqueue": {"type": "x", "headers": (0..32).map(|n| (format!("x-{n}"), json!("v"))).collect::<Map<_, _>>()}}),
            "invalid_trigger",
            "enqueue.headers",
        ),
        (
            json!({"enqueue": {"type": "x", "callback_url": "ftp://x"}}),
            "invalid_trigger",
            "enqueue.callback_url",
        ),
        (
            json!({"enqueue": {"type": "x", "retry": {"strategy": "exponential", "config": {"base_seconds": -1}}}}),
            "invalid_trigger",
            "enqueue.retry.config.base_seconds",
        ),
        (
            json!({"complete": {"correlation_key": {"$expr": "id"}}}),
            "invalid_trigger",
            "complete.type",
        ),
        (json!({"complete": {"type": "x"}}), "invalid_trigger", "complete.correlation_key"),
        (
            json!({"complete": {"type": "x", "correlation_key": {"$expr": "id"}, "status": "done"}}),
            "invalid_trigger",
            "complete.status",
        ),
        (
            json!({"complete": {"type": "x", "correlation_key": {"$expr": "id"}, "priority": 1}}),
            "unknown_field",
            "complete.priority",
        ),
        (
            json!({"complete": {"type": "x", "correlation_key": {"$expr": "id"}, "attempt": 0}}),
            "invalid_trigger",
            "complete.attempt",
        ),
        (
            json!({"filter": {"type": {}}, "enqueue": {"type": "x"}}),
            "invalid_trigger",
            "filter.type",
        ),
        (
            json!({"filter": {"data": {"no-slash": 1}}, "enqueue": {"type": "x"}}),
            "invalid_trigger",
            "filter.data",
        ),
        (
            json!({"filter": {"any": [{}, {"attribute": {"x": []}}]}, "enqueue": {"type": "x"}}),
            "invalid_trigger",
            "filter.any[1].attribute.x",
        ),
    ] {
        let fault = trigger(config.clone()).expect_err(&config.to_string());
        assert_eq!((fault.code.as_str(), fault.field.as_str()), (code, field), "{config}: {fault}");
    }
    for (config, why) in [
        (json!({"filter": {"typ": "x"}}), "unknown field `typ`"),
        (json!({"filters": {}}), "unknown field `filters`"),
        (json!({"filter": {"type": {"like": "x"}}}), "unknown field `like`"),
    ] {
        let error = serde_json::from_value::<TriggerConfig>(config).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// What an expression yields is checked as what stands there is: whoever tries a rule hears what the server would say.
#[test]
fn a_job_that_would_be_refused_is_not_decided_on() {
    let event = carrying(json!({"none": 0, "at": "2030-01-01T00:00:00Z", "key": ""}));
    for (enqueue, why) in [
        (json!({"max_attempts": {"$expr": "data.none"}}), "max_attempts: must be 1 to 65535"),
        (
            json!({"run_at": {"$expr": "data.at"}, "delay_seconds": 1}),
            "delay_seconds: must not be given together with run_at",
        ),
        (
            json!({"correlation_key": {"$expr": "data.key"}}),
            "correlation_key: must be 1 to 256 bytes",
        ),
        (
            json!({"attributes": {"a": {"$expr": "data.at"}, "": 1}}),
            "attributes: must have names of 1 to 64 bytes",
        ),
    ] {
        let mut config = json!({"enqueue": {"type": "x"}});
        config["enqueue"].as_object_mut().unwrap().extend(enqueue.as_object().unwrap().clone());
        let decided = trigger(config).unwrap().decide(&EventView::new(&event, &BTreeMap::new()));
        assert_eq!(decided, Some(Decision::Failed(why.into())));
    }
    let fine = json!({"enqueue": {"type": "x", "run_at": {"$expr": "data.nothing"}, "delay_seconds": 1, "correlation_key": null}});
    let decided = trigger(fine).unwrap().decide(&EventView::new(&event, &BTreeMap::new()));
    assert!(
        matches!(decided, Some(Decision::Enqueue(_))),
        "what yields nothing is left out: {decided:?}"
    );
}

fn replied(complete: &Value, event: &Event) -> Result<Reply, String> {
    match trigger(json!({ "complete": complete }))
        .unwrap()
        .decide(&EventView::new(event, &BTreeMap::new()))
    {
        Some(Decision::Complete(reply)) => Ok(*reply),
        Some(Decision::Failed(why)) => Err(why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rule_makes_the_reply_to_a_job() {
    let event = carrying(
        json!({"key": "k-1", "number": 17, "attempt": "2", "ok": false, "why": "no stock", "answer": {"a": 1}}),
    );
    let base = |more: Value| {
        let mut complete = json!({"type": "ask", "correlation_key": {"$expr": "data.key"}});
        complete.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        complete
    };
    let reply = replied(&base(json!({"result": {"$expr": "data.answer"}})), &event).unwrap();
    assert_eq!(
        (reply.job_type.as_str(), reply.correlation_key.as_str(), reply.attempt),
        ("ask", "k-1", None)
    );
    assert_eq!(reply.said, TriggerOutcome::Succeeded(Some(Payload::json(r#"{"a":1}"#))));
    let plain = replied(&base(json!({})), &event).unwrap();
    assert_eq!(
        plain.said,
        TriggerOutcome::Succeeded(event.data.clone()),
        "the event's data is the result"
    );
    let by_number =
        replied(&base(json!({"correlation_key": {"$expr": "data.number"}, "attempt": {"$expr": "data.attempt"}})), &event).unwrap();
    assert_eq!((by_number.correlation_key.as_str(), by_number.attempt), ("17", Some(2)));
    let failed = replied(
        &base(json!({"status": {"$expr": "data.ok"}, "message": {"$expr": "data.why"}, "error": {"code": 7}, "retryable": false})),
        &event,
    )
    .unwrap();
    assert_eq!(
        failed.said,
        TriggerOutcome::Failed {
            message: Some("no stock".into()),
            details: Some(r#"{"code":7}"#.into()),
            retryable: false
        }
    );
    let words = replied(
        &base(json!({"status": {"$expr": "data.ok && 'succeeded' || 'failed'"}, "error": null})),
        &event,
    )
    .unwrap();
    assert_eq!(
        words.said,
        TriggerOutcome::Failed { message: None, details: None, retryable: true }
    );
    for (more, why) in [
        (json!({"correlation_key": {"$expr": "data.missing"}}), "correlation_key: must be a text"),
        (json!({"status": {"$expr": "data.why"}}), "status: must be succeeded"),
        (json!({"status": {"$expr": "data.missing"}}), "status: must not be null"),
        (json!({"attempt": {"$expr": "data.why"}}), "attempt: must be a whole number"),
        (json!({"attempt": {"$expr": "`-1`"}}), "attempt: must be a whole number"),
        (
            json!({"status": "failed", "message": {"$expr": "data.number"}}),
            "message: must be a text",
        ),
        (json!({"type": {"$expr": "data.answer"}}), "type: must be a text"),
        (json!({"result": {"$expr": "length(data.number)"}}), "result: "),
    ] {
        let error = replied(&base(more), &event).unwrap_err();
        assert!(error.starts_with(why), "{error}");
    }
}

#[test]
fn what_is_large_about_a_failure_is_cut_and_the_job_fails_all_the_same() {
    let event = carrying(json!({"why": "é".repeat(5000), "more": "x".repeat(20_000)}));
    let complete = json!({"type": "ask", "correlation_key": "k", "status": "failed", "message": {"$expr": "data.why"}, "error": {"$expr": "data.more"}});
    let TriggerOutcome::Failed { message, details, .. } = replied(&complete, &event).unwrap().said
    else {
        panic!("it failed")
    };
    assert_eq!(
        (message.unwrap().len(), details.as_deref()),
        (4096, Some(r#"{"left_out_bytes":20002}"#))
    );
}

#[test]
fn every_field_of_a_rule_is_read_and_named_once() {
    let error = serde_json::from_value::<JobFields>(json!({"nothing": 1})).unwrap_err().to_string();
    for name in JobFields::names() {
        assert!(error.contains(&format!("`{name}`")), "{name}");
    }
    assert_eq!(error.matches('`').count() / 2, JobFields::names().count() + 1, "{error}");
    assert_eq!(JobFields::read(Map::new()).unwrap(), JobFields::default());
    let fault = JobFields::read(Map::from_iter([
        ("priority".into(), json!(1)),
        ("weight".into(), json!(-1)),
    ]))
    .unwrap_err();
    assert_eq!(fault.field, "weight");
}

#[test]
fn a_template_shows_what_was_written() {
    let config = json!({"filter": {"type": {"prefix": "order."}}, "enqueue": {"type": "x", "data": {"a": {"$expr": "data.id"}}}});
    let read: TriggerConfig = serde_json::from_value(config.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), config);
    assert_eq!(Template(json!(1)).compile().unwrap(), super::template::Compiled::Literal(json!(1)));
    assert_eq!(Filter::default(), serde_json::from_value(json!({})).unwrap());
}
