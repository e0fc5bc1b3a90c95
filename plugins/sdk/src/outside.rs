//! What a call can access of its queue. In a test, the test provides it.

use std::{cell::RefCell, collections::BTreeMap};

use crate::{Dimension, Group, Job, RunningJob, StateError, WaitingGroup};

/// The running set: the queue's granted jobs, whether started or not. The candidates of this call
/// are not in it.
#[derive(Debug, Default)]
pub struct Running(Vec<RunningJob>);

/// What waits in the queue: estimates by the attributes that make its partitions. A group of each
/// candidate is there.
#[derive(Debug, Default)]
pub struct Waiting {
    groups: BTreeMap<String, BTreeMap<String, WaitingGroup>>,
    others: Option<WaitingGroup>,
    counted_at: Option<u64>,
}

/// The state of the plugin in one queue: values, each with the time of its expiry.
#[derive(Debug, Default)]
pub struct State {
    entries: RefCell<BTreeMap<String, Entry>>,
    now: u64,
}

/// A value, and the time of its expiry.
type Entry = (String, Option<u64>);

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

impl Waiting {
    /// Nothing waits: a test has no queue.
    pub(crate) fn here() -> Self {
        Self::default()
    }

    /// Groups by attribute, for tests.
    pub fn of(
        groups: BTreeMap<String, Vec<WaitingGroup>>,
        others: Option<WaitingGroup>,
        counted_at: Option<u64>,
    ) -> Self {
        let by_value = |groups: Vec<WaitingGroup>| {
            groups.into_iter().map(|group| (group.value.clone(), group)).collect()
        };
        let groups = groups.into_iter().map(|(name, groups)| (name, by_value(groups)));
        Self { groups: groups.collect(), others, counted_at }
    }

    /// The groups of `candidates` by each of their attributes, for tests: nothing else waits.
    pub fn of_candidates(candidates: &[Job]) -> Self {
        let names = candidates.iter().flat_map(|job| &job.attributes);
        let groups = names.map(|attribute| (attribute.name.clone(), BTreeMap::new())).collect();
        let mut waiting = Self { groups, others: None, counted_at: None };
        waiting.cover(candidates);
        waiting
    }

    /// Makes sure that at least `candidates` wait in each of the groups.
    pub fn cover(&mut self, candidates: &[Job]) {
        for (name, groups) in &mut self.groups {
            let mut seen: BTreeMap<String, WaitingGroup> = BTreeMap::new();
            for job in candidates {
                let Some(value) = job.attribute(name) else { continue };
                let group = seen.entry(value.to_owned()).or_insert_with(|| WaitingGroup {
                    value: value.to_owned(),
                    count: 0,
                    weight: 0,
                    oldest_due_at: job.run_at,
                    at_least: false,
                });
                group.count += 1;
                group.weight += u64::from(job.weight);
                group.oldest_due_at = group.oldest_due_at.min(job.run_at);
            }
            for (value, seen) in seen {
                let group = groups.entry(value).or_insert_with(|| seen.clone());
                group.count = group.count.max(seen.count);
                group.weight = group.weight.max(seen.weight);
                group.oldest_due_at = group.oldest_due_at.min(seen.oldest_due_at);
            }
        }
    }

    /// The groups of the values of an attribute that [`About::waiting_by`](crate::About::waiting_by)
    /// declares, sorted by value.
    pub fn groups(&self, by: &str) -> Vec<WaitingGroup> {
        self.groups.get(by).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// The jobs of all partitions that are in no group, because there are too many.
    pub fn others(&self) -> Option<WaitingGroup> {
        self.others.clone()
    }

    /// When the queue was counted, in milliseconds since 1970. None if that has not happened yet.
    pub fn counted_at(&self) -> Option<u64> {
        self.counted_at
    }
}

impl State {
    /// An empty one: a test has no queue.
    pub(crate) fn here() -> Self {
        Self::default()
    }

