//! Why a command failed, as its exit code tells.

use std::{error::Error, fmt};

use aws_sdk_cloudformation::error::{ProvideErrorMetadata, SdkError};
use tidegate_backends::aws::CallError;

use crate::cli::ExitCode;

/// A failure that has an exit code of its own.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// AWS does not answer.
    #[error("AWS is not reachable: {0}")]
    Unreachable(String),
    /// There is no such stack.
    #[error("there is no stack {stack} in {region}")]
    NoStack {
        /// The name of the stack.
        stack: String,
        /// The region.
        region: String,
    },
    /// The wait ended first.
    #[error("{0}")]
    TimedOut(String),
}

impl Failure {
    /// The exit code of the command.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Unreachable(_) => ExitCode::Unreachable,
            Self::NoStack { .. } => ExitCode::NotFound,
            Self::TimedOut(_) => ExitCode::TimedOut,
        }
    }
}

/// The error of a call to AWS.
pub fn of_call<E, R>(error: SdkError<E, R>) -> anyhow::Error
where
    E: Error + ProvideErrorMetadata + Send + Sync + 'static,
    R: fmt::Debug + Send + Sync + 'static,
{
    let unreachable = matches!(error, SdkError::DispatchFailure(_) | SdkError::TimeoutError(_));
    let error = anyhow::Error::from(CallError::from(error));
    if unreachable { Failure::Unreachable(format!("{error:#}")).into() } else { error }
}
