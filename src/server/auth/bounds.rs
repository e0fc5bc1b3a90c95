//! The bounds of a token: the queues and types whose jobs it concerns.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tidegate_core::job::{Job, QueueName, TypeName};

/// Most queues, and most types, of one token.
pub const MAX_NAMES: usize = 100;

/// The jobs that a caller may see, enqueue, change and work on. Default: all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Only in these queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<BTreeSet<QueueName>>,
    /// Only of these types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<BTreeSet<TypeName>>,
}

impl Bounds {
    /// Whether there are none.
    pub fn is_everything(&self) -> bool {
        self.queues.is_none() && self.types.is_none()
    }

    /// Whether jobs in `queue` may be among those within.
    pub fn allow_queue(&self, queue: &QueueName) -> bool {
        self.queues.as_ref().is_none_or(|queues| queues.contains(queue))
    }

    /// Whether jobs of `job_type` may be among those within.
    pub fn allow_type(&self, job_type: &TypeName) -> bool {
        self.types.as_ref().is_none_or(|types| types.contains(job_type))
    }

    /// Whether all jobs in `queue` are within.
    pub fn allow_whole_queue(&self, queue: &QueueName) -> bool {
        self.types.is_none() && self.allow_queue(queue)
    }

    /// Whether a job is within.
    pub fn allow(&self, job: &Job) -> bool {
        self.allow_queue(&job.spec.queue) && self.allow_type(&job.spec.job_type)
    }
}
