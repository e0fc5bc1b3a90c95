//! Large bodies: written to the object store before a job names them, deleted when no job names
//! them.
//!
//! The one thing to know: an object is deleted only after the commit that removed its key from the
//! store. A crash in between leaves an object that no job names. That is harmless, and `doctor`
//! finds it. No crash leaves a job without its body.

use object_store::{ObjectStoreExt, path::Path};

use crate::{
    Engine, Error, TickOutcome,
    request::{Enqueued, Report, ReportOutcome},
};
use tidegate_core::{
    error_chain::ErrorChain,
    job::{Body, Job, Payload},
    time::Seconds,
};

/// How many bodies one request writes at the same time.
pub(crate) const MAX_CONCURRENT_WRITES: usize = 16;

impl Engine {
    /// Writes a large payload to the object store. The caller then stores a job that names it.
    pub(crate) async fn put_object(&self, payload: Payload) -> Result<Body, Error> {
        let key = format!("bodies/{}", self.draw_id(self.now()));
        let len = payload.bytes.len() as u32;
        self.ports.objects.put(&Path::from(key.as_str()), payload.bytes.into()).await.map_err(
            |error| Error::Unavailable {
                retry_after: std::time::Duration::from_secs(1),
                message: format!("the object store did not accept a body: {}", ErrorChain(&error)),
            },
        )?;
        Ok(Body::Object { encoding: payload.encoding, key, len })
    }

    /// Deletes the objects that `before` named and `after`, which replaced it, does not.
    pub(crate) async fn forget_replaced(&self, before: &Job, after: &Job) {
        for key in object_keys(before) {
            if is_removed(after) || !object_keys(after).any(|kept| kept == key) {
                self.forget_object(key).await;
            }
        }
    }

    /// Deletes every object that a removed job named.
    pub(crate) async fn forget_objects(&self, job: &Job) {
        for key in object_keys(job) {
            self.forget_object(key).await;
        }
    }

    /// Deletes the objects that no job names after a tick: bodies of the jobs that it removed, and
    /// results that it did not accept.
    pub(crate) async fn forget_after(&self, reports: &[Report], ticked: &TickOutcome) {
        for (report, answer) in reports.iter().zip(&ticked.reports) {
            if let ReportOutcome::Succeeded { result: Some(Body::Object { key, .. }) } =
                &report.outcome
                && !may_name(answer.as_ref(), key)
            {
                self.forget_object(key).await;
            }
        }
        for job in
            ticked.reports.iter().flatten().chain(&ticked.ended).filter(|job| is_removed(job))
        {
            self.forget_objects(job).await;
        }
    }

    /// Deletes the body of a job that was not added, unless the job in `answer`, the answer of its
    /// enqueue, may name it.
    pub(crate) async fn forget_refused(&self, body: &Body, answer: &Result<Enqueued, Error>) {
        if let Body::Object { key, .. } = body
            && !may_name(answer.as_ref().map(|enqueued| &enqueued.job), key)
        {
            self.forget_object(key).await;
        }
    }

    /// Deletes an object that no job names. A failure is logged: the object stays.
    pub(crate) async fn forget_object(&self, key: &str) {
        match self.ports.objects.delete(&Path::from(key)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => {
                tracing::warn!(
                    key,
                    error = %ErrorChain(&error),
                    "an object that no job names was not deleted"
                );
            }
        }
    }
}

/// Whether a job's record is removed when the job ends.
pub(crate) fn is_removed(job: &Job) -> bool {
    job.life.ended().is_some() && job.spec.retention == Seconds::new(0)
}

/// The keys of the objects that a job's record names.
fn object_keys(job: &Job) -> impl Iterator<Item = &str> {
    let data = match &job.data {
        Body::Object { key, .. } => Some(key.as_str()),
        _ => None,
    };
    let result = job
        .life
        .result
        .as_ref()
        .and_then(|result| result.object.as_ref())
        .map(|(key, _)| key.as_str());
    data.into_iter().chain(result)
}

/// Whether the job in an answer names `key`. If the outcome is unknown, the stored job may name it.
fn may_name(answer: Result<&Job, &Error>, key: &str) -> bool {
    match answer {
        Ok(job) => object_keys(job).any(|named| named == key),
        Err(error) => matches!(error, Error::Unavailable { .. } | Error::Internal(_)),
    }
}
