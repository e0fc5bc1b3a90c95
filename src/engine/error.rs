//! Why an operation failed, in terms that a client can act on.

use std::time::Duration;
use tidegate_core::{error_chain::ErrorChain, error_code::ErrorCode};

use tidegate_core::{
    job::{JobId, lifecycle::Refused, payload::Malformed},
    port::{StoreError, job_store::UnreadableJob},
};

/// The answer to a request that changed nothing. Each has a stable code, which gives the HTTP
/// status.
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
    /// The named thing does not exist.
    #[error("there is no {what}")]
    NotFound {
        /// `job_not_found`, `job_type_not_found`, `queue_not_found`, ...
        code: ErrorCode,
        /// The kind and name of the thing.
        what: String,
    },
    /// The request conflicts with the current state.
    #[error("{message}")]
    Conflict {
        /// Such as `correlation_key_taken`, `id_taken`, `not_running`, `already_dispatched`.
        code: ErrorCode,
        /// What conflicts.
        message: String,
        /// The job that it conflicts with, if there is one.
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
    /// The changed thing has another version than the request expects.
    #[error("it has changed since: its version is now {version}")]
    Stale {
        /// The current version.
        version: u64,
    },
    /// The credentials do not allow the request.
    #[error("{0}")]
    Forbidden(String),
    /// The server cannot handle the request at present.
    #[error("{message}")]
    Unavailable {
        /// `unavailable`; or `not_leader` or `outcome_unknown`, which say what became of the change.
        code: ErrorCode,
        /// How long to wait before the next try.
        retry_after: Duration,
        /// Why.
        message: String,
    },
    /// A job's record is damaged, or a newer release wrote it. Repeating does not help until an
    /// operator has repaired it.
    #[error(transparent)]
    Unreadable(#[from] UnreadableJob),
    /// A fault of the server or its store. An operator must read the log.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// The stable code, which also gives the HTTP status.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Invalid { code, .. }
            | Self::NotFound { code, .. }
            | Self::Conflict { code, .. }
            | Self::Unavailable { code, .. } => *code,
            Self::TooLarge { field: "data", .. } => ErrorCode::DataTooLarge,
            Self::TooLarge { .. } => ErrorCode::TooLarge,
            Self::Stale { .. } => ErrorCode::PreconditionFailed,
            Self::Forbidden(_) => ErrorCode::Forbidden,
            Self::Unreadable(_) => ErrorCode::JobUnreadable,
            Self::Internal(_) => ErrorCode::Internal,
        }
    }

    /// A value is out of bounds.
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

    /// The server cannot handle the request at present, because of `message`.
    pub fn unavailable(retry_after: Duration, message: impl Into<String>) -> Self {
        Self::Unavailable { code: ErrorCode::Unavailable, retry_after, message: message.into() }
    }

    /// The job does not exist.
    pub fn no_job(id: &JobId) -> Self {
        Self::NotFound { code: ErrorCode::JobNotFound, what: format!("job {id}") }
    }

    /// The job's state does not allow the request.
    pub fn refused(code: ErrorCode, refused: &Refused) -> Self {
        Self::Conflict { code, message: refused.to_string(), holder: None }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let soon = Duration::from_secs(1);
        let coded = |code, error: &StoreError| Self::Unavailable {
            code,
            retry_after: soon,
            message: error.to_string(),
        };
        match error {
            StoreError::Throttled { retry_after, message } => {
                Self::unavailable(retry_after, message)
            }
            StoreError::Unavailable(source) => {
                Self::unavailable(soon, ErrorChain(&source).to_string())
            }
            StoreError::NotLeader { .. } => coded(ErrorCode::NotLeader, &error),
            StoreError::OutcomeUnknown { .. } => coded(ErrorCode::OutcomeUnknown, &error),
            StoreError::Corrupt(source) => Self::Internal(ErrorChain(&source).to_string()),
        }
    }
}
