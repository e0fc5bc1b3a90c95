//! The maximum size of an answer, in deployment modes that have one. Lambda refuses an answer over
//! its limit, and the caller does not learn what the request did.
//!
//! Some answers cannot be requested again: a lease, the jobs of a batch, a result that is read
//! once. Their handlers make them fit. This bound is for all other answers.

use axum::{
    body::HttpBody as _,
    response::{IntoResponse as _, Response},
};
use tidegate_core::error_code::ErrorCode;

use super::{error::Problem, headers::JOB_STATE};

/// The size of the body of `answer` in bytes; of a streamed body, the lower bound.
pub fn bytes(answer: &Response) -> u64 {
    answer.body().size_hint().lower()
}

/// By how many bytes `answer` exceeds `most`; 0 without a bound.
pub(crate) fn excess(answer: &Response, most: Option<usize>) -> u64 {
    most.map_or(0, |most| bytes(answer).saturating_sub(most as u64))
}

/// `answer`, or the problem that it is too large.
pub fn bounded(answer: Response, most: Option<usize>) -> Response {
    let Some(most) = most.filter(|_| excess(&answer, most) > 0) else {
        return answer;
    };
    let bytes = bytes(&answer);
    let detail = format!(
        "the answer has {bytes} bytes, more than the maximum of {most}: request fewer at a time"
    );
    let problem = Problem::new(ErrorCode::ResponseTooLarge, detail);
    let state = answer.headers().get(&JOB_STATE).cloned();
    match state {
        Some(state) => problem.header(JOB_STATE.clone(), state),
        None => problem,
    }
    .into_response()
}
