//! Push handlers: what a type's `target` URL serves.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request as HttpRequest, Response, StatusCode, header};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};
use tidegate_api::{BeatView, Status, signature};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    attempt::{AbortReason, Attempt, Changes, Fields},
    client::Client,
    error::{BoxError, Error, ErrorKind},
    handler::{Ended, JobTypes, Report, Run, perform, run},
    heartbeat::{FLUSH_TIME, MAX_BEAT_WAIT, heartbeat},
    job::{instant, seconds},
    transport::{Request, Transport},
};

const MAX_BODY_BYTES: usize = 8 << 20;
/// How often a background handler learns whether its job was cancelled.
const BEAT_TIME: Duration = Duration::from_secs(10);
const NOT_RETRYABLE: u16 = 489;

/// Checks the signature of a push or a callback, as [Standard
/// Webhooks](https://www.standardwebhooks.com) describe. Secrets are those of the type's
/// `signing_secret`: one, or several during a rotation.
///
/// # Errors
///
/// [`Error::Refused`] if the signature is wrong, or its time further from `now` than the tolerance;
/// [`Error::InvalidArgument`] if a secret cannot be used.
pub fn verify(
    secrets: &[String],
    headers: &HeaderMap,
    body: &[u8],
    now: SystemTime,
    tolerance: Duration,
) -> Result<(), Error> {
    check_secrets(secrets)?;
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (id, timestamp, signatures) =
        (header(signature::ID), header(signature::TIMESTAMP), header(signature::SIGNATURE));
    let now = instant(now);
    signature::verify_within(tolerance, secrets, id, timestamp, signatures, body, now)
        .map_err(|err| Error::Refused(err.to_string()))
}

fn check_secrets(secrets: &[String]) -> Result<(), Error> {
    if secrets.is_empty() {
        return Err(Error::argument("at least one signing secret is needed"));
    }
    secrets
        .iter()
        .try_for_each(|secret| signature::Secret::parse(secret).map(drop).map_err(Error::argument))
}

/// Where the result of an attempt goes that was answered with 202. It can be stored as JSON, and
/// used by another process.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callback {
    /// Where to report.
    pub url: String,
    /// The attempt's token.
    pub token: String,
    /// The attempt, from 1.
    pub attempt: u16,
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callback")
            .field("url", &self.url)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

impl Callback {
    /// Reports success, again while the server does not answer. A repeat is harmless.
    ///
    /// # Errors
    ///
    /// Of the kind [`Conflict`](ErrorKind::Conflict) or [`NotFound`](ErrorKind::NotFound) if the
    /// attempt is over.
    pub async fn succeed(&self, result: &impl Serialize) -> Result<(), Error> {
        let result = serde_json::value::to_raw_value(result)
            .map_err(|err| Error::argument(format_args!("the result is no JSON: {err}")))?;
        self.report(Report::success(result)).await
    }

    /// Reports the failure that an error means: [`PermanentError`](crate::PermanentError),
    /// [`Snooze`](crate::Snooze) and [`Release`](crate::Release) as from a handler.
    ///
    /// # Errors
    ///
    /// As [`succeed`](Self::succeed).
    pub async fn fail<E: Into<BoxError>>(&self, error: E) -> Result<(), Error> {
        self.report(Report::of_error(&error.into(), std::any::type_name::<E>(), None)).await
    }

    /// Sends progress, 0 to 100, with a note that may be empty, once. Returns whether the job was
    /// cancelled.
    ///
    /// # Errors
    ///
    /// As [`succeed`](Self::succeed).
    pub async fn heartbeat(&self, percent: f64, note: &str) -> Result<bool, Error> {
        let job = Attempt::new("", "", self.attempt);
        job.progress(percent, note);
        self.beat(&job, &job.take()).await
    }

    async fn beat(&self, job: &Attempt, shown: &Changes) -> Result<bool, Error> {
        let request = Request::post("/heartbeat").json(&heartbeat(job, shown, None));
        // One that hangs leaves time for another.
        let request = request.timeout(BEAT_TIME);
        let answer = self.transport()?.send(&request.bearer(&self.token)).await?;
        answer.read().map(|beat: BeatView| beat.cancel)
    }

    async fn report(&self, report: Report) -> Result<(), Error> {
        let report = Report { attempt: self.attempt, ..report };
        let request = Request::post("").json(&report.body(None)).bearer(&self.token);
        self.transport()?.request(&request.repeatable(true)).await.map(drop)
    }

    fn transport(&self) -> Result<Transport, Error> {
        // A connection that is kept would belong to the runtime of its first request.
        static HTTP: OnceLock<reqwest::Client> = OnceLock::new();
        let new = || {
            reqwest::Client::builder()
                .pool_max_idle_per_host(0)
                .redirect(reqwest::redirect::Policy::none())
                .build()
                .map_err(Error::argument)
        };
        let http = HTTP.get().cloned().map_or_else(new, Ok)?;
        let http = HTTP.get_or_init(|| http).clone();
        let client = Client::builder()
            .url(&self.url)
            .token("")
            .http(http)
            .repeats(1000, Duration::from_mins(1))
            .build()?;
        Ok(Transport::clone(&client.transport))
    }
}

