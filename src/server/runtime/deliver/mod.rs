//! Delivery: a claimed job is sent to its target, and the response becomes a report.
//!
//! ```text
//!   2xx but 202 ─▶ succeeded     no connection, 429, 503 ─▶ up to 3 retries, then not_delivered
//!   202 (any 2xx with `complete: on_result`) ─▶ the result comes later
//!                                   other 4xx, 5xx ─▶ failed (489: not retryable)
//!   `Tidegate-Status: released`, or `snoozed` with `Retry-After` ─▶ handed back
//!   no answer in time ─▶ failed `timeout`, or with `on_response_timeout: wait` still running
//!   no proof that this server leads its log ─▶ not called, and handed back
//! ```
//!
//! With `at_most_once`, only a connection that was never established is retried. After any other
//! failure the job may have run, and ends `outcome_unknown`.
//!
//! Read in this order: [`outgoing`] (what is sent), [`response`] (what a response means).

mod outgoing;
mod response;

use std::{sync::Arc, time::Duration};

use super::Inner;
use outgoing::{message_to, request_to};
use response::{NotDelivered, ResponseClass, ResponseRules};

use crate::telemetry::metrics;
use tidegate_core::{
    job::{
        Job,
        lifecycle::{Failure, Reason},
        spec::KeepResult,
        type_config::{Delivery, OnResponseTimeout, TypeConfig},
    },
    port::{
        job_store::ItemKind,
        target::{Response, TargetError},
    },
    target::Complete,
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    CALLBACK_TYPE, Catalog, END_EVENT_TYPE, Error, PushTarget,
    request::{Heartbeat, Report, ReportOutcome},
};

/// The waits before a delivery that did not arrive is retried within the same attempt.
const RETRY_WAITS: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];

/// Sends a running job to its target. Returns the report of its attempt, or `None` if the attempt
/// continues at the worker.
///
/// A call without a response by `until` fails, even if its type would wait longer.
pub(super) async fn push(
    inner: &Arc<Inner>,
    job: Job,
    catalog: &Catalog,
    until: Timestamp,
) -> Option<Report> {
    let Some(item) = catalog.types.get(&job.spec.job_type) else {
        let refused = catalog.refuse_unreadable(ItemKind::Type, job.spec.job_type.as_str());
        let reason = refused.err().map_or("its type was deleted".into(), |error| error.to_string());
        return Some(not_delivered(&job, reason, true));
    };
    let config = &item.config;
    let Some(target) = inner.engine.push_target(config) else {
        return Some(not_delivered(&job, "its type has no push target now", true));
    };
    let job = match inner.engine.load(vec![job.clone()]).await {
        Ok(mut jobs) => jobs.pop().unwrap_or(job),
        Err(error) => return Some(not_delivered(&job, error.to_string(), true)),
    };
    // The claim of a job may be answered late. The job may start elsewhere once its lease is over.
    let now = inner.engine.now();
    let lease_until = job.life.running().map_or(until, |run| run.lease_until);
    if lease_until <= now {
        return Some(not_delivered(&job, "its lease was over before the call", true));
    }
    if job.spec.job_type.as_str() == END_EVENT_TYPE {
        return Some(report(&job, apply_end_event(inner, &job).await));
    }
    let deadline = (now + config.response_timeout_seconds.duration()).min(until).min(lease_until);
    let exchange = Exchange { inner, job: &job, config, target, catalog, deadline };
    match exchange.run().await {
        DeliveryOutcome::Report(outcome) => Some(report(&job, outcome)),
        DeliveryOutcome::Later => keep_running(inner, &job).await,
    }
}

/// Applies the triggers to the event about the end of another job that `job` carries.
async fn apply_end_event(inner: &Arc<Inner>, job: &Job) -> ReportOutcome {
    let ingestion = inner.engine.ingest_end(job).await;
    metrics::ingested(&ingestion.answers);
    inner.record_trigger_actions(&ingestion.answers);
    inner.on_events(&ingestion.enqueued, &ingestion.changed);
    match ingestion.answers.into_iter().find_map(Result::err) {
        None => ReportOutcome::Succeeded { result: None },
        Some(error) => {
            let failure = Failure::new(Reason::Failed, error.to_string());
            ReportOutcome::Failed { failure, retryable: true }
        }
    }
}

