//! Talking to a server: one request, one answer, and an error that says in one line what to do.
//!
//! Nothing is repeated here. A command fails at once when no server answers; only a worker, which
//! has work in hand, waits for the server to come back.

use std::{fmt, net::Ipv4Addr, time::Duration};

use anyhow::Context as _;
use bytes::Bytes;
use chrono::DateTime;
use reqwest::{Method, header};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use url::Url;

use tidegate_core::time::Timestamp;

/// How long an answer may take, beyond what the request itself asks to wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client of one server.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<String>,
}

/// Why a request has no good answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server refused; the same request would be refused again, unless the status says otherwise.
    #[error("{0}")]
    Problem(Problem),
    /// No answer came: the request may or may not have been done.
    #[error(
        "{url} is not reachable: {cause}; is the server running? Start it with `tidegate serve`, or name it with --url"
    )]
    Unreachable {
        /// Where the server was looked for.
        url: Url,
        /// What went wrong, innermost cause.
        cause: String,
    },
    /// What answered is not tidegate.
    #[error(
        "{url} gave an answer that this tidegate does not understand ({cause}); is it a tidegate server of this version?"
    )]
    Strange {
        /// What was asked.
        url: Url,
        /// What is wrong with the answer.
        cause: String,
    },
}

impl Error {
    /// Whether the same request may succeed later: the server is away, busy or broken.
    pub fn passes(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Problem(problem) => problem.status == 429 || problem.status >= 500,
            Self::Strange { .. } => false,
        }
    }
}

/// A refusal, as RFC 9457 has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// What kind of problem.
    pub title: String,
    /// What is wrong this time.
    pub detail: Option<String>,
    /// The kind, for programs.
    pub code: Option<String>,
    /// Everything that is wrong, where one sentence does not say it.
    pub reasons: Vec<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.title)?;
        if let Some(detail) = &self.detail {
            write!(f, ": {detail}")?;
        }
        match &self.code {
            Some(code) => write!(f, " ({code})"),
            None => write!(f, " ({})", self.status),
        }?;
        self.reasons.iter().try_for_each(|reason| write!(f, "\n  - {reason}"))
    }
}

/// What a server answered to a request it accepted.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status, below 400.
    pub status: u16,
    /// The body as it came.
    pub body: Bytes,
    /// What the server's clock showed, in whole seconds.
    pub date: Option<Timestamp>,
    url: Url,
}

impl Answer {
    /// The body, read as `T`.
    ///
    /// # Errors
    ///
    /// [`Error::Strange`] if it is not one.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.body)
            .map_err(|err| Error::Strange { url: self.url.clone(), cause: err.to_string() })
    }

    /// A part of the body, read as `T`.
    ///
    /// # Errors
    ///
    /// [`Error::Strange`] if it is not one.
    pub fn read_part<T: DeserializeOwned>(&self, part: &RawValue) -> Result<T, Error> {
        serde_json::from_str(part.get())
            .map_err(|err| Error::Strange { url: self.url.clone(), cause: err.to_string() })
    }
}

/// A request being put together; [`Request::send`] sends it.
#[derive(Debug)]
#[must_use]
pub struct Request<'a> {
    client: &'a Client,
    method: Method,
    url: Url,
    token: Option<&'a str>,
    body: Option<(&'static str, Vec<u8>)>,
    wait: Duration,
}

/// Reads a server's URL; `host:port` alone means plain HTTP.
///
/// # Errors
///
/// A message for the person who wrote it.
pub fn base_url(text: &str) -> Result<Url, String> {
    let url =
        if text.contains("://") { Url::parse(text) } else { Url::parse(&format!("http://{text}")) };
    let url = url.map_err(|err| err.to_string())?;
    if matches!(url.scheme(), "http" | "https") {
        Ok(url)
    } else {
        Err("an http:// or https:// URL is expected".to_owned())
    }
}

impl Client {
    /// A client of the server at `base`, showing `token` with every request.
    ///
    /// # Errors
    ///
    /// The machine's TLS settings are broken.
    pub fn new(base: Url, token: Option<String>) -> anyhow::Result<Self> {
        let mut http = reqwest::Client::builder()
            .user_agent(concat!("tidegate/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(5))
            .redirect(reqwest::redirect::Policy::none());
        // Names under `localhost` are this machine (RFC 6761, 6.3), and not every resolver knows it.
        if let Some(host) = base.host_str().filter(|host| host.ends_with(".localhost")) {
            http = http.resolve(
                host,
                (Ipv4Addr::LOCALHOST, base.port_or_known_default().unwrap_or(80)).into(),
            );
        }
        Ok(Self { http: http.build().context("no HTTP client can be made")?, base, token })
    }

    /// Where the server is.
    pub fn base(&self) -> &Url {
        &self.base
    }

    /// `GET /v1/…path`.
    pub fn get(&self, path: &[&str]) -> Request<'_> {
        self.request(Method::GET, path)
    }

    /// `POST /v1/…path`.
    pub fn post(&self, path: &[&str]) -> Request<'_> {
        self.request(Method::POST, path)
    }

    /// `PUT /v1/…path`.
    pub fn put(&self, path: &[&str]) -> Request<'_> {
        self.request(Method::PUT, path)
    }

    /// `PATCH /v1/…path`.
    pub fn patch(&self, path: &[&str]) -> Request<'_> {
        self.request(Method::PATCH, path)
    }

    /// `DELETE /v1/…path`.
    pub fn delete(&self, path: &[&str]) -> Request<'_> {
        self.request(Method::DELETE, path)
    }

    /// `POST` to a URL that the server gave.
    pub fn post_to(&self, url: Url) -> Request<'_> {
        self.request_to(Method::POST, url)
    }

    fn request(&self, method: Method, path: &[&str]) -> Request<'_> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .expect("an http URL has a path")
            .pop_if_empty()
            .push("v1")
            .extend(path);
        self.request_to(method, url)
    }

    fn request_to(&self, method: Method, url: Url) -> Request<'_> {
        Request {
            client: self,
            method,
            url,
            token: self.token.as_deref(),
            body: None,
            wait: Duration::ZERO,
        }
    }
}

