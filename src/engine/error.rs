//! Why a verb could not do as asked, in words that a client can act on.

use std::time::Duration;
use tidegate_core::{error_chain::ErrorChain, error_code::ErrorCode};

use tidegate_core::{
    job::{JobId, lifecycle::Refused, payload::Malformed},
    port::StoreError,
};

/// The answer to a request that changes nothing. Each has a stable code; `api/error.rs` is the one
/// table from these to HTTP statuses.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A value is outside its bounds.
    #[error("{field}: {message}")]
    Invalid {
        /// A stable word, such as `invalid_field` or `weight_over_limit`.
        code: ErrorCode,
        /// The field, as the client wrote it: `constraints[2].rate.count`.
        field: String,
        /// What it must be.
        message: String,
    },
    /// There is no such thing.
    #[error("there is no {what}")]
    NotFound {
        /// `job_not_found`, `job_type_not_found`, `queue_not_found`, ...
        code: ErrorCode,
        /// What was looked for, named.
        what: String,
    },
    /// It clashes with what is there.
    #[error("{message}")]
    Conflict {
        /// Such as `correlation_key_taken`, `id_taken`, `not_running`, `already_dispatched`.
        code: ErrorCode,
        /// What clashes.
        message: String,
        /// The job it clashes with.
        holder: Option<JobId>,
    },
    /// A body is larger than it may be.
    #[error("{field} is larger than {limit} bytes")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// The most bytes.
        limit: usize,
    },
    /// What was to be changed has changed since it was read.
    #[error("it has changed since: its version is now {version}")]
    Stale {
        /// The version now.
        version: u64,
    },
    /// It may not be done with these credentials.
    #[error("{0}")]
    Forbidden(String),
    /// The server takes no requests of this kind at present.
    #[error("{message}")]
    Unavailable {
        /// When to try again.
        retry_after: Duration,
        /// Why.
        message: String,
    },
    /// Something is broken; a person must look at the log.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// The stable code; it gives the HTTP status too.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Invalid { code, .. }
            | Self::NotFound { code, .. }
            | Self::Conflict { code, .. } => *code,
            Self::TooLarge { field: "data", .. } => ErrorCode::DataTooLarge,
            Self::TooLarge { .. } => ErrorCode::TooLarge,
            Self::Stale { .. } => ErrorCode::PreconditionFailed,
            Self::Forbidden(_) => ErrorCode::Forbidden,
            Self::Unavailable { .. } => ErrorCode::Unavailable,
            Self::Internal(_) => ErrorCode::Internal,
        }
    }

    /// A value is wrong.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid {
            code: ErrorCode::InvalidField,
            field: field.into(),
            message: message.into(),
        }
    }

    /// A value is not well formed, or nested too deeply.
    pub fn malformed(field: impl Into<String>, malformed: &Malformed) -> Self {
        let code = if malformed.is_too_deep() {
            ErrorCode::NestingTooDeep
        } else {
            ErrorCode::InvalidField
        };
        Self::Invalid { code, field: field.into(), message: malformed.to_string() }
    }

    /// There is no such job.
    pub fn no_job(id: &JobId) -> Self {
        Self::NotFound { code: ErrorCode::JobNotFound, what: format!("job {id}") }
    }

    /// What was asked cannot follow where the job stands.
    pub fn refused(code: ErrorCode, refused: &Refused) -> Self {
        Self::Conflict { code, message: refused.to_string(), holder: None }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Throttled { retry_after, message } => {
                Self::Unavailable { retry_after, message }
            }
            StoreError::Unavailable(source) => Self::Unavailable {
                retry_after: Duration::from_secs(1),
                message: ErrorChain(&source).to_string(),
            },
            StoreError::Corrupt(source) => Self::Internal(ErrorChain(&source).to_string()),
        }
    }
}