/// The report of an attempt that could not be delivered.
pub(super) fn not_delivered(job: &Job, reason: impl Into<String>, retryable: bool) -> Report {
    let failure = Failure::new(Reason::NotDelivered, reason);
    report(job, ReportOutcome::Failed { failure, retryable })
}

/// The report of a leased job whose worker did not receive the lease, for this `reason`.
pub(super) fn not_received(job: &Job, reason: &str) -> Report {
    let message = reason.to_owned();
    report(job, ReportOutcome::NotReceived { revision: job.life.revision, message })
}

/// The report of an attempt whose call to its target broke.
pub(super) fn connection_lost(job: &Job, reason: &str) -> Report {
    let failure = Failure::new(Reason::ConnectionLost, reason);
    report(job, ReportOutcome::Failed { failure, retryable: true })
}

fn report(job: &Job, outcome: ReportOutcome) -> Report {
    Report {
        id: job.id.clone(),
        job_type: None,
        attempt: job.life.attempt,
        token: job.life.running().map(|run| run.token),
        outcome,
        checkpoint: None,
    }
}

/// The outcome of a delivery.
enum DeliveryOutcome {
    Report(ReportOutcome),
    /// The result comes later.
    Later,
}

/// A job on its way to its target.
struct Exchange<'a> {
    inner: &'a Arc<Inner>,
    job: &'a Job,
    config: &'a TypeConfig,
    target: PushTarget<'a>,
    catalog: &'a Catalog,
    deadline: Timestamp,
}

impl Exchange<'_> {
    /// Calls the target, with retries while the job is not delivered, until the deadline.
    async fn run(&self) -> DeliveryOutcome {
        let engine = &self.inner.engine;
        let rules = self.response_rules();
        let mut waits = RETRY_WAITS.iter();
        loop {
            if !self.may_call().await {
                // It may still lead, and the bucket be slow. The target has not begun the attempt.
                let message = "this server could not prove that it leads the log".to_owned();
                let revision = self.job.life.revision;
                return DeliveryOutcome::Report(ReportOutcome::NotReceived { revision, message });
            }
            let answer = match self.call().await {
                Ok(answer) => answer,
                Err(message) => return failed_permanently(Reason::NotDelivered, message),
            };
            let not_delivered = match answer {
                Ok(response) => match rules.classify(&response, engine.now()) {
                    ResponseClass::Done(outcome) => return outcome,
                    ResponseClass::NotDelivered(not_delivered) => not_delivered,
                },
                Err(error @ TargetError::NotConnected(_)) => {
                    NotDelivered { message: error.to_string(), after: None, status: None }
                }
                Err(error) => return self.unanswered(&error),
            };
            let wait =
                waits.next().map(|wait| not_delivered.after.map_or(*wait, Seconds::duration));
            match wait {
                Some(wait) if engine.now() + wait < self.deadline => {
                    engine.ports().clock.sleep_until(engine.now() + wait).await;
                }
                _ => return exhausted(not_delivered),
            }
        }
    }

    /// Whether the target may be called. The time that a proof of the leadership takes is a part of that
    /// of the response.
    async fn may_call(&self) -> bool {
        tokio::select! {
            may_call = self.inner.may_push(self.job) => may_call,
            () = self.inner.engine.ports().clock.sleep_until(self.deadline) => false,
        }
    }

    fn response_rules(&self) -> ResponseRules {
        let keeps_result = self.job.spec.keep_result != KeepResult::None;
        ResponseRules {
            at_most_once: self.config.delivery == Delivery::AtMostOnce,
            is_callback: self.job.spec.job_type.as_str() == CALLBACK_TYPE,
            complete: match self.target {
                PushTarget::Url(push) => push.complete,
                // The port's answer says whether the result comes later.
                PushTarget::External(_) => Complete::OnDelivery,
            },
            max_result_bytes: keeps_result.then(|| self.inner.engine.rules().max_data_bytes),
        }
    }

    /// Calls the target once.
    ///
    /// # Errors
    ///
    /// Why the job cannot be put into a request.
    async fn call(&self) -> Result<Result<Response, TargetError>, String> {
        let Self { inner, job, .. } = self;
        let now = inner.engine.now();
        let timeout = self.deadline.since(now);
        Ok(match self.target {
            PushTarget::Url(push) => {
                let request = request_to(inner, job, push, self.catalog, now, timeout)?;
                inner.target.call(request).await
            }
            PushTarget::External(target) => {
                let message = message_to(inner, job, target, timeout)?;
                inner.target.send(message).await
            }
        })
    }

    /// The outcome of a call that the target may have received, or was not allowed to receive.
    fn unanswered(&self, error: &TargetError) -> DeliveryOutcome {
        if matches!(error, TargetError::Forbidden(_)) {
            return failed_permanently(Reason::NotDelivered, error.to_string());
        }
        match (self.config.on_response_timeout, self.config.delivery) {
            // Waiting runs nothing twice, so `at_most_once` permits it.
            (OnResponseTimeout::Wait, _) => DeliveryOutcome::Later,
            (OnResponseTimeout::Fail, Delivery::AtMostOnce) => failed_permanently(
                Reason::OutcomeUnknown,
                format!("{error}; it may have run, and must not run twice"),
            ),
            (OnResponseTimeout::Fail, _) => {
                let reason = match error {
                    TargetError::TimedOut => Reason::Timeout,
                    _ => Reason::ConnectionLost,
                };
                DeliveryOutcome::Report(ReportOutcome::Failed {
                    failure: Failure::new(reason, error.to_string()),
                    retryable: true,
                })
            }
        }
    }
}

