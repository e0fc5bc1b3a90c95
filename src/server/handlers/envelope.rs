//! What every request and every answer has, whatever the route: an id, the server's name, a problem
//! document for each failure, a line in the log.
//!
//! It is the outermost layer, so a panic, an unknown route and a refused body produce the same kind
//! of document as any other failure. (In a Lambda function a panic ends the process, and the caller
//! gets 502.)

use std::{panic::AssertUnwindSafe, sync::Arc};
use tidegate_core::error_code::ErrorCode;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::FutureExt as _;
use metrics::counter;
use tracing::Instrument as _;

use super::{
    ApiOptions, ENVELOPE_BYTES, body::BodyLimit, error::Problem, headers, health, media, reply,
};

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Sent to browsers that used HTTPS: use only HTTPS for a year.
const HSTS_ONE_YEAR: HeaderValue = HeaderValue::from_static("max-age=31536000");
const SERVER: HeaderValue =
    HeaderValue::from_static(concat!("tidegate/", env!("CARGO_PKG_VERSION")));

/// Passes `request` to the routes, and completes the answer.
pub(crate) async fn envelope(
    State(options): State<Arc<ApiOptions>>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = request_id(&options, request.headers());
    let encoding = media::of_answer(request.headers()).unwrap_or_default();
    // Copies: a slice would keep the whole read buffer alive until the answer is written.
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    // A route with a larger limit sets it in its own layer, which is inside this one.
    request.extensions_mut().insert(BodyLimit(options.max_data_bytes + ENVELOPE_BYTES));
    let scheme = forwarded_proto(request.headers());
    let span = tracing::debug_span!("request", id = id.to_str().unwrap_or_default(), %method, path);
    let answered = async {
        if let Err(problem) = headers::check(&request) {
            return problem.into_response();
        }
        if foreign_page(&method, request.headers()) {
            let detail = "a page of another site must not change anything on this server";
            return Problem::new(ErrorCode::CrossSite, detail).into_response();
        }
        if scheme.as_deref() == Some("http")
            && !options.allow_unencrypted_proxy
            && !health::ROUTES.contains(&path.as_str())
        {
            let detail = "the request reached the proxy over plain HTTP, which exposes its token \
                          and data: use https, or set allow_unencrypted_proxy";
            return Problem::new(ErrorCode::InsecureRequest, detail).into_response();
        }
        let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
        answered.unwrap_or_else(|panic| {
            Problem::internal(format!("a handler panicked: {}", panic_message(&*panic)))
                .into_response()
        })
    };
    let mut response = answered.instrument(span).await;
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        if let Some(cause) = problem.cause() {
            let id = id.to_str().unwrap_or_default();
            tracing::error!(id, %method, path, cause, "a request failed");
        }
        write(&problem.at(&path), encoding, &mut response);
    }
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID.clone(), id.clone());
    headers.insert(header::SERVER, SERVER);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if scheme.as_deref() == Some("https") {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, HSTS_ONE_YEAR);
    }
    if path.starts_with("/v1/") {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    let status = response.status();
    count(status);
    if options.log_traffic {
        // Only the path: a query can contain private search terms, headers and bodies secrets.
        let (id, status) = (id.to_str().unwrap_or_default(), status.as_u16());
        tracing::info!(id, %method, path, status, "request");
    }
    response
}

/// The request id that the client sent if it is valid, else a new one.
fn request_id(options: &ApiOptions, headers: &HeaderMap) -> HeaderValue {
    let own = headers
        .get(&REQUEST_ID)
        .filter(|value| (1..=128).contains(&value.len()) && value.to_str().is_ok());
    own.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok()).unwrap_or_else(|| {
        let text = format!("{:016x}", options.entropy.bits() >> 64);
        HeaderValue::from_str(&text).expect("hexadecimal digits fit a header")
    })
}

/// The scheme by which the request reached the first proxy, if a proxy reports it.
fn forwarded_proto(headers: &HeaderMap) -> Option<String> {
    let schemes = headers.get(&FORWARDED_PROTO)?.to_str().ok()?;
    Some(schemes.split(',').next()?.trim().to_ascii_lowercase())
}

/// Whether a browser sends this change for a page of another site. It is refused: otherwise
/// any site that the operator visits could change an open server.
fn foreign_page(method: &Method, headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    !method.is_safe() && matches!(site, Some(b"cross-site" | b"same-site"))
}

/// Makes `problem` the body of `response`.
fn write(problem: &Problem, encoding: tidegate_core::job::Encoding, response: &mut Response) {
    if let Ok(bytes) = reply::encode(problem, encoding) {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, media::problem_name(encoding));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        *response.body_mut() = bytes.into();
    }
}

/// The message of a panic.
fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("nothing")
}

/// Counts an answer. Literal labels let the macro build each key once instead of per request.
fn count(status: StatusCode) {
    let counter = match status.as_u16() / 100 {
        2 => counter!("tidegate_http_requests_total", "status" => "2xx"),
        3 => counter!("tidegate_http_requests_total", "status" => "3xx"),
        4 => counter!("tidegate_http_requests_total", "status" => "4xx"),
        _ => counter!("tidegate_http_requests_total", "status" => "5xx"),
    };
    counter.increment(1);
}
