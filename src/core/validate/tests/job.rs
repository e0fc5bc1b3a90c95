//! The bounds of a job and of its attributes.

use rstest::rstest;
use serde_json::{Value, json};

use super::attributes;
use crate::{
    job::{Attributes, Spec, retry::Retry, spec::KeepResult, type_config::Delivery},
    time::Seconds,
    validate::{check_attributes, check_deadline, check_headers, check_job, check_url},
};

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
#[case::authorization(
    |spec: &mut Spec| spec.headers = [("Authorization".into(), "Bearer x".into())].into(),
    Some("headers.Authorization"),
)]
#[case::proxy_authorization(
    |spec: &mut Spec| spec.headers = [("proxy-authorization".into(), "x".into())].into(),
    Some("headers.proxy-authorization"),
)]
#[case::cookie(
    |spec: &mut Spec| spec.headers = [("COOKIE".into(), "a=b".into())].into(),
    Some("headers.COOKIE"),
)]
#[case::other_header(
    |spec: &mut Spec| spec.headers = [("x-authorization-mode".into(), "x".into())].into(),
    None,
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
