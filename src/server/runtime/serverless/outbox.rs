//! The outbox: follow-up messages of a verb, collected while it runs and published before its
//! answer.
//!
//! A changed job of an unlimited queue is dispatched from here if it is due before the horizon. A
//! job of a queue with a ledger is left to the queue's tick, which gets a hint now or a timer.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use parking_lot::Mutex;

use super::super::Server;
use tidegate_core::{
    job::{Job, QueueName, Version},
    port::{Hint, HintKind, Timer, Work, work_queue::OPERATIONS},
    time::Timestamp,
};
use tidegate_engine::{Catalog, Error};

/// A job that is due sooner than this gets a message. For later jobs the maintenance sweep is in
/// time, even if it is late.
pub const NEAR: Duration = Duration::from_secs(90);
/// Most changed jobs that are kept while they cannot be published.
const MAX_UNSENT: usize = 10_000;

/// Messages that are not published yet.
#[derive(Default)]
pub(crate) struct Outbox {
    pending: Mutex<PendingMessages>,
    /// One flush at a time: after it, the messages of every waiting caller are published.
    sending: tokio::sync::Mutex<()>,
    /// Timers that were set and are not due yet.
    scheduled_timers: Mutex<BTreeSet<(QueueName, Timestamp)>>,
}

#[derive(Default)]
struct PendingMessages {
    jobs: Vec<(Job, Option<Version>)>,
    due: BTreeSet<QueueName>,
    operations: BTreeSet<String>,
    timers: BTreeMap<QueueName, Timestamp>,
}

/// Messages ready to publish.
#[derive(Default)]
struct Outgoing {
    work: Vec<Work>,
    hints: Vec<Hint>,
    timers: Vec<Timer>,
}

impl Outbox {
    /// Records that `job` was written in this state, and left `version` if one is given.
    pub(crate) fn job_changed(&self, job: &Job, version: Option<Version>) {
        self.pending.lock().jobs.push((job.clone(), version));
    }

    /// Records that jobs may be due in `queue`.
    pub(crate) fn queue_due(&self, queue: &QueueName) {
        self.pending.lock().due.insert(queue.clone());
    }

    /// Records that a bulk operation has jobs left.
    pub(crate) fn operation_left(&self, id: &str) {
        self.pending.lock().operations.insert(id.to_owned());
    }

    /// Records that `queue` must tick at `at`.
    pub(super) fn timer(&self, queue: &QueueName, at: Timestamp) {
        let timers = &mut self.pending.lock().timers;
        let earliest = timers.entry(queue.clone()).or_insert(at);
        *earliest = at.min(*earliest);
    }

    /// Puts back messages that could not be published.
    fn put_back(&self, taken: PendingMessages) {
        let mut now = self.pending.lock();
        let capacity = MAX_UNSENT.saturating_sub(now.jobs.len());
        now.jobs.extend(taken.jobs.into_iter().take(capacity));
        now.due.extend(taken.due);
        now.operations.extend(taken.operations);
        drop(now);
        taken.timers.into_iter().for_each(|(queue, at)| self.timer(&queue, at));
    }

    /// Whether a timer of `queue` is set that is in time for `at`; its tick sets the next one.
    fn has_timer(&self, queue: &QueueName, at: Timestamp, now: Timestamp) -> bool {
        let mut scheduled = self.scheduled_timers.lock();
        scheduled.retain(|(_, at)| *at > now);
        // No timer is in time for a job that is due already.
        at >= now && scheduled.range((queue.clone(), now)..=(queue.clone(), at)).next().is_some()
    }
}

impl Server {
    /// Publishes the follow-up messages of all changes since the last call. On an error they are
    /// kept for the next call.
    ///
    /// # Errors
    ///
    /// The store's and the work queue's. Nothing is lost: the maintenance sweep repairs it.
    pub async fn flush(&self) -> Result<(), Error> {
        let Some(serverless) = &self.inner.serverless else {
            return Ok(());
        };
        let outbox = &serverless.outbox;
        let _turn = outbox.sending.lock().await;
        let taken = std::mem::take(&mut *outbox.pending.lock());
        let sent = match self.route(&taken).await {
            Ok(outgoing) => self.publish(outgoing).await,
            Err(error) => Err(error),
        };
        sent.inspect_err(|error| {
            metrics::counter!("tidegate_dispatch_failures_total").increment(1);
            tracing::warn!(
                %error,
                "follow-up messages were not published; the maintenance sweep repairs it"
            );
            outbox.put_back(taken);
        })
    }

