//! The overview: the state and the last hour of many queues at once.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};
use tidegate_core::{job::QueueName, time::Timestamp};

use crate::{HeldJobs, Quantiles, Throughput};

/// A page of queues with their state and their last hour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct OverviewPage {
    /// When the page was made.
    pub at: Timestamp,
    /// The queues, by name.
    pub queues: Vec<QueueOverview>,
    /// Where the next page starts; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// The state of a queue and its last hour, from what the server counts regularly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct QueueOverview {
    /// Its name.
    #[schema(value_type = String)]
    pub name: QueueName,
    /// Whether it holds every job.
    pub paused: bool,
    /// The most weight that may run at once; null: no limit.
    pub concurrency: Option<u32>,
    /// How many jobs are in each phase, by the name of the phase, as in the status of a queue.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub phases: BTreeMap<Cow<'static, str>, u64>,
    /// When the jobs were counted: about two seconds ago at most, on AWS about a minute. Null if
    /// the queue has no live job on AWS.
    pub counted_at: Option<Timestamp>,
    /// Whether there may have been more jobs, on AWS.
    pub depth_at_least: bool,
    /// The weight of the running jobs, without critical ones.
    pub running_weight: u64,
    /// The due time of the job that has been due longest. Null without any, and on AWS.
    pub oldest_due_at: Option<Timestamp>,
    /// What holds the first due jobs, as in the status of a queue, and as it was some seconds ago:
    /// an answer explains at most 16 queues again. Empty if nothing does.
    pub held: Vec<HeldJobs>,
    /// How many workers would drain the due jobs in a minute, as in the status of a queue.
    pub desired_workers: u64,
    /// When `held` and `desired_workers` were determined. Absent without due jobs, and while they
    /// are not known: then they are empty and 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explained_at: Option<Timestamp>,
    /// Pull workers that share the queue, as in the status of a queue.
    pub workers: u64,
    /// How long after their due time attempts started in the last five minutes. Null without any,
    /// and on AWS.
    pub start_delay_seconds: Option<Quantiles>,
    /// The rates of the last five minutes, or since the first start.
    pub throughput: Throughput,
    /// In how many seconds no job is due or runs any more, as in the history of a queue. Absent if
    /// their number does not fall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_to_empty_seconds: Option<f64>,
    /// The minutes of the last hour, oldest first, at most 61. Those in which nothing happened are
    /// left out.
    pub minutes: Vec<OverviewMinute>,
}

/// A minute of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct OverviewMinute {
    /// When it began.
    pub at: Timestamp,
    /// Jobs that were accepted. Absent on AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enqueued: Option<u64>,
    /// Jobs that ended, in whatever way.
    pub finished: u64,
    /// Jobs that ended `failed`.
    pub failed: u64,
    /// Jobs in phase `ready` at the end of the last recorded step of the minute.
    pub ready: u64,
    /// Jobs in phase `running` at that time.
    pub running: u64,
}
