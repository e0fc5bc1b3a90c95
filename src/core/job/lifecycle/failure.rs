//! Why an attempt failed.

use serde::{Deserialize, Serialize};

use crate::{record, stored::UnknownFields, time::Seconds};

/// Why an attempt failed. Serialised in lower case with underscores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The worker reported a failure. `other`, which another system's workers send, is read as
    /// this.
    #[serde(alias = "other")]
    Failed,
    /// No result within its time.
    Timeout,
    /// Its lease ended without a heartbeat or a report.
    LeaseExpired,
    /// The call to its target broke after the request was sent.
    ConnectionLost,
    /// It never reached a worker.
    NotDelivered,
    /// It may or may not have run, and may not run twice.
    OutcomeUnknown,
    /// The job's deadline came.
    Deadline,
}

impl Reason {
    /// The reason in its serialised form.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::LeaseExpired => "lease_expired",
            Self::ConnectionLost => "connection_lost",
            Self::NotDelivered => "not_delivered",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Deadline => "deadline",
        }
    }
}

/// The failure of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason.
    pub reason: Reason,
    /// For people, at most 4 KiB.
    pub message: Option<String>,
    /// JSON text from the worker, at most 16 KiB.
    pub details: Option<String>,
    /// The HTTP status of its target's response, if there was one.
    pub status: Option<u16>,
    /// The shortest wait before the next attempt that its target asked for, as with `Retry-After`.
    pub retry_after: Option<Seconds>,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(Failure { reason, message, details, status; retry_after });

impl Failure {
    /// A failure with a reason and a message.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: Some(message.into()),
            details: None,
            status: None,
            retry_after: None,
            unknown: UnknownFields::default(),
        }
    }
}
