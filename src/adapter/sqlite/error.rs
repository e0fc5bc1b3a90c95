//! What SQLite's failures mean to whoever asked.

use std::time::Duration;

use rusqlite::{Error, ErrorCode};

use crate::port::StoreError;

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        match &error {
            Error::SqliteFailure(cause, _) => match cause.code {
                ErrorCode::DiskFull => Self::Throttled { retry_after: Duration::from_secs(1), message: "no room on the disk".into() },
                ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Self::Corrupt(error.to_string()),
                _ => Self::Unavailable(error.to_string()),
            },
            Error::FromSqlConversionFailure(..) | Error::IntegralValueOutOfRange(..) | Error::InvalidColumnType(..) => {
                Self::Corrupt(error.to_string())
            }
            _ => Self::Unavailable(error.to_string()),
        }
    }
}
