//! One request, one answer, and repeats where they are harmless.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use serde::{Serialize, de::DeserializeOwned};
use tidegate_api::Problem;
use tokio::time::{Instant, sleep};

use crate::{
    error::{Error, ProblemError, sources},
    trace,
};

/// The largest answer that is read.
const MAX_ANSWER_BYTES: usize = 1 << 30;
pub(crate) const MIN_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
const MAX_RETRY_AFTER: Duration = Duration::from_mins(1);

/// A request of the API, for [`Client::request`](crate::Client::request).
#[derive(Clone, Debug)]
#[must_use]
pub struct Request {
    method: Method,
    path: String,
    body: Option<Bytes>,
    headers: HeaderMap,
    wait: Duration,
    timeout: Option<Duration>,
    repeatable: Option<bool>,
    fault: Option<String>,
}

impl Request {
    /// Returns a request; `path` begins with `/v1/`.
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            body: None,
            headers: HeaderMap::new(),
            wait: Duration::ZERO,
            timeout: None,
            repeatable: None,
            fault: None,
        }
    }

    /// Returns a GET request.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    /// Returns a POST request.
    pub fn post(path: impl Into<String>) -> Self {
        Self::new(Method::POST, path)
    }

    /// Returns a PUT request.
    pub fn put(path: impl Into<String>) -> Self {
        Self::new(Method::PUT, path)
    }

    /// Returns a DELETE request.
    pub fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path)
    }

    /// Adds a query parameter.
    pub fn query(mut self, name: &str, value: &str) -> Self {
        self.path.push(if self.path.contains('?') { '&' } else { '?' });
        encode(name, &mut self.path);
        self.path.push('=');
        encode(value, &mut self.path);
        self
    }

    /// Sets the body to the JSON of a value.
    pub fn json(mut self, body: &impl Serialize) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) => self.body = Some(body.into()),
            Err(err) => self.fault = Some(format!("the body is not a JSON value: {err}")),
        }
        self
    }

    /// Adds a header, and replaces an earlier one of its name.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        match (HeaderName::try_from(name), HeaderValue::from_str(value)) {
            (Ok(name), Ok(value)) => {
                self.headers.insert(name, value);
            }
            _ => self.fault = Some(format!("the header {name} cannot be sent")),
        }
        self
    }

    /// Adds the time that the request makes the server wait.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Bounds the time for the answer, in addition to [`wait`](Self::wait) (default: that of the
    /// client, which is also the most).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Says whether a repeat is harmless. By default GET, PUT, DELETE, and requests with an
    /// `Idempotency-Key`, are repeated.
    pub fn repeatable(mut self, repeatable: bool) -> Self {
        self.repeatable = Some(repeatable);
        self
    }

    pub(crate) fn bearer(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn bytes(mut self, body: Bytes) -> Self {
        self.body = Some(body);
        self
    }

    fn is_repeatable(&self) -> bool {
        self.repeatable.unwrap_or_else(|| {
            [Method::GET, Method::PUT, Method::DELETE].contains(&self.method)
                || self.headers.contains_key("idempotency-key")
        })
    }
}

/// An answer with a status below 400.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body as it came.
    pub body: Bytes,
}

