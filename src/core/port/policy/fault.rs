//! Why a call has no answer.

use super::AHEAD;
use crate::time::Timestamp;

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The plugin itself rejected the call.
    Rejected,
    /// It exceeded its bound on time or instructions.
    Timeout,
    /// It exceeded its bound on memory, stack, tables or host calls.
    ResourceExhausted,
    /// It trapped or panicked.
    Trapped,
    /// Its answer is invalid.
    InvalidAnswer,
    /// It could not be loaded, or this program runs no plugins.
    Unavailable,
}

impl FaultKind {
    /// The kind's name in metrics and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Timeout => "timeout",
            Self::ResourceExhausted => "resource_exhausted",
            Self::Trapped => "trapped",
            Self::InvalidAnswer => "invalid_answer",
            Self::Unavailable => "unavailable",
        }
    }
}

/// Why a call has no answer, for the plugin's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// The kind.
    pub kind: FaultKind,
    /// A sentence for the plugin's author.
    pub message: String,
}

pub(super) fn invalid<T>(message: String) -> Result<T, Fault> {
    Err(Fault { kind: FaultKind::InvalidAnswer, message })
}

/// Checks that `at` is not too far after `now`. `said` names the part of the answer.
pub(super) fn check_ahead(
    at: Timestamp,
    now: Timestamp,
    said: impl FnOnce() -> String,
) -> Result<(), Fault> {
    if at > now + AHEAD {
        return invalid(format!(
            "{}, which is more than 366 days after the time of the call, {now}",
            said()
        ));
    }
    Ok(())
}

/// An instant for people; one past the calendar is shown in milliseconds.
pub(super) fn shown(at: Timestamp) -> String {
    if at <= Timestamp::MAX { at.to_string() } else { format!("{} ms after 1970", at.millis()) }
}
