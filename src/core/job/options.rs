//! The options that a job carries, and their precedence: the job's own, then its type's, then the
//! server's default.
//!
//! A request, a schedule and a trigger embed the same [`JobOptions`]. [`JobOptions::resolve`] is
//! the only code that combines them with the type. `#[serde(flatten)]` buffers values and loses the
//! path of a wrong one, so [`Split`] reads the options of an object directly from its deserializer.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeSeed, Error, IntoDeserializer, MapAccess, Visitor},
};
use url::Url;

use super::{
    Attributes, Spec, TypeName,
    retry::Retry,
    spec::{KeepResult, Unique},
    type_config::{Delivery, TypeConfig},
};
use crate::{
    calendar::window::Window,
    stored::UnknownFields,
    time::{Seconds, Timestamp},
};

/// The optional settings of one job. What is absent comes from its type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, utoipa::ToSchema)]
#[serde(default)]
pub struct JobOptions {
    /// Lower goes first (default 100).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Capacity units that it takes while it runs; 0 takes none (default 1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Not held by limits, and takes no capacity. An enqueue needs scope `enqueue:critical`.
    #[schema(value_type = Option<bool>)]
    pub critical: bool,
    /// When it may start; an empty list clears the type's windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows: Option<Vec<Window>>,
    /// From claim to result (default 86400).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<Seconds>,
    /// From creation to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<Seconds>,
    /// Most attempts (default 3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u16>,
    /// What follows a failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// A key that refuses duplicates: no second job of the type while one has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<Unique>,
    /// What limits, partitions and searches compare, at most 16; those extracted from the data win.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Option<BTreeMap<String, crate::job::Value>>)]
    pub attributes: Attributes,
    /// How long the result can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_result: Option<KeepResult>,
    /// The URL that is notified when the job ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub callback_url: Option<Url>,
    /// Passed on to the worker.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub headers: BTreeMap<String, String>,
}

impl JobOptions {
    /// The names of the options.
    pub const NAMES: [&'static str; 13] = [
        "priority",
        "weight",
        "critical",
        "windows",
        "timeout_seconds",
        "deadline_seconds",
        "max_attempts",
        "retry",
        "unique",
        "attributes",
        "keep_result",
        "callback_url",
        "headers",
    ];

    /// The spec of a job of `job_type` that is accepted at `now` with these options.
    ///
    /// The job's own option wins over its type's, and that over the default. Headers are merged,
    /// name by name. Keys, expiry, partition and digest follow from the request and are not set
    /// here.
    pub fn resolve(&self, job_type: &TypeName, config: &TypeConfig, now: Timestamp) -> Spec {
        let default_attempts = if config.delivery == Delivery::AtMostOnce { 1 } else { 3 };
        let deadline = self.deadline_seconds.or(config.deadline_seconds);
        let mut headers = config.headers.clone();
        headers.extend(self.headers.clone());
        Spec {
            job_type: job_type.clone(),
            queue: config.queue.clone(),
            priority: self.priority.unwrap_or(config.priority),
            weight: self.weight.unwrap_or(config.weight),
            critical: self.critical,
            created_at: now,
            expires_at: None,
            deadline_at: deadline.map(|deadline| now + deadline.duration()),
            windows: self.windows.as_ref().unwrap_or(&config.windows).clone(),
            timeout: self.timeout_seconds.unwrap_or(config.timeout_seconds),
            max_attempts: self.max_attempts.or(config.max_attempts).unwrap_or(default_attempts),
            retry: self.retry.as_ref().unwrap_or(&config.retry).clone(),
            correlation_key: None,
            unique: self.unique.as_ref().map(Unique::held),
            attributes: self.attributes.clone(),
            keep_result: self.keep_result.unwrap_or(config.keep_result),
            callback_url: self.callback_url.as_ref().or(config.callback_url.as_ref()).cloned(),
            headers,
            replay_of: None,
            retention: config.retention_seconds,
            partition: String::new(),
            request_digest: Spec::NO_DIGEST,
            original: None,
            retry_target: None,
            enqueued_by: None,
            merged: Vec::new(),
            origin: None,
            unknown: UnknownFields::default(),
        }
    }

    /// Reads the value of option `name` from `map`.
    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "priority" => self.priority = map.next_value()?,
            "weight" => self.weight = map.next_value()?,
            "critical" => self.critical = or_default(map)?,
            "windows" => self.windows = map.next_value()?,
            "timeout_seconds" => self.timeout_seconds = map.next_value()?,
            "deadline_seconds" => self.deadline_seconds = map.next_value()?,
            "max_attempts" => self.max_attempts = map.next_value()?,
            "retry" => self.retry = map.next_value()?,
            "unique" => self.unique = map.next_value()?,
            "attributes" => self.attributes = or_default(map)?,
            "keep_result" => self.keep_result = map.next_value()?,
            "callback_url" => self.callback_url = map.next_value()?,
            "headers" => self.headers = or_default(map)?,
            _ => return Err(A::Error::custom(format!("option {name} has no reader"))),
        }
        Ok(())
    }
}

/// The next value of `map`; null is the default.
fn or_default<'de, A: MapAccess<'de>, T: Deserialize<'de> + Default>(
    map: &mut A,
) -> Result<T, A::Error> {
    map.next_value::<Option<T>>().map(Option::unwrap_or_default)
}

/// Reads an object that has fields of its own and the options of a job: the derived `deserialize`
/// of a struct with named fields gets its own fields from here, and the options go to `options`.
///
/// Each error is at the path of its value. A field that neither has is refused by name, and so is
/// one that is given twice.
pub struct Split<'a, D> {
    inner: D,
    options: &'a mut JobOptions,
}

