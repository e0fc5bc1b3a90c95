//! Work that arrived becomes attempts: claimed when due, sent to its target, settled, announced.

use std::{collections::VecDeque, sync::Arc, time::Duration};

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

/// What a delivery takes in addition to the data of its job: its connection, the job and a short
/// response.
const BASE_BYTES: u64 = 64 << 10;

/// A completed step of some work.
enum DeliveryStep {
    /// A claim was answered.
    Claimed(Vec<usize>, Result<Vec<Option<Claimed>>, Error>),
    /// An attempt is over (a report), or continues at its worker (none). It took this much memory.
    Over(Option<Report>, u64),
    /// Results were written.
    Settled,
}

/// The memory that concurrent deliveries may take, in bytes.
struct Memory {
    most: u64,
    taken: u64,
}

impl Memory {
    /// Takes memory for the first of `pieces`, as many as fit. A delivery that is alone always
    /// fits. Returns their number.
    fn take(&mut self, work: &[Work], pieces: &[usize]) -> usize {
        let mut fitting = 0;
        for index in pieces {
            let needed = delivery_bytes(work[*index].data_bytes);
            if self.taken > 0 && self.taken.saturating_add(needed) > self.most {
                break;
            }
            self.taken = self.taken.saturating_add(needed);
            fitting += 1;
        }
        fitting
    }

    fn give_back(&mut self, bytes: u64) {
        self.taken = self.taken.saturating_sub(bytes);
    }
}

/// The memory that a delivery takes: the data, once as stored and once in its request.
fn delivery_bytes(data_bytes: u64) -> u64 {
    data_bytes.saturating_mul(2).saturating_add(BASE_BYTES)
}

