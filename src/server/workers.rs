//! The pull workers that were heard of lately. Known to this process only, and forgotten with it.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;

use crate::{engine::request::Worker, time::Timestamp};

/// How long a worker that is not heard of is listed.
const FORGET: Duration = Duration::from_mins(10);
/// Most workers listed.
const MOST: usize = 10_000;

#[derive(Clone, Copy, Debug)]
struct Entry {
    capacity: Option<u32>,
    draining: bool,
    seen_at: Timestamp,
}

/// Workers by name.
#[derive(Default)]
pub(super) struct Workers(Mutex<BTreeMap<String, Entry>>);

impl Workers {
    /// A worker was heard of.
    pub(super) fn seen(&self, name: &str, now: Timestamp) {
        let mut workers = self.0.lock();
        if let Some(entry) = workers.get_mut(name) {
            entry.seen_at = now;
            return;
        }
        workers.retain(|_, entry| now.since(entry.seen_at) < FORGET);
        if workers.len() < MOST {
            workers.insert(name.to_owned(), Entry { capacity: None, draining: false, seen_at: now });
        }
    }

    /// A worker says how many jobs it runs at once.
    pub(super) fn register(&self, name: &str, capacity: Option<u32>, now: Timestamp) {
        self.seen(name, now);
        if let Some(entry) = self.0.lock().get_mut(name) {
            entry.capacity = capacity;
        }
    }

    /// Sets whether a worker gets no more jobs; whether it is known.
    pub(super) fn drain(&self, name: &str, draining: bool) -> bool {
        self.0.lock().get_mut(name).map(|entry| entry.draining = draining).is_some()
    }

    /// Takes a worker off the list; whether it was on it.
    pub(super) fn forget(&self, name: &str) -> bool {
        self.0.lock().remove(name).is_some()
    }

    /// Whether a worker gets no more jobs.
    pub(super) fn is_draining(&self, name: Option<&str>) -> bool {
        name.is_some_and(|name| self.0.lock().get(name).is_some_and(|entry| entry.draining))
    }

    /// The list, with what each runs by `running`.
    pub(super) fn list(&self, running: &BTreeMap<String, u64>) -> Vec<Worker> {
        let worker = |(name, entry): (&String, &Entry)| Worker {
            name: name.clone(),
            capacity: entry.capacity,
            running: running.get(name).copied().unwrap_or(0),
            draining: entry.draining,
            seen_at: entry.seen_at,
        };
        self.0.lock().iter().map(worker).collect()
    }
}