impl Answer {
    /// Returns the body, read as a `T`; an empty one is null.
    ///
    /// # Errors
    ///
    /// [`Error::UnexpectedAnswer`] if it is not one.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let body = if self.body.is_empty() { b"null" } else { &*self.body };
        serde_json::from_slice(body).map_err(|err| Error::UnexpectedAnswer(err.to_string()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The connections to one server.
#[derive(Clone, Debug)]
pub(crate) struct Transport {
    pub http: reqwest::Client,
    /// Without a slash at its end.
    pub base: Arc<str>,
    pub token: Option<HeaderValue>,
    pub timeout: Duration,
    pub repeats: u32,
    pub repeat_time: Duration,
}

impl Transport {
    /// Sends a request, and repeats it if that is harmless.
    pub async fn request(&self, request: &Request) -> Result<Answer, Error> {
        let began = Instant::now();
        let mut tries = 1;
        loop {
            let err = match self.send(request).await {
                Ok(answer) => return Ok(answer),
                Err(err) => err,
            };
            if !request.is_repeatable() || !err.is_retryable() || tries > self.repeats {
                return Err(err);
            }
            let mut pause = backoff(tries, MIN_BACKOFF);
            if let Some(after) = err.retry_after() {
                pause = after.min(MAX_RETRY_AFTER) + pause / 10;
            }
            if began.elapsed() + pause > self.repeat_time {
                return Err(err);
            }
            sleep(pause).await;
            tries += 1;
        }
    }

    /// Sends a request once.
    pub async fn send(&self, request: &Request) -> Result<Answer, Error> {
        let timeout = request.timeout.map_or(self.timeout, |timeout| timeout.min(self.timeout));
        let timeout = timeout + request.wait;
        let answer = self.open(request, "application/json", Some(timeout)).await?;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let answer = Answer { status, headers, body: self.read(answer).await? };
        if status >= 300 { Err(problem(&answer)) } else { Ok(answer) }
    }

    /// Sends a request once, and returns when the head of the answer has come.
    pub async fn open(
        &self,
        request: &Request,
        accept: &'static str,
        timeout: Option<Duration>,
    ) -> Result<reqwest::Response, Error> {
        if let Some(fault) = &request.fault {
            return Err(Error::argument(fault));
        }
        let url = format!("{}{}", self.base, request.path);
        let mut sent = self.http.request(request.method.clone(), url);
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
        if let Some(token) = &self.token {
            headers.insert(header::AUTHORIZATION, token.clone());
        }
        if let Some(trace) = trace::traceparent().and_then(|trace| trace.try_into().ok()) {
            headers.insert("traceparent", trace);
        }
        if let Some(body) = &request.body {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            sent = sent.body(body.clone());
        }
        for (name, value) in &request.headers {
            headers.insert(name.clone(), value.clone());
        }
        if let Some(timeout) = timeout {
            sent = sent.timeout(timeout);
        }
        sent.headers(headers).send().await.map_err(|err| self.unreachable(&err))
    }

    /// Reads the body of an answer, with or without a length.
    pub async fn read(&self, mut answer: reqwest::Response) -> Result<Bytes, Error> {
        let too_large = || Error::UnexpectedAnswer("it has more than 1 GiB".to_owned());
        let length = answer.content_length().unwrap_or_default();
        if length > MAX_ANSWER_BYTES as u64 {
            return Err(too_large());
        }
        let mut body = BytesMut::new();
        while let Some(part) = answer.chunk().await.map_err(|err| self.unreachable(&err))? {
            if body.is_empty() && part.len() as u64 == length {
                return Ok(part);
            }
            if body.len() + part.len() > MAX_ANSWER_BYTES {
                return Err(too_large());
            }
            body.extend_from_slice(&part);
        }
        Ok(body.freeze())
    }

    pub fn unreachable(&self, err: &reqwest::Error) -> Error {
        // The outer errors only say that a request was sent.
        let cause = sources(err).last().map(ToString::to_string).unwrap_or_default();
        Error::Unreachable { url: self.base.to_string(), cause }
    }
}

/// The error of an answer with a status from 300 on. Redirects are not followed.
pub(crate) fn problem(answer: &Answer) -> Error {
    let read = serde_json::from_slice::<Problem>(&answer.body).ok();
    let problem = read.filter(|problem| !problem.title.is_empty()).unwrap_or_else(|| Problem {
        title: format!("HTTP {}", answer.status).into(),
        detail: "the answer is not a problem document, so it may not be tidegate's".into(),
        ..Problem::default()
    });
    let seconds = answer.header("retry-after").and_then(|text| text.parse().ok());
    Error::Problem(Box::new(ProblemError {
        retry_after: seconds.map(duration),
        request_id: answer.header("x-request-id").map(str::to_owned),
        ..ProblemError::new(answer.status, problem)
    }))
}

/// The wait after the failed try number `tries`, from 1: doubled, half of it random.
pub(crate) fn backoff(tries: u32, least: Duration) -> Duration {
    let span = least.saturating_mul(1 << (tries - 1).min(20)).min(MAX_BACKOFF);
    span.mul_f64(0.5 + rand::random::<f64>() / 2.0)
}

pub(crate) fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.min(1e9)).unwrap_or_default()
}

/// 128 random bits.
pub(crate) fn random_key() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// A path of the API, its segments percent-encoded.
pub(crate) fn path(segments: &[&str]) -> String {
    let mut path = "/v1".to_owned();
    for segment in segments {
        path.push('/');
        encode(segment, &mut path);
    }
    path
}

fn encode(text: &str, to: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                to.push(char::from(byte));
            }
            byte => write!(to, "%{byte:02X}").expect("a string takes every text"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_and_parameters_are_encoded() {
        assert_eq!(path(&["jobs", "a/b", "é 1"]), "/v1/jobs/a%2Fb/%C3%A9%201");
        let request = Request::get("/v1/jobs").query("type", "a&b").query("attribute[run]", "x");
        assert_eq!(request.path, "/v1/jobs?type=a%26b&attribute%5Brun%5D=x");
    }

    #[test]
    fn the_backoff_doubles_to_its_maximum_and_is_half_random() {
        for (tries, most) in [(1, 100), (2, 200), (7, 6400), (8, 10_000), (1000, 10_000)] {
            let (wait, most) = (backoff(tries, MIN_BACKOFF), Duration::from_millis(most));
            assert!(wait >= most / 2 && wait <= most, "{tries}: {wait:?}");
        }
    }

    #[test]
    fn harmless_requests_are_repeated_alone() {
        assert!(Request::get("/v1/jobs").is_repeatable());
        assert!(!Request::post("/v1/leases").is_repeatable());
        assert!(Request::post("/v1/jobs").header("Idempotency-Key", "k").is_repeatable());
        assert!(!Request::put("/v1/queues/a").repeatable(false).is_repeatable());
    }

    #[test]
    fn odd_waits_of_a_server_are_bounded() {
        assert_eq!(duration(f64::NAN), duration(1e9));
        assert_eq!(duration(-1.0), Duration::ZERO);
        assert_eq!(duration(1.5), Duration::from_millis(1500));
    }
}
