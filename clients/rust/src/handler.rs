//! Handlers: what the return or the error of one means for the attempt.

use std::{
    any::type_name,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};
use tidegate_api::{JobId, NewLogLine, ReportBody, Seconds, Status, Timestamp, TypeName};

use crate::{
    attempt::{AbortReason, Aborted, Attempt, cut, message},
    error::{BoxError, Error, chain, sources},
    job::{instant, seconds},
    panic::{self, Panic},
    trace::with_traceparent,
};

const MAX_DETAILS_BYTES: usize = 16 << 10;
const MAX_CONCURRENCY: usize = 1000;

/// Ends the job failed without another attempt: return it from a handler.
///
/// ```
/// # use tidegate_client::{BoxError, PermanentError};
/// fn check(address: &str) -> Result<(), BoxError> {
///     if !address.contains('@') {
///         return Err(PermanentError::new("bad address").into());
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct PermanentError {
    #[source]
    error: BoxError,
    details: Option<Value>,
}

impl PermanentError {
    /// Returns the error with its cause: another error, or a text.
    pub fn new(error: impl Into<BoxError>) -> Self {
        Self { error: error.into(), details: None }
    }

    /// Sets the details that the job shows of its error: any JSON value of at most 16 KiB.
    #[must_use]
    pub fn details(self, details: Value) -> Self {
        Self { details: Some(details), ..self }
    }
}

/// Hands the job back for a while: return it from a handler. The attempt does not count.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Snooze {
    until: Until,
    message: String,
}

/// When a snoozed job may start again.
#[derive(Clone, Copy, Debug)]
enum Until {
    Span(Duration),
    Instant(SystemTime),
}

impl Snooze {
    /// Returns the error that hands the job back for a span.
    pub fn new(delay: Duration) -> Self {
        Self { until: Until::Span(delay), message: "snoozed by its handler".to_owned() }
    }

    /// Returns the error that hands the job back until an instant; one in the past means now.
    pub fn until(at: SystemTime) -> Self {
        Self { until: Until::Instant(at), ..Self::new(Duration::ZERO) }
    }

    /// Sets the message that the job's history shows.
    #[must_use]
    pub fn message(self, message: impl Into<String>) -> Self {
        Self { message: message.into(), ..self }
    }
}

/// Hands the job back at once, before its work has begun: return it from a handler.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Release {
    message: String,
}

impl Release {
    /// Returns the error that hands the job back.
    pub fn new() -> Self {
        Self { message: "released by its handler".to_owned() }
    }

