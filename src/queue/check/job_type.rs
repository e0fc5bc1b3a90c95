//! The bounds of a job type.

use std::collections::BTreeMap;

use super::{
    DECADE, Fault, LEAST, YEAR,
    address::check_host,
    check_attempts, check_count, check_headers, check_keep_result, check_name, check_retry, check_span, check_url, check_windows,
    http::{check_push, target_url},
};
use crate::{
    job::extract,
    queue::config::{Complete, Delivery, OnNoAnswer, Start, TargetConfig, TypeConfig},
    time::Seconds,
};

/// Checks a job type's configuration.
///
/// # Errors
///
/// The first fault, with code `invalid_attempts` for the number of attempts and `invalid_type` for everything else.
pub fn check_type(config: &TypeConfig) -> Result<(), Fault> {
    check_attempts(config.attempts.unwrap_or(1), config.delivery)?;
    type_fields(config).map_err(|fault| fault.of("invalid_type"))
}

fn type_fields(config: &TypeConfig) -> Result<(), Fault> {
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
        Some(TargetConfig::Pull(pull)) if !pull.pull => return Err(Fault::new("target.pull", "must be true")),
        Some(TargetConfig::Pull(_)) if config.start == Start::Plain => {
            return Err(Fault::new("start", "can be `plain` only with a push target"));
        }
        Some(TargetConfig::Pull(_)) | None => {}
        Some(TargetConfig::Push(push)) => check_push(push).map_err(|fault| fault.within("target"))?,
    }
    // A plain job has no record of being under way: nothing could tell a second start, count it, or wait for its result.
    let unfit = [
        (config.delivery == Delivery::AtMostOnce, "can be `plain` only with `delivery: at_least_once`"),
        (config.on_no_answer == OnNoAnswer::Wait, "can be `plain` only with `on_no_answer: fail`"),
        (config.concurrency.is_some(), "can be `plain` only without `concurrency`"),
        (waits_for_result(config), "can be `plain` only with `complete: on_delivery`"),
    ];
    match unfit.into_iter().find(|(unfit, _)| *unfit && config.start == Start::Plain) {
        Some((_, message)) => Err(Fault::new("start", message)),
        None => Ok(()),
    }
}

fn waits_for_result(config: &TypeConfig) -> bool {
    matches!(&config.target, Some(TargetConfig::Push(push)) if push.complete == Complete::OnResult)
}

fn check_pointers(pointers: &BTreeMap<String, String>) -> Result<(), Fault> {
    check_count("attributes", pointers.len(), extract::MAX_ATTRIBUTES)?;
    for (name, pointer) in pointers {
        check_name("attributes", name)?;
        if pointer.len() > 1024 || !extract::is_pointer(pointer) {
            return Err(Fault::new(format!("attributes.{name}"), "must be a JSON pointer such as /address/region, at most 1024 bytes"));
        }
    }
    Ok(())
}

/// Refuses a type that would have a host called which may not be.
///
/// # Errors
///
/// At the URL that names the host.
pub fn check_type_hosts(config: &TypeConfig) -> Result<(), Fault> {
    if let Some(url) = &config.callback_url {
        check_host("callback_url", url).map_err(|fault| fault.of("invalid_type"))?;
    }
    if let Some(TargetConfig::Push(push)) = &config.target
        && let Ok(url) = target_url(&push.url, "1", "1").parse()
    {
        check_host("target.url", &url).map_err(|fault| fault.of("invalid_type"))?;
    }
    Ok(())
}
