//! What a call can access of its queue. In a test, the test provides it.

use std::{cell::RefCell, collections::BTreeMap};

use crate::{Dimension, Group, RunningJob, StateError};

/// The running set: the queue's granted jobs, whether started or not. The candidates of this call
/// are not in it.
#[derive(Debug, Default)]
pub struct Running(Vec<RunningJob>);

/// The state of the throttler.
#[derive(Debug, Default)]
pub struct State(RefCell<BTreeMap<String, String>>);

/// The data of the jobs of this call.
#[derive(Debug, Default)]
pub struct Data(BTreeMap<String, String>);

impl Running {
    /// An empty one: a test has no queue.
    pub(crate) fn here() -> Self {
        Self::default()
    }

    /// One with the given content, for tests.
    pub fn of(mut jobs: Vec<RunningJob>) -> Self {
        jobs.sort_by_key(|job| job.granted_at);
        Self(jobs)
    }

    /// The number of running jobs.
    pub fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// The total weight of the running jobs. The weight of a critical job is 0.
    pub fn weight(&self) -> u64 {
        self.0.iter().map(|job| u64::from(job.weight)).sum()
    }

    /// The groups of all values of a dimension. Jobs without the attribute are in no group.
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

    /// The group of one value of a dimension. Its count and weight are 0 if no job has the value.
    pub fn in_group(&self, by: &Dimension, value: &str) -> Group {
        let found = self.groups(by).into_iter().find(|group| group.value == value);
        found.unwrap_or_else(|| Group { value: value.to_owned(), count: 0, weight: 0 })
    }

    /// The running jobs, the earliest granted first; at most 1000 per page.
    pub fn page(&self, offset: u32, limit: u32) -> Vec<RunningJob> {
        self.0.iter().skip(offset as usize).take(limit.min(1000) as usize).cloned().collect()
    }
}

impl State {
    /// An empty one: a test has no queue.
    pub(crate) fn here() -> Self {
        Self::default()
    }

    const KEYS: usize = 64;
    const KEY_BYTES: usize = 128;
    const BYTES: usize = 16 << 10;

    /// One with the given content, for tests.
    pub fn of(entries: BTreeMap<String, String>) -> Self {
        Self(RefCell::new(entries))
    }

    /// The whole state.
    pub fn entries(&self) -> BTreeMap<String, String> {
        self.0.borrow().clone()
    }

    /// The value of `key`, if there is one.
    pub fn get(&self, key: &str) -> Option<String> {
        self.0.borrow().get(key).cloned()
    }

    /// Sets `key` to `value`. The change is committed only if the call succeeds.
    ///
    /// # Errors
    ///
    /// The key is too long (more than 128 bytes), or the state is full (64 keys, 16 KiB).
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

    /// Removes `key`.
    pub fn delete(&self, key: &str) {
        self.0.borrow_mut().remove(key);
    }

    /// All keys, sorted.
    pub fn keys(&self) -> Vec<String> {
        self.0.borrow().keys().cloned().collect()
    }
}

impl Data {
    /// An empty one: a test has no queue.
    pub(crate) fn here() -> Self {
        Self::default()
    }

    /// Data for tests: JSON text by job id.
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
