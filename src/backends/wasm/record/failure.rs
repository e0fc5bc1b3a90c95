//! Failed attempts in calls.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::job::{first, raw};
use crate::wasm::lower;
use tidegate_core::{
    job::{
        Outcome, Token,
        lifecycle::{AttemptRecord, Failure, Reason},
    },
    stored::UnknownFields,
    time::{Seconds, Timestamp},
};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct FailureJson {
    #[serde(default = "first")]
    pub attempt: u16,
    #[serde(default = "failed")]
    pub reason: Reason,
    #[serde(default)]
    pub message: Option<String>,
    #[serde(default)]
    pub status: Option<u16>,
    #[serde(default)]
    pub details: Option<Box<RawValue>>,
    #[serde(default)]
    pub started_at: Timestamp,
    #[serde(default)]
    pub ended_at: Timestamp,
    #[serde(default)]
    pub not_before: Option<Timestamp>,
}

fn failed() -> Reason {
    Reason::Failed
}

/// Removes the texts of an attempt if they exceed the `room` that is left for them. Returns whether
/// it did.
pub(super) fn leave_out(
    message: &mut Option<String>,
    details: &mut Option<Box<RawValue>>,
    room: &mut usize,
) -> bool {
    let bytes = message.as_ref().map_or(0, String::len)
        + details.as_ref().map_or(0, |details| details.get().len());
    if let Some(left) = room.checked_sub(bytes) {
        *room = left;
        return false;
    }
    (*message, *details) = (None, None);
    true
}

impl FailureJson {
    /// As [`leave_out`].
    pub(super) fn leave_out(&mut self, room: &mut usize) -> bool {
        leave_out(&mut self.message, &mut self.details, room)
    }

    pub(super) fn of((attempt, entry): (u16, &AttemptRecord)) -> Self {
        let error = entry.error.as_ref();
        Self {
            attempt,
            reason: error.map_or(Reason::Failed, |error| error.reason),
            message: error.and_then(|error| error.message.clone()),
            status: error.and_then(|error| error.status),
            details: error.and_then(|error| error.details.as_deref()).map(raw),
            started_at: entry.started_at,
            ended_at: entry.ended_at,
            not_before: lower::not_before(entry),
        }
    }

    pub(super) fn entry(self) -> AttemptRecord {
        let details = self.details.map(|details| details.get().to_owned());
        let wait = |at: Timestamp| at.since(self.ended_at).as_millis();
        let wait = self.not_before.and_then(|at| u64::try_from(wait(at)).ok());
        AttemptRecord {
            attempt: self.attempt,
            started_at: self.started_at,
            ended_at: self.ended_at,
            outcome: Outcome::Failed,
            error: Some(Failure {
                reason: self.reason,
                message: self.message,
                details,
                status: self.status,
                retry_after: wait.map(Seconds::from_millis),
                unknown: UnknownFields::default(),
            }),
            retry_at: None,
            token: Token::new(0),
            reply: None,
            hand_back: None,
            worker: None,
            unknown: UnknownFields::default(),
        }
    }
}
