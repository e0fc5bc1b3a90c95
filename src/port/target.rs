//! Where push delivery goes: one request out, what came back.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

/// A request to a worker.
#[derive(Clone, Debug)]
pub struct Request {
    /// The URL, with its placeholders replaced.
    pub url: String,
    /// Name and value of every header, `content-type` and signature among them.
    pub headers: Vec<(String, String)>,
    /// User and password of HTTP Basic.
    pub basic_auth: Option<(String, String)>,
    /// The body.
    pub body: Bytes,
    /// How long the whole exchange may take.
    pub timeout: Duration,
}

/// What a worker answered.
#[derive(Clone, Debug)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// `content-type`, `retry-after` and `tidegate-retryable`, where present; names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, at most the target's bound.
    pub body: Bytes,
}

impl Response {
    /// The value of the header `name` (lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str())
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// No connection was established: the worker saw nothing.
    #[error("no connection: {0}")]
    NotConnected(String),
    /// The request went out and no whole answer came back: the worker may have seen it.
    #[error("no answer: {0}")]
    NoAnswer(String),
    /// The time was over before an answer came: the worker may have seen it.
    #[error("no answer in time")]
    TimedOut,
    /// The URL may not be called from here: nothing was sent.
    #[error("address refused: {0}")]
    Forbidden(String),
}

/// Calls workers.
#[async_trait]
pub trait Target: Send + Sync {
    /// The answer to `request`, asked once; no redirect is followed.
    ///
    /// # Errors
    ///
    /// [`TargetError`], which tells apart what the worker cannot have seen.
    async fn call(&self, request: Request) -> Result<Response, TargetError>;
}
