//! Work that arrived becomes attempts: claimed when it is due, sent to its target, settled, told of.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};

use super::super::{Server, deliver};
use crate::telemetry::metrics;
use tidegate_core::{
    job::{
        Job,
        lifecycle::{Failure, Reason},
    },
    port::Work,
    time::Timestamp,
};
use tidegate_engine::{Catalog, Claimed, Error, request::Report};

/// What is due later than this goes back, to arrive in time.
const SOON: Duration = Duration::from_secs(2);
/// What has less time than this is left to another call.
const LEAST: Duration = Duration::from_secs(2);
/// The wait before a store that failed is told a result again.
const AGAIN: Duration = Duration::from_millis(250);

/// A step in the way of some work.
enum Step {
    /// A claim was answered.
    Claimed(Vec<usize>, Result<Vec<Option<Claimed>>, Error>),
    /// An attempt is over, or goes on elsewhere.
    Over(Option<Report>),
    /// Results were written.
    Settled,
}

impl Server {
    /// Claims `work`, each piece when it is due, and sends each job to its target, many at once. Whether each piece is dealt with; the others are
    /// to arrive again. What has no answer by `until` is given up.
    pub async fn deliver(&self, work: Vec<Work>, until: Timestamp) -> Vec<bool> {
        let now = self.now();
        let mut done = vec![true; work.len()];
        let mut steps: FuturesUnordered<BoxFuture<'_, Step>> = FuturesUnordered::new();
        for (at, pieces) in by_time(&work, now) {
            if at + LEAST > until {
                again(&mut done, &pieces);
            } else if at > now + SOON {
                let early: Vec<Work> = pieces.iter().map(|index| work[*index].clone()).collect();
                if let Err(error) = self.engine().ports().work.send(&early).await {
                    tracing::warn!(error = %error.chain(), "work that came too early was not sent back");
                    again(&mut done, &pieces);
                }
            } else {
                let these: Vec<Work> = pieces.iter().map(|index| work[*index].clone()).collect();
                steps.push(self.claim_at(at, pieces, these).boxed());
            }
        }
        while let Some(first) = steps.next().await {
            // What is over at the same time is settled in one go.
            let mut ready = vec![first];
            while let Some(Some(step)) = steps.next().now_or_never() {
                ready.push(step);
            }
            let mut reports = Vec::new();
            for step in ready {
                match step {
                    Step::Claimed(_, Ok(claims)) => {
                        let claimed: Vec<Claimed> = claims.into_iter().flatten().collect();
                        if !claimed.is_empty() {
                            metrics::claimed(&claimed, self.now());
                            // One for all, as the claim has just read it.
                            let catalog = self.engine().known_catalog().await;
                            steps.extend(claimed.into_iter().map(|claimed| {
                                self.attempt(claimed.job, catalog.clone(), until).boxed()
                            }));
                        }
                    }
                    Step::Claimed(pieces, Err(error)) => {
                        tracing::warn!(%error, pieces = pieces.len(), "work was not claimed");
                        again(&mut done, &pieces);
                    }
                    Step::Over(report) => reports.extend(report),
                    Step::Settled => {}
                }
            }
            if !reports.is_empty() {
                steps.push(self.settle_until(reports, until).boxed());
            }
        }
        let _ = self.flush().await;
        done
    }

    async fn claim_at(&self, at: Timestamp, pieces: Vec<usize>, work: Vec<Work>) -> Step {
        self.engine().ports().clock.sleep_until(at).await;
        Step::Claimed(pieces, self.engine().claim(&work, None).await)
    }

    async fn attempt(
        &self,
        job: Job,
        catalog: Result<Arc<Catalog>, Error>,
        until: Timestamp,
    ) -> Step {
        let report = match catalog {
            Ok(catalog) => deliver::push(&self.inner, job, &catalog, until).await,
            // Its type cannot be read, so where it goes is not known.
            Err(error) => Some(deliver::failed(
                &job,
                Failure::new(Reason::NotDelivered, error.to_string()),
                true,
                Duration::ZERO,
            )),
        };
        Step::Over(report)
    }

    /// Settles results, again and again while the store fails: nobody else knows them.
    async fn settle_until(&self, mut reports: Vec<Report>, until: Timestamp) -> Step {
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
            self.engine().ports().clock.sleep_until(now + AGAIN).await;
        }
        if !reports.is_empty() {
            tracing::error!(
                results = reports.len(),
                "results could not be written; the attempts are lost when their leases end"
            );
        }
        let _ = self.flush().await;
        Step::Settled
    }

    /// Ends as failed the attempts of work that was received again and again and never dealt with. Whether each piece is dealt with.
    pub async fn fail_undeliverable(&self, work: Vec<Work>) -> Vec<bool> {
        let claimed = match self.engine().claim(&work, None).await {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::warn!(%error, "work that was given up was not claimed");
                return vec![false; work.len()];
            }
        };
        let why = "its message was received again and again, and never dealt with";
        let (mut reports, mut places) = (Vec::new(), Vec::new());
        for (index, claim) in claimed.into_iter().enumerate() {
            let Some(claimed) = claim else { continue };
            metrics::claimed(std::slice::from_ref(&claimed), self.now());
            let job = claimed.job;
            reports.push(deliver::failed(
                &job,
                Failure::new(Reason::NotDelivered, why),
                true,
                Duration::ZERO,
            ));
            places.push(index);
        }
        for (place, answer) in places.into_iter().zip(self.report(reports).await) {
            // Claimed and not settled: the lease ends the attempt.
            if let Err(error) = answer {
                tracing::warn!(job = %work[place].job, %error, "work that was given up was not recorded");
            }
        }
        let _ = self.flush().await;
        vec![true; work.len()]
    }
}

/// The pieces by when they can be claimed. Those due within the same tenth of a second are claimed together, by the last of them.
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

/// These pieces are to arrive again.
fn again(done: &mut [bool], pieces: &[usize]) {
    for index in pieces {
        done[*index] = false;
    }
}
