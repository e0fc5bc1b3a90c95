//! What a handler gets of its job: its names, and ways to show, to store and to notice the end.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};
use tidegate_api::{Attributes, LogLevel, NewLogLine};
use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{error::Error, job::instant};

const MAX_MESSAGE_BYTES: usize = 4 << 10;
const MAX_CHECKPOINT_BYTES: usize = 64 << 10;
/// Lines that wait for the next heartbeat; the oldest go first. A request has at most 1000.
const MAX_PENDING_LINES: usize = 1000;

/// Why an attempt is over before its handler has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AbortReason {
    /// A caller cancelled the job.
    Cancelled,
    /// Another worker may have the job.
    LeaseLost,
    /// This worker ends now.
    Stopping,
}

impl AbortReason {
    /// Returns `cancelled`, `lease_lost` or `stopping`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::LeaseLost => "lease_lost",
            Self::Stopping => "stopping",
        }
    }
}

/// The error of a handler whose attempt is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the attempt is over: {}", .0.as_str())]
pub struct Aborted(pub AbortReason);

/// The job of the running attempt. Clones share it.
#[derive(Clone)]
pub struct Attempt(Arc<Inner>);

struct Inner {
    fields: Fields,
    number: u16,
    aborted: CancellationToken,
    reason: OnceLock<AbortReason>,
    shown: Mutex<Shown>,
    changed: Notify,
}

/// What an attempt needs of its job.
#[derive(Debug, Deserialize)]
pub(crate) struct Fields {
    pub id: String,
    #[serde(rename = "type")]
    pub job_type: String,
    #[serde(default)]
    pub max_attempts: u16,
    #[serde(default)]
    pub attributes: Attributes,
    #[serde(default)]
    pub headers: Option<BTreeMap<String, String>>,
    #[serde(default = "null")]
    pub data: Box<RawValue>,
    #[serde(default)]
    pub checkpoint: Option<Box<RawValue>>,
}

fn null() -> Box<RawValue> {
    RawValue::NULL.to_owned()
}

/// What is to be sent with the next heartbeat, and the checkpoint.
#[derive(Default)]
struct Shown {
    stored: Option<Arc<RawValue>>,
    next: Changes,
}

/// What no heartbeat has sent yet.
#[derive(Default)]
pub(crate) struct Changes {
    pub progress: Option<(f64, Option<String>)>,
    pub checkpoint: Option<Arc<RawValue>>,
    pub log: Vec<NewLogLine>,
}

impl Attempt {
    /// Returns attempt `number`, from 1, of a job with a type and an id. It is for tests that call
    /// a handler without a server; a worker makes its own.
    pub fn new(job_type: impl Into<String>, id: impl Into<String>, number: u16) -> Self {
        let fields = Fields {
            id: id.into(),
            job_type: job_type.into(),
            max_attempts: 3,
            attributes: Attributes::new(),
            headers: None,
            data: null(),
            checkpoint: None,
        };
        Self::of(fields, number)
    }

    pub(crate) fn of(mut fields: Fields, number: u16) -> Self {
        let stored = fields.checkpoint.take().map(Arc::from);
        Self(Arc::new(Inner {
            fields,
            number,
            aborted: CancellationToken::new(),
            reason: OnceLock::new(),
            shown: Mutex::new(Shown { stored, next: Changes::default() }),
            changed: Notify::new(),
        }))
    }

    /// Returns the job's id: make the work idempotent by it.
    pub fn id(&self) -> &str {
        &self.0.fields.id
    }

    /// Returns the job's type.
    pub fn job_type(&self) -> &str {
        &self.0.fields.job_type
    }

    /// Returns the number of this attempt, from 1.
    pub fn number(&self) -> u16 {
        self.0.number
    }

    /// Returns the most attempts.
    pub fn max_attempts(&self) -> u16 {
        self.0.fields.max_attempts
    }

    /// Returns what limits match on.
    pub fn attributes(&self) -> &Attributes {
        &self.0.fields.attributes
    }

