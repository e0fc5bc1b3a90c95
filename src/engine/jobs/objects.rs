//! Large bodies: written to the object store before a job names them, deleted when no job names
//! them.
//!
//! The one thing to know: an object is deleted only after the commit that removed its key from the
//! store. A crash in between leaves an object that no job names, which a later pass deletes (see
//! [`super::orphans`]). No crash leaves a job without its body.

use std::io::ErrorKind;

use object_store::{ObjectStoreExt, path::Path};
use ulid::Ulid;

use crate::{
    Engine, Error, TickOutcome,
    request::{Enqueued, Report},
};
use tidegate_core::{
    checksum::checksum,
    error_chain::ErrorChain,
    job::{Body, Job, JobId, Payload},
    port::job_store::NO_ROOM,
    time::{Seconds, Timestamp},
};

/// How many bodies one request writes at the same time.
pub(crate) const MAX_CONCURRENT_WRITES: usize = 16;

impl Engine {
    /// Writes a large payload to the object store. The caller then stores the job `of`, which names
    /// it.
    pub(crate) async fn put_object(&self, of: &JobId, payload: Payload) -> Result<Body, Error> {
        let key = object_key(of, &self.draw_id(self.now()), &payload.bytes);
        let len = payload.bytes.len() as u32;
        let put = self.ports.objects.put(&Path::from(key.as_str()), payload.bytes.into()).await;
        put.map_err(|error| {
            let message = if is_full(&error) {
                NO_ROOM.into()
            } else {
                format!("the object store did not accept a body: {}", ErrorChain(&error))
            };
            Error::unavailable(std::time::Duration::from_secs(1), message)
        })?;
        Ok(Body::Object { encoding: payload.encoding, key, len })
    }

    /// Deletes the objects that `before` named and `after`, which replaced it, does not.
    pub(crate) async fn forget_replaced(&self, before: &Job, after: &Job) {
        for key in before.object_keys() {
            if is_removed(after) || !after.object_keys().any(|kept| kept == key) {
                self.forget_object(key).await;
            }
        }
    }

    /// Deletes every object that a removed job named.
    pub(crate) async fn forget_objects(&self, job: &Job) {
        for key in job.object_keys() {
            self.forget_object(key).await;
        }
    }

    /// Deletes the objects that no job names after a tick: bodies of the jobs that it removed,
    /// results and checkpoints that it did not accept, and checkpoints that reports replaced.
    pub(crate) async fn forget_after(&self, reports: &[Report], ticked: &TickOutcome) {
        for (report, answer) in reports.iter().zip(&ticked.reports) {
            for key in report.object_keys().filter(|key| !may_name(answer.as_ref(), key)) {
                self.forget_object(key).await;
            }
        }
        for key in &ticked.unnamed_objects {
            self.forget_object(key).await;
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

/// Whether the job in an answer names `key`. If the outcome is unknown, the stored job may name it.
fn may_name(answer: Result<&Job, &Error>, key: &str) -> bool {
    match answer {
        Ok(job) => job.object_keys().any(|named| named == key),
        Err(Error::Unavailable { .. } | Error::Unreadable(_) | Error::Internal(_)) => true,
        Err(_) => false,
    }
}

/// Whether the cause of `error` is a full disk.
fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|error| matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
}

/// The folder of all objects that jobs name.
pub(super) const BODIES: &str = "bodies";

/// The key of a new object of job `of`: its id, `drawn`, which contains the time, and the checksum of
/// its bytes.
fn object_key(of: &JobId, drawn: &JobId, bytes: &[u8]) -> String {
    format!("{BODIES}/{of}-{drawn}-{:08x}", checksum(&[bytes]))
}

/// The job that the object of `key` was stored for, and when. None for a key that an earlier release
/// made, without the job.
pub(super) fn owner_of(key: &str) -> Option<(JobId, Timestamp)> {
    let mut parts = key.strip_prefix(BODIES)?.strip_prefix('/')?.rsplitn(3, '-');
    let (_, drawn, job) = (parts.next()?, parts.next()?, parts.next()?);
    let drawn = Ulid::from_string(drawn).ok()?;
    Some((job.parse().ok()?, Timestamp::from_millis(drawn.timestamp_ms() as i64)))
}

/// Checks that an object has the bytes that were put under `key`, and `len` of them.
///
/// # Errors
///
/// What is wrong with them, as a clause.
pub fn check_object(key: &str, len: u32, bytes: &[u8]) -> Result<(), &'static str> {
    if bytes.len() != len as usize {
        return Err("it has another length than was stored");
    }
    let sum = key.rsplit_once('-').and_then(|(_, sum)| u32::from_str_radix(sum, 16).ok());
    match sum {
        Some(sum) if sum == checksum(&[bytes]) => Ok(()),
        _ => Err("its checksum is wrong"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_recognised_behind_other_errors() {
        let of = |kind: ErrorKind| object_store::Error::Generic {
            store: "LocalFileSystem",
            source: Box::new(std::io::Error::from(kind)),
        };
        assert!(is_full(&of(ErrorKind::StorageFull)));
        assert!(!is_full(&of(ErrorKind::PermissionDenied)));
    }

    #[test]
    fn an_objects_key_tells_its_job_and_its_time() {
        let (job, drawn): (JobId, JobId) =
            ("a-b.c:1-".parse().unwrap(), "01arz3ndektsv4rrffq69g5fav".parse().unwrap());
        let at = Timestamp::from_millis(1_469_922_850_259);
        assert_eq!(owner_of(&object_key(&job, &drawn, b"1")), Some((job, at)));
        assert_eq!(owner_of("bodies/01arz3ndektsv4rrffq69g5fav-00000000"), None);
        assert_eq!(owner_of("plugins/a-01arz3ndektsv4rrffq69g5fav-00000000"), None);
    }

    #[test]
    fn a_changed_or_cut_object_is_refused() {
        let bytes = b"[100]";
        let drawn = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
        let key = object_key(&"mine-1".parse().unwrap(), &drawn, bytes);
        assert_eq!(check_object(&key, 5, bytes), Ok(()));
        assert!(check_object(&key, 5, b"[900]").is_err());
        assert!(check_object(&key, 5, b"[100").is_err());
        assert!(check_object("bodies/01ARZ3NDEKTSV4RRFFQ69G5FAV", 5, bytes).is_err());
    }
}
