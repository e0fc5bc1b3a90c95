//! Which candidates cannot be admitted any more in this tick, so that the scan may skip them.

use std::collections::HashSet;

use super::Admission;
use crate::{
    job::TypeName,
    queue::config::{Constraint, MAX_RUNNING},
};

impl Admission<'_> {
    /// Whether this tick can admit no further critical candidate (`critical`), or no further
    /// candidate that is not critical.
    pub fn closed(&self, critical: bool) -> bool {
        let over = self
            .limits
            .queue
            .concurrency
            .is_some_and(|most| most == 0 || self.usage.weight() > most.into());
        let full = || {
            over || self.reserved.queue
                || self.usage.live() >= MAX_RUNNING
                || self.stops(|constraint| constraint.matcher.is_empty())
        };
        self.limits.paused || (!critical && full())
    }

    /// How many more candidates of weight 1 the rules admit that count every candidate: the queue's
    /// concurrency, and constraints on all jobs. Candidates without weight may exceed it.
    pub fn room(&self) -> u64 {
        let left = |most: u32, used: u64| u64::from(most).saturating_sub(used);
        let queue = &self.limits.queue;
        let concurrency = queue.concurrency.map(|most| left(most, self.usage.weight()));
        let on_all =
            queue.constraints.iter().enumerate().filter(|(_, constraint)| {
                constraint.per.is_none() && constraint.matcher.is_empty()
            });
        let constraints = on_all.flat_map(|(index, constraint)| {
            let used = self.usage.of_value(index, "");
            let rate = constraint.rate.map(|rate| {
                let counts = self.rates.get(&index);
                rate.left(counts.and_then(|values| values.get("")), self.now)
            });
            constraint.concurrency.map(|most| left(most, used)).into_iter().chain(rate)
        });
        let live = MAX_RUNNING.saturating_sub(self.usage.live());
        concurrency.into_iter().chain(constraints).fold(live, u64::min)
    }

    /// Whether this tick can admit no further candidate of this type that is not critical.
    ///
    /// This holds if a rule that counts all of them held one.
    pub fn closed_to(&self, job_type: &TypeName) -> bool {
        self.reserved.types.contains(job_type)
            || self.stops(|constraint| constraint.matcher.is_every(job_type))
    }

    /// Whether this tick can admit no further candidate that is not critical and whose attribute
    /// `name` has this value.
    pub fn closed_to_value(&self, name: &str, value: &str) -> bool {
        let counts_all = |constraint: &Constraint| {
            constraint.per.as_deref() == Some(name) && constraint.matcher.is_empty()
        };
        self.stopped().any(|(index, values)| {
            values.contains(value) && counts_all(&self.limits.queue.constraints[index])
        })
    }

    /// Whether a constraint that `which` accepts held a candidate, and counts all values together.
    fn stops(&self, which: impl Fn(&Constraint) -> bool) -> bool {
        let constraint = |index: usize| &self.limits.queue.constraints[index];
        self.stopped().any(|(index, _)| constraint(index).per.is_none() && which(constraint(index)))
    }

    /// The constraints that held a candidate, by index, each with the values of held candidates.
    fn stopped(&self) -> impl Iterator<Item = (usize, &HashSet<String>)> {
        self.reserved.values.iter().chain(&self.exhausted).map(|(index, values)| (*index, values))
    }
}
