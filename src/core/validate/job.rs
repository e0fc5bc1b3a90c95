//! The bounds of a job, and of fields that a job and its type share.

use super::{
    DECADE, HeaderUse, LEAST, ValidationError, YEAR, check_count, check_job_headers, check_name,
    check_plugin_config, check_span, check_text, check_url, check_value,
};
use crate::error_code::ErrorCode;
use crate::{
    calendar::window::{MAX_WINDOWS, Window},
    job::{
        Attributes, JobOptions, Spec, extract,
        retry::{BUILT_IN, Backoff, Retry},
        spec::{KeepResult, Unique},
        type_config::Delivery,
        unique::OnConflict,
    },
    time::{Seconds, Timestamp},
};

/// Checks every field of a job before it is accepted. The bound on attempts depends on its type's
/// `delivery`.
///
/// The deadline is not checked: it is an instant here, and [`check_deadline`] checked its span.
///
/// # Errors
///
/// The first fault, with code `invalid_max_attempts` or `invalid_field`.
pub fn check_job(spec: &Spec, delivery: Delivery) -> Result<(), ValidationError> {
    check_attempts(spec.max_attempts, delivery)?;
    check_timeout(spec.timeout)?;
    check_windows(&spec.windows)?;
    check_retry(&spec.retry)?;
    check_attributes(&spec.attributes)?;
    check_keep_result(spec.keep_result)?;
    check_job_headers(&spec.headers)?;
    check_keys(spec.correlation_key.as_deref(), spec.unique.as_ref())?;
    spec.callback_url.as_ref().map_or(Ok(()), |url| check_url("callback_url", url))
}

/// Checks the options of a job whose type is not known yet, apart from `unique`, which
/// [`check_keys`] checks.
///
/// # Errors
///
/// The first fault, with code `invalid_max_attempts` or `invalid_field`.
pub fn check_options(options: &JobOptions) -> Result<(), ValidationError> {
    fn each<T>(
        value: Option<T>,
        check: impl FnOnce(T) -> Result<(), ValidationError>,
    ) -> Result<(), ValidationError> {
        value.map_or(Ok(()), check)
    }
    each(options.max_attempts, |attempts| check_attempts(attempts, Delivery::AtLeastOnce))?;
    each(options.timeout_seconds, check_timeout)?;
    each(options.deadline_seconds, check_deadline)?;
    each(options.windows.as_deref(), check_windows)?;
    each(options.retry.as_ref(), check_retry)?;
    check_attributes(&options.attributes)?;
    each(options.keep_result, check_keep_result)?;
    each(options.callback_url.as_ref(), |url| check_url("callback_url", url))?;
    check_job_headers(&options.headers)
}

/// Checks how long an attempt may take.
///
/// # Errors
///
/// Zero, or over a year.
pub fn check_timeout(span: Seconds) -> Result<(), ValidationError> {
    check_span("timeout_seconds", span, LEAST, YEAR)
}

/// Checks the correlation key and the unique key of a job.
///
/// # Errors
///
/// An empty text or one over 256 bytes; a period that is zero or over a year; a debounce whose
/// spans are out of bounds; settings of a conflict that exclude each other.
pub fn check_keys(
    correlation_key: Option<&str>,
    unique: Option<&Unique>,
) -> Result<(), ValidationError> {
    if let Some(key) = correlation_key {
        check_text("correlation_key", key, 256)?;
    }
    let Some(unique) = unique else { return Ok(()) };
    check_text("unique.key", &unique.key, 256)?;
    if let Some(period) = unique.period_seconds {
        check_span("unique.period_seconds", period, LEAST, YEAR)?;
    }
    if let Some(debounce) = unique.debounce {
        check_span("unique.debounce.seconds", debounce.seconds, LEAST, YEAR)?;
        let (most, least) = (debounce.max_seconds, debounce.seconds);
        check_span("unique.debounce.max_seconds", most, least, YEAR)?;
        if unique.on_conflict == OnConflict::Replace {
            let message = "must not be `replace` together with `debounce`";
            return Err(ValidationError::new("unique.on_conflict", message));
        }
    }
    if unique.merges() && correlation_key.is_some() {
        let message = "must not be given together with `unique` that has `debounce` or \
                       `on_conflict: replace`: a job keeps the key of its first request";
        return Err(ValidationError::new("correlation_key", message));
    }
    Ok(())
}

