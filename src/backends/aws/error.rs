//! Errors of AWS calls, with the code that the service sent.

use std::{error::Error, fmt};

use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;

/// A failed call of the SDK whose text begins with the error code of the service.
///
/// The SDK's own errors name the Rust type of a refusal, such as `QueueDoesNotExist`. The code on
/// the wire, such as `AWS.SimpleQueueService.NonExistentQueue`, is what AWS documents and what an
/// operator searches for.
#[derive(Debug)]
pub struct CallError {
    /// None if no service answered.
    code: Option<String>,
    source: Box<dyn Error + Send + Sync>,
}

impl<E, R> From<SdkError<E, R>> for CallError
where
    E: Error + ProvideErrorMetadata + Send + Sync + 'static,
    R: fmt::Debug + Send + Sync + 'static,
{
    fn from(error: SdkError<E, R>) -> Self {
        let code = error.as_service_error().and_then(ProvideErrorMetadata::code);
        Self { code: code.map(str::to_owned), source: error.into() }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.code {
            Some(code) => f.write_str(code),
            None => self.source.fmt(f),
        }
    }
}

impl Error for CallError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.source.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_sqs::{
        error::ErrorMetadata, operation::send_message_batch::SendMessageBatchError,
        types::error::QueueDoesNotExist,
    };
    use tidegate_core::error_chain::ErrorChain;

    use super::*;

    #[test]
    fn the_error_chain_begins_with_the_code_of_the_service() {
        let metadata = ErrorMetadata::builder()
            .code("AWS.SimpleQueueService.NonExistentQueue")
            .message("The specified queue does not exist.")
            .build();
        let refusal = QueueDoesNotExist::builder()
            .message("The specified queue does not exist.")
            .meta(metadata)
            .build();
        let error: SdkError<_, ()> =
            SdkError::service_error(SendMessageBatchError::QueueDoesNotExist(refusal), ());
        let text = ErrorChain(&CallError::from(error)).to_string();
        assert!(text.starts_with("AWS.SimpleQueueService.NonExistentQueue: "), "{text}");
        assert!(text.contains("The specified queue does not exist."), "{text}");
    }
}