/// The job of a pushed attempt: an [`Attempt`], and where a later result goes.
#[derive(Clone, Debug)]
pub struct PushJob {
    attempt: Attempt,
    callback: Callback,
    headers: Arc<HeaderMap>,
}

impl PushJob {
    /// Returns where a later result goes; see [`Later`](crate::Later).
    pub fn callback(&self) -> &Callback {
        &self.callback
    }

    /// Returns the headers of the request, with those of the job among them.
    pub fn request_headers(&self) -> &HeaderMap {
        &self.headers
    }
}

impl std::ops::Deref for PushJob {
    type Target = Attempt;

    fn deref(&self) -> &Attempt {
        &self.attempt
    }
}

/// The handlers of pushed types, for any HTTP framework. The signature of every request is checked.
#[must_use]
pub struct Push {
    /// None accepts requests without a signature.
    secrets: Option<Vec<String>>,
    tolerance: Duration,
    max_body_bytes: usize,
    clock: Arc<dyn Fn() -> SystemTime + Send + Sync>,
    handlers: HashMap<String, (Run<PushJob>, bool)>,
    /// How many handlers run in the background.
    running: watch::Sender<usize>,
}

impl Push {
    /// Returns push handlers with the secrets of the types' `signing_secret`; two while one is
    /// replaced.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there is no secret, or one cannot be used.
    pub fn new<S: Into<String>>(secrets: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        let secrets: Vec<String> = secrets.into_iter().map(Into::into).collect();
        check_secrets(&secrets)?;
        Ok(Self { secrets: Some(secrets), ..Self::unsigned() })
    }

    /// Returns push handlers that accept requests without a signature: only behind another check of
    /// the caller.
    pub fn unsigned() -> Self {
        Self {
            secrets: None,
            tolerance: signature::TOLERANCE,
            max_body_bytes: MAX_BODY_BYTES,
            clock: Arc::new(SystemTime::now),
            handlers: HashMap::new(),
            running: watch::Sender::new(0),
        }
    }

    /// Sets how far the time of a signature may be from the present (default five minutes).
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Bounds the body of a request (default 8 MiB).
    pub fn max_body_bytes(mut self, bytes: usize) -> Self {
        self.max_body_bytes = bytes;
        self
    }

    /// Replaces the clock; a test passes that of its development server.
    pub fn clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Adds the handler of a job type, or of several: `["letter", "card"]`. It replaces an earlier
    /// one. Its function gets the data as a `T`, and the job. One that returns
    /// [`Later`](crate::Later) answers 202.
    pub fn handle<T, R, E, F, Fut>(self, job_types: impl Into<JobTypes>, function: F) -> Self
    where
        F: Fn(T, PushJob) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        T: DeserializeOwned,
        R: Serialize,
        E: Into<BoxError>,
    {
        self.add(&job_types.into(), &run(function), false)
    }

    /// Adds the handler of a job type whose answer is 202 at once: its function goes on, and its
    /// result is reported when it has ended. It is for work that takes longer than a request
    /// should.
    pub fn background<T, R, E, F, Fut>(self, job_types: impl Into<JobTypes>, function: F) -> Self
    where
        F: Fn(T, PushJob) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        T: DeserializeOwned,
        R: Serialize,
        E: Into<BoxError>,
    {
        self.add(&job_types.into(), &run(function), true)
    }

    fn add(mut self, job_types: &JobTypes, run: &Run<PushJob>, background: bool) -> Self {
        for name in &job_types.0 {
            self.handlers.insert(name.clone(), (Arc::clone(run), background));
        }
        self
    }

    /// Returns when no handler runs in the background.
    pub async fn wait(&self) {
        // The sender is there as long as this value.
        let _ = self.running.subscribe().wait_for(|running| *running == 0).await;
    }

