//! What all stores share about lists: which jobs a query selects, and where a page ended.

use std::{fmt, str::FromStr};

use super::job_store::{ListQuery, StateFilter};
use crate::{
    job::{Job, Phase, QueueName, State, TypeName},
    time::Timestamp,
};

/// Where a page of a list ended. In a list by creation it is the position of its last job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// When that job was accepted. In another list it is later than any job.
    pub created_at: Timestamp,
    /// What distinguishes it from others of that instant, or the position in a list that is not by
    /// creation, in a form of the store.
    pub tie: String,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.created_at.millis(), self.tie)
    }
}

/// The text is not the cursor of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be the cursor of a page of this list")]
pub struct BadCursor;

impl FromStr for Cursor {
    type Err = BadCursor;
    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let (millis, tie) = text.split_once('_').ok_or(BadCursor)?;
        Ok(Self {
            created_at: Timestamp::from_millis(millis.parse().map_err(|_| BadCursor)?),
            tie: tie.to_owned(),
        })
    }
}

impl From<&State> for StateFilter {
    fn from(state: &State) -> Self {
        match state {
            State::Scheduled { .. } => Self::Scheduled,
            State::Running(_) => Self::Running,
            State::Ended { outcome, .. } => Self::Ended(*outcome),
        }
    }
}

impl From<Phase> for StateFilter {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Scheduled | Phase::Ready | Phase::Retrying => Self::Scheduled,
            Phase::Running => Self::Running,
            Phase::Ended(outcome) => Self::Ended(outcome),
        }
    }
}

impl ListQuery {
    /// Whether it may select jobs of `job_type`.
    pub fn asks_for_type(&self, job_type: &TypeName) -> bool {
        self.job_type.as_ref().is_none_or(|name| name == job_type)
            && self.within_types.as_ref().is_none_or(|names| names.contains(job_type))
    }

    /// Whether it may select jobs in `queue`.
    pub fn asks_for_queue(&self, queue: &QueueName) -> bool {
        self.queue.as_ref().is_none_or(|name| name == queue)
            && self.within_queues.as_ref().is_none_or(|names| names.contains(queue))
    }

    /// Whether it selects `job`, regardless of its cursor. Attributes are compared by their texts,
    /// so that `attribute.size=5` finds the number 5. The server's own jobs are selected only by
    /// their type or queue.
    pub fn asks_for(&self, job: &Job) -> bool {
        let names_internal = self.job_type.as_ref().is_some_and(TypeName::is_internal)
            || self.queue.as_ref().is_some_and(QueueName::is_internal);
        (names_internal || !job.spec.job_type.is_internal())
            && self.asks_for_type(&job.spec.job_type)
            && self.asks_for_queue(&job.spec.queue)
            && (self.states.is_empty() || self.states.contains(&StateFilter::from(&job.life.state)))
            && self
                .phases
                .as_ref()
                .is_none_or(|filter| filter.any_of.contains(&Phase::of(&job.life, filter.at)))
            && self.from.is_none_or(|from| from <= job.spec.created_at)
            && self.to.is_none_or(|to| job.spec.created_at < to)
            && self.attributes.iter().all(|(name, value)| {
                job.spec.attributes.get(name).is_some_and(|has| has.is_found_by(value))
            })
    }
}
