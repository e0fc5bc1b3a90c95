//! Reads of jobs: due jobs, lists and counts.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    str::FromStr,
    sync::Arc,
};

use super::UnreadableJob;
use crate::{
    job::{Job, JobId, Outcome, Phase, QueueName, TypeName, Value},
    queue::order::{Order, Position},
    time::Timestamp,
};

/// A query for due jobs of one queue.
#[derive(Clone, Debug)]
pub struct DueQuery {
    /// The queue.
    pub queue: QueueName,
    /// True for critical jobs only, false for the others only.
    pub critical: bool,
    /// Only jobs of these types.
    pub types: Vec<TypeName>,
    /// Only this partition; none for all, merged in order.
    pub partition: Option<String>,
    /// The order of the jobs.
    pub order: Order,
    /// Only jobs due at this instant or before.
    pub until: Timestamp,
    /// Only jobs after this position in the order.
    pub after: Option<Position>,
    /// At most this many (1 to 1000).
    pub limit: u32,
    /// The granted jobs, each with the instant of its grant. A store may leave out those that are
    /// due at that instant or before, because they are no candidates.
    pub granted: Option<Arc<HashMap<JobId, Timestamp>>>,
}

/// Due jobs, in order.
#[derive(Clone, Debug, Default)]
pub struct DuePage {
    /// The jobs. A body over 1 KiB is [`Body::Separate`](crate::job::Body::Separate).
    pub jobs: Vec<Job>,
    /// Where the next page starts; none on the last one. A page with jobs that cannot be read may
    /// be short or empty and still have a next one.
    pub next: Option<Position>,
    /// The earliest `run_at` after `until` of the requested types, if there is one. It may be missing
    /// unless this is the last page. It may be earlier if a job was moved to a later time, or if the
    /// store knows no more than the hour; then it is the start of a later hour.
    pub next_due: Option<Timestamp>,
}

/// Most partitions that one call of [`JobStore::partitions`](super::JobStore::partitions) looks at,
/// for each that it may return.
pub const MAX_LOOKED_AT: usize = 4;

/// Partitions with due jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionPage {
    /// Their names, in order.
    pub names: Vec<String>,
    /// The last partition that was looked at, if there may be more behind it.
    pub next: Option<String>,
    /// No job of the other partitions up to there is due before this instant; none if they have no
    /// scheduled jobs.
    pub next_due: Option<Timestamp>,
}

impl PartitionPage {
    /// The page of `partitions`, which come in order, each with the earliest due time of its jobs.
    pub fn of<'a>(
        partitions: impl IntoIterator<Item = (&'a str, Timestamp)>,
        until: Timestamp,
        limit: usize,
    ) -> Self {
        let mut partitions = partitions.into_iter().peekable();
        let (mut page, mut last) = (Self::default(), None);
        for _ in 0..limit * MAX_LOOKED_AT {
            if page.names.len() == limit {
                break;
            }
            let Some((name, at)) = partitions.next() else { break };
            if at <= until {
                page.names.push(name.to_owned());
            } else {
                page.next_due = page.next_due.into_iter().chain([at]).min();
            }
            last = Some(name);
        }
        page.next = last.filter(|_| partitions.peek().is_some()).map(str::to_owned);
        page
    }
}

/// Overdue jobs, earliest first.
#[derive(Clone, Debug, Default)]
pub struct OverduePage {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Set if jobs that cannot be read ended the page before it was full: where to read on.
    pub next: Option<WakePosition>,
    /// The earliest `wake_at` after `until`. It may be missing if the page is full. A store that
    /// expires records itself may give an earlier instant after `until`.
    pub next_at: Option<Timestamp>,
}

/// A place among the jobs with a `wake_at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WakePosition {
    /// The `wake_at`.
    pub at: Timestamp,
    /// The store's own order of jobs with the same `wake_at`.
    pub tie: i64,
}

