//! Applies a report to its job: a result is accepted at most once, and only for the running
//! attempt.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use tidegate_core::error_code::ErrorCode;

use super::{checkpoint::with_checkpoint, objects::MAX_CONCURRENT_WRITES};
use crate::{
    Catalog, Engine, Error,
    request::{Report, ReportOutcome},
    tick,
};
use tidegate_core::{
    job::{
        Body, Event, Job, Outcome, Payload,
        lifecycle::{AttemptRecord, HandBack, Reason, ResultBody, RetryDecision, State},
        retry::Retry,
        type_config::{Delivery, TypeConfig},
    },
    time::Timestamp,
};

/// Results over this many bytes become objects.
pub(crate) const MAX_INLINE_RESULT_BYTES: usize = 16 << 10;
/// Most leases of one job in a row that no worker receives. The next one counts as a failed attempt,
/// so that such a job waits between its claims.
const MAX_NOT_RECEIVED: u16 = 1000;

/// The effect of a report on its job.
#[derive(Clone, Debug)]
pub(crate) enum Settled {
    /// The job after it, which is not written yet.
    Changed(Box<Job>),
    /// None: the same result was reported before.
    Repeated,
}

impl Engine {
    /// Applies `report` to `job` at `now`.
    ///
    /// # Errors
    ///
    /// 404 for another type; 403 for the token of another attempt; 409 `not_running` or
    /// `stale_attempt`; [`Error::Unavailable`] for a failure whose type cannot be read.
    pub(crate) fn settle(
        &self,
        job: &Job,
        report: &Report,
        catalog: &Catalog,
        now: Timestamp,
    ) -> Result<Settled, Error> {
        if report.job_type.as_ref().is_some_and(|name| *name != job.spec.job_type) {
            return Err(Error::no_job(&job.id));
        }
        let State::Running(run) = &job.life.state else {
            return check_repeated(&job.life.history, report).map(|()| Settled::Repeated);
        };
        if job.life.attempt != report.attempt {
            return check_repeated(&job.life.history, report).map(|()| Settled::Repeated);
        }
        if report.token.is_some_and(|token| token != run.token) {
            return Err(Error::Forbidden("the token is not that of the running attempt".into()));
        }
        let attempt = report.attempt;
        let with_checkpoint = with_checkpoint(job, report.checkpoint.as_ref());
        let job = with_checkpoint.as_ref().unwrap_or(job);
        let event = match &report.outcome {
            ReportOutcome::Succeeded { result } => {
                Event::Succeed { attempt, result: result.as_ref().and_then(ResultBody::of) }
            }
            ReportOutcome::Failed { failure, retryable } => {
                let least_wait = failure.retry_after.unwrap_or_default().duration();
                let retries = *retryable && tick::delivery(catalog, job)? == Delivery::AtLeastOnce;
                let next = if retries {
                    match self.retry_decision(job) {
                        RetryDecision::Wait(wait) => RetryDecision::Wait(wait.max(least_wait)),
                        RetryDecision::AskPlugin(_) => RetryDecision::AskPlugin(least_wait),
                        RetryDecision::GiveUp => RetryDecision::GiveUp,
                    }
                } else {
                    RetryDecision::GiveUp
                };
                Event::Fail { attempt, failure: failure.clone(), next }
            }
            ReportOutcome::NotReceived { revision, .. } if job.life.revision != *revision => {
                let message = "the lease has changed since its claim".to_owned();
                return Err(Error::Conflict {
                    code: ErrorCode::StaleAttempt,
                    message,
                    holder: None,
                });
            }
            ReportOutcome::NotReceived { message, .. } => {
                let message = Some(message.clone());
                let hand_back = HandBack { message, ..HandBack::default() };
                self.handed_back(job, hand_back, false, MAX_NOT_RECEIVED, catalog)?
            }
            ReportOutcome::HandedBack(hand_back) => {
                let config = catalog.types.get(&job.spec.job_type).map(|item| &item.config);
                let max = config.map(|config| config.max_releases);
                let max = max.unwrap_or(TypeConfig::DEFAULT_MAX_RELEASES);
                self.handed_back(job, hand_back.clone(), true, max, catalog)?
            }
        };
        let job = job
            .apply(event, now)
            .map_err(|refused| Error::refused(ErrorCode::NotRunning, &refused))?;
        Ok(Settled::Changed(Box::new(job)))
    }

