//! One attempt: its command, and the heartbeats that keep its lease while the command runs.
//!
//! The lease is the right to run. When the server reports its end, or no heartbeat is answered for
//! as long as the lease lasts, the command is ended: another worker may have the job by then.

use std::{convert::Infallible, io, time::Duration};

use serde_json::value::RawValue;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::{
    WorkPlan,
    command::{self, Stop},
    lines::{Log, News},
    report::{AttemptOutcome, Lease},
};
use crate::cli::{
    client::{Client, Error},
    context::print_error,
};
use tidegate_api::{BeatView, HeartbeatBody, LeaseView, Progress};

/// The lease if the server does not return one.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// Shortest time between two heartbeats.
const MIN_HEARTBEAT_INTERVAL: Duration = Duration::from_millis(50);

/// The progress, the checkpoints and the log lines that a command reports.
type Reported =
    (watch::Receiver<Option<Progress>>, watch::Receiver<Option<Box<RawValue>>>, Option<Log>);

/// The report of an attempt, or `None` if the worker lost its lease.
pub type AttemptEnd = io::Result<Option<AttemptOutcome>>;

/// Runs the command for `lease`; `kill` ends it at once.
///
/// # Errors
///
/// The command cannot be started.
pub async fn run(
    client: &Client,
    plan: &WorkPlan,
    lease: Lease,
    kill: watch::Receiver<bool>,
) -> AttemptEnd {
    let (stopper, stop) = watch::channel(None);
    let (progress_sender, progress) = watch::channel(None);
    let (checkpoint_sender, checkpoint) = watch::channel(None);
    let log = plan.log.then(Log::default);
    let news = News { progress: progress_sender, checkpoint: checkpoint_sender, log: log.clone() };
    let reported = (progress, checkpoint, log.clone());
    let outcome = tokio::select! {
        outcome = command::run(&plan.command, &lease, news, stop, plan.grace) => outcome?,
        never = keep_lease(client, plan, &lease, reported, &stopper) => match never {},
        never = forward_kill(kill, &stopper) => match never {},
    };
    let lost = *stopper.borrow() == Some(Stop::Lost);
    let log = log.map_or_else(Vec::new, |log| log.lines().0);
    Ok((!lost).then_some(AttemptOutcome { log, ..outcome }))
}

/// Ends the command when the worker is killed.
async fn forward_kill(
    mut kill: watch::Receiver<bool>,
    stopper: &watch::Sender<Option<Stop>>,
) -> Infallible {
    if kill.wait_for(|kill| *kill).await.is_ok() {
        stopper.send_replace(Some(Stop::Killed));
    }
    std::future::pending().await
}

/// Sends heartbeats at a third of the lease, and ends the command when the lease is over.
async fn keep_lease(
    client: &Client,
    plan: &WorkPlan,
    lease: &LeaseView<'_>,
    (mut progress, mut checkpoint, log): Reported,
    stopper: &watch::Sender<Option<Stop>>,
) -> Infallible {
    let duration = lease_duration(plan, lease);
    let beat = (duration / 3).max(MIN_HEARTBEAT_INTERVAL);
    let mut beats = interval_at(Instant::now() + beat, beat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut until = Instant::now() + duration;
    let (job, stop) = (&lease.job, |reason: Stop| {
        // The first reason wins. Only a kill, which `forward_kill` sends, replaces it.
        stopper.send_if_modified(|sent| sent.is_none() && sent.replace(reason).is_none());
    });
    loop {
        beats.tick().await;
        let sent = Instant::now();
        // Progress is sent once: the next heartbeat without a change omits it.
        let unsent = if progress.has_changed().unwrap_or(false) {
            progress.borrow_and_update().clone()
        } else {
            None
        };
        let kept = if checkpoint.has_changed().unwrap_or(false) {
            checkpoint.borrow_and_update().clone()
        } else {
            None
        };
        let (lines, next_line) = log.as_ref().map_or_else(Default::default, Log::lines);
        let body = HeartbeatBody {
            log: lines,
            checkpoint: kept.as_deref(),
            attempt: lease.attempt,
            lease_seconds: plan.lease,
            progress: unsent.as_ref().map(|unsent| unsent.percent),
            note: unsent.as_ref().and_then(|unsent| unsent.note.clone()),
        };
        let request = client
            .post(&["jobs", job.r#type.as_str(), job.id.as_str(), "heartbeat"])
            .token(&lease.token)
            .json(&body);
        let answer = tokio::time::timeout_at(until, request.send()).await;
        match answer.map(|answer| answer.and_then(|answer| answer.read::<BeatView>())) {
            Ok(Ok(beat)) => {
                until = sent + duration;
                if let Some(log) = &log {
                    log.accepted(next_line);
                }
                if beat.cancel {
                    stop(Stop::Cancelled);
                }
            }
            Ok(Err(Error::Problem(problem))) if matches!(problem.status, 404 | 409 | 410) => {
                print_error(format_args!(
                    "[{}] attempt {} is over for the server: {problem}",
                    job.id, lease.attempt
                ));
                stop(Stop::Lost);
            }
            Ok(Err(err)) => {
                // What was rejected is not sent again: the heartbeat matters more.
                if unsent.is_some() && err.passes() {
                    progress.mark_changed();
                }
                if kept.is_some() && err.passes() {
                    checkpoint.mark_changed();
                }
                if let Some(log) = log.as_ref().filter(|_| !err.passes()) {
                    log.accepted(next_line);
                }
                print_error(format_args!("[{}] a heartbeat failed: {err}", job.id));
            }
            Err(_) => {}
        }
        if Instant::now() >= until {
            print_error(format_args!(
                "[{}] the lease expired without an answer to a heartbeat",
                job.id
            ));
            stop(Stop::Lost);
        }
    }
}

/// Returns the duration of the lease by the server's clock alone, so a wrong local clock does no
/// harm.
fn lease_duration(plan: &WorkPlan, lease: &LeaseView<'_>) -> Duration {
    let granted = lease.job.started_at.map(|from| lease.expires_at.since(from));
    granted
        .filter(|duration| !duration.is_zero())
        .or(plan.lease.map(Into::into))
        .unwrap_or(DEFAULT_LEASE)
}
