//! How much of each limit is in use: a sum over the live grants, never stored separately.

use std::{
    borrow::{Borrow, Cow},
    collections::HashMap,
    hash::Hash,
};

use super::{config::Limits, ledger::Grant, matcher::Subject};
use crate::job::TypeName;

/// The weight that live grants take, by limit. Derived from the grants; see [`Usage::of`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    weight: u64,
    live: u64,
    types: HashMap<TypeName, u64>,
    /// By constraint and value; the value is the empty text without `per`.
    values: HashMap<usize, HashMap<String, u64>>,
}

impl Usage {
    /// The usage of `limits` by `grants`.
    pub fn of<'a>(limits: &Limits, grants: impl IntoIterator<Item = &'a Grant>) -> Self {
        let mut usage = Self::default();
        for grant in grants {
            usage.add(limits, grant);
        }
        usage
    }

    /// Adds `grant`.
    pub fn add(&mut self, limits: &Limits, grant: &Grant) {
        if !grant.critical && grant.waits_until.is_none() {
            let subject = grant.subject();
            self.take(limits, subject, grant.weight, counting(limits, subject));
        }
    }

    /// Subtracts `grant`. It must have been added under the same limits.
    pub fn remove(&mut self, limits: &Limits, grant: &Grant) {
        if grant.critical || grant.waits_until.is_some() {
            return;
        }
        let (subject, weight) = (grant.subject(), u64::from(grant.weight));
        self.weight = self.weight.saturating_sub(weight);
        self.live = self.live.saturating_sub(1);
        lower(&mut self.types, subject.job_type.as_str(), weight);
        for (index, value) in counting(limits, subject) {
            if let Some(values) = self.values.get_mut(&index) {
                lower(values, &value, weight);
                if values.is_empty() {
                    self.values.remove(&index);
                }
            }
        }
    }

    /// Adds a job; `counted` are the constraints that count it.
    pub(super) fn take<'a>(
        &mut self,
        limits: &Limits,
        subject: Subject<'_>,
        weight: u32,
        counted: impl IntoIterator<Item = (usize, Cow<'a, str>)>,
    ) {
        let weight = u64::from(weight);
        self.weight += weight;
        self.live += 1;
        if weight == 0 {
            return;
        }
        if limits.types.contains_key(subject.job_type) {
            *self.types.entry(subject.job_type.clone()).or_default() += weight;
        }
        for (index, value) in counted {
            if limits.queue.constraints[index].concurrency.is_some() {
                *self.values.entry(index).or_default().entry(value.into_owned()).or_default() +=
                    weight;
            }
        }
    }

    /// The number of granted jobs, without critical ones.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// The granted weight.
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// The weight of jobs by constraint index and value, for constraints with a concurrency.
    pub fn values(&self) -> impl Iterator<Item = (usize, &str, u64)> {
        self.values.iter().flat_map(|(index, values)| {
            values.iter().map(|(value, weight)| (*index, value.as_str(), *weight))
        })
    }

    /// The weight of the jobs of a type, if it has a limit.
    pub(super) fn of_type(&self, job_type: &TypeName) -> u64 {
        self.types.get(job_type).copied().unwrap_or(0)
    }

    /// The weight of the jobs that a constraint counts under a value.
    pub(super) fn of_value(&self, index: usize, value: &str) -> u64 {
        self.values.get(&index).and_then(|values| values.get(value)).copied().unwrap_or(0)
    }
}

/// Lowers a count, and removes it at zero.
fn lower<K: Borrow<str> + Eq + Hash>(counts: &mut HashMap<K, u64>, key: &str, by: u64) {
    if let Some(count) = counts.get_mut(key) {
        *count = count.saturating_sub(by);
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// The constraints that count `subject`: the index of each, and the value that it is counted under,
/// which is empty without `per`.
pub(super) fn counting<'a>(
    limits: &'a Limits,
    subject: Subject<'a>,
) -> impl Iterator<Item = (usize, Cow<'a, str>)> {
    limits.queue.constraints.iter().enumerate().filter_map(move |(index, constraint)| {
        let value = match &constraint.per {
            None => Cow::Borrowed(""),
            Some(name) => subject.attributes.get(name)?.as_text(),
        };
        constraint.matcher.matches(subject).then_some((index, value))
    })
}
