//! Tests of what surrounds every route ([`envelope`]), of the `OpenAPI` document ([`document`]),
//! and of the routes on a real server whose store is in memory ([`live`], [`schedules`]).

mod document;
mod envelope;
mod live;
mod schedules;
mod sign_in;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Router,
    body::{self, Body},
    http::{Request, Response, StatusCode},
};
use tower::ServiceExt as _;

use super::{ApiOptions, envelope::Envelope, host::Hosts, wrapped};
use crate::{
    auth::{AuthError, Authenticate, Bounds, Credentials, Principal, Scopes},
    dashboard::ConsoleOptions,
};
use tidegate_backends::system::SystemClock;
use tidegate_engine::memory::SeededEntropy;

/// Accepts every token that is a list of scopes, perhaps with bounds and a name behind them: `read`,
/// `enqueue work;queues=mail;types=letter`, `enqueue;name=shop`.
struct ByWord;

#[async_trait]
impl Authenticate for ByWord {
    async fn authenticate(&self, credentials: &Credentials) -> Result<Principal, AuthError> {
        let words =
            credentials.secret().ok_or_else(|| AuthError::Refused("a token is needed".into()))?;
        let mut parts = words.split(';');
        let scopes: Scopes = parts
            .next()
            .unwrap_or_default()
            .parse()
            .map_err(|_| AuthError::Refused("the token is not known".into()))?;
        let (mut bounds, mut name) = (Bounds::default(), "someone");
        for part in parts {
            match part.split_once('=').unwrap() {
                ("queues", name) => {
                    bounds.queues.get_or_insert_default().insert(name.parse().unwrap());
                }
                ("name", given) => name = given,
                (_, name) => {
                    bounds.types.get_or_insert_default().insert(name.parse().unwrap());
                }
            }
        }
        Ok(Principal { name: name.into(), scopes, bounds: Arc::new(bounds) })
    }
}

fn options() -> Arc<ApiOptions> {
    Arc::new(ApiOptions {
        auth: Arc::new(ByWord),
        entropy: Arc::new(SeededEntropy::new(1)),
        clock: Arc::new(SystemClock),
        body_timeout: Duration::from_secs(30),
        max_data_bytes: 1000,
        console: ConsoleOptions::default(),
        sign_in: None,
        settings: Vec::new(),
        log_traffic: true,
        allow_unencrypted_proxy: false,
        metrics: None,
        dev_clock: None,
    })
}

/// `routes` with the layers of the API.
fn around(routes: Router<Arc<ApiOptions>>) -> Router {
    let options = options();
    let hosts = Hosts::new(Arc::clone(&options.auth), "https://queue.example/jobs");
    let routes = routes.with_state(Arc::clone(&options));
    wrapped(routes, Envelope { options, hosts, answer_bytes: None })
}

/// The answer to one request: method, path, headers, body.
async fn ask(
    router: &Router,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    sent: impl Into<Body>,
) -> (Response<()>, Vec<u8>) {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in [("host", "127.0.0.1:8080"), ("content-type", "application/json")] {
        if !headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name)) {
            request = request.header(name, value);
        }
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = router.clone().oneshot(request.body(sent.into()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body::to_bytes(body, usize::MAX).await.unwrap();
    (Response::from_parts(parts, ()), bytes.to_vec())
}

/// The status and the code of a problem document in JSON.
fn problem(answer: &(Response<()>, Vec<u8>)) -> (StatusCode, String) {
    let (response, body) = answer;
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let value: serde_json::Value = serde_json::from_slice(body).unwrap();
    assert_eq!(value["status"], response.status().as_u16());
    (response.status(), value["code"].as_str().unwrap().to_owned())
}
