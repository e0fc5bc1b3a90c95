//! A job in the short form of answers.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use tidegate_core::{
    job::{Job, JobId, Phase, QueueName, TypeName, lifecycle::word, unique::Merged},
    time::Timestamp,
};

/// A job without fields of variable length, so that a thousand fit into any answer. The fields are
/// those of [`JobView`](super::JobView).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShortView<'a> {
    /// Its id.
    pub id: Cow<'a, JobId>,
    /// Its type.
    pub r#type: Cow<'a, TypeName>,
    /// Its queue.
    pub queue: Cow<'a, QueueName>,
    /// The name of its state.
    pub state: Cow<'static, str>,
    /// The name of its phase.
    pub phase: Cow<'static, str>,
    /// Attempts started so far.
    pub attempt: u16,
    /// The earliest start: of the next attempt while it is scheduled, and of the latest one later.
    pub run_at: Timestamp,
    /// When it was first due.
    pub due_at: Timestamp,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// What the request changed in the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged: Option<Merged>,
}

impl<'a> ShortView<'a> {
    /// The short form of `job` at `now`.
    pub fn new(job: &'a Job, now: Timestamp) -> Self {
        Self {
            id: Cow::Borrowed(&job.id),
            r#type: Cow::Borrowed(&job.spec.job_type),
            queue: Cow::Borrowed(&job.spec.queue),
            state: word(&job.life.state).into(),
            phase: Phase::of(&job.life, now).as_str().into(),
            attempt: job.life.attempt,
            run_at: job.run_at(),
            due_at: job.due_at(),
            created_at: job.spec.created_at,
            merged: None,
        }
    }
}
