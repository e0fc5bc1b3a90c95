//! The bounds of a schedule. The options of its jobs are checked as in an enqueue.

use super::{DECADE, LEAST, ValidationError, YEAR, check_span};
use crate::error_code::ErrorCode;
use crate::{
    job::spec::Unique,
    schedule::{MAX_MISSED, ScheduleConfig},
    time::{Seconds, Timestamp},
};

/// The shortest span between two occurrences.
const SHORTEST: Seconds = Seconds::new(1);

/// Checks when a schedule occurs.
///
/// # Errors
///
/// The first fault, with code `invalid_schedule`.
pub fn check_schedule(config: &ScheduleConfig) -> Result<(), ValidationError> {
    fields(config).map_err(|fault| fault.of(ErrorCode::InvalidSchedule))
}

fn fields(config: &ScheduleConfig) -> Result<(), ValidationError> {
    match (&config.cron, config.every_seconds) {
        (None, None) => {
            return Err(ValidationError::new("cron", "must be given, unless `every_seconds` is"));
        }
        (Some(_), Some(_)) => {
            return Err(ValidationError::new(
                "every_seconds",
                "must not be given together with `cron`",
            ));
        }
        (Some(_), None) if config.anchor.is_some() => {
            return Err(ValidationError::new("anchor", "must be given only with `every_seconds`"));
        }
        (None, Some(_)) if config.tz.is_some() => {
            return Err(ValidationError::new("tz", "must be given only with `cron`"));
        }
        (Some(_), None) => {}
        (None, Some(span)) => check_span("every_seconds", span, SHORTEST, YEAR)?,
    }
    if config.starts_at.zip(config.ends_at).is_some_and(|(starts, ends)| ends < starts) {
        return Err(ValidationError::new("ends_at", "must not be before `starts_at`"));
    }
    if !(1..=MAX_MISSED).contains(&config.max_missed) {
        return Err(ValidationError::new("max_missed", format!("must be 1 to {MAX_MISSED}")));
    }
    if let Some(expires) = config.expires_after_seconds {
        check_span("expires_after_seconds", expires, LEAST, DECADE)?;
    }
    if config.options.unique.as_ref().is_some_and(Unique::merges) {
        let message = "must have neither `debounce` nor `on_conflict: replace`: each occurrence \
                       is due at its own time";
        return Err(ValidationError::new("unique", message));
    }
    let always = ScheduleConfig { starts_at: None, ends_at: None, paused: false, ..config.clone() };
    if always.recurrence().is_some_and(|recurrence| recurrence.after(Timestamp::EPOCH).is_none()) {
        return Err(ValidationError::new("cron", "matches no day of the calendar"));
    }
    Ok(())
}
