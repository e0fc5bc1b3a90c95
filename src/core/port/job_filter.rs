//! Conditions on jobs: what a list shows, and what a bulk operation changes.
//!
//! A store uses the conditions that its indexes support, and [`JobFilter::matches`] for the rest.
//! The one exception is [`JobFilter::data`], because a store may keep a body apart from its job: the
//! caller of the store reads the bodies.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

use crate::{
    job::{
        Attributes, Job, JobId, Outcome, Payload, Phase, QueueName, State, TypeName, Value,
        error_pattern::error_pattern,
        extract::{MAX_ATTRIBUTES, NAME_BYTES, TEXT_BYTES, extract, is_pointer},
        lifecycle::{Failure, Reason},
    },
    time::Timestamp,
    validate::{ValidationError, check_count, check_text},
};

/// Most ids of a filter.
pub const MAX_FILTER_IDS: usize = 1000;
/// Most conditions on the data.
pub const MAX_DATA_CONDITIONS: usize = 8;
/// Most bytes of a text that a filter compares, and of a pointer.
const MAX_TEXT_BYTES: usize = 1024;
/// Most bytes of the name of a worker.
const MAX_WORKER_BYTES: usize = 128;

/// Conditions on jobs. A job matches if all of them hold; the default has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobFilter {
    /// Only this type.
    pub job_type: Option<TypeName>,
    /// Only this queue.
    pub queue: Option<QueueName>,
    /// Only these jobs; empty for all. At most [`MAX_FILTER_IDS`].
    pub ids: BTreeSet<JobId>,
    /// Only these states; empty for all.
    pub states: Vec<StateFilter>,
    /// Only these phases; empty for all.
    pub phases: Vec<Phase>,
    /// Only with these attribute values. They are compared by their texts, so that `5` also finds
    /// the number 5.
    pub attributes: Attributes,
    /// Only jobs with at least this many attempts.
    pub min_attempt: Option<u16>,
    /// Only jobs with at most this many attempts.
    pub max_attempt: Option<u16>,
    /// Only jobs whose latest attempt runs or ran at this worker.
    pub worker: Option<String>,
    /// Only with this latest error.
    pub error: ErrorFilter,
    /// Only accepted in this time.
    pub created: TimeRange,
    /// Only first due in this time.
    pub due: TimeRange,
    /// Only those whose latest attempt started in this time.
    pub started: TimeRange,
    /// Only ended in this time.
    pub ended: TimeRange,
    /// Only with these values in the data, by JSON pointer, compared as attributes. Not part of
    /// [`JobFilter::matches`]. At most [`MAX_DATA_CONDITIONS`].
    pub data: BTreeMap<String, Value>,
}

/// Conditions on the latest error of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ErrorFilter {
    /// Only these reasons; empty for all.
    pub reasons: Vec<Reason>,
    /// Only messages that contain this text, in upper or lower case.
    pub contains: Option<String>,
    /// Only messages with this [pattern](error_pattern).
    pub pattern: Option<String>,
}

/// The instants from `from` on and before `to`; each end may be open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimeRange {
    /// The first instant.
    pub from: Option<Timestamp>,
    /// The first instant after it.
    pub to: Option<Timestamp>,
}

impl TimeRange {
    /// Whether it has every instant.
    pub fn is_unbounded(self) -> bool {
        self == Self::default()
    }

    /// Whether it has `at`.
    pub fn contains(self, at: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= at) && self.to.is_none_or(|to| at < to)
    }

    /// Whether it has `at`. What has not happened is in no bounded range.
    pub fn contains_some(self, at: Option<Timestamp>) -> bool {
        at.map_or_else(|| self.is_unbounded(), |at| self.contains(at))
    }
}

