//! The failures of SQLite in the port's terms.

use std::time::Duration;

use rusqlite::{Error, ErrorCode};

use tidegate_core::port::StoreError;

/// A [`StoreError`] that `?` makes of SQLite's own errors, and that becomes one at the edge of this backend.
#[derive(Debug)]
pub(super) struct Failure(pub(super) StoreError);

impl Failure {
    /// What is stored is not what it should be: `problem` says how.
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
                    message: "no room on the disk".into(),
                },
                ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreError::corrupt(error),
                _ => StoreError::unavailable(error),
            },
            Error::FromSqlConversionFailure(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::InvalidColumnType(..) => StoreError::corrupt(error),
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
