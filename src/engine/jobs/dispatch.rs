//! `hand_on`: the jobs of a queue without a head are sent to whoever claims them, each to arrive when it is due.
//!
//! The one thing to know: nothing is written. A job that is sent twice is claimed once, and one whose message is lost is sent
//! again when it is late.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Catalog, Engine, Error, tick};
use tidegate_core::{
    job::{Job, QueueName, TypeName, type_config::Start},
    port::{
        Committed, Work, Write,
        job_store::{DueQuery, ItemKind},
    },
    queue::{
        Limits,
        config::SCAN_BOUND,
        order::{Order, Position},
    },
    time::Timestamp,
};

/// How late a job is before its message is taken for lost.
const LATE: Duration = Duration::from_mins(2);

/// How far ahead jobs are handed on: more than two of the rounds that do it, and within reach of a message's delay.
const AHEAD: Duration = Duration::from_secs(150);
/// The name of the one item of its kind.
const HORIZON: &str = "free";

/// How far ahead jobs were handed on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Horizon {
    /// Up to here all were.
    done: Timestamp,
    /// Up to here somebody is about to.
    until: Timestamp,
    /// Who did so last, and how it went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<LastSweep>,
}

/// The latest round that handed on all that was due soon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastSweep {
    /// When it began.
    pub at: Timestamp,
    /// The release that took it.
    pub release: String,
    /// How many parts failed of the round before it, until it has ended itself.
    pub failed: usize,
}

/// A look-ahead that is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lookahead {
    /// How many jobs were sent.
    pub sent: usize,
    /// What was noted of it, and at which version; nothing if somebody else looks ahead.
    noted: Option<(u64, Horizon)>,
}

/// What was handed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dispatched {
    /// How many jobs were sent.
    pub sent: usize,
    /// Whether there are more than were looked at.
    pub more: bool,
}

