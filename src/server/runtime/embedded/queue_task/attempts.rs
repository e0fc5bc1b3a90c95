//! Attempts that this process runs: pushes to targets, and handlers.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use parking_lot::Mutex;

use super::{ExecutionSlot, Task, TaskMessage};
use crate::runtime::{
    Inner, Server, StopPhase, deliver,
    embedded::handler::{Call, Handled, Handler},
};
use tidegate_core::{
    job::{
        Job,
        lifecycle::{Failure, Reason},
    },
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    Catalog, Error,
    request::{Heartbeat, Report, ReportOutcome},
};

/// The lease of a handler whose type was deleted.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// How many heartbeats a handler's lease has.
const HEARTBEATS_PER_LEASE: u32 = 3;

impl Task {
    /// Starts a claimed job in a slot of this process, unless its lease is over: the store may have been
    /// slow, or this process frozen, and another attempt may run by now.
    pub(super) fn start(
        &self,
        inner: &Arc<Inner>,
        slot: ExecutionSlot,
        job: Job,
        catalog: &Arc<Catalog>,
    ) {
        let (server, sender, catalog, busy) =
            (Arc::clone(inner), self.sender.clone(), Arc::clone(catalog), self.busy.clone());
        let ends_at = job.life.running().map(|run| run.lease_until);
        let lease_until = Mutex::new(ends_at.unwrap_or(Timestamp::EPOCH));
        inner.spawn(async move {
            let report = match &slot {
                _ if ends_at.is_some_and(|at| at <= server.engine.now()) => None,
                // Boxed: this future is much larger than that of a handler.
                ExecutionSlot::Push => {
                    Box::pin(deliver::push(&server, job, &catalog, Timestamp::MAX)).await
                }
                ExecutionSlot::Handler(name) => match server.handlers.get(name) {
                    Some(handler) => {
                        let alive = Box::pin(keep_alive(&server, &job, &catalog, &lease_until));
                        tokio::select! {
                            biased;
                            report = handle(&server, handler, job.clone()) => Some(report),
                            () = alive => None,
                        }
                    }
                    None => None,
                },
            };
            let report = match report {
                Some(report) if report.is_large() => {
                    Some(Box::pin(bounded(&server, report, lease_until.into_inner())).await)
                }
                report => report,
            };
            let _ = sender.send(TaskMessage::Done(Some(slot), report, busy));
        });
    }
}

/// Sends heartbeats for a handler, so that its lease ends soon after a crash of this process.
/// Returns when the attempt is over. `lease_until` is when the extended lease ends.
async fn keep_alive(inner: &Inner, job: &Job, catalog: &Catalog, lease_until: &Mutex<Timestamp>) {
    let Some(run) = job.life.running() else {
        return;
    };
    let lease = catalog
        .types
        .get(&job.spec.job_type)
        .map_or(DEFAULT_LEASE, |item| item.config.lease_seconds.duration());
    loop {
        let clock = &inner.engine.ports().clock;
        clock.sleep_until(clock.now() + lease / HEARTBEATS_PER_LEASE).await;
        let beat = Heartbeat {
            id: job.id.clone(),
            job_type: None,
            attempt: job.life.attempt,
            token: Some(run.token),
            lease_seconds: Some(Seconds::from_millis(lease.as_millis() as u64)),
            progress: None,
            checkpoint: None,
        };
        match inner.engine.heartbeat(beat).await {
            Ok(answer) => *lease_until.lock() = answer.expires_at,
            Err(Error::Unavailable { .. } | Error::Unreadable(_) | Error::Internal(_)) => {}
            // The attempt was ended or timed out: the handler's result has no use.
            Err(_) => return,
        }
    }
}

/// The report with its result stored as an object if it is large. A result over the server's bound
/// fails the attempt, and so does object storage that is unavailable until the lease ends.
async fn bounded(inner: &Inner, report: Report, lease_until: Timestamp) -> Report {
    loop {
        let error = match inner.engine.prepare_report(report.clone()).await {
            Ok(report) => return report,
            // The work is done: a retry of the storage avoids another attempt.
            Err(Error::Unavailable { retry_after, .. })
                if inner.engine.now() < lease_until
                    && *inner.stopping.borrow() < StopPhase::Stopped =>
            {
                inner.engine.ports().clock.sleep_until(inner.engine.now() + retry_after).await;
                continue;
            }
            Err(error) => error,
        };
        // Reported, because no lease ends an unclaimed dispatch. Once the end of a lease is
        // recorded, the report is refused.
        let retryable = matches!(error, Error::Unavailable { .. });
        let failure = Failure::new(Reason::Failed, format!("its result cannot be stored: {error}"));
        let outcome = ReportOutcome::Failed { failure, retryable };
        return Report { outcome, ..report };
    }
}

/// Runs a handler; a panic is a failure of the attempt.
async fn handle(inner: &Arc<Inner>, handler: &Handler, job: Job) -> Report {
    let (id, attempt) = (job.id.clone(), job.life.attempt);
    let token = job.life.running().map(|run| run.token);
    let loaded = if job.is_whole() {
        Ok(Some(job))
    } else {
        Box::pin(inner.engine.load(vec![job])).await.map(|mut jobs| jobs.pop())
    };
    let handled = match loaded {
        Ok(Some(job)) => {
            let server = Server { inner: Arc::clone(inner) };
            let work = AssertUnwindSafe(async { (handler.run)(Call { job, server }).await })
                .catch_unwind();
            work.await.unwrap_or_else(|_| Handled::failed("the handler panicked"))
        }
        Ok(None) => Handled::failed("the job vanished"),
        Err(error) => Handled::failed(error.to_string()),
    };
    let outcome = match handled {
        Handled::Succeeded(result) => {
            ReportOutcome::Succeeded { result: result.map(tidegate_core::job::Body::Inline) }
        }
        Handled::Failed { failure, retryable } => ReportOutcome::Failed { failure, retryable },
        Handled::HandedBack(hand_back) => ReportOutcome::HandedBack(hand_back),
    };
    Report { id, job_type: None, attempt, token, outcome, checkpoint: None }
}
