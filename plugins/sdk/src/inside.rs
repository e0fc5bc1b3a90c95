//! What a call may ask of its queue, in a component: the queue answers.

use crate::{
    Dimension, Group, RunningJob, StateError,
    bindings::throttler::tidegate::plugin::{jobs, running, state},
};

/// The running set: the queue's granted jobs, started or not, without the candidates of this call.
#[derive(Debug)]
pub struct Running(());

/// The throttler's small memory.
#[derive(Debug)]
pub struct State(());

/// The data of the jobs of this call.
#[derive(Debug)]
pub struct Data(());

impl Running {
    pub(crate) const fn here() -> Self {
        Self(())
    }

    /// How many jobs run.
    pub fn count(&self) -> u32 {
        running::count()
    }

    /// Their weight. Critical jobs have none.
    pub fn weight(&self) -> u64 {
        running::weight()
    }

    /// Every value of a dimension, with its jobs and their weight. Jobs without the attribute are in no group.
    pub fn groups(&self, by: &Dimension) -> Vec<Group> {
        running::groups(by)
    }

    /// One value of a dimension; zeroes when no job has it.
    pub fn in_group(&self, by: &Dimension, value: &str) -> Group {
        running::in_group(by, value)
    }

    /// The jobs themselves, the longest granted first; at most 1000 a call.
    pub fn page(&self, offset: u32, limit: u32) -> Vec<RunningJob> {
        running::page(offset, limit)
    }
}

impl State {
    pub(crate) const fn here() -> Self {
        Self(())
    }

    /// What is kept under `key`.
    pub fn get(&self, key: &str) -> Option<String> {
        state::get(key)
    }

    /// Keeps `value` under `key`, if the call succeeds.
    ///
    /// # Errors
    ///
    /// The key is too long (128 bytes), or the state is full (64 keys, 16 KiB).
    pub fn set(&self, key: &str, value: &str) -> Result<(), StateError> {
        state::set(key, value)
    }

    /// Forgets `key`.
    pub fn delete(&self, key: &str) {
        state::delete(key);
    }

    /// Every key, in order.
    pub fn keys(&self) -> Vec<String> {
        state::keys()
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
