//! Work that arrived becomes attempts: claimed when due, sent to its target, settled, announced.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};

use super::super::{Server, deliver};
use crate::telemetry::metrics;
use tidegate_core::{job::Job, port::Work, time::Timestamp};
use tidegate_engine::{Catalog, Claimed, Error, request::Report};

/// Work that is due later than this goes back to the queue, to arrive in time.
const MAX_CLAIM_WAIT: Duration = Duration::from_secs(2);
/// Work that would have less time than this is left to another invocation.
const MIN_ATTEMPT_TIME: Duration = Duration::from_secs(2);
/// The wait before a result is written again after a store error.
const ERROR_BACKOFF: Duration = Duration::from_millis(250);

/// A completed step of some work.
enum DeliveryStep {
    /// A claim was answered.
    Claimed(Vec<usize>, Result<Vec<Option<Claimed>>, Error>),
    /// An attempt is over (a report), or continues at its worker (none).
    Over(Option<Report>),
    /// Results were written.
    Settled,
}

impl Server {
    /// Claims `work`, each piece when it is due, and sends the jobs to their targets concurrently.
    /// Returns for each piece whether it is done; the others must arrive again. A call without a
    /// response by `until` fails.
    pub async fn deliver(&self, work: Vec<Work>, until: Timestamp) -> Vec<bool> {
        let now = self.now();
        let mut done = vec![true; work.len()];
        let mut steps: FuturesUnordered<BoxFuture<'_, DeliveryStep>> = FuturesUnordered::new();
        for (at, pieces) in by_time(&work, now) {
            if at + MIN_ATTEMPT_TIME > until {
                redeliver(&mut done, &pieces);
            } else if at > now + MAX_CLAIM_WAIT {
                let early: Vec<Work> = pieces.iter().map(|index| work[*index].clone()).collect();
                if let Err(error) = self.engine().ports().work.send(&early).await {
                    tracing::warn!(
                        error = %error.chain(),
                        "work that arrived too early was not sent back"
                    );
                    redeliver(&mut done, &pieces);
                }
            } else {
                let these: Vec<Work> = pieces.iter().map(|index| work[*index].clone()).collect();
                steps.push(self.claim_at(at, pieces, these).boxed());
            }
        }
        while let Some(first) = steps.next().await {
            // Attempts that end at the same time are settled together.
            let mut ready = vec![first];
            while let Some(Some(step)) = steps.next().now_or_never() {
                ready.push(step);
            }
            let mut reports = Vec::new();
            for step in ready {
                match step {
                    DeliveryStep::Claimed(_, Ok(claims)) => {
                        let claimed: Vec<Claimed> = claims.into_iter().flatten().collect();
                        if !claimed.is_empty() {
                            metrics::claimed(&claimed, self.now());
                            // One for all; the claim has just read it.
                            let catalog = self.engine().known_catalog().await;
                            steps.extend(claimed.into_iter().map(|claimed| {
                                self.attempt(claimed.job, catalog.clone(), until).boxed()
                            }));
                        }
                    }
                    DeliveryStep::Claimed(pieces, Err(error)) => {
                        tracing::warn!(%error, pieces = pieces.len(), "work was not claimed");
                        redeliver(&mut done, &pieces);
                    }
                    DeliveryStep::Over(report) => reports.extend(report),
                    DeliveryStep::Settled => {}
                }
            }
            if !reports.is_empty() {
                steps.push(self.settle_until(reports, until).boxed());
            }
        }
        let _ = self.flush().await;
        done
    }

    async fn claim_at(&self, at: Timestamp, pieces: Vec<usize>, work: Vec<Work>) -> DeliveryStep {
        self.engine().ports().clock.sleep_until(at).await;
        DeliveryStep::Claimed(pieces, self.engine().claim(&work, None).await)
    }

    async fn attempt(
        &self,
        job: Job,
        catalog: Result<Arc<Catalog>, Error>,
        until: Timestamp,
    ) -> DeliveryStep {
        let report = match catalog {
            Ok(catalog) => deliver::push(&self.inner, job, &catalog, until).await,
            // Without its type its target is unknown.
            Err(error) => Some(deliver::not_delivered(&job, error.to_string(), true)),
        };
        DeliveryStep::Over(report)
    }

    /// Settles results and repeats them while the store is unavailable: no other process has them.
    async fn settle_until(&self, mut reports: Vec<Report>, until: Timestamp) -> DeliveryStep {
        loop {
            let answers = self.report(reports.clone()).await;
            let unsettled = reports
                .into_iter()
                .zip(answers)
                .filter(|(_, answer)| matches!(answer, Err(Error::Unavailable { .. })));
            reports = unsettled.map(|(report, _)| report).collect();
            let now = self.now();
            if reports.is_empty() || now >= until {
                break;
            }
            self.engine().ports().clock.sleep_until(now + ERROR_BACKOFF).await;
        }
        if !reports.is_empty() {
            tracing::error!(
                results = reports.len(),
                "results were not written; the leases will end these attempts"
            );
        }
        let _ = self.flush().await;
        DeliveryStep::Settled
    }

    /// Fails the attempts of work that was received too often without being done. Returns for each
    /// piece whether it is done.
    pub async fn fail_undeliverable(&self, work: Vec<Work>) -> Vec<bool> {
        let claimed = match self.engine().claim(&work, None).await {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::warn!(%error, "undeliverable work was not claimed");
                return vec![false; work.len()];
            }
        };
        let why = "its message was received repeatedly without success";
        let (mut reports, mut indices) = (Vec::new(), Vec::new());
        for (index, claim) in claimed.into_iter().enumerate() {
            let Some(claimed) = claim else { continue };
            metrics::claimed(std::slice::from_ref(&claimed), self.now());
            let job = claimed.job;
            reports.push(deliver::not_delivered(&job, why, true));
            indices.push(index);
        }
        for (index, answer) in indices.into_iter().zip(self.report(reports).await) {
            // The job is claimed but not settled, so its lease ends the attempt.
            if let Err(error) = answer {
                tracing::warn!(
                    job = %work[index].job,
                    %error,
                    "the failure of undeliverable work was not recorded"
                );
            }
        }
        let _ = self.flush().await;
        vec![true; work.len()]
    }
}

/// Groups the pieces by when they can be claimed. Pieces due within the same tenth of a second are
/// claimed together, when the last of them is due.
fn by_time(work: &[Work], now: Timestamp) -> Vec<(Timestamp, Vec<usize>)> {
    let mut groups: Vec<(Timestamp, Vec<usize>)> = Vec::new();
    let mut order: Vec<usize> = (0..work.len()).collect();
    let at = |index: usize| {
        if work[index].granted_at.is_some() { now } else { work[index].run_at.max(now) }
    };
    order.sort_by_key(|index| at(*index));
    let mut tenth = None;
    for index in order {
        let due = at(index);
        let of = (due > now).then(|| due.millis().div_euclid(100));
        match groups.last_mut().filter(|_| tenth == Some(of)) {
            Some((last, pieces)) => {
                *last = due;
                pieces.push(index);
            }
            None => groups.push((due, vec![index])),
        }
        tenth = Some(of);
    }
    groups
}

/// Marks pieces that must arrive again.
fn redeliver(done: &mut [bool], pieces: &[usize]) {
    for index in pieces {
        done[*index] = false;
    }
}
