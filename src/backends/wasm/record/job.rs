//! Jobs in calls, and the defaults of fields that several parts share.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::failure::FailureJson;
use crate::wasm::lower;
use tidegate_core::{
    job::{
        Attributes, Body, Job, JobId, JobOptions, Lifecycle, Payload, QueueName, Spec, TypeName,
        lifecycle::Waiting, type_config::TypeConfig,
    },
    time::Timestamp,
};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct Context {
    pub queue: QueueName,
    pub now: Timestamp,
    pub seed: u64,
    pub config: Box<RawValue>,
}

impl Default for Context {
    fn default() -> Self {
        Self { queue: given("default"), now: Timestamp::EPOCH, seed: 0, config: raw("{}") }
    }
}

/// A literal name.
pub(super) fn given<N: std::str::FromStr<Err: std::fmt::Debug>>(name: &str) -> N {
    name.parse().expect("the literal is a valid name")
}

/// `text` as JSON, or as a JSON string if it is not JSON.
pub(super) fn raw(text: &str) -> Box<RawValue> {
    let quoted =
        |_| serde_json::value::to_raw_value(text).expect("a string can be written as JSON");
    RawValue::from_string(text.to_owned()).unwrap_or_else(quoted)
}

pub(super) fn any_type() -> TypeName {
    given("job")
}

pub(super) fn first() -> u16 {
    1
}

pub(super) fn one() -> u32 {
    1
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct JobJson {
    id: JobId,
    #[serde(default = "any_type")]
    pub job_type: TypeName,
    #[serde(default)]
    priority: i32,
    #[serde(default = "one")]
    weight: u32,
    #[serde(default)]
    attributes: Attributes,
    #[serde(default = "first")]
    pub attempt: u16,
    #[serde(default = "many")]
    attempts: u16,
    #[serde(default)]
    created_at: Timestamp,
    #[serde(default)]
    run_at: Timestamp,
    #[serde(default)]
    expires_at: Option<Timestamp>,
    #[serde(default)]
    deadline_at: Option<Timestamp>,
    #[serde(default)]
    pub target_host: Option<String>,
    #[serde(default)]
    replay_of: Option<JobId>,
    #[serde(default)]
    correlation_key: Option<String>,
    #[serde(default)]
    pub earlier: Vec<FailureJson>,
}

fn many() -> u16 {
    10
}

impl JobJson {
    pub(super) fn of(job: &Job, attempt: u16, host: Option<&str>) -> Self {
        Self {
            id: job.id.clone(),
            job_type: job.spec.job_type.clone(),
            priority: job.spec.priority,
            weight: job.spec.weight,
            attributes: job.spec.attributes.clone(),
            attempt,
            attempts: job.spec.max_attempts,
            created_at: job.spec.created_at,
            run_at: lower::run_at(job),
            expires_at: job.spec.expires_at,
            deadline_at: job.spec.deadline_at,
            target_host: host.map(str::to_owned),
            replay_of: job.spec.replay_of.clone(),
            correlation_key: job.spec.correlation_key.clone(),
            earlier: lower::earlier(&job.life).into_iter().map(FailureJson::of).collect(),
        }
    }

    /// The job, after `begun` attempts, with the target that a retry strategy chose.
    pub(super) fn job(self, queue: &QueueName, begun: u16, retry_target: Option<String>) -> Job {
        let options = JobOptions {
            priority: Some(self.priority),
            weight: Some(self.weight),
            max_attempts: Some(self.attempts),
            attributes: self.attributes,
            ..JobOptions::default()
        };
        let spec = Spec {
            queue: queue.clone(),
            expires_at: self.expires_at,
            deadline_at: self.deadline_at,
            replay_of: self.replay_of,
            correlation_key: self.correlation_key,
            retry_target,
            ..options.resolve(&self.job_type, &TypeConfig::default(), self.created_at)
        };
        let life = Lifecycle {
            attempt: begun,
            history: self.earlier.into_iter().map(FailureJson::entry).collect(),
            ..Lifecycle::new(self.run_at, Waiting::Due)
        };
        Job { id: self.id, spec: Arc::new(spec), data: Body::Inline(Payload::null()), life }
    }
}
