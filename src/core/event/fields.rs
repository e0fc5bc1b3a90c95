//! What a trigger can say of the job that it enqueues: the fields of `POST /v1/jobs` but `type` and `data`, which are read
//! apart, and `id`, which follows from the event.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;

use crate::{
    calendar::window::Window,
    job::{
        Attributes,
        retry::Retry,
        spec::{KeepResult, Unique},
        type_config::Delivery,
    },
    time::{Seconds, Timestamp},
    validate::{self, ValidationError},
};

/// The fields, each as for `POST /v1/jobs`; an absent or null one is left to the job's type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobFields {
    /// Lower goes first.
    pub priority: Option<i32>,
    /// Capacity units it takes.
    pub weight: Option<u32>,
    /// Not held by limits: whoever may put the rule may say so.
    pub critical: Option<bool>,
    /// The earliest it may run.
    pub run_at: Option<Timestamp>,
    /// The same, from now.
    pub delay_seconds: Option<Seconds>,
    /// Never started after it.
    pub expires_at: Option<Timestamp>,
    /// When on the clock it may start.
    pub windows: Option<Vec<Window>>,
    /// From claim to result.
    pub timeout_seconds: Option<Seconds>,
    /// From creation to end.
    pub deadline_seconds: Option<Seconds>,
    /// Most attempts.
    pub max_attempts: Option<u16>,
    /// What follows a failed attempt.
    pub retry: Option<Retry>,
    /// What a later reply can build.
    pub correlation_key: Option<String>,
    /// What keeps duplicates out.
    pub unique: Option<Unique>,
    /// What limits, partitions and searches look at.
    pub attributes: Option<Attributes>,
    /// How long the result can be read.
    pub keep_result: Option<KeepResult>,
    /// Who is told when it ends.
    pub callback_url: Option<Url>,
    /// Passed on to the worker.
    pub headers: Option<BTreeMap<String, String>>,
}

/// Their names.
pub const NAMES: [&str; 17] = [
    "priority",
    "weight",
    "critical",
    "run_at",
    "delay_seconds",
    "expires_at",
    "windows",
    "timeout_seconds",
    "deadline_seconds",
    "max_attempts",
    "retry",
    "correlation_key",
    "unique",
    "attributes",
    "keep_result",
    "callback_url",
    "headers",
];

impl JobFields {
    /// The fields that these values are.
    ///
    /// # Errors
    ///
    /// A fault that names the first field whose value cannot be one.
    pub fn read(mut values: Map<String, Value>) -> Result<Self, ValidationError> {
        for (name, value) in &mut values {
            prepare(name, value);
        }
        serde_json::from_value(Value::Object(values.clone())).map_err(|whole| {
            // The message alone does not name the field: the one that fails alone is it.
            let alone = |(name, value): (String, Value)| {
                let error =
                    serde_json::from_value::<Self>(Map::from_iter([(name.clone(), value)]).into())
                        .err()?;
                Some(ValidationError::new(name, error.to_string()))
            };
            values
                .into_iter()
                .find_map(alone)
                .unwrap_or_else(|| ValidationError::new("", whole.to_string()))
        })
    }

    /// Checks that a job could have these, as far as its type, its queue and the server have no say in it.
    ///
    /// # Errors
    ///
    /// The first fault.
    pub fn check(&self) -> Result<(), ValidationError> {
        fn each<T>(
            value: Option<T>,
            check: impl FnOnce(T) -> Result<(), ValidationError>,
        ) -> Result<(), ValidationError> {
            value.map_or(Ok(()), check)
        }
        validate::check_start(self.run_at, self.delay_seconds)?;
        validate::check_keys(self.correlation_key.as_deref(), self.unique.as_ref())?;
        each(self.max_attempts, |attempts| {
            validate::check_attempts(attempts, Delivery::AtLeastOnce)
        })?;
        each(self.timeout_seconds, validate::check_timeout)?;
        each(self.deadline_seconds, validate::check_deadline)?;
        each(self.windows.as_deref(), validate::check_windows)?;
        each(self.retry.as_ref(), validate::check_retry)?;
        each(self.attributes.as_ref(), validate::check_attributes)?;
        each(self.keep_result, validate::check_keep_result)?;
        each(self.callback_url.as_ref(), |url| validate::check_url("callback_url", url))?;
        each(self.headers.as_ref(), |headers| {
            // One more says through how many triggers the job has come to be.
            let most = validate::MAX_HEADERS - 1;
            validate::check_headers(headers)?;
            if headers.len() > most {
                Err(ValidationError::new("headers", format!("must have at most {most} entries")))
            } else {
                Ok(())
            }
        })
    }
}

/// What expressions yield as what the fields take: nothing is no entry of a map, and a number can be a key.
fn prepare(name: &str, value: &mut Value) {
    match (name, &mut *value) {
        ("attributes" | "headers", Value::Object(entries)) => {
            entries.retain(|_, entry| !entry.is_null())
        }
        ("correlation_key", Value::Number(number)) => *value = Value::String(number.to_string()),
        _ => {}
    }
}
