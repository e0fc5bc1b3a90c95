//! The bounds of a job type.

use crate::error_code::ErrorCode;
use std::collections::BTreeMap;

use url::Url;

use super::{
    DECADE, LEAST, ValidationError, YEAR,
    address::check_host,
    check_attempts, check_count, check_headers, check_keep_result, check_name, check_retry,
    check_span, check_text, check_url, check_windows,
    http::{check_push, target_url},
};
use crate::{
    job::{
        extract,
        type_config::{Delivery, OnResponseTimeout, Start, TypeConfig},
    },
    target::{
        AwsService, Complete, EventBridgeTarget, LambdaTarget, SnsTarget, SqsTarget, TargetConfig,
    },
    time::Seconds,
};

/// Checks a job type's configuration.
///
/// # Errors
///
/// The first fault, with code `invalid_max_attempts` for the number of attempts, else
/// `invalid_type`.
pub fn check_type(config: &TypeConfig) -> Result<(), ValidationError> {
    check_attempts(config.max_attempts.unwrap_or(1), config.delivery)?;
    type_fields(config).map_err(|fault| fault.of(ErrorCode::InvalidType))
}

fn type_fields(config: &TypeConfig) -> Result<(), ValidationError> {
    check_span("timeout_seconds", config.timeout_seconds, LEAST, YEAR)?;
    check_span("response_timeout_seconds", config.response_timeout_seconds, LEAST, YEAR)?;
    check_span("lease_seconds", config.lease_seconds, LEAST, YEAR)?;
    if let Some(deadline) = config.deadline_seconds {
        check_span("deadline_seconds", deadline, LEAST, DECADE)?;
    }
    check_span("retention_seconds", config.retention_seconds, Seconds::default(), DECADE)?;
    check_keep_result(config.keep_result)?;
    check_retry(&config.retry)?;
    check_windows(&config.windows)?;
    check_pointers(&config.attributes)?;
    check_headers(&config.headers)?;
    if let Some(url) = &config.callback_url {
        check_url("callback_url", url)?;
    }
    match &config.target {
        Some(TargetConfig::Pull(pull)) if !pull.pull => {
            return Err(ValidationError::new("target.pull", "must be true"));
        }
        Some(TargetConfig::Pull(_)) if config.start == Start::Plain => {
            return Err(ValidationError::new("start", "must not be `plain` without a push target"));
        }
        Some(TargetConfig::Pull(_)) | None => {}
        Some(TargetConfig::Push(push)) => {
            check_push(push).map_err(|fault| fault.within("target"))?;
        }
        Some(TargetConfig::Aws(target)) => {
            check_service(&target.service).map_err(|fault| fault.within("target"))?;
            if target.is_later() && config.start == Start::Plain {
                return Err(ValidationError::new(
                    "start",
                    "must not be `plain` without a target whose result is in its answer",
                ));
            }
        }
    }
    // An unclaimed dispatch is not recorded as running. So no rule can refuse a second start, count
    // it or wait for its result.
    let unfit = [
        (
            config.delivery == Delivery::AtMostOnce,
            "must not be `plain` without `delivery: at_least_once`",
        ),
        (
            config.on_response_timeout == OnResponseTimeout::Wait,
            "must not be `plain` without `on_response_timeout: fail`",
        ),
        (config.concurrency.is_some(), "must not be `plain` with `concurrency`"),
        (waits_for_result(config), "must not be `plain` without `complete: on_delivery`"),
    ];
    match unfit.into_iter().find(|(unfit, _)| *unfit && config.start == Start::Plain) {
        Some((_, message)) => Err(ValidationError::new("start", message)),
        None => Ok(()),
    }
}

fn check_service(service: &AwsService) -> Result<(), ValidationError> {
    match service {
        AwsService::Sqs(SqsTarget { queue_url }) => {
            let url = Url::parse(queue_url)
                .map_err(|_| ValidationError::new("sqs.queue_url", "must be the URL of a queue"))?;
            check_url("sqs.queue_url", &url)
        }
        AwsService::Sns(SnsTarget { topic_arn }) => {
            check_text("sns.topic_arn", topic_arn, 2048)?;
            let parts: Vec<&str> = topic_arn.splitn(6, ':').collect();
            let good = matches!(parts[..], ["arn", partition, "sns", region, account, name]
                if [partition, region, account, name].iter().all(|part| !part.is_empty()));
            if good {
                Ok(())
            } else {
                Err(ValidationError::new(
                    "sns.topic_arn",
                    "must be the ARN of a topic, such as arn:aws:sns:eu-west-1:111122223333:jobs",
                ))
            }
        }
        AwsService::EventBridge(EventBridgeTarget { bus, source, detail_type }) => {
            check_text("event_bridge.bus", bus, 1600)?;
            check_text("event_bridge.source", source, 256)?;
            if source.starts_with("aws.") {
                return Err(ValidationError::new(
                    "event_bridge.source",
                    "must not begin with `aws.`",
                ));
            }
            detail_type
                .as_ref()
                .map_or(Ok(()), |text| check_text("event_bridge.detail_type", text, 128))
        }
        AwsService::Lambda(LambdaTarget { function, .. }) => {
            check_text("lambda.function", function, 256)
        }
    }
}

fn waits_for_result(config: &TypeConfig) -> bool {
    matches!(&config.target, Some(TargetConfig::Push(push)) if push.complete == Complete::OnResult)
}

fn check_pointers(pointers: &BTreeMap<String, String>) -> Result<(), ValidationError> {
    check_count("attributes", pointers.len(), extract::MAX_ATTRIBUTES)?;
    for (name, pointer) in pointers {
        check_name("attributes", name)?;
        if pointer.len() > 1024 || !extract::is_pointer(pointer) {
            return Err(ValidationError::new(
                format!("attributes.{name}"),
                "must be a JSON pointer such as /address/region, at most 1024 bytes",
            ));
        }
    }
    Ok(())
}

/// Refuses a type with a URL whose host must not be called.
///
/// # Errors
///
/// A fault at the URL with that host.
pub fn check_type_hosts(config: &TypeConfig) -> Result<(), ValidationError> {
    if let Some(url) = &config.callback_url {
        check_host("callback_url", url).map_err(|fault| fault.of(ErrorCode::InvalidType))?;
    }
    if let Some(TargetConfig::Push(push)) = &config.target
        && let Ok(url) = target_url(&push.url, "1", "1").parse()
    {
        check_host("target.url", &url).map_err(|fault| fault.of(ErrorCode::InvalidType))?;
    }
    Ok(())
}
