//! What a call may ask of its queue, in a test: values that the test made up.

use std::{cell::RefCell, collections::BTreeMap};

use crate::{Dimension, Group, RunningJob, StateError};

/// The running set: the queue's granted jobs, started or not, without the candidates of this call.
#[derive(Debug, Default)]
pub struct Running(Vec<RunningJob>);

/// The throttler's small memory.
#[derive(Debug, Default)]
pub struct State(RefCell<BTreeMap<String, String>>);

/// The data of the jobs of this call.
#[derive(Debug, Default)]
pub struct Data(BTreeMap<String, String>);

impl Running {
    /// No queue answers here.
    pub(crate) fn here() -> Self {
        Self::default()
    }

    /// A made-up one.
    pub fn of(mut jobs: Vec<RunningJob>) -> Self {
        jobs.sort_by_key(|job| job.granted_at);
        Self(jobs)
    }

    /// How many jobs run.
    pub fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Their weight. Critical jobs have none.
    pub fn weight(&self) -> u64 {
        self.0.iter().map(|job| u64::from(job.weight)).sum()
    }

    /// Every value of a dimension, with its jobs and their weight. Jobs without the attribute are in no group.
    pub fn groups(&self, by: &Dimension) -> Vec<Group> {
        let mut groups: BTreeMap<String, Group> = BTreeMap::new();
        for job in &self.0 {
            let value = match by {
                Dimension::JobType => Some(job.job_type.clone()),
                Dimension::Priority => Some(job.priority.to_string()),
                Dimension::Attribute(name) => job.attribute(name).map(str::to_owned),
            };
            if let Some(value) = value {
                let group =
                    groups.entry(value.clone()).or_insert(Group { value, count: 0, weight: 0 });
                group.count += 1;
                group.weight += u64::from(job.weight);
            }
        }
        groups.into_values().collect()
    }

    /// One value of a dimension; zeroes when no job has it.
    pub fn in_group(&self, by: &Dimension, value: &str) -> Group {
        let found = self.groups(by).into_iter().find(|group| group.value == value);
        found.unwrap_or_else(|| Group { value: value.to_owned(), count: 0, weight: 0 })
    }

    /// The jobs themselves, the longest granted first; at most 1000 a call.
    pub fn page(&self, offset: u32, limit: u32) -> Vec<RunningJob> {
        self.0.iter().skip(offset as usize).take(limit.min(1000) as usize).cloned().collect()
    }
}

impl State {
    /// No queue answers here.
    pub(crate) fn here() -> Self {
        Self::default()
    }

    const KEYS: usize = 64;
    const KEY_BYTES: usize = 128;
    const BYTES: usize = 16 << 10;

    /// A made-up one.
    pub fn of(entries: BTreeMap<String, String>) -> Self {
        Self(RefCell::new(entries))
    }

    /// All that is kept.
    pub fn entries(&self) -> BTreeMap<String, String> {
        self.0.borrow().clone()
    }

    /// What is kept under `key`.
    pub fn get(&self, key: &str) -> Option<String> {
        self.0.borrow().get(key).cloned()
    }

    /// Keeps `value` under `key`, if the call succeeds.
    ///
    /// # Errors
    ///
    /// The key is too long (128 bytes), or the state is full (64 keys, 16 KiB).
    pub fn set(&self, key: &str, value: &str) -> Result<(), StateError> {
        let mut entries = self.0.borrow_mut();
        let others = entries.iter().filter(|(other, _)| *other != key);
        let (count, bytes) = others.fold((0, 0), |(count, bytes), (key, value)| {
            (count + 1, bytes + key.len() + value.len())
        });
        if key.len() > Self::KEY_BYTES {
            Err(StateError::KeyTooLong)
        } else if count == Self::KEYS || bytes + key.len() + value.len() > Self::BYTES {
            Err(StateError::Full)
        } else {
            entries.insert(key.to_owned(), value.to_owned());
            Ok(())
        }
    }

    /// Forgets `key`.
    pub fn delete(&self, key: &str) {
        self.0.borrow_mut().remove(key);
    }

    /// Every key, in order.
    pub fn keys(&self) -> Vec<String> {
        self.0.borrow().keys().cloned().collect()
    }
}

impl Data {
    /// No queue answers here.
    pub(crate) fn here() -> Self {
        Self::default()
    }

    /// Made-up data, JSON text by job id.
    pub fn of(texts: BTreeMap<String, String>) -> Self {
        Self(texts)
    }

    /// The data of a candidate, or of the failed job, as JSON text.
    pub fn text(&self, id: &str) -> Option<String> {
        self.0.get(id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_bounded_as_the_queues_is() {
        let state = State::default();
        assert_eq!(state.set(&"k".repeat(129), ""), Err(StateError::KeyTooLong));
        assert_eq!(state.set("k", &"v".repeat(16 << 10)), Err(StateError::Full));
        for key in 0..64 {
            assert_eq!(state.set(&key.to_string(), "v"), Ok(()));
        }
        assert_eq!(state.set("one more", "v"), Err(StateError::Full));
        assert_eq!(state.set("0", "w"), Ok(()));
        assert_eq!(state.get("0").as_deref(), Some("w"));
    }
}
