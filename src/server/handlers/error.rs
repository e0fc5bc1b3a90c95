//! Errors as clients see them: RFC 9457 problem documents.
//!
//! The status of each is that of its [`ErrorCode`]. [`super::envelope`] adds the `instance`,
//! encodes the document and logs its cause, so failures of all layers have the same form.

use std::{borrow::Cow, time::Duration};
use tidegate_core::error_code::ErrorCode;

use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Serialize, Serializer};

use tidegate_api::JobError;
use tidegate_core::job::{Job, JobId, lifecycle::word};
use tidegate_engine::Error;

/// Why a request failed, as its client sees it.
#[derive(Clone, Debug)]
pub struct Problem(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    code: ErrorCode,
    detail: Cow<'static, str>,
    field: Option<String>,
    holder: Option<JobId>,
    reasons: Vec<String>,
    ended: Option<(&'static str, Option<JobError>)>,
    instance: Option<String>,
    headers: HeaderMap,
    cause: Option<String>,
}

impl Problem {
    /// A problem with its stable code and the detail of this case.
    pub fn new(code: ErrorCode, detail: impl Into<Cow<'static, str>>) -> Self {
        let detail = detail.into();
        Self(Box::new(Inner {
            code,
            detail,
            field: None,
            holder: None,
            reasons: Vec::new(),
            ended: None,
            instance: None,
            headers: HeaderMap::new(),
            cause: None,
        }))
    }

    /// There is no result, because `job` ended otherwise than succeeded.
    pub(super) fn job_failed(job: &Job) -> Self {
        let state = word(&job.life.state);
        let mut detail = format!("the job ended {state}");
        let error = job.life.error.as_ref().map(|error| JobError {
            reason: error.reason,
            message: error.message.clone(),
            status: error.status,
        });
        if let Some(JobError { reason, message, .. }) = &error {
            detail = detail + ": " + reason.as_str();
            if let Some(message) = message {
                detail = detail + ": " + message;
            }
        }
        let mut problem = Self::new(ErrorCode::JobFailed, detail);
        problem.0.ended = Some((state, error));
        problem
    }

    /// A value of the request is wrong; `message` says what it must be.
    pub fn invalid(field: impl Into<String>, message: impl std::fmt::Display) -> Self {
        Self::invalid_as(ErrorCode::InvalidField, field, message)
    }

    /// A value of the request is wrong, with a specific code.
    pub(crate) fn invalid_as(
        code: ErrorCode,
        field: impl Into<String>,
        message: impl std::fmt::Display,
    ) -> Self {
        let field = field.into();
        let detail =
            if field.is_empty() { message.to_string() } else { format!("{field}: {message}") };
        let mut problem = Self::new(code, detail);
        problem.0.field = Some(field).filter(|field| !field.is_empty());
        problem
    }

    /// An internal fault: only the log gets `cause`.
    pub fn internal(cause: impl Into<String>) -> Self {
        let detail = "internal error; the server's log has the cause under this request's id";
        let mut problem = Self::new(ErrorCode::Internal, detail);
        problem.0.cause = Some(cause.into());
        problem
    }

    /// The same problem with a header on its response.
    #[must_use]
    pub fn header(mut self, name: header::HeaderName, value: HeaderValue) -> Self {
        self.0.headers.append(name, value);
        self
    }

    /// The same problem with `field` as the wrong field, unless it has one already.
    #[must_use]
    pub fn blame(mut self, field: impl Into<String>) -> Self {
        self.0.field.get_or_insert_with(|| field.into());
        self
    }

    /// The same problem with a part of a request: its field is one of `outer`, or `outer` itself.
    #[cfg(feature = "embedded")]
    #[must_use]
    pub fn within(mut self, outer: &str) -> Self {
        let inner = self.0.field.take();
        let field = inner.map_or_else(|| outer.to_owned(), |inner| format!("{outer}.{inner}"));
        self.0.field = Some(field);
        self
    }

    /// The same problem with all reasons, one sentence each.
    #[must_use]
    pub fn reasons(mut self, reasons: Vec<String>) -> Self {
        self.0.reasons = reasons;
        self
    }

    /// The same problem with `path` as its `instance`.
    #[must_use]
    pub(super) fn at(mut self, path: &str) -> Self {
        self.0.instance = Some(path.to_owned());
        self
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.code.status()).expect("every code has a status of HTTP")
    }

    /// Its code.
    pub(super) fn error_code(&self) -> ErrorCode {
        self.0.code
    }

    /// The stable code.
    #[cfg(test)]
    pub fn code(&self) -> &'static str {
        self.0.code.as_str()
    }

    /// The wrong field, if there is one.
    #[cfg(test)]
    pub fn field(&self) -> Option<&str> {
        self.0.field.as_deref()
    }

    /// The detail of this case.
    #[cfg(test)]
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// The document that the client gets.
    pub fn document(&self) -> tidegate_api::Problem {
        let Inner { code, detail, field, holder, reasons, ended, instance, .. } = &*self.0;
        let (state, error) = ended.clone().unzip();
        tidegate_api::Problem {
            r#type: format!("urn:tidegate:problem:{code}"),
            title: code.title().into(),
            status: code.status(),
            detail: detail.clone(),
            code: code.as_str().into(),
            instance: instance.clone(),
            field: field.clone(),
            holder: holder.as_ref().map(ToString::to_string),
            reasons: reasons.clone(),
            state: state.map(Into::into),
            error: error.flatten(),
        }
    }

    /// The internal cause, for the log only.
    pub(super) fn cause(&self) -> Option<&str> {
        self.0.cause.as_deref()
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let (code, detail) = (error.code(), error.to_string());
        match error {
            Error::Invalid { code, field, message } => Self::invalid_as(code, field, message),
            Error::Conflict { holder, .. } => {
                let mut problem = Self::new(code, detail);
                problem.0.holder = holder;
                problem
            }
            Error::TooLarge { field, .. } => Self::new(code, detail).blame(field),
            Error::Unavailable { retry_after, .. } => {
                Self::new(code, detail).header(header::RETRY_AFTER, whole_seconds(retry_after))
            }
            Error::Internal(cause) => Self::internal(cause),
            Error::NotFound { .. }
            | Error::Stale { .. }
            | Error::Forbidden(_)
            | Error::Unreadable(_) => Self::new(code, detail),
        }
    }
}