impl Engine {
    /// Whether `queue` has no head and needs none, so that its jobs start without a grant.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn is_unlimited(&self, queue: &QueueName) -> Result<bool, Error> {
        let catalog = self.catalog().await?;
        self.is_unlimited_in(queue, &catalog).await
    }

    /// The same under `catalog`, which was just read.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn is_unlimited_in(
        &self,
        queue: &QueueName,
        catalog: &Catalog,
    ) -> Result<bool, Error> {
        self.is_unlimited_under(queue, catalog, &catalog.limits(queue)).await
    }

    pub(crate) async fn is_unlimited_under(
        &self,
        queue: &QueueName,
        catalog: &Catalog,
        limits: &Limits,
    ) -> Result<bool, Error> {
        if limits.any() {
            return Ok(false);
        }
        if self.unlimited.lock().get(queue) == Some(&catalog.version) {
            return Ok(true);
        }
        let headless = self.ports.store.ledger(queue).await?.is_none();
        if headless {
            self.unlimited.lock().insert(queue.clone(), catalog.version);
        }
        Ok(headless)
    }

    /// The work that `job` is, if it may be handed on without a grant: scheduled, pushed, waiting for nothing but its time.
    pub fn unlimited_work(&self, catalog: &Catalog, job: &Job) -> Option<Work> {
        let run_at = job.life.run_at().filter(|_| !job.life.awaits_retry_decision())?;
        let pushed =
            catalog.types.get(&job.spec.job_type).is_some_and(|item| self.is_pushed(&item.config));
        pushed.then(|| Work {
            queue: job.spec.queue.clone(),
            job: job.id.clone(),
            version: job.life.version,
            run_at,
            granted_at: None,
        })
    }

    /// Hands on the jobs of `queue`, which has no head, that are due after `from`, and at `until` or before: at most `most` of them.
    ///
    /// # Errors
    ///
    /// The store's and the work queue's; a repeat is harmless.
    pub async fn dispatch(
        &self,
        queue: &QueueName,
        from: Timestamp,
        until: Timestamp,
        most: usize,
    ) -> Result<Dispatched, Error> {
        let catalog = self.catalog().await?;
        self.send_due(queue, &catalog, Some(from), until, most, |_| true).await
    }

    /// Hands on again what is so late that its message must have been lost: at most `most` jobs.
    ///
    /// # Errors
    ///
    /// The store's and the work queue's; a repeat is harmless.
    pub async fn dispatch_late(&self, queue: &QueueName, most: usize) -> Result<Dispatched, Error> {
        let catalog = self.catalog().await?;
        let now = self.now();
        let until = now - LATE;
        let late = |job: &Job| {
            // One that is handed on without a claim stays as it is until its answer comes.
            let config = catalog.types.get(&job.spec.job_type).map(|item| &item.config);
            let plain = config.is_some_and(|config| config.start == Start::Plain);
            let answer = if plain { tick::push_lease(&catalog, job) } else { Duration::ZERO };
            job.life.run_at().is_some_and(|at| at + LATE + answer <= now)
        };
        self.send_due(queue, &catalog, None, until, most, late).await
    }

    /// Up to when jobs have been handed on, or are being: whoever changes a job that is due before then hands it on.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn horizon(&self) -> Result<Timestamp, Error> {
        loop {
            let (version, horizon) = self.read_horizon().await?;
            if version > 0 {
                return Ok(horizon.until);
            }
            // The first who asks. Who leaves a job to a look-ahead has asked before, so all there is up to here is handed on by those
            // who make it.
            let until = self.now() + AHEAD;
            self.move_horizon(version, &Horizon { done: until, until, last: None }).await?;
        }
    }

    /// The latest round that looked ahead and did not fail at it; none if there was none.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn last_round(&self) -> Result<Option<LastSweep>, Error> {
        Ok(self.read_horizon().await?.1.last)
    }

    /// Notes how many parts of a round failed, if it is not what is noted: a round that is as the one before it costs no write.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn note_round(&self, ahead: Lookahead, failed: usize) -> Result<(), Error> {
        let Some((version, mut horizon)) = ahead.noted else {
            return Ok(());
        };
        let Some(last) = horizon.last.as_mut().filter(|last| last.failed != failed) else {
            return Ok(());
        };
        last.failed = failed;
        // Whoever has moved it since notes its own.
        self.move_horizon(version, &horizon).await.map(drop)
    }

    async fn read_horizon(&self) -> Result<(u64, Horizon), Error> {
        let item = self
            .ports
            .store
            .items(ItemKind::Horizon)
            .await?
            .into_iter()
            .find(|item| item.name == HORIZON);
        let Some(item) = item else {
            return Ok((0, Horizon::default()));
        };
        let horizon = serde_json::from_slice(&item.bytes)
            .map_err(|error| Error::Internal(format!("the horizon cannot be read: {error}")))?;
        Ok((item.version, horizon))
    }

    /// Whether the horizon was moved: if not, somebody else did.
    async fn move_horizon(&self, was: u64, horizon: &Horizon) -> Result<bool, Error> {
        let bytes =
            serde_json::to_vec(horizon).map_err(|error| Error::Internal(error.to_string()))?;
        let write = Write::SetItem {
            kind: ItemKind::Horizon,
            name: HORIZON.into(),
            was,
            version: was + 1,
            bytes: Some(bytes),
        };
        Ok(matches!(self.ports.store.commit(vec![vec![write]]).await?.pop(), Some(Committed::All)))
    }

    /// Hands on what will be due soon in `queues`, which have no heads: each stretch of time by one call, as far as each call lives to
    /// its end; what another began and did not finish is done again.
    ///
    /// # Errors
    ///
    /// The store's and the work queue's; the next call does it.
    pub async fn look_ahead(&self, queues: &[QueueName]) -> Result<Lookahead, Error> {
        let mut done = Lookahead::default();
        let now = self.now();
        let (version, seen) = self.read_horizon().await?;
        let until = now + AHEAD;
        let from = if seen.done == Timestamp::EPOCH { now } else { seen.done };
        if until <= seen.until && seen.done >= seen.until {
            return Ok(done);
        }
        // First moved, then handed on: nobody puts a job into a stretch that was passed.
        let until = until.max(seen.until);
        let begun = Horizon { done: seen.done, until, last: seen.last };
        if !self.move_horizon(version, &begun).await? {
            return Ok(done);
        }
        for queue in queues {
            let handed = self.dispatch(queue, from, until, usize::MAX).await?;
            done.sent += handed.sent;
        }
        let failed = begun.last.map_or(0, |last| last.failed);
        let last = LastSweep { at: now, release: env!("CARGO_PKG_VERSION").to_owned(), failed };
        let ended = Horizon { done: until, until, last: Some(last) };
        if self.move_horizon(version + 1, &ended).await? {
            done.noted = Some((version + 2, ended));
        }
        Ok(done)
    }

    /// Sends the free work of `queue` that is due after `from` and at `until` or before, and that `fits`.
    async fn send_due(
        &self,
        queue: &QueueName,
        catalog: &Catalog,
        from: Option<Timestamp>,
        until: Timestamp,
        most: usize,
        fits: impl Fn(&Job) -> bool,
    ) -> Result<Dispatched, Error> {
        let pushed = catalog.types_of(queue).filter(|(_, item)| self.is_pushed(&item.config));
        let types: Vec<TypeName> = pushed.map(|(name, _)| name.clone()).collect();
        let mut done = Dispatched::default();
        if types.is_empty() {
            return Ok(done);
        }
        let query = |critical, after, looked: usize| DueQuery {
            queue: queue.clone(),
            critical,
            types: types.clone(),
            partition: None,
            order: Order::Time { step_millis: 0 },
            until,
            after,
            limit: SCAN_BOUND.min(most.saturating_sub(looked).max(1) as u32),
        };
        // Before every job that is due at that instant, and after every earlier one.
        let start = from.map(|from| Position {
            partition: String::new(),
            priority: i32::MAX,
            run_at: from,
            id: LAST_ID.parse().expect("a good id"),
        });
        // Asked together, a store reads what both have in common once.
        let first =
            self.ports.store.due(&[query(true, start.clone(), 0), query(false, start, 0)]).await?;
        for (critical, first) in [true, false].into_iter().zip(first) {
            let (mut page, mut looked) = (first, 0);
            loop {
                looked += page.jobs.len();
                let work: Vec<Work> = page
                    .jobs
                    .iter()
                    .filter(|job| fits(job))
                    .filter_map(|job| self.unlimited_work(catalog, job))
                    .collect();
                if !work.is_empty() {
                    self.ports.work.send(&work).await?;
                    done.sent += work.len();
                }
                let last = page.jobs.last().filter(|_| page.more);
                let Some(last) = last else { break };
                if looked >= most {
                    done.more = true;
                    break;
                }
                let after = Some(Position {
                    partition: last.spec.partition.clone(),
                    priority: last.spec.priority,
                    run_at: last.life.run_at().unwrap_or(until),
                    id: last.id.clone(),
                });
                page = self
                    .ports
                    .store
                    .due(&[query(critical, after, looked)])
                    .await?
                    .pop()
                    .unwrap_or_default();
            }
        }
        Ok(done)
    }
}

/// The last id of all.
const LAST_ID: &str = "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz";
