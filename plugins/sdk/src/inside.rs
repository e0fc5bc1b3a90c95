//! What a call can access of its queue. In a component, the host provides it.

use crate::{
    Dimension, Group, RunningJob, StateError, WaitingGroup,
    bindings::throttler::tidegate::plugin::{jobs, running, state, waiting},
};

/// The running set: the queue's granted jobs, whether started or not. The candidates of this call
/// are not in it.
#[derive(Debug)]
pub struct Running(());

/// What waits in the queue: estimates by the attributes that make its partitions. A group of each
/// candidate is there.
#[derive(Debug)]
pub struct Waiting(());

/// The state of the plugin in one queue.
#[derive(Debug)]
pub struct State(());

/// The data of the jobs of this call.
#[derive(Debug)]
pub struct Data(());

impl Running {
    pub(crate) const fn here() -> Self {
        Self(())
    }

    /// The number of running jobs.
    pub fn count(&self) -> u32 {
        running::count()
    }

    /// The total weight of the running jobs. The weight of a critical job is 0.
    pub fn weight(&self) -> u64 {
        running::weight()
    }

    /// The groups of all values of a dimension. Jobs without the attribute are in no group.
    pub fn groups(&self, by: &Dimension) -> Vec<Group> {
        running::groups(by)
    }

    /// The group of one value of a dimension. Its count and weight are 0 if no job has the value.
    pub fn in_group(&self, by: &Dimension, value: &str) -> Group {
        running::in_group(by, value)
    }

    /// The running jobs, the earliest granted first; at most 1000 per page.
    pub fn page(&self, offset: u32, limit: u32) -> Vec<RunningJob> {
        running::page(offset, limit)
    }
}

impl Waiting {
    pub(crate) const fn here() -> Self {
        Self(())
    }

    /// The groups of the values of an attribute that [`About::waiting_by`](crate::About::waiting_by)
    /// declares, sorted by value.
    pub fn groups(&self, by: &str) -> Vec<WaitingGroup> {
        waiting::groups(by)
    }

    /// The jobs of all partitions that are in no group, because there are too many.
    pub fn others(&self) -> Option<WaitingGroup> {
        waiting::others()
    }

    /// When the queue was counted, in milliseconds since 1970. None if that has not happened yet.
    pub fn counted_at(&self) -> Option<u64> {
        waiting::counted_at()
    }
}

impl State {
    pub(crate) const fn here() -> Self {
        Self(())
    }

    /// The value of `key`, if there is one.
    pub fn get(&self, key: &str) -> Option<String> {
        state::get(key)
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
        state::set(key, value, expires_at)
    }

    /// Removes `key`.
    pub fn delete(&self, key: &str) {
        state::delete(key);
    }

    /// The keys that begin with `prefix`, sorted.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        state::keys(prefix)
    }
}

impl Data {
    pub(crate) const fn here() -> Self {
        Self(())
    }

    /// The data of a candidate, or of the failed job, as JSON text.
    pub fn text(&self, id: &str) -> Option<String> {
        jobs::data(id)
    }
}
