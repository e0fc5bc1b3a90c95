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
    port::{Hint, News, Wake, Work, work_queue::OPERATIONS},
    time::Timestamp,
};
use tidegate_engine::{Catalog, Error};

/// What is nearer than this is told at once: the minute's round, which may be late, sees the rest in time.
pub const NEAR: Duration = Duration::from_secs(90);
/// Most notes that are kept while they cannot be sent.
const KEPT: usize = 10_000;

/// What is still to be told.
#[derive(Default)]
pub(crate) struct Notes {
    taken: Mutex<Taken>,
    /// One flush at a time: whoever waits for it knows that its own notes are out.
    sending: tokio::sync::Mutex<()>,
    /// The wake-ups that were asked for and are still to come.
    asked: Mutex<BTreeSet<(QueueName, Timestamp)>>,
}

#[derive(Default)]
struct Taken {
    jobs: Vec<(Job, Option<Version>)>,
    looks: BTreeSet<QueueName>,
    operations: BTreeSet<String>,
    wakes: BTreeMap<QueueName, Timestamp>,
}

/// Messages, ready to go.
#[derive(Default)]
struct Mail {
    work: Vec<Work>,
    hints: Vec<Hint>,
    wakes: Vec<Wake>,
}

impl Notes {
    /// A job stands as this says now, and has left `version` if one is given.
    pub(crate) fn changed(&self, job: &Job, version: Option<Version>) {
        self.taken.lock().jobs.push((job.clone(), version));
    }

    /// Something may be due in `queue`.
    pub(crate) fn look(&self, queue: &QueueName) {
        self.taken.lock().looks.insert(queue.clone());
    }

    /// A bulk operation has jobs left.
    pub(crate) fn operation(&self, id: &str) {
        self.taken.lock().operations.insert(id.to_owned());
    }

    /// The answer of `queue` may change at `at`.
    pub(super) fn wake(&self, queue: &QueueName, at: Timestamp) {
        let wakes = &mut self.taken.lock().wakes;
        let earliest = wakes.entry(queue.clone()).or_insert(at);
        *earliest = at.min(*earliest);
    }

    /// Puts back what could not be sent.
    fn put_back(&self, taken: Taken) {
        let mut now = self.taken.lock();
        let room = KEPT.saturating_sub(now.jobs.len());
        now.jobs.extend(taken.jobs.into_iter().take(room));
        now.looks.extend(taken.looks);
        now.operations.extend(taken.operations);
        drop(now);
        taken.wakes.into_iter().for_each(|(queue, at)| self.wake(&queue, at));
    }

    /// Whether a wake-up of `queue` is still to come that is in time for `at`: the round that it makes asks for the next.
    fn is_asked(&self, queue: &QueueName, at: Timestamp, now: Timestamp) -> bool {
        let mut asked = self.asked.lock();
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
        let Some(away) = &self.inner.away else { return Ok(()) };
        let notes = &away.notes;
        let _turn = notes.sending.lock().await;
        let taken = std::mem::take(&mut *notes.taken.lock());
        let sent = match self.sort(&taken).await {
            Ok(mail) => self.post(mail).await,
            Err(error) => Err(error),
        };
        sent.inspect_err(|error| {
            metrics::counter!("tidegate_untold_total").increment(1);
            tracing::warn!(%error, "what must follow was not told; the minute's round finds it");
            notes.put_back(taken);
        })
    }

    /// What is to be told to whom.
    async fn sort(&self, taken: &Taken) -> Result<Mail, Error> {
        let mut mail = Mail::default();
        let hint = |queue: &QueueName, news| Hint { queue: queue.clone(), news };
        let operations: QueueName = OPERATIONS.parse().expect("a good name");
        mail.hints.extend(taken.operations.iter().map(|id| hint(&operations, News::Operation(id.clone()))));
        let mut wakes = taken.wakes.clone();
        let mut looks = taken.looks.clone();
        if !taken.jobs.is_empty() {
            // The verb that changed them has just read it.
            let catalog = self.engine().known_catalog().await?;
            let mut horizon = None;
            for (job, left) in &taken.jobs {
                self.sort_job(job, *left, &catalog, &mut horizon, &mut mail, &mut looks, &mut wakes).await?;
            }
        }
        mail.hints.extend(looks.iter().map(|queue| hint(queue, News::Look)));
        let now = self.now();
        let notes = &self.inner.away.as_ref().expect("the caller looked").notes;
        let wakes = wakes.into_iter().filter(|(queue, at)| !looks.contains(queue) && !notes.is_asked(queue, *at, now));
        mail.wakes.extend(wakes.map(|(queue, at)| Wake { at, queue }));
        Ok(mail)
    }

    #[allow(clippy::too_many_arguments, reason = "one step of a loop, split for its length")]
    async fn sort_job(
        &self,
        job: &Job,
        left: Option<Version>,
        catalog: &Catalog,
        horizon: &mut Option<Timestamp>,
        mail: &mut Mail,
        looks: &mut BTreeSet<QueueName>,
        wakes: &mut BTreeMap<QueueName, Timestamp>,
    ) -> Result<(), Error> {
        let (engine, queue, now) = (self.engine(), &job.spec.queue, self.now());
        if job.life.awaits_verdict() {
            mail.hints.push(Hint { queue: queue.clone(), news: News::Verdict(job.id.clone()) });
        }
        let work = engine.free_work(catalog, job);
        if engine.is_headless_in(queue, catalog).await? {
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
            mail.hints.push(Hint { queue: queue.clone(), news: News::Left(job.id.clone(), version) });
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

    async fn post(&self, mail: Mail) -> Result<(), Error> {
        let queue = &self.engine().ports().work;
        if !mail.work.is_empty() {
            queue.send(&mail.work).await?;
        }
        if !mail.hints.is_empty() {
            queue.hint(&mail.hints).await?;
        }
        if !mail.wakes.is_empty() {
            queue.wake(&mail.wakes).await?;
            let notes = &self.inner.away.as_ref().expect("the caller looked").notes;
            notes.asked.lock().extend(mail.wakes.into_iter().map(|wake| (wake.queue, wake.at)));
        }
        Ok(())
    }
}
