//! What must follow a verb, noted while it works and told before it is answered.
//!
//! A job of a queue without a head is handed on by whoever changed it, if it is due before the horizon; that of a queue with one is left
//! to the queue's tick, which is hinted now or woken in time.

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

/// What is nearer than this is told at once: the minute's round, which may be late, sees the rest in time.
pub const NEAR: Duration = Duration::from_secs(90);
/// Most notes that are kept while they cannot be sent.
const MAX_UNSENT: usize = 10_000;

/// What is still to be told.
#[derive(Default)]
pub(crate) struct Outbox {
    pending: Mutex<Pending>,
    /// One flush at a time: whoever waits for it knows that its own notes are out.
    sending: tokio::sync::Mutex<()>,
    /// The wake-ups that were asked for and are still to come.
    scheduled_timers: Mutex<BTreeSet<(QueueName, Timestamp)>>,
}

#[derive(Default)]
struct Pending {
    jobs: Vec<(Job, Option<Version>)>,
    due: BTreeSet<QueueName>,
    operations: BTreeSet<String>,
    timers: BTreeMap<QueueName, Timestamp>,
}

/// Messages, ready to go.
#[derive(Default)]
struct Outgoing {
    work: Vec<Work>,
    hints: Vec<Hint>,
    timers: Vec<Timer>,
}

impl Outbox {
    /// A job stands as this says now, and has left `version` if one is given.
    pub(crate) fn job_changed(&self, job: &Job, version: Option<Version>) {
        self.pending.lock().jobs.push((job.clone(), version));
    }

    /// Something may be due in `queue`.
    pub(crate) fn queue_due(&self, queue: &QueueName) {
        self.pending.lock().due.insert(queue.clone());
    }

    /// A bulk operation has jobs left.
    pub(crate) fn operation_left(&self, id: &str) {
        self.pending.lock().operations.insert(id.to_owned());
    }

    /// The answer of `queue` may change at `at`.
    pub(super) fn timer(&self, queue: &QueueName, at: Timestamp) {
        let wakes = &mut self.pending.lock().timers;
        let earliest = wakes.entry(queue.clone()).or_insert(at);
        *earliest = at.min(*earliest);
    }

    /// Puts back what could not be sent.
    fn put_back(&self, taken: Pending) {
        let mut now = self.pending.lock();
        let room = MAX_UNSENT.saturating_sub(now.jobs.len());
        now.jobs.extend(taken.jobs.into_iter().take(room));
        now.due.extend(taken.due);
        now.operations.extend(taken.operations);
        drop(now);
        taken.timers.into_iter().for_each(|(queue, at)| self.timer(&queue, at));
    }

    /// Whether a wake-up of `queue` is still to come that is in time for `at`: the round that it makes asks for the next.
    fn has_timer(&self, queue: &QueueName, at: Timestamp, now: Timestamp) -> bool {
        let mut asked = self.scheduled_timers.lock();
        asked.retain(|(_, at)| *at > now);
        // What is due already has no wake-up ahead that would be in time.
        at >= now && asked.range((queue.clone(), now)..=(queue.clone(), at)).next().is_some()
    }
}

impl Server {
    /// Tells whoever is to go on with what was changed since the last call. What cannot be told is kept for the next call.
    ///
    /// # Errors
    ///
    /// The store's and the work queue's. Nothing is lost: the minute's round finds it.
    pub async fn flush(&self) -> Result<(), Error> {
        let Some(away) = &self.inner.serverless else {
            return Ok(());
        };
        let notes = &away.outbox;
        let _turn = notes.sending.lock().await;
        let taken = std::mem::take(&mut *notes.pending.lock());
        let sent = match self.route(&taken).await {
            Ok(mail) => self.publish(mail).await,
            Err(error) => Err(error),
        };
        sent.inspect_err(|error| {
            metrics::counter!("tidegate_dispatch_failures_total").increment(1);
            tracing::warn!(%error, "what must follow was not told; the minute's round finds it");
            notes.put_back(taken);
        })
    }

