//! The bounds of a job type.

use rstest::rstest;
use serde_json::{Value, json};

use super::{job_type, push};
use crate::{
    error_code::ErrorCode,
    job::type_config::{Delivery, TypeConfig},
    queue::config::QueueConfig,
    validate::{
        ValidationError, accept_type, check_attempts, check_queue, check_type, no_external_target,
        target_url,
    },
};

#[test]
fn the_defaults_are_good() {
    check_queue(&QueueConfig::default()).unwrap();
    check_type(&TypeConfig::default()).unwrap();
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
#[case::retry_targets({
    let mut config = push(&json!({}));
    config["retry_targets"] = json!({"eu": "https://eu.example.org/{type}"});
    config
})]
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
#[case::retry_targets_of_workers(
    json!({"target": {"pull": true}, "retry_targets": {"eu": "https://eu.example.org/"}}),
    "retry_targets",
    "must be given only with a `target` that has `url`",
)]
#[case::retry_targets_of_the_default_target(
    json!({"retry_targets": {"eu": "https://eu.example.org/"}}),
    "retry_targets",
    "must be given only with a `target` that has `url`",
)]
#[case::retry_target(
    json!({
        "target": {"url": "https://example.org/"},
        "retry_targets": {"eu": "https://{id}.example.org/"},
    }),
    "retry_targets.eu",
    "can have {type} and {id} only in its path and query",
)]
#[case::many_retry_targets(
    json!({"retry_targets": (0..17).map(|n| (format!("t{n}"), json!("https://example.org/")))
        .collect::<serde_json::Map<_, _>>()}),
    "retry_targets",
    "must have at most 16 entries",
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
    "target.headers.authorization", "must not be given together with `basic_auth`")]
#[case::credentials_for_jobs(
    json!({"headers": {"authorization": "x"}}),
    "headers.authorization",
    "must not be given: credentials belong to the target of the type",
)]
#[case::callback_secret(
    json!({"callback_signing_secret": ["a", ""]}),
    "callback_signing_secret",
    "must be 1 to 256 bytes of text, or `whsec_` and the base64 of 24 to 64 bytes",
)]
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
#[case(json!({"delivery": "at_most_once"}), "must not be true with `at_most_once`")]
#[case(json!({"target": {"pull": true}}), "must not be true without a push target")]
#[case(
    json!({"hold_slot_until": "report"}),
    "must not be true with `hold_slot_until: report`",
)]
#[case(
    json!({"on_response_timeout": "wait"}),
    "must not be true with `on_response_timeout: wait`",
)]
fn a_retry_after_a_restart_goes_with_nothing_that_it_breaks(
    #[case] fields: Value,
    #[case] message: &str,
) {
    let mut config = push(&json!({}));
    config["retry_after_restart"] = json!(true);
    assert_eq!(job_type(config.clone()), Ok(()));
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let (field, message) = ("retry_after_restart".into(), message.into());
    let refused = ValidationError { code: ErrorCode::InvalidType, field, message };
    assert_eq!(job_type(config), Err(refused));
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
#[case::two_services(
    json!({"target": {"queue": {}, "topic": {}}}),
    "one service, and not both `queue` and `topic`",
)]
#[case::field_of_a_service(
    json!({"target": {"queue": {}, "complet": "on_delivery"}}),
    "not both `complet` and `queue`",
)]
#[case::empty_field(
    json!({"target": {"url": "http://h/", "signing_secert": null}}),
    "unknown field `signing_secert`",
)]
#[case::service_with_headers(
    json!({"target": {"queue": {}, "headers": {}}}),
    "or the name of one service with its settings",
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
    let external = json!({"target": {"queue": {"url": "u"}, "complete": "on_delivery"}});
    let config: TypeConfig = serde_json::from_value(external.clone()).unwrap();
    assert_eq!(serde_json::to_value(&config).unwrap()["target"], external["target"]);
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
fn a_targets_url_names_the_job() {
    assert_eq!(
        target_url("http://h/{type}/{id}?id={id}", "mail", "a:1"),
        "http://h/mail/a:1?id=a:1",
    );
}

#[test]
fn without_a_backend_every_external_target_is_refused() {
    let config = serde_json::from_value(json!({"target": {"urll": "http://h/"}})).unwrap();
    check_type(&config).unwrap();
    let fault = accept_type(config, no_external_target).unwrap_err();
    assert_eq!((fault.code, fault.field.as_str()), (ErrorCode::InvalidType, "target.urll"));
}
