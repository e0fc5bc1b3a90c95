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
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::FutureExt as _;
use metrics::counter;
use tracing::Instrument as _;

use super::{
    ApiOptions, ENVELOPE_BYTES,
    body::{BodyLimit, BodyTime},
    bound,
    error::Problem,
    headers, health,
    host::Hosts,
    media, reply,
};
use tidegate_core::port::Entropy;

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Sent to browsers that used HTTPS: use only HTTPS for a year.
const HSTS_ONE_YEAR: HeaderValue = HeaderValue::from_static("max-age=31536000");
/// The name of this server.
pub(super) const SERVER: HeaderValue =
    HeaderValue::from_static(concat!("tidegate/", env!("CARGO_PKG_VERSION")));
/// Forbids browsers to take a response for another media type than its own.
pub(super) const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// Marks a request that came over one connection too many. Only the health checks are answered.
#[derive(Clone, Copy, Debug)]
pub struct Overloaded;

/// The id of a request, for its handler.
#[derive(Clone, Debug)]
pub(super) struct RequestId(pub String);

/// The state of the layer.
///
/// Each layer takes a kilobyte of each request that waits, so there is one for all of this.
pub(super) struct Envelope {
    pub options: Arc<ApiOptions>,
    pub hosts: Hosts,
    /// Most bytes of an answer, if the deployment mode has a bound.
    pub answer_bytes: Option<usize>,
}

/// Passes `request` to the routes, and completes the answer.
pub(super) async fn envelope(
    State(state): State<Arc<Envelope>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Envelope { options, hosts, answer_bytes } = &*state;
    let id = request_id(options, request.headers());
    let shown_id = RequestId(id.to_str().unwrap_or_default().to_owned());
    request.extensions_mut().insert(shown_id);
    let encoding = media::of_answer(request.headers()).unwrap_or_default();
    // Copies: a slice would keep the whole read buffer alive until the answer is written.
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    // A route with a larger limit sets it in its own layer, which is inside this one.
    request.extensions_mut().insert(BodyLimit(options.max_data_bytes + ENVELOPE_BYTES));
    let (clock, limit) = (Arc::clone(&options.clock), options.body_timeout);
    request.extensions_mut().insert(BodyTime { clock, limit });
    let scheme = forwarded_proto(request.headers());
    let has_credentials = request.headers().contains_key(header::AUTHORIZATION);
    let span = tracing::debug_span!("request", id = id.to_str().unwrap_or_default(), %method, path);
    let answered = async {
        if let Err(problem) = headers::check(&request) {
            return problem.into_response();
        }
        if request.extensions().get::<Overloaded>().is_some()
            && !health::ROUTES.contains(&path.as_str())
        {
            let detail = "the server has as many connections as max_connections allows";
            return Problem::new(ErrorCode::Unavailable, detail)
                .header(header::RETRY_AFTER, HeaderValue::from_static("1"))
                .into_response();
        }
        if scheme.as_deref() == Some("http")
            && !options.allow_unencrypted_proxy
            && !health::ROUTES.contains(&path.as_str())
        {
            let detail = "the request reached the proxy over plain HTTP, which exposes its token \
                          and data: use https, or set allow_unencrypted_proxy";
            return Problem::new(ErrorCode::InsecureRequest, detail).into_response();
        }
        let answered = async {
            match hosts.refusal(&request) {
                Some(refused) => refused,
                None => bound::bounded(next.run(request).await, *answer_bytes),
            }
        };
        AssertUnwindSafe(answered).catch_unwind().await.unwrap_or_else(|panic| {
            let message = panic_message(&*panic);
            Problem::internal(format!("a handler panicked: {message}")).into_response()
        })
    };
    let mut response = answered.instrument(span).await;
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        count_refusal(problem.error_code(), has_credentials);
        if let Some(cause) = problem.cause() {
            let id = id.to_str().unwrap_or_default();
            tracing::error!(id, %method, path, cause, "a request failed");
        }
        write(&problem.at(&path), encoding, &mut response);
    }
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID.clone(), id.clone());
    headers.insert(header::SERVER, SERVER);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
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
    own.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok())
        .unwrap_or_else(|| new_request_id(&*options.entropy))
}

/// A new request id.
pub(super) fn new_request_id(entropy: &dyn Entropy) -> HeaderValue {
    let text = format!("{:016x}", entropy.bits() >> 64);
    HeaderValue::from_str(&text).expect("hexadecimal digits fit a header")
}

/// The scheme by which the request reached the first proxy, if a proxy reports it.
fn forwarded_proto(headers: &HeaderMap) -> Option<String> {
    let schemes = headers.get(&FORWARDED_PROTO)?.to_str().ok()?;
    Some(schemes.split(',').next()?.trim().to_ascii_lowercase())
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

/// Counts a request that its caller may not make, by reason.
fn count_refusal(code: ErrorCode, has_credentials: bool) {
    let reason = match code {
        ErrorCode::Unauthorized if has_credentials => "invalid_credentials",
        ErrorCode::Unauthorized => "no_credentials",
        ErrorCode::Forbidden => "scope",
        ErrorCode::CrossSite | ErrorCode::HostNotAllowed | ErrorCode::InsecureRequest => {
            code.as_str()
        }
        _ => return,
    };
    counter!("tidegate_requests_refused_total", "reason" => reason).increment(1);
}

/// Counts an answer. Literal labels let the macro build each key once instead of per request.
pub(super) fn count(status: StatusCode) {
    let counter = match status.as_u16() / 100 {
        2 => counter!("tidegate_http_requests_total", "status" => "2xx"),
        3 => counter!("tidegate_http_requests_total", "status" => "3xx"),
        4 => counter!("tidegate_http_requests_total", "status" => "4xx"),
        _ => counter!("tidegate_http_requests_total", "status" => "5xx"),
    };
    counter.increment(1);
}
