//! Jobs: those to enqueue, and those that were enqueued or read.

use std::{
    marker::PhantomData,
    pin::Pin,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};
use tidegate_api::{
    AttributeValue, JobOptions, JobView, KeepResult, Retry, Seconds, ShortView, Timestamp, Unique,
    Window,
};

use crate::{
    client::Client,
    error::Error,
    transport::{Answer, Request, random_key},
};

/// A job to enqueue. What is not set has the default of its type.
#[derive(Clone, Debug, Serialize)]
#[must_use]
pub struct NewJob {
    #[serde(rename = "type")]
    pub(crate) job_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    pub(crate) data: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delay_seconds: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) correlation_key: Option<String>,
    #[serde(flatten)]
    pub(crate) options: JobOptions,
    /// The first argument that cannot be used; the enqueue returns it.
    #[serde(skip)]
    fault: Option<String>,
}

impl NewJob {
    /// Returns a job of a type with its data: any value with a JSON form.
    pub fn new(job_type: impl Into<String>, data: &(impl Serialize + ?Sized)) -> Self {
        let (data, fault) = match serde_json::value::to_raw_value(data) {
            Ok(data) => (data, None),
            Err(err) => {
                let fault = format!("the data of the job is not a JSON value: {err}");
                (RawValue::NULL.to_owned(), Some(fault))
            }
        };
        Self {
            job_type: job_type.into(),
            id: None,
            data,
            run_at: None,
            delay_seconds: None,
            expires_at: None,
            correlation_key: None,
            options: JobOptions::default(),
            fault,
        }
    }

    /// Returns the error of an argument that cannot be used.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.fault.as_ref().map_or(Ok(()), |fault| Err(Error::argument(fault)))
    }

    fn set_attribute(&mut self, name: String, value: Value) {
        let value = match value {
            Value::Number(number) => AttributeValue::Number(number),
            Value::String(text) => AttributeValue::Text(text),
            Value::Bool(is_true) => AttributeValue::Text(is_true.to_string()),
            _ => {
                let fault = format!("the attribute {name} is not a text, a number, true or false");
                self.fault = Some(fault);
                return;
            }
        };
        self.options.attributes.insert(name, value);
    }

    fn set_callback(&mut self, url: &str) {
        match url.parse() {
            Ok(url) => self.options.callback_url = Some(url),
            Err(err) => self.fault = Some(format!("the callback URL: {err}")),
        }
    }
}

/// Defines the options of a job once, for [`NewJob`] and for [`Enqueue`].
macro_rules! options {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident($($argument:ident: $kind:ty),*) |$job:ident| $set:expr;
    )+) => {
        impl NewJob {
            $($(#[doc = $doc])+ pub fn $name(mut self, $($argument: $kind),*) -> Self {
                let $job = &mut self;
                $set;
                self
            })+
        }

        impl Enqueue<'_> {
            $($(#[doc = $doc])+ pub fn $name(mut self, $($argument: $kind),*) -> Self {
                self.job = self.job.$name($($argument),*);
                self
            })+
        }
    };
}

