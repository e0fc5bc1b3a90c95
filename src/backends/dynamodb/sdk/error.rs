//! Errors of DynamoDB as [`StoreError`]s.

use std::time::Duration;

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata, SdkError},
    types::{BatchStatementError, BatchStatementErrorCodeEnum as Code, CancellationReason},
};

use tidegate_core::{error_chain::ErrorChain, port::StoreError};

use crate::aws::error::CallError;

/// The outcome of a statement with an error: false if its condition does not hold, none if it must
/// be repeated.
pub(super) fn outcome(error: &BatchStatementError) -> Result<Option<bool>, StoreError> {
    let message = || {
        format!(
            "a statement was refused: {}: {}",
            error.code().map_or("?", Code::as_str),
            error.message().unwrap_or_default()
        )
    };
    match error.code() {
        Some(Code::ConditionalCheckFailed | Code::DuplicateItem) => Ok(Some(false)),
        Some(
            Code::ProvisionedThroughputExceeded
            | Code::RequestLimitExceeded
            | Code::ThrottlingError
            | Code::TransactionConflict,
        ) => {
            refused("throttled");
            Ok(None)
        }
        Some(Code::ValidationError | Code::ItemCollectionSizeLimitExceeded) => {
            refused("invalid");
            Err(StoreError::corrupt(message()))
        }
        // For example a missing permission or table. Callers repeat the write until an operator
        // fixes it.
        _ => {
            refused("other");
            Err(StoreError::unavailable(message()))
        }
    }
}

/// The error of a cancelled transaction whose conditions hold.
pub(super) fn cancelled(reasons: &[CancellationReason]) -> StoreError {
    let code = |reason: &CancellationReason| {
        reason.code().filter(|code| *code != "None").map(str::to_owned)
    };
    let codes: Vec<String> = reasons.iter().filter_map(code).collect();
    if codes
        .iter()
        .any(|code| code == "ValidationError" || code == "ItemCollectionSizeLimitExceeded")
    {
        refused("invalid");
        let messages: Vec<&str> = reasons.iter().filter_map(CancellationReason::message).collect();
        return StoreError::corrupt(format!(
            "a transaction was refused: {}: {}",
            codes.join(", "),
            messages.join(", ")
        ));
    }
    refused("throttled");
    throttled(&format!("another writer changes the same items: {}", codes.join(", ")))
}

pub(super) fn throttled(message: &str) -> StoreError {
    StoreError::Throttled { retry_after: Duration::from_millis(200), message: message.to_owned() }
}

/// Counts a refused request, or a refused statement of one.
pub(super) fn refused(why: &'static str) {
    metrics::counter!("tidegate_aws_errors_total", "service" => "dynamodb", "reason" => why)
        .increment(1);
}

/// The error of a failed request, by the caller's reaction.
pub(super) fn failed<E, R>(error: SdkError<E, R>) -> StoreError
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    R: std::fmt::Debug + Send + Sync + 'static,
{
    let code = error.as_service_error().and_then(ProvideErrorMetadata::code);
    match code {
        Some(
            "ProvisionedThroughputExceededException"
            | "ThrottlingException"
            | "RequestLimitExceeded",
        ) => {
            refused("throttled");
            throttled(&ErrorChain(&CallError::from(error)).to_string())
        }
        Some("ValidationException" | "SerializationException") => {
            refused("invalid");
            StoreError::corrupt(CallError::from(error))
        }
        _ => {
            refused("other");
            StoreError::unavailable(CallError::from(error))
        }
    }
}
