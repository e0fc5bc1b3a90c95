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
/// Most triggers that are remembered, the latest ones. There are fewer, but for those that were
/// deleted.
const MAX_TRIGGERS: usize = 2000;
/// Most characters that are kept of each text of an event.
const MAX_TEXT_CHARS: usize = 128;

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
            let latest = |status: &TriggerStatus| status.recent.front().map(|event| event.at);
            let idle = statuses.iter().min_by_key(|(_, status)| latest(status));
            let idle = idle.map(|(trigger, _)| trigger.clone());
            idle.map(|idle| statuses.remove(&idle));
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

/// The beginning of a text of an event, which its sender chooses.
fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT_CHARS).collect()
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
                    id: cut(&ingested.id),
                    source: cut(&ingested.source),
                    event_type: cut(&ingested.event_type),
                    action: match &applied.action {
                        TriggerAction::DeadLettered { letter, reason } => {
                            let (letter, reason) = (letter.clone(), cut(reason));
                            TriggerAction::DeadLettered { letter, reason }
                        }
                        action => action.clone(),
                    },
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
    fn texts_and_triggers_that_are_kept_have_a_bound() {
        assert_eq!(cut(&"é".repeat(1000)).chars().count(), MAX_TEXT_CHARS);
        let statuses = TriggerStatuses::default();
        for number in 0..MAX_TRIGGERS + 3 {
            let event = HandledEvent {
                at: Timestamp::from_millis(number as i64),
                id: String::new(),
                source: String::new(),
                event_type: String::new(),
                action: TriggerAction::Late { job: name("j") },
            };
            statuses.record(name(&format!("t{number}")), event);
        }
        let matched = |number: usize| statuses.of(&name(&format!("t{number}"))).matched;
        assert_eq!((matched(2), matched(3), matched(MAX_TRIGGERS + 2)), (0, 1, 1));
    }

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
