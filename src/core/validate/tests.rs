//! Every bound of a configuration: a value just inside is accepted, and one just outside is refused
//! with the name of its field.

use crate::error_code::ErrorCode;
use rstest::rstest;
use serde_json::{Value, json};

use crate::{
    job::{
        Attributes, Spec,
        retry::Retry,
        spec::KeepResult,
        type_config::{Delivery, TypeConfig},
    },
    queue::config::QueueConfig,
    time::Seconds,
    validate::{
        ValidationError, check_attempts, check_attributes, check_deadline, check_headers,
        check_job, check_queue, check_type, check_url, target_url,
    },
};

fn queue(json: Value) -> Result<(), ValidationError> {
    check_queue(&serde_json::from_value(json).unwrap())
}

fn job_type(json: Value) -> Result<(), ValidationError> {
    check_type(&serde_json::from_value(json).unwrap())
}

/// A queue with one constraint that has `fields` in addition to its name and limit.
fn constraint(fields: &Value) -> Value {
    let mut constraint = json!({"name": "c", "concurrency": 1});
    constraint.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({ "constraints": [constraint] })
}

fn matching(matcher: &Value) -> Value {
    constraint(&json!({ "match": matcher }))
}

fn nested(levels: usize) -> Value {
    (1..levels).fold(json!({"type": "a"}), |inner, _| json!({ "not": inner }))
}

fn attributes(count: usize) -> Value {
    (0..count).map(|n| (format!("a{n}"), json!(1))).collect::<serde_json::Map<_, _>>().into()
}

fn push(fields: &Value) -> Value {
    let mut target = json!({"url": "http://127.0.0.1:9000/work"});
    target.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({ "target": target })
}

#[test]
fn the_defaults_are_good() {
    check_queue(&QueueConfig::default()).unwrap();
    check_type(&TypeConfig::default()).unwrap();
}

#[rstest]
#[case::step(json!({"order_step_seconds": 300}))]
#[case::exact(json!({"order_step_seconds": 0, "concurrency": 0}))]
#[case::ageing(json!({"order": "priority", "ageing_seconds": 0.001}))]
#[case::partitions(json!({"partition_by": "n".repeat(64)}))]
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
#[case::many_values(matching(&json!({"attribute": {"a": {"in": vec![1; 101]}}})), "constraints[0].match.attribute.a.in", "must have 1 to 100 values")]
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
#[case::spans(
    json!({
        "timeout_seconds": 0.001,
        "response_timeout_seconds": 31_536_000,
        "lease_seconds": 0.001,
        "deadline_seconds": 315_360_000,
    }),
)]
#[case::kept(json!({"retention_seconds": 0, "keep_result": {"seconds": 315_360_000}}))]
#[case::at_most_once(json!({"delivery": "at_most_once"}))]
#[case::attempts(
    json!({
        "max_attempts": 65535,
        "retry": {
            "strategy": "exponential",
            "config": {"base_seconds": 86_400, "max_seconds": 2_592_000},
        },
    }),
)]
#[case::pointers(
    json!({"attributes": {"whole": "", "region": "/address/region", "odd": "/a~1b/~0/0"}}),
)]
#[case::windows(json!({"windows": vec![json!({"from": "08:00", "to": "09:00"}); 32]}))]
#[case::placeholders(push(&json!({"url": "https://example.org:8443/{type}/x?id={id}"})))]
#[case::secrets(
    push(&json!({"signing_secret": ["whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz", "any text"]})),
)]
#[case::basic_auth(
    push(
        &json!({"basic_auth": {"username": "u", "password": "p:w"}, "headers": {"X-Key": "a\tb"}}),
    ),
)]
#[case::authorization(push(&json!({"headers": {"Authorization": "Bearer x"}})))]
#[case::sqs(
    json!({"target": {"sqs": {"queue_url": "https://sqs.eu-west-1.amazonaws.com/1/jobs"}}}),
)]
#[case::sns(
    json!({
        "target": {"sns": {"topic_arn": "arn:aws:sns:eu-west-1:1:jobs"}, "complete": "on_delivery"},
    }),
)]
#[case::bus(json!({"target": {"event_bridge": {}}}))]
#[case::function(
    json!({
        "start": "plain",
        "target": {"lambda": {"function": "work:live", "invocation": "wait"}},
    }),
)]
#[case::plain({ let mut config = push(&json!({})); config["start"] = json!("plain"); config })]
fn a_type_within_its_bounds_is_good(#[case] config: Value) {
    job_type(config).unwrap();
}

