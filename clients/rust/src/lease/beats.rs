//! The heartbeats of one leased attempt.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tidegate_api::BeatView;
use tokio::time::{Instant, sleep_until};

use super::{LeaseLoop, Leased, lock};
use crate::{
    attempt::{AbortReason, Changes},
    error::ErrorKind,
    heartbeat::{FLUSH_TIME, heartbeat},
    job::seconds,
    transport::Request,
};

/// A heartbeat waits for its answer at least this long, unless the lease is over before.
const MIN_BEAT_TIME: Duration = Duration::from_secs(1);
/// The pause after a heartbeat without an answer.
const MIN_BEAT_PAUSE: Duration = Duration::from_millis(50);
const MAX_BEAT_PAUSE: Duration = Duration::from_secs(1);

/// What follows a heartbeat.
enum Beaten {
    /// The next one, at a third of the lease, or after this span.
    Again(Option<Duration>),
    /// Nothing: the attempt is over.
    Over,
}

impl LeaseLoop {
    /// Sends heartbeats, at a third of the lease or when there is something to show, until the
    /// report is acknowledged or the attempt is over.
    pub(super) async fn beat(self: Arc<Self>, leased: Arc<Leased>) {
        let mut last = Instant::now();
        let mut next = last + leased.lease / 3;
        loop {
            tokio::select! {
                () = leased.reported.cancelled() => return,
                () = leased.job.changed() => {
                    next = next.min(last + FLUSH_TIME);
                    continue;
                }
                () = sleep_until(next) => {}
            }
            last = Instant::now();
            next = last + leased.lease / 3;
            let beating = leased.beating.lock().await;
            match self.beat_once(&leased).await {
                Beaten::Over => return,
                Beaten::Again(None) => {}
                Beaten::Again(Some(retry)) => next = Instant::now() + retry,
            }
            drop(beating);
        }
    }

    async fn beat_once(&self, leased: &Leased) -> Beaten {
        let is_finished = leased.is_finished.load(Ordering::Acquire);
        let shown = if is_finished { Changes::default() } else { leased.job.take() };
        let sent_at = Instant::now();
        let body = heartbeat(&leased.job, &shown, self.shared.options.lease.map(seconds));
        // Half of what is left, so that one that hangs leaves time for another. An attempt that runs
        // on is aborted when its lease is over by this worker's record, however the request hangs.
        let rest = lock(&leased.lost_at).saturating_duration_since(sent_at);
        let mut wait = MIN_BEAT_TIME.max(rest / 2);
        if !is_finished {
            wait = wait.min(rest.max(MIN_BEAT_PAUSE));
        }
        let request = Request::post(format!("{}/heartbeat", leased.target))
            .json(&body)
            .bearer(&leased.token)
            .timeout(wait);
        let answer = self.shared.client.transport.send(&request).await;
        match answer.and_then(|answer| answer.read::<BeatView>()) {
            Ok(answer) => {
                *lock(&leased.lost_at) = sent_at + leased.lease;
                if answer.cancel {
                    leased.job.abort(AbortReason::Cancelled);
                }
                Beaten::Again(None)
            }
            Err(err)
                if matches!(err.kind(), ErrorKind::NotFound | ErrorKind::Conflict)
                    && !err.is_retryable() =>
            {
                // The report was recorded, or the attempt is over.
                if !is_finished {
                    leased.job.abort(AbortReason::LeaseLost);
                }
                Beaten::Over
            }
            Err(err) if !matches!(err.status(), Some(400 | 413)) => {
                if !err.is_retryable() {
                    tracing::warn!(job = leased.job.id(), error = %err, "a heartbeat was refused");
                }
                leased.job.put_back(shown);
                if is_finished {
                    return Beaten::Again(Some(MAX_BEAT_PAUSE));
                }
                let rest = lock(&leased.lost_at).saturating_duration_since(Instant::now());
                if rest.is_zero() {
                    // Another worker may have the job.
                    leased.job.abort(AbortReason::LeaseLost);
                    return Beaten::Over;
                }
                Beaten::Again(Some((rest / 2).clamp(MIN_BEAT_PAUSE, MAX_BEAT_PAUSE)))
            }
            Err(err) => {
                tracing::warn!(job = leased.job.id(), error = %err, "a heartbeat was refused");
                Beaten::Again(None)
            }
        }
    }
}
