//! What a payload may be, and that both encodings say the same.

use base64::Engine as _;
use proptest::prelude::*;
use rmpv::Value as V;
use rstest::rstest;
use serde_json::json;

use super::{json, packed};
use crate::job::{Encoding, Payload, payload::MAX_DEPTH};

fn message_pack(bytes: &[u8]) -> Payload {
    Payload { encoding: Encoding::MessagePack, bytes: bytes.to_vec().into() }
}

fn unpacked(payload: &Payload) -> V {
    rmpv::decode::read_value(&mut &payload.to_msgpack().unwrap()[..]).unwrap()
}

#[rstest]
#[case::nothing("", "EOF")]
#[case::unfinished("[1, 2", "EOF")]
#[case::more_than_one("1 2", "trailing")]
#[case::lone_surrogate(r#""\ud800""#, "hex escape")]
#[case::beyond_a_double("[1e999]", "out of range")]
#[case::a_word("nope", "expected ident")]
fn json_that_is_no_value_is_refused(#[case] text: &'static str, #[case] why: &str) {
    let error = Payload::json(text).check(MAX_DEPTH).unwrap_err().to_string();
    assert!(error.contains(why), "{error}");
}

#[rstest]
#[case::nothing(&[], "ends in the middle")]
#[case::a_cut_number(&[0xcd, 1], "ends in the middle")]
#[case::a_cut_text(&[0xa3, b'a'], "ends in the middle")]
#[case::a_cut_list(&[0x92, 0xc0], "ends in the middle")]
#[case::a_list_longer_than_memory(&[0xdd, 0xff, 0xff, 0xff, 0xff], "ends in the middle")]
#[case::a_map_longer_than_memory(&[0xdf, 0xff, 0xff, 0xff, 0xff, 0xc0], "ends in the middle")]
#[case::a_text_that_is_not_utf_8(&[0xa1, 0xff], "not UTF-8")]
#[case::the_unused_marker(&[0xc1], "starts no value")]
#[case::more_than_one(&[0xc0, 0xc0], "more bytes after")]
fn message_pack_that_is_no_value_is_refused(#[case] bytes: &[u8], #[case] why: &str) {
    let error = message_pack(bytes).check(MAX_DEPTH).unwrap_err().to_string();
    assert!(error.contains(why), "{error}");
}

#[test]
fn texts_of_json_are_utf_8() {
    assert!(Payload::json(&b"\"\xff\""[..]).check(MAX_DEPTH).is_err());
}

#[test]
fn nesting_is_bounded_in_both_encodings() {
    let lists = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    let maps = |n: usize| format!("{}\"x\"{}", r#"{"a":"#.repeat(n), "}".repeat(n));
    for text in [lists(64), maps(64)] {
        let payload = Payload::json(text);
        payload.check(64).unwrap();
        let packed = message_pack(&payload.to_msgpack().unwrap());
        packed.check(64).unwrap();
        assert_eq!(packed.to_json().unwrap(), payload.bytes);
        assert!(payload.check(63).unwrap_err().to_string().contains("at most 63 levels"));
        assert!(packed.check(63).unwrap_err().to_string().contains("at most 63 levels"));
    }
    // Deep enough to overflow the stack of a recursive reader.
    assert!(
        Payload::json(lists(2_000_000))
            .check(64)
            .unwrap_err()
            .to_string()
            .contains("at most 64 levels")
    );
    assert!(
        message_pack(&vec![0x91; 4_000_000])
            .check(64)
            .unwrap_err()
            .to_string()
            .contains("at most 64 levels")
    );
}

#[rstest]
#[case::binary(V::Binary(b"hi".to_vec()), json!({"$binary": "aGk="}))]
#[case::extension(V::Ext(-1, vec![0, 0, 0, 1]), json!({"$ext": {"type": -1, "data": "AAAAAQ=="}}))]
#[case::infinity(V::F64(f64::NEG_INFINITY), json!({"$float": "-Infinity"}))]
#[case::not_a_number(V::F64(f64::NAN), json!({"$float": "NaN"}))]
#[case::a_key_that_is_a_number(V::Map(vec![(1.into(), "a".into())]), json!({"$map": [[1, "a"]]}))]
#[case::a_map_that_looks_like_binary(
    V::Map(vec![("$binary".into(), "aGk=".into())]),
    json!({"$map": [["$binary", "aGk="]]}),
)]
#[case::a_map_that_does_not_quite(
    V::Map(vec![("$binary".into(), "hi!".into())]),
    json!({"$binary": "hi!"}),
)]
#[case::the_largest_number(V::from(u64::MAX), json!(u64::MAX))]
#[case::a_whole_double(V::F64(1.0), json!(1.0))]
fn what_only_message_pack_can_say_has_a_form_in_json(
    #[case] value: V,
    #[case] shown: serde_json::Value,
) {
    let json = packed(&value).to_json().unwrap();
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&json).unwrap(), shown);
    assert_eq!(format!("{:?}", unpacked(&Payload::json(json))), format!("{value:?}"));
}

