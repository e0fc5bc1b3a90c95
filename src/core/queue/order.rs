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
        let (priority, at) = (i64::from(priority), run_at.millis());
        match self {
            Self::Time { step_millis: 0 } => (at.into(), priority, 0, id.clone()),
            Self::Time { step_millis } => {
                (i128::from(at.div_euclid(step_millis as i64)), priority, at, id.clone())
            }
            Self::Priority { ageing_millis: None | Some(0) } => {
                (priority.into(), at, 0, id.clone())
            }
            Self::Priority { ageing_millis: Some(step) } => {
                (i128::from(priority) * i128::from(step) + i128::from(at), priority, at, id.clone())
            }
        }
    }
}
