//! Passes: work that goes through all there is, a step at a time, and begins again some hours later.
//! A record says how far a pass has come, for all processes.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{Engine, Error};
use tidegate_core::{
    port::{
        Write,
        job_store::{Committed, ItemKind},
    },
    stored::UnknownNames,
    time::Timestamp,
};

/// The time from the start of a pass to that of the next one, which may take longer.
const PASS_INTERVAL: Duration = Duration::from_hours(6);

/// How far steps that follow each other fast may be behind.
const MAX_LAG: Duration = Duration::from_mins(1);

/// When the next step of each pass is due, as far as this process knows.
pub(crate) type PassesDue = Mutex<BTreeMap<&'static str, Timestamp>>;

/// How far a pass has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pass {
    /// When the pass began.
    pub began: Timestamp,
    /// When the next step is due.
    pub next_at: Timestamp,
    /// Where the next step goes on; none at the start of a pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// How many steps this pass has made.
    #[serde(default)]
    pub steps: u64,
    #[serde(flatten)]
    unknown: UnknownNames,
}

impl Pass {
    /// Counts a step at `now`. The next one goes on `after` this one, or begins the next pass.
    pub fn step(&mut self, after: Option<String>, now: Timestamp, interval: Duration) {
        self.steps += 1;
        // A process that looks once a minute makes all steps of that minute.
        let from = if interval < MAX_LAG { self.next_at.max(now - MAX_LAG) } else { now };
        self.next_at = match after {
            Some(_) => from + interval,
            None => (self.began + PASS_INTERVAL).max(now + interval),
        };
        self.after = after;
    }
}

impl Engine {
    /// The pass `name` with its version, if its next step is due.
    pub(super) async fn due_pass(&self, name: &'static str) -> Result<Option<(u64, Pass)>, Error> {
        let now = self.now();
        if self.passes_due.lock().get(name).is_some_and(|due| now < *due) {
            return Ok(None);
        }
        let items = self.ports.store.items(ItemKind::Horizon).await?;
        let (version, mut pass) = match items.into_iter().find(|item| item.name == name) {
            None => (0, Pass::default()),
            // An unreadable record starts the pass again.
            Some(item) => {
                let pass = item.read().unwrap_or_else(|error| {
                    tracing::warn!(name, %error, "the progress of a pass cannot be read");
                    Pass::default()
                });
                (item.version, pass)
            }
        };
        if now < pass.next_at {
            self.passes_due.lock().insert(name, pass.next_at);
            return Ok(None);
        }
        if pass.after.is_none() {
            (pass.began, pass.steps) = (now, 0);
        }
        Ok(Some((version, pass)))
    }

    /// Records a step of the pass `name`. False if another process has made the same step.
    pub(super) async fn record_step(
        &self,
        name: &'static str,
        version: u64,
        pass: &Pass,
    ) -> Result<bool, Error> {
        self.passes_due.lock().insert(name, pass.next_at);
        let bytes = serde_json::to_vec(pass).map_err(|error| Error::Internal(error.to_string()))?;
        let write = Write::SetItem {
            kind: ItemKind::Horizon,
            name: name.into(),
            was: version,
            version: version + 1,
            bytes: Some(bytes),
        };
        let committed = self.ports.store.commit(vec![vec![write]]).await?;
        Ok(matches!(committed[..], [Committed::All]))
    }

    /// Makes the steps of the store's own upkeep that are due, until `until`.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn upkeep(&self, until: Timestamp) -> Result<(), Error> {
        const NAME: &str = "upkeep";
        while let Some((version, mut pass)) = self.due_pass(NAME).await? {
            let after = self.ports.store.upkeep(pass.after.as_deref()).await?;
            let now = self.now();
            pass.step(after, now, Duration::ZERO);
            if !self.record_step(NAME, version, &pass).await? || now >= until {
                break;
            }
        }
        Ok(())
    }

    /// Brings the store's counts of jobs up to date, until `until`.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn keep_counts(&self, until: Timestamp) -> Result<(), Error> {
        Ok(self.ports.store.keep_counts(until).await?)
    }
}