options! {
    /// Sets the id, which makes the enqueue repeatable: 1 to 64 of `A-Z a-z 0-9 _ . : -`.
    id(id: impl Into<String>) |job| job.id = Some(id.into());
    /// Sets the earliest start.
    run_at(at: SystemTime) |job| job.run_at = Some(instant(at));
    /// Sets the earliest start as a span from now.
    delay(span: Duration) |job| job.delay_seconds = Some(seconds(span));
    /// Sets the instant after which it never starts.
    expires_at(at: SystemTime) |job| job.expires_at = Some(instant(at));
    /// Sets the key by which a later reply finds the job.
    correlation_key(key: impl Into<String>) |job| job.correlation_key = Some(key.into());
    /// Sets the priority: jobs with a lower one start first.
    priority(priority: i32) |job| job.options.priority = Some(priority);
    /// Sets the capacity units that it uses while it runs.
    weight(weight: u32) |job| job.options.weight = Some(weight);
    /// Exempts it from limits. The token needs the scope `enqueue:critical`.
    critical() |job| job.options.critical = true;
    /// Sets the windows in which it may start.
    windows(windows: impl Into<Vec<Window>>) |job| job.options.windows = Some(windows.into());
    /// Sets the longest time from a claim to its result.
    timeout(span: Duration) |job| job.options.timeout_seconds = Some(seconds(span));
    /// Sets the longest time from its creation to its end.
    deadline(span: Duration) |job| job.options.deadline_seconds = Some(seconds(span));
    /// Sets the most attempts.
    max_attempts(attempts: u16) |job| job.options.max_attempts = Some(attempts);
    /// Sets what follows a failed attempt.
    retry(retry: Retry) |job| job.options.retry = Some(retry);
    /// Sets the rule against duplicates.
    unique(unique: Unique) |job| job.options.unique = Some(unique);
    /// Adds an attribute, on which limits, partitions and searches match: a text, a number, true or
    /// false.
    attribute(name: impl Into<String>, value: impl Into<Value>) |job| {
        job.set_attribute(name.into(), value.into());
    };
    /// Sets how long the result can be read.
    keep_result(keep: KeepResult) |job| job.options.keep_result = Some(keep);
    /// Sets the URL that is notified of its end.
    callback_url(url: &str) |job| job.set_callback(url);
    /// Adds a header that is passed on to the worker.
    job_header(name: impl Into<String>, value: impl Into<String>) |job| {
        job.options.headers.insert(name.into(), value.into())
    };
}

pub(crate) fn instant(at: SystemTime) -> Timestamp {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

pub(crate) fn seconds(span: Duration) -> Seconds {
    Seconds::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

/// An enqueue that is not sent yet: `.await` sends it.
///
/// The call is repeated safely: by the [`id`](Self::id) if it is given, else by the
/// [`idempotency_key`](Self::idempotency_key), else by a random key.
///
/// The error has the kind [`InvalidRequest`](crate::ErrorKind::InvalidRequest) for a wrong option,
/// [`NotFound`](crate::ErrorKind::NotFound) for an unknown type, and
/// [`Conflict`](crate::ErrorKind::Conflict) if another request has used the id or the key.
#[derive(Clone, Debug)]
#[must_use = "it is sent by `.await`"]
pub struct Enqueue<'a> {
    pub(crate) client: &'a Client,
    pub(crate) job: NewJob,
    pub(crate) key: Option<String>,
}

impl Enqueue<'_> {
    /// Sets the key that makes the enqueue repeatable, 1 to 255 characters.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }
}

impl<'a> IntoFuture for Enqueue<'a> {
    type Output = Result<Job, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            self.job.check()?;
            let mut request = Request::post("/v1/jobs").json(&self.job).repeatable(true);
            if self.key.is_some() || self.job.id.is_none() {
                let key = self.key.unwrap_or_else(random_key);
                request = request.header("idempotency-key", &key);
            }
            self.client.job_of(&self.client.request(request).await?)
        })
    }
}

/// A job type whose data is a `T`.
///
/// ```
/// # use tidegate_client::JobType;
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Letter {
///     to: String,
/// }
///
/// const LETTER: JobType<Letter> = JobType::new("letter");
/// ```
#[derive(Debug)]
pub struct JobType<T> {
    name: &'static str,
    data: PhantomData<fn(T)>,
}

impl<T> Clone for JobType<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for JobType<T> {}

impl<T: Serialize> JobType<T> {
    /// Returns the job type with a name.
    pub const fn new(name: &'static str) -> Self {
        Self { name, data: PhantomData }
    }

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Enqueues a job of the type; see [`Client::enqueue`].
    pub fn enqueue<'a>(self, client: &'a Client, data: &T) -> Enqueue<'a> {
        client.enqueue(self.name, data)
    }

    /// Returns a job of the type for a batch; see [`Client::enqueue_many`].
    pub fn job(self, data: &T) -> NewJob {
        NewJob::new(self.name, data)
    }
}

