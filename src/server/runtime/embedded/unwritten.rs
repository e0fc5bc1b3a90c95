//! Leases in responses that are not written yet.
//!
//! A claim is committed before its response is sent. Until the response is written, the server that
//! writes it is responsible for its leases: this one, also if another server has leased the jobs for a
//! [forwarded](crate::runtime::shared) request.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;

use super::lease::{WORKER_GONE, settle};
use crate::runtime::{Server, WeakServer};
use tidegate_core::job::{Job, JobId, QueueName, Revision};
use tidegate_engine::request::{Report, ReportOutcome};

/// The claim of a leased job: what hands it back, and nothing if the job has changed since.
///
/// As text it is `QUEUE/JOB/ATTEMPT/REVISION`. No name has a slash or a comma.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseClaim {
    queue: QueueName,
    job: JobId,
    attempt: u16,
    revision: Revision,
}

impl LeaseClaim {
    /// The claim of `job`, as it is in a response.
    pub(crate) fn of(job: &Job) -> Self {
        Self {
            queue: job.spec.queue.clone(),
            job: job.id.clone(),
            attempt: job.life.attempt,
            revision: job.life.revision,
        }
    }

    /// The claim with this text; none if it is no claim.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let claim = Self {
            queue: parts.next()?.parse().ok()?,
            job: parts.next()?.parse().ok()?,
            attempt: parts.next()?.parse().ok()?,
            revision: Revision(parts.next()?.parse().ok()?),
        };
        parts.next().is_none().then_some(claim)
    }

    /// The report that its worker did not receive it.
    fn not_received(self) -> Report {
        Report {
            id: self.job,
            job_type: None,
            attempt: self.attempt,
            token: None,
            outcome: ReportOutcome::NotReceived {
                revision: self.revision,
                message: WORKER_GONE.to_owned(),
            },
            checkpoint: None,
        }
    }
}

impl fmt::Display for LeaseClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, job, attempt, revision } = self;
        write!(f, "{queue}/{job}/{attempt}/{}", revision.0)
    }
}

/// Leases that a response has, until it is written to its worker's connection.
///
/// The connection puts this into the extensions of each request. If it breaks before the response
/// is written, the leases are handed back.
#[derive(Clone, Default)]
pub(crate) struct UnwrittenLeases(Arc<Mutex<Held>>);

impl fmt::Debug for UnwrittenLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnwrittenLeases(..)")
    }
}

impl UnwrittenLeases {
    /// Takes responsibility for the leases in the response of `server`.
    pub(crate) fn hold(&self, server: &Server, leases: impl IntoIterator<Item = LeaseClaim>) {
        let claims = leases.into_iter().collect();
        *self.0.lock() = Held { server: Arc::downgrade(&server.inner), claims };
    }

    /// The response is written.
    pub(crate) fn written(&self) {
        std::mem::take(&mut *self.0.lock()).claims.clear();
    }
}

/// Claims that a drop hands back.
#[derive(Default)]
struct Held {
    server: WeakServer,
    claims: Vec<LeaseClaim>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(inner) = self.server.upgrade() {
            for claim in self.claims.drain(..) {
                let queue = claim.queue.clone();
                settle(&inner, &queue, claim.not_received());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::testkit::builders::name;

    #[test]
    fn a_claim_is_read_from_its_text() {
        let claim = LeaseClaim {
            queue: name("mail.v2"),
            job: name("order:17"),
            attempt: 3,
            revision: Revision(12),
        };
        let text = claim.to_string();
        assert_eq!(text, "mail.v2/order:17/3/12");
        assert_eq!(LeaseClaim::parse(&text), Some(claim));
        for wrong in ["", "mail/17/3", "mail/17/3/1/0", "mail/17/x/1", "mail/17/3/-1", "/17/3/1"] {
            assert_eq!(LeaseClaim::parse(wrong), None, "{wrong}");
        }
    }
}
