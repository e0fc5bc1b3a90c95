//! The answer to a request whose head the HTTP library cannot read, so that no route gets it.

use axum::http::StatusCode;
use tidegate_core::{error_code::ErrorCode, job::Encoding, port::Entropy};

use super::{envelope, error::Problem, media, reply};

/// What the library's own answer, a head without a body, lacks.
#[derive(Debug)]
pub struct RefusedHead {
    /// The header lines that describe the body, each with its end of line.
    pub headers: String,
    /// The problem document.
    pub body: Vec<u8>,
}

/// The problem document for a head that was refused with `status`: 400, 414 or 431.
pub fn refused_head(status: StatusCode, entropy: &dyn Entropy) -> RefusedHead {
    let (code, detail) = match status {
        StatusCode::URI_TOO_LONG => {
            (ErrorCode::UriTooLong, "the path and the query have more than 65534 bytes")
        }
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => (
            ErrorCode::HeadersTooLarge,
            "the request has more than 100 headers, or more than 400 KiB of them",
        ),
        _ => (
            ErrorCode::InvalidRequest,
            "the request line or a header is not well-formed HTTP/1.1, or the length of the body \
             is unclear",
        ),
    };
    let body = reply::encode(&Problem::new(code, detail), Encoding::Json).unwrap_or_default();
    let headers = [
        ("content-type", media::problem_name(Encoding::Json)),
        ("content-length", body.len().into()),
        ("x-request-id", envelope::new_request_id(entropy)),
        ("server", envelope::SERVER),
        ("x-content-type-options", envelope::NOSNIFF),
    ];
    let line = |(name, value): &(&str, axum::http::HeaderValue)| {
        format!("{name}: {}\r\n", value.to_str().unwrap_or_default())
    };
    envelope::count(status);
    RefusedHead { headers: headers.iter().map(line).collect(), body }
}