impl Server {
    /// Claims `work`, each piece when it is due, and sends the jobs to their targets concurrently,
    /// as many as fit into [`Options::delivery_bytes`](super::super::Options::delivery_bytes).
    /// Returns for each piece whether it is done; the others must arrive again. A call without a
    /// response by `until` fails.
    pub async fn deliver(&self, work: Vec<Work>, until: Timestamp) -> Vec<bool> {
        let now = self.now();
        let mut done = vec![true; work.len()];
        let mut steps: FuturesUnordered<BoxFuture<'_, DeliveryStep>> = FuturesUnordered::new();
        let most = self.inner.options.delivery_bytes.unwrap_or(u64::MAX);
        let mut memory = Memory { most, taken: 0 };
        let mut waiting = VecDeque::new();
        for (at, pieces) in by_time(&work, now) {
            if at + MIN_ATTEMPT_TIME > until {
                redeliver(&mut done, &pieces);
            } else if at > now + MAX_CLAIM_WAIT {
                self.send_back(&work, &pieces, &mut done).await;
            } else {
                waiting.push_back((at, pieces));
            }
        }
        loop {
            while let Some((at, mut pieces)) = waiting.pop_front() {
                if at.max(self.now()) + MIN_ATTEMPT_TIME > until {
                    self.send_back(&work, &pieces, &mut done).await;
                    continue;
                }
                let later = pieces.split_off(memory.take(&work, &pieces));
                if !pieces.is_empty() {
                    let these = pieces.iter().map(|index| work[*index].clone()).collect();
                    steps.push(self.claim_at(at, pieces, these).boxed());
                }
                if !later.is_empty() {
                    waiting.push_front((at, later));
                    break;
                }
            }
            let Some(first) = steps.next().await else { break };
            // Attempts that end at the same time are settled together.
            let mut ready = vec![first];
            while let Some(Some(step)) = steps.next().now_or_never() {
                ready.push(step);
            }
            let mut reports = Vec::new();
            for step in ready {
                match step {
                    DeliveryStep::Claimed(pieces, Ok(claims)) => {
                        let mut claimed = Vec::new();
                        for (index, claim) in pieces.into_iter().zip(claims) {
                            let bytes = delivery_bytes(work[index].data_bytes);
                            match claim {
                                Some(claim) => claimed.push((claim, bytes)),
                                None => memory.give_back(bytes),
                            }
                        }
                        if claimed.is_empty() {
                            continue;
                        }
                        // One for all; the claim has just read it.
                        let catalog = self.engine().known_catalog().await;
                        for (claim, bytes) in claimed {
                            metrics::claimed(std::slice::from_ref(&claim), self.now());
                            let attempt = self.attempt(claim.job, catalog.clone(), until);
                            let over = move |report| DeliveryStep::Over(report, bytes);
                            steps.push(attempt.map(over).boxed());
                        }
                    }
                    DeliveryStep::Claimed(pieces, Err(error)) => {
                        tracing::warn!(%error, pieces = pieces.len(), "work was not claimed");
                        for index in &pieces {
                            memory.give_back(delivery_bytes(work[*index].data_bytes));
                        }
                        redeliver(&mut done, &pieces);
                    }
                    DeliveryStep::Over(report, bytes) => {
                        memory.give_back(bytes);
                        reports.extend(report);
                    }
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

    /// Sends pieces that cannot start in this invocation to the work queue again. Those that cannot
    /// be sent must arrive again.
    async fn send_back(&self, work: &[Work], pieces: &[usize], done: &mut [bool]) {
        let pieces_again: Vec<Work> = pieces.iter().map(|index| work[*index].clone()).collect();
        if let Err(error) = self.engine().ports().work.send(&pieces_again).await {
            tracing::warn!(error = %error.chain(), "work was not sent back to the work queue");
            redeliver(done, pieces);
        }
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
    ) -> Option<Report> {
        match catalog {
            Ok(catalog) => deliver::push(&self.inner, job, &catalog, until).await,
            // Without its type its target is unknown.
            Err(error) => Some(deliver::not_delivered(&job, error.to_string(), true)),
        }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;

    use super::*;
    use crate::runtime::{Options, testing};
    use tidegate_core::{
        job::{Payload, type_config::TypeConfig},
        port::{
            Clock, Target,
            target::{Request, Response, TargetError},
        },
        target::{Push, TargetConfig},
    };
    use tidegate_engine::{
        Ports,
        memory::{FakeClock, MemoryWorkQueue},
        request::NewJob,
        testkit::builders::name,
    };

    /// Answers every push after a while, and records how many bytes were under way at once.
    #[derive(Default)]
    struct Slow {
        bytes: AtomicUsize,
        peak: AtomicUsize,
        calls: AtomicUsize,
    }

    #[async_trait]
    impl Target for Slow {
        async fn call(&self, request: Request) -> Result<Response, TargetError> {
            let bytes = request.body.len();
            let now = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
            self.peak.fetch_max(now, Ordering::Relaxed);
            self.calls.fetch_add(1, Ordering::Relaxed);
            for _ in 0..9 {
                tokio::task::yield_now().await;
            }
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            Ok(Response { status: 200, headers: Vec::new(), body: bytes::Bytes::new() })
        }
    }

    #[tokio::test]
    async fn deliveries_wait_for_memory_before_their_claim() {
        const MOST: u64 = 1 << 20;
        for (jobs, size) in [(60, 100_000), (300, 10), (4, 1_500_000)] {
            let clock = Arc::new(FakeClock::default());
            let (queue, slow) = (Arc::new(MemoryWorkQueue::default()), Arc::new(Slow::default()));
            let ports = Ports { work: Arc::clone(&queue) as _, ..testing::ports(&clock) };
            let options = Options { delivery_bytes: Some(MOST), ..Options::default() };
            let builder = Server::builder(ports, Arc::clone(&slow) as _).options(options);
            let server = builder.serverless().start().await.unwrap();
            let push = Push::to("http://127.0.0.1:9/");
            let target = TargetConfig::Push(Box::new(push));
            let config = TypeConfig { target: Some(target), ..TypeConfig::default() };
            server.put_type(&name("work"), config, None).await.unwrap();
            let data = format!("\"{}\"", "x".repeat(size));
            for _ in 0..jobs {
                let data = Payload::json(data.clone());
                server.enqueue(NewJob::new(name("work"), data)).await.unwrap();
            }
            server.flush().await.unwrap();
            let work = queue.take(jobs, clock.now());
            assert_eq!(work.len(), jobs);
            let done = server.deliver(work, clock.now() + Duration::from_mins(1)).await;
            assert_eq!(done, vec![true; jobs]);
            assert_eq!(slow.calls.load(Ordering::Relaxed), jobs);
            // A delivery that is alone always fits.
            let fits = (MOST / delivery_bytes(size as u64)).max(1) as usize;
            let peak = slow.peak.load(Ordering::Relaxed);
            assert!((size * fits..=(size + 2000) * fits).contains(&peak), "{size}: {peak}");
        }
    }
}