    /// Answers a request.
    pub async fn answer(&self, request: HttpRequest<Bytes>) -> Response<Bytes> {
        if request.method() != Method::POST {
            let mut answer = refuse(405, "a push is a POST");
            answer.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("POST"));
            return answer;
        }
        let (parts, body) = request.into_parts();
        if body.len() > self.max_body_bytes {
            return refuse(413, &format!("the body has more than {} bytes", self.max_body_bytes));
        }
        if let Some(secrets) = &self.secrets {
            let now = (self.clock)();
            if let Err(err) = verify(secrets, &parts.headers, &body, now, self.tolerance) {
                return refuse(401, &err.to_string());
            }
        }
        let Ok(job) = job_of(&body, parts.headers) else {
            return refuse(400, "the body is not a push in JSON");
        };
        let Some((run, is_background)) = self.handlers.get(job.job_type()) else {
            return refuse(404, &format!("no handler for the type {}", job.job_type()));
        };
        if *is_background {
            let running = self.running.clone();
            running.send_modify(|running| *running += 1);
            let run = Arc::clone(run);
            tokio::spawn(async move {
                run_in_background(&run, &job).await;
                running.send_modify(|running| *running -= 1);
            });
            return answer(202, None, Bytes::new());
        }
        let ended = perform(run, &job, job.clone()).await;
        if job.has_changes() {
            let shown = job.take();
            if let Err(err) = job.callback.beat(&job, &shown).await {
                tracing::info!(job = job.id(), error = %err, "what it shows was not sent");
            }
        }
        match ended {
            Ended::Later => answer(202, None, Bytes::new()),
            Ended::Lost => refuse(500, "the attempt is over"),
            Ended::Reported(report) => answer_of(&report),
        }
    }

    /// Returns a router of axum that answers pushes on every path: `app.nest("/jobs",
    /// push.router())`.
    #[cfg(feature = "axum")]
    pub fn router(self: &Arc<Self>) -> axum::Router {
        let push = Arc::clone(self);
        axum::Router::new().fallback(move |request: axum::extract::Request| {
            let push = Arc::clone(&push);
            async move {
                let (parts, body) = request.into_parts();
                let body = axum::body::to_bytes(body, push.max_body_bytes).await;
                let answer = match body {
                    Ok(body) => push.answer(HttpRequest::from_parts(parts, body)).await,
                    Err(err) => refuse(413, &format!("the body cannot be read: {err}")),
                };
                answer.map(axum::body::Body::from)
            }
        })
    }
}

impl fmt::Debug for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types: Vec<&String> = self.handlers.keys().collect();
        f.debug_struct("Push").field("types", &types).finish_non_exhaustive()
    }
}

/// The job of a push, and its callback.
fn job_of(body: &[u8], headers: HeaderMap) -> Result<PushJob, serde_json::Error> {
    #[derive(Deserialize)]
    struct Pushed {
        attempt: u16,
        callback: To,
    }
    #[derive(Deserialize)]
    struct To {
        url: String,
        token: String,
    }
    let mut fields: Fields = serde_json::from_slice(body)?;
    let Pushed { attempt, callback: To { url, token } } = serde_json::from_slice(body)?;
    for name in ["traceparent", "tracestate"] {
        if let Some(value) = headers.get(name).and_then(|value| value.to_str().ok()) {
            let of_job = fields.headers.get_or_insert_default();
            of_job.insert(name.to_owned(), value.to_owned());
        }
    }
    let callback = Callback { url, token, attempt };
    Ok(PushJob { attempt: Attempt::of(fields, attempt), callback, headers: Arc::new(headers) })
}

async fn run_in_background(run: &Run<PushJob>, job: &PushJob) {
    let ended = CancellationToken::new();
    let performed = async {
        let performed = perform(run, job, job.clone()).await;
        ended.cancel();
        performed
    };
    let beating = async {
        let mut beating = std::pin::pin!(keep_beating(job, &ended));
        tokio::select! {
            () = &mut beating => return,
            () = ended.cancelled() => {}
        }
        // A heartbeat that came after the report would be refused, and its lines lost.
        let _ = timeout(MAX_BEAT_WAIT, beating).await;
    };
    let (performed, ()) = tokio::join!(performed, beating);
    let Ended::Reported(report) = performed else { return };
    // A report that is refused, or not answered for a minute, is dropped: the attempt is over.
    if let Err(err) = job.callback.report(report.complete(job)).await {
        tracing::warn!(job = job.id(), error = %err, "a result is dropped");
    }
}

async fn keep_beating(job: &PushJob, ended: &CancellationToken) {
    let mut last = Instant::now();
    let mut next = last + BEAT_TIME;
    loop {
        tokio::select! {
            () = ended.cancelled() => return,
            () = job.changed() => {
                next = next.min(last + FLUSH_TIME);
                continue;
            }
            () = sleep_until(next) => {}
        }
        last = Instant::now();
        next = last + BEAT_TIME;
        let shown = job.take();
        match job.callback.beat(job, &shown).await {
            Ok(false) => {}
            Ok(true) => job.abort(AbortReason::Cancelled),
            Err(err)
                if matches!(err.kind(), ErrorKind::NotFound | ErrorKind::Conflict)
                    && !err.is_retryable() =>
            {
                job.abort(AbortReason::LeaseLost);
                return;
            }
            Err(err) => {
                tracing::info!(job = job.id(), error = %err, "a heartbeat was not taken");
                if err.is_retryable() {
                    job.put_back(shown);
                    next = last + FLUSH_TIME;
                }
            }
        }
    }
}

