//! A simulation of a queue: its last hour again, as it is configured and with a change.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_core::{
    job::type_config::TypeConfig,
    queue::QueueConfig,
    strict::or_default,
    time::{Seconds, Timestamp},
};

use crate::Quantiles;

/// What to simulate. Every field is optional.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Simulation)]
pub struct SimulationBody {
    /// How far back the recorded jobs go, 60 to 86400 seconds (default 3600).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, minimum = 60, maximum = 86_400)]
    pub over_seconds: Option<Seconds>,
    /// A change of the queue, as for `PATCH /v1/queues/{queue}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueConfig>,
    /// Changes of types of the queue by name, as for `PATCH /v1/job-types/{type}`.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, TypeConfig>)]
    pub types: BTreeMap<String, TypeConfig>,
    /// The version of the throttler's plugin with the change (default: the live one).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttler_version: Option<u32>,
    /// How the jobs are grouped: by `type`, or by `attribute.NAME` (default `type`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// How many jobs the workers run at the same time, 1 to 100000. Default: as many as they ran at
    /// most in the recorded time, or more if the limit of the queue held them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100_000)]
    pub workers: Option<u32>,
}

/// A queue as it was recorded, and as it would have been.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Simulated)]
pub struct SimulatedQueue {
    /// How many recorded jobs were simulated.
    pub jobs: u64,
    /// When the first of them was enqueued: the start of all runs.
    pub from: Timestamp,
    /// How many jobs workers ran at the same time, at most, in the simulations.
    pub workers: u32,
    /// What the simulation leaves out.
    pub left_out: Vec<LeftOut>,
    /// What was recorded. Null if no attempt was.
    pub recorded: Option<SimulatedRun>,
    /// A simulation with the current configuration. It shows how far to trust the other one.
    pub current: SimulatedRun,
    /// A simulation with the change.
    pub changed: SimulatedRun,
    /// The first jobs about which the plugins decided differently, at most 20.
    pub differences: Vec<SimulatedDifference>,
    /// How many jobs there are about which the plugins decided differently.
    pub different_jobs: u64,
    /// Whether a simulation was stopped after its time, so that its numbers end early.
    pub stopped_early: bool,
}

/// Jobs that a simulation leaves out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LeftOut {
    /// Why, for people.
    pub reason: String,
    /// How many; null: not known.
    pub jobs: Option<u64>,
}

/// A run of the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SimulatedRun {
    /// Jobs that ended, in whatever way.
    pub finished: u64,
    /// Jobs that ended `failed`.
    pub failed: u64,
    /// Jobs that ended `expired`.
    pub expired: u64,
    /// From the due time to the first attempt. For jobs that still wait, the wait so far.
    pub start_delay_seconds: Quantiles,
    /// How long the attempts took.
    pub run_seconds: Quantiles,
    /// Jobs that ended, per second of the run.
    pub throughput_per_second: f64,
    /// The mean weight that ran, as a fraction of the limit; null without a limit.
    pub utilization: Option<f64>,
    /// When the last job ended, in seconds from the start; null if some had not.
    pub drained_after_seconds: Option<f64>,
    /// The run over time.
    pub series: SimulatedSeries,
    /// The jobs by value, the most frequent values first, at most 101.
    pub groups: Vec<SimulatedGroup>,
}

/// A run over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SimulatedSeries {
    /// How long a step is.
    pub step_seconds: f64,
    /// The steps, 120.
    pub points: Vec<SimulatedPoint>,
}

/// A step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SimulatedPoint {
    /// When the step began, in seconds from the start.
    pub at: f64,
    /// The most jobs in it that were due and had not started yet.
    pub waiting: u64,
    /// The most weight that ran in it.
    pub running: u64,
    /// The limit of the queue.
    pub limit: Option<u32>,
}

/// The jobs with a value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SimulatedGroup {
    /// The value.
    pub value: String,
    /// How many jobs.
    pub jobs: u64,
    /// As for the whole run.
    pub start_delay_seconds: Quantiles,
    /// Their part of the weight that ran over time, 0 to 1.
    pub share: f64,
}

/// A job about which the plugins decided differently.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SimulatedDifference {
    /// The job.
    pub job: String,
    /// The value by which it is grouped.
    pub value: String,
    /// When, in seconds from the start.
    pub at_seconds: f64,
    /// The decision with the current configuration.
    pub current: String,
    /// The decision with the change.
    pub changed: String,
}
