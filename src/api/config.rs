//! Queues, job types, schedules and triggers: a configuration with its name, its version and its
//! state.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::{Map, Value};
use tidegate_core::{
    event::TriggerConfig,
    job::{
        JobId, JobOptions, QueueName, ScheduleName, TriggerName, TypeName, options::Split,
        type_config::TypeConfig,
    },
    queue::QueueConfig,
    schedule::{ScheduleConfig, ScheduleError},
    strict::or_default,
    time::Timestamp,
};

use crate::{AnyValue, HeldJobs, TriggerStatus};

/// A queue.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Queue)]
pub struct QueueView<'a> {
    /// Its name.
    #[schema(value_type = String)]
    pub name: Cow<'a, QueueName>,
    /// Its configuration.
    #[serde(flatten)]
    #[schema(value_type = QueueConfig)]
    pub config: Cow<'a, QueueConfig>,
    /// Whether it holds every job.
    pub paused: bool,
    /// Raised by every change; the `ETag` contains it.
    pub version: u64,
    /// Its current state; answers to reads have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<QueueStatus>,
}

/// The current state of a queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct QueueStatus {
    /// How many jobs are in each state, by the name of the state. Ended jobs count for as long as
    /// they are stored; on AWS until the last of their hour is deleted.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub depth: BTreeMap<Cow<'static, str>, u64>,
    /// How many of them are in each phase, by the name of the phase. Of the jobs that are due
    /// later, the soonest 1000 are looked at, in a list of queues 100; further ones count as
    /// `scheduled`, and so do ready ones beyond 100000 then. On AWS the phases are those of
    /// `counted_at`.
    #[serde(default, deserialize_with = "or_default")]
    #[schema(value_type = BTreeMap<String, u64>)]
    pub phases: BTreeMap<Cow<'static, str>, u64>,
    /// When `depth`, `phases`, and the `running_weight` of a queue without limits, were counted, on
    /// AWS; absent if they are those of the answer. The maintenance sweep counts each minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_at: Option<Timestamp>,
    /// Whether there may have been more jobs than `depth` has: on AWS, at most 2000 that are due,
    /// and 1000 that are due in each later hour, are counted.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "std::ops::Not::not")]
    pub depth_at_least: bool,
    /// How many jobs are due and wait for admission or a worker, counted up to 100000; on AWS up to
    /// 1000.
    pub ready: u64,
    /// The weight of the running jobs, without critical ones. In a queue without limits, at most
    /// 10000 jobs count.
    pub running_weight: u64,
    /// The due time of the job that has been due longest.
    pub oldest_due_at: Option<Timestamp>,
    /// What holds the first 100 due jobs, of a queue with constraints the first 1000, in their
    /// order; empty if nothing does.
    pub held: Vec<HeldJobs>,
    /// How many workers would drain the due jobs, as counted in `ready`, in a minute, within the
    /// limits and rates of the queue; 0 if it is paused. Throttlers are not considered. A type
    /// whose jobs have not run is assumed to take its `lease_seconds`.
    pub desired_workers: u64,
    /// Pull workers that share the queue: those that wait for its jobs, run jobs, or called within
    /// a minute, without drained ones. The serverless deployment mode counts those that registered
    /// for the queue or one of its types within a minute.
    #[serde(default, deserialize_with = "or_default")]
    pub workers: u64,
    /// How long after their due time attempts start, a moving mean since the server started.
    pub lateness_seconds: f64,
    /// The weight that runs under each constraint's concurrency, the heaviest first, at most 100
    /// values.
    pub constraints: Vec<ConstraintUse>,
}

/// The weight that runs under a constraint, or under one value of its attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ConstraintUse {
    /// The constraint's name.
    pub name: String,
    /// The attribute whose values each have a limit of their own, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per: Option<String>,
    /// The value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The weight that runs.
    pub running_weight: u64,
    /// The limit.
    pub limit: u32,
}

/// A page of queues.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = QueuePage)]
pub struct QueuePage<'a> {
    /// The queues, by name.
    #[schema(value_type = Vec<QueueView>)]
    pub queues: Vec<QueueView<'a>>,
    /// Where the next page starts; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A job type.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = JobType)]
pub struct JobTypeView<'a> {
    /// Its name.
    #[schema(value_type = String)]
    pub name: Cow<'a, TypeName>,
    /// Its configuration without secrets, as JSON: a target without them need not be a valid one.
    #[serde(flatten)]
    #[schema(value_type = TypeConfig)]
    pub config: Map<String, Value>,
    /// The secrets that it has, by the paths of their settings: `target.signing_secret`,
    /// `target.basic_auth.password`, `target.headers.NAME`, `callback_signing_secret`. Absent if it
    /// has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<String>>)]
    pub secrets: Vec<String>,
    /// In a dry run, the secrets that the change sets, replaces or removes, by their paths; absent
    /// otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_secrets: Option<Vec<String>>,
    /// Raised by every change; the `ETag` contains it.
    pub version: u64,
}

impl JobTypeView<'_> {
    /// The queue of its jobs.
    pub fn queue(&self) -> &str {
        self.config.get("queue").and_then(Value::as_str).unwrap_or_default()
    }

    /// The URL to which its jobs are pushed, if they are pushed to one.
    pub fn target_url(&self) -> Option<&str> {
        self.config.get("target")?.get("url")?.as_str()
    }
}