    /// Sets the message that the job's history shows.
    #[must_use]
    pub fn message(self, message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl Default for Release {
    fn default() -> Self {
        Self::new()
    }
}

/// The result comes later: return it from the handler of a push, whose answer is then 202. Keep the
/// job's [`Callback`](crate::Callback); its methods report the result.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the result comes later")]
pub struct Later;

/// What a function of a handler returned.
pub(crate) enum Produced {
    Result(Box<RawValue>),
    /// The data or the result has no JSON form: which of them, and why.
    Unusable(&'static str, serde_json::Error),
    Failed(BoxError, &'static str),
}

type Running = Pin<Box<dyn Future<Output = Produced> + Send>>;

/// A function of a handler, which reads the data that the attempt carries.
pub(crate) type Run<C> = Arc<dyn Fn(Attempt, C) -> Running + Send + Sync>;

pub(crate) fn run<C, T, R, E, F, Fut>(function: F) -> Run<C>
where
    C: Send + 'static,
    F: Fn(T, C) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, E>> + Send + 'static,
    T: DeserializeOwned,
    R: Serialize,
    E: Into<BoxError>,
{
    let function = Arc::new(function);
    Arc::new(move |job, context| {
        let function = Arc::clone(&function);
        Box::pin(async move {
            let running = match serde_json::from_str(job.data().get()) {
                Ok(data) => function(data, context),
                // The same data is wrong in every attempt.
                Err(err) => return Produced::Unusable("the data cannot be read", err),
            };
            match running.await.map(|result| serde_json::value::to_raw_value(&result)) {
                Ok(Ok(result)) => Produced::Result(result),
                Ok(Err(err)) => Produced::Unusable("the result is not a JSON value", err),
                Err(err) => Produced::Failed(err.into(), type_name::<E>()),
            }
        })
    })
}

/// The job types of a handler: a name, or several in an array or a vector.
#[derive(Clone, Debug)]
pub struct JobTypes(pub(crate) Vec<String>);

impl From<&str> for JobTypes {
    fn from(name: &str) -> Self {
        Self(vec![name.to_owned()])
    }
}

impl From<String> for JobTypes {
    fn from(name: String) -> Self {
        Self(vec![name])
    }
}

impl From<&String> for JobTypes {
    fn from(name: &String) -> Self {
        Self(vec![name.clone()])
    }
}

impl<S: Into<String>, const N: usize> From<[S; N]> for JobTypes {
    fn from(names: [S; N]) -> Self {
        Self(names.map(Into::into).into())
    }
}

impl<S: Into<String>> From<Vec<S>> for JobTypes {
    fn from(names: Vec<S>) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }
}

impl<S: Into<String> + Clone> From<&[S]> for JobTypes {
    fn from(names: &[S]) -> Self {
        names.to_vec().into()
    }
}

/// What runs the jobs of some types; see [`Worker::handle`](crate::Worker::handle).
#[must_use]
pub struct Handler {
    pub(crate) job_types: Vec<String>,
    pub(crate) run: Run<Attempt>,
    pub(crate) concurrency: usize,
    pub(crate) is_auto: bool,
    pub(crate) min: usize,
    pub(crate) queue: Option<String>,
    pub(crate) config: Option<Result<Value, String>>,
}

impl Handler {
    /// Returns the handler of a job type, or of several: `["letter", "card"]`. Its function gets
    /// the data as a `T`, and the attempt. What it returns is the result; an error is a failure.
    ///
    /// ```
    /// use tidegate_client::{Attempt, BoxError, Handler};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Letter {
    ///     to: String,
    /// }
    ///
    /// async fn send(letter: Letter, job: Attempt) -> Result<String, BoxError> {
    ///     Ok(format!("sent to {}", letter.to))
    /// }
    ///
    /// let handler = Handler::new("letter", send).concurrency(3);
    /// ```
    ///
    /// A function that blocks its thread belongs into `tokio::task::spawn_blocking`.
    pub fn new<T, R, E, F, Fut>(job_types: impl Into<JobTypes>, function: F) -> Self
    where
        F: Fn(T, Attempt) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        T: DeserializeOwned,
        R: Serialize,
        E: Into<BoxError>,
    {
        Self {
            job_types: job_types.into().0,
            run: run(function),
            concurrency: 1,
            is_auto: false,
            min: 1,
            queue: None,
            config: None,
        }
    }

    /// Sets how many of its jobs run at once in this process at most, 1 to 1000 (default 1).
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Makes the concurrency the maximum, and follows the `desired_workers` of the types' queues:
    /// this worker's share of them, at least 1, read every five seconds. The token needs the scope
    /// `read` in addition to `work`, and no bound to types.
    pub fn auto(mut self) -> Self {
        self.is_auto = true;
        self
    }

    /// Leases at least this many jobs at once, unless a lease request's wait ends: then those that
    /// are there. 1 to the concurrency (default 1). The types must be of one queue.
    pub fn min(mut self, min: usize) -> Self {
        self.min = min;
        self
    }

    /// Declares the queue of the types; see [`Worker::apply`](crate::Worker::apply).
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Declares the settings of the types: an object, or a
    /// [`TypeConfig`](tidegate_api::TypeConfig); see [`Worker::apply`](crate::Worker::apply).
    pub fn config(mut self, settings: impl Serialize) -> Self {
        self.config = Some(serde_json::to_value(settings).map_err(|err| err.to_string()));
        self
    }

    /// Checks the types and the numbers.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self { job_types, concurrency, min, .. } = self;
        if job_types.is_empty() {
            return Err(Error::argument("a handler needs at least one job type"));
        }
        let job_type = job_types.join(", ");
        if !(1..=MAX_CONCURRENCY).contains(concurrency) {
            return Err(Error::argument(format_args!(
                "{job_type}: concurrency must be 1 to {MAX_CONCURRENCY}"
            )));
        }
        if !(1..=*concurrency).contains(min) {
            return Err(Error::argument(format_args!(
                "{job_type}: min must be 1 to the concurrency, {concurrency}"
            )));
        }
        Ok(())
    }
}

impl std::fmt::Debug for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handler").field("job_types", &self.job_types).finish_non_exhaustive()
    }
}

