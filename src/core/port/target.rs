//! Where push delivery goes: one request, or one message, out; what came back.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::target::AwsService;

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
    /// How much of the answer's body is wanted. Of a longer one, one byte more is read, which tells.
    pub most_bytes: usize,
}

/// A message to a service.
#[derive(Clone, Debug)]
pub struct ServiceMessage {
    /// Which service, and what of it.
    pub to: AwsService,
    /// Messages of one group may be kept in order.
    pub group: String,
    /// The same for every repeat of one message.
    pub key: String,
    /// What kind of message it is, for a service that has such a word and was told no other.
    pub kind: String,
    /// Names and values beside the body: at most 10, none empty.
    pub attributes: Vec<(&'static str, String)>,
    /// The body: JSON.
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
    /// The body, at most one byte more than was wanted.
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

    /// What a service says to `message`, asked once, in the words of HTTP: 200 if it took it, with what a function returned;
    /// 429 if it has too much to do; 500 with what a function threw; else the status with which it refused.
    ///
    /// # Errors
    ///
    /// [`TargetError`]; [`TargetError::Forbidden`] where no service can be reached.
    async fn send(&self, message: ServiceMessage) -> Result<Response, TargetError> {
        drop(message);
        Err(TargetError::Forbidden("this server hands jobs to no service of AWS: it was built without, or is not set up to".into()))
    }
}
