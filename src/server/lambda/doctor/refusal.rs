//! The remedy for each kind of error that a service returns.

use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};

use tidegate_core::{
    error_chain::ErrorChain,
    port::health_check::{Check, CheckLevel},
};

/// The check of `about` that failed because a service refused a call for `resource`.
pub(super) fn service_refused<E, R>(about: &str, resource: &str, error: &SdkError<E, R>) -> Check
where
    E: std::error::Error + ProvideErrorMetadata + 'static,
    R: std::fmt::Debug + 'static,
{
    let text = match error.as_service_error() {
        Some(service) => {
            let code = service.code().unwrap_or("no code");
            format!("{code}: {}", service.message().unwrap_or("no reason given"))
        }
        None => ErrorChain(error).to_string(),
    };
    Check::new(CheckLevel::Error, about, format!("{resource}: {text}"), remedy(&text))
}

/// The remedy for the error of a service with this text.
pub(super) fn remedy(error: &str) -> &'static str {
    let has = |words: &[&str]| words.iter().any(|word| error.contains(word));
    if has(&["AccessDenied", "not authorized", "UnauthorizedOperation"]) {
        "the function's role lacks this permission: compare it with the template, and see whether \
         a policy of the organisation or a permissions boundary denies it"
    } else if has(&["NonExistentQueue", "QueueDoesNotExist"]) {
        "it was deleted, or is in another region or account: deploy the stack again, which creates \
         it; the maintenance sweep then finds the jobs whose messages were lost"
    } else if has(&["ResourceNotFound"]) {
        "it was deleted, or is in another region or account: see TIDEGATE_TABLE and AWS_REGION; \
         docs/deploy-aws.md describes how to restore a lost table"
    } else if has(&["Throttl", "ThroughputExceeded", "RequestLimit"]) {
        "the load exceeds its capacity: wait, or raise the table's warm throughput"
    } else if has(&[
        "InvalidClientTokenId",
        "UnrecognizedClient",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidSignature",
    ]) {
        "the credentials are not accepted: in Lambda, check the function's role; elsewhere, check \
         AWS_ACCESS_KEY_ID and the clock"
    } else {
        "see whether the function can connect to the service, and the health of the service in \
         this region"
    }
}