    /// The event of a running attempt that is handed back, by its worker if that `received` it.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if the job's type cannot be read.
    fn handed_back(
        &self,
        job: &Job,
        hand_back: HandBack,
        received: bool,
        max_in_a_row: u16,
        catalog: &Catalog,
    ) -> Result<Event, Error> {
        let at_most_once = tick::delivery(catalog, job)? == Delivery::AtMostOnce;
        let next = if at_most_once { RetryDecision::GiveUp } else { self.retry_decision(job) };
        let attempt = job.life.attempt;
        Ok(Event::HandBack { attempt, received, hand_back, at_most_once, max_in_a_row, next })
    }

    /// The decision of the retry strategy of `job` after its latest attempt.
    pub(crate) fn retry_decision(&self, job: &Job) -> RetryDecision {
        match &job.spec.retry {
            Retry::Exponential(backoff) => {
                let attempt = job.life.counted_attempts();
                RetryDecision::Wait(backoff.after(attempt, self.ports.entropy.fraction()))
            }
            Retry::Plugin(..) => RetryDecision::AskPlugin(Duration::ZERO),
        }
    }

    /// Moves a large result or checkpoint of a report to the object store.
    ///
    /// # Errors
    ///
    /// 413 for a result over the server's bound, or a checkpoint over its own; the object store's.
    pub async fn prepare_report(&self, mut report: Report) -> Result<Report, Error> {
        report.checkpoint = self.prepare_checkpoint(&report.id, report.checkpoint.take()).await?;
        if let Some(large) = self.large_result(&report)? {
            let result = Some(self.put_object(&report.id, large).await?);
            report.outcome = ReportOutcome::Succeeded { result };
        }
        Ok(report)
    }

    /// Does the same as [`Engine::prepare_report`] for several reports. Returns one answer per
    /// report, in order.
    pub async fn prepare_reports(&self, reports: Vec<Report>) -> Vec<Result<Report, Error>> {
        let each: Vec<_> = reports.into_iter().map(|report| self.prepare_report(report)).collect();
        stream::iter(each).buffered(MAX_CONCURRENT_WRITES).collect().await
    }

    /// The result of a report that becomes an object.
    ///
    /// # Errors
    ///
    /// 413 for a result over the server's bound.
    fn large_result(&self, report: &Report) -> Result<Option<Payload>, Error> {
        let ReportOutcome::Succeeded { result: Some(Body::Inline(payload)) } = &report.outcome
        else {
            return Ok(None);
        };
        if payload.bytes.len() > self.rules.max_data_bytes {
            return Err(Error::TooLarge { field: "result", limit: self.rules.max_data_bytes });
        }
        Ok((payload.bytes.len() > MAX_INLINE_RESULT_BYTES).then(|| payload.clone()))
    }
}

/// Checks that `report` repeats the recorded result of its attempt.
///
/// # Errors
///
/// 403 for the token of another attempt; 409 `stale_attempt` if the result differs.
fn check_repeated(history: &[AttemptRecord], report: &Report) -> Result<(), Error> {
    let entry = history.iter().rev().find(|entry| entry.attempt == report.attempt);
    let same = entry.is_some_and(|entry| match &report.outcome {
        // An attempt that a forced cancel ended is recorded as cancelled: its result was not
        // accepted.
        ReportOutcome::Succeeded { .. } => entry.outcome == Outcome::Succeeded,
        ReportOutcome::Failed { .. } => entry.outcome == Outcome::Failed,
        ReportOutcome::NotReceived { .. } => entry.hand_back.is_some(),
        ReportOutcome::HandedBack(again) => match (&entry.hand_back, &entry.error) {
            (Some(before), _) => before.until.is_some() == again.until.is_some(),
            // Too many before it were handed back.
            (None, error) => {
                error.as_ref().is_some_and(|error| error.reason == Reason::NotDelivered)
            }
        },
    });
    if entry.is_some_and(|entry| report.token.is_some_and(|token| token != entry.token)) {
        return Err(Error::Forbidden("the token is not that of the attempt".into()));
    }
    if same {
        return Ok(());
    }
    let message = format!("attempt {} is not the running one", report.attempt);
    Err(Error::Conflict { code: ErrorCode::StaleAttempt, message, holder: None })
}
