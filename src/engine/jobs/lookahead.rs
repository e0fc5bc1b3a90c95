//! The lookahead: dispatches the jobs of queues without a ledger before they are due.
//!
//! Its horizon is the instant up to which jobs were dispatched, or are being dispatched. A process
//! that writes a job due before the horizon dispatches that job itself.
//!
//! A lookahead that has no more time stops and records how far it came, so that the next one goes
//! on there: after a day without one, or when very many jobs are due together.

use std::time::Duration;

use futures_util::{
    FutureExt, StreamExt, TryStreamExt,
    future::{self, BoxFuture},
    stream,
};
use serde::{Deserialize, Serialize};

use super::{
    dispatch::{Dispatched, LatePass, Stop},
    resend::MESSAGE_LOST_AFTER,
};
use crate::{Engine, Error};
use tidegate_core::{
    job::QueueName,
    port::{Committed, Write, job_store::ItemKind},
    stored::UnknownNames,
    time::Timestamp,
};

/// How far ahead jobs are dispatched: longer than two intervals of the maintenance sweep, and
/// shorter than the longest delay of a message.
const LOOKAHEAD: Duration = Duration::from_secs(150);
/// How much the clocks of two processes may differ for [`Engine::is_left_to_lookahead`].
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(10);
/// The longest range of due times whose jobs are dispatched before the progress is recorded.
const MAX_RANGE: Duration = Duration::from_hours(1);
/// Queues whose jobs are dispatched at once.
const MAX_CONCURRENT_QUEUES: usize = 16;
/// The name of the one item that records the horizon.
const HORIZON_NAME: &str = "free";

/// How far ahead jobs were dispatched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Horizon {
    /// All jobs due up to here were dispatched.
    done: Timestamp,
    /// A lookahead dispatches the jobs due up to here.
    until: Timestamp,
    /// The latest completed sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<LastSweep>,
    /// The latest pass over late jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    late: Option<LatePass>,
    #[serde(flatten)]
    unknown: UnknownNames,
}

/// The latest maintenance sweep whose lookahead succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastSweep {
    /// When it began.
    pub at: Timestamp,
    /// The release that ran it.
    pub release: String,
    /// How many of its parts failed. Until it has ended, the number of the sweep before it.
    pub failed: usize,
}

/// A lookahead that has moved the horizon.
#[derive(Clone, Debug)]
pub struct BegunLookahead {
    now: Timestamp,
    version: u64,
    horizon: Horizon,
}

impl BegunLookahead {
    /// The jobs due up to here are dispatched.
    pub fn until(&self) -> Timestamp {
        self.horizon.until
    }
}

/// The result of a lookahead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lookahead {
    /// How many jobs were sent ahead of their time.
    pub sent: usize,
    /// How many late jobs were sent again.
    pub late: usize,
    /// When the oldest late job was due.
    pub oldest_due_at: Option<Timestamp>,
    /// Whether it had no time for all of them.
    pub stopped: bool,
    /// The horizon that it recorded, with its version; none if another process runs the lookahead.
    recorded: Option<(u64, Horizon)>,
}

