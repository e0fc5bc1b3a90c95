//! Reads of jobs: due jobs, lists and counts.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::UnreadableJob;
use crate::{
    job::{Job, JobId, QueueName, TypeName},
    port::job_filter::{JobFilter, StateFilter},
    queue::{
        order::{Order, Position},
        waiting::WaitingCount,
    },
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

/// How many jobs wait in some partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingPage {
    /// The partitions with due jobs, in order.
    pub counts: Vec<(String, WaitingCount)>,
    /// The last partition that was looked at, if there may be more behind it.
    pub next: Option<String>,
    /// How many index entries or jobs were read. A store whose reads cost money converts the cost:
    /// it returns how many jobs it can usually read for that.
    pub read: u64,
}

/// Overdue jobs, earliest first.
#[derive(Clone, Debug, Default)]
pub struct OverduePage {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Set if the page ended before it was full, because of many jobs that cannot be read or are not
    /// overdue yet: where to read on.
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
    /// Which jobs.
    pub filter: JobFilter,
    /// The instant at which their phases are derived.
    pub now: Timestamp,
    /// Only of these types; none for all. They bound the filter.
    pub within_types: Option<BTreeSet<TypeName>>,
    /// Only in these queues; none for all. They bound the filter.
    pub within_queues: Option<BTreeSet<QueueName>>,
    /// Where the page starts: the `next_cursor` of the page before.
    pub cursor: Option<String>,
    /// At most this many (1 to 1000).
    pub limit: u32,
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
