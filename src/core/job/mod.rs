//! A job: its specification, its lifecycle, its retries and its data. Pure.
//!
//! Read in this order: [`spec`] (what is fixed when it is accepted), [`lifecycle`] (its states),
//! [`retry`] (the wait before another attempt), [`unique`] (requests with one key), [`origin`] (what
//! made it), [`payload`] and [`transcode`] (its data), [`extract`] (the attributes in its data),
//! [`name`] (names and ids), [`phase`], `times` and [`error_pattern`] (what is derived when it is
//! read), [`sort`] (the order of a list), [`trace`] (its trace context).

pub mod end_notice;
pub mod error_pattern;
pub mod extract;
pub mod lifecycle;
pub mod name;
pub mod options;
pub mod origin;
pub mod payload;
pub mod phase;
pub mod retry;
pub mod sort;
pub mod spec;
mod times;
pub mod trace;
pub mod transcode;
pub mod type_config;
pub mod unique;

#[cfg(test)]
pub(crate) mod tests;

use std::{io, sync::Arc};

use serde::Serialize;

pub use lifecycle::{Event, Lifecycle, Outcome, Revision, State, Token, Version};
pub use name::{JobId, PluginName, QueueName, ScheduleName, TriggerName, TypeName};
pub use options::JobOptions;
pub use origin::Origin;
pub use payload::{Body, Encoding, Payload};
pub use phase::Phase;
pub use sort::JobSort;
pub use spec::{Attributes, Spec, Value};
pub use trace::TraceContext;

/// One unit of work: its specification, its data and its state.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Its specification.
    pub spec: Arc<Spec>,
    /// Its data.
    pub data: Body,
    /// Its state and history.
    pub life: Lifecycle,
}

impl Job {
    /// The keys of the objects with its data, its result and its checkpoint.
    pub fn object_keys(&self) -> impl Iterator<Item = &str> {
        let data = match &self.data {
            Body::Object { key, .. } => Some(key.as_str()),
            Body::Inline(_) | Body::Separate(_) => None,
        };
        let kept = self.life.result.iter().chain(&self.life.checkpoint);
        let kept = kept.filter_map(|body| body.object.as_ref());
        data.into_iter().chain(kept.map(|(key, _)| key.as_str()))
    }

    /// How many bytes its worker gets with a lease or a call: its data and its checkpoint.
    pub fn input_bytes(&self) -> usize {
        let checkpoint = self.life.checkpoint.as_ref();
        self.data.len() + checkpoint.map_or(0, |checkpoint| checkpoint.body().len())
    }

    /// Whether it waits for an attempt.
    pub fn is_scheduled(&self) -> bool {
        matches!(self.life.state, State::Scheduled { .. })
    }

    /// The name that the worker of its latest attempt gave itself, if it gave one.
    pub fn worker(&self) -> Option<&str> {
        let running = self.life.running();
        let entries = self.life.history.iter().rev();
        let of_latest = entries.take_while(|entry| entry.attempt == self.life.attempt);
        let mut ran = of_latest.filter_map(|entry| entry.worker.as_deref());
        running.map_or_else(|| ran.next(), |running| running.worker.as_deref())
    }

    /// Whether its data, its result and its checkpoint are here, and not elsewhere in the store.
    pub fn is_whole(&self) -> bool {
        self.data.inline().is_some()
            && self
                .life
                .result
                .iter()
                .chain(&self.life.checkpoint)
                .all(|kept| kept.object.is_none())
    }

    /// The same job after `event`; see [`Lifecycle::apply`].
    ///
    /// # Errors
    ///
    /// [`lifecycle::Refused`] if `event` cannot follow the current state.
    #[allow(clippy::result_large_err, reason = "the value of success is larger")]
    pub fn apply(
        &self,
        event: Event,
        now: crate::time::Timestamp,
    ) -> Result<Self, lifecycle::Refused> {
        let life = self.life.apply(&self.spec, event, now)?;
        Ok(Self {
            id: self.id.clone(),
            spec: Arc::clone(&self.spec),
            data: self.data.clone(),
            life,
        })
    }

    /// An estimate of its size when all of it is shown: a bound in the encoding of its data, and
    /// usually in JSON. MessagePack data of only small numbers or flags may be several times as
    /// long in JSON.
    pub fn bytes(&self) -> usize {
        let without_data = written(&*self.spec) + written(&self.life);
        // Instants are shown as texts, which are longer than their numbers.
        FIELDS
            + self.life.history.len() * SPANS
            + without_data
            + without_data / 2
            + shown(&self.data)
            + self.life.result.as_ref().map_or(0, |result| shown(&result.body()))
            + self.life.checkpoint.as_ref().map_or(0, |checkpoint| shown(&checkpoint.body()))
    }
}

/// Bytes of the names of a job's fields, and of the fields that are always present.
const FIELDS: usize = 1024;

/// Bytes of the wait and the duration of an attempt, which are derived when it is shown.
const SPANS: usize = 64;

/// Most bytes of `body` when it is shown: binary becomes base64 in JSON.
fn shown(body: &Body) -> usize {
    match body {
        Body::Inline(Payload { encoding: Encoding::Json, .. })
        | Body::Object { encoding: Encoding::Json, .. } => body.len(),
        _ => body.len() + body.len() / 2,
    }
}

/// The number of bytes of `value` as JSON.
fn written(value: &impl Serialize) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // The types are stored as JSON, so they can be written as JSON.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}
