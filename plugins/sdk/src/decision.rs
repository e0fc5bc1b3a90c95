//! Short constructors of decisions, and access to the attributes of jobs.

use crate::{Action, Attribute, Decision, Dimension, Ended, Job, RunningJob};

impl Decision {
    /// The job starts now.
    pub const fn run() -> Self {
        Self { action: Action::Run, reason: None }
    }

    /// The job waits. The next tick of its queue offers it again.
    pub fn hold(reason: impl Into<String>) -> Self {
        Self { action: Action::Hold(None), reason: Some(reason.into()) }
    }

    /// The job waits. The next tick of its queue offers it again, at the latest at `until`, which
    /// is after now and within 366 days.
    pub fn hold_until(until: u64, reason: impl Into<String>) -> Self {
        Self { action: Action::Hold(Some(until)), reason: Some(reason.into()) }
    }

    /// The job is due at `at`, which is after now and within 366 days.
    pub fn reschedule(at: u64, reason: impl Into<String>) -> Self {
        Self { action: Action::Reschedule(at), reason: Some(reason.into()) }
    }

    /// The job ends `dropped`.
    pub fn drop(reason: impl Into<String>) -> Self {
        Self { action: Action::Drop, reason: Some(reason.into()) }
    }
}

impl Dimension {
    /// By an attribute.
    pub fn attribute(name: impl Into<String>) -> Self {
        Self::Attribute(name.into())
    }
}

/// The value of the attribute `name`.
pub(crate) fn attribute<'a>(attributes: &'a [Attribute], name: &str) -> Option<&'a str> {
    attributes
        .iter()
        .find(|attribute| attribute.name == name)
        .map(|attribute| attribute.value.as_str())
}

impl Job {
    /// The value of its attribute `name`.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        attribute(&self.attributes, name)
    }
}

impl RunningJob {
    /// The value of its attribute `name`.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        attribute(&self.attributes, name)
    }
}

impl Ended {
    /// The value of its job's attribute `name`.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        attribute(&self.attributes, name)
    }
}
