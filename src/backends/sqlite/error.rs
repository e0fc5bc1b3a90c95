//! SQLite's errors as errors of the port.

use std::time::Duration;

use rusqlite::{Error, ErrorCode};

use tidegate_core::port::job_store::{NO_ROOM, StoreError};

/// A [`StoreError`] to which `?` converts SQLite's own errors. The calls of the port unwrap it.
#[derive(Debug)]
pub(super) struct Failure(pub(super) StoreError);

impl Failure {
    /// The stored data is damaged; `problem` describes how.
    pub(super) fn corrupt(problem: String) -> Self {
        Self(StoreError::corrupt(problem))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(match &error {
            Error::SqliteFailure(cause, _) => match cause.code {
                ErrorCode::DiskFull => StoreError::Throttled {
                    retry_after: Duration::from_secs(1),
                    message: NO_ROOM.into(),
                },
                // No record is as long as SQLite's bound: its length is damaged.
                ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::TooBig => {
                    StoreError::corrupt(error)
                }
                _ => StoreError::unavailable(error),
            },
            Error::FromSqlConversionFailure(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::InvalidColumnType(..)
            | Error::Utf8Error(..) => StoreError::corrupt(error),
            _ => StoreError::unavailable(error),
        })
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self(error)
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        failure.0
    }
}
