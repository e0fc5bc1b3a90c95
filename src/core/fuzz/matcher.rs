//! Matchers of jobs and filters of events.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::driver::{fuzz, json};
use crate::{
    event::{Filter, read},
    job::Attributes,
    queue::matcher::{Matcher, Subject},
};

const WORDS: &[&str] = &[
    "type",
    "priority",
    "attribute",
    "all",
    "any",
    "not",
    "eq",
    "in",
    "lt",
    "lte",
    "gt",
    "gte",
    "prefix",
    "exists",
    "mail",
    "region",
    "east",
    "source",
    "subject",
    "data",
    "/a/b",
    "/a/0",
    "a",
];

/// A value that is a matcher, or a filter, more often than noise is.
fn conditions(attributes: &'static str) -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        prop::sample::select(&["mail", "east", "ea", "", "é"][..]).prop_map(Value::from),
        (-3i64..5).prop_map(Value::from),
        prop::sample::select(&[0.5, 3.0, -0.0, 1e300][..]).prop_map(Value::from),
        prop::sample::select(&[u64::MAX, i64::MAX as u64, 1 << 53, (1 << 53) + 1][..])
            .prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
    ]
    .boxed();
    let test = (prop::sample::select(&["eq", "lt", "lte", "gt", "gte"][..]), scalar.clone())
        .prop_map(|(name, value)| json!({name: value}));
    let condition = prop_oneof![
        scalar.clone(),
        prop::collection::vec(scalar, 0..3).prop_map(Value::from),
        test,
        any::<bool>().prop_map(|exists| json!({"exists": exists})),
        Just(json!({"prefix": "ea"})),
        json(WORDS),
    ]
    .boxed();
    let name = prop::sample::select(&["region", "size", "/a/b"][..]);
    let leaf = prop_oneof![
        condition.clone().prop_map(|condition| json!({"type": condition})),
        (name, condition).prop_map(move |(name, condition)| json!({attributes: {name: condition}})),
        Just(json!({})),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(|all| json!({"all": all})),
            prop::collection::vec(inner.clone(), 0..3).prop_map(|any| json!({"any": any})),
            inner.prop_map(|not| json!({"not": not})),
        ]
    })
}

/// What the documents say of the three combinators, over the value as it was written.
fn combined(written: &Value, holds: &dyn Fn(&Value) -> bool) -> Option<bool> {
    let list =
        |name: &str| Some(written.get(name)?.as_array()?.iter().map(holds).collect::<Vec<_>>());
    if let Some(all) = list("all") {
        return Some(all.iter().all(|holds| *holds));
    }
    if let Some(any) = list("any") {
        return Some(any.is_empty() || any.contains(&true));
    }
    written.get("not").map(|not| !holds(not))
}

#[test]
fn a_matcher_agrees_with_its_parts_and_reads_as_written() {
    let attributes: Attributes =
        serde_json::from_value(json!({"region": "east", "size": 3})).unwrap();
    let job_type = "mail".parse().unwrap();
    let subject = Subject { job_type: &job_type, priority: 100, attributes: &attributes };
    fuzz(prop_oneof![3 => conditions("attribute"), 1 => json(WORDS)], |written| {
        let Ok(matcher) = serde_json::from_value::<Matcher>(written.clone()) else { return Ok(()) };
        let again: Matcher =
            serde_json::from_value(serde_json::to_value(&matcher).unwrap()).unwrap();
        prop_assert_eq!(&again, &matcher);
        let holds = |part: &Value| {
            serde_json::from_value::<Matcher>(part.clone()).unwrap().matches(subject)
        };
        if written.as_object().is_some_and(|fields| fields.len() == 1)
            && let Some(expected) = combined(&written, &holds)
        {
            prop_assert_eq!(matcher.matches(subject), expected);
        }
        if matcher.is_every(&job_type) {
            prop_assert!(matcher.matches(subject));
        }
        Ok(())
    });
}

#[test]
fn a_filter_agrees_with_its_parts_and_reads_as_written() {
    let event = json!({
        "specversion": "1.0", "id": "1", "source": "s", "type": "mail", "data": {
            "a": {"b": "east"},
        },
    });
    let event = read::structured(&event.to_string().into()).unwrap();
    let found: Attributes = serde_json::from_value(json!({"/a/b": "east"})).unwrap();
    fuzz(prop_oneof![3 => conditions("data"), 1 => json(WORDS)], |written| {
        let Ok(filter) = serde_json::from_value::<Filter>(written.clone()) else { return Ok(()) };
        let again: Filter = serde_json::from_value(serde_json::to_value(&filter).unwrap()).unwrap();
        prop_assert_eq!(&again, &filter);
        prop_assert_eq!(again.check(), filter.check());
        let holds = |part: &Value| {
            serde_json::from_value::<Filter>(part.clone()).unwrap().matches(&event, &found)
        };
        if written.as_object().is_some_and(|fields| fields.len() == 1)
            && let Some(expected) = combined(&written, &holds)
        {
            prop_assert_eq!(filter.matches(&event, &found), expected);
        }
        Ok(())
    });
}
