//! Validation of configurations and jobs. A fault names the field and what it must be.
//!
//! Every bound is in the message and in the documentation of its field. Checks stop at the first
//! fault, and nothing is stored after one.

mod address;
mod allowed_hosts;
mod guard;
mod http;
mod job;
mod job_type;
mod queue;
mod schedule;

#[cfg(test)]
mod tests;

use crate::error_code::ErrorCode;
use std::fmt::Display;

pub use address::{private_address, unsafe_address, unsafe_host};
pub use allowed_hosts::{AllowedHosts, BadAllowedHost};
pub use guard::{Guard, Refused};
pub use http::{MAX_HEADERS, check_headers, check_job_headers, check_url, target_url};
pub use job::{
    check_attempts, check_attributes, check_deadline, check_debounced_start, check_job,
    check_keep_result, check_keys, check_lease, check_options, check_retry, check_start,
    check_timeout, check_windows,
};
pub use job_type::{
    AcceptTarget, accept_type, check_allowed_hosts, check_type, check_type_hosts,
    no_external_target,
};
pub use queue::{
    LIST_VALUES, MATCHER_CONDITIONS, MATCHER_DEPTH, check_condition, check_filter, check_matcher,
    check_queue,
};
pub use schedule::check_schedule;

use crate::{
    job::{Value, extract},
    time::Seconds,
};

/// The longest span that bounds an attempt: a year.
pub(crate) const YEAR: Seconds = Seconds::new(31_536_000);
/// The longest span that bounds a job: ten years.
pub const DECADE: Seconds = Seconds::new(315_360_000);
/// The shortest span that is not zero.
const LEAST: Seconds = Seconds::from_millis(1);

/// A field outside its bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {message}")]
pub struct ValidationError {
    /// A stable code for programs: `invalid_queue`, `invalid_type`, `invalid_schedule`,
    /// `invalid_max_attempts`, else `invalid_field`.
    pub code: ErrorCode,
    /// The field's path: `constraints[2].rate.count`.
    pub field: String,
    /// What it must be: a fragment that follows the field's path.
    pub message: String,
}

impl ValidationError {
    /// The fault that `field` is invalid; `message` follows the path of the field.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: ErrorCode::InvalidField, field: field.into(), message: message.into() }
    }

    /// The same fault, with the path of its field from one level up.
    #[must_use]
    pub fn within(self, outer: impl Display) -> Self {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        Self { field: format!("{outer}{dot}{}", self.field), ..self }
    }

    /// The same fault, with a code of its kind unless it has one already.
    fn of(self, code: ErrorCode) -> Self {
        if self.code == ErrorCode::InvalidField { Self { code, ..self } } else { self }
    }
}

/// Checks that a span is within its bounds.
///
/// # Errors
///
/// The span is outside them; the message names both bounds.
pub fn check_span(
    field: &str,
    span: Seconds,
    least: Seconds,
    most: Seconds,
) -> Result<(), ValidationError> {
    if (least..=most).contains(&span) {
        return Ok(());
    }
    Err(ValidationError::new(field, format!("must be {} to {}", least.as_f64(), most.as_f64())))
}

/// Checks that a text has 1 to `most` bytes.
///
/// # Errors
///
/// The text is empty or too long; the message names the bound.
pub fn check_text(field: &str, text: &str, most: usize) -> Result<(), ValidationError> {
    if (1..=most).contains(&text.len()) {
        Ok(())
    } else {
        Err(ValidationError::new(field, format!("must be 1 to {most} bytes")))
    }
}

fn check_name(field: &str, name: &str) -> Result<(), ValidationError> {
    check_text(field, name, extract::NAME_BYTES).map_err(|_| {
        ValidationError::new(
            field,
            format!("must have names of 1 to {} bytes", extract::NAME_BYTES),
        )
    })
}

pub(crate) fn check_count(field: &str, count: usize, most: usize) -> Result<(), ValidationError> {
    if count <= most {
        Ok(())
    } else {
        Err(ValidationError::new(field, format!("must have at most {most} entries")))
    }
}

/// Most bytes of a plugin's configuration, as JSON text.
pub(crate) const PLUGIN_CONFIG_BYTES: usize = 64 << 10;

/// Checks the form of a plugin's configuration. The plugin itself checks the content.
fn check_plugin_config(field: &str, config: &serde_json::Value) -> Result<(), ValidationError> {
    if !config.is_object() {
        return Err(ValidationError::new(field, "must be an object"));
    }
    if config.to_string().len() > PLUGIN_CONFIG_BYTES {
        return Err(ValidationError::new(
            field,
            format!("must have at most {PLUGIN_CONFIG_BYTES} bytes"),
        ));
    }
    Ok(())
}

/// Which values are allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeaderUse {
    Text,
    Number,
    Any,
}

fn check_value(field: &str, value: &Value, kind: HeaderUse) -> Result<(), ValidationError> {
    match (value, kind) {
        (Value::Text(_), HeaderUse::Number) => Err(ValidationError::new(field, "must be a number")),
        (Value::Number(_), HeaderUse::Text) => Err(ValidationError::new(field, "must be text")),
        (Value::Text(text), _) if text.len() > extract::TEXT_BYTES => Err(ValidationError::new(
            field,
            format!("must be at most {} bytes", extract::TEXT_BYTES),
        )),
        _ => Ok(()),
    }
}
