//! What the triggers of this process did since its start: numbers, and the latest events of each.
//!
//! It shows whether a trigger works. Nothing depends on it, and it ends with the process, so a
//! serverless deployment does not show it.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use super::{Error, Inner};
use tidegate_core::{job::TriggerName, time::Timestamp};
use tidegate_engine::events::ingest::{Ingested, TriggerAction};

/// Most events that are shown of each trigger.
const MAX_EVENTS: usize = 20;
/// Most triggers that are remembered. There are fewer, but for those that were deleted.
const MAX_TRIGGERS: usize = 2000;

/// What a trigger did about an event.
#[derive(Clone, Debug, PartialEq)]
pub struct HandledEvent {
    /// When.
    pub at: Timestamp,
    /// The id of the event.
    pub id: String,
    /// Its source.
    pub source: String,
    /// Its type.
    pub event_type: String,
    /// What the trigger did.
    pub action: TriggerAction,
}

/// What a trigger did since the start of the process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TriggerStatus {
    /// How many events matched it.
    pub matched: u64,
    /// How many of them enqueued a job.
    pub enqueued: u64,
    /// How many became dead letters.
    pub dead_letters: u64,
    /// The latest events, the newest first, at most 20.
    pub recent: VecDeque<HandledEvent>,
}

/// The status of all triggers.
#[derive(Default)]
pub(super) struct TriggerStatuses(Mutex<HashMap<TriggerName, TriggerStatus>>);

impl TriggerStatuses {
    fn record(&self, trigger: TriggerName, event: HandledEvent) {
        let mut statuses = self.0.lock();
        if statuses.len() >= MAX_TRIGGERS && !statuses.contains_key(&trigger) {
            return;
        }
        let status = statuses.entry(trigger).or_default();
        status.matched += 1;
        match event.action {
            TriggerAction::Enqueued { .. } => status.enqueued += 1,
            TriggerAction::DeadLettered { .. } => status.dead_letters += 1,
            _ => {}
        }
        status.recent.truncate(MAX_EVENTS - 1);
        status.recent.push_front(event);
    }

    /// The status of a trigger.
    pub fn of(&self, trigger: &TriggerName) -> TriggerStatus {
        self.0.lock().get(trigger).cloned().unwrap_or_default()
    }

    /// Forgets a trigger.
    pub fn forget(&self, trigger: &TriggerName) {
        self.0.lock().remove(trigger);
    }
}

impl Inner {
    /// Records what triggers did about events.
    pub(super) fn record_trigger_actions(&self, answers: &[Result<Ingested, Error>]) {
        if self.is_serverless() {
            return;
        }
        let at = self.engine.now();
        for ingested in answers.iter().flatten() {
            for applied in &ingested.outcomes {
                let event = HandledEvent {
                    at,
                    id: ingested.id.clone(),
                    source: ingested.source.clone(),
                    event_type: ingested.event_type.clone(),
                    action: applied.action.clone(),
                };
                self.trigger_statuses.record(applied.trigger.clone(), event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::testkit::builders::name;

    #[test]
    fn the_latest_events_of_a_trigger_are_kept() {
        let statuses = TriggerStatuses::default();
        let trigger: TriggerName = name("uploads");
        for number in 0..50 {
            let action = match number % 2 {
                0 => TriggerAction::Enqueued { job: name("j"), job_type: name("t") },
                _ => TriggerAction::DeadLettered { letter: "l".into(), reason: "r".into() },
            };
            let event = HandledEvent {
                at: Timestamp::from_millis(number),
                id: number.to_string(),
                source: "/s".into(),
                event_type: "put".into(),
                action,
            };
            statuses.record(trigger.clone(), event);
        }
        let status = statuses.of(&trigger);
        assert_eq!((status.matched, status.enqueued, status.dead_letters), (50, 25, 25));
        let ids: Vec<&str> = status.recent.iter().map(|event| event.id.as_str()).collect();
        assert_eq!((ids.len(), ids[0], ids[MAX_EVENTS - 1]), (MAX_EVENTS, "49", "30"));
        statuses.forget(&trigger);
        assert_eq!(statuses.of(&trigger), TriggerStatus::default());
    }
}
