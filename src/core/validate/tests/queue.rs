//! The bounds of a queue.

use rstest::rstest;
use serde_json::{Value, json};

use super::{attributes, constraint, matching, nested, queue};
use crate::{error_code::ErrorCode, queue::config::QueueConfig, validate::ValidationError};

#[rstest]
#[case::step(json!({"order_step_seconds": 300}))]
#[case::exact(json!({"order_step_seconds": 0, "concurrency": 0}))]
#[case::ageing(json!({"order": "priority", "ageing_seconds": 0.001}))]
#[case::partitions(json!({"partition_by": "n".repeat(64)}))]
#[case::two_attributes(json!({"partition_by": "tenant", "partition_then_by": "user"}))]
#[case::strict_order(json!({"partition_by": "tenant", "strict_order": true}))]
#[case::constraints(
    json!({
        "constraints": (0..32).map(
            |n| json!({"name": format!("c{n}"), "concurrency": 0}),
        ).collect::<Vec<_>>(),
    }),
)]
#[case::name(constraint(&json!({"name": "é".repeat(32), "per": "tenant"})))]
#[case::rate_alone(
    json!({
        "constraints": [
            {"name": "r", "rate": {"count": 1_000_000, "per_seconds": 0.001, "burst": 1_000_000}},
        ],
    }),
)]
#[case::slow_rate(constraint(&json!({"rate": {"count": 1, "per_seconds": 2_592_000}})))]
#[case::deep(matching(&nested(8)))]
#[case::wide(matching(&json!({"attribute": attributes(63), "not": {"type": "a"}})))]
#[case::list(matching(&json!({"attribute": {"a": (0..100).collect::<Vec<_>>()}})))]
#[case::comparisons(
    matching(
        &json!({
            "type": ["a", "b"],
            "priority": {"lte": 10},
            "attribute": {"x": {"exists": false}, "y": {"prefix": "eu-"}},
        }),
    ),
)]
fn a_queue_within_its_bounds_is_good(#[case] config: Value) {
    queue(config).unwrap();
}

#[rstest]
#[case::step(json!({"order_step_seconds": 300.001}), "order_step_seconds", "must be 0 to 300")]
#[case::ageing_without_priority(
    json!({"ageing_seconds": 5}),
    "ageing_seconds",
    "must be given only with `order: priority`",
)]
#[case::ageing(
    json!({"order": "priority", "ageing_seconds": 0}),
    "ageing_seconds",
    "must be 0.001 to 31536000",
)]
#[case::partitions(json!({"partition_by": ""}), "partition_by", "must be 1 to 64 bytes")]
#[case::second_alone(
    json!({"partition_then_by": "user"}),
    "partition_then_by",
    "must be given only with `partition_by`",
)]
#[case::second_the_same(
    json!({"partition_by": "user", "partition_then_by": "user"}),
    "partition_then_by",
    "must differ from `partition_by`",
)]
#[case::second_with_strict_order(
    json!({"partition_by": "tenant", "partition_then_by": "user", "strict_order": true}),
    "partition_then_by",
    "must not be given with `strict_order`",
)]
#[case::strict_order_without_partitions(
    json!({"strict_order": true}),
    "strict_order",
    "must be given only with `partition_by`",
)]
#[case::strict_order_by_priority(
    json!({"partition_by": "tenant", "strict_order": true, "order": "priority"}),
    "strict_order",
    "must not be given with `order: priority`",
)]
#[case::strict_order_with_a_throttler(
    json!({"partition_by": "tenant", "strict_order": true, "throttler": {"plugin": "p"}}),
    "strict_order",
    "must not be given with a `throttler`",
)]
#[case::constraints(json!({
    "constraints": (0..33).map(
        |n| json!({"name": format!("c{n}"), "concurrency": 0}),
    ).collect::<Vec<_>>(),
}),
    "constraints", "must have at most 32 entries")]
#[case::no_name(constraint(&json!({"name": ""})), "constraints[0].name", "must be 1 to 64 bytes")]
#[case::same_name(json!({
    "constraints": [
        {"name": "a", "concurrency": 1},
        {"name": "b", "concurrency": 1},
        {"name": "a", "concurrency": 1},
    ],
}),
    "constraints[2].name", "must differ from the names of the other constraints")]