impl JobFilter {
    /// Checks the bounds: at most 1000 ids, 16 attributes, 8 conditions on the data, which are JSON
    /// pointers, and texts of 1 to 1024 bytes; names and values of attributes as a job has them.
    ///
    /// # Errors
    ///
    /// What is out of bounds, by the names that the API has.
    pub fn check(&self) -> Result<(), ValidationError> {
        check_count("id", self.ids.len(), MAX_FILTER_IDS)?;
        check_count("attribute", self.attributes.len(), MAX_ATTRIBUTES)?;
        check_count("data", self.data.len(), MAX_DATA_CONDITIONS)?;
        for (name, value) in &self.attributes {
            check_text("attribute", name, NAME_BYTES)?;
            if value.as_text().len() > TEXT_BYTES {
                let message = format!("must have at most {TEXT_BYTES} bytes");
                return Err(ValidationError::new(format!("attribute[{name}]"), message));
            }
        }
        for (pointer, value) in &self.data {
            let field = format!("data[{pointer}]");
            let message = if !is_pointer(pointer) || pointer.len() > MAX_TEXT_BYTES {
                "must be named by a JSON pointer, such as /a/0, of at most 1024 bytes".to_owned()
            } else if value.as_text().len() > MAX_TEXT_BYTES {
                format!("must have at most {MAX_TEXT_BYTES} bytes")
            } else {
                continue;
            };
            return Err(ValidationError::new(field, message));
        }
        let check = |field, text: &Option<String>, most| {
            text.as_ref().map_or(Ok(()), |text| check_text(field, text, most))
        };
        check("worker", &self.worker, MAX_WORKER_BYTES)?;
        check("error_contains", &self.error.contains, MAX_TEXT_BYTES)?;
        // The pattern of an error without a message is empty.
        let pattern = self.error.pattern.clone().filter(|pattern| !pattern.is_empty());
        check("error_pattern", &pattern, MAX_TEXT_BYTES)
    }

    /// Whether `job` fulfils all conditions at `now` but those on its data. The server's own jobs
    /// match only if their type, their queue or their id is named.
    pub fn matches(&self, job: &Job, now: Timestamp) -> bool {
        let (spec, life) = (&job.spec, &job.life);
        let ended_at = match life.state {
            State::Ended { at, .. } => Some(at),
            _ => None,
        };
        (self.names_internal() || !spec.job_type.is_internal())
            && self.job_type.as_ref().is_none_or(|name| *name == spec.job_type)
            && self.queue.as_ref().is_none_or(|name| *name == spec.queue)
            && (self.ids.is_empty() || self.ids.contains(&job.id))
            && (self.states.is_empty() || self.states.contains(&StateFilter::from(&life.state)))
            && (self.phases.is_empty() || self.phases.contains(&Phase::of(life, now)))
            && has_values(&spec.attributes, &self.attributes)
            && self.min_attempt.is_none_or(|min| min <= life.attempt)
            && self.max_attempt.is_none_or(|max| life.attempt <= max)
            && self.worker.as_ref().is_none_or(|worker| job.worker() == Some(worker.as_str()))
            && self.error.matches(life.error.as_ref())
            && self.created.contains(spec.created_at)
            && (self.due.is_unbounded() || self.due.contains(job.due_at()))
            && self.started.contains_some(life.started_at)
            && self.ended.contains_some(ended_at)
    }

    /// Whether the data of a job, which is well formed, fulfils the conditions on it.
    pub fn matches_data(&self, data: &Payload) -> bool {
        let pointers = self.data.keys().map(|pointer| (pointer.clone(), pointer.clone())).collect();
        extract(&pointers, data, usize::MAX).is_ok_and(|found| has_values(&found, &self.data))
    }

    /// The states of the jobs that may match: those that it names, or else those of its phases. Empty
    /// for all.
    pub fn stored_states(&self) -> Vec<StateFilter> {
        if !self.states.is_empty() {
            return self.states.clone();
        }
        let states: BTreeSet<_> = self.phases.iter().copied().map(StateFilter::from).collect();
        states.into_iter().collect()
    }

    /// Whether it may match jobs that the server made for itself.
    fn names_internal(&self) -> bool {
        self.job_type.as_ref().is_some_and(TypeName::is_internal)
            || self.queue.as_ref().is_some_and(QueueName::is_internal)
            || !self.ids.is_empty()
    }
}

/// Whether `values` has each of `wanted`.
fn has_values(values: &Attributes, wanted: &BTreeMap<String, Value>) -> bool {
    wanted.iter().all(|(name, value)| values.get(name).is_some_and(|has| has.is_found_by(value)))
}

impl ErrorFilter {
    /// Whether it has no condition.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether `failure` fulfils the conditions. No failure fulfils none.
    pub fn matches(&self, failure: Option<&Failure>) -> bool {
        let Self { reasons, contains, pattern } = self;
        if self.is_empty() {
            return true;
        }
        let Some(failure) = failure else { return false };
        let message = failure.message.as_deref().unwrap_or_default();
        let has_text = |text: &String| message.to_lowercase().contains(&text.to_lowercase());
        let has_pattern = |wanted: &String| {
            let pattern = error_pattern(message);
            // A whole message means its pattern.
            pattern == *wanted || pattern == error_pattern(wanted)
        };
        (reasons.is_empty() || reasons.contains(&failure.reason))
            && contains.as_ref().is_none_or(has_text)
            && pattern.as_ref().is_none_or(has_pattern)
    }
}

