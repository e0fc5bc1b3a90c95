use std::fmt::Debug;

use serde::{Serialize, de::DeserializeOwned};

use super::*;
use crate::record;

/// A record of two releases.
#[derive(Clone, Debug, PartialEq)]
struct Old {
    first: u8,
    second: Option<String>,
    unknown: UnknownFields,
}

record!(Old { first, second });

#[derive(Clone, Debug, PartialEq)]
struct New {
    first: u8,
    second: Option<String>,
    third: Vec<u8>,
    fourth: Option<Old>,
    unknown: UnknownFields,
}

record!(New { first, second; third, fourth });

fn copied<T: DeserializeOwned>(value: &impl Serialize) -> T {
    // A reader that leaves a field would take it for the end.
    let bytes = rmp_serde::to_vec(&(value, "end")).unwrap();
    let (copy, end): (T, String) = rmp_serde::from_slice(&bytes).unwrap();
    assert_eq!(end, "end");
    copy
}

fn refused<T: DeserializeOwned + Debug>(value: &impl Serialize) -> String {
    rmp_serde::from_slice::<T>(&rmp_serde::to_vec(value).unwrap()).unwrap_err().to_string()
}

#[test]
fn an_older_release_keeps_the_fields_of_a_newer_one() {
    let old = Old { first: 1, second: Some("two".into()), unknown: UnknownFields::default() };
    let new = New {
        first: 1,
        second: None,
        third: vec![3, 4],
        fourth: Some(old.clone()),
        unknown: UnknownFields::default(),
    };
    let mut seen: Old = copied(&new);
    assert_eq!((seen.first, seen.unknown.as_slice().len()), (1, 2));
    seen.second = Some("changed".into());
    assert_eq!(copied::<New>(&seen), New { second: Some("changed".into()), ..new });
    // The newer release reads what the older one made.
    let read: New = copied(&old);
    assert_eq!((read.first, &read.second, read.third, read.fourth), (1, &old.second, vec![], None));
}

#[test]
fn a_record_within_a_record_keeps_its_own_fields() {
    let inner = New {
        first: 1,
        second: None,
        third: vec![3],
        fourth: None,
        unknown: UnknownFields::default(),
    };
    let seen: Vec<Old> = copied(&vec![inner.clone(), inner.clone()]);
    assert_eq!(copied::<Vec<New>>(&seen[1..].to_vec()), [inner]);
}

#[test]
fn every_kind_of_value_is_kept() {
    let fields = rmpv::Value::Array(vec![
        rmpv::Value::Nil,
        true.into(),
        u64::MAX.into(),
        i64::MIN.into(),
        0.1.into(),
        "text".into(),
        rmpv::Value::Binary(vec![0, 255]),
        rmpv::Value::Array(vec![1.into(), rmpv::Value::Map(vec![("k".into(), 7.into())])]),
    ]);
    let old = Old { first: 1, second: None, unknown: UnknownFields::new([fields, 9.into()]) };
    assert_eq!(copied::<Old>(&old), old);
    assert_eq!(copied::<Old>(&copied::<Old>(&old)), old);
}

#[test]
fn a_record_without_a_first_field_is_refused() {
    assert!(refused::<Old>(&(1,)).contains("second"));
    assert!(refused::<New>(&[0u8; 0]).contains("first"));
    refused::<Old>(&("one", "two"));
    refused::<New>(&(1, "two", "three"));
    refused::<Old>(&serde_json::json!({"first": 1, "second": null}));
}
