//! Why a request has no good answer.

use std::{error::Error as StdError, fmt, time::Duration};

use tidegate_api::Problem;

/// Any error of a handler. `?` makes one of every error, and `.into()` of a text.
///
/// [`PermanentError`](crate::PermanentError), [`Snooze`](crate::Snooze) and the like are found in
/// it and in its sources.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Why a call failed. [`Error::kind`] has one word for each reaction.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused the request, or a job ended otherwise than succeeded.
    #[error("{0}")]
    Problem(Box<ProblemError>),
    /// No answer came. The request may or may not have been processed.
    #[error("no answer from {url}: {cause}")]
    Unreachable {
        /// The URL of the server.
        url: String,
        /// What went wrong.
        cause: String,
    },
    /// The answer is not one of tidegate, or is larger than this client reads.
    #[error("unexpected answer: {0}")]
    UnexpectedAnswer(String),
    /// An argument cannot be used; nothing was sent.
    #[error("{0}")]
    InvalidArgument(String),
    /// A request is not a push of the server: its signature, its time or its body is wrong.
    #[error("{0}")]
    Refused(String),
}

/// What a caller does about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request is wrong (400, 405, 406, 413, 414, 415, 431): correct it.
    InvalidRequest,
    /// The token is missing or not valid (401).
    Unauthorized,
    /// The token does not allow the request (403).
    Forbidden,
    /// There is no such job, type, queue, ... (404). The code says which.
    NotFound,
    /// The state does not allow the request (409). The code says why.
    Conflict,
    /// The resource has changed since it was read (412).
    PreconditionFailed,
    /// The server is busy or is stopping (429, 503), also after the repeats.
    Unavailable,
    /// The server failed (500). Its log has the cause under [`ProblemError::request_id`].
    ServerFault,
    /// The job did not end within the wait.
    WaitTimeout,
    /// The job ended otherwise than succeeded, so it has no result.
    JobFailed,
    /// No answer came. The request may or may not have been processed.
    Unreachable,
    /// The answer is not one of tidegate, or is larger than this client reads.
    UnexpectedAnswer,
    /// An argument cannot be used; nothing was sent.
    InvalidArgument,
    /// A request is not a push of the server.
    Refused,
}

/// The server's reason for a refusal.
#[derive(Clone, Debug)]
pub struct ProblemError {
    /// The HTTP status.
    pub status: u16,
    /// The whole problem document (RFC 9457).
    pub problem: Problem,
    /// The wait that the answer requested.
    pub retry_after: Option<Duration>,
    /// The server's id of the request, by which its log names the cause.
    pub request_id: Option<String>,
}

impl ProblemError {
    pub(crate) fn new(status: u16, problem: Problem) -> Self {
        Self { status, problem, retry_after: None, request_id: None }
    }

    fn kind(&self) -> ErrorKind {
        match (&*self.problem.code, self.status) {
            ("job_failed", _) => ErrorKind::JobFailed,
            ("wait_timeout", _) => ErrorKind::WaitTimeout,
            (_, 401) => ErrorKind::Unauthorized,
            (_, 403) => ErrorKind::Forbidden,
            (_, 404) => ErrorKind::NotFound,
            (_, 409) => ErrorKind::Conflict,
            (_, 412) => ErrorKind::PreconditionFailed,
            (_, 429 | 503) => ErrorKind::Unavailable,
            (_, 500..) => ErrorKind::ServerFault,
            _ => ErrorKind::InvalidRequest,
        }
    }
}

impl fmt::Display for ProblemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { title, detail, code, field, .. } = &self.problem;
        match (detail.is_empty(), title.is_empty()) {
            (false, _) => f.write_str(detail)?,
            (true, false) => f.write_str(title)?,
            (true, true) => write!(f, "HTTP {}", self.status)?,
        }
        if let Some(field) = field {
            write!(f, " [{field}]")?;
        }
        if code.is_empty() { write!(f, " ({})", self.status) } else { write!(f, " ({code})") }
    }
}

impl Error {
    pub(crate) fn problem_of(status: u16, problem: Problem) -> Self {
        Self::Problem(Box::new(ProblemError::new(status, problem)))
    }

    pub(crate) fn argument(text: impl fmt::Display) -> Self {
        Self::InvalidArgument(text.to_string())
    }

