//! A push target: a local HTTP server with the answers of the test, which records its requests.

use std::{future::Future, sync::Arc};

use axum::{Router, body::Bytes, extract::Request, http::HeaderMap, response::IntoResponse};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use super::wait::eventually;

/// A request that came.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which, from 1.
    pub number: usize,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Call {
    /// Its body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// A server that is called; gone when this is dropped.
pub struct Target {
    pub url: String,
    calls: Arc<Mutex<Vec<Call>>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Target {
    /// A target that answers each call by `answer`.
    pub async fn start<R, F>(answer: impl Fn(Call) -> F + Clone + Send + Sync + 'static) -> Self
    where
        R: IntoResponse + 'static,
        F: Future<Output = R> + Send + 'static,
    {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/work", listener.local_addr().unwrap());
        let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
        let seen = Arc::clone(&calls);
        let router = Router::new().fallback(move |request: Request| {
            let (seen, answer) = (Arc::clone(&seen), answer.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
                let call = {
                    let mut seen = seen.lock();
                    let path = parts.uri.path_and_query().unwrap().to_string();
                    let call = Call { number: seen.len() + 1, path, headers: parts.headers, body };
                    seen.push(call.clone());
                    call
                };
                answer(call).await.into_response()
            }
        });
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, calls, serving }
    }

    /// A target that answers no call before `true` is sent, and then each by `answer`.
    pub async fn held(answer: &'static str) -> (Self, watch::Sender<bool>) {
        let (go, wait) = watch::channel(false);
        let target = Self::start(move |_| {
            let mut wait = wait.clone();
            async move {
                wait.wait_for(|go| *go).await.unwrap();
                answer
            }
        });
        (target.await, go)
    }

    /// Every call so far.
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    /// The `number`th call, waited for.
    pub async fn call(&self, number: usize) -> Call {
        eventually("the target is called", || {
            let call = self.calls.lock().get(number - 1).cloned();
            async { call }
        })
        .await
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A port that refuses connections. It stays bound, so that no other program can listen on it while
/// the test runs.
pub struct ClosedPort {
    pub url: String,
    _socket: tokio::net::TcpSocket,
}

impl ClosedPort {
    pub fn new() -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self { url: format!("http://{}", socket.local_addr().unwrap()), _socket: socket }
    }
}
