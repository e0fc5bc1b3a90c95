//! Postgres' errors as errors of the port.

use std::time::Duration;

use tokio_postgres::{Error, error::SqlState};

use tidegate_core::port::job_store::{NO_ROOM, StoreError};

/// Why a statement failed: one variant for each reaction.
#[derive(Debug)]
pub(super) enum Fault {
    /// A guard raised: a condition of the group does not hold.
    Refused,
    /// A row of `ended` has no partition. One has to be made first.
    NoPartition,
    /// Nothing was written, and the same statements may succeed now.
    Again(StoreError),
    /// The statement took too long, and nothing was written. A read would take as long again; a
    /// write may have waited for others.
    Slow(StoreError),
    /// Nothing was written, and a repeat cannot help. One transaction of the group may be the cause.
    Failed(StoreError),
    /// Nothing was written, whatever the transactions are, and a repeat cannot help.
    Unable(StoreError),
    /// The connection broke. What was sent may or may not have been committed.
    Broken(StoreError),
}

impl Fault {
    /// What `error` says about the statement that it answers.
    pub(super) fn of(error: Error) -> Self {
        let Some(state) = error.code() else {
            return Self::Broken(StoreError::unavailable(error));
        };
        match *state {
            SqlState::DIVISION_BY_ZERO => Self::Refused,
            SqlState::CHECK_VIOLATION => Self::NoPartition,
            SqlState::T_R_SERIALIZATION_FAILURE
            | SqlState::T_R_DEADLOCK_DETECTED
            | SqlState::LOCK_NOT_AVAILABLE => Self::Again(StoreError::unavailable(error)),
            SqlState::QUERY_CANCELED => Self::Slow(StoreError::unavailable(error)),
            SqlState::DISK_FULL => Self::Unable(throttled(NO_ROOM)),
            SqlState::OUT_OF_MEMORY => Self::Failed(throttled("the database is out of memory")),
            SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED => {
                Self::Failed(StoreError::corrupt(error))
            }
            SqlState::ADMIN_SHUTDOWN
            | SqlState::CRASH_SHUTDOWN
            | SqlState::CANNOT_CONNECT_NOW
            // The server has become a standby.
            | SqlState::READ_ONLY_SQL_TRANSACTION
            // Of a transaction of another caller, which ended within it.
            | SqlState::IN_FAILED_SQL_TRANSACTION
            | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => {
                Self::Broken(StoreError::unavailable(error))
            }
            _ if is_of_a_value(state) => Self::Failed(StoreError::unavailable(error)),
            _ => Self::Unable(StoreError::unavailable(error)),
        }
    }

    /// The error for the caller.
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Refused => StoreError::unavailable("other transactions changed its records"),
            Self::NoPartition => {
                StoreError::unavailable("a partition of the ended jobs is missing")
            }
            Self::Again(error)
            | Self::Slow(error)
            | Self::Failed(error)
            | Self::Unable(error)
            | Self::Broken(error) => error,
        }
    }

    /// Whether a read may be repeated, perhaps on another connection.
    pub(super) fn is_worth_another_read(&self) -> bool {
        matches!(self, Self::Again(_) | Self::Broken(_))
    }
}

/// Whether a statement was stopped because it took too long.
pub(super) fn is_slow(error: &StoreError) -> bool {
    let StoreError::Unavailable(source) = error else { return false };
    let source = source.downcast_ref::<Error>();
    source.is_some_and(|error| error.code() == Some(&SqlState::QUERY_CANCELED))
}

fn throttled(message: &str) -> StoreError {
    StoreError::Throttled { retry_after: Duration::from_secs(1), message: message.to_owned() }
}

/// Whether a value that was written may be the cause: its data, a constraint, or a limit such as the
/// size of an index entry.
fn is_of_a_value(state: &SqlState) -> bool {
    ["22", "23", "54"].iter().any(|class| state.code().starts_with(class))
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::of(error)
    }
}