    /// What is to be told to whom.
    async fn route(&self, taken: &Pending) -> Result<Outgoing, Error> {
        let mut mail = Outgoing::default();
        let hint = |queue: &QueueName, news| Hint { queue: queue.clone(), kind: news };
        let operations: QueueName = OPERATIONS.parse().expect("a good name");
        mail.hints.extend(
            taken.operations.iter().map(|id| hint(&operations, HintKind::Operation(id.clone()))),
        );
        let mut wakes = taken.timers.clone();
        let mut looks = taken.due.clone();
        if !taken.jobs.is_empty() {
            // The verb that changed them has just read it.
            let catalog = self.engine().known_catalog().await?;
            let mut horizon = None;
            for (job, left) in &taken.jobs {
                self.route_job(
                    job,
                    *left,
                    &catalog,
                    &mut horizon,
                    &mut mail,
                    &mut looks,
                    &mut wakes,
                )
                .await?;
            }
        }
        mail.hints.extend(looks.iter().map(|queue| hint(queue, HintKind::Due)));
        let now = self.now();
        let notes = &self.inner.serverless.as_ref().expect("the caller looked").outbox;
        let wakes = wakes
            .into_iter()
            .filter(|(queue, at)| !looks.contains(queue) && !notes.has_timer(queue, *at, now));
        mail.timers.extend(wakes.map(|(queue, at)| Timer { at, queue }));
        Ok(mail)
    }

    #[allow(clippy::too_many_arguments, reason = "one step of a loop, split for its length")]
    async fn route_job(
        &self,
        job: &Job,
        left: Option<Version>,
        catalog: &Catalog,
        horizon: &mut Option<Timestamp>,
        mail: &mut Outgoing,
        looks: &mut BTreeSet<QueueName>,
        wakes: &mut BTreeMap<QueueName, Timestamp>,
    ) -> Result<(), Error> {
        let (engine, queue, now) = (self.engine(), &job.spec.queue, self.now());
        if job.life.awaits_retry_decision() {
            mail.hints
                .push(Hint { queue: queue.clone(), kind: HintKind::RetryDecision(job.id.clone()) });
        }
        let work = engine.unlimited_work(catalog, job);
        if engine.is_unlimited_in(queue, catalog).await? {
            let Some(work) = work else { return Ok(()) };
            if work.run_at > now {
                let until = match *horizon {
                    Some(until) => until,
                    // Read after the job was written: a look-ahead that did not see the job has moved it before.
                    None => *horizon.insert(engine.horizon().await?),
                };
                if work.run_at > until {
                    return Ok(());
                }
            }
            mail.work.push(work);
            return Ok(());
        }
        if let Some(version) = left.filter(|version| job.life.version > *version) {
            mail.hints.push(Hint {
                queue: queue.clone(),
                kind: HintKind::Released(job.id.clone(), version),
            });
        }
        match work.map(|work| work.run_at) {
            Some(at) if at <= now => {
                looks.insert(queue.clone());
            }
            Some(at) if at <= now + NEAR => {
                let earliest = wakes.entry(queue.clone()).or_insert(at);
                *earliest = at.min(*earliest);
            }
            _ => {}
        }
        Ok(())
    }

    async fn publish(&self, mail: Outgoing) -> Result<(), Error> {
        let queue = &self.engine().ports().work;
        if !mail.work.is_empty() {
            queue.send(&mail.work).await?;
        }
        if !mail.hints.is_empty() {
            queue.hint(&mail.hints).await?;
        }
        if !mail.timers.is_empty() {
            queue.set_timers(&mail.timers).await?;
            let notes = &self.inner.serverless.as_ref().expect("the caller looked").outbox;
            notes
                .scheduled_timers
                .lock()
                .extend(mail.timers.into_iter().map(|wake| (wake.queue, wake.at)));
        }
        Ok(())
    }
}
