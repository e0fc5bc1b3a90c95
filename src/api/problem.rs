//! Why a request failed: problem documents of RFC 9457.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};
use tidegate_core::job::lifecycle::Reason;

/// Why a request was not done (RFC 9457).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct Problem {
    /// A name for this kind of problem: `urn:tidegate:problem:` and the code.
    #[schema(required = true)]
    pub r#type: String,
    /// The kind in words.
    #[schema(required = true, value_type = String)]
    pub title: Cow<'static, str>,
    /// The HTTP status.
    #[schema(required = true)]
    pub status: u16,
    /// What is wrong in this case.
    #[schema(required = true, value_type = String)]
    pub detail: Cow<'static, str>,
    /// A stable word for programs to act on.
    #[schema(required = true, value_type = String)]
    pub code: Cow<'static, str>,
    /// The path of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The field, parameter or header that caused the problem, with its path:
    /// `constraints[2].rate.count`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The job that the request conflicts with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Everything that is wrong, where one sentence cannot list it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<String>>)]
    pub reasons: Vec<String>,
    /// How the job ended, with `job_failed`: `failed`, `expired`, `cancelled` or `dropped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Cow<'static, str>>,
    /// The error of the job that ended so, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
}

/// The error of a job that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct JobError {
    /// The reason.
    pub reason: Reason,
    /// For people.
    pub message: Option<String>,
    /// The HTTP status of the target's response, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.title)?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        if self.code.is_empty() {
            write!(f, " ({})", self.status)?;
        } else {
            write!(f, " ({})", self.code)?;
        }
        self.reasons.iter().try_for_each(|reason| write!(f, "\n  - {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_reasons_are_a_line_each() {
        let reasons = vec!["it imports wasi:cli".to_owned(), "it exports nothing".to_owned()];
        let problem = Problem {
            title: "Invalid plugin".into(),
            code: "invalid_plugin".into(),
            reasons,
            ..Problem::default()
        };
        assert_eq!(
            problem.to_string(),
            "Invalid plugin (invalid_plugin)\n  - it imports wasi:cli\n  - it exports nothing"
        );
    }
}
