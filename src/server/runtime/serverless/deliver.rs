//! Work that arrived becomes attempts: claimed when due, sent to its target, settled, announced.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};

use super::{
    super::{Server, deliver},
    unclaimed::{Pace, Unclaimed, by_time},
};
use crate::telemetry::metrics;
use tidegate_core::{job::Job, port::Work, time::Timestamp};
use tidegate_engine::{Catalog, Claimed, Error, request::Report};

/// Work that is due later than this goes back to the queue, to arrive in time.
const MAX_CLAIM_WAIT: Duration = Duration::from_secs(2);
/// Work that would have less time than this is left to another invocation.
const MIN_ATTEMPT_TIME: Duration = Duration::from_secs(2);
/// How long an invocation claims. What it has not claimed by then, because the store or the memory
/// is short of capacity, goes back to the queue, so that the work of other queues gets its turn.
const MAX_CLAIM_TIME: Duration = Duration::from_secs(4);
/// The wait before a result is written again after a store error.
const ERROR_BACKOFF: Duration = Duration::from_millis(250);
/// Most pieces of one claim, and results of one settlement. The store may refuse one as a whole, so
/// a large one costs much.
const MAX_GROUP: usize = 25;

/// A completed step of some work.
enum DeliveryStep {
    /// The time of the next piece has come.
    Due,
    /// A claim was answered.
    Claimed(Vec<usize>, Result<Vec<Option<Claimed>>, Error>),
    /// The attempt of a piece is over (a report), or continues at its worker (none).
    Over(Option<Report>, usize),
    /// Results were written, but these were refused.
    Settled(Vec<Report>),
}

/// The work of an invocation.
struct Delivery<'a> {
    server: &'a Server,
    work: &'a [Work],
    /// A call without a response by then fails.
    until: Timestamp,
    /// For each piece whether it need not arrive again.
    done: Vec<bool>,
    unclaimed: Unclaimed<'a>,
    /// Whether the store has answered a claim.
    is_answered: bool,
    /// Results that are not written yet.
    unsettled: Vec<Report>,
    pace: Pace,
    steps: FuturesUnordered<BoxFuture<'a, DeliveryStep>>,
    /// When the next [`DeliveryStep::Due`] comes, if one is under way.
    wakes_at: Option<Timestamp>,
}

impl Delivery<'_> {
    /// Sends `pieces`, which cannot start in this invocation, to the work queue again. Those that
    /// cannot be sent must arrive again.
    async fn send_back(&mut self, pieces: &[usize]) {
        if pieces.is_empty() {
            return;
        }
        let again: Vec<Work> = pieces.iter().map(|index| self.work[*index].clone()).collect();
        if let Err(error) = self.server.engine().ports().work.send(&again).await {
            tracing::warn!(error = %error.chain(), "work was not sent back to the work queue");
            self.redeliver(pieces);
        }
    }

    /// Marks pieces that must arrive again.
    fn redeliver(&mut self, pieces: &[usize]) {
        for index in pieces {
            self.done[*index] = false;
        }
    }

    /// Begins as many settlements and claims as the store takes. Settlements come first: each ends
    /// an attempt, and each claim begins one.
    fn start(&mut self) {
        let (server, now) = (self.server, self.server.now());
        while !self.unsettled.is_empty() && self.pace.has_room_for_settlement() {
            let rest = self.unsettled.split_off(self.unsettled.len().min(MAX_GROUP));
            let group = std::mem::replace(&mut self.unsettled, rest);
            self.pace.start();
            self.steps.push(server.settle_group(group).boxed());
        }
        while self.unsettled.is_empty()
            && self.pace.has_room()
            && let Some(pieces) = self.unclaimed.next(now, MAX_GROUP)
        {
            let these: Vec<Work> = pieces.iter().map(|index| self.work[*index].clone()).collect();
            self.pace.start();
            let claim = async move { server.engine().claim(&these, None).await };
            self.steps.push(claim.map(|claims| DeliveryStep::Claimed(pieces, claims)).boxed());
        }
        let next = self.unclaimed.next_at().filter(|at| *at > now);
        if let Some(at) = next.filter(|at| self.wakes_at.is_none_or(|wakes| *at < wakes)) {
            self.wakes_at = Some(at);
            let clock = &server.engine().ports().clock;
            self.steps.push(clock.sleep_until(at).map(|()| DeliveryStep::Due).boxed());
        }
    }

    /// Does what follows a step.
    async fn follow(&mut self, step: DeliveryStep) {
        match step {
            DeliveryStep::Due => self.wakes_at = None,
            DeliveryStep::Claimed(pieces, Ok(claims)) => {
                self.pace.answered(false);
                self.is_answered = true;
                self.attempt(pieces, claims).await;
            }
            DeliveryStep::Claimed(pieces, Err(error)) => {
                self.pace.answered(true);
                for piece in &pieces {
                    self.unclaimed.give_back(*piece);
                }
                if let Error::Unavailable { retry_after, .. } = error {
                    tracing::debug!(%error, pieces = pieces.len(), "work is claimed later");
                    self.unclaimed.push(self.server.now() + retry_after, pieces);
                } else {
                    tracing::warn!(%error, pieces = pieces.len(), "work was not claimed");
                    self.redeliver(&pieces);
                }
            }
            DeliveryStep::Over(report, index) => {
                self.unclaimed.give_back(index);
                self.unsettled.extend(report);
            }
            DeliveryStep::Settled(refused) => {
                self.pace.answered(!refused.is_empty());
                self.unsettled.extend(refused);
            }
        }
    }

    /// Begins the attempts of the claimed ones of `pieces`.
    async fn attempt(&mut self, pieces: Vec<usize>, claims: Vec<Option<Claimed>>) {
        let (server, until) = (self.server, self.until);
        let mut claimed = Vec::new();
        for (index, claim) in pieces.into_iter().zip(claims) {
            match claim {
                Some(claim) => claimed.push((claim, index)),
                None => self.unclaimed.give_back(index),
            }
        }
        if claimed.is_empty() {
            return;
        }
        // One for all; the claim has just read it.
        let catalog = server.engine().known_catalog().await;
        for (claim, index) in claimed {
            metrics::claimed(std::slice::from_ref(&claim), server.now());
            let attempt = server.attempt(claim.job, catalog.clone(), until);
            let over = move |report| DeliveryStep::Over(report, index);
            self.steps.push(attempt.map(over).boxed());
        }
    }
}