/// A page of job types.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = JobTypePage)]
pub struct JobTypePage<'a> {
    /// The types, by name.
    #[schema(value_type = Vec<JobTypeView>)]
    pub job_types: Vec<JobTypeView<'a>>,
    /// Where the next page starts; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A schedule's configuration, and the data of its jobs.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = NewSchedule)]
pub struct ScheduleBody {
    /// The data of its jobs: any value of at most 64 KiB, kept byte for byte (default null).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<AnyValue>,
    /// Its configuration.
    #[serde(flatten, deserialize_with = "schedule_config")]
    pub config: ScheduleConfig,
}

/// A schedule.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Schedule)]
pub struct ScheduleView<'a> {
    /// Its name.
    #[schema(value_type = String)]
    pub name: Cow<'a, ScheduleName>,
    /// Its configuration.
    #[serde(flatten, deserialize_with = "owned_schedule_config")]
    #[schema(value_type = ScheduleConfig)]
    pub config: Cow<'a, ScheduleConfig>,
    /// The data of its jobs.
    pub data: AnyValue,
    /// Raised by every change; the `ETag` contains it.
    pub version: u64,
    /// The next ten occurrences that have not created a job yet; none while it is paused.
    pub next: Vec<Timestamp>,
    /// The latest ten occurrences since the schedule was created, resumed or got another rule, the
    /// newest first. One that was missed may have created no job.
    #[serde(default = "Vec::new")]
    pub previous: Vec<Occurrence<'a>>,
    /// The latest occurrence that created a job.
    pub last_occurrence: Option<Timestamp>,
    /// That job: its id is the schedule's name and the occurrence.
    #[schema(value_type = Option<String>)]
    pub last_job: Option<Cow<'a, JobId>>,
    /// Why the next occurrence has not created its job yet; it is retried.
    #[schema(value_type = Option<ScheduleError>)]
    pub last_error: Option<Cow<'a, ScheduleError>>,
    /// How many occurrences were missed without a job; of one stretch at most 1000 are counted.
    pub missed_count: u64,
}

/// An occurrence of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Occurrence)]
pub struct Occurrence<'a> {
    /// When.
    pub at: Timestamp,
    /// The id of its job.
    #[schema(value_type = String)]
    pub job: Cow<'a, JobId>,
}

/// Reads the configuration of a schedule, which is flattened into an object with further fields.
///
/// A flattened type receives only the fields that it declares itself. The options of the jobs are
/// not among those of a configuration, so they are read apart.
fn schedule_config<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ScheduleConfig, D::Error> {
    #[derive(Deserialize)]
    struct Declared {
        #[serde(flatten)]
        config: ScheduleConfig,
    }
    #[derive(Deserialize)]
    struct Nothing {}
    let mut fields = Map::deserialize(deserializer)?;
    let Declared { config } =
        Declared::deserialize(Value::Object(fields.clone())).map_err(D::Error::custom)?;
    fields.retain(|name, _| JobOptions::NAMES.contains(&name.as_str()));
    let mut options = JobOptions::default();
    let Nothing {} = Nothing::deserialize(Split::new(Value::Object(fields), &mut options))
        .map_err(D::Error::custom)?;
    Ok(ScheduleConfig { options, ..config })
}

fn owned_schedule_config<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Cow<'static, ScheduleConfig>, D::Error> {
    schedule_config(deserializer).map(Cow::Owned)
}

/// A page of schedules.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = SchedulePage)]
pub struct SchedulePage<'a> {
    /// The schedules, by name.
    #[schema(value_type = Vec<ScheduleView>)]
    pub schedules: Vec<ScheduleView<'a>>,
    /// Where the next page starts; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A trigger.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Trigger)]
pub struct TriggerView<'a> {
    /// Its name.
    #[schema(value_type = String)]
    pub name: Cow<'a, TriggerName>,
    /// Its configuration.
    #[serde(flatten)]
    #[schema(value_type = TriggerConfig)]
    pub config: Cow<'a, TriggerConfig>,
    /// Raised by every change; the `ETag` contains it.
    pub version: u64,
    /// What it did, over restarts. Null on AWS, and in answers to changes.
    #[serde(default)]
    pub status: Option<TriggerStatus>,
}

/// A page of triggers.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = TriggerPage)]
pub struct TriggerPage<'a> {
    /// The triggers, by name.
    #[schema(value_type = Vec<TriggerView>)]
    pub triggers: Vec<TriggerView<'a>>,
    /// Where the next page starts; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_keeps_its_data_and_options_when_read() {
        let text =
            r#"{"type": "report", "cron": "0 3 * * *", "max_attempts": 5, "data": {"n": 1.0}}"#;
        let body: ScheduleBody = serde_json::from_str(text).unwrap();
        assert_eq!(body.config.options.max_attempts, Some(5));
        let written = serde_json::to_string(&body).unwrap();
        assert!(written.starts_with(r#"{"data":{"n": 1.0},"type":"report""#), "{written}");

        let answer = r#""name": "nightly", "version": 1, "next": [], "last_occurrence": null,
            "last_job": null, "last_error": null, "missed_count": 0, "new_field": true"#;
        let view: ScheduleView<'_> =
            serde_json::from_str(&text.replacen('{', &format!("{{{answer},"), 1)).unwrap();
        assert_eq!(view.config.options, body.config.options);
        assert_eq!(view.data.json(), Some(r#"{"n": 1.0}"#));
    }
}