#[case::no_limit(
    json!({"constraints": [{"name": "a"}]}),
    "constraints[0].concurrency",
    "must be given, unless `rate` is",
)]
#[case::per(
    constraint(&json!({"per": "n".repeat(65)})),
    "constraints[0].per",
    "must be 1 to 64 bytes",
)]
#[case::rate_count(
    constraint(&json!({"rate": {"count": 0, "per_seconds": 1}})),
    "constraints[0].rate.count",
    "must be 1 to 1000000",
)]
#[case::rate_span(
    constraint(&json!({"rate": {"count": 1, "per_seconds": 0}})),
    "constraints[0].rate.per_seconds",
    "must be 0.001 to 2592000",
)]
#[case::rate_burst(
    constraint(&json!({"rate": {"count": 1, "per_seconds": 1, "burst": 0}})),
    "constraints[0].rate.burst",
    "must be 1 to 1000000",
)]
#[case::deep(
    matching(&nested(9)),
    "constraints[0].match.not.not.not.not.not.not.not.not",
    "must have at most 8 levels",
)]
#[case::wide(matching(&json!({"any": [{"attribute": attributes(64)}, {"type": "a"}]})),
    "constraints[0].match.any[1]", "must have at most 64 conditions in all")]
#[case::attribute_name(
    matching(&json!({"attribute": {"": 1}})),
    "constraints[0].match.attribute",
    "must have names of 1 to 64 bytes",
)]
#[case::attribute_text(matching(&json!({"all": [{"attribute": {"a": "x".repeat(257)}}]})),
    "constraints[0].match.all[0].attribute.a", "must be at most 256 bytes")]
#[case::no_value(
    matching(&json!({"attribute": {"a": []}})),
    "constraints[0].match.attribute.a",
    "must have 1 to 100 values",
)]
#[case::many_values(
    matching(&json!({"attribute": {"a": {"in": vec![1; 101]}}})),
    "constraints[0].match.attribute.a.in",
    "must have 1 to 100 values",
)]
#[case::no_comparison(matching(&json!({"priority": {}})), "constraints[0].match.priority",
    "must have one of eq, in, lt, lte, gt, gte, prefix, exists")]
#[case::absent_and_compared(matching(&json!({"attribute": {"a": {"exists": false, "gt": 1}}})),
    "constraints[0].match.attribute.a.exists", "must be the only comparison if it is false")]
#[case::type_number(
    matching(&json!({"type": ["a", 1]})),
    "constraints[0].match.type[1]",
    "must be text",
)]
#[case::priority_text(
    matching(&json!({"priority": {"lt": "5"}})),
    "constraints[0].match.priority.lt",
    "must be a number",
)]
#[case::priority_prefix(
    matching(&json!({"priority": {"prefix": "5"}})),
    "constraints[0].match.priority.prefix",
    "must be given only with texts",
)]
fn a_queue_outside_a_bound_is_refused_by_the_fields_name(
    #[case] config: Value,
    #[case] field: &str,
    #[case] message: &str,
) {
    assert_eq!(
        queue(config),
        Err(ValidationError {
            code: ErrorCode::InvalidQueue,
            field: field.into(),
            message: message.into(),
        },),
    );
}

#[rstest]
#[case::comparison(matching(&json!({"priority": {"below": 3}})), "unknown field `below`")]
#[case::value(matching(&json!({"priority": null})), "")]
#[case::nested_list(matching(&json!({"attribute": {"a": [[1]]}})), "expected a text or a number")]
#[case::matcher(matching(&json!({"regoin": "east"})), "unknown field `regoin`")]
#[case::order(json!({"order": "random"}), "unknown variant `random`")]
fn a_queue_of_another_shape_is_refused_by_the_fields_name(
    #[case] config: Value,
    #[case] why: &str,
) {
    match serde_json::from_value::<QueueConfig>(config) {
        Ok(_) => assert_eq!(why, "", "null is absent"),
        Err(error) => assert!(error.to_string().contains(why) && !why.is_empty(), "{error}"),
    }
}
