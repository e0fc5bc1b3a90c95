//! The lookahead: dispatches the jobs of queues without a ledger before they are due.
//!
//! Its horizon is the instant up to which jobs were dispatched, or are being dispatched. A process
//! that writes a job due before the horizon dispatches that job itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

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

/// The result of a lookahead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lookahead {
    /// How many jobs were sent.
    pub sent: usize,
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
                return Ok(horizon.until);
            }
            // This is the first caller. A process that leaves a job to a lookahead has read the
            // horizon before, so the jobs due up to here are dispatched by the processes that write
            // them.
            let until = self.now() + LOOKAHEAD;
            self.move_horizon(version, &Horizon { done: until, until, ..Horizon::default() })
                .await?;
        }
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

    /// Dispatches the jobs of `queues`, which have no ledgers, that become due soon.
    ///
    /// Each interval of time is dispatched by one call. If a call does not reach its end, the next
    /// one dispatches its interval again.
    ///
    /// # Errors
    ///
    /// The store's and the work queue's; the next call repeats the interval.
    pub async fn look_ahead(&self, queues: &[QueueName]) -> Result<Lookahead, Error> {
        let mut done = Lookahead::default();
        let now = self.now();
        let (version, seen) = self.read_horizon().await?;
        let until = now + LOOKAHEAD;
        let from = if seen.done == Timestamp::EPOCH { now } else { seen.done };
        if until <= seen.until && seen.done >= seen.until {
            return Ok(done);
        }
        // The horizon is moved before the dispatch, so that no process leaves a job to an interval
        // that has passed.
        let until = until.max(seen.until);
        let begun = Horizon { until, ..seen };
        if !self.move_horizon(version, &begun).await? {
            return Ok(done);
        }
        for queue in queues {
            done.sent += self.dispatch(queue, from, until, usize::MAX).await?.sent;
        }
        let failed = begun.last.as_ref().map_or(0, |last| last.failed);
        let last = LastSweep { at: now, release: env!("CARGO_PKG_VERSION").to_owned(), failed };
        let ended = Horizon { done: until, last: Some(last), ..begun };
        if self.move_horizon(version + 1, &ended).await? {
            done.recorded = Some((version + 2, ended));
        }
        Ok(done)
    }
}