#[rstest]
#[case::timeout(json!({"timeout_seconds": 0}), "timeout_seconds", "must be 0.001 to 31536000")]
#[case::response(
    json!({"response_timeout_seconds": 31_536_001}),
    "response_timeout_seconds",
    "must be 0.001 to 31536000",
)]
#[case::lease(json!({"lease_seconds": 0}), "lease_seconds", "must be 0.001 to 31536000")]
#[case::deadline(json!({"deadline_seconds": 0}), "deadline_seconds", "must be 0.001 to 315360000")]
#[case::retention(
    json!({"retention_seconds": 315_360_001}),
    "retention_seconds",
    "must be 0 to 315360000",
)]
#[case::result(
    json!({"keep_result": {"seconds": 315_360_001}}),
    "keep_result.seconds",
    "must be 0 to 315360000",
)]
#[case::backoff(
    json!({"retry": {"strategy": "exponential", "config": {"max_seconds": 2_592_001}}}),
    "retry.config.max_seconds",
    "must be 0 to 2592000",
)]
#[case::windows(json!({"windows": vec![json!({
    "from": "08:00",
    "to": "09:00",
}); 33]}), "windows", "must have at most 32 entries")]
#[case::many_attributes(json!({
    "attributes": (0..17).map(|n| (format!("a{n}"), json!("/a"))).collect::<serde_json::Map<_,
    _>>(),
}),
    "attributes", "must have at most 16 entries")]
#[case::attribute_name(
    json!({"attributes": {"": "/a"}}),
    "attributes",
    "must have names of 1 to 64 bytes",
)]
#[case::pointer(
    json!({"attributes": {"a": "address"}}),
    "attributes.a",
    "must be a JSON pointer such as /address/region, at most 1024 bytes",
)]
#[case::callback(
    json!({"callback_url": "ftp://example.org/"}),
    "callback_url",
    "must be an http or https URL",
)]
#[case::header_name(
    json!({"headers": {"a b": "x"}}),
    "headers",
    "must have names of 1 to 128 letters, digits and !#$%&'*+-.^_`|~",
)]
#[case::header_value(
    json!({"headers": {"a": "x\r\nb: y"}}),
    "headers.a",
    "must be at most 4096 bytes of visible ASCII",
)]
#[case::header_reserved(
    json!({"headers": {"Content-Length": "0"}}),
    "headers.Content-Length",
    "must not be given: the delivery sets it",
)]
#[case::not_pull(json!({"target": {"pull": false}}), "target.pull", "must be true")]
#[case::plain_pull(
    json!({"start": "plain", "target": {"pull": true}}),
    "start",
    "must not be `plain` without a push target",
)]
#[case::sqs_url(
    json!({"target": {"sqs": {"queue_url": "jobs"}}}),
    "target.sqs.queue_url",
    "must be the URL of a queue",
)]
#[case::sqs_scheme(
    json!({"target": {"sqs": {"queue_url": "ftp://h/q"}}}),
    "target.sqs.queue_url",
    "must be an http or https URL",
)]
#[case::sns_arn(
    json!({"target": {"sns": {"topic_arn": "arn:aws:sqs:eu-west-1:1:jobs"}}}),
    "target.sns.topic_arn",
    "must be the ARN of a topic, such as arn:aws:sns:eu-west-1:111122223333:jobs",
)]
#[case::bus(
    json!({"target": {"event_bridge": {"bus": ""}}}),
    "target.event_bridge.bus",
    "must be 1 to 1600 bytes",
)]
#[case::source(
    json!({"target": {"event_bridge": {"source": "aws.sqs"}}}),
    "target.event_bridge.source",
    "must not begin with `aws.`",
)]
#[case::detail_type(
    json!({"target": {"event_bridge": {"detail_type": "x".repeat(129)}}}),
    "target.event_bridge.detail_type",
    "must be 1 to 128 bytes",
)]
#[case::function(
    json!({"target": {"lambda": {"function": ""}}}),
    "target.lambda.function",
    "must be 1 to 256 bytes",
)]
#[case::plain_later(
    json!({"start": "plain", "target": {"sqs": {"queue_url": "https://h/q"}}}),
    "start",
    "must not be `plain` without a target whose result is in its answer",
)]
#[case::url_scheme(
    push(&json!({"url": "file:///etc/passwd"})),
    "target.url",
    "must be an http or https URL",
)]
#[case::url_nonsense(
    push(&json!({"url": "nonsense"})),
    "target.url",
    "must be an http or https URL",
)]
#[case::url_credentials(
    push(&json!({"url": "http://u:p@h/"})),
    "target.url",
    "must not have credentials in it",
)]
#[case::url_length(
    push(&json!({"url": format!("http://h/{}", "x".repeat(2048))})),
    "target.url",
    "must be at most 2048 bytes",
)]
#[case::url_placeholder(
    push(&json!({"url": "http://h/{job}"})),
    "target.url",
    "must have only {type} and {id} in braces",
)]
#[case::url_host(
    push(&json!({"url": "http://{type}.example.org/"})),
    "target.url",
    "can have {type} and {id} only in its path and query",
)]
#[case::url_port(
    push(&json!({"url": "http://example.org:808{id}/"})),
    "target.url",
    "can have {type} and {id} only in its path and query",
)]
#[case::url_user(
    push(&json!({"url": "http://{id}@example.org/"})),
    "target.url",
    "can have {type} and {id} only in its path and query",
)]
#[case::user(push(
    &json!({"basic_auth": {"username": "a:b", "password": ""}}),
), "target.basic_auth.username",
    "must be at most 256 bytes without `:` and control characters")]
