//! The HTTP API behind a function: the same routes, told of before each answer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::HttpBody as _,
    extract::Request,
    http::{self, HeaderValue, StatusCode, Uri, header, uri::PathAndQuery},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;

use crate::telemetry::function::Metrics;
use crate::{
    auth::{Anonymous, BuiltIn, Scope, TokenItem},
    dashboard::DashboardOptions,
    handlers::{self, ApiOptions},
    runtime::Server,
};
use tidegate_backends::system::SystemEntropy;
use tidegate_core::time::Timestamp;

/// The most bytes of an answer. Lambda takes 6,291,556, in which what is no text stands in base64, and beside it the headers.
pub const ANSWER_BYTES: usize = 4_700_000;

/// The most bytes of a job's data: what a request of 6 MB has where bytes that are no text are a third longer, and what fits into a lease's answer in
/// the encoding in which it came.
pub const DATA_BYTES: usize = 4_500_000;

/// How long a process goes by the tokens that it has read.
const TOKENS: Duration = Duration::from_secs(5);

/// What is answered though the tokens cannot be read.
const OPEN: [&str; 4] = ["/v1/doctor", "/healthz", "/readyz", "/openapi.json"];

/// The whole API over an away `server`. Nobody is let in without a token: one of the stored ones, or `first`. While the stored ones cannot be
/// read, it answers 503.
pub async fn router(
    server: Server,
    max_data_bytes: usize,
    first: Option<TokenItem>,
    metrics: Metrics,
) -> Router {
    let auth = Arc::new(BuiltIn::new(None, Anonymous::Refused));
    let (keeper, own) = (Arc::clone(&auth), first.clone());
    server.watch_tokens(move |items| {
        let read = items
            .iter()
            .map(|bytes| serde_json::from_slice::<TokenItem>(bytes))
            .collect::<Result<Vec<_>, _>>();
        match read {
            Ok(tokens) => keeper.set_tokens(tokens.into_iter().chain(first.clone()).collect()),
            Err(error) => {
                tracing::error!(%error, "the tokens stay as they were: one cannot be read");
            }
        }
    });
    auth.set_tokens(own.into_iter().collect());
    let is_read = Arc::new(AtomicBool::new(read(&server).await));
    let options = ApiOptions {
        auth,
        entropy: Arc::new(SystemEntropy),
        max_data_bytes,
        dashboard: DashboardOptions::default(),
        log_traffic: false,
        // How one comes to the function is said where its URL is made.
        allow_unencrypted_proxy: true,
        metrics: None,
    };
    let read_at = Arc::new(Mutex::new(server.now()));
    let around = server.clone();
    let layer = middleware::from_fn(move |request: Request, next: Next| {
        let (server, read_at, is_read) =
            (around.clone(), Arc::clone(&read_at), Arc::clone(&is_read));
        let metrics = metrics.clone();
        let call = async move {
            if !is_read.load(Ordering::Relaxed) || is_old(&read_at, server.now()) {
                is_read.fetch_or(read(&server).await, Ordering::Relaxed);
            }
            // Whose tokens were never read is not refused for them. With the first token one may still ask what is wrong.
            if !is_read.load(Ordering::Relaxed) && !OPEN.contains(&request.uri().path()) {
                return unavailable();
            }
            let answer = next.run(request).await;
            // What fails here was logged and is found by the minute's round; the caller's job is in the store.
            let _ = server.flush().await;
            encoded(answer)
        };
        async move { metrics.instrument(call).await }
    });
    handlers::router(server, options).layer(layer)
}

/// Leaves the stage of an API Gateway out of a request's path: it stands in front of it, but for that of `$default`.
pub fn strip_stage_prefix<B>(request: &mut http::Request<B>, stage: &str) {
    let Some(asked) = request.uri().path_and_query() else {
        return;
    };
    let behind = asked
        .as_str()
        .strip_prefix('/')
        .and_then(|asked| asked.strip_prefix(stage))
        .filter(|behind| behind.starts_with('/'));
    // Behind a domain of its own the stage is not there, and one called `v1` looks like the beginning of a route.
    let behind = behind.filter(|behind| stage != "v1" || behind.starts_with("/v1/"));
    let Some(Ok(behind)) = behind.map(PathAndQuery::try_from) else {
        return;
    };
    let mut parts = request.uri().clone().into_parts();
    parts.path_and_query = Some(behind);
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

/// A text stands in a function's answer as a JSON string, and its quotes take two bytes each: one that might grow over the bound goes as base64,
/// which what has a content encoding does.
fn encoded(mut answer: Response) -> Response {
    if answer.body().size_hint().exact().is_some_and(|bytes| bytes > ANSWER_BYTES as u64 / 2) {
        answer
            .headers_mut()
            .entry(header::CONTENT_ENCODING)
            .or_insert(HeaderValue::from_static("identity"));
    }
    answer
}

/// Reads the tokens; whether they could be.
async fn read(server: &Server) -> bool {
    let read = server.publish_tokens().await;
    if let Err(error) = &read {
        tracing::warn!(%error, "the tokens cannot be read; they are those that were read last");
    }
    read.is_ok()
}

fn unavailable() -> Response {
    let problem = serde_json::json!({
        "type": "about:blank", "title": "Service Unavailable", "status": 503, "code": "unavailable",
        "detail": "the store does not answer, so nobody can be let in; `tidegate doctor` with the stack's first token says why",
    });
    let headers = [(header::CONTENT_TYPE, "application/problem+json"), (header::RETRY_AFTER, "1")];
    (StatusCode::SERVICE_UNAVAILABLE, headers, problem.to_string()).into_response()
}

/// Whether the tokens are to be read anew; whoever asks is taken to do so.
fn is_old(read_at: &Mutex<Timestamp>, now: Timestamp) -> bool {
    let mut read_at = read_at.lock();
    let old = now >= *read_at + TOKENS;
    if old {
        *read_at = now;
    }
    old
}

/// The token that `text` describes: its id, `:`, and the base64 of its secret's SHA-256.
pub fn first_token(text: &str) -> Option<TokenItem> {
    let (id, hash) = text.split_once(':')?;
    let good =
        !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) && hash.len() == 44;
    good.then(|| TokenItem {
        id: id.to_owned(),
        name: "first".into(),
        scopes: Scope::Admin.into(),
        hash: hash.to_owned(),
        created_at: Timestamp::EPOCH,
    })
}