/// Each level would be read twice if a list of pairs were read before it is known to be one.
#[test]
fn nested_listed_maps_take_no_time_to_read() {
    let text = format!("{}1{}", r#"{"$map": [["#.repeat(30), ", 1], 0]}".repeat(30));
    Payload::json(text).to_msgpack().unwrap();
}

/// Any MessagePack value without doubles that are no number, which equal nothing.
fn any_value() -> impl Strategy<Value = V> {
    let key = || {
        prop_oneof![
            "[a-c]{0,2}",
            Just("$binary".to_owned()),
            Just("$map".to_owned()),
            Just("$float".to_owned())
        ]
    };
    let leaf = prop_oneof![
        Just(V::Nil),
        any::<bool>().prop_map(V::from),
        any::<i64>().prop_map(V::from),
        any::<u64>().prop_map(V::from),
        any::<f64>().prop_map(V::from),
        prop_oneof!["\\PC{0,40}", Just("Infinity".to_owned())].prop_map(V::from),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(V::from),
        prop::collection::vec(any::<u8>(), 0..9)
            .prop_map(|bytes| { base64::engine::general_purpose::STANDARD.encode(bytes).into() }),
        (any::<i8>(), prop::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(kind, bytes)| V::Ext(kind, bytes)),
    ];
    leaf.prop_recursive(5, 64, 20, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..20).prop_map(V::Array),
            prop::collection::btree_map(key(), inner.clone(), 0..3).prop_map(|map| V::Map(
                map.into_iter().map(|(key, value)| (key.into(), value)).collect()
            )),
            (key(), inner.clone()).prop_map(|(key, value)| V::Map(vec![(key.into(), value)])),
            prop::collection::vec((inner.clone(), inner), 1..3).prop_map(V::Map),
        ]
    })
}

/// The same value with the keys of its text-keyed maps in order, each once, its last value
/// standing: order says nothing in a map.
fn settled(value: V) -> V {
    match value {
        V::Array(list) => V::Array(list.into_iter().map(settled).collect()),
        V::Map(map) if map.iter().all(|(key, _)| key.is_str()) => {
            let map: std::collections::BTreeMap<_, _> = map
                .into_iter()
                .map(|(key, value)| (key.as_str().unwrap().to_owned(), settled(value)))
                .collect();
            V::Map(map.into_iter().map(|(key, value)| (key.into(), value)).collect())
        }
        V::Map(map) => {
            V::Map(map.into_iter().map(|(key, value)| (settled(key), settled(value))).collect())
        }
        value => value,
    }
}

proptest! {
    #[test]
    fn message_pack_shown_as_json_loses_nothing(value in any_value()) {
        let payload = packed(&value);
        payload.check(MAX_DEPTH).unwrap();
        let json = Payload::json(payload.to_json().unwrap());
        json.check(MAX_DEPTH).unwrap();
        prop_assert_eq!(settled(unpacked(&json)), settled(value));
    }

    #[test]
    fn json_shown_as_message_pack_loses_nothing(value in json()) {
        let payload = Payload::json(value.to_string());
        payload.check(MAX_DEPTH).unwrap();
        let packed = message_pack(&payload.to_msgpack().unwrap());
        packed.check(MAX_DEPTH).unwrap();
        let back: serde_json::Value = serde_json::from_slice(&packed.to_json().unwrap()).unwrap();
        // Only a listed map that needed no list comes back as a plain one.
        if !value.to_string().contains("$map") {
            prop_assert_eq!(back, value);
        }
    }

    #[test]
    fn the_check_takes_what_a_reader_takes_and_nothing_else(
        bytes in prop::collection::vec(any::<u8>(), 0..12),
    ) {
        let mut rest = &bytes[..];
        let read = rmpv::decode::read_value(&mut rest);
        // The reader also takes texts that are not UTF-8, and the unused marker for nil.
        let error = message_pack(&bytes).check(MAX_DEPTH).err().map(|error| error.to_string());
        match error {
            None => prop_assert!(read.is_ok() && rest.is_empty()),
            Some(error) if read.is_ok() && rest.is_empty() => prop_assert!(
                error.contains("UTF-8") || error.contains("starts no value"),
            ),
            Some(_) => {}
        }
        let json = Payload::json(bytes.clone());
        prop_assert_eq!(
            json.check(MAX_DEPTH).is_ok(),
            serde_json::from_slice::<serde_json::Value>(&bytes).is_ok(),
        );
    }
}