#[case::password(push(
    &json!({"basic_auth": {"username": "a", "password": "a\nb"}}),
), "target.basic_auth.password",
    "must be at most 1024 bytes without control characters")]
#[case::two_credentials(push(
    &json!({"basic_auth": {"username": "a", "password": "b"}, "headers": {"authorization": "x"}}),
),
    "target.headers.authorization", "goes not together with `basic_auth`")]
#[case::three_secrets(
    push(&json!({"signing_secret": ["a", "b", "c"]})),
    "target.signing_secret",
    "must have at most 2 entries",
)]
#[case::bad_secret(push(&json!({"signing_secret": "whsec_c2hvcnQ="})), "target.signing_secret",
    "must be 1 to 256 bytes of text, or `whsec_` and the base64 of 24 to 64 bytes")]
fn a_type_outside_a_bound_is_refused_by_the_fields_name(
    #[case] config: Value,
    #[case] field: &str,
    #[case] message: &str,
) {
    assert_eq!(
        job_type(config),
        Err(ValidationError {
            code: ErrorCode::InvalidType,
            field: field.into(),
            message: message.into(),
        },),
    );
}

#[rstest]
#[case(
    json!({"delivery": "at_most_once"}),
    "must not be `plain` without `delivery: at_least_once`",
)]
#[case(
    json!({"on_response_timeout": "wait"}),
    "must not be `plain` without `on_response_timeout: fail`",
)]
#[case(json!({"concurrency": 3}), "must not be `plain` with `concurrency`")]
fn a_plain_start_goes_with_nothing_that_needs_a_claim(
    #[case] fields: Value,
    #[case] message: &str,
) {
    let mut config = push(&json!({}));
    config["start"] = json!("plain");
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    assert_eq!(
        job_type(config),
        Err(ValidationError {
            code: ErrorCode::InvalidType,
            field: "start".into(),
            message: message.into(),
        },),
    );
}

#[rstest]
#[case(0, Delivery::AtLeastOnce, Some("must be 1 to 65535"))]
#[case(1, Delivery::AtMostOnce, None)]
#[case(2, Delivery::AtMostOnce, Some("must be 1 with `delivery: at_most_once`"))]
#[case(2, Delivery::AtLeastOnce, None)]
fn attempts_have_a_code_of_their_own(
    #[case] attempts: u16,
    #[case] delivery: Delivery,
    #[case] message: Option<&str>,
) {
    let expected = message.map(|message| ValidationError {
        code: ErrorCode::InvalidMaxAttempts,
        field: "max_attempts".into(),
        message: message.into(),
    });
    assert_eq!(check_attempts(attempts, delivery).err(), expected);
    let config = TypeConfig { max_attempts: Some(attempts), delivery, ..TypeConfig::default() };
    assert_eq!(check_type(&config).err(), expected);
}

