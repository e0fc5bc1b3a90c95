//! How many jobs the workers of a tick can still take, by number and by bytes.

use std::collections::BTreeMap;

use crate::{
    Catalog,
    tick::{ByteBudget, Demand, TickInput},
};
use tidegate_core::{
    job::{Job, TypeName},
    port::job_store::ItemKind,
    queue::{Admission, AdmissionDecision, Candidate},
};

/// Bytes that an answer shows of a job in addition to its data, in most cases.
const MAX_VIEW_BYTES: usize = 2048;

/// The capacity that is left for each demand of a tick.
#[derive(Clone)]
pub(in crate::tick) struct Capacities<'a> {
    pub(in crate::tick) demands: &'a [Demand],
    catalog: &'a Catalog,
    /// How many jobs each demand still takes.
    jobs: Vec<u32>,
    /// How many more jobs each worker with a capacity takes, in all its demands.
    workers: BTreeMap<&'a str, u32>,
    /// How many bytes all of them take together.
    byte_budget: Option<ByteBudget>,
    /// How many bytes each demand still takes; empty: any.
    budgets: Vec<usize>,
    /// Whether a job was too large for the bytes that are left. No job is taken after it, so that
    /// smaller jobs do not overtake it.
    pub(in crate::tick) full: bool,
}

impl<'a> Capacities<'a> {
    /// The capacity of the demands of `input`, apart from those at the indices in `closed`.
    pub(in crate::tick) fn of(
        input: &'a TickInput,
        catalog: &'a Catalog,
        closed: &[usize],
    ) -> Self {
        let workers = input.workers.iter().map(|(name, free)| (name.as_str(), *free)).collect();
        let jobs = input.demands.iter().enumerate();
        let jobs =
            jobs.map(|(index, demand)| if closed.contains(&index) { 0 } else { demand.capacity });
        Self {
            demands: &input.demands,
            catalog,
            jobs: jobs.collect(),
            workers,
            byte_budget: input.byte_budget,
            budgets: input.budgets.clone(),
            full: false,
        }
    }

    /// The types that some demand still takes. A type that cannot be read holds its jobs.
    pub(in crate::tick) fn types(&self) -> Vec<TypeName> {
        let open = self.demands.iter().enumerate().filter(|(index, _)| self.takes(*index));
        let mut types: Vec<TypeName> =
            open.flat_map(|(_, demand)| demand.types.iter().cloned()).collect();
        types.retain(|name| !self.catalog.is_unreadable(ItemKind::Type, name.as_str()));
        types.sort_unstable();
        types.dedup();
        types
    }

    /// Whether the demand at `index` takes more jobs.
    fn takes(&self, index: usize) -> bool {
        let worker = self.demands[index].worker.as_deref().and_then(|name| self.workers.get(name));
        !self.full && self.jobs[index] > 0 && worker != Some(&0)
    }

    /// The index of the first demand that takes `job`. A demand whose bytes it exceeds takes no
    /// more, unless it has taken nothing.
    pub(in crate::tick) fn find(&mut self, job: &Job) -> Option<usize> {
        for index in 0..self.demands.len() {
            let demand = &self.demands[index];
            if !self.takes(index) || !demand.types.contains(&job.spec.job_type) {
                continue;
            }
            let fits = self.budgets.get(index).is_none_or(|left| demand_bytes(job) <= *left);
            if fits || self.jobs[index] == demand.capacity {
                return Some(index);
            }
            self.jobs[index] = 0;
        }
        None
    }

    /// How many more jobs are taken, if their bytes fit.
    pub(in crate::tick) fn total(&self) -> u32 {
        let mut workers = self.workers.clone();
        self.demands.iter().zip(&self.jobs).fold(0, |sum: u32, (demand, jobs)| {
            let mut taken = *jobs;
            if let Some(free) = demand.worker.as_deref().and_then(|name| workers.get_mut(name)) {
                taken = taken.min(*free);
                *free -= taken;
            }
            sum.saturating_add(taken)
        })
    }

    /// How many bytes of the budget `job` takes. That may serialize the job, so callers keep the
    /// number.
    pub(in crate::tick) fn bytes(&self, job: &Job) -> usize {
        match self.byte_budget {
            Some(budget) => budget.bytes(job),
            None if self.budgets.is_empty() => 0,
            None => demand_bytes(job),
        }
    }

    /// The decision of `admission` on a candidate of `bytes`. None if it would run but exceeds the
    /// bytes that are left.
    pub(in crate::tick) fn try_admit(
        &mut self,
        admission: &mut Admission<'_>,
        candidate: Candidate<'_>,
        bytes: usize,
    ) -> Option<AdmissionDecision> {
        if self.byte_budget.is_none_or(|budget| bytes <= budget.left) {
            return Some(admission.try_admit(candidate));
        }
        let held =
            Some(admission.check(candidate)).filter(|decision| *decision != AdmissionDecision::Run);
        self.full |= held.is_none();
        held
    }

    /// Takes the capacity of one job of `bytes` from the demand at `index`.
    pub(in crate::tick) fn take(&mut self, index: usize, bytes: usize) {
        self.jobs[index] -= 1;
        if let Some(free) =
            self.demands[index].worker.as_deref().and_then(|name| self.workers.get_mut(name))
        {
            *free -= 1;
        }
        if let Some(budget) = &mut self.byte_budget {
            budget.left = budget.left.saturating_sub(bytes);
        }
        if let Some(left) = self.budgets.get_mut(index) {
            *left = left.saturating_sub(bytes);
        }
    }
}

/// The bytes of a demand that `job` takes, at most.
fn demand_bytes(job: &Job) -> usize {
    job.input_bytes() + MAX_VIEW_BYTES
}