    /// Returns what a caller does about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Problem(problem) => problem.kind(),
            Self::Unreachable { .. } => ErrorKind::Unreachable,
            Self::UnexpectedAnswer(_) => ErrorKind::UnexpectedAnswer,
            Self::InvalidArgument(_) => ErrorKind::InvalidArgument,
            Self::Refused(_) => ErrorKind::Refused,
        }
    }

    /// Returns the server's reason; none if it gave none.
    pub fn problem(&self) -> Option<&ProblemError> {
        match self {
            Self::Problem(problem) => Some(problem),
            _ => None,
        }
    }

    /// Returns the HTTP status of a refusal.
    pub fn status(&self) -> Option<u16> {
        self.problem().map(|problem| problem.status)
    }

    /// Returns the stable word of a refusal, such as `job_not_found`; empty if there is none.
    pub fn code(&self) -> &str {
        self.problem().map_or("", |problem| &problem.problem.code)
    }

    /// Returns the field, parameter or header at fault, such as `constraints[2].rate.count`.
    pub fn field(&self) -> Option<&str> {
        self.problem()?.problem.field.as_deref()
    }

    /// Returns how a job ended, with [`ErrorKind::JobFailed`]: `failed`, `expired`, `cancelled` or
    /// `dropped`.
    pub fn job_state(&self) -> Option<&str> {
        self.problem()?.problem.state.as_deref()
    }

    /// Returns the reason of the job's latest error, with [`ErrorKind::JobFailed`].
    pub fn job_reason(&self) -> Option<&'static str> {
        Some(self.problem()?.problem.error.as_ref()?.reason.as_str())
    }

    /// Returns the message of the job's latest error, with [`ErrorKind::JobFailed`].
    pub fn job_message(&self) -> Option<&str> {
        self.problem()?.problem.error.as_ref()?.message.as_deref()
    }

    /// Whether the same request may succeed later: no answer came, the server is busy or unavailable
    /// (429, 502, 503, 504), or its code allows a retry. The client has already repeated requests that
    /// are safe to repeat.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Problem(problem) => {
                matches!(problem.status, 429 | 502 | 503 | 504)
                    || matches!(&*problem.problem.code, "body_timeout" | "concurrent_update")
            }
            Self::Unreachable { .. } => true,
            _ => false,
        }
    }

    /// Returns the wait that the answer requested.
    pub fn retry_after(&self) -> Option<Duration> {
        self.problem()?.retry_after
    }
}

/// An error with its sources, as one line. A source whose text is in the line already is left out.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    for source in sources(error).skip(1).map(ToString::to_string) {
        if !text.contains(&source) {
            text = format!("{text}: {source}");
        }
    }
    text
}

/// An error and its sources, at most 16.
pub(crate) fn sources<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source()).take(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_a_kind_for_each_reaction() {
        for (status, code, kind, retryable) in [
            (400, "invalid_field", ErrorKind::InvalidRequest, false),
            (401, "unauthorized", ErrorKind::Unauthorized, false),
            (403, "forbidden", ErrorKind::Forbidden, false),
            (404, "job_not_found", ErrorKind::NotFound, false),
            (409, "id_taken", ErrorKind::Conflict, false),
            (409, "concurrent_update", ErrorKind::Conflict, true),
            (409, "job_failed", ErrorKind::JobFailed, false),
            (408, "wait_timeout", ErrorKind::WaitTimeout, false),
            (412, "precondition_failed", ErrorKind::PreconditionFailed, false),
            (429, "", ErrorKind::Unavailable, true),
            (503, "unavailable", ErrorKind::Unavailable, true),
            (500, "internal", ErrorKind::ServerFault, false),
        ] {
            let problem = Problem { code: code.into(), ..Problem::default() };
            let error = Error::problem_of(status, problem);
            assert_eq!((error.kind(), error.is_retryable()), (kind, retryable), "{status} {code}");
        }
    }

    #[test]
    fn a_problem_shows_its_detail_field_and_code() {
        let problem = Problem {
            title: "Invalid field".into(),
            detail: "must be a number".into(),
            code: "invalid_field".into(),
            field: Some("priority".to_owned()),
            ..Problem::default()
        };
        let shown = Error::problem_of(400, problem).to_string();
        assert_eq!(shown, "must be a number [priority] (invalid_field)");
        assert_eq!(Error::problem_of(502, Problem::default()).to_string(), "HTTP 502 (502)");
    }
}
