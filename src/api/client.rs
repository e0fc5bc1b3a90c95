//! An HTTP client of the API: one request, one answer, typed errors.
//!
//! Nothing is retried here: whether a repeat is safe depends on the request, so its caller decides.

use std::{net::Ipv4Addr, time::Duration};

use bytes::{Bytes, BytesMut};
use chrono::DateTime;
use reqwest::{Method, header};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use url::Url;

use crate::Problem;
use tidegate_core::time::Timestamp;

/// How long an answer may take, in addition to the wait that the request itself contains.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Most bytes of one server-sent event.
const MAX_EVENT_BYTES: u64 = 1 << 20;
/// Most bytes of an answer. The largest are leases: an embedded server does not bound them.
const MAX_ANSWER_BYTES: u64 = 1 << 30;

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
    /// The server refused; it would refuse the same request again, unless the status says
    /// otherwise.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// No answer came: the request may or may not have been processed.
    #[error(
        "{url} is not reachable: {cause}; is the server running? \
         Start it with `tidegate serve`, or name it with --url"
    )]
    Unreachable {
        /// The URL of the server.
        url: Url,
        /// What went wrong, innermost cause.
        cause: String,
    },
    /// The answer is not one of this version of tidegate.
    #[error(
        "{url} gave an answer that this tidegate does not understand ({cause}); \
         is it a tidegate server of this version?"
    )]
    Strange {
        /// The URL of the request.
        url: Url,
        /// What is wrong with the answer.
        cause: String,
    },
    /// The answer has more than 1 GiB.
    #[error(
        "the answer of {url} has more than {MAX_ANSWER_BYTES} bytes; if it is a lease, ask for \
         fewer jobs at a time"
    )]
    TooLarge {
        /// The URL of the request.
        url: Url,
    },
    /// The machine's TLS settings are broken.
    #[error("the HTTP client cannot be set up")]
    Setup(#[source] reqwest::Error),
}

impl Error {
    /// Whether the same request may succeed later: the server is unreachable, busy or broken.
    pub fn passes(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Problem(problem) => problem.status == 429 || problem.status >= 500,
            Self::Strange { .. } | Self::TooLarge { .. } | Self::Setup(_) => false,
        }
    }
}

/// The answer to a request that the server accepted.
#[derive(Clone, Debug)]
pub struct ApiResponse {
    /// The HTTP status, below 400.
    pub status: u16,
    /// The body as it came.
    pub body: Bytes,
    /// The time of the server's clock, in whole seconds.
    pub date: Option<Timestamp>,
    url: Url,
}

impl ApiResponse {
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
/// A message for the author of the text.
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
    /// A client of the server at `base` that sends `token` with every request.
    ///
    /// # Errors
    ///
    /// [`Error::Setup`] if the machine's TLS settings are broken.
    pub fn new(base: Url, token: Option<String>) -> Result<Self, Error> {
        let mut http = reqwest::Client::builder()
            .user_agent(concat!("tidegate/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(5))
            .redirect(reqwest::redirect::Policy::none());
        // Names under `localhost` are this machine (RFC 6761, 6.3), and not every resolver knows
        // it.
        if let Some(host) = base.host_str().filter(|host| host.ends_with(".localhost")) {
            http = http.resolve(
                host,
                (Ipv4Addr::LOCALHOST, base.port_or_known_default().unwrap_or(80)).into(),
            );
        }
        Ok(Self { http: http.build().map_err(Error::Setup)?, base, token })
    }

    /// The URL of the server.
    pub fn base(&self) -> &Url {
        &self.base
    }

    /// `GET /v1/…path`.
    pub fn get(&self, path: &[&str]) -> Request<'_> {
        self.request(Method::GET, path)
    }

    /// `GET /readyz`, which needs no token: answered with 200 if the server is ready.
    pub fn ready(&self) -> Request<'_> {
        let mut url = self.base.clone();
        url.path_segments_mut().expect("an http URL has a path").pop_if_empty().push("readyz");
        self.request_to(Method::GET, url)
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

    /// Replaces the client's token, for example by that of an attempt.
    pub fn token(mut self, token: &'a str) -> Self {
        self.token = Some(token);
        self
    }

    /// Adds the time that the request itself makes the server wait.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sends the request for server-sent events, whose answer has no end.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub async fn events(self) -> Result<Events, Error> {
        let url = self.client.base.clone();
        let mut request = self.client.http.request(self.method, self.url);
        request = request.header(header::ACCEPT, "text/event-stream, application/problem+json");
        if let Some(token) = self.token {
            request = request.bearer_auth(token);
        }
        let unreachable =
            |err: reqwest::Error| Error::Unreachable { url: url.clone(), cause: innermost(&err) };
        let answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        if status.is_success() {
            return Ok(Events { answer, buffer: BytesMut::new(), url });
        }
        let body = bounded_body(answer, MAX_EVENT_BYTES).await.map_err(unreachable)?;
        let problem = body.and_then(|body| serde_json::from_slice::<Problem>(&body).ok());
        let status = status.as_u16();
        Err(Error::Problem(Box::new(Problem { status, ..problem.unwrap_or_default() })))
    }

