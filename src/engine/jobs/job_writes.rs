//! The writes that one change of a job needs: its record and, when it ends, the job that calls its
//! `callback_url`, and the job that carries the event about its end.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::objects;
use crate::Engine;
use tidegate_core::{
    job::{
        Attributes, Body, Encoding, Job, JobOptions, Lifecycle, Payload, Revision, Spec, TypeName,
        Value,
        end_notice::{self, EndError, EndNotice},
        lifecycle::{self, Waiting},
        spec::KeepResult,
        type_config::TypeConfig,
    },
    port::Write,
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
        if job.life.ended().is_none() {
            return vec![write];
        }
        let mut together: Vec<Write> = [self.callback(job, now), self.end_event_job(job, now)]
            .into_iter()
            .flatten()
            .map(Write::AddJob)
            .collect();
        if together.is_empty() {
            return vec![write];
        }
        // Written together, so that these jobs exist if and only if the job has ended.
        together.push(write);
        vec![Write::Together(together)]
    }

    /// The job that reports the end of `job` to its `callback_url`, if it has one.
    fn callback(&self, job: &Job, now: Timestamp) -> Option<Job> {
        let url = job
            .spec
            .callback_url
            .as_ref()
            .filter(|_| job.spec.job_type.as_str() != CALLBACK_TYPE)?;
        let mut callback =
            self.internal_job(CALLBACK_TYPE, &callback_type(), job, notice(job, now, None), now);
        Arc::make_mut(&mut callback.spec).callback_url = Some(url.clone());
        Some(callback)
    }

    /// A job of the server's own type `name` about `job`, with `data`, JSON.
    pub(crate) fn internal_job(
        &self,
        name: &str,
        config: &TypeConfig,
        about: &Job,
        data: String,
        now: Timestamp,
    ) -> Job {
        let job_type: TypeName = name.parse().expect("it is a valid name");
        let attribute = Value::Text(about.spec.job_type.to_string());
        let spec = Spec {
            attributes: [("type".to_owned(), attribute)].into(),
            headers: about.spec.headers.clone(),
            ..JobOptions::default().resolve(&job_type, config, now)
        };
        Job {
            id: self.ports.store.assign_id(self.draw_id(now), &spec, now),
            spec: Arc::new(spec),
            data: Body::Inline(Payload { encoding: Encoding::Json, bytes: data.into() }),
            life: Lifecycle::new(now, Waiting::Due),
        }
    }

    /// Draws a new id.
    pub(crate) fn draw_id(&self, now: Timestamp) -> tidegate_core::job::JobId {
        self.ids.lock().draw(now, &*self.ports.entropy)
    }
}

/// The notice of the end of a job at `now`, as JSON. A result that is not in the job's record is
/// left out.
pub(crate) fn notice(job: &Job, now: Timestamp, attributes: Option<&Attributes>) -> String {
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
        attributes,
    };
    serde_json::to_string(&notice).expect("a notice can be written as JSON")
}