impl Server {
    /// Claims `work`, each piece when it is due, and sends the jobs to their targets concurrently,
    /// as many as fit into [`Options::delivery_bytes`](super::super::Options::delivery_bytes).
    /// Returns for each piece whether it is done; the others must arrive again. A call without a
    /// response by `until` fails.
    pub async fn deliver(&self, work: Vec<Work>, until: Timestamp) -> Vec<bool> {
        let now = self.now();
        let most = self.inner.options.delivery_bytes.unwrap_or(u64::MAX);
        let mut delivery = Delivery {
            server: self,
            work: &work,
            until,
            done: vec![true; work.len()],
            unclaimed: Unclaimed::new(&work, most),
            is_answered: false,
            unsettled: Vec::new(),
            pace: Pace::default(),
            steps: FuturesUnordered::new(),
            wakes_at: None,
        };
        for (at, pieces) in by_time(&work, now) {
            if at + MIN_ATTEMPT_TIME > until {
                delivery.redeliver(&pieces);
            } else if at > now + MAX_CLAIM_WAIT {
                delivery.send_back(&pieces).await;
            } else {
                delivery.unclaimed.push(at, pieces);
            }
        }
        loop {
            let is_over = self.now() > now + MAX_CLAIM_TIME;
            let last = if is_over { Timestamp::EPOCH } else { until - MIN_ATTEMPT_TIME };
            let late = delivery.unclaimed.take_after(self.now(), last);
            if is_over && !delivery.is_answered {
                // The store may be away for long. The queue waits longer before each repeat.
                delivery.redeliver(&late);
            } else {
                delivery.send_back(&late).await;
            }
            if self.now() >= until && !delivery.unsettled.is_empty() {
                tracing::error!(
                    results = delivery.unsettled.len(),
                    "results were not written; the leases will end these attempts"
                );
                delivery.unsettled.clear();
            }
            delivery.start();
            let Some(first) = delivery.steps.next().await else { break };
            // Attempts that end at the same time are settled together.
            let mut ready = vec![first];
            while let Some(Some(step)) = delivery.steps.next().now_or_never() {
                ready.push(step);
            }
            for step in ready {
                delivery.follow(step).await;
            }
        }
        let _ = self.flush().await;
        delivery.done
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

    /// Settles results. Those that the store did not take are settled again after a while: no other
    /// process has them.
    async fn settle_group(&self, reports: Vec<Report>) -> DeliveryStep {
        let answers = self.report(reports.clone()).await;
        let refused = reports.into_iter().zip(answers);
        let refused: Vec<Report> = refused
            .filter(|(_, answer)| matches!(answer, Err(Error::Unavailable { .. })))
            .map(|(report, _)| report)
            .collect();
        let _ = self.flush().await;
        if !refused.is_empty() {
            self.engine().ports().clock.sleep_until(self.now() + ERROR_BACKOFF).await;
        }
        DeliveryStep::Settled(refused)
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

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
        task::Poll,
    };

    use async_trait::async_trait;
    use futures_util::poll;

    use super::*;
    use crate::runtime::{Options, serverless::unclaimed, testing};
    use tidegate_core::{
        job::{Payload, type_config::TypeConfig},
        port::{
            Clock, Target,
            job_store::SharedStore,
            target::{Request, Response, TargetError},
        },
        target::{Push, TargetConfig},
    };
    use tidegate_engine::{
        Ports,
        memory::{FakeClock, MemoryStore, MemoryWorkQueue},
        request::NewJob,
        testkit::{
            builders::name,
            faults::{Faults, FaultyStore},
        },
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

    /// A server on `store`, and the work of so many jobs with data of this size.
    async fn server(
        clock: &Arc<FakeClock>,
        store: SharedStore,
        target: &Arc<Slow>,
        options: Options,
        (jobs, size): (usize, usize),
    ) -> (Server, Arc<MemoryWorkQueue>, Vec<Work>) {
        let queue = Arc::new(MemoryWorkQueue::default());
        let ports = Ports { store, work: Arc::clone(&queue) as _, ..testing::ports(clock) };
        let builder = Server::builder(ports, Arc::clone(target) as _).options(options);
        let server = builder.serverless().start().await.unwrap();
        let push = TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:9/")));
        let config = TypeConfig { target: Some(push), ..TypeConfig::default() };
        server.put_type(&name("work"), config, None).await.unwrap();
        let data = Payload::json(format!("\"{}\"", "x".repeat(size)));
        for _ in 0..jobs {
            server.enqueue(NewJob::new(name("work"), data.clone())).await.unwrap();
        }
        server.flush().await.unwrap();
        let work = queue.take(jobs, clock.now());
        assert_eq!(work.len(), jobs);
        (server, queue, work)
    }

    #[tokio::test]
    async fn a_refused_claim_is_repeated_by_its_invocation() {
        let (clock, slow) = (Arc::new(FakeClock::default()), Arc::new(Slow::default()));
        let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), 1));
        let shared = Arc::clone(&store) as SharedStore;
        let options = Options::default();
        let (server, queue, mut work) = server(&clock, shared, &slow, options, (200, 10)).await;
        store.set_faults(Faults { throttled: 0.5, ..Faults::default() });
        let mut invocations = 0;
        while !work.is_empty() {
            invocations += 1;
            let count = work.len();
            let mut deliver = pin!(server.deliver(work, clock.now() + Duration::from_mins(5)));
            let done = loop {
                match poll!(&mut deliver) {
                    Poll::Ready(done) => break done,
                    Poll::Pending => clock.advance(Duration::from_millis(10)),
                }
                tokio::task::yield_now().await;
            };
            assert_eq!(done, vec![true; count]);
            // What was not claimed in time was sent back.
            work = queue.take(count, clock.now());
        }
        assert!(store.failed() > 0);
        assert!(invocations < 5, "{invocations} invocations");
        assert_eq!(slow.calls.load(Ordering::Relaxed), 200);
    }

    #[tokio::test]
    async fn a_claim_that_outlives_its_lease_starts_nothing() {
        let (clock, slow) = (Arc::new(FakeClock::default()), Arc::new(Slow::default()));
        let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), 1));
        let shared = Arc::clone(&store) as SharedStore;
        let options = Options::default();
        let (server, _, work) = server(&clock, shared, &slow, options, (1, 10)).await;
        let id = work[0].job.clone();
        store.set_faults(Faults { lose_answer: 1.0, ..Faults::default() });
        let mut deliver = pin!(server.deliver(work, clock.now() + Duration::from_mins(5)));
        loop {
            if poll!(&mut deliver).is_ready() {
                break;
            }
            if store.failed() > 0 {
                // The job runs for the store, and the repeat finds it after its lease.
                store.set_faults(Faults::default());
                clock.advance(Duration::from_mins(1));
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(slow.calls.load(Ordering::Relaxed), 0);
        let job = server.engine().job(&id, None).await.unwrap();
        assert_eq!((job.life.attempt, job.life.running()), (1, None), "it waits for a retry");
    }

    #[tokio::test]
    async fn deliveries_wait_for_memory_before_their_claim() {
        const MOST: u64 = 1 << 20;
        for (jobs, size) in [(60, 100_000), (300, 10), (4, 1_500_000)] {
            let (clock, slow) = (Arc::new(FakeClock::default()), Arc::new(Slow::default()));
            let options = Options { delivery_bytes: Some(MOST), ..Options::default() };
            let store = Arc::new(MemoryStore::new());
            let (server, _, work) = server(&clock, store, &slow, options, (jobs, size)).await;
            let done = server.deliver(work, clock.now() + Duration::from_mins(1)).await;
            assert_eq!(done, vec![true; jobs]);
            assert_eq!(slow.calls.load(Ordering::Relaxed), jobs);
            // A delivery that is alone always fits.
            let fits = (MOST / unclaimed::delivery_bytes(size as u64)).max(1) as usize;
            let peak = slow.peak.load(Ordering::Relaxed);
            assert!((size * fits..=(size + 2000) * fits).contains(&peak), "{size}: {peak}");
        }
    }
}
