//! Attributes by JSON pointer, against a reader that builds the whole value.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::{json, packed};
use crate::job::{
    Attributes, Encoding, Payload, Value,
    extract::{TEXT_BYTES, extract, is_pointer},
};

fn pointers(list: &[&str]) -> BTreeMap<String, String> {
    list.iter().map(|pointer| (format!("at {pointer}"), (*pointer).to_owned())).collect()
}

/// What the whole value has at each pointer.
fn looked_up(pointers: &BTreeMap<String, String>, data: &serde_json::Value) -> Attributes {
    let value = |pointer: &str| match data.pointer(pointer)? {
        serde_json::Value::Bool(value) => Some(Value::Text(value.to_string())),
        serde_json::Value::Number(number) => Some(Value::Number(number.clone())),
        serde_json::Value::String(text) if text.len() <= TEXT_BYTES => {
            Some(Value::Text(text.clone()))
        }
        _ => None,
    };
    pointers.iter().filter_map(|(name, pointer)| Some((name.clone(), value(pointer)?))).collect()
}

fn both(data: &serde_json::Value) -> [Payload; 2] {
    let json = Payload::json(data.to_string());
    let packed = Payload { encoding: Encoding::MessagePack, bytes: json.to_msgpack().unwrap() };
    [json, packed]
}

#[test]
fn every_kind_of_value_is_taken_or_ignored_as_the_rules_say() {
    let data = json!({
        "text": "east", "yes": true, "n": -3, "half": 0.5, "big": u64::MAX, "none": null,
        "list": [10, [20]], "map": {"a/b": 1, "m~n": 2, "": 3},
        "long": "x".repeat(TEXT_BYTES + 1), "full": "x".repeat(TEXT_BYTES)
    });
    let asked = pointers(&[
        "/text",
        "/yes",
        "/n",
        "/half",
        "/big",
        "/none",
        "/list",
        "/list/0",
        "/list/1/0",
        "/list/2",
        "/list/00",
        "/list/+1",
        "/list/-",
        "/map",
        "/map/a~1b",
        "/map/m~0n",
        "/map/",
        "/long",
        "/full",
        "/absent",
        "/text/0",
        "",
    ]);
    for payload in both(&data) {
        let found = extract(&asked, &payload, TEXT_BYTES).unwrap();
        assert_eq!(found, looked_up(&asked, &data));
        assert_eq!(found.len(), 11, "{found:?}");
    }
}

#[test]
fn a_pointer_to_the_whole_takes_a_plain_value() {
    for payload in both(&json!("east")) {
        assert_eq!(
            extract(&pointers(&[""]), &payload, TEXT_BYTES).unwrap(),
            Attributes::from([("at ".into(), Value::Text("east".into()))])
        );
    }
}

#[test]
fn the_last_of_equal_keys_counts() {
    let payload = Payload::json(r#"{"a": {"b": 1}, "a": {"c": 2}}"#);
    let asked = pointers(&["/a/b", "/a/c"]);
    assert_eq!(
        extract(&asked, &payload, TEXT_BYTES).unwrap(),
        Attributes::from([("at /a/c".into(), Value::Number(2.into()))])
    );
    let map = |key: &str, value| rmpv::Value::Map(vec![(key.into(), value)]);
    let twice =
        rmpv::Value::Map(vec![("a".into(), map("b", 1.into())), ("a".into(), map("c", 2.into()))]);
    assert_eq!(
        extract(&asked, &packed(&twice), TEXT_BYTES).unwrap(),
        extract(&asked, &payload, TEXT_BYTES).unwrap()
    );
}

#[test]
fn binary_and_keys_that_are_no_text_are_no_attribute() {
    let value = rmpv::Value::Map(vec![
        (1.into(), "one".into()),
        ("bytes".into(), rmpv::Value::Binary(vec![1])),
    ]);
    assert_eq!(
        extract(&pointers(&["/1", "/bytes"]), &packed(&value), TEXT_BYTES).unwrap(),
        Attributes::new()
    );
}

#[test]
fn without_pointers_the_data_is_not_looked_at() {
    assert_eq!(
        extract(&BTreeMap::new(), &Payload::json("not JSON"), TEXT_BYTES).unwrap(),
        Attributes::new()
    );
    assert!(extract(&pointers(&["/a"]), &Payload::json("not JSON"), TEXT_BYTES).is_err());
}

#[rstest]
#[case("", true)]
#[case("/", true)]
#[case("/a/~0~1", true)]
#[case("a", false)]
#[case("/a~", false)]
#[case("/a~2", false)]
fn a_pointer_has_a_form(#[case] text: &str, #[case] good: bool) {
    assert_eq!(is_pointer(text), good);
}

proptest! {
    #[test]
    fn the_walk_finds_what_the_whole_value_has(
        data in json(),
        asked in prop::collection::vec("(/([ab0-2]|~0|~1){0,2}){0,4}", 1..6),
    ) {
        let asked = pointers(&asked.iter().map(String::as_str).collect::<Vec<_>>());
        let expected = looked_up(&asked, &data);
        for payload in both(&data) {
            // An object that represents another value of MessagePack is not a map there.
            if payload.encoding == Encoding::Json || !data.to_string().contains('$') {
                prop_assert_eq!(&extract(&asked, &payload, TEXT_BYTES).unwrap(), &expected);
            }
        }
    }
}