    /// Returns a header of the job, by its name in any letter case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let headers = self.0.fields.headers.iter().flatten();
        let found = headers.into_iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Returns what the job carries, as it came.
    pub fn data(&self) -> &RawValue {
        &self.0.fields.data
    }

    /// Returns the job's W3C trace context. Requests of the handler's task carry it on; see
    /// [`with_traceparent`](crate::with_traceparent) for tasks that it spawns.
    pub fn traceparent(&self) -> Option<&str> {
        self.header("traceparent")
    }

    /// Returns the token that is cancelled when the attempt is over: the job was cancelled, or its
    /// lease was lost, or the worker ends.
    pub fn aborted(&self) -> &CancellationToken {
        &self.0.aborted
    }

    /// Returns why the attempt is over, if it is.
    pub fn abort_reason(&self) -> Option<AbortReason> {
        self.0.reason.get().copied()
    }

    /// Does nothing unless the attempt is over.
    ///
    /// # Errors
    ///
    /// [`Aborted`] if it is: return it from the handler.
    pub fn check(&self) -> Result<(), Aborted> {
        self.abort_reason().map_or(Ok(()), |reason| Err(Aborted(reason)))
    }

    /// Runs a future until it ends, or until the attempt is over: then it is dropped.
    ///
    /// # Errors
    ///
    /// [`Aborted`] if the attempt is over before.
    pub async fn until_aborted<F: Future>(&self, future: F) -> Result<F::Output, Aborted> {
        let reason = || self.abort_reason().unwrap_or(AbortReason::Cancelled);
        self.aborted().run_until_cancelled(future).await.ok_or_else(|| Aborted(reason()))
    }

    /// Waits.
    ///
    /// # Errors
    ///
    /// [`Aborted`] if the attempt is over before.
    pub async fn sleep(&self, span: Duration) -> Result<(), Aborted> {
        self.until_aborted(sleep(span)).await
    }

    /// Shows progress, 0 to 100, with a note that may be empty. It is sent within a second, and
    /// only the latest.
    pub fn progress(&self, percent: f64, note: &str) {
        let note = Some(cut(note, MAX_MESSAGE_BYTES)).filter(|note| !note.is_empty());
        let percent = if percent.is_nan() { 0.0 } else { percent.clamp(0.0, 100.0) };
        self.shown().next.progress = Some((percent, note.map(str::to_owned)));
        self.0.changed.notify_one();
    }

    /// Adds a line to the job's log, with an object of fields or null. It is sent within a second,
    /// or with the report.
    ///
    /// ```
    /// # use tidegate_client::{Attempt, api::LogLevel};
    /// # use serde_json::{Value, json};
    /// # let job = Attempt::new("letter", "1", 1);
    /// job.log(LogLevel::Info, "printed", json!({"pages": 3}));
    /// job.log(LogLevel::Warn, "the printer is slow", Value::Null);
    /// ```
    pub fn log(&self, level: LogLevel, text: impl Into<String>, fields: Value) {
        let fields = match fields {
            Value::Object(fields) => fields,
            Value::Null => serde_json::Map::new(),
            value => serde_json::Map::from_iter([("value".to_owned(), value)]),
        };
        // Lines with a time are kept once, although a request is repeated.
        let time = Some(instant(SystemTime::now()));
        let mut shown = self.shown();
        shown.next.log.push(NewLogLine { time, level, text: text.into(), fields });
        bound(&mut shown.next.log);
        drop(shown);
        self.0.changed.notify_one();
    }

