//! The maintenance sweep over all queues, and what follows a tick.

use std::sync::Arc;

use std::{collections::BTreeSet, time::Duration};

use futures_util::{StreamExt, stream};

use super::super::Server;
use crate::telemetry::metrics;
use tidegate_core::{
    job::{Job, QueueName, Version},
    time::Timestamp,
};
use tidegate_engine::{
    BegunLookahead, Catalog, Error, Lookahead, TickOutcome, events::reply::SweptReplies,
};

/// Most queues that the maintenance sweep ticks at once.
const MAX_CONCURRENT_QUEUES: usize = 16;
/// How far ahead the maintenance sweep materializes schedules: past the next sweep, even a late
/// one.
const LOOKAHEAD: Duration = Duration::from_secs(150);
/// Most pending replies that are dropped together.
const MAX_DROPPED_REPLIES: u32 = 10_000;

/// What a maintenance sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Queues with jobs, which the sweep covered.
    pub queues: usize,
    /// Jobs that were dispatched ahead of their time.
    pub ahead: usize,
    /// Late jobs that were dispatched again.
    pub late: usize,
    /// When the oldest of them was due.
    pub oldest_due_at: Option<Timestamp>,
    /// Queues whose tick failed, and other parts of the sweep that failed.
    pub failed: usize,
}

impl Server {
    /// Announces and counts what a tick did, and requests the retry decisions that it left.
    pub(super) async fn follow(
        &self,
        queue: &QueueName,
        outcome: &mut TickOutcome,
        began: Timestamp,
    ) -> Result<(), Error> {
        self.inner.count_tick(queue, outcome, began, self.now().since(began));
        self.inner.record_throttling(
            queue,
            std::mem::take(&mut outcome.shadowed_calls),
            std::mem::take(&mut outcome.faults),
        );
        outcome.lapsed.iter().for_each(|job| self.inner.on_attempt_finished(job));
        for job in &outcome.ended {
            self.inner.count_finished(job);
            self.inner.on_attempt_finished(job);
            self.inner.on_job_finished(job);
        }
        if outcome.pending {
            // The sweep finds the jobs by their own records.
            let swept = self.engine().sweep().await?;
            self.on_swept(swept.changed, swept.pending).await?;
        }
        Ok(())
    }

    async fn on_swept(&self, changed: Vec<(Job, Version)>, pending: Vec<Job>) -> Result<(), Error> {
        self.inner.on_swept(&changed);
        if !pending.is_empty() {
            self.decide_retries(pending).await?;
        }
        // Many pages would fill the outbox. A flush that fails is repeated by the next one.
        let _ = self.flush().await;
        Ok(())
    }

    /// Calls the retry strategies of `jobs`, which await them.
    pub(super) async fn decide_retries(&self, jobs: Vec<Job>) -> Result<(), Error> {
        self.inner.refresh_recording_rules().await?;
        let mut decisions = self.engine().decide_retries(jobs).await?;
        self.inner.on_retry_decisions(&mut decisions);
        Ok(())
    }

    /// Runs the maintenance sweep: dispatch of jobs that are due soon or late, sweep, a tick of every
    /// queue with a ledger, and bulk operations. A part that fails is logged and
    /// counted, and the next sweep repeats it. [`doctor`](Self::doctor) reports the count.
    pub async fn maintenance_sweep(&self, until: Timestamp) -> SweepReport {
        let mut report = SweepReport::default();
        let mut lookahead = None;
        if let Err(error) = self.every_queue(until, &mut report, &mut lookahead).await {
            report.failed += 1;
            tracing::error!(%error, "the maintenance sweep ended early");
        }
        if self.flush().await.is_err() {
            report.failed += 1;
        }
        if let Err(error) = self.record_swept_step(report.queues > 0).await {
            tracing::warn!(%error, "a step of the history was not stored");
        }
        if let Some(lookahead) = lookahead
            && let Err(error) = self.engine().record_sweep(lookahead, report.failed).await
        {
            tracing::warn!(%error, "the report of the maintenance sweep was not stored");
        }
        report
    }