/// A span as `Retry-After` has it: whole seconds, rounded up, at least one.
fn whole_seconds(span: Duration) -> HeaderValue {
    HeaderValue::from(span.as_millis().div_ceil(1000).max(1) as u64)
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.document().serialize(serializer)
    }
}

impl IntoResponse for Problem {
    /// A response without a body. The envelope writes the body, because it knows the encoding.
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        *response.headers_mut() = self.0.headers.clone();
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::port::StoreError;

    use super::*;

    fn shown(problem: &Problem) -> serde_json::Value {
        serde_json::to_value(problem).unwrap()
    }

    #[test]
    fn every_kind_of_error_has_its_status_and_keeps_its_code() {
        let table: [(Error, u16, &str); 10] = [
            (Error::invalid("weight", "must be positive"), 400, "invalid_field"),
            (Error::no_job(&"x".parse().unwrap()), 404, "job_not_found"),
            (
                Error::Conflict { code: ErrorCode::IdTaken, message: "taken".into(), holder: None },
                409,
                "id_taken",
            ),
            (Error::TooLarge { field: "data", limit: 4 }, 413, "data_too_large"),
            (Error::Stale { version: 2 }, 412, "precondition_failed"),
            (Error::Forbidden("no".into()), 403, "forbidden"),
            (Error::unavailable(Duration::from_millis(1200), "full"), 503, "unavailable"),
            (StoreError::NotLeader { leader: None }.into(), 503, "not_leader"),
            (StoreError::OutcomeUnknown { message: "?".into() }.into(), 503, "outcome_unknown"),
            (Error::Internal("disk on fire".into()), 500, "internal"),
        ];
        for (error, status, code) in table {
            let problem = Problem::from(error);
            assert_eq!((problem.status().as_u16(), problem.code()), (status, code));
        }
    }

    #[test]
    fn a_problem_names_the_field_and_the_holder() {
        let clash = Error::Conflict {
            code: ErrorCode::CorrelationKeyTaken,
            message: "job a has it".into(),
            holder: Some("a".parse().unwrap()),
        };
        let shown_clash = shown(&Problem::from(clash).at("/v1/jobs"));
        assert_eq!(shown_clash["holder"], "a");
        assert_eq!(shown_clash["title"], "Correlation key taken");
        assert_eq!(shown_clash["type"], "urn:tidegate:problem:correlation_key_taken");
        assert_eq!(shown_clash["instance"], "/v1/jobs");
        let wrong = shown(&Problem::invalid("constraints[2].rate.count", "must be at least 1"));
        assert_eq!(wrong["field"], "constraints[2].rate.count");
        assert_eq!(wrong["detail"], "constraints[2].rate.count: must be at least 1");
    }

    #[test]
    fn internal_causes_are_hidden_from_clients() {
        let problem = Problem::from(Error::Internal("/var/secret.db is damaged".into()));
        assert!(!shown(&problem).to_string().contains("secret"));
        assert_eq!(problem.cause(), Some("/var/secret.db is damaged"));
    }

    #[test]
    fn retry_after_is_in_whole_seconds_rounded_up() {
        let full = Error::unavailable(Duration::from_millis(1200), "full");
        let response = Problem::from(full).into_response();
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
    }
}
