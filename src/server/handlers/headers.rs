//! Headers that contradict themselves, or ask for what this server does not do, are refused for
//! every route before anything is read.

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, Version, header},
};
use tidegate_core::error_code::ErrorCode;

use super::error::Problem;

/// The state of the job whose result an answer has, or would have.
pub(super) static JOB_STATE: HeaderName = HeaderName::from_static("tidegate-state");
/// Whether a job that succeeded has a result: `value` or `none`.
pub(super) static JOB_RESULT: HeaderName = HeaderName::from_static("tidegate-result");
static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Headers that have one value. Of two, each program on the way could take another one.
const SINGLE: [&HeaderName; 6] = [
    &header::HOST,
    &header::CONTENT_TYPE,
    &header::CONTENT_ENCODING,
    &header::AUTHORIZATION,
    &header::IF_MATCH,
    &IDEMPOTENCY_KEY,
];

/// Checks the headers that concern every route.
///
/// # Errors
///
/// 400 for a header that is given twice, a request of HTTP/1.1 without a host (RFC 9112, 3.2) and a
/// coding of the connection other than `chunked`; 415 for a coding of the body (RFC 9110, 15.5.16).
pub(super) fn check(request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    let twice = |name: &&&HeaderName| headers.get_all(**name).iter().nth(1).is_some();
    let is_any_twice = headers.len() > headers.keys_len();
    if let Some(name) = SINGLE.iter().filter(|_| is_any_twice).find(twice) {
        return Err(refused(format!("the header {name} is given twice")));
    }
    let is_named = headers.contains_key(header::HOST) || request.uri().authority().is_some();
    if request.version() == Version::HTTP_11 && !is_named {
        return Err(refused("a request of HTTP/1.1 needs the header host".into()));
    }
    if let Some(coding) = other_than(headers, &header::TRANSFER_ENCODING, "chunked") {
        return Err(refused(format!(
            "Transfer-Encoding {coding:?} is not supported; send the body in chunks or with its \
             length"
        )));
    }
    if let Some(coding) = other_than(headers, &header::CONTENT_ENCODING, "identity") {
        let detail =
            format!("Content-Encoding {coding:?} is not supported; send the body uncompressed");
        return Err(Problem::new(ErrorCode::UnsupportedMediaType, detail));
    }
    Ok(())
}

fn refused(detail: String) -> Problem {
    Problem::new(ErrorCode::InvalidHeader, detail)
}

/// The first value of the header `name`, a list of words, that is not `word`.
fn other_than(headers: &HeaderMap, name: &HeaderName, word: &str) -> Option<String> {
    let values =
        headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    values
        .flat_map(|value| value.split(',').map(|one| one.trim().to_owned()).collect::<Vec<_>>())
        .find(|one| !one.is_empty() && !one.eq_ignore_ascii_case(word))
}
