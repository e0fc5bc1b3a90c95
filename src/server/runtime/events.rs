//! Events, triggers and dead letters as methods of the server.

use std::sync::Arc;

use super::{Inner, Server};
use crate::telemetry::metrics;
use tidegate_api::TriggerStatus;
use tidegate_core::{
    event::{Event, Trigger, TriggerConfig, trigger::TriggerItem},
    job::{Job, TriggerName, Version},
};
use tidegate_engine::{
    Error,
    events::{
        dead_letters::{DeadLetter, Replayed},
        ingest::{Ingested, Ingestion},
        trial::{Trial, trial},
    },
    request::Enqueued,
};

impl Server {
    /// Applies events: one result each, in order. After `Ok` every outcome is durable. After an
    /// error other than 413 the caller must send the event again.
    pub async fn ingest(&self, events: &[Event]) -> Vec<Result<Ingested, Error>> {
        let Ingestion { answers, enqueued, changed } = self.inner.engine.ingest(events).await;
        metrics::ingested(&answers);
        self.inner.record_trigger_actions(&answers);
        self.inner.on_events(&enqueued, &changed);
        answers
    }

    /// Counts bodies that are no events.
    pub fn refused_events(&self, count: u64) {
        metrics::events_refused(count);
    }

    /// Stores malformed events as dead letters, each with its reason.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn keep_malformed(&self, malformed: &[(Event, String)]) -> Result<(), Error> {
        self.inner.engine.keep_malformed(malformed).await?;
        metrics::events_malformed(malformed.len() as u64);
        Ok(())
    }

    /// Replaces a trigger. The flag is `true` if it is new.
    ///
    /// # Errors
    ///
    /// 400 with the field; 409 `too_many_triggers`; 412 if `if_match` is not its version.
    pub async fn put_trigger(
        &self,
        name: &TriggerName,
        config: TriggerConfig,
        if_match: Option<u64>,
    ) -> Result<(TriggerItem, bool), Error> {
        let put = self.inner.engine.put_trigger(name, config, if_match).await?;
        if put.1 {
            self.inner.forget_trigger_status(name).await;
        }
        Ok(put)
    }

    /// [`Self::put_trigger`], also over a stored trigger that cannot be read.
    ///
    /// # Errors
    ///
    /// As [`Self::put_trigger`].
    pub async fn replace_trigger(
        &self,
        name: &TriggerName,
        config: TriggerConfig,
        if_match: Option<u64>,
    ) -> Result<(TriggerItem, bool), Error> {
        self.inner.engine.replace_trigger(name, config, if_match).await
    }

    /// A trigger.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn trigger(&self, name: &TriggerName) -> Result<TriggerItem, Error> {
        self.inner.engine.trigger(name).await
    }

    /// What each of `triggers` did, with at most `most` events, in their order. None in a serverless
    /// deployment. Of servers that share a store, what they did in the last seconds is missing.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn trigger_statuses(
        &self,
        triggers: &[TriggerName],
        most: usize,
    ) -> Result<Vec<Option<TriggerStatus>>, Error> {
        let inner = &self.inner;
        if inner.is_serverless() {
            return Ok(vec![None; triggers.len()]);
        }
        if inner.shares_store() {
            return inner.added_trigger_statuses(triggers, most).await;
        }
        let of = |trigger| Some(inner.trigger_statuses.of(trigger, most));
        Ok(triggers.iter().map(of).collect())
    }

    /// What a trigger would do about `event`, without doing it.
    ///
    /// # Errors
    ///
    /// 404; 413 for an event over the limit.
    pub async fn try_trigger(&self, name: &TriggerName, event: &Event) -> Result<Trial, Error> {
        let limit = self.inner.engine.rules().events.max_bytes;
        if event.size() > limit {
            return Err(Error::TooLarge { field: "event", limit });
        }
        let item = self.inner.engine.trigger(name).await?;
        let trigger = Trigger::new(name, &item.config)
            .map_err(|fault| Error::Internal(format!("a stored trigger is invalid: {fault}")))?;
        Ok(trial(&trigger, event))
    }

    /// Every trigger, by name.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn triggers(&self) -> Result<Vec<(TriggerName, TriggerItem)>, Error> {
        let catalog = self.inner.engine.catalog().await?;
        Ok(catalog.triggers.iter().map(|(name, item)| (name.clone(), item.clone())).collect())
    }

    /// Removes a trigger, and what it did.
    ///
    /// # Errors
    ///
    /// 404; 412.
    pub async fn delete_trigger(
        &self,
        name: &TriggerName,
        if_match: Option<u64>,
    ) -> Result<(), Error> {
        self.inner.engine.delete_trigger(name, if_match).await?;
        self.inner.forget_trigger_status(name).await;
        Ok(())
    }

    /// A page of dead letters, optionally of one trigger, and the cursor of the next page.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn dead_letters(
        &self,
        trigger: Option<&TriggerName>,
        after: Option<String>,
        limit: u32,
    ) -> Result<(Vec<DeadLetter>, Option<String>), Error> {
        self.inner.engine.dead_letters(trigger, after, limit).await
    }

    /// One dead letter.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn dead_letter(&self, id: &str) -> Result<DeadLetter, Error> {
        self.inner.engine.dead_letter(id).await
    }

    /// Removes a dead letter.
    ///
    /// # Errors
    ///
    /// 404.
    pub async fn delete_dead_letter(&self, id: &str) -> Result<(), Error> {
        self.inner.engine.delete_dead_letter(id).await
    }

    /// Applies the current configuration of a dead letter's trigger to it.
    ///
    /// # Errors
    ///
    /// 404 `dead_letter_not_found` or `trigger_not_found`; the store's: the dead letter remains.
    pub async fn replay_dead_letter(&self, id: &str) -> Result<Replayed, Error> {
        let (replayed, ingestion) = self.inner.engine.replay_dead_letter(id).await?;
        metrics::dead_letter_replayed(&replayed);
        self.inner.on_events(&ingestion.enqueued, &ingestion.changed);
        Ok(replayed)
    }
}

impl Inner {
    /// Announces the jobs that events made and changed.
    pub(super) fn on_events(self: &Arc<Self>, enqueued: &[Enqueued], changed: &[(Job, Version)]) {
        self.count_enqueued(enqueued.iter());
        self.on_accepted(enqueued.iter());
        for (job, version) in changed {
            self.on_superseded(job, *version);
            if job.life.awaits_retry_decision() {
                self.pending.notify_one();
            }
        }
    }
}
