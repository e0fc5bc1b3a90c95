//! Lease requests to limited queues, between servers that share a store.
//!
//! ```text
//!   worker ─▶ a server ──tidegate-forwarded-to: NAME──▶ the owner of the queue
//!                        tidegate-forwarded-by: NAME
//!          ◀─          ◀──tidegate-claims: ...─────────
//! ```
//!
//! The server that the header names answers the request itself, so no request is forwarded twice. Any
//! other server refuses it: an address may have become that of another server, which may even have
//! another store.

use axum::{
    extract::FromRequestParts,
    http::{HeaderName, HeaderValue, header, request::Parts},
    response::{IntoResponse, Response},
};

use super::{
    Api,
    access::{Within, Work},
    body::Body,
    envelope::RequestId,
    error::Problem,
};
use crate::runtime::{
    CLAIMS, FORWARDED_BY, FORWARDED_TO, LeaseClaim, ReceivedRequest, UnwrittenLeases,
};
use tidegate_core::{error_code::ErrorCode, job::Job};
use tidegate_engine::request::LeaseRequest;

/// The headers of a request that the owner needs, in addition to its id.
const HEADERS: [&str; 5] = ["accept", "authorization", "content-type", "traceparent", "tracestate"];

/// Where a lease request came from, and where it may go.
pub(super) enum Hop {
    /// It may be forwarded, with this head.
    First(Head),
    /// This server leases.
    Last,
    /// The server with this name forwarded it, and this one leases.
    Forwarded(String),
}

/// The head of a request, as far as it is forwarded.
pub(super) struct Head {
    path: String,
    headers: Vec<(String, String)>,
}

impl FromRequestParts<Api> for Hop {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        if let Some(name) = parts.headers.get(FORWARDED_TO) {
            if api.server.takes_forwarded(name.as_bytes()) {
                let by = parts.headers.get(FORWARDED_BY).and_then(|name| name.to_str().ok());
                return Ok(Self::Forwarded(by.unwrap_or_default().to_owned()));
            }
            let detail = "the request was forwarded to another server, or this one stops";
            return Err(Problem::new(ErrorCode::Unavailable, detail)
                .header(header::RETRY_AFTER, HeaderValue::from_static("1")));
        }
        // The cookie of a user who has signed in is for this server alone.
        let has_credentials = parts.headers.contains_key(header::AUTHORIZATION);
        if !api.server.forwards() || !(has_credentials || api.options.auth.is_open()) {
            return Ok(Self::Last);
        }
        Ok(head_of(parts).map_or(Self::Last, Self::First))
    }
}

/// The head of a request; none if a header is no text.
fn head_of(parts: &Parts) -> Option<Head> {
    let mut headers = Vec::with_capacity(HEADERS.len() + 2);
    for name in HEADERS {
        for value in parts.headers.get_all(name) {
            headers.push((name.to_owned(), value.to_str().ok()?.to_owned()));
        }
    }
    if let Some(RequestId(id)) = parts.extensions.get::<RequestId>() {
        headers.push(("x-request-id".to_owned(), id.clone()));
    }
    Some(Head { path: parts.uri.path_and_query()?.to_string(), headers })
}

impl Hop {
    /// The name of the server that forwarded it, if one did.
    pub(super) fn forwarder(&self) -> Option<String> {
        match self {
            Self::Forwarded(by) => Some(by.clone()),
            Self::First(_) | Self::Last => None,
        }
    }

    /// The request with this `body`, if it may be forwarded.
    pub(super) fn received(self, body: &Body) -> Option<ReceivedRequest> {
        match self {
            Self::First(Head { path, headers }) => {
                Some(ReceivedRequest { path, headers, body: body.received().clone() })
            }
            Self::Last | Self::Forwarded(_) => None,
        }
    }
}

/// The answer of the owner of the request's queues, if that is another server and it answers. If not,
/// this server leases, in the rest of the wait.
pub(super) async fn answer_of_owner(
    api: &Api,
    caller: &Within<Work>,
    request: &mut LeaseRequest,
    received: ReceivedRequest,
    unwritten: Option<&UnwrittenLeases>,
) -> Option<Response> {
    let answer = api.server.forward_lease(request, caller.bounds(), received)?.await?;
    if let Some(unwritten) = unwritten.filter(|_| !answer.claims.is_empty()) {
        unwritten.hold(&api.server, answer.claims);
    }
    let content_type = HeaderValue::from_str(&answer.content_type).ok()?;
    Some(([(header::CONTENT_TYPE, content_type)], answer.body).into_response())
}

/// Adds the claims of the leases of `jobs` to the answer to a forwarded request.
pub(super) fn add_claims(answer: &mut Response, jobs: &[Job]) {
    let claims: Vec<String> = jobs.iter().map(|job| LeaseClaim::of(job).to_string()).collect();
    if let Ok(claims) = HeaderValue::from_str(&claims.join(",")) {
        answer.headers_mut().insert(HeaderName::from_static(CLAIMS), claims);
    }
}