impl<'a> Request<'a> {
    /// Adds a query parameter.
    pub fn query(mut self, name: &str, value: &str) -> Self {
        self.url.query_pairs_mut().append_pair(name, value);
        self
    }

    /// Sets the body.
    pub fn json(self, body: &impl Serialize) -> Self {
        self.body("application/json", serde_json::to_vec(body).expect("a request has a JSON form"))
    }

    /// Sets the body to bytes of the media type `kind`.
    pub fn body(mut self, kind: &'static str, bytes: Vec<u8>) -> Self {
        self.body = Some((kind, bytes));
        self
    }

    /// Shows another token than the client's: an attempt's own.
    pub fn token(mut self, token: &'a str) -> Self {
        self.token = Some(token);
        self
    }

    /// Says how long the request itself asks the server to wait.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sends the request, once.
    ///
    /// # Errors
    ///
    /// [`Error::Problem`] for every status from 400 on, [`Error::Unreachable`] when no answer came.
    pub async fn send(self) -> Result<Answer, Error> {
        let mut request =
            self.client.http.request(self.method, self.url.clone()).timeout(self.wait + PATIENCE);
        request = request.header(header::ACCEPT, "application/json, application/problem+json");
        if let Some(token) = self.token {
            request = request.bearer_auth(token);
        }
        if let Some((kind, bytes)) = self.body {
            request = request.header(header::CONTENT_TYPE, kind).body(bytes);
        }
        let away = |err: reqwest::Error| Error::Unreachable {
            url: self.client.base.clone(),
            cause: innermost(&err),
        };
        let answer = request.send().await.map_err(away)?;
        let status = answer.status();
        let date = answer
            .headers()
            .get(header::DATE)
            .and_then(|date| DateTime::parse_from_rfc2822(date.to_str().ok()?).ok());
        let body = answer.bytes().await.map_err(away)?;
        if status.is_success() {
            let date = date.map(|date| Timestamp::from_utc(date.to_utc()));
            return Ok(Answer { status: status.as_u16(), body, date, url: self.url });
        }
        let foreign = || Problem {
            title: status.canonical_reason().unwrap_or("Refused").to_owned(),
            detail: Some(
                "the answer is not a problem document, so it may not be tidegate's".to_owned(),
            ),
            ..Problem::default()
        };
        let problem = serde_json::from_slice::<Problem>(&body)
            .ok()
            .filter(|problem| !problem.title.is_empty())
            .unwrap_or_else(foreign);
        Err(Error::Problem(Problem { status: status.as_u16(), ..problem }))
    }
}

/// What went wrong first: the outer errors only say that a request was sent.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::{context::ExitCode, testing::FakeServer};

    #[tokio::test]
    async fn a_problem_is_one_line_with_its_code() {
        let server = FakeServer::answering(|_| {
            (409, json!({"type": "about:blank", "title": "Conflict", "status": 409, "detail": "the job has ended", "code": "ended"}))
        })
        .await;
        let err = server.client().get(&["jobs", "a"]).send().await.unwrap_err();
        assert_eq!(err.to_string(), "Conflict: the job has ended (ended)");
        assert_eq!(ExitCode::of(&err.into()), ExitCode::Refused);
    }

    #[test]
    fn several_reasons_are_a_line_each() {
        let reasons = vec!["it imports wasi:cli".to_owned(), "it exports nothing".to_owned()];
        let problem = Problem {
            title: "Invalid plugin".into(),
            code: Some("invalid_plugin".into()),
            reasons,
            ..Problem::default()
        };
        assert_eq!(
            problem.to_string(),
            "Invalid plugin (invalid_plugin)\n  - it imports wasi:cli\n  - it exports nothing"
        );
    }

    #[tokio::test]
    async fn paths_and_queries_are_escaped_and_the_token_is_shown() {
        let server = FakeServer::answering(|_| (200, json!({}))).await;
        server.client().get(&["jobs", "a/b c"]).query("attribute.x", "1&2").send().await.unwrap();
        let seen = server.seen();
        assert_eq!(seen[0].path, "/v1/jobs/a%2Fb%20c?attribute.x=1%262");
        assert_eq!(seen[0].bearer.as_deref(), Some("secret"));
    }

    #[tokio::test]
    async fn an_answer_that_is_not_tidegates_says_so() {
        let server = FakeServer::answering(|_| (502, json!("<html>"))).await;
        let err = server.client().get(&["jobs"]).send().await.unwrap_err();
        assert!(
            err.to_string().starts_with("Bad Gateway: the answer is not a problem document"),
            "{err}"
        );
        assert!(err.passes());
    }

    #[tokio::test]
    async fn a_missing_server_says_what_to_do() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = base_url(&listener.local_addr().unwrap().to_string()).unwrap();
        drop(listener);
        let err = Client::new(url, None).unwrap().get(&["jobs"]).send().await.unwrap_err();
        assert!(
            err.to_string().contains("refused") && err.to_string().contains("tidegate serve"),
            "{err}"
        );
        assert_eq!(ExitCode::of(&err.into()), ExitCode::Unreachable);
    }

    #[test]
    fn a_server_may_be_named_without_its_scheme() {
        assert_eq!(base_url("localhost:80/q").unwrap().as_str(), "http://localhost/q");
        assert!(base_url("ftp://x").is_err() && base_url("http://").is_err());
    }
}
