//! The client: enqueue, read, wait for results, send events.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::HeaderValue;
use reqwest::{Url, redirect::Policy};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json, value::RawValue};
use tidegate_api::{Explanation, Ingested, Limits, LogLine, LogPage, Problem};
use tokio::time::Instant;

use crate::{
    error::Error,
    job::{Enqueue, Job, NewJob, instant},
    pages::Pages,
    transport::{Answer, Request, Transport, path, random_key},
};

/// A wait without end.
pub const FOREVER: Duration = Duration::MAX;

const DEFAULT_URL: &str = "http://127.0.0.1:8080";
/// Most jobs, and most bytes, of a batch that is sent without reading the server's limits.
const SMALL_BATCH: (usize, usize) = (1000, 1 << 20);
/// What a batch has in addition to its jobs.
const BATCH_FRAME_BYTES: usize = r#"{"jobs":[]}"#.len();
/// The longest wait of one request; a longer wait is several of them.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// A client of one server. Clones share its connections.
///
/// Requests that are safe to repeat are repeated after a broken connection, 429, 502, 503 and 504,
/// with jitter, and as late as `Retry-After` says.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) transport: Arc<Transport>,
    limits: Arc<OnceLock<Limits>>,
}

/// The options of a client; see [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientBuilder {
    url: Option<String>,
    token: Option<String>,
    timeout: Duration,
    repeats: u32,
    repeat_time: Duration,
    http: Option<reqwest::Client>,
}

impl ClientBuilder {
    /// Sets the URL of the server (default: `TIDEGATE_URL`, or `http://127.0.0.1:8080`).
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// Sets the token for access (default: `TIDEGATE_TOKEN`).
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Sets the time for an answer, in addition to the time that the request itself waits (default
    /// 30 s).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the most repeats of a request that is safe to repeat (default 5). No repeat begins
    /// later than `time` after the first try (default 30 s).
    pub fn repeats(mut self, repeats: u32, time: Duration) -> Self {
        (self.repeats, self.repeat_time) = (repeats, time);
        self
    }

    /// Replaces the HTTP client. It must have no timeout, because requests wait for jobs.
    pub fn http(mut self, http: reqwest::Client) -> Self {
        self.http = Some(http);
        self
    }

    /// Returns the client.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the URL is not one of HTTP or has credentials, a query or a
    /// fragment, if the token cannot be sent, or if the machine's TLS settings are broken.
    pub fn build(self) -> Result<Client, Error> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let url = self.url.or_else(|| variable("TIDEGATE_URL"));
        let url = base_url(&url.unwrap_or_else(|| DEFAULT_URL.to_owned()))?;
        let token = self.token.or_else(|| variable("TIDEGATE_TOKEN"));
        let token = token.filter(|token| !token.is_empty()).map(|token| {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
                .map_err(|_| Error::argument("the token has a letter that cannot be sent"))?;
            value.set_sensitive(true);
            Ok(value)
        });
        let http = self.http.map_or_else(http_client, Ok)?;
        let transport = Transport {
            http,
            base: url.into(),
            token: token.transpose()?,
            timeout: self.timeout,
            repeats: self.repeats,
            repeat_time: self.repeat_time,
        };
        Ok(Client { transport: Arc::new(transport), limits: Arc::default() })
    }
}

fn http_client() -> Result<reqwest::Client, Error> {
    reqwest::Client::builder()
        .user_agent(concat!("tidegate-rust/", env!("CARGO_PKG_VERSION")))
        // Shorter than the server's time, so that it does not close a connection that is in use.
        .pool_idle_timeout(Duration::from_secs(30))
        .redirect(Policy::none())
        .build()
        .map_err(|err| Error::argument(format_args!("the HTTP client cannot be set up: {err}")))
}

