//! The most that an answer may have, where the home sets a bound: a function's answer is refused by Lambda when it is over it, and its caller
//! learns nothing of what was done.
//!
//! The one thing to know: whoever answers with what cannot be asked for again, a lease, makes it fit. This is for all others.

use axum::{
    body::HttpBody as _,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};

use super::error::Problem;

/// Whether `answer` has at most `most` bytes, if that is a bound and its size is known.
pub fn fits(answer: &Response, most: Option<usize>) -> bool {
    let bytes = answer.body().size_hint().exact();
    most.zip(bytes).is_none_or(|(most, bytes)| bytes <= most as u64)
}

/// `answer`, or the problem that it is too large.
pub fn bounded(answer: Response, most: Option<usize>) -> Response {
    let Some(most) = most.filter(|_| !fits(&answer, most)) else { return answer };
    let bytes = answer.body().size_hint().lower();
    let detail = format!("the answer has {bytes} bytes, and one may have {most} here: ask for fewer at a time");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "answer_too_large", detail).into_response()
}
