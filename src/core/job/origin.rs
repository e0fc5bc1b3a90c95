//! What made a job that no caller enqueued: a schedule, or a trigger from an event.
//!
//! The job keeps it, because its id does not tell it: a caller may choose an id of the same form,
//! the ids of triggers are digests, and so is the end of a long name of a schedule.

use serde::{Deserialize, Serialize};

use super::{ScheduleName, TriggerName};
use crate::{record, stored::UnknownFields, time::Timestamp};

/// Most bytes of the id of an event, and of its source, that a job keeps.
pub const MAX_EVENT_TEXT_BYTES: usize = 256;

/// What made a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Origin {
    /// A schedule.
    Schedule(ScheduleOrigin),
    /// A trigger, from an event.
    Trigger(TriggerOrigin),
}

/// The schedule that made a job.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleOrigin {
    /// Its name.
    pub schedule: ScheduleName,
    /// The occurrence; none of a job that was made on request.
    pub occurrence: Option<Timestamp>,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(ScheduleOrigin { schedule, occurrence });

/// The trigger that made a job, and its event.
#[derive(Clone, Debug, PartialEq)]
pub struct TriggerOrigin {
    /// The trigger's name.
    pub trigger: TriggerName,
    /// The event's source; none if it has over [`MAX_EVENT_TEXT_BYTES`].
    pub source: Option<String>,
    /// The event's id; none if it has over [`MAX_EVENT_TEXT_BYTES`].
    pub event: Option<String>,
    /// The fields that a newer release added.
    pub unknown: UnknownFields,
}

record!(TriggerOrigin { trigger, source, event });

impl Origin {
    /// The origin of a job that `schedule` makes for an occurrence, or on request.
    pub fn schedule(schedule: ScheduleName, occurrence: Option<Timestamp>) -> Self {
        Self::Schedule(ScheduleOrigin { schedule, occurrence, unknown: UnknownFields::default() })
    }

    /// The origin of a job that `trigger` makes from the event with this source and id.
    pub fn trigger(trigger: TriggerName, source: &str, id: &str) -> Self {
        let kept = |text: &str| (text.len() <= MAX_EVENT_TEXT_BYTES).then(|| text.to_owned());
        Self::Trigger(TriggerOrigin {
            trigger,
            source: kept(source),
            event: kept(id),
            unknown: UnknownFields::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_of_an_event_is_not_kept() {
        let of =
            |id: &str, source: &str| match Origin::trigger("orders".parse().unwrap(), source, id) {
                Origin::Trigger(TriggerOrigin { source, event, .. }) => (event, source),
                Origin::Schedule(of) => panic!("{of:?}"),
            };
        let (kept, long) = ("k".repeat(MAX_EVENT_TEXT_BYTES), "l".repeat(MAX_EVENT_TEXT_BYTES + 1));
        assert_eq!(of(&kept, "/shop"), (Some(kept.clone()), Some("/shop".into())));
        assert_eq!(of(&long, &kept), (None, Some(kept.clone())));
        assert_eq!(of("1", &long), (Some("1".into()), None));
    }
}