/// A server's URL without a slash at its end; `host:port` alone means plain HTTP.
fn base_url(text: &str) -> Result<String, Error> {
    let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let wrong = |why: &str| Error::argument(format_args!("the URL {text:?}: {why}"));
    let url: Url = text.parse().map_err(|_| wrong("it is not a URL"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("an http:// or https:// URL is expected"));
    }
    let has_credentials = !url.username().is_empty() || url.password().is_some();
    if has_credentials || url.query().is_some() || url.fragment().is_some() {
        return Err(Error::argument("the URL must have no credentials, query or fragment"));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// The outcome of each job of a batch.
#[derive(Deserialize)]
struct Batch {
    results: Vec<BatchResult>,
}

#[derive(Deserialize)]
struct BatchResult {
    status: u16,
    job: Option<Box<RawValue>>,
    error: Option<Problem>,
}

impl Client {
    /// Returns a client of `TIDEGATE_URL` and `TIDEGATE_TOKEN`.
    ///
    /// # Errors
    ///
    /// As [`ClientBuilder::build`].
    pub fn from_env() -> Result<Self, Error> {
        Self::builder().build()
    }

    /// Returns the options of a client, which has the defaults of [`Client::from_env`].
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            url: None,
            token: None,
            timeout: Duration::from_secs(30),
            repeats: 5,
            repeat_time: Duration::from_secs(30),
            http: None,
        }
    }

    /// Returns the URL of the server, without a slash at its end.
    pub fn url(&self) -> &str {
        &self.transport.base
    }

    /// Sends any request of the API, and repeats it if that is harmless.
    ///
    /// # Errors
    ///
    /// The server refused, or no answer came.
    pub async fn request(&self, request: Request) -> Result<Answer, Error> {
        self.transport.request(&request).await
    }

    /// Enqueues a job: `.await` it, after options such as [`Enqueue::delay`].
    ///
    /// ```no_run
    /// # async fn enqueue(client: &tidegate_client::Client) -> Result<(), tidegate_client::Error> {
    /// use std::time::Duration;
    ///
    /// let job = client.enqueue("letter", "dear reader").delay(Duration::from_secs(60)).await?;
    /// assert!(job.is_new());
    /// # Ok(())
    /// # }
    /// ```
    pub fn enqueue(
        &self,
        job_type: impl Into<String>,
        data: &(impl Serialize + ?Sized),
    ) -> Enqueue<'_> {
        Enqueue { client: self, job: NewJob::new(job_type, data), key: None }
    }

    /// Enqueues a job that was made before: `.await` it; see [`Client::enqueue`].
    pub fn enqueue_job(&self, job: NewJob) -> Enqueue<'_> {
        Enqueue { client: self, job, key: None }
    }

    /// Enqueues jobs, as many with each request as the server takes, and returns one outcome per
    /// job, in order. A refused job does not affect the others.
    ///
    /// With a key the call can be repeated with the same list. Without one it has a random key, so
    /// that a lost answer makes no second job.
    ///
    /// # Errors
    ///
    /// A request as a whole was refused, or not answered. The jobs of those before it are enqueued.
    pub async fn enqueue_many(
        &self,
        jobs: impl IntoIterator<Item = NewJob>,
        key: Option<&str>,
    ) -> Result<Vec<Result<Job, Error>>, Error> {
        let key = key.map_or_else(random_key, str::to_owned);
        let jobs: Vec<NewJob> = jobs.into_iter().collect();
        jobs.iter().try_for_each(NewJob::check)?;
        let mut outcomes = Vec::with_capacity(jobs.len());
        let encoded =
            jobs.iter().map(serde_json::value::to_raw_value).collect::<Result<Vec<_>, _>>();
        let encoded = encoded
            .map_err(|err| Error::InvalidArgument(format!("a job is no JSON value: {err}")))?;
        for (number, part) in self.batches(&encoded).await?.into_iter().enumerate() {
            let request = Request::post("/v1/jobs/batch")
                .json(&json!({ "jobs": part }))
                .header("idempotency-key", &format!("{key}.{number}"));
            let Batch { results } = self.request(request).await?.read()?;
            if results.len() != part.len() {
                return Err(Error::UnexpectedAnswer("it lacks outcomes of the batch".to_owned()));
            }
            for BatchResult { status, job, error } in results {
                outcomes.push(match job {
                    Some(job) => {
                        let text: Box<str> = job.into();
                        Ok(Job::new(self, Bytes::from(String::from(text)), status == 201)?)
                    }
                    None => Err(Error::problem_of(status, error.unwrap_or_default())),
                });
            }
        }
        Ok(outcomes)
    }

    /// The jobs in parts that each fit into one request.
    async fn batches<'j>(
        &self,
        jobs: &'j [Box<RawValue>],
    ) -> Result<Vec<&'j [Box<RawValue>]>, Error> {
        let size_of = |job: &RawValue| job.get().len() + 1;
        let (mut most, mut most_bytes) = SMALL_BATCH;
        let all: usize = jobs.iter().map(|job| size_of(job)).sum();
        if jobs.len() > most || all > most_bytes {
            let limits = self.limits().await?;
            let bound = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
            (most, most_bytes) = (bound(limits.batch_jobs), bound(limits.batch_request_bytes));
        }
        let (mut parts, mut start, mut size) = (Vec::new(), 0, BATCH_FRAME_BYTES);
        for (index, job) in jobs.iter().enumerate() {
            let is_full = index - start == most || size + size_of(job) > most_bytes;
            if index > start && is_full {
                parts.push(&jobs[start..index]);
                (start, size) = (index, BATCH_FRAME_BYTES);
            }
            size += size_of(job);
        }
        parts.extend(Some(&jobs[start..]).filter(|rest| !rest.is_empty()));
        Ok(parts)
    }

    /// Returns what the server accepts in one request. It is read once.
    ///
    /// # Errors
    ///
    /// No answer came.
    pub async fn limits(&self) -> Result<Limits, Error> {
        if let Some(limits) = self.limits.get() {
            return Ok(limits.clone());
        }
        let limits: Limits = self.request(Request::get("/v1/limits")).await?.read()?;
        Ok(self.limits.get_or_init(|| limits).clone())
    }

    /// Returns a job by its id.
    ///
    /// # Errors
    ///
    /// Of the kind [`NotFound`](crate::ErrorKind::NotFound) if there is none.
    pub async fn job(&self, id: &str) -> Result<Job, Error> {
        self.job_of(&self.request(Request::get(path(&["jobs", id]))).await?)
    }

    /// Returns the jobs that the filters of `GET /v1/jobs` match, which are read page by page.
    ///
    /// ```no_run
    /// # async fn list(client: &tidegate_client::Client) -> Result<(), tidegate_client::Error> {
    /// let mut jobs = client.jobs([("type", "letter"), ("state", "failed")]);
    /// while let Some(job) = jobs.next().await? {
    ///     println!("{}", job.id());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn jobs<'q>(&self, filters: impl IntoIterator<Item = (&'q str, &'q str)>) -> Jobs {
        Jobs { client: self.clone(), pages: self.pages("/v1/jobs", "jobs", filters) }
    }

    /// Returns the items of every page of a list of the API; `items` is the field that has them.
    pub fn pages<'q, T: DeserializeOwned>(
        &self,
        path: &str,
        items: &str,
        query: impl IntoIterator<Item = (&'q str, &'q str)>,
    ) -> Pages<T> {
        Pages::new(self.clone(), path, items, query)
    }

    /// Returns the result of a job, after at most `wait`; see [`FOREVER`].
    ///
    /// # Errors
    ///
    /// Of the kind [`JobFailed`](crate::ErrorKind::JobFailed) if it ended otherwise than succeeded,
    /// and [`WaitTimeout`](crate::ErrorKind::WaitTimeout) if it did not end within the wait.
    pub async fn result<T: DeserializeOwned>(
        &self,
        job_type: &str,
        id: &str,
        wait: Duration,
    ) -> Result<T, Error> {
        let until = Instant::now().checked_add(wait);
        loop {
            let rest = until.map_or(MAX_WAIT, |until| until - Instant::now());
            let part = rest.min(MAX_WAIT);
            let mut request = Request::get(path(&["jobs", job_type, id, "result"])).wait(part);
            if part > Duration::ZERO {
                request = request.query("wait", &format!("{:.3}", part.as_secs_f64()));
            }
            let answer = self.request(request).await;
            let is_over = until.is_some_and(|until| Instant::now() >= until);
            let answer = match answer {
                Err(err) if err.kind() == crate::ErrorKind::WaitTimeout && !is_over => continue,
                answer => answer?,
            };
            match answer.header("tidegate-state") {
                Some("succeeded") => return answer.read(),
                None => {
                    let text = "it has no header Tidegate-State";
                    return Err(Error::UnexpectedAnswer(text.to_owned()));
                }
                Some(_) if !is_over => {}
                Some(state) => {
                    let detail = format!("the job is {state}, and did not end within {wait:?}");
                    let problem = Problem {
                        title: "Wait timeout".into(),
                        detail: detail.into(),
                        code: "wait_timeout".into(),
                        ..Problem::default()
                    };
                    return Err(Error::problem_of(408, problem));
                }
            }
        }
    }

    /// Cancels a job. A running one ends when its worker reports; `force` ends it at once.
    ///
    /// # Errors
    ///
    /// There is no such job, or it has ended.
    pub async fn cancel(&self, job_type: &str, id: &str, force: bool) -> Result<Job, Error> {
        let mut request = Request::delete(path(&["jobs", job_type, id]));
        if force {
            request = request.query("force", "true");
        }
        self.job_of(&self.request(request).await?)
    }

    /// Runs an ended job again, as a new job. A second call returns the same new job, unless
    /// `changes` has `"again": true`. Other fields of `changes` (`data`, `priority`, ...) replace
    /// those of the old job; `json!({})` changes nothing.
    ///
    /// # Errors
    ///
    /// There is no such job, it has not ended, or a change is wrong.
    pub async fn replay(&self, job_type: &str, id: &str, changes: Value) -> Result<Job, Error> {
        let mut request =
            Request::post(path(&["jobs", job_type, id, "replay"])).json(&changes).repeatable(true);
        if changes["again"] == true {
            request = request.header("idempotency-key", &random_key());
        }
        self.job_of(&self.request(request).await?)
    }

    /// Changes a scheduled job: `run_at`, `priority`, `data`, `expires_at`, `windows`. Null sets
    /// what an enqueue without the field has.
    ///
    /// # Errors
    ///
    /// There is no such job, it is not scheduled, or a change is wrong.
    pub async fn change(&self, job_type: &str, id: &str, changes: Value) -> Result<Job, Error> {
        let request = Request::new(http::Method::PATCH, path(&["jobs", job_type, id]));
        self.job_of(&self.request(request.json(&changes).repeatable(true)).await?)
    }

    /// Returns why a job waits.
    ///
    /// # Errors
    ///
    /// There is no such job.
    pub async fn explain(&self, job_type: &str, id: &str) -> Result<Explanation, Error> {
        self.request(Request::get(path(&["jobs", job_type, id, "explain"]))).await?.read()
    }

    /// Returns the log lines of a job that are kept, oldest first.
    ///
    /// # Errors
    ///
    /// There is no such job.
    pub async fn log(&self, job_type: &str, id: &str) -> Result<Vec<LogLine>, Error> {
        let mut lines = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut request = Request::get(path(&["jobs", job_type, id, "log"]));
            if let Some(cursor) = &cursor {
                request = request.query("cursor", cursor);
            }
            let page: LogPage = self.request(request).await?.read()?;
            // A page of a job that has not ended always names a next one.
            let is_last = page.lines.is_empty() || page.next_cursor.is_none();
            lines.extend(page.lines);
            cursor = page.next_cursor;
            if is_last {
                return Ok(lines);
            }
        }
    }

    /// Sends an event, and returns what each trigger did about it. Repeats of this call send the
    /// same id, so that a lost answer makes no second job.
    ///
    /// # Errors
    ///
    /// The event is wrong, or no answer came.
    pub async fn send_event(&self, event: NewEvent) -> Result<Ingested, Error> {
        let request = Request::post("/v1/events")
            .json(&event.fields)
            .header("content-type", "application/cloudevents+json")
            .repeatable(true);
        self.request(request).await?.read()
    }
}

