//! What stores share about lists: which jobs a query asks for, and where a page ended.

use std::{fmt, str::FromStr};

use crate::{
    job::{Job, JobId, State},
    port::job_store::{ListQuery, StateFilter},
    time::Timestamp,
};

/// Where a page of a list ended: its last job. Lists go from the newest to the oldest, equally old ones by id, downwards.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// When that job was accepted.
    pub created_at: Timestamp,
    /// Its id.
    pub id: JobId,
}

impl Cursor {
    /// The place of `job` in a list.
    pub(crate) fn of(job: &Job) -> Self {
        Self { created_at: job.spec.created_at, id: job.id.clone() }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.created_at.millis(), self.id)
    }
}

/// The text is no cursor that a page gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor that a page of this list gave")]
pub struct BadCursor;

impl FromStr for Cursor {
    type Err = BadCursor;
    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let (millis, id) = text.split_once('_').ok_or(BadCursor)?;
        Ok(Self { created_at: Timestamp::from_millis(millis.parse().map_err(|_| BadCursor)?), id: id.parse().map_err(|_| BadCursor)? })
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

/// Whether `query` asks for `job`, wherever its page starts. An attribute is compared by its text, so
/// that `attribute.size=5` finds the number 5.
pub(crate) fn asks_for(query: &ListQuery, job: &Job) -> bool {
    query.job_type.as_ref().is_none_or(|name| *name == job.spec.job_type)
        && query.queue.as_ref().is_none_or(|name| *name == job.spec.queue)
        && (query.states.is_empty() || query.states.contains(&StateFilter::from(&job.life.state)))
        && query.from.is_none_or(|from| from <= job.spec.created_at)
        && query.to.is_none_or(|to| job.spec.created_at < to)
        && query.attributes.iter().all(|(name, value)| job.spec.attributes.get(name).is_some_and(|has| has.text() == value.text()))
}
