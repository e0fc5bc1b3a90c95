//! The states of a job, and the values that they hold.

use std::num::NonZeroU128;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::{job::Phase, record, stored::UnknownFields, time::Timestamp};

/// The version on which a grant is decided.
///
/// A patch, a move, a revoke, a retry decision, a retry and an end raise it. A claim, a heartbeat,
/// a cancel request to a running attempt, a late failure, the removal of a result and a replay do
/// not. A grant decided on an older version is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version(pub u64);

/// How often a job was written. Conditional writes compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Revision(pub u64);

/// The secret of one attempt: a worker that presents it holds the attempt.
///
/// Only its digest is stored, and tokens are compared by their digests. The process that claims an
/// attempt knows the secret and passes it on; a job that is read from a store has none.
#[derive(Clone, Copy)]
pub struct Token {
    digest: u128,
    secret: Option<NonZeroU128>,
}

impl Token {
    /// A token that no secret matches, of an attempt whose token was never known.
    pub const UNKNOWN: Self = Self { digest: 0, secret: None };

    /// The token with this secret, of 128 random bits. So a plain SHA-256, cut to 128 bits, cannot
    /// be reversed.
    pub fn new(secret: u128) -> Self {
        let digest = Sha256::digest(secret.to_be_bytes());
        let (start, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
        Self { digest: u128::from_be_bytes(*start), secret: NonZeroU128::new(secret) }
    }

    /// The secret as its worker shows it, 32 hexadecimal digits, where it is known.
    pub fn secret(self) -> Option<String> {
        self.secret.map(|secret| format!("{secret:032x}"))
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Token {}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.digest.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u128::deserialize(deserializer).map(|digest| Self { digest, secret: None })
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// What a scheduled job waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waiting {
    /// Its due time, and admission after that.
    Due,
    /// The opening of a window.
    Window {
        /// Its due time without windows. A change of its windows starts from this instant.
        due: Timestamp,
    },
    /// Its next attempt.
    Retry,
    /// The time that its queue's throttler set.
    Throttler,
    /// The decision of its retry plugin about its latest attempt. It is no candidate until then.
    RetryDecision,
}

/// A running attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The attempt's secret.
    pub token: Token,
    /// When it was claimed.
    pub started_at: Timestamp,
    /// When its lease expires, unless a heartbeat or a report comes first.
    pub lease_until: Timestamp,
    /// After this instant the attempt fails with reason `timeout`.
    pub timeout_at: Timestamp,
    /// The name that its worker gives itself.
    pub worker: Option<String>,
    /// Whether a grant in the queue's ledger counts it.
    pub granted: bool,
    /// Whether a cancel was requested. The response to the next heartbeat carries this flag.
    pub cancel: bool,
    /// The latest progress that its worker reported.
    pub progress: Option<Progress>,
    /// Whether it has stored another checkpoint than it started with.
    pub has_advanced: bool,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(Running {
    token,
    started_at,
    lease_until,
    timeout_at,
    worker,
    granted,
    cancel,
    progress;
    has_advanced
});

/// The progress of an attempt, as its worker reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Progress {
    /// 0 to 100.
    pub percent: f64,
    /// A note for people.
    pub note: Option<String>,
}

impl Eq for Progress {}

/// How a job ended.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// An attempt succeeded.
    Succeeded,
    /// Every attempt failed, or the deadline came: a failed job. Only a replay follows it.
    Failed,
    /// It was not started in time.
    Expired,
    /// It was cancelled.
    Cancelled,
    /// The throttler, or a purge, dropped it.
    Dropped,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 5] =
        [Self::Succeeded, Self::Failed, Self::Expired, Self::Cancelled, Self::Dropped];

    /// The outcome as the API shows it, in lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Dropped => "dropped",
        }
    }
}

/// The state of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Waits for `run_at`, and then for admission.
    Scheduled {
        /// The earliest it may start.
        run_at: Timestamp,
        /// What it waits for.
        waiting: Waiting,
    },
    /// An attempt runs.
    Running(Running),
    /// It ended. Its result may still be removed, a late reply recorded, and its replay named.
    Ended {
        /// When it ended.
        at: Timestamp,
        /// How it ended.
        outcome: Outcome,
    },
}

/// The name of a state in the API.
pub fn word(state: &State) -> &'static str {
    match state {
        State::Scheduled { .. } => Phase::Scheduled.as_str(),
        State::Running(_) => Phase::Running.as_str(),
        State::Ended { outcome, .. } => outcome.as_str(),
    }
}
