//! What the triggers of this process did since its start: numbers, and the latest events of each.
//!
//! It shows whether a trigger works. Nothing depends on it, and it ends with the process, so a
//! serverless deployment does not show it.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use super::{Error, Inner};
use tidegate_core::{job::TriggerName, time::Timestamp};
use tidegate_engine::events::ingest::{Ingested, TriggerAction};

/// Most events that are kept of each trigger.
pub(crate) const MAX_EVENTS: usize = 200;
/// Most bytes of the events of all triggers. Of too many, the trigger with most bytes loses the older
/// half of its events.
const MAX_BYTES: usize = 8 << 20;
/// Most bytes of the names in an action without a text.
const ACTION_BYTES: usize = 128;
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

impl HandledEvent {
    /// How many bytes it takes, at most.
    fn bytes(&self) -> usize {
        let action = match &self.action {
            TriggerAction::DeadLettered { letter, reason } => letter.len() + reason.len(),
            _ => ACTION_BYTES,
        };
        size_of::<Self>() + self.id.len() + self.source.len() + self.event_type.len() + action
    }
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
    /// When the latest event matched.
    pub last_at: Option<Timestamp>,
    /// The latest events, the newest first.
    pub recent: Vec<HandledEvent>,
}

/// What is kept of a trigger.
#[derive(Default)]
struct Kept {
    matched: u64,
    enqueued: u64,
    dead_letters: u64,
    last_at: Option<Timestamp>,
    /// The newest first.
    recent: VecDeque<HandledEvent>,
    bytes: usize,
}

impl Kept {
    /// Keeps the latest `most` events.
    fn truncate(&mut self, most: usize) {
        while self.recent.len() > most {
            self.bytes -= self.recent.pop_back().map_or(0, |event| event.bytes());
        }
    }
}

/// The status of all triggers.
#[derive(Default)]
pub(super) struct TriggerStatuses(Mutex<Statuses>);

#[derive(Default)]
struct Statuses {
    triggers: HashMap<TriggerName, Kept>,
    /// The bytes of all events.
    bytes: usize,
}

impl Statuses {
    fn remove(&mut self, trigger: &TriggerName) {
        self.bytes -= self.triggers.remove(trigger).map_or(0, |kept| kept.bytes);
    }

    /// Drops events until they fit their bound.
    fn shrink(&mut self) {
        while self.bytes > MAX_BYTES {
            let Some(largest) = self.triggers.values_mut().max_by_key(|kept| kept.bytes) else {
                return;
            };
            let before = largest.bytes;
            largest.truncate(largest.recent.len() / 2);
            largest.recent.shrink_to_fit();
            self.bytes -= before - largest.bytes;
        }
    }
}

impl TriggerStatuses {
    fn record(&self, trigger: TriggerName, event: HandledEvent) {
        let mut statuses = self.0.lock();
        if statuses.triggers.len() >= MAX_TRIGGERS && !statuses.triggers.contains_key(&trigger) {
            let idle = statuses.triggers.iter().min_by_key(|(_, kept)| kept.last_at);
            if let Some(idle) = idle.map(|(trigger, _)| trigger.clone()) {
                statuses.remove(&idle);
            }
        }
        let kept = statuses.triggers.entry(trigger).or_default();
        kept.matched += 1;
        kept.last_at = Some(event.at);
        match event.action {
            TriggerAction::Enqueued { .. } => kept.enqueued += 1,
            TriggerAction::DeadLettered { .. } => kept.dead_letters += 1,
            _ => {}
        }
        let before = kept.bytes;
        kept.truncate(MAX_EVENTS - 1);
        kept.bytes += event.bytes();
        kept.recent.push_front(event);
        let after = kept.bytes;
        statuses.bytes = statuses.bytes - before + after;
        statuses.shrink();
    }

    /// The status of a trigger, with at most `most` events.
    pub fn of(&self, trigger: &TriggerName, most: usize) -> TriggerStatus {
        let statuses = self.0.lock();
        let Some(kept) = statuses.triggers.get(trigger) else { return TriggerStatus::default() };
        TriggerStatus {
            matched: kept.matched,
            enqueued: kept.enqueued,
            dead_letters: kept.dead_letters,
            last_at: kept.last_at,
            recent: kept.recent.iter().take(most).cloned().collect(),
        }
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
        let matched = |number: usize| statuses.of(&name(&format!("t{number}")), 1).matched;
        assert_eq!((matched(2), matched(3), matched(MAX_TRIGGERS + 2)), (0, 1, 1));
    }

    #[test]
    fn the_events_of_all_triggers_have_a_bound_in_bytes() {
        let statuses = TriggerStatuses::default();
        let event = |number: usize| HandledEvent {
            at: Timestamp::from_millis(number as i64),
            id: "i".repeat(MAX_TEXT_CHARS),
            source: "s".repeat(MAX_TEXT_CHARS),
            event_type: "t".repeat(MAX_TEXT_CHARS),
            action: TriggerAction::Late { job: name("j") },
        };
        statuses.record(name("quiet"), event(0));
        for number in 0..400 {
            for event_number in 0..MAX_EVENTS {
                statuses.record(name(&format!("busy-{number}")), event(event_number));
            }
            let known = statuses.0.lock();
            let sum: usize = known.triggers.values().map(|kept| kept.bytes).sum();
            assert!(known.bytes == sum && sum <= MAX_BYTES, "{sum} of {}", known.bytes);
        }
        let kept = |of: &str| statuses.of(&name(of), MAX_EVENTS).recent.len();
        assert_eq!(kept("quiet"), 1, "only those with most events lose some");
        assert!((1..MAX_EVENTS).contains(&kept("busy-0")), "{}", kept("busy-0"));
        assert_eq!(statuses.of(&name("busy-0"), 0).matched, MAX_EVENTS as u64);
    }

    #[test]
    fn the_latest_events_of_a_trigger_are_kept() {
        let statuses = TriggerStatuses::default();
        let trigger: TriggerName = name("uploads");
        for number in 0..250 {
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
        for (most, last) in [(20, "230"), (MAX_EVENTS, "50"), (1000, "50")] {
            let status = statuses.of(&trigger, most);
            assert_eq!((status.matched, status.enqueued, status.dead_letters), (250, 125, 125));
            let ids: Vec<&str> = status.recent.iter().map(|event| event.id.as_str()).collect();
            let shown = (ids.len(), ids[0], ids[ids.len() - 1]);
            assert_eq!(shown, (most.min(MAX_EVENTS), "249", last));
        }
        statuses.forget(&trigger);
        assert_eq!(statuses.of(&trigger, MAX_EVENTS), TriggerStatus::default());
        assert_eq!(statuses.0.lock().bytes, 0);
    }
}
