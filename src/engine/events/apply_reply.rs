//! Applies one reply to its job, as a report of its attempt would.

use super::reply::Replied;
use crate::{
    Catalog, Engine, Error,
    jobs::report::Settled,
    request::{Report, ReportOutcome},
};
use tidegate_core::{
    error_code::ErrorCode,
    event::trigger::{Reply, TriggerOutcome},
    job::{
        Body, Event, Job, State,
        lifecycle::{Failure, Reason, ResultBody},
    },
    stored::UnknownFields,
    time::Timestamp,
};

impl Engine {
    /// Applies `reply` to `job`, whose attempt runs or whose retry waits.
    pub(super) async fn apply_reply(
        &self,
        job: &Job,
        reply: &Reply,
        catalog: &Catalog,
        now: Timestamp,
    ) -> Result<(Job, Replied), Error> {
        let outcome = match &reply.said {
            TriggerOutcome::Succeeded(result) => {
                ReportOutcome::Succeeded { result: result.clone().map(Body::Inline) }
            }
            TriggerOutcome::Failed { message, details, retryable } => {
                let failure = Failure {
                    reason: Reason::Failed,
                    message: message.clone(),
                    details: details.clone(),
                    status: None,
                    retry_after: None,
                    unknown: UnknownFields::default(),
                };
                ReportOutcome::Failed { failure, retryable: *retryable }
            }
        };
        let report = Report {
            id: job.id.clone(),
            job_type: None,
            attempt: job.life.attempt,
            token: None,
            outcome,
            checkpoint: None,
        };
        let report = self.prepare_report(report).await?;
        let (mut after, replied) = match (&job.life.state, report.outcome.clone()) {
            (State::Running(_), _) => match self.settle(job, &report, catalog, now)? {
                Settled::Changed(after) => (*after, Replied::Settled(job.id.clone())),
                Settled::Repeated => {
                    return Err(Error::Internal("a running attempt was settled before".into()));
                }
            },
            (_, ReportOutcome::HandedBack(_) | ReportOutcome::NotReceived { .. }) => {
                return Err(Error::Internal("a reply hands no attempt back".into()));
            }
            (_, ReportOutcome::Succeeded { result }) => {
                let event = Event::SucceedLate { result: result.as_ref().and_then(ResultBody::of) };
                (
                    job.apply(event, now)
                        .map_err(|refused| Error::refused(ErrorCode::NotRunning, &refused))?,
                    Replied::Settled(job.id.clone()),
                )
            }
            (_, ReportOutcome::Failed { failure, .. }) => {
                let after = job
                    .apply(Event::FailLate { failure }, now)
                    .map_err(|refused| Error::refused(ErrorCode::NotRunning, &refused))?;
                (after, Replied::Recorded(job.id.clone()))
            }
        };
        after.life.record_reply(reply.id);
        Ok((after, replied))
    }

    /// Removes the large result that a refused change would have named.
    pub(super) async fn forget_unused(&self, before: &Job, after: &Job) {
        let key = |job: &Job| {
            job.life
                .result
                .as_ref()
                .and_then(|result| result.object.as_ref())
                .map(|(key, _)| key.clone())
        };
        if let Some(unused) = key(after).filter(|unused| key(before).as_ref() != Some(unused)) {
            self.forget_object(&unused).await;
        }
    }
}
