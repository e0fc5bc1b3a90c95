//! The specification of a job: everything that is fixed when it is accepted and changes only by
//! PATCH.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
};
use url::Url;

use super::{
    JobId, QueueName, TypeName,
    origin::Origin,
    retry::Retry,
    unique::{Debounce, MergedRequest, OnConflict},
};
use crate::{
    calendar::window::Window,
    record,
    stored::UnknownFields,
    time::{Seconds, Timestamp},
};

/// The value of an attribute, which limits, partitions and searches compare.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A number; whole numbers print without a fraction.
    Number(serde_json::Number),
    /// A text; booleans become `"true"` and `"false"`.
    Text(String),
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

/// Reads a [`Value`]. Readers of a value or something else use it too.
pub struct ValueVisitor;

impl Visitor<'_> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a number")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Text(value.to_string()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Value, E> {
        serde_json::Number::from_f64(number)
            .map(Value::Number)
            .ok_or_else(|| E::invalid_value(de::Unexpected::Float(number), &self))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }
}

impl Value {
    /// The value as the text that keys and partitions use. Equal values have equal texts, so 2.0 is
    /// `2`.
    pub fn text(&self) -> String {
        self.as_text().into_owned()
    }

    /// Whether a search for `asked` finds this value: both have one text, or this is the number
    /// that `asked` writes in another form, as `5.0` is 5.
    pub fn is_found_by(&self, asked: &Self) -> bool {
        let is_its_number = || match (self, asked) {
            (Self::Number(_), Self::Text(text)) => text
                .parse::<serde_json::Number>()
                .is_ok_and(|number| Self::Number(number).text() == self.text()),
            _ => false,
        };
        self.as_text() == asked.as_text() || is_its_number()
    }

    /// [`Value::text`], borrowed where the value is a text.
    pub fn as_text(&self) -> Cow<'_, str> {
        match self {
            Self::Number(number) => match number.as_f64() {
                // Below 2^53 every whole number is a double.
                Some(whole) if number.is_f64() && whole.fract() == 0.0 && whole.abs() < 9e15 => {
                    (whole as i64).to_string().into()
                }
                _ => number.to_string().into(),
            },
            Self::Text(text) => text.into(),
        }
    }
}

/// A job's attributes, by name.
pub type Attributes = BTreeMap<String, Value>;

/// How long a job's result can be read: `"none"`, `"once"` or `{"seconds": n}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepResult {
    /// It is never kept.
    None,
    /// The first read removes it; unread it is removed after an hour.
    Once,
    /// It is removed this long after the job's end.
    For(Seconds),
}

/// [`KeepResult`] in the API.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected \"none\", \"once\" or {\"seconds\": n}")]
enum KeepResultText {
    Word(KeepResultWord),
    For(KeepResultFor),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KeepResultWord {
    None,
    Once,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeepResultFor {
    seconds: Seconds,
}

impl Serialize for KeepResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            let code = match self {
                Self::None => -1,
                Self::Once => -2,
                Self::For(seconds) => seconds.millis() as i64,
            };
            return serializer.serialize_i64(code);
        }
        match self {
            Self::None => KeepResultText::Word(KeepResultWord::None),
            Self::Once => KeepResultText::Word(KeepResultWord::Once),
            Self::For(seconds) => KeepResultText::For(KeepResultFor { seconds: *seconds }),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for KeepResult {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return Ok(match i64::deserialize(deserializer)? {
                -1 => Self::None,
                -2 => Self::Once,
                millis => Self::For(Seconds::from_millis(millis as u64)),
            });
        }
        Ok(match KeepResultText::deserialize(deserializer)? {
            KeepResultText::Word(KeepResultWord::None) => Self::None,
            KeepResultText::Word(KeepResultWord::Once) => Self::Once,
            KeepResultText::For(KeepResultFor { seconds }) => Self::For(seconds),
        })
    }
}

impl Default for KeepResult {
    fn default() -> Self {
        Self::For(Seconds::new(86_400))
    }
}

/// The states in which a job holds its unique key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum UniqueWhile {
    /// Until its first attempt starts.
    Scheduled,
    /// Until it ends.
    Live,
}

/// The demand that no two jobs of a type with the same key are scheduled (or live) at the same
/// time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Unique {
    /// The key, 1 to 256 bytes, compared within the job's type.
    pub key: String,
    /// How long the key is held.
    #[serde(rename = "while")]
    pub hold: UniqueWhile,
    /// The key is held at least this long after the job was accepted, whatever its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<Seconds>,
    /// What the enqueue does if another job holds the key (default `keep`). Its job does not keep
    /// it.
    #[serde(default, skip_serializing_if = "OnConflict::is_keep")]
    #[schema(value_type = Option<OnConflict>)]
    pub on_conflict: OnConflict,
    /// The job waits until no request with the key has come for a time; not together with
    /// `on_conflict`, `run_at` or `delay_seconds`. Its job does not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debounce: Option<Debounce>,
}

