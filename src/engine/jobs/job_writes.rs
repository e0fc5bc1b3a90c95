//! The writes that one change of a job makes: its record, and, when it ends, the job that tells its
//! `callback_url`.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::objects;
use crate::Engine;
use tidegate_core::{
    job::{
        Body, Encoding, Job, Lifecycle, Payload, QueueName, Revision, Spec, TypeName,
        end_notice::{EndError, EndNotice},
        lifecycle::{self, Waiting},
        spec::KeepResult,
        type_config::TypeConfig,
    },
    port::Write,
    target::{Push, TargetConfig},
    time::{Seconds, Timestamp},
};

/// The type of the jobs that tell a `callback_url` of an end. Names that start with `tidegate.` are the server's own.
pub const CALLBACK_TYPE: &str = "tidegate.callback";
/// The queue they wait in.
pub const CALLBACK_QUEUE: &str = "tidegate.callbacks";

/// How completion callbacks are run: like any push, with more patience.
pub(crate) fn callback_type() -> TypeConfig {
    TypeConfig {
        queue: CALLBACK_QUEUE.parse().expect("a good name"),
        target: Some(TargetConfig::Push(Box::new(Push::to("http://callback.invalid")))),
        max_attempts: Some(8),
        timeout_seconds: Seconds::new(60),
        keep_result: KeepResult::None,
        retention_seconds: Seconds::new(86_400),
        ..TypeConfig::default()
    }
}

/// The write of what changes nothing of a job but what it knows or keeps, as when its result is taken: an end that was is not
/// told again.
pub(crate) fn note(was: Revision, job: &Job) -> Vec<Write> {
    vec![Write::SetJob { job: job.clone(), was, all: false }]
}

impl Engine {
    /// The writes that replace what stands at revision `was`, and had not ended, by `job`. `all` says whether more than its life
    /// changed.
    pub(crate) fn change(&self, was: Revision, job: &Job, all: bool, now: Timestamp) -> Vec<Write> {
        let write = if objects::is_removed(job) {
            Write::RemoveJob { id: job.id.clone(), was }
        } else {
            Write::SetJob { job: job.clone(), was, all }
        };
        let callback = job.life.ended().and_then(|_| self.callback(job, now));
        match callback {
            // Nobody is told of an end that does not come, and no end goes untold.
            Some(callback) => vec![Write::Together(vec![Write::AddJob(callback), write])],
            None => vec![write],
        }
    }

    /// The job that tells of the end of `job`, if somebody is to be told.
    fn callback(&self, job: &Job, now: Timestamp) -> Option<Job> {
        let url = job
            .spec
            .callback_url
            .as_ref()
            .filter(|_| job.spec.job_type.as_str() != CALLBACK_TYPE)?;
        let result = job.life.result.as_ref().and_then(|result| match result.body() {
            Body::Inline(payload) => {
                RawValue::from_string(String::from_utf8(payload.to_json().ok()?.into()).ok()?).ok()
            }
            Body::Beside(_) | Body::Object { .. } => None,
        });
        let notice = EndNotice {
            id: &job.id,
            r#type: &job.spec.job_type,
            state: lifecycle::word(&job.life.state),
            attempt: job.life.attempt,
            correlation_key: job.spec.correlation_key.as_deref(),
            result: result.as_deref(),
            ended_at: now,
            error: job
                .life
                .error
                .as_ref()
                .map(|error| EndError { reason: error.reason, message: error.message.as_deref() }),
        };
        let body = serde_json::to_string(&notice).expect("a notice has a JSON form");
        let job_type: TypeName = CALLBACK_TYPE.parse().expect("a good name");
        let queue: QueueName = CALLBACK_QUEUE.parse().expect("a good name");
        let config = callback_type();
        let spec = Spec {
            job_type,
            queue,
            priority: config.priority,
            weight: 1,
            critical: false,
            created_at: now,
            expires_at: None,
            deadline_at: None,
            windows: Vec::new(),
            timeout: config.timeout_seconds,
            max_attempts: config.max_attempts.unwrap_or(1),
            retry: config.retry,
            correlation_key: None,
            unique: None,
            attributes: [(
                "type".to_owned(),
                tidegate_core::job::Value::Text(job.spec.job_type.to_string()),
            )]
            .into(),
            keep_result: config.keep_result,
            callback_url: Some(url.clone()),
            headers: job.spec.headers.clone(),
            replay_of: None,
            retention: config.retention_seconds,
            partition: String::new(),
            request_digest: [0; 16],
        };
        Some(Job {
            id: self.ports.store.assign_id(self.draw_id(now), &spec, now),
            spec: Arc::new(spec),
            data: Body::Inline(Payload { encoding: Encoding::Json, bytes: body.into() }),
            life: Lifecycle::new(now, Waiting::Due),
        })
    }

    /// A new id.
    pub(crate) fn draw_id(&self, now: Timestamp) -> tidegate_core::job::JobId {
        self.ids.lock().draw(now, &*self.ports.entropy)
    }
}
