//! What a job is, what may happen to it, and when it is tried again. Pure.
//!
//! Read in this order: [`spec`] (what it is), [`lifecycle`] (what happens to it), [`retry`] (the wait
//! before another attempt), [`payload`] and [`transcode`] (what it carries), [`extract`] (what limits see of that),
//! [`name`] (how things are called), [`trace`] (whose trace it belongs to).

pub mod end_notice;
pub mod extract;
pub mod lifecycle;
pub mod name;
pub mod options;
pub mod payload;
pub mod retry;
pub mod spec;
pub mod trace;
pub mod transcode;
pub mod type_config;

#[cfg(test)]
pub(crate) mod tests;

use std::{io, sync::Arc};

use serde::Serialize;

pub use lifecycle::{Event, Lifecycle, Outcome, Revision, State, Token, Version};
pub use name::{JobId, PluginName, QueueName, ScheduleName, TriggerName, TypeName};
pub use options::JobOptions;
pub use payload::{Body, Encoding, Payload};
pub use spec::{Attributes, Spec, Value};
pub use trace::TraceContext;

/// One unit of work: what it is, what it carries, where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// What it is.
    pub spec: Arc<Spec>,
    /// What it carries.
    pub data: Body,
    /// Where it stands.
    pub life: Lifecycle,
}

impl Job {
    /// The same job after `event`; see [`Lifecycle::apply`].
    ///
    /// # Errors
    ///
    /// [`lifecycle::Refused`] if `event` cannot follow where the job stands.
    #[allow(clippy::result_large_err, reason = "what it returns otherwise is larger")]
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

    /// How many bytes it has at most where it is shown whole in the encoding of its data, or as a rule in JSON. Data that is all small numbers
    /// or flags may be several times as long there.
    pub fn bytes(&self) -> usize {
        let beside = written(&*self.spec) + written(&self.life);
        // Instants are shown as texts, which are longer than their numbers.
        FIELDS
            + beside
            + beside / 2
            + shown(&self.data)
            + self.life.result.as_ref().map_or(0, |result| shown(&result.body()))
    }
}

/// The names of a job's fields, and those that are always there.
const FIELDS: usize = 1024;

/// How many bytes `body` may have where it is shown: what is binary becomes base64 in JSON.
fn shown(body: &Body) -> usize {
    match body {
        Body::Inline(Payload { encoding: Encoding::Json, .. })
        | Body::Object { encoding: Encoding::Json, .. } => body.len(),
        _ => body.len() + body.len() / 2,
    }
}

/// How many bytes `value` has as JSON.
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
    // What is stored as JSON can be written as JSON.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}