/// Most bytes of the data that [`Original`] keeps.
pub const MAX_ORIGINAL_BYTES: usize = 4096;

/// A job as it came, before a retry strategy changed it.
#[derive(Clone, Debug, PartialEq)]
pub struct Original {
    /// Its priority.
    pub priority: i32,
    /// Its attributes.
    pub attributes: Attributes,
    /// Its data, JSON text. None if they were not changed, are no JSON, or have more than
    /// [`MAX_ORIGINAL_BYTES`].
    pub data: Option<String>,
    /// Its weight. None if a release changed the job that did not keep it.
    pub weight: Option<u32>,
    /// Its most attempts, likewise.
    pub max_attempts: Option<u16>,
    /// Its timeout, likewise.
    pub timeout: Option<Seconds>,
    /// Whether its data were changed since.
    pub data_changed: bool,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(Original { priority, attributes, data; weight, max_attempts, timeout, data_changed });

/// The specification of a job. It is shared and never changed in place: PATCH makes a new one.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Its type.
    pub job_type: TypeName,
    /// The queue of its type when it was accepted.
    pub queue: QueueName,
    /// Lower goes first.
    pub priority: i32,
    /// Capacity units it takes while it runs.
    pub weight: u32,
    /// Not held by limits and takes no capacity.
    pub critical: bool,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// Never started after this.
    pub expires_at: Option<Timestamp>,
    /// Ends `failed` at this instant if it has not ended before.
    pub deadline_at: Option<Timestamp>,
    /// When it may start; at any time without windows.
    pub windows: Vec<Window>,
    /// From claim to result.
    pub timeout: Seconds,
    /// Most attempts.
    pub max_attempts: u16,
    /// What follows a failed attempt.
    pub retry: Retry,
    /// The key by which a later reply finds it.
    pub correlation_key: Option<String>,
    /// A key that refuses duplicates.
    pub unique: Option<Unique>,
    /// The values that limits, partitions and searches compare.
    pub attributes: Attributes,
    /// How long its result can be read.
    pub keep_result: KeepResult,
    /// The URL that is notified when it ends.
    pub callback_url: Option<Url>,
    /// Passed on to the worker.
    pub headers: BTreeMap<String, String>,
    /// The job that this one runs again.
    pub replay_of: Option<JobId>,
    /// How long it is kept after its end.
    pub retention: Seconds,
    /// Its partition of the queue; empty if the queue has none.
    pub partition: String,
    /// A digest of its request, to distinguish a repeat from another request with the same id.
    pub request_digest: [u8; 16],
    /// As it came, if a retry strategy has changed it.
    pub original: Option<Box<Original>>,
    /// The name of the caller that enqueued it; of a replay, of the caller that enqueued the first
    /// job. None if the caller had no name, or if the server made it: from an event, by a schedule.
    pub enqueued_by: Option<String>,
    /// The latest requests that it took while it waited, in addition to its own: those of a replace
    /// or a debounce that can be repeated. At most [`MAX_MERGED_REQUESTS`].
    ///
    /// [`MAX_MERGED_REQUESTS`]: super::unique::MAX_MERGED_REQUESTS
    pub merged: Vec<MergedRequest>,
    /// The schedule or the trigger whose request it is; of a replay, that of the first job. None if
    /// the request is a caller's.
    pub origin: Option<Box<Origin>>,
    /// The name of the target that a retry strategy chose for its next attempt, of those in
    /// `retry_targets` of its type. None for the type's own target.
    pub retry_target: Option<String>,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

impl Spec {
    /// Most bytes of `enqueued_by`.
    pub const MAX_CALLER_BYTES: usize = 256;
    /// The digest of a request that cannot be repeated: it has neither an id nor an idempotency key.
    pub const NO_DIGEST: [u8; 16] = [0; 16];
}

record!(Spec {
    job_type,
    queue,
    priority,
    weight,
    critical,
    created_at,
    expires_at,
    deadline_at,
    windows,
    timeout,
    max_attempts,
    retry,
    correlation_key,
    unique,
    attributes,
    keep_result,
    callback_url,
    headers,
    replay_of,
    retention,
    partition,
    request_digest;
    original,
    enqueued_by,
    merged,
    origin,
    retry_target
});