/// What is reported of an attempt.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub status: Status,
    pub attempt: u16,
    pub result: Option<Arc<RawValue>>,
    pub error: Option<Arc<RawValue>>,
    pub message: Option<String>,
    pub retryable: Option<bool>,
    pub delay: Option<Seconds>,
    pub run_at: Option<Timestamp>,
    pub checkpoint: Option<Arc<RawValue>>,
    pub log: Vec<NewLogLine>,
}

impl Report {
    fn new(status: Status, message: Option<&str>) -> Self {
        Self {
            status,
            attempt: 0,
            result: None,
            error: None,
            message: message.map(self::message),
            retryable: None,
            delay: None,
            run_at: None,
            checkpoint: None,
            log: Vec::new(),
        }
    }

    pub fn success(result: Box<RawValue>) -> Self {
        Self { result: Some(result.into()), ..Self::new(Status::Succeeded, None) }
    }

    pub fn failure(message: &str) -> Self {
        Self::new(Status::Failed, Some(message))
    }

    /// A failure that another attempt would repeat.
    pub fn permanent(message: &str) -> Self {
        Self { retryable: Some(false), ..Self::failure(message) }
    }

    pub fn released(message: &str) -> Self {
        Self::new(Status::Released, Some(message))
    }

    /// Whether it has parts that a server may refuse for their size.
    pub fn has_extras(&self) -> bool {
        self.error.is_some() || self.checkpoint.is_some() || !self.log.is_empty()
    }

    /// About how many bytes it takes in a request.
    pub fn bytes(&self) -> usize {
        let raw = |raw: &Option<Arc<RawValue>>| raw.as_ref().map_or(0, |raw| raw.get().len());
        let message = self.message.as_ref().map_or(0, String::len);
        let log = self.log.iter().map(|line| {
            let fields = serde_json::to_string(&line.fields).map_or(0, |text| text.len());
            line.text.len() + fields + 80
        });
        200 + message
            + raw(&self.result)
            + raw(&self.error)
            + raw(&self.checkpoint)
            + log.sum::<usize>()
    }

    /// Adds what no heartbeat has sent.
    pub fn complete(mut self, job: &Attempt) -> Self {
        let rest = job.take();
        self.attempt = job.number();
        self.log = rest.log;
        if self.status != Status::Succeeded {
            self.checkpoint = rest.checkpoint;
        }
        self
    }

