//! What the triggers did: numbers, and the latest events of each.
//!
//! It shows whether a trigger works. Nothing depends on it. A server alone keeps it in memory and
//! in [records](stored), so it outlasts a restart. Servers that share a store keep in memory what they
//! have not stored yet: one of them [adds](added) to the records what all did. Functions share no memory
//! and end after minutes, so such a deployment does not show it.

mod added;
mod stored;

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

pub(super) use self::stored::STORE_INTERVAL;
use super::{Error, Inner};
use tidegate_api::{EventReference, HandledEvent, TriggerAction, TriggerStatus};
use tidegate_core::{job::TriggerName, time::Timestamp};
use tidegate_engine::events::ingest::{self, Ingested};

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

/// How many bytes an event takes in memory, at most.
fn bytes_of(event: &HandledEvent) -> usize {
    let action = match &event.action {
        TriggerAction::DeadLettered { letter, reason } => letter.len() + reason.len(),
        _ => ACTION_BYTES,
    };
    let EventReference { id, source, r#type } = &event.event;
    size_of::<HandledEvent>() + id.len() + source.len() + r#type.len() + action
}

/// What is kept of a trigger.
#[derive(Default)]
struct Kept {
    since: Timestamp,
    matched: u64,
    enqueued: u64,
    dead_letters: u64,
    last_at: Option<Timestamp>,
    /// The newest first.
    recent: VecDeque<HandledEvent>,
    bytes: usize,
    /// Whether it differs from its record.
    has_changed: bool,
    /// When its record was written by this process.
    stored_at: Timestamp,
}

impl Kept {
    /// The status, with at most `most` events.
    fn status(&self, most: usize) -> TriggerStatus {
        TriggerStatus {
            since: self.since,
            matched: self.matched,
            enqueued: self.enqueued,
            dead_letters: self.dead_letters,
            last_at: self.last_at,
            recent: self.recent.iter().take(most).cloned().collect(),
        }
    }

    /// Keeps the latest `most` events.
    fn truncate(&mut self, most: usize) {
        while self.recent.len() > most {
            self.bytes -= self.recent.pop_back().map_or(0, |event| bytes_of(&event));
        }
    }
}

/// The status of all triggers.
pub(super) struct TriggerStatuses {
    /// Since when this process counts.
    started_at: Timestamp,
    known: Mutex<Statuses>,
    /// Held while records are written or removed.
    storing: tokio::sync::Mutex<()>,
}

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
    /// No events yet, in a process that began at `started_at`.
    pub fn new(started_at: Timestamp) -> Self {
        Self { started_at, known: Mutex::default(), storing: tokio::sync::Mutex::default() }
    }

    fn record(&self, trigger: TriggerName, event: HandledEvent) {
        let mut statuses = self.known.lock();
        if statuses.triggers.len() >= MAX_TRIGGERS && !statuses.triggers.contains_key(&trigger) {
            let idle = statuses.triggers.iter().min_by_key(|(_, kept)| kept.last_at);
            if let Some(idle) = idle.map(|(trigger, _)| trigger.clone()) {
                statuses.remove(&idle);
            }
        }
        let new = || Kept { since: self.started_at, ..Kept::default() };
        let kept = statuses.triggers.entry(trigger).or_insert_with(new);
        kept.matched += 1;
        kept.last_at = Some(event.at);
        kept.has_changed = true;
        match event.action {
            TriggerAction::Enqueued { .. } => kept.enqueued += 1,
            TriggerAction::DeadLettered { .. } => kept.dead_letters += 1,
            _ => {}
        }
        let before = kept.bytes;
        kept.truncate(MAX_EVENTS - 1);
        kept.bytes += bytes_of(&event);
        kept.recent.push_front(event);
        let after = kept.bytes;
        statuses.bytes = statuses.bytes - before + after;
        statuses.shrink();
    }

    /// The status of a trigger, with at most `most` events.
    pub fn of(&self, trigger: &TriggerName, most: usize) -> TriggerStatus {
        match self.known.lock().triggers.get(trigger) {
            Some(kept) => kept.status(most),
            None => self.unmatched(),
        }
    }

    /// Takes the statuses out of memory, at most `most_triggers` and, but for the first, `most_bytes` of
    /// events: those first that had no event for the longest time.
    fn take(&self, most_triggers: usize, most_bytes: usize) -> Vec<(TriggerName, TriggerStatus)> {
        let mut statuses = self.known.lock();
        let known = statuses.triggers.iter().map(|(trigger, kept)| (kept.last_at, trigger.clone()));
        let mut known: Vec<_> = known.collect();
        known.sort_unstable();
        let (mut taken, mut bytes) = (Vec::new(), 0);
        for (_, trigger) in known.into_iter().take(most_triggers) {
            let Some(kept) = statuses.triggers.get(&trigger) else { continue };
            bytes += kept.bytes;
            if bytes > most_bytes && !taken.is_empty() {
                break;
            }
            taken.push((trigger.clone(), kept.status(MAX_EVENTS)));
            statuses.remove(&trigger);
        }
        taken
    }

    /// The status of a trigger without an event.
    fn unmatched(&self) -> TriggerStatus {
        Kept { since: self.started_at, ..Kept::default() }.status(0)
    }

    /// Adds a status from before the start. What this process knows of the trigger already stays.
    fn restore(&self, trigger: TriggerName, status: TriggerStatus) {
        let TriggerStatus { since, matched, enqueued, dead_letters, last_at, recent } = status;
        let recent: VecDeque<_> = recent.into_iter().take(MAX_EVENTS).collect();
        let bytes = recent.iter().map(bytes_of).sum();
        let restored = Kept {
            since,
            matched,
            enqueued,
            dead_letters,
            last_at,
            recent,
            bytes,
            ..Kept::default()
        };
        let mut statuses = self.known.lock();
        if statuses.triggers.len() < MAX_TRIGGERS && !statuses.triggers.contains_key(&trigger) {
            statuses.triggers.insert(trigger, restored);
            statuses.bytes += bytes;
            statuses.shrink();
        }
    }

    /// Whether a status differs from its record.
    fn have_changed(&self) -> bool {
        self.known.lock().triggers.values().any(|kept| kept.has_changed)
    }

    /// The statuses that differ from their records, at least one and otherwise at most `most_bytes`,
    /// those first whose records were written longest ago. They count as written at `now`.
    fn take_changed(&self, now: Timestamp, most_bytes: usize) -> Vec<(TriggerName, TriggerStatus)> {
        let mut statuses = self.known.lock();
        let mut changed: Vec<_> =
            statuses.triggers.iter_mut().filter(|(_, kept)| kept.has_changed).collect();
        changed.sort_unstable_by(|(one, kept), (other, of_other)| {
            (kept.stored_at, *one).cmp(&(of_other.stored_at, *other))
        });
        let (mut taken, mut bytes) = (Vec::new(), 0);
        for (trigger, kept) in changed {
            bytes += kept.bytes;
            if bytes > most_bytes && !taken.is_empty() {
                break;
            }
            (kept.has_changed, kept.stored_at) = (false, now);
            taken.push((trigger.clone(), kept.status(MAX_EVENTS)));
        }
        taken
    }

    /// Takes back that the statuses of `triggers` were written.
    fn mark_changed(&self, triggers: &[TriggerName]) {
        let mut statuses = self.known.lock();
        for trigger in triggers {
            if let Some(kept) = statuses.triggers.get_mut(trigger) {
                kept.has_changed = true;
            }
        }
    }

    /// Forgets the triggers that are not to be kept.
    fn retain(&self, is_kept: impl Fn(&TriggerName) -> bool) {
        let mut statuses = self.known.lock();
        let gone: Vec<_> =
            statuses.triggers.keys().filter(|trigger| !is_kept(trigger)).cloned().collect();
        for trigger in &gone {
            statuses.remove(trigger);
        }
    }

    /// Forgets a trigger.
    fn forget(&self, trigger: &TriggerName) {
        self.known.lock().remove(trigger);
    }
}

