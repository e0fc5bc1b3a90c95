//! The HTTP API in a function: the same routes. Each answer waits until its messages are published.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router, body,
    extract::Request,
    http::{self, StatusCode, Uri, header, uri::PathAndQuery},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;

use super::settings::CloudSettings;
use crate::telemetry::function::Metrics;
use crate::{
    auth::{Anonymous, BuiltIn, JwtAuthenticator, TokenItem, oidc::SignIn},
    dashboard::ConsoleOptions,
    handlers::{self, ApiOptions},
    runtime::Server,
};
use tidegate_api::SettingView;
use tidegate_backends::system::{SystemClock, SystemEntropy};
use tidegate_core::time::Timestamp;

/// Most bytes of an answer. Lambda accepts 6,291,556 bytes, with headers and with binary content in
/// base64.
pub const MAX_ANSWER_BYTES: usize = 4_700_000;

/// Most bytes of a job's data. A request of 6 MB can contain that much in base64, and the answer to
/// a lease can contain it in the encoding of the request.
pub const MAX_DATA_BYTES: usize = 4_500_000;

/// The time after which a process reads the tokens again.
const TOKEN_REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// The least time between two recorded uses of a token.
const TOKEN_USE_INTERVAL: Duration = Duration::from_mins(1);

/// The paths that are served even if the tokens cannot be read.
const SERVED_WITHOUT_TOKENS: [&str; 4] = ["/v1/doctor", "/healthz", "/readyz", "/openapi.json"];

/// The options of a function with the API.
#[derive(Clone, Debug, Default)]
pub struct ApiFunction {
    /// Most bytes of a job's data.
    pub max_data_bytes: usize,
    /// The admin token of the stack, which is valid before any token is stored.
    pub first_token: Option<TokenItem>,
    /// The options of the console.
    pub console: ConsoleOptions,
    /// The settings, as `GET /v1/settings` shows them.
    pub settings: Vec<SettingView>,
    /// The identity provider whose tokens are accepted, too.
    pub jwt: Option<Arc<JwtAuthenticator>>,
    /// Signs users in to the console at that provider.
    pub sign_in: Option<Arc<SignIn>>,
}

/// Without an identity provider, which [`api`](super::api) adds.
impl From<&CloudSettings> for ApiFunction {
    fn from(settings: &CloudSettings) -> Self {
        Self {
            max_data_bytes: settings.max_data_bytes,
            first_token: settings.first_token.clone(),
            console: ConsoleOptions::from(&settings.console),
            settings: settings.described(),
            ..Self::default()
        }
    }
}

/// The whole API of a serverless `server`. Every request needs a token: a stored one, the first, or
/// one of the identity provider. The API answers 503 while the stored tokens cannot be read.
pub async fn router(server: Server, function: ApiFunction, metrics: Metrics) -> Router {
    let ApiFunction { max_data_bytes, first_token: first, console, settings, jwt, sign_in } =
        function;
    let clock = Arc::clone(&server.engine().ports().clock);
    let auth = Arc::new(BuiltIn::new(jwt, Anonymous::Refused, clock));
    let (updated, initial) = (Arc::clone(&auth), first.clone());
    server.watch_tokens(move |tokens| {
        updated.set_tokens(tokens.into_iter().chain(first.clone()).collect());
    });
    let used = Arc::clone(&auth);
    auth.set_tokens(initial.into_iter().collect());
    let is_read = Arc::new(AtomicBool::new(read_tokens(&server).await));
    let options = ApiOptions {
        auth,
        entropy: Arc::new(SystemEntropy),
        clock: Arc::new(SystemClock),
        // Lambda delivers requests whole.
        body_timeout: Duration::from_secs(30),
        max_data_bytes,
        console,
        sign_in,
        settings,
        log_traffic: false,
        // Encryption is configured where the function's URL is created.
        allow_unencrypted_proxy: true,
        metrics: None,
        dev_clock: None,
    };
    let read_at = Arc::new(Mutex::new(server.now()));
    let shared = server.clone();
    let layer = middleware::from_fn(move |request: Request, next: Next| {
        let (server, read_at, is_read) =
            (shared.clone(), Arc::clone(&read_at), Arc::clone(&is_read));
        let used = Arc::clone(&used);
        let metrics = metrics.clone();
        let call = async move {
            if !is_read.load(Ordering::Relaxed) || must_refresh(&read_at, server.now()) {
                is_read.fetch_or(read_tokens(&server).await, Ordering::Relaxed);
            }
            // Until the tokens were read once, a token cannot be refused. The admin token still
            // gives access to `doctor`.
            let needs_tokens = !SERVED_WITHOUT_TOKENS.contains(&request.uri().path());
            if needs_tokens && !is_read.load(Ordering::Relaxed) {
                return unavailable();
            }
            let answer = next.run(request).await;
            // The flush logs its failure. The jobs are stored, and the maintenance sweep finds
            // them.
            let _ = server.flush().await;
            server.record_token_uses(&used, TOKEN_USE_INTERVAL).await;
            answer
        };
        async move { metrics.instrument(call).await }
    });
    handlers::router(server, options).layer(layer)
}