/// A job that was enqueued or read: its fields as they were then, and what may be done next.
#[derive(Clone, Debug)]
pub struct Job {
    client: Client,
    view: ShortView<'static>,
    body: Bytes,
    is_new: bool,
}

impl Job {
    pub(crate) fn new(client: &Client, body: Bytes, is_new: bool) -> Result<Self, Error> {
        let view = serde_json::from_slice(&body)
            .map_err(|err| Error::UnexpectedAnswer(err.to_string()))?;
        Ok(Self { client: client.clone(), view, body, is_new })
    }

    /// Returns its id.
    pub fn id(&self) -> &str {
        self.view.id.as_str()
    }

    /// Returns its type.
    pub fn job_type(&self) -> &str {
        self.view.r#type.as_str()
    }

    /// Returns its queue.
    pub fn queue(&self) -> &str {
        self.view.queue.as_str()
    }

    /// Returns `scheduled`, `running`, `succeeded`, `failed`, ..., when it was read.
    pub fn state(&self) -> &str {
        &self.view.state
    }

    /// Returns the state, with `scheduled` divided: `scheduled`, `ready`, `retrying`.
    pub fn phase(&self) -> &str {
        &self.view.phase
    }

    /// Returns how many attempts had started.
    pub fn attempt(&self) -> u16 {
        self.view.attempt
    }

    /// Whether the enqueue made it; false if it existed, by its id, key or unique key.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns all fields of the API. The answer to a large batch has a short form of each job, and
    /// a list leaves out data and results over 1 KiB: [`refresh`](Self::refresh) it first.
    ///
    /// # Errors
    ///
    /// [`Error::UnexpectedAnswer`] if it is in the short form.
    pub fn view(&self) -> Result<JobView<'static>, Error> {
        serde_json::from_slice(&self.body).map_err(|err| Error::UnexpectedAnswer(err.to_string()))
    }

    /// Returns the data, read as a `T`; see [`view`](Self::view).
    ///
    /// # Errors
    ///
    /// [`Error::UnexpectedAnswer`] if it is not one, or was left out.
    pub fn data<T: DeserializeOwned>(&self) -> Result<T, Error> {
        #[derive(serde::Deserialize)]
        struct Fields<T> {
            data: T,
        }
        serde_json::from_slice(&self.body)
            .map(|Fields { data }| data)
            .map_err(|err| Error::UnexpectedAnswer(err.to_string()))
    }

    /// Returns all fields as they came.
    #[cfg(feature = "testing")]
    pub(crate) fn fields(&self) -> Result<Value, Error> {
        serde_json::from_slice(&self.body).map_err(|err| Error::UnexpectedAnswer(err.to_string()))
    }

    /// Returns its result, after at most `wait`; see [`Client::result`].
    ///
    /// # Errors
    ///
    /// As [`Client::result`].
    pub async fn result<T: DeserializeOwned>(&self, wait: Duration) -> Result<T, Error> {
        self.client.result(self.job_type(), self.id(), wait).await
    }

    /// Returns it as it is now.
    ///
    /// # Errors
    ///
    /// As [`Client::job`].
    pub async fn refresh(&self) -> Result<Self, Error> {
        self.client.job(self.id()).await
    }

    /// Cancels it; see [`Client::cancel`].
    ///
    /// # Errors
    ///
    /// As [`Client::cancel`].
    pub async fn cancel(&self) -> Result<Self, Error> {
        self.client.cancel(self.job_type(), self.id(), false).await
    }
}

impl Client {
    pub(crate) fn job_of(&self, answer: &Answer) -> Result<Job, Error> {
        Job::new(self, answer.body.clone(), answer.status == 201)
    }
}
