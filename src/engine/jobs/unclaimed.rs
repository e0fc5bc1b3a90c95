//! Jobs that were handed on without a claim: the store has them scheduled, and this process alone knows better.
//!
//! The one thing to know: of a hand-on and a change of the same job (cancel, PATCH, expiry) one comes first. Who changes a
//! job **holds** it meanwhile, and a job that is held is not handed on; a job that was handed on is not held.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use tidegate_core::job::{JobId, Revision};

/// What this process knows of jobs that were handed on without a claim.
#[derive(Default)]
pub(crate) struct UnclaimedJobs {
    known: Mutex<Dispatches>,
}

#[derive(Default)]
struct Dispatches {
    /// The revision that stands in the store.
    dispatched: HashMap<JobId, Revision>,
    /// How many change a job now.
    held: HashMap<JobId, u32>,
    /// How many changes there were.
    changes: u64,
}

impl UnclaimedJobs {
    /// The revision in the store of a job that was handed on.
    pub(crate) fn revision(&self, id: &JobId) -> Option<Revision> {
        self.known.lock().dispatched.get(id).copied()
    }

    /// Whether `id` was handed on, and its result is not here yet.
    pub(crate) fn is_dispatched(&self, id: &JobId) -> bool {
        self.known.lock().dispatched.contains_key(id)
    }

    /// Every job that was handed on, with the revision that stands in the store.
    pub(crate) fn dispatched(&self) -> Vec<(JobId, Revision)> {
        self.known.lock().dispatched.iter().map(|(id, was)| (id.clone(), *was)).collect()
    }

    /// Its result is here, it was claimed after all, or it is found to have changed.
    pub(crate) fn forget(&self, id: &JobId) {
        self.known.lock().dispatched.remove(id);
    }

    /// Hands jobs on, but for those that are held now: these come back.
    pub(crate) fn dispatch<'a>(
        &self,
        jobs: impl Iterator<Item = (&'a JobId, Revision)>,
    ) -> HashSet<JobId> {
        let mut known = self.known.lock();
        let mut refused = HashSet::new();
        for (id, was) in jobs {
            if known.held.contains_key(id) {
                refused.insert(id.clone());
            } else {
                known.dispatched.insert(id.clone(), was);
            }
        }
        refused
    }

    /// A number that differs once somebody who held a job has let go: what was read before may have changed.
    pub(crate) fn changes(&self) -> u64 {
        self.known.lock().changes
    }

    /// Holds those of `ids` that were not handed on, until what comes back is dropped.
    pub(crate) fn hold<'a>(&self, ids: impl IntoIterator<Item = &'a JobId>) -> Held<'_> {
        let mut known = self.known.lock();
        let ids: HashSet<JobId> =
            ids.into_iter().filter(|id| !known.dispatched.contains_key(*id)).cloned().collect();
        for id in &ids {
            *known.held.entry(id.clone()).or_default() += 1;
        }
        Held { plain: self, ids }
    }
}

/// Jobs that are not handed on while this lives.
pub(crate) struct Held<'a> {
    plain: &'a UnclaimedJobs,
    ids: HashSet<JobId>,
}

impl Held<'_> {
    /// Whether `id` is held; else it was handed on before.
    pub(crate) fn holds(&self, id: &JobId) -> bool {
        self.ids.contains(id)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut known = self.plain.known.lock();
        known.changes += u64::from(!self.ids.is_empty());
        for id in &self.ids {
            if let Some(count) = known.held.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    known.held.remove(id);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::builders::name;

    #[test]
    fn a_job_that_is_held_is_not_handed_on_and_one_that_was_is_not_held() {
        let plain = UnclaimedJobs::default();
        let (a, b): (JobId, JobId) = (name("a"), name("b"));
        let before = plain.changes();
        let held = plain.hold([&a]);
        let twice = plain.hold([&a]);
        assert!(held.holds(&a) && twice.holds(&a) && !held.holds(&b));
        assert_eq!(
            plain.dispatch([(&a, Revision(1)), (&b, Revision(2))].into_iter()),
            HashSet::from([a.clone()])
        );
        assert_eq!(plain.dispatched(), [(b.clone(), Revision(2))]);
        assert!(!plain.hold([&b]).holds(&b));
        drop(held);
        assert_eq!(
            plain.dispatch([(&a, Revision(1))].into_iter()).len(),
            1,
            "another holds it still"
        );
        drop(twice);
        assert_ne!(plain.changes(), before);
        assert_eq!(plain.dispatch([(&a, Revision(1))].into_iter()).len(), 0);
        plain.forget(&a);
        assert!(plain.hold([&a]).holds(&a));
    }
}
