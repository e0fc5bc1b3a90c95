//! Unclaimed dispatches: the store has these jobs as scheduled, and only this process knows that
//! they run.
//!
//! The one thing to know: a dispatch and a change of the same job (cancel, PATCH, expiry) exclude
//! each other. A change **holds** the job while it lasts. A held job is not dispatched, and a
//! dispatched job is not held.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use tidegate_core::job::{JobId, Revision};

/// The unclaimed dispatches of this process.
#[derive(Default)]
pub(crate) struct UnclaimedJobs {
    known: Mutex<Dispatches>,
}

#[derive(Default)]
struct Dispatches {
    /// The revision in the store.
    dispatched: HashMap<JobId, Revision>,
    /// How many changes hold a job now.
    held: HashMap<JobId, u32>,
    /// How many changes there were.
    changes: u64,
}

impl UnclaimedJobs {
    /// The revision in the store of a dispatched job.
    pub(crate) fn revision(&self, id: &JobId) -> Option<Revision> {
        self.known.lock().dispatched.get(id).copied()
    }

    /// Whether `id` was dispatched and its result has not arrived.
    pub(crate) fn is_dispatched(&self, id: &JobId) -> bool {
        self.known.lock().dispatched.contains_key(id)
    }

    /// Every dispatched job, with its revision in the store, in the order of the ids: what is
    /// written in this order is the same in every run of a simulation.
    pub(crate) fn dispatched(&self) -> Vec<(JobId, Revision)> {
        let known = self.known.lock();
        let mut all: Vec<_> = known.dispatched.iter().map(|(id, was)| (id.clone(), *was)).collect();
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        all
    }

    /// Removes a job: its result arrived, it was claimed, or it has changed.
    pub(crate) fn forget(&self, id: &JobId) {
        self.known.lock().dispatched.remove(id);
    }

    /// Records jobs as dispatched, except those that are held now, which it returns.
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

    /// A number that rises each time a hold ends: what was read before may have changed.
    pub(crate) fn changes(&self) -> u64 {
        self.known.lock().changes
    }

    /// Holds those of `ids` that were not dispatched, until the returned guard is dropped.
    pub(crate) fn hold<'a>(&self, ids: impl IntoIterator<Item = &'a JobId>) -> HoldGuard<'_> {
        let mut known = self.known.lock();
        let ids: HashSet<JobId> =
            ids.into_iter().filter(|id| !known.dispatched.contains_key(*id)).cloned().collect();
        for id in &ids {
            *known.held.entry(id.clone()).or_default() += 1;
        }
        HoldGuard { unclaimed: self, ids }
    }
}

/// Jobs that are not dispatched while this guard lives.
pub(crate) struct HoldGuard<'a> {
    unclaimed: &'a UnclaimedJobs,
    ids: HashSet<JobId>,
}

impl HoldGuard<'_> {
    /// Whether `id` is held; if not, it was dispatched before.
    pub(crate) fn holds(&self, id: &JobId) -> bool {
        self.ids.contains(id)
    }
}

impl Drop for HoldGuard<'_> {
    fn drop(&mut self) {
        let mut known = self.unclaimed.known.lock();
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
    fn a_held_job_is_not_dispatched_and_a_dispatched_one_not_held() {
        let unclaimed = UnclaimedJobs::default();
        let (a, b): (JobId, JobId) = (name("a"), name("b"));
        let before = unclaimed.changes();
        let held = unclaimed.hold([&a]);
        let twice = unclaimed.hold([&a]);
        assert!(held.holds(&a) && twice.holds(&a) && !held.holds(&b));
        assert_eq!(
            unclaimed.dispatch([(&a, Revision(1)), (&b, Revision(2))].into_iter()),
            HashSet::from([a.clone()])
        );
        assert_eq!(unclaimed.dispatched(), [(b.clone(), Revision(2))]);
        assert!(!unclaimed.hold([&b]).holds(&b));
        drop(held);
        assert_eq!(
            unclaimed.dispatch([(&a, Revision(1))].into_iter()).len(),
            1,
            "another holds it still"
        );
        drop(twice);
        assert_ne!(unclaimed.changes(), before);
        assert_eq!(unclaimed.dispatch([(&a, Revision(1))].into_iter()).len(), 0);
        unclaimed.forget(&a);
        assert!(unclaimed.hold([&a]).holds(&a));
    }

    #[test]
    fn dispatched_jobs_come_in_the_order_of_their_ids() {
        let ids: Vec<JobId> = (0..100).map(|number| name(&format!("j{number:02}"))).collect();
        let unclaimed = UnclaimedJobs::default();
        unclaimed.dispatch(ids.iter().rev().map(|id| (id, Revision(1))));
        let dispatched = unclaimed.dispatched().into_iter().map(|(id, _)| id);
        assert_eq!(dispatched.collect::<Vec<_>>(), ids);
    }
}
