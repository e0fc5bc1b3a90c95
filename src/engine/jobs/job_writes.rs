//! The writes that one change of a job needs: its record and, when it ends, the job that calls its
//! `callback_url`.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::objects;
use crate::Engine;
use tidegate_core::{
    job::{
        Body, Encoding, Job, Lifecycle, Payload, QueueName, Revision, Spec, TypeName,
        end_notice::{self, EndError, EndNotice},
        lifecycle::{self, Waiting},
        spec::KeepResult,
        type_config::TypeConfig,
    },
    port::Write,
    stored::UnknownFields,
    target::{Push, TargetConfig},
    time::{Seconds, Timestamp},
};

/// The type of the jobs that report the end of a job to its `callback_url`. Names that start with
/// `tidegate.` are reserved for the server.
pub const CALLBACK_TYPE: &str = "tidegate.callback";
/// The queue of these jobs.
pub const CALLBACK_QUEUE: &str = "tidegate.callbacks";

/// The configuration of completion callbacks: a push with eight attempts and a timeout of a minute.
pub(crate) fn callback_type() -> TypeConfig {
    TypeConfig {
        queue: CALLBACK_QUEUE.parse().expect("it is a valid name"),
        target: Some(TargetConfig::Push(Box::new(Push::to("http://callback.invalid")))),
        max_attempts: Some(8),
        timeout_seconds: Seconds::new(60),
        keep_result: KeepResult::None,
        retention_seconds: Seconds::new(86_400),
        ..TypeConfig::default()
    }
}

/// The write of a change that does not end the job, for example when its result is taken. It makes
/// no callback, so the end of an ended job is not reported again.
pub(crate) fn lifecycle_write(was: Revision, job: &Job) -> Vec<Write> {
    vec![Write::SetJob { job: job.clone(), was, all: false }]
}

impl Engine {
    /// The writes that replace the stored job at revision `was`, which has not ended, with `job`.
    /// `all` says whether more than its lifecycle changed.
    pub(crate) fn change_writes(
        &self,
        was: Revision,
        job: &Job,
        all: bool,
        now: Timestamp,
    ) -> Vec<Write> {
        let write = if objects::is_removed(job) {
            Write::RemoveJob { id: job.id.clone(), was }
        } else {
            Write::SetJob { job: job.clone(), was, all }
        };
        let callback = job.life.ended().and_then(|_| self.callback(job, now));
        match callback {
            // Written together, so that a callback exists if and only if the job has ended.
            Some(callback) => vec![Write::Together(vec![Write::AddJob(callback), write])],
            None => vec![write],
        }
    }

    /// The job that reports the end of `job` to its `callback_url`, if it has one.
    fn callback(&self, job: &Job, now: Timestamp) -> Option<Job> {
        let url = job
            .spec
            .callback_url
            .as_ref()
            .filter(|_| job.spec.job_type.as_str() != CALLBACK_TYPE)?;
        let job_type: TypeName = CALLBACK_TYPE.parse().expect("it is a valid name");
        let queue: QueueName = CALLBACK_QUEUE.parse().expect("it is a valid name");
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
            request_digest: Spec::NO_DIGEST,
            original: None,
            enqueued_by: None,
            unknown: UnknownFields::default(),
        };
        Some(Job {
            id: self.ports.store.assign_id(self.draw_id(now), &spec, now),
            spec: Arc::new(spec),
            data: Body::Inline(Payload {
                encoding: Encoding::Json,
                bytes: notice(job, now).into(),
            }),
            life: Lifecycle::new(now, Waiting::Due),
        })
    }

    /// Draws a new id.
    pub(crate) fn draw_id(&self, now: Timestamp) -> tidegate_core::job::JobId {
        self.ids.lock().draw(now, &*self.ports.entropy)
    }
}

/// The body of the callback for a job that ended at `now`, as JSON. A result that is not in the
/// job's record is left out.
fn notice(job: &Job, now: Timestamp) -> String {
    let result = job.life.result.as_ref().and_then(|result| match result.body() {
        Body::Inline(payload) => {
            RawValue::from_string(String::from_utf8(payload.to_json().ok()?.into()).ok()?).ok()
        }
        Body::Separate(_) | Body::Object { .. } => None,
    });
    let notice = EndNotice {
        kind: end_notice::KIND,
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
    serde_json::to_string(&notice).expect("a notice can be written as JSON")
}
