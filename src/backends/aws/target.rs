//! SQS, SNS, `EventBridge` and Lambda as a [`Target`], which passes URLs on to another target.
//!
//! Answers become HTTP responses: 200 for success, 202 if the result comes later, 429 for
//! throttling, the service's own status for another error. A call that could not be sent is
//! [`TargetError::NotConnected`]. A call without an answer may have succeeded.

use std::{error::Error, sync::Arc};

use async_trait::async_trait;
use aws_sdk_eventbridge::types::PutEventsRequestEntry;
use aws_sdk_lambda::types::InvocationType;
use bytes::Bytes;

use super::SdkConfig;
use crate::aws_targets::{
    AwsService, EventBridgeTarget, Invocation, LambdaTarget, SnsTarget, SqsTarget,
};
use tidegate_core::{
    error_chain::ErrorChain,
    port::target::{Request, Response, ServiceMessage, Target, TargetError},
    target::Complete,
};

/// The response for an SDK error.
macro_rules! error_response {
    ($error:expr) => {{
        let error = $error;
        let status = error.raw_response().map(|raw| raw.status().as_u16());
        let code = aws_sdk_sqs::error::ProvideErrorMetadata::code(&error).map(str::to_owned);
        let message = aws_sdk_sqs::error::ProvideErrorMetadata::message(&error)
            .unwrap_or_default()
            .to_owned();
        match (code, status) {
            (Some(code), Some(status)) => Ok(refusal(status, &code, &message)),
            (None, Some(status)) => Ok(refusal(status, "the service failed", &message)),
            _ => Err(no_answer(&error)),
        }
    }};
}
/// AWS services, and URLs through another target.
pub struct AwsTarget {
    urls: Arc<dyn Target>,
    sqs: aws_sdk_sqs::Client,
    sns: aws_sdk_sns::Client,
    events: aws_sdk_eventbridge::Client,
    lambda: aws_sdk_lambda::Client,
}

impl AwsTarget {
    /// Services with the settings of `config`, URLs through `urls`.
    pub fn new(config: &SdkConfig, urls: Arc<dyn Target>) -> Self {
        // The port sends once; the engine decides on retries.
        let config = config.to_builder().retry_config(aws_config::retry::RetryConfig::disabled());
        // Each message has its own timeout.
        let config = config.timeout_config(aws_config::timeout::TimeoutConfig::disabled()).build();
        Self {
            urls,
            sqs: aws_sdk_sqs::Client::new(&config),
            sns: aws_sdk_sns::Client::new(&config),
            events: aws_sdk_eventbridge::Client::new(&config),
            lambda: aws_sdk_lambda::Client::new(&config),
        }
    }

    async fn to_sqs(
        &self,
        to: &SqsTarget,
        message: &ServiceMessage,
    ) -> Result<Response, TargetError> {
        use aws_sdk_sqs::types::MessageAttributeValue as Value;
        let mut call =
            self.sqs.send_message().queue_url(&to.queue_url).message_body(text(&message.body)?);
        for (name, value) in &message.attributes {
            let value = Value::builder()
                .data_type("String")
                .string_value(value)
                .build()
                .map_err(|error| unsendable(&error))?;
            call = call.message_attributes(*name, value);
        }
        if is_fifo(&to.queue_url) {
            call =
                call.message_group_id(&message.group).message_deduplication_id(key(&message.key));
        }
        call.send().await.map(|_| success()).or_else(|error| error_response!(error))
    }

    async fn to_sns(
        &self,
        to: &SnsTarget,
        message: &ServiceMessage,
    ) -> Result<Response, TargetError> {
        use aws_sdk_sns::types::MessageAttributeValue as Value;
        let mut call = self.sns.publish().topic_arn(&to.topic_arn).message(text(&message.body)?);
        for (name, value) in &message.attributes {
            let value = Value::builder()
                .data_type("String")
                .string_value(value)
                .build()
                .map_err(|error| unsendable(&error))?;
            call = call.message_attributes(*name, value);
        }
        if is_fifo(&to.topic_arn) {
            call =
                call.message_group_id(&message.group).message_deduplication_id(key(&message.key));
        }
        call.send().await.map(|_| success()).or_else(|error| error_response!(error))
    }