/// The beginning of a text of an event, which its sender chooses.
fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT_CHARS).collect()
}

/// What a trigger did, as the API shows it.
pub(crate) fn action_view(from: ingest::TriggerAction) -> TriggerAction {
    use ingest::TriggerAction as A;
    match from {
        A::Enqueued { job, job_type } => TriggerAction::Enqueued { job, job_type },
        A::AlreadyEnqueued { job } => TriggerAction::AlreadyEnqueued { job },
        A::Completed { job } => TriggerAction::Completed { job },
        A::Recorded { job } => TriggerAction::Recorded { job },
        A::AlreadyProcessed { job } => TriggerAction::AlreadyProcessed { job },
        A::Late { job } => TriggerAction::Late { job },
        A::Pending { until } => TriggerAction::Pending { until },
        A::DeadLettered { letter, reason } => TriggerAction::DeadLettered { letter, reason },
        A::Dropped { reason } => TriggerAction::Dropped { reason },
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
                    event: EventReference {
                        id: cut(&ingested.id),
                        source: cut(&ingested.source),
                        r#type: cut(&ingested.event_type),
                    },
                    action: match action_view(applied.action.clone()) {
                        TriggerAction::DeadLettered { letter, reason } => {
                            TriggerAction::DeadLettered { letter, reason: cut(&reason) }
                        }
                        action => action,
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

    fn statuses() -> TriggerStatuses {
        TriggerStatuses::new(Timestamp::EPOCH)
    }

    fn event(at: i64, text: &str, action: TriggerAction) -> HandledEvent {
        let text = || text.to_owned();
        HandledEvent {
            at: Timestamp::from_millis(at),
            event: EventReference { id: text(), source: text(), r#type: text() },
            action,
        }
    }

    fn late() -> TriggerAction {
        TriggerAction::Late { job: name("j") }
    }

    #[test]
    fn texts_and_triggers_that_are_kept_have_a_bound() {
        assert_eq!(cut(&"é".repeat(1000)).chars().count(), MAX_TEXT_CHARS);
        let statuses = statuses();
        for number in 0..MAX_TRIGGERS + 3 {
            statuses.record(name(&format!("t{number}")), event(number as i64, "", late()));
        }
        let matched = |number: usize| statuses.of(&name(&format!("t{number}")), 1).matched;
        assert_eq!((matched(2), matched(3), matched(MAX_TRIGGERS + 2)), (0, 1, 1));
    }

    #[test]
    fn the_events_of_all_triggers_have_a_bound_in_bytes() {
        let statuses = statuses();
        let text = "t".repeat(MAX_TEXT_CHARS);
        let event = |number: usize| event(number as i64, &text, late());
        statuses.record(name("quiet"), event(0));
        for number in 0..400 {
            for event_number in 0..MAX_EVENTS {
                statuses.record(name(&format!("busy-{number}")), event(event_number));
            }
            let known = statuses.known.lock();
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
        let statuses = statuses();
        let trigger: TriggerName = name("uploads");
        for number in 0..250 {
            let action = match number % 2 {
                0 => TriggerAction::Enqueued { job: name("j"), job_type: name("t") },
                _ => TriggerAction::DeadLettered { letter: "l".into(), reason: "r".into() },
            };
            statuses.record(trigger.clone(), event(number, &number.to_string(), action));
        }
        for (most, last) in [(20, "230"), (MAX_EVENTS, "50"), (1000, "50")] {
            let status = statuses.of(&trigger, most);
            assert_eq!((status.matched, status.enqueued, status.dead_letters), (250, 125, 125));
            let ids: Vec<&str> = status.recent.iter().map(|of| of.event.id.as_str()).collect();
            let shown = (ids.len(), ids[0], ids[ids.len() - 1]);
            assert_eq!(shown, (most.min(MAX_EVENTS), "249", last));
        }
        statuses.forget(&trigger);
        assert_eq!(statuses.of(&trigger, MAX_EVENTS).matched, 0);
        assert_eq!(statuses.known.lock().bytes, 0);
    }

    #[test]
    fn what_is_written_has_a_bound_and_takes_turns() {
        let statuses = statuses();
        let text = "t".repeat(MAX_TEXT_CHARS);
        let fill = |trigger: &str| statuses.record(name(trigger), event(1, &text, late()));
        ["a", "b", "c"].into_iter().for_each(fill);
        let most = 2 * statuses.known.lock().bytes / 3;
        let take = |now: i64| {
            let taken = statuses.take_changed(Timestamp::from_millis(now), most).into_iter();
            taken.map(|(trigger, _)| trigger.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(take(10), ["a", "b"]);
        fill("a");
        assert_eq!(take(20), ["c"], "after it the events of a do not fit");
        assert_eq!((take(30), statuses.have_changed()), (vec!["a".to_owned()], false));
        statuses.mark_changed(&[name("a"), name("gone")]);
        assert!(statuses.have_changed());
        assert_eq!(statuses.take_changed(Timestamp::EPOCH, 1).len(), 1, "one of any size");
    }
}
