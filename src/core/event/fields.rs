//! The fields of a job that a trigger enqueues: those of `POST /v1/jobs` except `type` and `data`,
//! which are read separately, and `id`, which follows from the event.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{
    job::options::{JobOptions, Split},
    strict::strict,
    time::{Seconds, Timestamp},
    validate::{self, ValidationError},
};

/// The fields, as in `POST /v1/jobs`. The job's type gives an absent or null one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct JobFields {
    /// The earliest it may run.
    pub run_at: Option<Timestamp>,
    /// The earliest it may run, from now.
    pub delay_seconds: Option<Seconds>,
    /// Never started after it.
    pub expires_at: Option<Timestamp>,
    /// The key by which a later reply finds it.
    pub correlation_key: Option<String>,
    /// Its options. A caller that may store the rule may also set `critical`.
    #[serde(flatten, skip_deserializing)]
    pub options: JobOptions,
}

impl<'de> Deserialize<'de> for JobFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut options = JobOptions::default();
        let fields = Self::deserialize(Split::new(deserializer, &mut options))?;
        Ok(Self { options, ..fields })
    }
}

impl Serialize for JobFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// The names of the fields that are no options.
const OWN_NAMES: [&str; 4] = ["run_at", "delay_seconds", "expires_at", "correlation_key"];

impl JobFields {
    /// The names of all fields.
    pub fn names() -> impl Iterator<Item = &'static str> {
        OWN_NAMES.into_iter().chain(JobOptions::NAMES)
    }

    /// Whether `name` is one of the fields.
    pub fn has(name: &str) -> bool {
        Self::names().any(|known| known == name)
    }

    /// Reads the fields from values by name.
    ///
    /// # Errors
    ///
    /// A fault that names the first field with an invalid value.
    pub fn read(mut values: Map<String, Value>) -> Result<Self, ValidationError> {
        for (name, value) in &mut values {
            prepare(name, value);
        }
        let read = |values| <Self as Deserialize>::deserialize(strict(Value::Object(values)));
        read(values.clone()).map_err(|whole| {
            // The message does not name the field. It is the one that fails when read alone.
            let alone = |(name, value): (String, Value)| {
                let error = read(Map::from_iter([(name.clone(), value)])).err()?;
                Some(ValidationError::new(name, error.to_string()))
            };
            values
                .into_iter()
                .find_map(alone)
                .unwrap_or_else(|| ValidationError::new("", whole.to_string()))
        })
    }

    /// Checks the bounds that do not depend on the job's type, its queue or the server.
    ///
    /// # Errors
    ///
    /// The first fault.
    pub fn check(&self) -> Result<(), ValidationError> {
        let options = &self.options;
        validate::check_start(self.run_at, self.delay_seconds)?;
        let unique = options.unique.as_ref();
        validate::check_keys(self.correlation_key.as_deref(), unique)?;
        validate::check_debounced_start(unique, self.run_at, self.delay_seconds)?;
        validate::check_options(options)?;
        // The engine adds one: the number of triggers that led to the job.
        let most = validate::MAX_HEADERS - 1;
        if options.headers.len() > most {
            return Err(ValidationError::new(
                "headers",
                format!("must have at most {most} entries"),
            ));
        }
        Ok(())
    }
}

/// Converts results of expressions: drops nulls from maps, and makes a text of a numeric key.
fn prepare(name: &str, value: &mut Value) {
    match (name, &mut *value) {
        ("attributes" | "headers", Value::Object(entries)) => {
            entries.retain(|_, entry| !entry.is_null());
        }
        ("correlation_key", Value::Number(number)) => *value = Value::String(number.to_string()),
        _ => {}
    }
}
