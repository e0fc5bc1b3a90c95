//! The recent history of a queue, of a type in its queue, or of a worker.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tidegate_core::time::Timestamp;

/// How far back a history goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum HistoryRange {
    /// The last hour.
    #[default]
    Hour,
    /// The last 24 hours.
    Day,
}

impl HistoryRange {
    /// The range as it is serialised.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }
}

impl FromStr for HistoryRange {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Hour, Self::Day]
            .into_iter()
            .find(|range| range.as_str() == text)
            .ok_or("must be hour or day")
    }
}

/// The last hour or the last day of a queue or a type, in steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct History {
    /// How long a step is: of the hour 10, or 60 on AWS; of the day 300.
    pub step_seconds: u32,
    /// When the oldest recorded step of any queue began. The history is shorter than its range
    /// after the first start, and while very many queues and types are active.
    pub from: Option<Timestamp>,
    /// The steps, oldest first. One in which nothing happened, and that ended with the jobs of the
    /// step before it, is left out.
    pub points: Vec<HistoryPoint>,
    /// The rates of the last five minutes, or since the first start.
    pub throughput: Throughput,
    /// In how many seconds no job is due or runs any more, if their number goes on to fall as over the
    /// time of `throughput`. Absent if it does not fall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_to_empty_seconds: Option<f64>,
}

/// One step of a history.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HistoryPoint {
    /// When the step began.
    pub at: Timestamp,
    /// Jobs that were accepted. Absent on AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enqueued: Option<u64>,
    /// Attempts that were claimed. Absent on AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// Jobs that ended, in whatever way.
    pub finished: u64,
    /// Jobs that ended `failed`.
    pub failed: u64,
    /// From the due time to the start of the attempts that were claimed. Absent without any, and on
    /// AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_delay_seconds: Option<Quantiles>,
    /// From the start to the end of the attempts that ended. Absent without any, and on AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_seconds: Option<Quantiles>,
    /// Jobs in phase `scheduled` at the end of the step.
    pub scheduled: u64,
    /// Jobs in phase `ready` at the end of the step.
    pub ready: u64,
    /// Jobs in phase `retrying` at the end of the step.
    pub retrying: u64,
    /// Jobs in phase `running` at the end of the step.
    pub running: u64,
    /// The weight of the running jobs of the queue at the end of the step, if it had jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// The `concurrency` of the queue, or of the type, at the end of the step, if it had jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// The last hour or the last day of a worker, in steps. It counts attempts: a job that fails at one
/// worker and succeeds at another counts at both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WorkerHistory {
    /// How long a step is: of the hour 10, of the day 300.
    pub step_seconds: u32,
    /// When the oldest recorded step of any worker began. The history is shorter than its range
    /// after the first start, and while very many workers are active.
    pub from: Option<Timestamp>,
    /// The steps, oldest first. One in which nothing ended, and after which as many jobs ran as
    /// before it, is left out.
    pub points: Vec<WorkerHistoryPoint>,
}

/// One step of a worker's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WorkerHistoryPoint {
    /// When the step began.
    pub at: Timestamp,
    /// Attempts that ended, in whatever way.
    pub finished: u64,
    /// Attempts that failed, also by a timeout or by the end of their lease.
    pub failed: u64,
    /// Jobs that ran there at the end of the step.
    pub running: u64,
}

/// Quantiles, within 5 %. Those of a day are estimates from the quantiles of shorter steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Quantiles {
    /// Half of the values are at most this.
    pub p50: f64,
    /// 95 % of the values are at most this.
    pub p95: f64,
    /// 99 % of the values are at most this.
    pub p99: f64,
}

/// Rates of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Throughput {
    /// Over how many seconds.
    pub over_seconds: f64,
    /// Jobs that were accepted. Absent on AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enqueued_per_second: Option<f64>,
    /// Jobs that ended.
    pub finished_per_second: f64,
    /// Jobs that ended `failed`.
    pub failed_per_second: f64,
}