    /// The body of a request for this report, or a part of a lease request that names the attempt.
    pub fn body<'a>(&'a self, of: Option<(&Attempt, &str)>) -> ReportBody<'a> {
        let name = |job: &Attempt| -> (Option<JobId>, Option<TypeName>) {
            (job.id().parse().ok(), job.job_type().parse().ok())
        };
        let (id, job_type) = of.map(|(job, _)| name(job)).unwrap_or_default();
        ReportBody {
            id,
            job_type,
            status: self.status,
            attempt: self.attempt,
            result: self.result.as_deref(),
            error: self.error.as_deref(),
            message: self.message.clone(),
            reason: None,
            checkpoint: self.checkpoint.as_deref(),
            retryable: self.retryable,
            run_at: self.run_at,
            delay_seconds: self.delay,
            log: self.log.clone(),
            finished_at: None,
            token: of.map(|(_, token)| token.to_owned()),
        }
    }

    fn details(mut self, details: &Value) -> Self {
        let text = details.to_string();
        let text = if text.len() > MAX_DETAILS_BYTES {
            json!({ "cut": cut(&text, MAX_DETAILS_BYTES / 4) }).to_string()
        } else {
            text
        };
        self.error = RawValue::from_string(text).ok().map(Arc::from);
        self
    }

    /// The report of an attempt whose handler returned `error`, of the type `kind`.
    pub fn of_error(error: &BoxError, kind: &str, aborted: Option<AbortReason>) -> Self {
        if let Some(snooze) = found::<Snooze>(error) {
            let (delay, run_at) = match snooze.until {
                Until::Span(delay) => (Some(seconds(delay)), None),
                Until::Instant(at) => (None, Some(instant(at))),
            };
            return Self { delay, run_at, ..Self::new(Status::Snoozed, Some(&snooze.message)) };
        }
        if let Some(release) = found::<Release>(error) {
            return Self::released(&release.message);
        }
        match (aborted, found::<Aborted>(error)) {
            (Some(AbortReason::Cancelled), Some(_)) => return Self::failure("cancelled"),
            (Some(_), Some(_)) => return Self::failure("its worker stopped before it ended"),
            _ => {}
        }
        let text = chain(&**error);
        match found::<PermanentError>(error) {
            Some(permanent) => {
                let details = permanent.details.clone();
                Self::permanent(&text).details(&details.unwrap_or_else(|| trace(error, kind)))
            }
            None => Self::failure(&text).details(&trace(error, kind)),
        }
    }
}

/// The error of a type, or the first one among the sources.
fn found<T: std::error::Error + 'static>(error: &BoxError) -> Option<&T> {
    sources(&**error).find_map(<dyn std::error::Error>::downcast_ref)
}

pub(crate) fn is_later(error: &BoxError) -> bool {
    found::<Later>(error).is_some()
}

/// The type of an error, and the chain of its sources. Errors of Rust have no stack trace.
fn trace(error: &BoxError, kind: &str) -> Value {
    let lines: Vec<String> =
        sources(&**error).map(|error| format!("{error}\n  {error:?}")).collect();
    let trace = lines.join("\ncaused by: ");
    let kind = if kind.contains("dyn ") { "error" } else { kind };
    json!({ "type": kind, "trace": cut(&trace, MAX_DETAILS_BYTES / 2) })
}

/// What became of an attempt.
pub(crate) enum Ended {
    Reported(Report),
    /// Another attempt has the job.
    Lost,
    /// The handler of a push returned [`Later`].
    Later,
}

/// Calls a handler with the trace context of its job.
pub(crate) fn called<C: Send + 'static>(run: &Run<C>, job: &Attempt, context: C) -> Running {
    let running = run(job.clone(), context);
    match job.traceparent() {
        Some(trace) => Box::pin(with_traceparent(trace.to_owned(), running)),
        None => running,
    }
}

/// Runs a handler, and returns what is to be reported.
pub(crate) async fn perform<C: Send + 'static>(run: &Run<C>, job: &Attempt, context: C) -> Ended {
    let produced = catch(called(run, job, context)).await;
    if job.abort_reason() == Some(AbortReason::LeaseLost) {
        return Ended::Lost;
    }
    Ended::Reported(match produced {
        Ok(Produced::Result(result)) => Report::success(result),
        Ok(Produced::Unusable(what, err)) => {
            let text = format!("{what}: {err}");
            let details = trace(&err.into(), type_name::<serde_json::Error>());
            Report::permanent(&text).details(&details)
        }
        Ok(Produced::Failed(error, _)) if is_later(&error) => return Ended::Later,
        Ok(Produced::Failed(error, kind)) => Report::of_error(&error, kind, job.abort_reason()),
        Err(Panic { text, trace }) => {
            let trace = cut(&trace, MAX_DETAILS_BYTES / 2);
            Report::failure(&format!("panic: {text}"))
                .details(&json!({ "type": "panic", "trace": trace }))
        }
    })
}

