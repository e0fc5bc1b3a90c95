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
    /// Nothing was written, and a repeat cannot help. One transaction of the group may be the cause.
    Failed(StoreError),
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
            | SqlState::LOCK_NOT_AVAILABLE
            | SqlState::QUERY_CANCELED => Self::Again(StoreError::unavailable(error)),
            SqlState::DISK_FULL | SqlState::OUT_OF_MEMORY => {
                let message = if *state == SqlState::DISK_FULL {
                    NO_ROOM.to_owned()
                } else {
                    "the database is out of memory".to_owned()
                };
                Self::Failed(StoreError::Throttled { retry_after: Duration::from_secs(1), message })
            }
            SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED => {
                Self::Failed(StoreError::corrupt(error))
            }
            SqlState::ADMIN_SHUTDOWN
            | SqlState::CRASH_SHUTDOWN
            | SqlState::CANNOT_CONNECT_NOW
            | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => {
                Self::Broken(StoreError::unavailable(error))
            }
            _ => Self::Failed(StoreError::unavailable(error)),
        }
    }

    /// The error for the caller.
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Refused => StoreError::unavailable("other transactions changed its records"),
            Self::NoPartition => {
                StoreError::unavailable("a partition of the ended jobs is missing")
            }
            Self::Again(error) | Self::Failed(error) | Self::Broken(error) => error,
        }
    }

    /// Whether a read may be repeated, perhaps on another connection.
    pub(super) fn is_worth_another_read(&self) -> bool {
        matches!(self, Self::Again(_) | Self::Broken(_))
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::of(error)
    }
}
