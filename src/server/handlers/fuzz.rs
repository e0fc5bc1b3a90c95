//! Fuzz targets: requests in MessagePack, against `rmpv` and `serde_json`.

use bytes::Bytes;
use proptest::prelude::*;
use rmpv::Value;

use super::msgpack::{Malformed, join, split};

#[allow(dead_code, reason = "each crate uses a part of it")]
#[path = "../../core/fuzz/driver.rs"]
mod driver;

use driver::{bytes, fuzz, mutated};

/// Maximum growth of an envelope from MessagePack to JSON: one byte can become `false` and a comma.
const MAX_GROWTH: usize = 8;

fn pack(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

fn value() -> impl Strategy<Value = Value> + Clone {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        ".{0,40}".prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Binary),
        (any::<i8>(), bytes(40)).prop_map(|(tag, bytes)| Value::Ext(tag, bytes)),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::vec((inner.clone(), inner), 0..5).prop_map(Value::Map),
        ]
    })
    .boxed()
}

/// A map with the fields of a request, some of them kept, some of them lists of such maps.
fn request() -> impl Strategy<Value = Value> + Clone {
    let name =
        prop::sample::select(&["type", "data", "result", "error", "jobs", "reports", "é"][..]);
    let record = |inner: BoxedStrategy<Value>| {
        prop::collection::vec((name.clone().prop_map(Value::from), inner), 0..4)
            .prop_map(Value::Map)
    };
    let text = prop_oneof!["[a-z]{0,8}".prop_map(Value::from), value()].boxed();
    let item = record(text.clone()).boxed();
    let list = prop::collection::vec(item.clone(), 0..4).prop_map(Value::Array);
    record(prop_oneof![text, item, list].boxed()).boxed()
}

#[test]
fn a_request_is_refused_or_split_as_the_reference_reads_it() {
    let almost = request().prop_map(|request| pack(&request));
    fuzz(prop_oneof![2 => almost.clone(), 3 => mutated(almost), 1 => bytes(200)], |written| {
        let bytes = Bytes::from(written);
        let mut rest = &bytes[..];
        let reference = rmpv::decode::read_value(&mut rest);
        match split(&bytes) {
            Ok((json, kept)) => {
                prop_assert!(reference.is_ok() && rest.is_empty(), "{:?}", reference);
                prop_assert!(json.len() <= MAX_GROWTH * bytes.len());
                prop_assert!(serde_json::from_slice::<serde_json::Value>(&json).is_ok());
                for mut value in kept.iter().map(|value| &value[..]) {
                    prop_assert!(rmpv::decode::read_value(&mut value).is_ok());
                    prop_assert!(value.is_empty());
                }
            }
            Err(Malformed::Trailing(at)) => {
                prop_assert!(reference.is_ok());
                prop_assert_eq!(at, bytes.len() - rest.len());
            }
            Err(Malformed::Cut) => prop_assert!(reference.is_err()),
            // The one unused marker of the MessagePack specification; the reference reads it as
            // nil.
            Err(Malformed::Marker(at)) => prop_assert_eq!(bytes[at], 0xc1),
            // The reference accepts it, and JSON cannot represent it.
            Err(Malformed::Deep(_) | Malformed::Envelope(_)) => {}
        }
        Ok(())
    });
}

#[test]
fn the_unused_marker_is_refused_in_every_place() {
    let field = prop::sample::select(&["data", "jobs", "type"][..]);
    let values = || prop::collection::vec(value(), 0..5);
    fuzz((field, values(), values()), |(field, before, after)| {
        let mut written = vec![0x81, 0xa4];
        written.extend_from_slice(field.as_bytes());
        let count = u8::try_from(before.len() + 1 + after.len()).expect("nine at most");
        written.push(0x90 | count);
        written.extend(before.iter().flat_map(pack));
        let at = written.len();
        written.push(0xc1);
        written.extend(after.iter().flat_map(pack));
        prop_assert_eq!(split(&written.into()), Err(Malformed::Marker(at)));
        Ok(())
    });
}

#[test]
fn a_request_with_a_false_length_is_refused() {
    let marker = prop::sample::select(&[0xdd, 0xdf, 0xc6, 0xc9, 0xdb][..]);
    let field = prop::sample::select(&["data", "jobs", "type"][..]);
    fuzz((marker, field, any::<u32>(), bytes(40)), |(marker, field, length, rest)| {
        let mut written = vec![0x81, 0xa4];
        written.extend_from_slice(field.as_bytes());
        written.push(marker);
        written.extend_from_slice(&length.to_be_bytes());
        written.extend_from_slice(&rest);
        let most = rest.len();
        let outcome = split(&written.into());
        prop_assert!(length as usize <= most || outcome.is_err());
        Ok(())
    });
}

#[test]
fn an_answer_with_foreign_bytes_is_joined_without_a_panic() {
    fuzz(prop_oneof![bytes(200), mutated(value().prop_map(|value| pack(&value)))], |framed| {
        prop_assert!(join(&framed).len() <= framed.len());
        Ok(())
    });
}
