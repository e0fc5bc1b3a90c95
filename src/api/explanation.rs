//! Why a job or a queue waits.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};
use tidegate_core::time::Timestamp;

use crate::ConstraintUse;

/// Why a job waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Explanation {
    /// The name of its state.
    #[schema(value_type = String)]
    pub state: Cow<'static, str>,
    /// The name of its phase, as a job shows it.
    #[schema(value_type = String)]
    pub phase: Cow<'static, str>,
    /// What holds it; absent if nothing does. Of several, the one that it meets first.
    pub held_by: Option<HeldBy>,
    /// Since when.
    pub since: Option<Timestamp>,
    /// For people.
    pub reason: String,
    /// The earliest start, where that is known.
    pub earliest_at: Option<Timestamp>,
    /// The workers that take jobs of its type; null if it does not wait.
    #[serde(default)]
    pub workers: Option<WorkerStatus>,
}

/// What holds a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HeldBy {
    /// `due_time`, `snoozed`, `window`, `paused`, `concurrency`, `type_concurrency`, `constraint`,
    /// `throttler`, `order`, `worker` or `retry`.
    #[schema(value_type = String)]
    pub kind: Cow<'static, str>,
    /// Its name, where there are several. Of `order` in a queue with strict order: the job of the
    /// same partition that goes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The value of the attribute, for a constraint with a limit per value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// The workers that take the jobs of a type: pull workers, or the slots of the server for pushes.
///
/// Null is what the server does not know: it does not count slots as workers, and a serverless
/// server knows only what runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WorkerStatus {
    /// Pull workers that called within ten minutes, wait for jobs, or run some.
    pub known: Option<u64>,
    /// Those that wait for jobs in a lease request.
    pub polling: Option<u64>,
    /// Those that run as many jobs as they can, or run some and do not wait for more.
    pub busy: Option<u64>,
    /// Those that are drained.
    pub draining: Option<u64>,
    /// How many jobs run at these workers, or in the slots.
    pub in_use: u64,
    /// How many jobs they can run at once. Null unless each of them has registered its capacity.
    pub capacity: Option<u64>,
    /// When the latest request of one of them arrived.
    pub last_seen_at: Option<Timestamp>,
}

/// Why a queue is idle or slow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct QueueExplanation {
    /// For people: what holds the first due job, or why there is none.
    pub reason: String,
    /// How many due jobs were examined, at most 1000: the first in the order of the queue.
    pub examined: u64,
    /// Whether there are more due jobs.
    pub more: bool,
    /// What holds them, in the order of the first job of each. A job that nothing holds is in none.
    pub held: Vec<HeldJobs>,
    /// When the next job is due, if none is due now.
    pub next_due_at: Option<Timestamp>,
    /// What runs under the limits of the queue, the heaviest first, at most 100 types; empty if it
    /// has no limits.
    pub running: Vec<TypeUse>,
    /// The weight that runs under each constraint's concurrency, the heaviest first, at most 100
    /// values.
    pub constraints: Vec<ConstraintUse>,
    /// The workers of each type of the queue.
    pub workers: Vec<TypeWorkers>,
}

/// The examined due jobs of a queue that one thing holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HeldJobs {
    /// As `kind` of [`HeldBy`].
    #[schema(value_type = String)]
    pub kind: Cow<'static, str>,
    /// Its name, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The value of the attribute, for a constraint with a limit per value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// How many.
    pub jobs: u64,
    /// How many of each type.
    pub types: BTreeMap<String, u64>,
    /// Since when.
    pub since: Option<Timestamp>,
    /// Why the first of them waits, for people.
    pub reason: String,
    /// The earliest start of the first of them, where that is known.
    pub earliest_at: Option<Timestamp>,
}

/// What the jobs of a type take of the limits of their queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TypeUse {
    /// The type.
    pub r#type: String,
    /// How many of its jobs run.
    pub jobs: u64,
    /// Their weight.
    pub weight: u64,
    /// The limit of the type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// The workers that take the jobs of a type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TypeWorkers {
    /// The type.
    pub r#type: String,
    /// Their status.
    pub workers: WorkerStatus,
}