/// Runs a future until it ends or panics.
async fn catch(mut running: Running) -> Result<Produced, Panic> {
    std::future::poll_fn(move |context| match panic::catch(|| running.as_mut().poll(context)) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => std::task::Poll::Ready(Err(panic)),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ended<T, R, E, Fut>(function: fn(T, Attempt) -> Fut) -> Report
    where
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        T: DeserializeOwned + 'static,
        R: Serialize + 'static,
        E: Into<BoxError> + 'static,
    {
        let job = Attempt::new("letter", "1", 2);
        match perform(&run(function), &job, job.clone()).await {
            Ended::Reported(report) => report.complete(&job),
            Ended::Lost | Ended::Later => panic!("there is no report"),
        }
    }

    #[tokio::test]
    async fn a_handler_returns_its_result() {
        let report = ended(|_: Option<u8>, job: Attempt| async move {
            Ok::<_, BoxError>(json!({ "attempt": job.number() }))
        });
        let report = report.await;
        assert_eq!((report.status, report.attempt), (Status::Succeeded, 2));
        assert_eq!(report.result.unwrap().get(), r#"{"attempt":2}"#);
    }

    #[tokio::test]
    async fn an_error_is_a_failure_with_its_chain() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot send")]
        struct CannotSend(#[source] std::io::Error);
        let report = ended(|(): (), _| async {
            Err::<(), _>(CannotSend(std::io::Error::other("no paper")))
        });
        let report = report.await;
        assert_eq!(report.message.as_deref(), Some("cannot send: no paper"));
        let details = report.error.unwrap();
        assert!(details.get().contains("CannotSend") && details.get().contains("caused by"));
        assert_eq!((report.status, report.retryable), (Status::Failed, None));
    }

    #[tokio::test]
    async fn data_of_another_form_fail_without_a_retry() {
        let report = ended(|_: String, _| async { Ok::<_, BoxError>(()) }).await;
        assert_eq!((report.status, report.retryable), (Status::Failed, Some(false)));
        assert!(report.message.unwrap().starts_with("the data cannot be read: "));
        assert!(report.error.unwrap().get().contains("expected a string"));
    }

    #[tokio::test]
    async fn a_panic_is_a_failure() {
        #[allow(clippy::unused_async, reason = "a handler is async")]
        async fn fails((): (), _: Attempt) -> Result<(), BoxError> {
            panic!("no {}", "paper")
        }
        let report = ended(fails).await;
        assert_eq!(report.message.as_deref(), Some("panic: no paper"));
        assert_eq!((report.status, report.retryable), (Status::Failed, None));
        let details = report.error.unwrap();
        let (place, frame) = ("panicked at ", "a_panic_is_a_failure");
        assert!(details.get().contains(place) && details.get().contains(frame), "{details}");
    }

    #[test]
    fn errors_that_hand_back_are_found_among_sources() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] BoxError);
        let of = |error: BoxError| Report::of_error(&error, "", None);
        let snoozed = of(Outer(Snooze::new(Duration::from_millis(1500)).into()).into());
        assert_eq!(
            (snoozed.status, snoozed.delay, snoozed.run_at),
            (Status::Snoozed, Some(Seconds::from_millis(1500)), None)
        );
        let snoozed = of(Snooze::until(SystemTime::UNIX_EPOCH + Duration::from_secs(7)).into());
        assert_eq!((snoozed.delay, snoozed.run_at), (None, Some(Timestamp::from_millis(7000))));
        assert_eq!(of(Release::new().message("later").into()).status, Status::Released);
        let permanent = of(PermanentError::new("bad").details(json!({"line": 3})).into());
        assert_eq!((permanent.message.as_deref(), permanent.retryable), (Some("bad"), Some(false)));
        assert_eq!(permanent.error.unwrap().get(), r#"{"line":3}"#);
    }

    #[test]
    fn details_of_an_error_have_a_bound() {
        let report = Report::failure("x").details(&json!("ä".repeat(20_000)));
        assert!(report.error.unwrap().get().len() < MAX_DETAILS_BYTES);
    }
}
