//! One attempt: its command, and the heartbeats that keep its lease while the command runs.
//!
//! The lease is the right to run. When the server says that it is over, or nothing was heard of the server
//! for as long as it lasts, the command is ended: another worker may have the job by then.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::{
    WorkPlan,
    command::{self, Stop},
    lease::{Beaten, Heartbeat, Lease, Progress, ReportResult},
};
use crate::cli::{
    client::{Client, Error},
    context::print_error,
};

/// What a lease lasts if the server does not say.
const USUAL_LEASE: Duration = Duration::from_secs(30);
/// The least time between two heartbeats.
const LEAST_BEAT: Duration = Duration::from_millis(50);

/// How an attempt ended: `None` when it is no longer this worker's and nobody wants to know.
pub type Ended = io::Result<Option<ReportResult>>;

/// Runs the command for `lease`; `kill` ends it at once.
///
/// # Errors
///
/// The command cannot be started.
pub async fn run(
    client: &Client,
    plan: &WorkPlan,
    lease: Arc<Lease>,
    kill: watch::Receiver<bool>,
) -> Ended {
    let (tell, stop) = watch::channel(None);
    let (say, progress) = watch::channel(None);
    let outcome = tokio::select! {
        outcome = command::run(&plan.command, &lease, say, stop, plan.grace) => outcome?,
        never = keep(client, plan, &lease, progress, &tell) => match never {},
        never = pass_on(kill, &tell) => match never {},
    };
    let lost = *tell.borrow() == Some(Stop::Lost);
    Ok((!lost).then_some(outcome))
}

/// Tells the command when the worker is killed.
async fn pass_on(
    mut kill: watch::Receiver<bool>,
    tell: &watch::Sender<Option<Stop>>,
) -> Infallible {
    if kill.wait_for(|kill| *kill).await.is_ok() {
        tell.send_replace(Some(Stop::Killed));
    }
    std::future::pending().await
}

/// Keeps the lease by heartbeats, a third of it apart, and tells the command when it must end.
async fn keep(
    client: &Client,
    plan: &WorkPlan,
    lease: &Lease,
    mut progress: watch::Receiver<Option<Progress>>,
    tell: &watch::Sender<Option<Stop>>,
) -> Infallible {
    let lasts = lasts(plan, lease);
    let beat = (lasts / 3).max(LEAST_BEAT);
    let mut beats = interval_at(Instant::now() + beat, beat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut until = Instant::now() + lasts;
    let (job, stop) = (&lease.job, |why: Stop| {
        // The first reason stands, except that a kill, told elsewhere, overrules it.
        tell.send_if_modified(|told| told.is_none() && told.replace(why).is_none());
    });
    loop {
        beats.tick().await;
        let sent = Instant::now();
        // Said once: a heartbeat without news says nothing of progress.
        let news = if progress.has_changed().unwrap_or(false) {
            progress.borrow_and_update().clone()
        } else {
            None
        };
        let body = Heartbeat {
            attempt: lease.attempt,
            lease_seconds: plan.lease,
            progress: news.as_ref(),
        };
        let request = client
            .post(&["jobs", &job.r#type, &job.id, "heartbeat"])
            .token(&lease.token)
            .json(&body);
        let answer = tokio::time::timeout_at(until, request.send()).await;
        match answer.map(|answer| answer.and_then(|answer| answer.read::<Beaten>())) {
            Ok(Ok(beaten)) => {
                until = sent + lasts;
                if beaten.cancel {
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
                // What the server refuses is not said again: the lease matters more.
                if news.is_some() && err.passes() {
                    progress.mark_changed();
                }
                print_error(format_args!("[{}] a heartbeat failed: {err}", job.id));
            }
            Err(_) => {}
        }
        if Instant::now() >= until {
            print_error(format_args!(
                "[{}] no heartbeat was answered for as long as the lease lasts",
                job.id
            ));
            stop(Stop::Lost);
        }
    }
}

/// How long the lease lasts, by the server's clock alone, so that a clock that is off does no harm.
fn lasts(plan: &WorkPlan, lease: &Lease) -> Duration {
    let said = lease.expires_at.zip(lease.job.started_at).map(|(until, from)| until.since(from));
    said.filter(|lasts| !lasts.is_zero()).or(plan.lease.map(Into::into)).unwrap_or(USUAL_LEASE)
}