#[rstest]
#[case::target_field(
    json!({"target": {"url": "http://h/", "headrs": {}}}),
    "unknown field `headrs`",
)]
#[case::both_targets(
    json!({"target": {"url": "http://h/", "pull": true}}),
    "`url` and what goes with it, or `pull: true` alone",
)]
#[case::pull_with_headers(
    json!({"target": {"pull": true, "headers": {}}}),
    "`url` and what goes with it, or `pull: true` alone",
)]
#[case::no_target(json!({"target": {}}), "`url` and what goes with it, or `pull: true` alone")]
#[case::secret(
    json!({"target": {"url": "http://h/", "signing_secret": 5}}),
    "expected one secret, or a list of them",
)]
#[case::field(json!({"atempts": 3}), "unknown field `atempts`")]
fn a_type_of_another_shape_is_refused_by_the_fields_name(#[case] config: Value, #[case] why: &str) {
    let error = serde_json::from_value::<TypeConfig>(config).unwrap_err().to_string();
    assert!(error.contains(why), "{error}");
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

/// What is shown of a configuration is the same configuration when it is sent back.
#[test]
fn a_configuration_reads_as_it_is_written() {
    let config: TypeConfig = serde_json::from_value(json!({
        "target": {
            "url": "http://h/{id}",
            "basic_auth": {"username": "u", "password": "p"},
            "signing_secret": ["a", "b"],
            "encoding": "msgpack",
        },
        "retry": {
            "strategy": "exponential",
            "config": {"jitter": "none"},
        }, "keep_result": "once", "windows": [{"from": "08:00", "to": "09:00"}]
    }))
    .unwrap();
    assert_eq!(
        serde_json::from_value::<TypeConfig>(serde_json::to_value(&config).unwrap()).unwrap(),
        config,
    );
    let pull = TypeConfig::default();
    assert_eq!(
        serde_json::from_value::<TypeConfig>(serde_json::to_value(&pull).unwrap()).unwrap(),
        pull,
    );
    let queue: QueueConfig = serde_json::from_value(json!({"concurrency": 3, "constraints": [
        {"name": "c", "match": {
            "type": ["a"],
            "attribute": {"f": true, "s": {"in": [1, "x"], "exists": true}},
            "not": {"priority": 1.5},
        }, "per": "t",
         "rate": {"count": 1, "per_seconds": 0.5}}]}))
    .unwrap();
    assert_eq!(
        serde_json::from_value::<QueueConfig>(serde_json::to_value(&queue).unwrap()).unwrap(),
        queue,
    );
    let packed = rmp_serde::to_vec_named(&queue).unwrap();
    assert_eq!(
        rmp_serde::from_slice::<QueueConfig>(&packed).unwrap().constraints[0].matcher,
        queue.constraints[0].matcher,
    );
}

#[test]
fn given_attributes_have_bounds() {
    let check = |json: Value| {
        check_attributes(&serde_json::from_value::<Attributes>(json).unwrap())
            .map_err(|fault| fault.to_string())
    };
    assert_eq!(check(json!({"a".repeat(64): "x".repeat(256), "n": 1.5})), Ok(()));
    assert_eq!(
        check(json!({"a": "x".repeat(257)})),
        Err("attributes.a must be at most 256 bytes".into()),
    );
    assert_eq!(
        check(json!({"a".repeat(65): 1})),
        Err("attributes must have names of 1 to 64 bytes".into()),
    );
    assert_eq!(check(attributes(17)), Err("attributes must have at most 16 entries".into()));
}

/// A good job, with `change` made to it, and the field that is refused.
#[rstest]
#[case::good(|_: &mut Spec| (), None)]
#[case::timeout(|spec: &mut Spec| spec.timeout = Seconds::new(0), Some("timeout_seconds"))]
#[case::attempts(|spec: &mut Spec| spec.max_attempts = 0, Some("max_attempts"))]
#[case::correlation(
    |spec: &mut Spec| spec.correlation_key = Some("k".repeat(257)),
    Some("correlation_key"),
)]
#[case::unique(
    |spec: &mut Spec| spec.unique = serde_json::from_value(
        json!({"key": "", "while": "live"}),
    ).unwrap(),
    Some("unique.key"),
)]
#[case::period(|spec: &mut Spec| spec.unique = serde_json::from_value(
    json!({"key": "k", "while": "live", "period_seconds": 0}),
).unwrap(),
    Some("unique.period_seconds"))]
#[case::callback(
    |spec: &mut Spec| spec.callback_url = "gopher://h/".parse().ok(),
    Some("callback_url"),
)]
#[case::headers(
    |spec: &mut Spec| spec.headers = [("host".into(), "x".into())].into(),
    Some("headers.host"),
)]
#[case::result(
    |spec: &mut Spec| spec.keep_result = KeepResult::For(Seconds::new(400_000_000)),
    Some("keep_result.seconds"),
)]
#[case::attributes(
    |spec: &mut Spec| spec.attributes = [
        ("a".into(), crate::job::Value::Text("x".repeat(257))),
    ].into(),
    Some("attributes.a"),
)]
fn a_job_outside_a_bound_is_refused_by_the_fields_name(
    #[case] change: fn(&mut Spec),
    #[case] field: Option<&str>,
) {
    let mut spec = crate::job::tests::spec();
    change(&mut spec);
    assert_eq!(
        check_job(&spec, Delivery::AtLeastOnce).err().map(|fault| fault.field).as_deref(),
        field,
    );
}

#[test]
fn other_bounds_of_a_job_hold() {
    assert!(
        check_deadline(Seconds::new(0)).is_err() && check_deadline(Seconds::from_millis(1)).is_ok(),
    );
    assert!(check_headers(&(0..33).map(|n| (format!("h{n}"), String::new())).collect()).is_err());
    assert!(check_url("callback_url", &"https://u@h/".parse().unwrap()).is_err());
    assert!(crate::validate::check_retry(&Retry::default()).is_ok());
}

#[test]
fn a_targets_url_names_the_job() {
    assert_eq!(
        target_url("http://h/{type}/{id}?id={id}", "mail", "a:1"),
        "http://h/mail/a:1?id=a:1",
    );
}