/// Checks that a request whose `unique` sets the due time names no other.
///
/// # Errors
///
/// Both are given.
pub fn check_debounced_start(
    unique: Option<&Unique>,
    run_at: Option<Timestamp>,
    delay: Option<Seconds>,
) -> Result<(), ValidationError> {
    if unique.is_none_or(|unique| unique.debounce.is_none()) {
        return Ok(());
    }
    let named = [("run_at", run_at.is_some()), ("delay_seconds", delay.is_some())];
    named.into_iter().find(|(_, given)| *given).map_or(Ok(()), |(field, _)| {
        let message = "must not be given together with `unique.debounce`, which sets the due time";
        Err(ValidationError::new(field, message))
    })
}

/// Checks when a job starts: at an instant, after a delay, or neither.
///
/// # Errors
///
/// Both are given, or the delay is over ten years.
pub fn check_start(
    run_at: Option<Timestamp>,
    delay: Option<Seconds>,
) -> Result<(), ValidationError> {
    if run_at.is_some() && delay.is_some() {
        return Err(ValidationError::new(
            "delay_seconds",
            "must not be given together with run_at",
        ));
    }
    delay.map_or(Ok(()), |delay| check_span("delay_seconds", delay, Seconds::default(), DECADE))
}

/// Checks a job's `deadline_seconds`.
///
/// # Errors
///
/// Zero, or over ten years.
pub fn check_deadline(span: Seconds) -> Result<(), ValidationError> {
    check_span("deadline_seconds", span, LEAST, DECADE)
}

/// Checks the length of a lease.
///
/// # Errors
///
/// Zero, or over a year.
pub fn check_lease(span: Seconds) -> Result<(), ValidationError> {
    check_span("lease_seconds", span, LEAST, YEAR)
}

/// Checks a number of attempts, of a type or of a job.
///
/// # Errors
///
/// A fault with code `invalid_max_attempts`.
pub fn check_attempts(attempts: u16, delivery: Delivery) -> Result<(), ValidationError> {
    let message = match (attempts, delivery) {
        (0, _) => "must be 1 to 65535",
        (2.., Delivery::AtMostOnce) => "must be 1 with `delivery: at_most_once`",
        _ => return Ok(()),
    };
    Err(ValidationError::new("max_attempts", message).of(ErrorCode::InvalidMaxAttempts))
}

/// Checks the number of windows; each window was checked when it was read.
///
/// # Errors
///
/// Over 32.
pub fn check_windows(windows: &[Window]) -> Result<(), ValidationError> {
    check_count("windows", windows.len(), MAX_WINDOWS)
}

/// Checks a retry strategy's settings.
///
/// # Errors
///
/// The first fault.
pub fn check_retry(retry: &Retry) -> Result<(), ValidationError> {
    match retry {
        Retry::Exponential(backoff) => backoff.fault().map_or(Ok(()), |(field, message)| {
            Err(ValidationError::new(format!("retry.config.{field}"), message))
        }),
        Retry::Plugin(name, config) => {
            check_plugin_config("retry.config", config)?;
            if name.as_str() == BUILT_IN { Err(unreadable(config)) } else { Ok(()) }
        }
    }
}

/// The fault in the configuration of the built-in strategy, which is an object.
fn unreadable(config: &serde_json::Value) -> ValidationError {
    for (field, value) in config.as_object().into_iter().flatten() {
        let alone = serde_json::Map::from_iter([(field.clone(), value.clone())]);
        if let Err(error) = serde_json::from_value::<Backoff>(alone.into()) {
            let fault = ValidationError::new(format!("retry.config.{field}"), error.to_string());
            let known = ["base_seconds", "max_seconds", "jitter"].contains(&field.as_str());
            return if known { fault } else { fault.of(ErrorCode::UnknownField) };
        }
    }
    ValidationError::new("retry.config", "must be a configuration of `exponential`")
}

/// Checks how long a result is kept.
///
/// # Errors
///
/// Over ten years.
pub fn check_keep_result(keep: KeepResult) -> Result<(), ValidationError> {
    match keep {
        KeepResult::For(span) => {
            check_span("keep_result.seconds", span, Seconds::default(), DECADE)
        }
        KeepResult::None | KeepResult::Once => Ok(()),
    }
}

/// Checks attributes.
///
/// # Errors
///
/// More than 16 attributes, a name that is not 1 to 64 bytes, a text over 256 bytes.
pub fn check_attributes(attributes: &Attributes) -> Result<(), ValidationError> {
    check_count("attributes", attributes.len(), extract::MAX_ATTRIBUTES)?;
    for (name, value) in attributes {
        check_name("attributes", name)?;
        check_value(name, value, HeaderUse::Any).map_err(|fault| fault.within("attributes"))?;
    }
    Ok(())
}
