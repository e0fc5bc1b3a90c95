//! What a matcher matches.

use rstest::rstest;
use serde_json::{Value, json};

use crate::{
    job::Attributes,
    queue::matcher::{Matcher, Subject},
};

/// Matches a job of type `mail`, priority 100, region `east`, size 3, share 0.5, vip.
fn matches(matcher: Value) -> bool {
    let matcher: Matcher = serde_json::from_value(matcher).unwrap();
    let attributes: Attributes = serde_json::from_value(
        json!({"region": "east", "size": 3, "share": 0.5, "vip": true, "max": u64::MAX}),
    )
    .unwrap();
    matcher.matches(Subject {
        job_type: &"mail".parse().unwrap(),
        priority: 100,
        attributes: &attributes,
    })
}

#[rstest]
#[case::everything(json!({}), true)]
#[case::a_type(json!({"type": "mail"}), true)]
#[case::another_type(json!({"type": "invoice"}), false)]
#[case::one_of_some_types(json!({"type": ["invoice", "mail"]}), true)]
#[case::a_prefix_of_types(json!({"type": {"prefix": "ma"}}), true)]
#[case::priority(json!({"priority": 100}), true)]
#[case::priority_at_most(json!({"priority": {"lte": 100}}), true)]
#[case::priority_below(json!({"priority": {"lt": 100}}), false)]
#[case::priority_between(json!({"priority": {"gt": 99, "lt": 101}}), true)]
#[case::priority_outside(json!({"priority": {"gt": 99, "lt": 100}}), false)]
#[case::attributes_all_hold(json!({"attribute": {"region": "east", "size": {"gte": 3}}}), true)]
#[case::one_does_not(json!({"attribute": {"region": "east", "size": {"gt": 3}}}), false)]
#[case::an_absent_one(json!({"attribute": {"tenant": "a"}}), false)]
#[case::an_absent_one_in_a_list(json!({"attribute": {"tenant": ["a"]}}), false)]
#[case::an_absent_one_compared(json!({"attribute": {"tenant": {"lt": 5}}}), false)]
#[case::absence(json!({"attribute": {"tenant": {"exists": false}}}), true)]
#[case::presence(json!({"attribute": {"region": {"exists": true}}}), true)]
#[case::presence_of_an_absent_one(json!({"attribute": {"tenant": {"exists": true}}}), false)]
#[case::absence_of_a_present_one(json!({"attribute": {"region": {"exists": false}}}), false)]
#[case::a_text_is_not_a_number(json!({"attribute": {"size": "3"}}), false)]
#[case::a_number_is_not_a_text(json!({"attribute": {"region": {"gt": 0}}}), false)]
#[case::a_whole_number_equals_its_double(json!({"attribute": {"size": 3.0}}), true)]
#[case::a_fraction(json!({"attribute": {"share": {"gt": 0, "lt": 1}}}), true)]
#[case::a_large_number(json!({"attribute": {"max": {"eq": u64::MAX, "gt": i64::MAX}}}), true)]
#[case::text_compares_by_bytes(json!({"attribute": {"region": {"gt": "eas", "lt": "west"}}}), true)]
#[case::in_and_prefix(
    json!({"attribute": {"region": {"in": ["east", "north"], "prefix": "ea"}}}),
    true,
)]
#[case::a_number_has_no_prefix(json!({"attribute": {"size": {"prefix": "3"}}}), false)]
#[case::a_boolean_is_its_word(
    json!({"attribute": {"vip": [true], "region": {"in": ["east", false]}}}),
    true,
)]
#[case::all(json!({"all": [{"type": "mail"}, {"priority": 1}]}), false)]
#[case::any(json!({"any": [{"type": "mail"}, {"priority": 1}]}), true)]
#[case::none_of_any(json!({"any": [{"priority": 2}, {"priority": 1}]}), false)]
#[case::any_of_nothing(json!({"any": []}), true)]
#[case::not(json!({"not": {"type": "mail"}}), false)]
#[case::not_not(json!({"not": {"not": {"type": "mail"}}}), true)]
fn a_matcher_matches(#[case] matcher: Value, #[case] expected: bool) {
    assert_eq!(matches(matcher), expected);
}

#[test]
fn an_unknown_comparison_is_refused() {
    assert!(serde_json::from_value::<Matcher>(json!({"priority": {"below": 3}})).is_err());
    assert!(serde_json::from_value::<Matcher>(json!({"regoin": "east"})).is_err());
}

#[test]
fn a_matcher_declares_every_attribute_that_it_looks_at() {
    let matcher: Matcher = serde_json::from_value(json!({
        "attribute": {"a": 1},
        "all": [{"attribute": {"b": 1}}],
        "any": [{"not": {"attribute": {"c": 1}}}],
        "not": {"attribute": {"d": 1}},
    }))
    .unwrap();
    let mut names = std::collections::BTreeSet::new();
    matcher.declare(&mut names);
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
}