/// A state to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateFilter {
    /// Scheduled jobs.
    Scheduled,
    /// Running jobs.
    Running,
    /// Jobs that ended with this outcome.
    Ended(Outcome),
}

impl StateFilter {
    /// The state as the API shows it, in lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => Phase::Scheduled.as_str(),
            Self::Running => Phase::Running.as_str(),
            Self::Ended(outcome) => outcome.as_str(),
        }
    }
}

impl From<&State> for StateFilter {
    fn from(state: &State) -> Self {
        match state {
            State::Scheduled { .. } => Self::Scheduled,
            State::Running(_) => Self::Running,
            State::Ended { outcome, .. } => Self::Ended(*outcome),
        }
    }
}

impl From<Phase> for StateFilter {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Scheduled | Phase::Ready | Phase::Retrying => Self::Scheduled,
            Phase::Running => Self::Running,
            Phase::Ended(outcome) => Self::Ended(outcome),
        }
    }
}

/// A text that names no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no state of a job has this name")]
pub struct NotAState;

impl FromStr for StateFilter {
    type Err = NotAState;

    fn from_str(text: &str) -> Result<Self, NotAState> {
        [Self::Scheduled, Self::Running]
            .into_iter()
            .chain(Outcome::ALL.map(Self::Ended))
            .find(|state| state.as_str() == text)
            .ok_or(NotAState)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_read_as_it_is_written() {
        for phase in Phase::ALL {
            let state = StateFilter::from(phase);
            assert_eq!(state.as_str().parse(), Ok(state));
        }
        for text in ["", "ended", "Failed", "ready"] {
            assert_eq!(text.parse::<StateFilter>(), Err(NotAState), "{text:?}");
        }
    }

    #[test]
    fn a_range_has_its_first_instant_and_not_its_last() {
        let at = Timestamp::from_millis;
        let range = TimeRange { from: Some(at(5)), to: Some(at(7)) };
        let has = |range: TimeRange| [4, 5, 6, 7].map(|millis| range.contains(at(millis)));
        assert_eq!(has(range), [false, true, true, false]);
        assert_eq!(has(TimeRange { to: None, ..range }), [false, true, true, true]);
        assert_eq!(has(TimeRange::default()), [true; 4]);
        assert!(!range.contains_some(None) && TimeRange::default().contains_some(None));
    }

    #[test]
    fn an_error_is_found_by_reason_text_and_pattern() {
        let failure = Failure::new(Reason::Timeout, "No answer from db-3 after 30 s");
        let matches = |filter: ErrorFilter| filter.matches(Some(&failure));
        let contains =
            |text: &str| ErrorFilter { contains: Some(text.into()), ..Default::default() };
        let pattern = |text: &str| ErrorFilter { pattern: Some(text.into()), ..Default::default() };
        assert!(matches(ErrorFilter::default()) && ErrorFilter::default().matches(None));
        assert!(matches(contains("no ANSWER")) && !matches(contains("db-4")));
        assert!(matches(pattern("No answer from * after * s")));
        assert!(matches(pattern("No answer from db-9 after 1 s")), "a message with this pattern");
        assert!(!matches(pattern("No answer from *")));
        let of = |reason| ErrorFilter { reasons: vec![reason], ..Default::default() };
        assert!(matches(of(Reason::Timeout)) && !matches(of(Reason::Failed)));
        assert!(!of(Reason::Timeout).matches(None));
    }

    #[test]
    fn data_is_compared_by_pointer_and_text() {
        let filter = |conditions: &[(&str, &str)]| JobFilter {
            data: conditions
                .iter()
                .map(|(pointer, value)| ((*pointer).into(), Value::Text((*value).into())))
                .collect(),
            ..JobFilter::default()
        };
        let data = Payload::json(r#"{"user": {"id": 7, "name": "ann"}, "tags": ["a", "b"]}"#);
        for (conditions, matches) in [
            (&[][..], true),
            (&[("/user/id", "7")], true),
            (&[("/user/id", "7"), ("/user/name", "ann")], true),
            (&[("/user/id", "7"), ("/user/name", "bob")], false),
            (&[("/tags/1", "b")], true),
            (&[("/user", "ann")], false),
            (&[("/none", "")], false),
        ] {
            assert_eq!(filter(conditions).matches_data(&data), matches, "{conditions:?}");
        }
    }
}
