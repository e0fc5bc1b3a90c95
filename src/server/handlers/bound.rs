//! The most that an answer may have, where the home sets a bound: a function's answer is refused by Lambda when it is over it, and its caller
//! learns nothing of what was done.
//!
//! The one thing to know: whoever answers with what cannot be asked for again (a lease, a batch's jobs, a result that is read once) makes it fit,
//! or leaves it to be asked for. This is for all others.

use axum::{
    body::HttpBody as _,
    response::{IntoResponse as _, Response},
};
use tidegate_core::error_code::ErrorCode;

use super::error::Problem;

/// The bytes of `answer`'s body, as far as they are known: all of them but where it is streamed.
pub fn bytes(answer: &Response) -> u64 {
    answer.body().size_hint().lower()
}

/// By how many bytes `answer` is larger than `most`, if that is a bound.
pub fn excess(answer: &Response, most: Option<usize>) -> u64 {
    most.map_or(0, |most| bytes(answer).saturating_sub(most as u64))
}

/// `answer`, or the problem that it is too large.
pub fn bounded(answer: Response, most: Option<usize>) -> Response {
    let Some(most) = most.filter(|_| excess(&answer, most) > 0) else {
        return answer;
    };
    let bytes = bytes(&answer);
    let detail = format!(
        "the answer has {bytes} bytes, and one may have {most} here: ask for fewer at a time"
    );
    Problem::new(ErrorCode::ResponseTooLarge, detail).into_response()
}
