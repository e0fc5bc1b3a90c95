//! The status of the triggers of servers that share a store: each stores what its triggers did, and one
//! adds it to the record of each trigger.

use std::collections::BTreeMap;

use super::{
    MAX_EVENTS,
    stored::{Stored, write},
};
use crate::runtime::{Error, Inner, shared::Subject};
use tidegate_api::TriggerStatus;
use tidegate_core::job::TriggerName;

/// Most triggers in a part of one server. The others come with the next one.
const MAX_PART_TRIGGERS: usize = 100;
/// Most bytes of their events, as they are in memory.
const MAX_PART_BYTES: usize = 256 << 10;
/// Most events in the records that are written at once: about 8 MB.
const MAX_WRITTEN_EVENTS: usize = 20_000;

/// Adds what happened at one server to `all`, which keeps the latest `most` events.
fn add(all: &mut TriggerStatus, part: TriggerStatus, most: usize) {
    let TriggerStatus { since, matched, enqueued, dead_letters, last_at, recent } = part;
    all.since = all.since.min(since);
    all.matched += matched;
    all.enqueued += enqueued;
    all.dead_letters += dead_letters;
    all.last_at = all.last_at.max(last_at);
    all.recent.extend(recent);
    // Of one instant, those of one server keep their order.
    all.recent.sort_by_key(|event| std::cmp::Reverse(event.at));
    all.recent.truncate(most);
}

impl Inner {
    /// Stores what the triggers of this server did since the last call, or as much of it as one part
    /// takes. Returns whether there was any.
    ///
    /// # Errors
    ///
    /// The store's; a repeat stores the same.
    pub(in crate::runtime) async fn store_trigger_part(&self) -> Result<bool, Error> {
        let take = || {
            let taken = self.trigger_statuses.take(MAX_PART_TRIGGERS, MAX_PART_BYTES).into_iter();
            let taken: Vec<_> = taken.map(|(trigger, status)| Stored { trigger, status }).collect();
            (!taken.is_empty()).then_some(taken)
        };
        self.store_part(Subject::Triggers, take).await
    }

    /// Adds what the triggers of all servers did. Triggers that are gone are left out.
    ///
    /// # Errors
    ///
    /// The store's; a repeat counts nothing twice.
    pub(in crate::runtime) async fn add_trigger_parts(&self) -> Result<(), Error> {
        let parts = self.parts(Subject::Triggers).await?;
        if parts.is_empty() {
            return Ok(());
        }
        let catalog = self.engine.catalog().await?;
        let mut new: BTreeMap<TriggerName, Vec<TriggerStatus>> = BTreeMap::new();
        for Stored { trigger, status } in parts.contents::<Vec<Stored>>().into_iter().flatten() {
            if catalog.triggers.contains_key(&trigger) {
                new.entry(trigger).or_default().push(status);
            }
        }
        let triggers: Vec<TriggerName> = new.keys().cloned().collect();
        let most = (MAX_WRITTEN_EVENTS / triggers.len().max(1)).clamp(1, MAX_EVENTS);
        let stored = self.stored_statuses(&triggers, most).await?;
        let mut writes = Vec::with_capacity(triggers.len());
        for ((trigger, of_servers), stored) in new.into_iter().zip(stored) {
            let mut statuses = stored.into_iter().chain(of_servers);
            if let Some(mut all) = statuses.next() {
                all.recent.truncate(most);
                statuses.for_each(|status| add(&mut all, status, most));
                writes.extend(write(trigger, all));
            }
        }
        self.add_parts(parts, writes).await?;
        Ok(())
    }

    /// What `triggers` did at all servers, as far as it was added.
    pub(in crate::runtime) async fn added_trigger_statuses(
        &self,
        triggers: &[TriggerName],
        most: usize,
    ) -> Result<Vec<Option<TriggerStatus>>, Error> {
        let stored = self.stored_statuses(triggers, most).await?;
        let or_unmatched =
            |status: Option<_>| Some(status.unwrap_or_else(|| self.trigger_statuses.unmatched()));
        Ok(stored.into_iter().map(or_unmatched).collect())
    }
}

#[cfg(test)]
mod tests {
    use tidegate_api::{EventReference, HandledEvent, TriggerAction};
    use tidegate_core::time::Timestamp;
    use tidegate_engine::testkit::builders::name;

    use super::*;

    fn status(since: i64, ats: &[i64]) -> TriggerStatus {
        let event = |at: &i64| HandledEvent {
            at: Timestamp::from_millis(*at),
            event: EventReference { id: at.to_string(), source: "/".into(), r#type: "t".into() },
            action: TriggerAction::Late { job: name("j") },
        };
        TriggerStatus {
            since: Timestamp::from_millis(since),
            matched: ats.len() as u64,
            enqueued: 1,
            dead_letters: 2,
            last_at: ats.first().map(|at| Timestamp::from_millis(*at)),
            recent: ats.iter().map(event).collect(),
        }
    }

    #[test]
    fn the_sum_has_the_latest_events_of_all() {
        let mut all = status(5, &[90, 70, 10]);
        add(&mut all, status(3, &[80, 60]), MAX_EVENTS);
        let ids: Vec<&str> = all.recent.iter().map(|event| event.event.id.as_str()).collect();
        assert_eq!(ids, ["90", "80", "70", "60", "10"]);
        assert_eq!((all.matched, all.enqueued, all.dead_letters), (5, 2, 4));
        assert_eq!((all.since.millis(), all.last_at.unwrap().millis()), (3, 90));
        let many: Vec<i64> = (0..MAX_EVENTS as i64).rev().collect();
        add(&mut all, status(9, &many), MAX_EVENTS);
        assert_eq!((all.recent.len(), all.recent[0].at.millis()), (MAX_EVENTS, 199));
        add(&mut all, status(9, &[300]), 2);
        let ids: Vec<&str> = all.recent.iter().map(|event| event.event.id.as_str()).collect();
        assert_eq!(ids, ["300", "199"]);
    }
}
