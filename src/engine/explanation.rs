//! Why jobs wait: the answers of `explain` for a job and for a queue.
//!
//! A job meets what may hold it in this order: its due time and windows, the pause of its queue,
//! the limits, the throttler, the jobs before it, and last a worker. `explain` names the first.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use crate::request::ConstraintUse;
use tidegate_core::{
    job::{JobId, TypeName},
    queue::{Rule, Startable, admission::Hold},
    time::Timestamp,
};

/// Why a job waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The name of its state.
    pub state: &'static str,
    /// The name of its phase; see [`Phase`](tidegate_core::job::Phase).
    pub phase: &'static str,
    /// What holds it; absent if nothing does.
    pub held_by: Option<HeldBy>,
    /// Since when.
    pub since: Option<Timestamp>,
    /// An explanation for people.
    pub reason: String,
    /// When it can run at the earliest, if that is known.
    pub earliest_at: Option<Timestamp>,
    /// The workers that take jobs of its type; absent if it does not wait.
    pub workers: Option<WorkerStatus>,
}

impl Explanation {
    /// The job of the same partition that goes first, in a queue with strict order.
    pub fn job_ahead(&self) -> Option<JobId> {
        let by = self.held_by.as_ref().filter(|by| by.kind == "order")?;
        by.name.as_ref()?.parse().ok()
    }

    /// Leaves out which job goes first, for a caller that may not see that job.
    pub fn hide_job_ahead(&mut self) {
        if self.job_ahead().is_some() {
            self.held_by = Some(HeldBy::unnamed("order"));
            self.reason = goes_first("another job");
        }
    }
}

/// Why a job waits, for people, if `job` of its partition goes first.
pub(crate) fn goes_first(job: &str) -> String {
    format!("{job} of the same partition goes first, until it has ended")
}

/// What holds a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeldBy {
    /// `due_time`, `snoozed`, `window`, `paused`, `ledger`, `concurrency`, `type_concurrency`,
    /// `constraint`, `throttler`, `order`, `worker` or `retry`.
    pub kind: &'static str,
    /// The name of the type, constraint or plugin; of `order`, the job of the same partition that
    /// goes first, in a queue with strict order.
    pub name: Option<String>,
    /// The value of the attribute, for a constraint with a limit per value.
    pub value: Option<String>,
}

impl HeldBy {
    /// What holds it, without a name.
    pub(crate) fn unnamed(kind: &'static str) -> Self {
        Self { kind, name: None, value: None }
    }

    fn named(kind: &'static str, name: &impl ToString) -> Self {
        Self { name: Some(name.to_string()), ..Self::unnamed(kind) }
    }
}

impl From<&Hold> for HeldBy {
    fn from(hold: &Hold) -> Self {
        match &hold.rule {
            _ if hold.reserved => Self::unnamed("order"),
            Rule::Paused => Self::unnamed("paused"),
            Rule::Concurrency => Self::unnamed("concurrency"),
            Rule::TypeConcurrency(name) => Self::named("type_concurrency", name),
            Rule::Constraint(name, value) => {
                Self { value: value.clone(), ..Self::named("constraint", name) }
            }
            Rule::Throttler(name) => Self::named("throttler", name),
        }
    }
}

/// The workers that take the jobs of a type, as the answering process knows them: pull
/// workers, or its own slots for pushes and handlers. What it does not know is absent; a serverless
/// process knows only what runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Pull workers that called within the last ten minutes, wait for jobs, or run some.
    pub known: Option<u64>,
    /// Those of them that wait for jobs in a lease request.
    pub polling: Option<u64>,
    /// Those that run as many jobs as they can, or run some and do not wait for more.
    pub busy: Option<u64>,
    /// Those that are drained, and get no jobs.
    pub draining: Option<u64>,
    /// How many jobs run: at these workers, or in the slots.
    pub in_use: u64,
    /// How many jobs these workers or slots can run at once; absent unless each said so.
    pub capacity: Option<u64>,
    /// When the latest request of one of them arrived.
    pub last_seen_at: Option<Timestamp>,
}

