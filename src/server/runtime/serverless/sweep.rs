//! A queue's rounds, taken by whoever was told that they are due; and the minute's, which looks at everything.

use std::{collections::BTreeSet, time::Duration};

use futures_util::{StreamExt, stream};

use super::{super::Server, NEAR};
use crate::telemetry::metrics;
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName, Version},
    port::HintKind,
    time::Timestamp,
};
use tidegate_engine::{
    Demand, Dispatch, Error, Lookahead, TickInput, TickOutcome, events::reply::SweptReplies,
};

/// Most jobs that one round hands on.
const ROOM: u32 = 1000;
/// Most rounds of a queue in one go: whoever is told next goes on.
const MAX_TICKS: usize = 64;
/// Queues that the minute's round looks at side by side.
const MAX_CONCURRENT_QUEUES: usize = 16;
/// How far back a hint about a queue without a head looks for jobs that nobody handed on.
const RECENT: Duration = Duration::from_secs(5);
/// How far ahead the minute's round lets schedules make their jobs: past the next round, which may be late.
const LOOKAHEAD: Duration = Duration::from_secs(150);
/// Most kept replies that are dropped together.
const MAX_DROPPED_REPLIES: u32 = 10_000;
/// Most late jobs of a queue that are handed on again in a minute.
const MAX_LATE_JOBS: usize = 1000;

/// What the minute's round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Queues that were looked at.
    pub queues: usize,
    /// Jobs that were handed on ahead of their time.
    pub ahead: usize,
    /// Jobs that were handed on again.
    pub late: usize,
    /// Queues that could not be looked at, and other parts of the round that failed.
    pub failed: usize,
}

impl Server {
    /// Takes rounds of `queue` with what its hints say, until nothing is left to do at once, or until `until`.
    ///
    /// # Errors
    ///
    /// The store's and the work queue's: the hints are to be told again.
    pub async fn tick_queue(
        &self,
        queue: &QueueName,
        news: Vec<HintKind>,
        until: Timestamp,
    ) -> Result<(), Error> {
        let Some(away) = &self.inner.serverless else {
            return Ok(());
        };
        let (mut released, mut verdicts, mut look) = (Vec::new(), Vec::new(), false);
        for news in news {
            match news {
                HintKind::Due => look = true,
                HintKind::Released(job, version) => released.push((job, version)),
                HintKind::RetryDecision(job) => verdicts.push(job),
                HintKind::Operation(id) => {
                    Box::pin(self.operate(&id, until)).await?;
                }
            }
        }
        if !verdicts.is_empty() {
            let jobs = self.engine().ports().store.get(&verdicts).await?;
            self.decide_retries(jobs.into_iter().flatten().collect()).await?;
        }
        if self.engine().is_unlimited(queue).await? {
            if look {
                let now = self.now();
                self.engine().dispatch(queue, now - RECENT, now, ROOM as usize).await?;
            }
            return Ok(());
        }
        let mut memory = away.take_cache(queue);
        let rounds = self.tick_until_idle(queue, &mut memory, released, until).await;
        away.keep_cache(queue, memory);
        rounds
    }

    /// Rounds of a queue with a head.
    async fn tick_until_idle(
        &self,
        queue: &QueueName,
        memory: &mut tidegate_engine::TickCache,
        mut released: Vec<(JobId, Version)>,
        until: Timestamp,
    ) -> Result<(), Error> {
        let engine = self.engine();
        let notes = &self.inner.serverless.as_ref().expect("the caller looked").outbox;
        for round in 0..MAX_TICKS {
            let catalog = engine.catalog().await?;
            let pushed = catalog.types_of(queue).filter(|(_, item)| engine.is_pushed(&item.config));
            let types: Vec<TypeName> = pushed.map(|(name, _)| name.clone()).collect();
            let ask = Demand {
                types,
                capacity: ROOM,
                worker: None,
                lease: None,
                dispatch: Dispatch::Queue,
            };
            let began = self.now();
            let round = TickInput {
                released: std::mem::take(&mut released),
                demands: vec![ask],
                news: round == 0,
                ..TickInput::default()
            };
            let mut ticked = engine.tick(queue, memory, round).await?;
            self.follow(queue, &mut ticked, began).await?;
            released = ticked.left;
            let now = self.now();
            if let Some(at) = ticked.next_at.filter(|at| *at <= now + NEAR) {
                notes.timer(queue, at);
            }
            if !ticked.again && released.is_empty() {
                return Ok(());
            }
            if now >= until {
                break;
            }
        }
        // Somebody else goes on.
        notes.queue_due(queue);
        Ok(())
    }

    /// Does what a round leaves to be done.
    pub(super) async fn follow(
        &self,
        queue: &QueueName,
        ticked: &mut TickOutcome,
        began: Timestamp,
    ) -> Result<(), Error> {
        metrics::tick(queue, ticked, began, self.now().since(began));
        self.inner.record_throttling(
            queue,
            std::mem::take(&mut ticked.asked),
            std::mem::take(&mut ticked.faults),
        );
        ticked.lapsed.iter().for_each(|job| self.inner.on_attempt_finished(job));
        for job in &ticked.ended {
            metrics::job_finished(job);
            self.inner.on_attempt_finished(job);
            self.inner.on_job_finished(job);
        }
        if ticked.pending {
            // They are found by their own records.
            let swept = self.engine().sweep().await?;
            self.on_swept(swept.changed, swept.pending).await?;
        }
        Ok(())
    }