/// A query for a list of jobs.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Only this type.
    pub job_type: Option<TypeName>,
    /// Only this queue.
    pub queue: Option<QueueName>,
    /// Only of these types; none for all. Together with `job_type`, both hold.
    pub within_types: Option<BTreeSet<TypeName>>,
    /// Only in these queues; none for all. Together with `queue`, both hold.
    pub within_queues: Option<BTreeSet<QueueName>>,
    /// Only these states; empty for all.
    pub states: Vec<StateFilter>,
    /// Only these phases; none for all.
    pub phases: Option<PhaseFilter>,
    /// Only with these attribute values.
    pub attributes: BTreeMap<String, Value>,
    /// Only created at this instant or later.
    pub from: Option<Timestamp>,
    /// Only created before this instant.
    pub to: Option<Timestamp>,
    /// Where the page starts: the `next_cursor` of the page before.
    pub cursor: Option<String>,
    /// At most this many (1 to 1000).
    pub limit: u32,
}

/// A state to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateFilter {
    /// Scheduled jobs.
    Scheduled,
    /// Running jobs.
    Running,
    /// Jobs that ended with this outcome.
    Ended(Outcome),
}

impl StateFilter {
    /// The state as the API shows it, in lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => Phase::Scheduled.as_str(),
            Self::Running => Phase::Running.as_str(),
            Self::Ended(outcome) => outcome.as_str(),
        }
    }
}

/// A text that names no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no state of a job has this name")]
pub struct NotAState;

impl FromStr for StateFilter {
    type Err = NotAState;

    fn from_str(text: &str) -> Result<Self, NotAState> {
        [Self::Scheduled, Self::Running]
            .into_iter()
            .chain(Outcome::ALL.map(Self::Ended))
            .find(|state| state.as_str() == text)
            .ok_or(NotAState)
    }
}

/// Phases to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseFilter {
    /// A job matches if it is in one of these phases.
    pub any_of: Vec<Phase>,
    /// The instant at which the phase is derived.
    pub at: Timestamp,
}

/// Most unreadable jobs that a page of a list names. The store logs all of them.
pub const MAX_UNREADABLE: usize = 100;

/// A page of a list. It may be short or even empty and still have a cursor, so that a search for
/// rare jobs takes several calls.
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// The jobs that may belong to the list and cannot be read, in no particular order. They do not
    /// count towards the limit; a page has at most [`MAX_UNREADABLE`] of them.
    pub unreadable: Vec<UnreadableJob>,
    /// Where the next page starts; none on the last.
    pub next_cursor: Option<String>,
}

/// The numbers of jobs by queue, type and state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    /// The numbers. Zeros may be missing.
    pub counts: Vec<Depth>,
    /// How far to trust those of each queue, if the store keeps them instead of counting at once. A
    /// queue that is missing has no live job. None if all are those of the moment.
    pub kept: Option<BTreeMap<QueueName, KeptCounts>>,
}

/// How far to trust the numbers of a queue's jobs that a store has kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptCounts {
    /// When the queue was counted.
    pub at: Timestamp,
    /// Whether there may have been more jobs: counting them all would have taken too many reads.
    pub at_least: bool,
    /// The weight of the running jobs, without critical ones.
    pub running_weight: u64,
}

/// The number of jobs of a queue, a type and a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Depth {
    /// The queue.
    pub queue: QueueName,
    /// The type.
    pub job_type: TypeName,
    /// The state.
    pub state: StateFilter,
    /// The number of jobs.
    pub jobs: u64,
    /// How many scheduled jobs are in other phases, if the store counts by phase: at the time of its
    /// counts. None for other states.
    pub phases: Option<ScheduledPhases>,
}

/// How many of some scheduled jobs are in which phase; the rest is in the phase `scheduled`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScheduledPhases {
    /// Jobs that are due.
    pub ready: u64,
    /// Jobs that wait for their next attempt.
    pub retrying: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_read_as_it_is_written() {
        for phase in Phase::ALL {
            let state = StateFilter::from(phase);
            assert_eq!(state.as_str().parse(), Ok(state));
        }
        for text in ["", "ended", "Failed", "ready"] {
            assert_eq!(text.parse::<StateFilter>(), Err(NotAState), "{text:?}");
        }
    }
}