/// Removes the stage of an API Gateway from the start of a request's path. The stage `$default` is
/// not part of the path.
pub fn strip_stage_prefix<B>(request: &mut http::Request<B>, stage: &str) {
    let Some(original) = request.uri().path_and_query() else {
        return;
    };
    let stripped = original
        .as_str()
        .strip_prefix('/')
        .and_then(|path| path.strip_prefix(stage))
        .filter(|path| path.starts_with('/'));
    // A custom domain leaves the stage out. The path of a stage named `v1` must then keep the `/v1`
    // of its route.
    let stripped = stripped.filter(|path| stage != "v1" || path.starts_with("/v1/"));
    let Some(Ok(stripped)) = stripped.map(PathAndQuery::try_from) else {
        return;
    };
    let mut parts = request.uri().clone().into_parts();
    parts.path_and_query = Some(stripped);
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

/// The body of an answer as Lambda takes it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Content {
    /// A string of the answer's JSON.
    Text(String),
    /// Bytes, which the answer contains in base64.
    Bytes(Vec<u8>),
}

/// Reads the body of `answer`. Its bytes stay what they are, whatever encoding its `content-type`
/// names. A body that cannot be read is answered with 500.
pub async fn with_content(answer: Response) -> http::Response<Content> {
    let (mut parts, body) = answer.into_parts();
    let content = match body::to_bytes(body, MAX_ANSWER_BYTES).await.map(Vec::from) {
        // In a JSON string, a text with many quotes could grow to twice its size.
        Ok(bytes) if bytes.len() > MAX_ANSWER_BYTES / 2 => Content::Bytes(bytes),
        Ok(bytes) => String::from_utf8(bytes)
            .map_or_else(|error| Content::Bytes(error.into_bytes()), Content::Text),
        Err(error) => {
            tracing::error!(%error, "the body of an answer cannot be read");
            parts = Response::new(()).into_parts().0;
            parts.status = StatusCode::INTERNAL_SERVER_ERROR;
            Content::Text(String::new())
        }
    };
    http::Response::from_parts(parts, content)
}

/// Reads the tokens. Returns whether that succeeded.
async fn read_tokens(server: &Server) -> bool {
    let done = server.publish_tokens().await;
    if let Err(error) = &done {
        tracing::warn!(%error, "the tokens cannot be read; the tokens read before stay in use");
    }
    done.is_ok()
}

fn unavailable() -> Response {
    let problem = serde_json::json!({
        "type": "about:blank", "title": "Service Unavailable", "status": 503, "code": "unavailable",
        "detail": "the store does not answer, so tokens cannot be checked; `tidegate doctor` with \
                   the admin token of the stack names the cause",
    });
    let headers = [(header::CONTENT_TYPE, "application/problem+json"), (header::RETRY_AFTER, "1")];
    (StatusCode::SERVICE_UNAVAILABLE, headers, problem.to_string()).into_response()
}

/// Whether the tokens must be read again. A caller that gets `true` must read them.
fn must_refresh(read_at: &Mutex<Timestamp>, now: Timestamp) -> bool {
    let mut read_at = read_at.lock();
    let expired = now >= *read_at + TOKEN_REFRESH_INTERVAL;
    if expired {
        *read_at = now;
    }
    expired
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn content_of(bytes: Vec<u8>) -> Content {
        let headers = [(header::CONTENT_TYPE, "text/plain; charset=iso-8859-1")];
        let answer = with_content((headers, bytes).into_response()).await;
        assert_eq!(answer.headers().len(), 1, "{:?}", answer.headers());
        answer.into_body()
    }

    #[tokio::test]
    async fn the_bytes_of_an_answer_stay_what_they_are() {
        assert_eq!(content_of(b"\xe9".into()).await, Content::Bytes(b"\xe9".into()));
        assert_eq!(content_of("é".into()).await, Content::Text("é".into()));
        assert_eq!(content_of(Vec::new()).await, Content::Text(String::new()));
    }

    #[tokio::test]
    async fn a_large_text_is_sent_in_base64() {
        let text = vec![b'"'; MAX_ANSWER_BYTES / 2 + 1];
        assert_eq!(content_of(text.clone()).await, Content::Bytes(text));
    }

    #[tokio::test]
    async fn a_body_that_cannot_be_read_is_answered_with_500() {
        let parts = futures_util::stream::iter([Ok("half"), Err(std::io::Error::other("broken"))]);
        let answer = Response::new(body::Body::from_stream(parts));
        let answer = with_content(answer).await;
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(answer.into_body(), Content::Text(String::new()));
    }
}
