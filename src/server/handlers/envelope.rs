//! What every request and every answer has, whatever the route: an id, the server's name, a problem
//! document for each failure, a line in the log.
//!
//! It is the outermost layer, so that a panic, an unknown route and a refused body end in the same
//! kind of document as any other failure. (In a function of AWS a panic ends the process, and its caller hears 502.)

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

use super::{ApiOptions, ENVELOPE_BYTES, body::BodyLimit, error::Problem, health, media, reply};

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// What a browser that came encrypted is told: to come so for a year.
const ENCRYPTED_FROM_NOW_ON: HeaderValue = HeaderValue::from_static("max-age=31536000");
const SERVER: HeaderValue =
    HeaderValue::from_static(concat!("tidegate/", env!("CARGO_PKG_VERSION")));

/// Answers `request` by what is inside.
pub async fn envelope(
    State(options): State<Arc<ApiOptions>>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = request_id(&options, request.headers());
    let encoding = media::of_answer(request.headers()).unwrap_or_default();
    // A copy: a part of the request would keep the whole buffer that it was read into for as long as the answer takes.
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    // A route that takes more says so in a layer of its own, which is inside this one.
    request.extensions_mut().insert(BodyLimit(options.max_data_bytes + ENVELOPE_BYTES));
    let came_by = forwarded_proto(request.headers());
    let span = tracing::debug_span!("request", id = id.to_str().unwrap_or_default(), %method, path);
    let answered = async {
        if foreign_page(&method, request.headers()) {
            let detail = "a page of another site may not change anything here";
            return Problem::new(ErrorCode::CrossSite, detail).into_response();
        }
        if came_by.as_deref() == Some("http")
            && !options.allow_unencrypted_proxy
            && !health::ROUTES.contains(&path.as_str())
        {
            let detail = "it came to the proxy in front unencrypted, where its token and data could be read: use https, or set \
                          allow_unencrypted_proxy";
            return Problem::new(ErrorCode::InsecureRequest, detail).into_response();
        }
        let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
        answered.unwrap_or_else(|panic| {
            Problem::internal(format!("a handler panicked: {}", said(&*panic))).into_response()
        })
    };
    let mut response = answered.instrument(span).await;
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        if let Some(cause) = problem.cause() {
            tracing::error!(id = id.to_str().unwrap_or_default(), %method, path, cause, "a request failed");
        }
        write(&problem.at(&path), encoding, &mut response);
    }
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID.clone(), id.clone());
    headers.insert(header::SERVER, SERVER);
    if came_by.as_deref() == Some("https") {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, ENCRYPTED_FROM_NOW_ON);
    }
    if path.starts_with("/v1/") {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    let status = response.status();
    count(status);
    if options.log_traffic {
        // The path alone: a query may hold what somebody searches for, headers and bodies hold secrets.
        tracing::info!(id = id.to_str().unwrap_or_default(), %method, path, status = status.as_u16(), "request");
    }
    response
}

/// The client's own id for the request if it has a harmless one, else a new one.
fn request_id(options: &ApiOptions, headers: &HeaderMap) -> HeaderValue {
    let own = headers
        .get(&REQUEST_ID)
        .filter(|value| (1..=128).contains(&value.len()) && value.to_str().is_ok());
    own.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok()).unwrap_or_else(|| {
        let text = format!("{:016x}", options.entropy.bits() >> 64);
        HeaderValue::from_str(&text).expect("hexadecimal digits fit a header")
    })
}

/// How a request came to the first proxy on its way, if one says so.
fn forwarded_proto(headers: &HeaderMap) -> Option<String> {
    let said = headers.get(&FORWARDED_PROTO)?.to_str().ok()?;
    Some(said.split(',').next()?.trim().to_ascii_lowercase())
}

/// Whether a browser sends this for a page that is not ours. An open server must not be operated by
/// whatever site its owner looks at.
fn foreign_page(method: &Method, headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    !method.is_safe() && matches!(site, Some(b"cross-site" | b"same-site"))
}

/// Gives `response` the body that tells `problem`.
fn write(problem: &Problem, encoding: tidegate_core::job::Encoding, response: &mut Response) {
    if let Ok(bytes) = reply::encode(problem, encoding) {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, media::problem_name(encoding));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        *response.body_mut() = bytes.into();
    }
}

/// What a panic said.
fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("nothing")
}

/// Counts an answer. A label that is written out belongs to a key that is made once, and not with every request.
fn count(status: StatusCode) {
    let counter = match status.as_u16() / 100 {
        2 => counter!("tidegate_http_requests_total", "status" => "2xx"),
        3 => counter!("tidegate_http_requests_total", "status" => "3xx"),
        4 => counter!("tidegate_http_requests_total", "status" => "4xx"),
        _ => counter!("tidegate_http_requests_total", "status" => "5xx"),
    };
    counter.increment(1);
}