/// The outcome of a delivery whose retries are used up.
fn exhausted(NotDelivered { message, after, status }: NotDelivered) -> DeliveryOutcome {
    DeliveryOutcome::Report(ReportOutcome::Failed {
        failure: Failure {
            status,
            retry_after: after,
            ..Failure::new(Reason::NotDelivered, message)
        },
        retryable: true,
    })
}

/// A failure after which no attempt follows.
fn failed_permanently(reason: Reason, message: impl Into<String>) -> DeliveryOutcome {
    DeliveryOutcome::Report(ReportOutcome::Failed {
        failure: Failure::new(reason, message),
        retryable: false,
    })
}

/// Extends the lease of an attempt that continues at its worker until its timeout. Returns the
/// attempt's failure if no extension can be stored until the lease ends.
async fn keep_running(inner: &Arc<Inner>, job: &Job) -> Option<Report> {
    let run = job.life.running()?;
    let left = run.timeout_at.since(inner.engine.now());
    let beat = Heartbeat {
        id: job.id.clone(),
        job_type: None,
        attempt: job.life.attempt,
        token: Some(run.token),
        lease_seconds: Some(Seconds::from_millis(left.as_millis() as u64)),
        progress: None,
        checkpoint: None,
    };
    loop {
        match inner.engine.heartbeat(beat.clone()).await {
            // The worker has accepted the job, so this is retried until the lease ends.
            Err(Error::Unavailable { retry_after, .. }) if inner.engine.now() < run.lease_until => {
                inner.engine.ports().clock.sleep_until(inner.engine.now() + retry_after).await;
            }
            // No lease ends an unclaimed dispatch. Once the end of a lease is recorded, the report
            // is refused.
            Err(
                error @ (Error::Unavailable { .. } | Error::Unreadable(_) | Error::Internal(_)),
            ) => {
                let message = format!("its lease could not be extended: {error}");
                let failure = Failure::new(Reason::LeaseExpired, message);
                return Some(report(job, ReportOutcome::Failed { failure, retryable: true }));
            }
            // The attempt is over already, for example by a callback that arrived before the
            // response.
            Err(error) => {
                tracing::debug!(job = %job.id, %error, "an accepted attempt was over already");
                return None;
            }
            Ok(_) => return None,
        }
    }
}