/// An event, as CloudEvents 1.0 describe. It has a random id unless another one is set.
#[derive(Clone, Debug)]
#[must_use]
pub struct NewEvent {
    fields: Map<String, Value>,
}

impl NewEvent {
    /// Returns an event of a type from a source: a URI reference.
    pub fn new(event_type: impl Into<String>, source: impl Into<String>) -> Self {
        let fields = Map::new();
        Self { fields }
            .extension("specversion", "1.0")
            .extension("type", event_type.into())
            .extension("source", source.into())
            .extension("id", random_key())
    }

    /// Sets its id, unique within its source.
    pub fn id(self, id: impl Into<String>) -> Self {
        self.extension("id", id.into())
    }

    /// Sets its subject.
    pub fn subject(self, subject: impl Into<String>) -> Self {
        self.extension("subject", subject.into())
    }

    /// Sets when it happened.
    pub fn time(self, at: SystemTime) -> Self {
        self.extension("time", instant(at).to_string())
    }

    /// Sets its data, any JSON value.
    pub fn data(self, data: Value) -> Self {
        self.extension("datacontenttype", "application/json").extension("data", data)
    }

    /// Adds an extension: its name is of small letters and digits, its value a text, a whole
    /// number, true or false.
    pub fn extension(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.fields.insert(name.into(), value.into());
        self
    }
}