impl WorkerStatus {
    /// Whether any worker takes such jobs, now or later. True if unknown.
    pub fn exist(&self) -> bool {
        self.known.is_none_or(|known| known > self.draining.unwrap_or(0))
    }

    /// Whether a worker takes a job at this moment. True if unknown.
    pub fn has_room(&self) -> bool {
        let is_full = self.capacity.is_some_and(|capacity| self.in_use >= capacity);
        self.polling.map_or(!is_full, |polling| polling > 0)
    }

    /// Whether nothing is known of the workers.
    pub(crate) fn is_unknown(&self) -> bool {
        self.known.is_none() && self.capacity.is_none()
    }

    /// Why no worker takes a job at `now`, for people.
    pub(crate) fn reason(&self, now: Timestamp) -> String {
        let Self { known, busy, draining, in_use, capacity, last_seen_at, .. } = self;
        let draining = draining.unwrap_or(0);
        let mut text = match (known, busy) {
            (Some(0), _) => {
                return "no worker is known that takes jobs of its type: none has called within \
                        ten minutes"
                    .into();
            }
            (Some(known), _) if *known == draining => {
                format!("all {known} workers of its type are drained")
            }
            (Some(known), Some(busy)) if known - draining == *busy => {
                format!("all {busy} workers of its type are busy")
            }
            (Some(known), _) => {
                format!("none of the {known} workers of its type requests jobs at this moment")
            }
            (None, _) => "every delivery slot of its queue is in use".into(),
        };
        if let Some(capacity) = capacity {
            let _ = write!(text, "; {in_use} of {capacity} in use");
        }
        if let Some(at) = last_seen_at {
            let _ = write!(text, "; last heard {:.1} s ago", now.since(*at).as_secs_f64());
        }
        text
    }
}

/// Why a queue is idle or slow: what holds its first due jobs, and what runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueExplanation {
    /// An explanation for people.
    pub reason: String,
    /// How many due jobs were examined: the first ones in the order of the queue.
    pub examined: u64,
    /// Whether there are more due jobs.
    pub more: bool,
    /// What holds them, in the order of the first job of each.
    pub held: Vec<HeldJobs>,
    /// When the next job is due, if no job is due now.
    pub next_due_at: Option<Timestamp>,
    /// What runs under the grants of the queue, the heaviest type first. Empty without limits.
    pub running: Vec<TypeUse>,
    /// The use of each constraint's concurrency, as in the status of the queue.
    pub constraints: Vec<ConstraintUse>,
    /// The workers of each type of the queue.
    pub workers: BTreeMap<TypeName, WorkerStatus>,
    /// How many of the examined jobs of each type the limits let start within [`DRAIN_TARGET`] and
    /// run at once.
    pub startable: BTreeMap<TypeName, Startable>,
}

/// The time in which [`desired_workers`](crate::request::QueueStatus::desired_workers) would drain
/// the due jobs.
pub const DRAIN_TARGET: Duration = Duration::from_mins(1);

/// The examined due jobs that one thing holds.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldJobs {
    /// What holds them.
    pub by: HeldBy,
    /// How many.
    pub jobs: u64,
    /// How many of each type.
    pub types: BTreeMap<TypeName, u64>,
    /// Since when: at least since the first of them was due.
    pub since: Option<Timestamp>,
    /// Why the first of them waits, for people.
    pub reason: String,
    /// When the first of them can run at the earliest, if that is known.
    pub earliest_at: Option<Timestamp>,
}

/// What a type's jobs take of a queue's limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeUse {
    /// The type.
    pub job_type: TypeName,
    /// How many of its jobs run.
    pub jobs: u64,
    /// Their weight.
    pub weight: u64,
    /// The limit of the type, if it has one.
    pub limit: Option<u32>,
}
