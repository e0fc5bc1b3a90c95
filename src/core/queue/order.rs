//! The order of a queue's candidates.
//!
//! Both orders are merges of *streams*: the due jobs of one partition, type and priority, by due
//! time. Within a stream every order agrees, so one index serves them all, and changing a queue's
//! order, step or ageing moves nothing: see [`Order::key`].

use serde::{Deserialize, Serialize};

use super::config::{OrderKind, QueueConfig};
use crate::{
    job::{Job, JobId},
    time::Timestamp,
};

/// How candidates are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Due time in steps of this many milliseconds (0: exact), then priority, then exact time, then
    /// id.
    Time {
        /// The step.
        step_millis: u64,
    },
    /// Priority, then due time, then id. With ageing, this many milliseconds of waiting count as
    /// one step of priority.
    Priority {
        /// The wait that is worth a step.
        ageing_millis: Option<u64>,
    },
}

/// A sort key of a queue's order. Smaller goes first.
pub type OrderKey = (i128, i64, i64, JobId);

/// An [`OrderKey`] without the id.
pub type Rank = (i128, i64, i64);

/// Where a scan of a queue stopped: the last job that it read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Its partition.
    pub partition: String,
    /// Its priority.
    pub priority: i32,
    /// Its due time.
    pub run_at: Timestamp,
    /// Its id.
    pub id: JobId,
}

impl Position {
    /// The position of a scheduled job.
    pub fn of(job: &Job) -> Self {
        Self {
            partition: job.spec.partition.clone(),
            priority: job.spec.priority,
            run_at: job.life.run_at().unwrap_or_default(),
            id: job.id.clone(),
        }
    }

    /// The position after every job that is due at `until` or before, in an order by exact time.
    pub fn after_all_due_by(until: Timestamp) -> Self {
        Self {
            partition: String::new(),
            priority: i32::MAX,
            run_at: until,
            id: MAX_ID.parse().expect("it is a valid id"),
        }
    }
}

/// An id that sorts after every other one.
const MAX_ID: &str = "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz";

impl Order {
    /// The order of a queue with this configuration.
    pub fn of(config: &QueueConfig) -> Self {
        if config.strict_order {
            return Self::Time { step_millis: 0 };
        }
        match config.order {
            OrderKind::Time => Self::Time { step_millis: config.order_step_seconds.millis() },
            OrderKind::Priority => Self::Priority {
                ageing_millis: config.ageing_seconds.map(crate::time::Seconds::millis),
            },
        }
    }

    /// The sort key of a job. Among jobs of one priority the key grows with (due time, id) in every
    /// order.
    pub fn key(self, priority: i32, run_at: Timestamp, id: &JobId) -> OrderKey {
        let (first, second, third) = self.rank(priority, run_at);
        (first, second, third, id.clone())
    }

    /// The sort key without the id, which decides between jobs of the same rank.
    pub fn rank(self, priority: i32, run_at: Timestamp) -> Rank {
        let (priority, at) = (i64::from(priority), run_at.millis());
        match self {
            Self::Time { step_millis: 0 } => (at.into(), priority, 0),
            Self::Time { step_millis } => {
                (i128::from(at.div_euclid(step_millis as i64)), priority, at)
            }
            Self::Priority { ageing_millis: None | Some(0) } => (priority.into(), at, 0),
            Self::Priority { ageing_millis: Some(step) } => {
                (i128::from(priority) * i128::from(step) + i128::from(at), priority, at)
            }
        }
    }

    /// The least rank that a job of any priority has if it is due at `from` or later.
    pub fn least_rank(self, from: Timestamp) -> Rank {
        match self {
            Self::Time { .. } => self.rank(i32::MIN, from),
            Self::Priority { .. } => (i128::MIN, i64::MIN, i64::MIN),
        }
    }

    /// Where a stream of this priority continues behind `after`: the earliest due time of a job
    /// that may follow, and the id behind which it follows at that instant; none if no job does.
    pub fn stream_start(
        self,
        priority: i32,
        after: &Position,
    ) -> Option<(Timestamp, Option<JobId>)> {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let at = i128::from(after.run_at.millis());
        // The earliest due time that may follow, for a stream with a higher and a lower priority
        // number.
        let (higher, lower) = match self {
            Self::Time { step_millis: 0 } => (at, at + 1),
            Self::Time { step_millis } => {
                let step = i128::from(step_millis);
                let begin = at.div_euclid(step) * step;
                (begin, begin + step)
            }
            Self::Priority { ageing_millis: None | Some(0) } => (i128::from(i64::MIN), i128::MAX),
            Self::Priority { ageing_millis: Some(step) } => {
                let same_rank =
                    at + (i128::from(after.priority) - i128::from(priority)) * i128::from(step);
                (same_rank, same_rank + 1)
            }
        };
        let from = match priority.cmp(&after.priority) {
            Equal => return Some((after.run_at, Some(after.id.clone()))),
            Greater => higher,
            Less => lower,
        };
        let is_reached = from <= i128::from(i64::MAX);
        is_reached.then(|| (Timestamp::from_millis(from.max(i64::MIN.into()) as i64), None))
    }
}
