//! A fake server on loopback that records requests and sends the responses of a test.

pub mod sample;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, Method, StatusCode, Uri, header},
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use super::{
    Global,
    client::{Client, base_url},
    context::{Context, Output},
};

/// One request, as the server saw it.
#[derive(Clone, Debug)]
pub struct SeenRequest {
    pub method: String,
    /// Path and query.
    pub path: String,
    pub bearer: Option<String>,
    /// The body, null if there is none.
    pub body: Value,
}

impl SeenRequest {
    /// Method and path, to match on.
    pub fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

type Answering =
    Arc<dyn Fn(SeenRequest) -> Pin<Box<dyn Future<Output = (u16, Value)> + Send>> + Send + Sync>;

/// A server that lives as long as its test.
pub struct FakeServer {
    url: String,
    seen: watch::Receiver<Vec<SeenRequest>>,
    output: Arc<Mutex<Vec<u8>>>,
}

impl FakeServer {
    /// A server that answers each request with a status and a body.
    pub async fn answering(
        answer: impl Fn(SeenRequest) -> (u16, Value) + Send + Sync + 'static,
    ) -> Self {
        Self::answering_slowly(move |seen| std::future::ready(answer(seen))).await
    }

    /// A server that may take its time.
    pub async fn answering_slowly<F>(
        answer: impl Fn(SeenRequest) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = (u16, Value)> + Send + 'static,
    {
        let answer: Answering = Arc::new(move |seen| Box::pin(answer(seen)));
        let (log, seen) = watch::channel(Vec::new());
        let log = Arc::new(log);
        let handle = move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
            let (answer, log) = (answer.clone(), log.clone());
            async move {
                let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
                    value.to_str().ok()?.strip_prefix("Bearer ").map(str::to_owned)
                });
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let seen =
                    SeenRequest { method: method.to_string(), path: uri.to_string(), bearer, body };
                log.send_modify(|log| log.push(seen.clone()));
                let (status, body) = answer(seen).await;
                (
                    StatusCode::from_u16(status).unwrap(),
                    [(header::CONTENT_TYPE, "application/json")],
                    body.to_string(),
                )
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(handle)).await });
        Self { url, seen, output: Arc::default() }
    }

    /// A client of this server with the token `secret`.
    pub fn client(&self) -> Client {
        Client::new(base_url(&self.url).unwrap(), Some("secret".to_owned())).unwrap()
    }

    /// Returns the URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<SeenRequest> {
        self.seen.borrow().clone()
    }

    /// The first request that `fits`, waited for.
    pub async fn saw(&self, fits: impl Fn(&SeenRequest) -> bool) -> SeenRequest {
        self.saw_after(0, fits).await
    }

    /// The first request that `fits` after the first `skip` ones, waited for.
    pub async fn saw_after(&self, skip: usize, fits: impl Fn(&SeenRequest) -> bool) -> SeenRequest {
        let mut seen = self.seen.clone();
        let waited = tokio::time::timeout(
            Duration::from_secs(20),
            seen.wait_for(|log| log.iter().skip(skip).any(&fits)),
        )
        .await;
        let log = self.seen();
        assert!(waited.is_ok(), "the request never came; seen: {log:#?}");
        log.into_iter().skip(skip).find(fits).unwrap()
    }

    /// Runs the command line `tidegate ARGS` against this server: its exit code and what it wrote.
    pub async fn run(&self, args: &[&str]) -> (super::ExitCode, String) {
        let cli = self.parsed(args);
        self.output.lock().clear();
        let code = super::run_in(cli.command, &self.context(cli.global)).await;
        (code, String::from_utf8(self.output.lock().clone()).unwrap())
    }

    /// [`FakeServer::run`] with a terminal as the output.
    pub async fn run_on_terminal(&self, args: &[&str]) -> (super::ExitCode, String) {
        let cli = self.parsed(args);
        self.output.lock().clear();
        let ctx = self.context(cli.global).on_terminal();
        let code = super::run_in(cli.command, &ctx).await;
        (code, String::from_utf8(self.output.lock().clone()).unwrap())
    }

    /// The command line `tidegate ARGS` against this server.
    pub fn parsed(&self, args: &[&str]) -> super::Cli {
        use clap::Parser as _;
        super::Cli::try_parse_from([&["tidegate", "--url", self.url.as_str()], args].concat())
            .unwrap()
    }

    /// A context whose output this server keeps.
    pub fn context(&self, global: Global) -> Context {
        let output: Output = self.output.clone();
        Context::captured(global, output)
    }
}