/// The answer that means what a report does.
fn answer_of(report: &Report) -> Response<Bytes> {
    let text = |raw: &Arc<RawValue>| Bytes::copy_from_slice(raw.get().as_bytes());
    let message = report.message.as_deref().unwrap_or_default();
    match report.status {
        Status::Succeeded => {
            let result = report.result.as_ref().map_or_else(Bytes::new, text);
            answer(200, Some("application/json"), result)
        }
        Status::Released | Status::Snoozed => {
            let body = Bytes::copy_from_slice(message.as_bytes());
            let mut answer = answer(503, Some("text/plain; charset=utf-8"), body);
            let headers = answer.headers_mut();
            let status = header::HeaderValue::from_static(report.status.as_str());
            headers.insert("tidegate-status", status);
            let until = report.run_at.map(|at| seconds(at.since(instant(SystemTime::now()))));
            if let Some(delay) = report.delay.or(until) {
                headers.insert(header::RETRY_AFTER, delay.millis().div_ceil(1000).into());
            }
            answer
        }
        Status::Failed => {
            let status = if report.retryable == Some(false) { NOT_RETRYABLE } else { 500 };
            let mut body = json!({ "message": message });
            let details = report.error.as_ref().map(|raw| serde_json::from_str(raw.get()));
            if let Some(Ok(details)) = details {
                body["error"] = details;
            }
            json_answer(status, &body)
        }
    }
}

fn refuse(status: u16, why: &str) -> Response<Bytes> {
    json_answer(status, &json!({ "error": why }))
}

fn json_answer(status: u16, body: &Value) -> Response<Bytes> {
    answer(status, Some("application/json"), body.to_string().into())
}

fn answer(status: u16, kind: Option<&'static str>, body: Bytes) -> Response<Bytes> {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(status).expect("the statuses here are valid");
    if let Some(kind) = kind {
        let kind = header::HeaderValue::from_static(kind);
        answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Later, PermanentError, Snooze};

    fn request(method: Method, body: &str) -> HttpRequest<Bytes> {
        let mut request = HttpRequest::new(Bytes::copy_from_slice(body.as_bytes()));
        *request.method_mut() = method;
        request
    }

    fn push_of(data: &Value) -> HttpRequest<Bytes> {
        let callback = json!({"url": "http://127.0.0.1:9/v1/jobs/t/1", "token": "t"});
        let body = json!({"id": "1", "type": "resize", "attempt": 1, "max_attempts": 3,
            "data": data, "attributes": {}, "callback": callback});
        request(Method::POST, &body.to_string())
    }

    #[tokio::test]
    async fn a_request_that_is_no_push_is_refused() {
        let push = Push::new(["s"]).unwrap().max_body_bytes(10);
        for (method, body, status) in
            [(Method::GET, "", 405), (Method::POST, "{}", 401), (Method::POST, "0123456789ab", 413)]
        {
            assert_eq!(push.answer(request(method, body)).await.status(), status, "{body}");
        }
        let push = Push::unsigned();
        assert_eq!(push.answer(request(Method::POST, "{}")).await.status(), 400);
        assert_eq!(push.answer(push_of(&json!(1))).await.status(), 404);
    }

    #[test]
    fn secrets_that_cannot_be_used_are_refused() {
        for secrets in [&[][..], &[""], &["whsec_?"]] {
            assert!(Push::new(secrets.iter().copied()).is_err(), "{secrets:?}");
        }
    }

    #[tokio::test]
    async fn answers_mean_what_the_handler_returned() {
        let push = Push::unsigned().handle("resize", |what: String, _: PushJob| async move {
            match what.as_str() {
                "later" => Err(Later.into()),
                "permanent" => Err(PermanentError::new("bad").details(json!({"line": 3})).into()),
                "snooze" => Err(Snooze::new(Duration::from_millis(1500)).into()),
                "fail" => Err(BoxError::from("no memory")),
                _ => Ok(json!({"width": 7})),
            }
        });
        for (what, status, body) in [
            ("ok", 200, r#"{"width":7}"#),
            ("later", 202, ""),
            ("permanent", 489, r#"{"error":{"line":3},"message":"bad"}"#),
            ("snooze", 503, "snoozed by its handler"),
        ] {
            let answer = push.answer(push_of(&json!(what))).await;
            assert_eq!((answer.status().as_u16(), &answer.body()[..]), (status, body.as_bytes()));
            if what == "snooze" {
                assert_eq!(answer.headers()["retry-after"], "2");
                assert_eq!(answer.headers()["tidegate-status"], "snoozed");
            }
        }
        let failed = push.answer(push_of(&json!("fail"))).await;
        assert_eq!(failed.status(), 500);
        assert!(String::from_utf8_lossy(failed.body()).contains("no memory"));
    }
}
