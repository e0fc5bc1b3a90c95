//! The bounds of a job type.

use crate::error_code::ErrorCode;
use std::collections::BTreeMap;

use url::Url;

use super::{
    AllowedHosts, DECADE, LEAST, ValidationError, YEAR, check_attempts, check_count,
    check_job_headers, check_keep_result, check_name, check_retry, check_span, check_url,
    check_windows,
    guard::Guard,
    http::{check_push, check_secrets, check_template, target_url},
};
use crate::{
    job::{
        extract,
        type_config::{Delivery, HoldSlotUntil, OnResponseTimeout, Start, TypeConfig},
    },
    target::{Complete, ExternalTarget, TargetConfig},
    time::Seconds,
};

/// Validates an external target and fills in its defaults. Returns when its jobs end, which a kind
/// of service may decide itself.
///
/// # Errors
///
/// The first invalid field, by its path within the target; the kind, if no backend has it.
pub type AcceptTarget = fn(&mut ExternalTarget) -> Result<Complete, ValidationError>;

/// An [`AcceptTarget`] without any kind.
///
/// # Errors
///
/// Always: the kind.
pub fn no_external_target(target: &mut ExternalTarget) -> Result<Complete, ValidationError> {
    Err(ValidationError::new(
        &target.kind,
        "is not a known field: a target has `url` and what goes with it, or `pull: true`",
    ))
}

/// Checks a job type's configuration, and returns it with the defaults of its external target.
///
/// # Errors
///
/// As [`check_type`]; a fault that `accept` finds in the target, with code `invalid_type`.
pub fn accept_type(
    mut config: TypeConfig,
    accept: AcceptTarget,
) -> Result<TypeConfig, ValidationError> {
    check_type(&config)?;
    if let Some(TargetConfig::External(target)) = &mut config.target {
        let complete =
            accept(target).map_err(|fault| fault.within("target").of(ErrorCode::InvalidType))?;
        if complete == Complete::OnResult && config.start == Start::Plain {
            let needed = "must not be `plain` without a target whose result is in its answer";
            return Err(ValidationError::new("start", needed).of(ErrorCode::InvalidType));
        }
    }
    Ok(config)
}

/// Checks a job type's configuration, except the settings of an external target, which only its
/// backend knows.
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
    check_job_headers(&config.headers)?;
    check_secrets("callback_signing_secret", &config.callback_signing_secret)?;
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
        Some(TargetConfig::Pull(_) | TargetConfig::External(_)) | None => {}
        Some(TargetConfig::Push(push)) => {
            check_push(push).map_err(|fault| fault.within("target"))?;
        }
    }
    check_retry_targets(config)?;
    check_restart(config)?;
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

/// Most targets that retry strategies may choose.
const MAX_RETRY_TARGETS: usize = 16;

/// The targets that retry strategies may choose differ from the type's own in their URL.
fn check_retry_targets(config: &TypeConfig) -> Result<(), ValidationError> {
    check_count("retry_targets", config.retry_targets.len(), MAX_RETRY_TARGETS)?;
    // With the default target, its credentials would go to a URL that its owner did not set.
    let has_url = matches!(config.target, Some(TargetConfig::Push(_)));
    if !config.retry_targets.is_empty() && !has_url {
        return Err(ValidationError::new(
            "retry_targets",
            "must be given only with a `target` that has `url`",
        ));
    }
    for (name, url) in &config.retry_targets {
        check_name("retry_targets", name)?;
        check_template(url)
            .map_err(|fault| ValidationError { field: format!("retry_targets.{name}"), ..fault })?;
    }
    Ok(())
}

/// A retry at the start may overlap the attempt before it.
fn check_restart(config: &TypeConfig) -> Result<(), ValidationError> {
    let unfit = [
        (config.delivery == Delivery::AtMostOnce, "must not be true with `at_most_once`"),
        (
            matches!(config.target, Some(TargetConfig::Pull(_))),
            "must not be true without a push target",
        ),
        (
            config.hold_slot_until == HoldSlotUntil::Report,
            "must not be true with `hold_slot_until: report`",
        ),
        (
            config.on_response_timeout == OnResponseTimeout::Wait,
            "must not be true with `on_response_timeout: wait`",
        ),
    ];
    match unfit.into_iter().find(|(unfit, _)| *unfit && config.retry_after_restart) {
        Some((_, message)) => Err(ValidationError::new("retry_after_restart", message)),
        None => Ok(()),
    }
}

/// Checks that the settings allow the hosts of a type: of its URL, and of its `callback_url`.
///
/// # Errors
///
/// A fault with code `invalid_type`.
pub fn check_allowed_hosts(
    config: &TypeConfig,
    targets: &AllowedHosts,
    callbacks: &AllowedHosts,
) -> Result<(), ValidationError> {
    let invalid = |fault: ValidationError| fault.of(ErrorCode::InvalidType);
    if let Some(TargetConfig::Push(push)) = &config.target
        && let Ok(url) = Url::parse(&target_url(&push.url, "type", "id"))
    {
        targets.check("target.url", &url).map_err(invalid)?;
    }
    for (name, url) in &config.retry_targets {
        if let Ok(url) = Url::parse(&target_url(url, "type", "id")) {
            targets.check(&format!("retry_targets.{name}"), &url).map_err(invalid)?;
        }
    }
    match &config.callback_url {
        Some(url) => callbacks.check("callback_url", url).map_err(invalid),
        None => Ok(()),
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

/// Refuses a type with a URL whose host `guard` refuses.
///
/// # Errors
///
/// A fault at the URL with that host.
pub fn check_type_hosts(config: &TypeConfig, guard: Guard) -> Result<(), ValidationError> {
    if let Some(url) = &config.callback_url {
        guard.check_host("callback_url", url).map_err(|fault| fault.of(ErrorCode::InvalidType))?;
    }
    if let Some(TargetConfig::Push(push)) = &config.target
        && let Ok(url) = target_url(&push.url, "1", "1").parse()
    {
        guard.check_host("target.url", &url).map_err(|fault| fault.of(ErrorCode::InvalidType))?;
    }
    for (name, url) in &config.retry_targets {
        if let Ok(url) = target_url(url, "1", "1").parse() {
            guard
                .check_host(&format!("retry_targets.{name}"), &url)
                .map_err(|fault| fault.of(ErrorCode::InvalidType))?;
        }
    }
    Ok(())
}
