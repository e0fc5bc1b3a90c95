//! Jobs for tests: everything has a default, and a test names only what it is about.

use std::sync::Arc;

use bytes::Bytes;

use tidegate_core::{
    job::{
        Body, Encoding, Job, JobId, JobOptions, Lifecycle, Payload, Spec, Value,
        lifecycle::Waiting, spec::Unique, type_config::TypeConfig,
    },
    time::Timestamp,
};

/// Parses a name or an id.
///
/// # Panics
///
/// If the text is invalid: tests use valid names.
pub fn name<N: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> N {
    text.parse().expect("a valid name")
}

/// The instant `millis` milliseconds after the epoch.
pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A builder of a scheduled job; see [`job`].
#[derive(Clone, Debug)]
#[must_use = "call `build` to get the job"]
pub struct JobBuilder {
    id: JobId,
    spec: Spec,
    data: Body,
    run_at: Timestamp,
}

/// A job `id` of type `work` in queue `default`, accepted and due at the epoch, with data `null`.
pub fn job(id: &str) -> JobBuilder {
    let spec =
        JobOptions::default().resolve(&name("work"), &TypeConfig::default(), Timestamp::EPOCH);
    JobBuilder { id: name(id), spec, data: Body::Inline(Payload::null()), run_at: Timestamp::EPOCH }
}

impl JobBuilder {
    /// In this queue.
    pub fn queue(mut self, queue: &str) -> Self {
        self.spec.queue = name(queue);
        self
    }

    /// Of this type.
    pub fn of_type(mut self, job_type: &str) -> Self {
        self.spec.job_type = name(job_type);
        self
    }

    /// With this priority.
    pub fn priority(mut self, priority: i32) -> Self {
        self.spec.priority = priority;
        self
    }

    /// With this weight.
    pub fn weight(mut self, weight: u32) -> Self {
        self.spec.weight = weight;
        self
    }

    /// Critical.
    pub fn critical(mut self, critical: bool) -> Self {
        self.spec.critical = critical;
        self
    }

    /// In this partition of its queue.
    pub fn partition(mut self, partition: &str) -> Self {
        partition.clone_into(&mut self.spec.partition);
        self
    }

    /// Due at this many milliseconds.
    pub fn due(mut self, millis: i64) -> Self {
        self.run_at = at(millis);
        self
    }

    /// Accepted at this many milliseconds.
    pub fn created(mut self, millis: i64) -> Self {
        self.spec.created_at = at(millis);
        self
    }

    /// Expires at this many milliseconds.
    pub fn expires(mut self, millis: i64) -> Self {
        self.spec.expires_at = Some(at(millis));
        self
    }

    /// With this attribute.
    pub fn attribute(mut self, name: &str, value: impl Into<AttributeValue>) -> Self {
        self.spec.attributes.insert(name.to_owned(), value.into().0);
        self
    }

    /// With a unique key.
    pub fn unique(mut self, unique: Unique) -> Self {
        self.spec.unique = Some(unique);
        self
    }

    /// With this data.
    pub fn data(mut self, encoding: Encoding, bytes: impl Into<Bytes>) -> Self {
        self.data = Body::Inline(Payload { encoding, bytes: bytes.into() });
        self
    }

    /// Changes any other option.
    pub fn with(mut self, change: impl FnOnce(&mut Spec)) -> Self {
        change(&mut self.spec);
        self
    }

    /// The job.
    pub fn build(self) -> Job {
        Job {
            id: self.id,
            spec: Arc::new(self.spec),
            data: self.data,
            life: Lifecycle::new(self.run_at, Waiting::Due),
        }
    }
}

/// An attribute's value, written as a number or a text.
#[derive(Clone, Debug)]
pub struct AttributeValue(Value);

impl From<i64> for AttributeValue {
    fn from(number: i64) -> Self {
        Self(Value::Number(number.into()))
    }
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self(Value::Text(text.to_owned()))
    }
}