    async fn on_swept(&self, changed: Vec<(Job, Version)>, pending: Vec<Job>) -> Result<(), Error> {
        self.inner.on_swept(&changed);
        if pending.is_empty() { Ok(()) } else { self.decide_retries(pending).await }
    }

    /// Calls the retry strategies of `jobs`, which await them.
    async fn decide_retries(&self, jobs: Vec<Job>) -> Result<(), Error> {
        let mut decisions = self.engine().verdicts(jobs).await?;
        self.inner.on_retry_decisions(&mut decisions);
        Ok(())
    }

    /// The minute's round: looks ahead, sweeps, ticks every queue, hands on again what is late, goes on with bulk operations. What
    /// fails is logged and counted, and done by the next; how many parts did is noted for [`doctor`](Self::doctor).
    pub async fn maintenance_sweep(&self, until: Timestamp) -> SweepReport {
        let mut minute = SweepReport::default();
        let mut ahead = None;
        if let Err(error) = self.every_queue(until, &mut minute, &mut ahead).await {
            minute.failed += 1;
            tracing::error!(%error, "the minute's round was cut short");
        }
        if self.flush().await.is_err() {
            minute.failed += 1;
        }
        if let Some(ahead) = ahead
            && let Err(error) = self.engine().note_round(ahead, minute.failed).await
        {
            tracing::warn!(%error, "how the minute's round went was not noted");
        }
        minute
    }

    async fn every_queue(
        &self,
        until: Timestamp,
        minute: &mut SweepReport,
        ahead: &mut Option<Lookahead>,
    ) -> Result<(), Error> {
        let engine = self.engine();
        let catalog = engine.catalog().await?;
        let types = catalog.types.values().map(|item| item.config.queue.clone());
        let queues: BTreeSet<QueueName> = catalog.queues.keys().cloned().chain(types).collect();
        minute.queues = queues.len();
        let mut free = Vec::new();
        let mut limited = Vec::new();
        for queue in queues {
            if engine.is_unlimited_in(&queue, &catalog).await? {
                free.push(queue)
            } else {
                limited.push(queue)
            }
        }
        // What is late already is late because of this: it goes first.
        match engine.look_ahead(&free).await {
            Ok(done) => {
                minute.ahead = done.sent;
                *ahead = Some(done);
            }
            Err(error) => {
                minute.failed += 1;
                tracing::error!(%error, "what is due soon was not handed on");
            }
        }
        // What schedules make now is handed on by whoever made it, to arrive at its time.
        self.inner.on_materialized(&engine.materialize(LOOKAHEAD).await?);
        self.replies(until).await?;
        while self.now() < until {
            let swept = engine.sweep().await?;
            let next_at = swept.next_at;
            self.on_swept(swept.changed, swept.pending).await?;
            if next_at.is_none_or(|at| at > self.now()) {
                break;
            }
        }
        // What was made so far does not wait for the queues.
        let _ = self.flush().await;
        let looks = limited.iter().map(|queue| self.tick_queue(queue, vec![HintKind::Due], until));
        let lates = free.iter().map(|queue| engine.dispatch_late(queue, MAX_LATE_JOBS));
        let looks: Vec<_> = looks.collect();
        let lates: Vec<_> = lates.collect();
        let ticked: Vec<Result<(), Error>> =
            stream::iter(looks).buffer_unordered(MAX_CONCURRENT_QUEUES).collect().await;
        let late: Vec<_> =
            stream::iter(lates).buffer_unordered(MAX_CONCURRENT_QUEUES).collect().await;
        for done in late {
            match done {
                Ok(done) => minute.late += done.sent,
                Err(error) => minute.failed(&error),
            }
        }
        ticked.iter().filter_map(|done| done.as_ref().err()).for_each(|error| minute.failed(error));
        for id in self.unfinished().await? {
            if self.now() >= until {
                break;
            }
            Box::pin(self.operate(&id, until)).await?;
        }
        Ok(())
    }
}

impl Server {
    /// Looks at the replies that were kept, and drops what is over its time.
    async fn replies(&self, until: Timestamp) -> Result<(), Error> {
        metrics::dead_letters(self.engine().sweep_dead().await?);
        let mut all = SweptReplies::default();
        loop {
            let page = self.engine().look_at_replies(all.next.take()).await?;
            self.inner.on_events(&[], &page.changed);
            all.met += page.met;
            all.unmatched += page.unmatched;
            all.next = page.next;
            if all.next.is_none() || self.now() >= until {
                break;
            }
        }
        // A table counts all that there are to drop some: once in a minute, and not once a page.
        loop {
            let purged = self.engine().drop_replies(MAX_DROPPED_REPLIES).await?;
            all.dropped(purged);
            if purged.expired + purged.over < u64::from(MAX_DROPPED_REPLIES) || self.now() >= until
            {
                break;
            }
        }
        metrics::pending_replies(&all);
        Ok(())
    }
}

impl SweepReport {
    fn failed(&mut self, error: &Error) {
        self.failed += 1;
        tracing::warn!(%error, "a queue was not looked at in the minute's round");
    }
}