/// Jobs of a list; see [`Client::jobs`].
#[derive(Debug)]
pub struct Jobs {
    client: Client,
    pages: Pages<Box<RawValue>>,
}

impl Jobs {
    /// Returns the next job; none after the last one.
    ///
    /// # Errors
    ///
    /// A page was refused, or not answered.
    pub async fn next(&mut self) -> Result<Option<Job>, Error> {
        let Some(raw) = self.pages.next().await? else { return Ok(None) };
        let text: Box<str> = raw.into();
        Job::new(&self.client, Bytes::from(String::from(text)), false).map(Some)
    }

    /// Returns all jobs that are left.
    ///
    /// # Errors
    ///
    /// A page was refused, or not answered.
    pub async fn all(mut self) -> Result<Vec<Job>, Error> {
        let mut jobs = Vec::new();
        while let Some(job) = self.next().await? {
            jobs.push(job);
        }
        Ok(jobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_are_not_ones_of_http_are_refused() {
        for (url, expected) in [
            ("127.0.0.1:8080", Some("http://127.0.0.1:8080")),
            ("https://jobs.example.com/api/", Some("https://jobs.example.com/api")),
            ("ftp://a", None),
            ("http://u:p@a", None),
            ("http://a?b=c", None),
            ("http://a#b", None),
            ("http://", None),
        ] {
            assert_eq!(base_url(url).ok().as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn a_token_that_cannot_be_sent_is_refused() {
        let built = Client::builder().url("http://127.0.0.1:9").token("a\nb").build();
        assert!(matches!(built, Err(Error::InvalidArgument(_))), "{built:?}");
    }

    #[tokio::test]
    async fn data_that_is_not_json_is_refused_before_a_request() {
        let client = Client::builder().url("http://127.0.0.1:9").build().unwrap();
        let keys = std::collections::BTreeMap::from([((1, 2), 3)]);
        let refused = client.enqueue("letter", &keys).await.unwrap_err();
        assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
        let refused = client.enqueue("letter", &1).callback_url("no URL").await.unwrap_err();
        assert!(refused.to_string().contains("callback URL"), "{refused}");
        let refused = client.enqueue("letter", &1).attribute("a", Value::Null).await.unwrap_err();
        assert!(refused.to_string().contains("attribute a"), "{refused}");
    }
}