    /// The messages for what was changed.
    async fn route(&self, taken: &PendingMessages) -> Result<Outgoing, Error> {
        let mut outgoing = Outgoing::default();
        let hint = |queue: &QueueName, kind| Hint { queue: queue.clone(), kind };
        let operations: QueueName = OPERATIONS.parse().expect("a valid name");
        outgoing.hints.extend(
            taken.operations.iter().map(|id| hint(&operations, HintKind::Operation(id.clone()))),
        );
        let mut timers = taken.timers.clone();
        let mut due = taken.due.clone();
        if !taken.jobs.is_empty() {
            // The verb that changed the jobs has just read it.
            let catalog = self.engine().known_catalog().await?;
            let mut horizon = None;
            for (job, left) in &taken.jobs {
                self.route_job(
                    job,
                    *left,
                    &catalog,
                    &mut horizon,
                    &mut outgoing,
                    &mut due,
                    &mut timers,
                )
                .await?;
            }
        }
        outgoing.hints.extend(due.iter().map(|queue| hint(queue, HintKind::Due)));
        let now = self.now();
        let outbox =
            &self.inner.serverless.as_ref().expect("only a serverless server calls this").outbox;
        let timers = timers
            .into_iter()
            .filter(|(queue, at)| !due.contains(queue) && !outbox.has_timer(queue, *at, now));
        outgoing.timers.extend(timers.map(|(queue, at)| Timer { at, queue }));
        Ok(outgoing)
    }

    #[allow(clippy::too_many_arguments, reason = "one step of a loop, split for its length")]
    async fn route_job(
        &self,
        job: &Job,
        left: Option<Version>,
        catalog: &Catalog,
        horizon: &mut Option<Timestamp>,
        outgoing: &mut Outgoing,
        due: &mut BTreeSet<QueueName>,
        timers: &mut BTreeMap<QueueName, Timestamp>,
    ) -> Result<(), Error> {
        let (engine, queue, now) = (self.engine(), &job.spec.queue, self.now());
        if job.life.awaits_retry_decision() {
            outgoing
                .hints
                .push(Hint { queue: queue.clone(), kind: HintKind::RetryDecision(job.id.clone()) });
        }
        let work = engine.unlimited_work(catalog, job);
        if engine.is_unlimited_in(queue, catalog).await? {
            let Some(work) = work else { return Ok(()) };
            if work.run_at > now {
                let until = match *horizon {
                    Some(until) => until,
                    // Read after the job was written: a lookahead that missed the job has moved the
                    // horizon before.
                    None => *horizon.insert(engine.horizon().await?),
                };
                if work.run_at > until {
                    return Ok(());
                }
            }
            outgoing.work.push(work);
            return Ok(());
        }
        if let Some(version) = left.filter(|version| job.life.version > *version) {
            outgoing.hints.push(Hint {
                queue: queue.clone(),
                kind: HintKind::Released(job.id.clone(), version),
            });
        }
        match work.map(|work| work.run_at) {
            Some(at) if at <= now => {
                due.insert(queue.clone());
            }
            Some(at) if at <= now + NEAR => {
                let earliest = timers.entry(queue.clone()).or_insert(at);
                *earliest = at.min(*earliest);
            }
            _ => {}
        }
        Ok(())
    }

    async fn publish(&self, outgoing: Outgoing) -> Result<(), Error> {
        let queue = &self.engine().ports().work;
        if !outgoing.work.is_empty() {
            queue.send(&outgoing.work).await?;
        }
        if !outgoing.hints.is_empty() {
            queue.hint(&outgoing.hints).await?;
        }
        if !outgoing.timers.is_empty() {
            queue.set_timers(&outgoing.timers).await?;
            let outbox = &self
                .inner
                .serverless
                .as_ref()
                .expect("only a serverless server calls this")
                .outbox;
            outbox
                .scheduled_timers
                .lock()
                .extend(outgoing.timers.into_iter().map(|timer| (timer.queue, timer.at)));
        }
        Ok(())
    }
}