    /// Returns what an earlier attempt, or this one, has stored; none if nothing is stored.
    ///
    /// # Errors
    ///
    /// [`Error::UnexpectedAnswer`] if it is not a `T`.
    pub fn checkpoint<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        let stored = self.shown().stored.clone();
        let Some(stored) = stored.filter(|raw| raw.get() != "null") else { return Ok(None) };
        serde_json::from_str(stored.get())
            .map(Some)
            .map_err(|err| Error::UnexpectedAnswer(format!("the checkpoint cannot be read: {err}")))
    }

    /// Stores what the next attempt needs to go on: any JSON value of at most 64 KiB. It is sent
    /// within a second, and with a report that does not succeed.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if it has no JSON form, or is larger.
    pub fn save_checkpoint(&self, value: &impl Serialize) -> Result<(), Error> {
        let raw = serde_json::value::to_raw_value(value)
            .map_err(|err| Error::argument(format_args!("the checkpoint is no JSON: {err}")))?;
        if raw.get().len() > MAX_CHECKPOINT_BYTES {
            return Err(Error::argument("a checkpoint has at most 64 KiB"));
        }
        let raw: Arc<RawValue> = raw.into();
        let mut shown = self.shown();
        shown.stored = Some(raw.clone());
        shown.next.checkpoint = Some(raw);
        drop(shown);
        self.0.changed.notify_one();
        Ok(())
    }

    pub(crate) fn abort(&self, reason: AbortReason) {
        if self.0.reason.set(reason).is_ok() {
            self.0.aborted.cancel();
        }
    }

    /// Returns when there is something new to send.
    pub(crate) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    pub(crate) fn has_changes(&self) -> bool {
        let shown = self.shown();
        shown.next.progress.is_some()
            || shown.next.checkpoint.is_some()
            || !shown.next.log.is_empty()
    }

    /// Takes what no heartbeat has sent yet.
    pub(crate) fn take(&self) -> Changes {
        std::mem::take(&mut self.shown().next)
    }

    /// Takes back what a heartbeat without an answer had, unless there is something newer.
    pub(crate) fn put_back(&self, sent: Changes) {
        let mut shown = self.shown();
        let next = &mut shown.next;
        next.progress = next.progress.take().or(sent.progress);
        next.checkpoint = next.checkpoint.take().or(sent.checkpoint);
        let newer = std::mem::replace(&mut next.log, sent.log);
        next.log.extend(newer);
        bound(&mut next.log);
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.0.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, job_type) = (self.id(), self.job_type());
        write!(f, "Attempt {} of {job_type} {id}", self.number())
    }
}

fn bound(log: &mut Vec<NewLogLine>) {
    log.drain(..log.len().saturating_sub(MAX_PENDING_LINES));
}

/// The beginning of a text, at most `most` bytes of it.
pub(crate) fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// A message for people, of a length that the server accepts.
pub(crate) fn message(text: &str) -> String {
    cut(text, MAX_MESSAGE_BYTES).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_sent_is_taken_back_behind_newer() {
        let job = Attempt::new("letter", "1", 1);
        job.progress(10.0, "old");
        job.log(LogLevel::Info, "one", Value::Null);
        job.save_checkpoint(&1).unwrap();
        let sent = job.take();
        assert!(!job.has_changes());
        job.progress(200.0, "");
        job.log(LogLevel::Info, "two", Value::Null);
        job.put_back(sent);
        let next = job.take();
        assert_eq!(next.progress, Some((100.0, None)));
        assert_eq!(next.checkpoint.unwrap().get(), "1");
        let texts: Vec<&str> = next.log.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(texts, ["one", "two"]);
        assert_eq!(job.checkpoint::<u8>().unwrap(), Some(1));
    }

    #[test]
    fn lines_and_checkpoints_have_bounds() {
        let job = Attempt::new("letter", "1", 1);
        for n in 0..1005 {
            job.log(LogLevel::Debug, n.to_string(), Value::Null);
        }
        let log = job.take().log;
        assert_eq!((log.len(), log[0].text.as_str()), (1000, "5"));
        assert!(job.save_checkpoint(&"x".repeat(70_000)).is_err());
        assert_eq!(cut("aé", 2), "a");
    }

    #[tokio::test]
    async fn the_end_of_an_attempt_ends_its_waits() {
        let job = Attempt::new("letter", "1", 1);
        job.check().unwrap();
        job.abort(AbortReason::LeaseLost);
        job.abort(AbortReason::Cancelled);
        let over = Err(Aborted(AbortReason::LeaseLost));
        assert_eq!(job.sleep(Duration::from_hours(1)).await, over);
        assert_eq!(job.check(), over);
    }
}