impl Engine {
    /// The instant up to which jobs were dispatched, or are being dispatched. A process that
    /// changes a job due before then dispatches it.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn horizon(&self) -> Result<Timestamp, Error> {
        loop {
            let (version, horizon) = match self.read_horizon().await {
                // Dispatching once more is harmless: a job is claimed once.
                Err(error @ Error::Internal(_)) => {
                    tracing::error!(%error, "jobs of the near future are dispatched at once");
                    return Ok(self.now() + LOOKAHEAD);
                }
                read => read?,
            };
            if version > 0 {
                self.note_horizon(horizon.until);
                return Ok(horizon.until);
            }
            // This is the first caller. Processes may have left jobs to a lookahead before
            // (`is_left_to_lookahead`), so the first one begins here. It sends some of the others
            // once more, which is harmless.
            let done = self.now();
            let until = done + LOOKAHEAD;
            self.move_horizon(version, &Horizon { done, until, ..Horizon::default() }).await?;
        }
    }

    /// Whether a job due at `at` is certainly due before the horizon.
    ///
    /// The horizon only moves on, so an old value is enough for this, and a job that is due soon
    /// needs no read of the horizon: its item has one key for all queues. Whether a job is due
    /// *after* the horizon, only [`Self::horizon`] says.
    pub fn is_before_known_horizon(&self, at: Timestamp) -> bool {
        self.known_horizon.lock().is_some_and(|known| at <= known)
    }

    fn note_horizon(&self, until: Timestamp) {
        let mut known = self.known_horizon.lock();
        *known = (*known).max(Some(until));
    }

    /// Whether a job that was just written and is due at `at` is dispatched by a later lookahead,
    /// whatever the horizon is: none that has begun reaches so far.
    pub fn is_left_to_lookahead(&self, at: Timestamp) -> bool {
        at > self.now() + LOOKAHEAD + MAX_CLOCK_DIFFERENCE
    }

    /// The latest sweep whose lookahead succeeded; none if there was none.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn last_sweep(&self) -> Result<Option<LastSweep>, Error> {
        Ok(self.read_horizon().await?.1.last)
    }

    /// Records how many parts of a sweep failed. If the number is the recorded one, this needs no
    /// write.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn record_sweep(&self, lookahead: Lookahead, failed: usize) -> Result<(), Error> {
        let Some((version, mut horizon)) = lookahead.recorded else {
            return Ok(());
        };
        let Some(last) = horizon.last.as_mut().filter(|last| last.failed != failed) else {
            return Ok(());
        };
        last.failed = failed;
        // If it is refused, a later lookahead has moved the horizon, and its sweep records its own
        // number.
        self.move_horizon(version, &horizon).await.map(drop)
    }

    /// Reads the horizon and its version; version 0 if there is none.
    async fn read_horizon(&self) -> Result<(u64, Horizon), Error> {
        let item = self
            .ports
            .store
            .items(ItemKind::Horizon)
            .await?
            .into_iter()
            .find(|item| item.name == HORIZON_NAME);
        let Some(item) = item else {
            return Ok((0, Horizon::default()));
        };
        let horizon = item
            .read()
            .map_err(|error| Error::Internal(format!("the horizon cannot be read: {error}")))?;
        Ok((item.version, horizon))
    }

    /// Writes the horizon if it is still at version `was`. Returns whether it was written.
    async fn move_horizon(&self, was: u64, horizon: &Horizon) -> Result<bool, Error> {
        let bytes =
            serde_json::to_vec(horizon).map_err(|error| Error::Internal(error.to_string()))?;
        let write = Write::SetItem {
            kind: ItemKind::Horizon,
            name: HORIZON_NAME.into(),
            was,
            version: was + 1,
            bytes: Some(bytes),
        };
        Ok(matches!(self.ports.store.commit(vec![vec![write]]).await?.pop(), Some(Committed::All)))
    }

    /// Moves the horizon for a lookahead; none if another process runs one.
    ///
    /// From now on, no process leaves a job to it that is due before the new horizon. The queues
    /// that it must cover are those that have such jobs after this call.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn begin_lookahead(&self) -> Result<Option<BegunLookahead>, Error> {
        let now = self.now();
        let (version, seen) = self.read_horizon().await?;
        let until = now + LOOKAHEAD;
        if until <= seen.until && seen.done >= seen.until {
            return Ok(None);
        }
        let until = until.max(seen.until);
        let done = if seen.done == Timestamp::EPOCH { now } else { seen.done };
        let horizon = Horizon { done, until, ..seen };
        let moved = self.move_horizon(version, &horizon).await?;
        Ok(moved.then(|| BegunLookahead { now, version: version + 1, horizon }))
    }

    /// Dispatches the jobs of `queues`, which have no ledgers, that become due soon, and dispatches
    /// late ones again. It stops at `stop_at`.
    ///
    /// Each range of due times is dispatched by one call. If a call does not reach its end, the
    /// next one goes on.
    ///
    /// # Errors
    ///
    /// The store's and the work queue's; the next call repeats what was not recorded.
    pub async fn look_ahead(
        &self,
        begun: BegunLookahead,
        queues: &[QueueName],
        stop_at: Timestamp,
    ) -> Result<Lookahead, Error> {
        let mut lookahead = Lookahead::default();
        let BegunLookahead { now, mut version, mut horizon } = begun;
        let (until, done) = (horizon.until, horizon.done);
        while horizon.done < until && !lookahead.stopped {
            let (from, to) = (horizon.done, until.min(horizon.done + MAX_RANGE));
            let stop = Stop { at: stop_at, jobs: usize::MAX };
            let dispatches =
                queues.iter().map(|queue| self.dispatch(queue, from, to, stop).boxed());
            let range = all(dispatches.collect()).await?;
            lookahead.sent += range.sent;
            lookahead.stopped = range.stopped_at.is_some() || (to < until && self.now() >= stop_at);
            horizon.done = range.stopped_at.map_or(to, before).max(from);
            if horizon.done < until && !self.record(&mut version, &horizon).await? {
                return Ok(lookahead);
            }
        }
        if !lookahead.stopped {
            // What is due after `done` was sent only now.
            let until = done.min(now - MESSAGE_LOST_AFTER);
            let pass = LatePass::at(now, horizon.late);
            let stop = Stop { at: stop_at, jobs: usize::MAX };
            let dispatches =
                queues.iter().map(|queue| self.dispatch_late(queue, pass, until, stop).boxed());
            let late = all(dispatches.collect()).await?;
            let covered =
                late.stopped_at.map(before).max(pass.done.filter(|_| late.stopped_at.is_some()));
            horizon.late = Some(LatePass { done: covered, ..pass });
            (lookahead.late, lookahead.oldest_due_at) = (late.sent, late.oldest_due_at);
            lookahead.stopped = late.stopped_at.is_some();
        }
        let failed = horizon.last.as_ref().map_or(0, |last| last.failed);
        horizon.last =
            Some(LastSweep { at: now, release: env!("CARGO_PKG_VERSION").to_owned(), failed });
        if self.record(&mut version, &horizon).await? {
            lookahead.recorded = Some((version, horizon));
        }
        Ok(lookahead)
    }

    /// Writes the horizon and moves `version` on. Returns whether it was written: otherwise another
    /// process runs a lookahead.
    async fn record(&self, version: &mut u64, horizon: &Horizon) -> Result<bool, Error> {
        let written = self.move_horizon(*version, horizon).await?;
        *version += u64::from(written);
        Ok(written)
    }
}

/// Runs dispatches of several queues concurrently. Returns what they did together.
async fn all(
    dispatches: Vec<BoxFuture<'_, Result<Dispatched, Error>>>,
) -> Result<Dispatched, Error> {
    stream::iter(dispatches)
        .buffer_unordered(MAX_CONCURRENT_QUEUES)
        .try_fold(Dispatched::default(), |all, one| {
            let stopped_at = all.stopped_at.into_iter().chain(one.stopped_at).min();
            let oldest_due_at = all.oldest_due_at.into_iter().chain(one.oldest_due_at).min();
            future::ready(Ok(Dispatched { sent: all.sent + one.sent, stopped_at, oldest_due_at }))
        })
        .await
}

/// The last instant before `at`, which is not before 1970, as no job is due before then.
fn before(at: Timestamp) -> Timestamp {
    (at - Duration::from_millis(1)).max(Timestamp::EPOCH)
}