    /// Sends the request, once.
    ///
    /// # Errors
    ///
    /// [`Error::Problem`] for every status from 400 on, [`Error::Unreachable`] when no answer came,
    /// [`Error::TooLarge`] for one over 1 GiB.
    pub async fn send(self) -> Result<ApiResponse, Error> {
        let mut request = self
            .client
            .http
            .request(self.method, self.url.clone())
            .timeout(self.wait + RESPONSE_TIMEOUT);
        request = request.header(header::ACCEPT, "application/json, application/problem+json");
        if let Some(token) = self.token {
            request = request.bearer_auth(token);
        }
        if let Some((kind, bytes)) = self.body {
            request = request.header(header::CONTENT_TYPE, kind).body(bytes);
        }
        let unreachable = |err: reqwest::Error| Error::Unreachable {
            url: self.client.base.clone(),
            cause: innermost(&err),
        };
        let answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let date = answer
            .headers()
            .get(header::DATE)
            .and_then(|date| DateTime::parse_from_rfc2822(date.to_str().ok()?).ok());
        let Some(body) = bounded_body(answer, MAX_ANSWER_BYTES).await.map_err(unreachable)? else {
            return Err(Error::TooLarge { url: self.url });
        };
        if status.is_success() {
            let date = date.map(|date| Timestamp::from_utc(date.to_utc()));
            return Ok(ApiResponse { status: status.as_u16(), body, date, url: self.url });
        }
        let unknown = || Problem {
            title: status.canonical_reason().unwrap_or("Refused").into(),
            detail: "the answer is not a problem document, so it may not be tidegate's".into(),
            ..Problem::default()
        };
        let problem = serde_json::from_slice::<Problem>(&body)
            .ok()
            .filter(|problem| !problem.title.is_empty())
            .unwrap_or_else(unknown);
        Err(Error::Problem(Box::new(Problem { status: status.as_u16(), ..problem })))
    }
}

/// The body of an answer. `None` if it has more than `most` bytes, with or without a length.
async fn bounded_body(mut answer: reqwest::Response, most: u64) -> reqwest::Result<Option<Bytes>> {
    if answer.content_length().is_some_and(|length| length > most) {
        return Ok(None);
    }
    let mut body = BytesMut::new();
    while let Some(chunk) = answer.chunk().await? {
        if (body.len() + chunk.len()) as u64 > most {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body.freeze()))
}

/// The first cause: the outer errors only say that a request was sent.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Server-sent events, as they come.
#[derive(Debug)]
pub struct Events {
    answer: reqwest::Response,
    buffer: BytesMut,
    url: Url,
}

/// A server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerEvent {
    /// Its name.
    pub name: String,
    /// Its data.
    pub data: String,
}

impl Events {
    /// The next event; none after the last one.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if the connection breaks, [`Error::TooLarge`] for an event over 1 MiB.
    pub async fn next(&mut self) -> Result<Option<ServerEvent>, Error> {
        loop {
            while let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let frame = self.buffer.split_to(end + 2);
                if let Some(event) = event(&String::from_utf8_lossy(&frame)) {
                    return Ok(Some(event));
                }
            }
            if self.buffer.len() as u64 > MAX_EVENT_BYTES {
                return Err(Error::TooLarge { url: self.url.clone() });
            }
            let chunk = self.answer.chunk().await.map_err(|err| Error::Unreachable {
                url: self.url.clone(),
                cause: innermost(&err),
            })?;
            let Some(chunk) = chunk else { return Ok(None) };
            self.buffer.extend_from_slice(&chunk);
        }
    }
}

/// The event in a frame; none if it has only comments or an id.
fn event(frame: &str) -> Option<ServerEvent> {
    let mut event = ServerEvent { name: "message".to_owned(), data: String::new() };
    let mut has_data = false;
    for line in frame.lines() {
        match line.split_once(':') {
            Some(("event", name)) => name.trim_start().clone_into(&mut event.name),
            Some(("data", data)) => {
                if has_data {
                    event.data.push('\n');
                }
                event.data.push_str(data.strip_prefix(' ').unwrap_or(data));
                has_data = true;
            }
            _ => {}
        }
    }
    has_data.then_some(event)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;

    use super::*;

    /// An answer of three parts, which does not say its length.
    fn streamed() -> reqwest::Response {
        let parts = ["one", "two", "three"].map(|part| Ok::<_, Infallible>(Bytes::from(part)));
        let body = reqwest::Body::wrap_stream(stream::iter(parts));
        http::Response::new(body).into()
    }

    #[tokio::test]
    async fn a_body_of_unknown_length_is_read_up_to_the_bound() {
        assert_eq!(streamed().content_length(), None);
        assert_eq!(bounded_body(streamed(), 11).await.unwrap().unwrap(), "onetwothree");
        assert_eq!(bounded_body(streamed(), 10).await.unwrap(), None);
    }

    #[tokio::test]
    async fn events_are_read_across_chunks_and_comments_are_left_out() {
        let parts = [
            ": keep-alive\nid: 1\n\nevent: job\nid: 2\nda",
            "ta: {\"id\":\"j1\"}\n\nevent: ready\ndata: 1\ndata: 2\n\nevent: cut\ndata: x",
        ];
        let parts = parts.map(|part| Ok::<_, Infallible>(Bytes::from(part)));
        let body = reqwest::Body::wrap_stream(stream::iter(parts));
        let (answer, url) = (http::Response::new(body).into(), "http://a".parse().unwrap());
        let mut events = Events { answer, buffer: BytesMut::new(), url };
        let mut seen = Vec::new();
        while let Some(ServerEvent { name, data }) = events.next().await.unwrap() {
            seen.push((name, data));
        }
        let expected = [("job", "{\"id\":\"j1\"}"), ("ready", "1\n2")];
        assert_eq!(seen, expected.map(|(name, data)| (name.to_owned(), data.to_owned())));
    }
}