    const KEY_BYTES: usize = 128;
    const VALUE_BYTES: usize = 16 << 10;
    const BYTES: usize = 256 << 10;
    /// Bytes that an entry counts in addition to its key and value.
    const ENTRY_BYTES: usize = 32;

    /// One with the given content at the time `now`, for tests: values, each with the time of its
    /// expiry.
    pub fn of(now: u64, mut entries: BTreeMap<String, Entry>) -> Self {
        entries.retain(|_, (_, expires_at)| expires_at.is_none_or(|at| now < at));
        Self { entries: RefCell::new(entries), now }
    }

    /// The whole state.
    pub fn entries(&self) -> BTreeMap<String, Entry> {
        self.entries.borrow().clone()
    }

    /// The value of `key`, if there is one.
    pub fn get(&self, key: &str) -> Option<String> {
        self.entries.borrow().get(key).map(|(value, _)| value.clone())
    }

    /// Sets `key` to `value`. The change is committed only if the call succeeds.
    ///
    /// # Errors
    ///
    /// The key is empty or has more than 128 bytes, the value has more than 16 KiB, or the state is
    /// full (256 KiB).
    pub fn set(&self, key: &str, value: &str) -> Result<(), StateError> {
        self.set_until(key, value, None)
    }

    /// Sets `key` to `value`, which counts as deleted from `expires_at` on, a time in milliseconds
    /// since 1970.
    ///
    /// # Errors
    ///
    /// As [`Self::set`].
    pub fn set_until(
        &self,
        key: &str,
        value: &str,
        expires_at: Option<u64>,
    ) -> Result<(), StateError> {
        if key.is_empty() || key.len() > Self::KEY_BYTES {
            return Err(StateError::InvalidKey);
        }
        if value.len() > Self::VALUE_BYTES {
            return Err(StateError::ValueTooLong);
        }
        let mut entries = self.entries.borrow_mut();
        let size = |key: &str, value: &str| key.len() + value.len() + Self::ENTRY_BYTES;
        let others = entries.iter().filter(|(other, _)| *other != key);
        let others: usize = others.map(|(key, (value, _))| size(key, value)).sum();
        if expires_at.is_some_and(|at| at <= self.now) {
            entries.remove(key);
        } else if others + size(key, value) > Self::BYTES {
            return Err(StateError::Full);
        } else {
            entries.insert(key.to_owned(), (value.to_owned(), expires_at));
        }
        Ok(())
    }

    /// Removes `key`.
    pub fn delete(&self, key: &str) {
        self.entries.borrow_mut().remove(key);
    }

    /// The keys that begin with `prefix`, sorted.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let entries = self.entries.borrow();
        entries.keys().filter(|key| key.starts_with(prefix)).cloned().collect()
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
        let state = State::of(1000, BTreeMap::new());
        assert_eq!(state.set("", ""), Err(StateError::InvalidKey));
        assert_eq!(state.set(&"k".repeat(129), ""), Err(StateError::InvalidKey));
        assert_eq!(state.set("k", &"v".repeat((16 << 10) + 1)), Err(StateError::ValueTooLong));
        let value = "v".repeat(16 << 10);
        for key in 10..25 {
            assert_eq!(state.set(&key.to_string(), &value), Ok(()));
        }
        assert_eq!(state.set("one more", &value), Err(StateError::Full));
        assert_eq!(state.set("10", "w"), Ok(()));
        assert_eq!(state.get("10").as_deref(), Some("w"));
        assert_eq!(state.keys("1").len(), 10);
    }

    #[test]
    fn a_value_that_has_expired_is_gone() {
        let entry = |at| ("v".to_owned(), Some(at));
        let kept = [("old".to_owned(), entry(1000)), ("new".to_owned(), entry(1001))];
        let state = State::of(1000, kept.into());
        assert_eq!(state.keys(""), ["new"]);
        assert_eq!(state.set_until("new", "w", Some(1000)), Ok(()));
        assert_eq!(state.get("new"), None);
    }
}