    async fn every_queue(
        &self,
        until: Timestamp,
        report: &mut SweepReport,
        lookahead: &mut Option<Lookahead>,
    ) -> Result<(), Error> {
        let engine = self.engine();
        let catalog = engine.catalog().await?;
        engine.record_schema(Arc::clone(&catalog)).await?;
        // The horizon moves first: a job that is written from now on in a queue without other jobs
        // is dispatched by the process that writes it.
        let begun = match engine.begin_lookahead().await {
            Ok(begun) => begun,
            Err(error) => {
                report.failed += 1;
                tracing::error!(%error, "the lookahead did not begin");
                None
            }
        };
        let until_due = begun.as_ref().map_or(self.now(), BegunLookahead::until);
        let (unlimited, limited) = self.active_queues(&catalog, until_due, report).await?;
        // First, so that no job becomes late because this dispatch waits.
        // It leaves half of the time to the other parts of the sweep.
        let stop_at = self.half_of(until);
        let done = match begun {
            Some(begun) => engine.look_ahead(begun, &unlimited, stop_at).await,
            None => Ok(Lookahead::default()),
        };
        match done {
            Ok(done) => {
                (report.ahead, report.late) = (done.sent, done.late);
                report.oldest_due_at = done.oldest_due_at;
                if done.stopped {
                    tracing::warn!(
                        sent = done.sent,
                        late = done.late,
                        "too many jobs are due for one maintenance sweep; the next one goes on"
                    );
                }
                *lookahead = Some(done);
            }
            Err(error) => {
                report.failed += 1;
                tracing::error!(%error, "jobs that are due soon were not dispatched");
            }
        }
        // The flush dispatches the new jobs, to arrive at their due times.
        self.inner.on_materialized(&engine.materialize(LOOKAHEAD).await?);
        self.sweep_replies(until).await?;
        // So does the removal of what ended jobs leave behind, which has no end while more jobs end
        // than it can handle.
        let stop_at = self.half_of(until);
        while self.now() < stop_at {
            let swept = engine.sweep().await?;
            let next_at = swept.next_at;
            self.on_swept(swept.changed, swept.pending).await?;
            if next_at.is_none_or(|at| at > self.now()) {
                break;
            }
        }
        // The messages so far do not wait for the ticks.
        let _ = self.flush().await;
        self.tick_all(&limited, until, report).await;
        // After the ticks, because no job waits for them. A failure is one of the sweep.
        if let Err(error) = engine.keep_counts(self.half_of(until)).await {
            report.failed(&error);
        }
        if let Err(error) = engine.count_waiting(self.half_of(until)).await {
            report.failed(&error);
        }
        if let Err(error) = engine.upkeep(self.half_of(until)).await {
            report.failed(&error);
        }
        if let Err(error) = engine.sweep_objects(self.half_of(until)).await {
            report.failed(&error);
        }
        for stored in self.unfinished().await? {
            if self.now() >= until {
                break;
            }
            Box::pin(self.operate(&stored.operation.id, until)).await?;
        }
        Ok(())
    }

    /// The instant at which half of the time to `until` is over.
    fn half_of(&self, until: Timestamp) -> Timestamp {
        let now = self.now();
        now + until.since(now) / 2
    }

    /// The queues with jobs to care for by `until`: those without a ledger, and those with one.
    async fn active_queues(
        &self,
        catalog: &Catalog,
        until: Timestamp,
        report: &mut SweepReport,
    ) -> Result<(Vec<QueueName>, Vec<QueueName>), Error> {
        let (mut unlimited, mut limited) = (Vec::new(), Vec::new());
        let active = self.engine().ports().store.active_queues(until).await?;
        let types = catalog.types.values().map(|item| &item.config.queue);
        let configured: BTreeSet<&QueueName> = catalog.queues.keys().chain(types).collect();
        for queue in active.into_iter().filter(|queue| configured.contains(queue)) {
            match self.engine().is_unlimited_in(&queue, catalog).await {
                Ok(true) => unlimited.push(queue),
                Ok(false) => limited.push(queue),
                Err(error @ Error::Unavailable { .. }) => return Err(error),
                // Its ledger cannot be read. The other queues go on.
                Err(error) => {
                    report.failed += 1;
                    tracing::error!(%queue, %error, "a queue is not swept");
                }
            }
        }
        report.queues = unlimited.len() + limited.len();
        Ok((unlimited, limited))
    }

    /// Ticks the `limited` queues.
    async fn tick_all(&self, limited: &[QueueName], until: Timestamp, report: &mut SweepReport) {
        let ticks = limited.iter().map(|queue| self.tick_for(queue, Vec::new(), until, false));
        let ticks: Vec<_> = ticks.collect();
        let ticked: Vec<Result<(), Error>> =
            stream::iter(ticks).buffer_unordered(MAX_CONCURRENT_QUEUES).collect().await;
        ticked.iter().filter_map(|done| done.as_ref().err()).for_each(|error| report.failed(error));
    }
}

impl Server {
    /// Matches all pending replies, and drops expired ones and expired dead letters.
    async fn sweep_replies(&self, until: Timestamp) -> Result<(), Error> {
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
        // A drop counts all replies of the table, so it runs once a sweep and not once a page.
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
        tracing::warn!(%error, "a part of the maintenance sweep failed; the next one repeats it");
    }
}