    async fn to_bus(
        &self,
        to: &EventBridgeTarget,
        message: &ServiceMessage,
    ) -> Result<Response, TargetError> {
        let entry = PutEventsRequestEntry::builder()
            .event_bus_name(&to.bus)
            .source(&to.source)
            .detail_type(to.detail_type.as_ref().unwrap_or(&message.kind))
            .detail(text(&message.body)?)
            .build();
        match self.events.put_events().entries(entry).send().await {
            Ok(answer) => Ok(
                match answer
                    .entries()
                    .first()
                    .and_then(|entry| Some((entry.error_code()?, entry.error_message())))
                {
                    None => success(),
                    Some((code, message)) => refusal(400, code, message.unwrap_or_default()),
                },
            ),
            Err(error) => error_response!(error),
        }
    }

    async fn to_function(
        &self,
        to: &LambdaTarget,
        message: &ServiceMessage,
    ) -> Result<Response, TargetError> {
        let kind = match to.invocation {
            Invocation::Wait => InvocationType::RequestResponse,
            Invocation::Event => InvocationType::Event,
        };
        let call = self
            .lambda
            .invoke()
            .function_name(&to.function)
            .invocation_type(kind)
            .payload(message.body.to_vec().into());
        match call.send().await {
            Ok(answer) => {
                let body: Bytes =
                    answer.payload.map(|payload| payload.into_inner().into()).unwrap_or_default();
                let status = if answer.function_error.is_some() { 500 } else { 200 };
                Ok(json(
                    status,
                    if status == 200 && body.as_ref() == b"null" { Bytes::new() } else { body },
                ))
            }
            Err(error) => error_response!(error),
        }
    }
}

#[async_trait]
impl Target for AwsTarget {
    async fn call(&self, request: Request) -> Result<Response, TargetError> {
        self.urls.call(request).await
    }

    async fn send(&self, message: ServiceMessage) -> Result<Response, TargetError> {
        let service = AwsService::read(&message.to)
            .map_err(|fault| TargetError::Forbidden(fault.to_string()))?;
        let exchange = async {
            match &service {
                AwsService::Sqs(to) => self.to_sqs(to, &message).await,
                AwsService::Sns(to) => self.to_sns(to, &message).await,
                AwsService::EventBridge(to) => self.to_bus(to, &message).await,
                AwsService::Lambda(to) => self.to_function(to, &message).await,
            }
        };
        let mut response = tokio::time::timeout(message.timeout, exchange)
            .await
            .unwrap_or(Err(TargetError::TimedOut))?;
        if response.status == 200 && service.complete(message.to.complete) == Complete::OnResult {
            response.status = 202;
        }
        Ok(response)
    }
}

/// The error of a call without an answer.
fn no_answer<E, R>(error: &aws_sdk_sqs::error::SdkError<E, R>) -> TargetError
where
    E: Error + 'static,
    R: std::fmt::Debug + 'static,
{
    use aws_sdk_sqs::error::SdkError as S;
    let message = ErrorChain(error).to_string();
    match error {
        S::ConstructionFailure(_) => TargetError::NotConnected(message),
        S::TimeoutError(_) => TargetError::TimedOut,
        // Nothing was sent: no connection, credentials, region or such host.
        S::DispatchFailure(failure) if !failure.is_io() && !failure.is_timeout() => {
            TargetError::NotConnected(message)
        }
        _ => TargetError::NoAnswer(message),
    }
}

/// The response for an error of the service: 429 for throttling.
fn refusal(status: u16, code: &str, message: &str) -> Response {
    let throttling = [
        "Throttl",
        "TooManyRequests",
        "LimitExceeded",
        "OverLimit",
        "KmsThrottled",
        "InternalFailure",
    ];
    let status = if throttling.iter().any(|word| code.contains(word)) { 429 } else { status };
    let text = if message.is_empty() { code.to_owned() } else { format!("{code}: {message}") };
    Response { status, headers: Vec::new(), body: text.into() }
}

fn success() -> Response {
    Response { status: 200, headers: Vec::new(), body: Bytes::new() }
}

fn json(status: u16, body: Bytes) -> Response {
    Response { status, headers: vec![("content-type".into(), "application/json".into())], body }
}

fn text(body: &Bytes) -> Result<&str, TargetError> {
    std::str::from_utf8(body).map_err(|error| unsendable(&error))
}

fn unsendable(error: &dyn Error) -> TargetError {
    TargetError::NotConnected(format!("the message cannot be built: {error}"))
}

/// Whether a queue URL or a topic ARN names a FIFO queue or topic.
#[allow(
    clippy::case_sensitive_file_extension_comparisons,
    reason = "not a file name, and AWS requires lower case"
)]
fn is_fifo(name: &str) -> bool {
    name.ends_with(".fifo")
}

/// A deduplication id: the first 128 characters of a job's key, which are all permitted.
fn key(key: &str) -> &str {
    &key[..key.len().min(128)]
}