impl<'a, D> Split<'a, D> {
    /// The fields of the object in `inner` that are no options; those go to `options`.
    pub fn new(inner: D, options: &'a mut JobOptions) -> Self {
        Self { inner, options }
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Split<'_, D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let visitor = SplitVisitor { visitor, fields, options: self.options };
        self.inner.deserialize_struct(name, fields, visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        option unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier
        ignored_any
    }
}

struct SplitVisitor<'a, V> {
    visitor: V,
    fields: &'static [&'static str],
    options: &'a mut JobOptions,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for SplitVisitor<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        let Self { visitor, fields, options } = self;
        visitor.visit_map(SplitMap { map, fields, options, seen: 0 })
    }
}

struct SplitMap<'a, A> {
    map: A,
    fields: &'static [&'static str],
    options: &'a mut JobOptions,
    /// Which options were given, a bit for each of [`JobOptions::NAMES`].
    seen: u32,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for SplitMap<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        loop {
            match self.map.next_key_seed(KeySeed { fields: self.fields, seen: self.seen })? {
                None => return Ok(None),
                Some(Key::Own(name)) => {
                    return seed.deserialize(name.into_deserializer()).map(Some);
                }
                Some(Key::Option(index)) => {
                    self.seen |= 1 << index;
                    self.options.read(JobOptions::NAMES[index], &mut self.map)?;
                }
            }
        }
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

enum Key {
    Own(&'static str),
    /// An index of [`JobOptions::NAMES`].
    Option(usize),
}

/// Reads the name of a field.
#[derive(Clone, Copy)]
struct KeySeed {
    fields: &'static [&'static str],
    seen: u32,
}

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for KeySeed {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("field identifier")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Key, E> {
        if let Some(index) = JobOptions::NAMES.iter().position(|name| *name == text) {
            return if self.seen & (1 << index) == 0 {
                Ok(Key::Option(index))
            } else {
                Err(E::duplicate_field(JobOptions::NAMES[index]))
            };
        }
        if let Some(name) = self.fields.iter().find(|name| **name == text) {
            return Ok(Key::Own(name));
        }
        let known: Vec<String> =
            self.fields.iter().chain(&JobOptions::NAMES).map(|name| format!("`{name}`")).collect();
        Err(E::custom(format!("unknown field `{text}`, expected one of {}", known.join(", "))))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq)]
    struct Whole {
        own: Own,
        options: JobOptions,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Own {
        name: String,
        size: Option<u8>,
    }

    impl<'de> Deserialize<'de> for Whole {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let mut options = JobOptions::default();
            let own = Own::deserialize(Split::new(deserializer, &mut options))?;
            Ok(Self { own, options })
        }
    }

    fn refused(text: &str) -> String {
        serde_json::from_str::<Whole>(text).unwrap_err().to_string()
    }

    fn every_option() -> serde_json::Value {
        json!({
            "priority": 1, "weight": 2, "critical": true,
            "windows": [{"from": "08:00", "to": "09:00"}],
            "timeout_seconds": 3, "deadline_seconds": 4,
            "max_attempts": 5, "retry": {"strategy": "exponential"},
            "unique": {"key": "k", "while": "live"},
            "attributes": {"size": 3}, "keep_result": "once",
            "callback_url": "https://example.com/", "headers": {"x": "1"},
        })
    }

    #[test]
    fn every_option_is_read_and_written_under_its_name() {
        let mut given = every_option();
        given["name"] = "n".into();
        let whole: Whole = serde_json::from_value(given).unwrap();
        let written = serde_json::to_value(&whole.options).unwrap();
        let names: Vec<&str> = written.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = JobOptions::NAMES;
        expected.sort_unstable();
        assert_eq!(names, expected);
        assert_eq!(written["weight"], 2);
        assert_eq!(written["attributes"], json!({"size": 3}));
    }

    #[test]
    fn null_leaves_an_option_to_the_type() {
        let mut given = json!({"name": "n"});
        for name in JobOptions::NAMES {
            given[name] = serde_json::Value::Null;
        }
        let whole: Whole = serde_json::from_value(given).unwrap();
        assert_eq!(whole.options, JobOptions::default());
    }

    #[test]
    fn an_unknown_or_repeated_field_is_refused_by_name() {
        let unknown = refused(r#"{"name": "n", "wieght": 1}"#);
        assert!(unknown.starts_with("unknown field `wieght`, expected one of `name`"), "{unknown}");
        let twice = refused(r#"{"weight": 1, "name": "n", "weight": 2}"#);
        assert!(twice.starts_with("duplicate field `weight`"), "{twice}");
        let own = refused(r#"{"name": "n", "name": "m"}"#);
        assert!(own.starts_with("duplicate field `name`"), "{own}");
        assert!(refused(r#"{"weight": 1}"#).starts_with("missing field `name`"));
    }

    #[test]
    fn the_option_of_a_job_wins_over_its_types() {
        let name: TypeName = "work".parse().unwrap();
        let config = TypeConfig {
            priority: 7,
            max_attempts: Some(9),
            headers: [("a", "type"), ("b", "type")].map(|(k, v)| (k.into(), v.into())).into(),
            ..TypeConfig::default()
        };
        let options = JobOptions {
            max_attempts: Some(2),
            headers: [("b".to_owned(), "job".to_owned())].into(),
            ..JobOptions::default()
        };
        let spec = options.resolve(&name, &config, Timestamp::EPOCH);
        assert_eq!((spec.priority, spec.max_attempts), (7, 2));
        assert_eq!((spec.headers["a"].as_str(), spec.headers["b"].as_str()), ("type", "job"));
        let default =
            JobOptions::default().resolve(&name, &TypeConfig::default(), Timestamp::EPOCH);
        assert_eq!((default.priority, default.weight, default.max_attempts), (100, 1, 3));
    }
}
