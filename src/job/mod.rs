//! What a job is, what may happen to it, and when it is tried again. Pure.
//!
//! Read in this order: [`spec`] (what it is), [`life`] (what happens to it), [`retry`] (the wait
//! before another attempt), [`payload`] and [`translate`] (what it carries), [`extract`] (what limits see of that),
//! [`name`] (how things are called), [`trace`] (whose trace it belongs to).

pub mod extract;
pub mod life;
pub mod name;
pub mod payload;
pub mod retry;
pub mod spec;
pub mod trace;
pub mod translate;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

pub use life::{Event, Life, Outcome, Revision, State, Token, Version};
pub use name::{JobId, PluginName, QueueName, ScheduleName, TriggerName, TypeName};
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
    pub life: Life,
}

impl Job {
    /// The same job after `event`; see [`Life::apply`].
    ///
    /// # Errors
    ///
    /// [`life::Refused`] if `event` cannot follow where the job stands.
    #[allow(clippy::result_large_err, reason = "what it returns otherwise is larger")]
    pub fn apply(&self, event: Event, now: crate::time::Timestamp) -> Result<Self, life::Refused> {
        let life = self.life.apply(&self.spec, event, now)?;
        Ok(Self { id: self.id.clone(), spec: Arc::clone(&self.spec), data: self.data.clone(), life })
    }
}
