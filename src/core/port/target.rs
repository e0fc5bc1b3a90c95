//! Push delivery: one request or one message to a target, and its response.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::target::ExternalTarget;

/// A request to a worker.
#[derive(Clone, Debug)]
pub struct Request {
    /// The URL, with its placeholders replaced.
    pub url: String,
    /// Name and value of every header, including `content-type` and the signature.
    pub headers: Vec<(String, String)>,
    /// User and password of HTTP Basic.
    pub basic_auth: Option<(String, String)>,
    /// The body.
    pub body: Bytes,
    /// How long the whole exchange may take.
    pub timeout: Duration,
    /// Most bytes of the response's body. Of a longer one, one more byte is read, so that the
    /// caller sees that it is longer.
    pub most_bytes: usize,
}

/// A message to a service.
#[derive(Clone, Debug)]
pub struct ServiceMessage {
    /// The service, its settings, and when the job ends.
    pub to: ExternalTarget,
    /// The group; a service may keep the messages of a group in order.
    pub group: String,
    /// The deduplication key: the same for every repeat of one message.
    pub key: String,
    /// The kind of message, for a service with kinds and without a configured one.
    pub kind: String,
    /// Names and values in addition to the body: at most 10, none empty.
    pub attributes: Vec<(&'static str, String)>,
    /// The body: JSON.
    pub body: Bytes,
    /// How long the whole exchange may take.
    pub timeout: Duration,
}

/// The response of a worker.
#[derive(Clone, Debug)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// `content-type`, `retry-after`, `tidegate-claims`, `tidegate-retryable` and `tidegate-status`,
    /// where present; names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, at most one byte longer than requested.
    pub body: Bytes,
}

impl Response {
    /// The value of the header `name` (lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str())
    }
}

/// Why there is no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// No connection was established: the worker received nothing.
    #[error("no connection: {0}")]
    NotConnected(String),
    /// The request was sent and no complete response came: the worker may have received it.
    #[error("no answer: {0}")]
    NoAnswer(String),
    /// The time ended before a response came: the worker may have received it.
    #[error("no answer in time")]
    TimedOut,
    /// The address must not be called: nothing was sent.
    #[error("address refused: {0}")]
    Forbidden(String),
}

/// Calls workers.
#[async_trait]
pub trait Target: Send + Sync {
    /// Sends `request` once, without following redirects, and returns the response.
    ///
    /// # Errors
    ///
    /// [`TargetError`], which shows whether the worker may have received the request.
    async fn call(&self, request: Request) -> Result<Response, TargetError>;

    /// Sends `message` to a service once, and returns its response as an HTTP status.
    ///
    /// - 200: the job is done; the body is its result.
    /// - 202: the service has accepted it, and the result comes later.
    /// - 429: the service is over its capacity.
    /// - 500: the job failed at the service; the body is its error.
    /// - Any other: the status with which the service refused.
    ///
    /// # Errors
    ///
    /// [`TargetError`]; [`TargetError::Forbidden`] if this server cannot send to this service.
    async fn send(&self, message: ServiceMessage) -> Result<Response, TargetError> {
        Err(TargetError::Forbidden(format!(
            "this server cannot send jobs to `{}`",
            message.to.kind
        )))
    }
}
