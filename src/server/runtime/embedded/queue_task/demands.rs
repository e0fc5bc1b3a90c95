//! The demands for jobs of the queue: of handlers, push slots and waiting workers.

use std::{
    collections::BTreeMap,
    sync::atomic::{Ordering, fence},
};

use super::{ExecutionSlot, LeaseCall, NOT_IDLE, Task};
use crate::runtime::{Inner, workers::is_drained};
use tidegate_core::job::TypeName;
use tidegate_engine::{Catalog, Demand, Dispatch, TickInput, request::Report};

/// Where the jobs of a demand go.
pub(super) enum Requester {
    /// To a slot of this process.
    Slot(ExecutionSlot),
    /// To the lease call with this index.
    Lease(usize),
}

impl Task {
    /// A tick's input, and the requester of each of its demands. The input has the demands of all
    /// handlers, push slots and workers once `reports` are settled.
    pub(super) fn demands(
        &self,
        inner: &Inner,
        catalog: &Catalog,
        reports: &[Report],
    ) -> (TickInput, Vec<Requester>) {
        let (mut demands, mut requesters) = (Vec::new(), Vec::new());
        let (mut pushed, mut pulled) = (Vec::new(), Vec::new());
        for (name, item) in catalog.types_of(&self.queue) {
            if let Some(handler) = inner.handlers.get(name) {
                let slot = ExecutionSlot::Handler(name.clone());
                demands.push(self.slot_demand(vec![name.clone()], &slot, handler.concurrency));
                requesters.push(Requester::Slot(slot));
            } else if inner.engine.is_pushed(&item.config) {
                pushed.push(name.clone());
            } else {
                pulled.push(name.clone());
            }
        }
        if !pushed.is_empty() && inner.owns(self.queue.as_str()) {
            let slot = ExecutionSlot::Push;
            demands.push(self.slot_demand(pushed, &slot, inner.options.push_slots));
            requesters.push(Requester::Slot(slot));
        }
        let workers = self.worker_capacities(inner, catalog, reports);
        for (index, waiting) in self.leases.iter().enumerate() {
            let call = &waiting.call;
            if call.is_gone() || is_drained(catalog, call.worker.as_deref()) {
                continue;
            }
            let types = match &call.types {
                Some(types) => types.iter().filter(|name| pulled.contains(name)).cloned().collect(),
                None => pulled.clone(),
            };
            demands.push(Demand {
                types,
                capacity: call.max,
                min: least(inner, call, &workers),
                worker: call.worker.clone(),
                lease: call.lease,
                dispatch: Dispatch::Claim,
                call: call.repeatable.clone(),
            });
            requesters.push(Requester::Lease(index));
        }
        (TickInput { demands, workers, ..TickInput::default() }, requesters)
    }

    /// The demand of the free slots of one kind. `most` is the number of all its slots.
    fn slot_demand(&self, types: Vec<TypeName>, slot: &ExecutionSlot, most: u32) -> Demand {
        Demand {
            min: 0,
            types,
            capacity: self.free_slots(slot, most),
            worker: None,
            lease: None,
            dispatch: Dispatch::Claim,
            call: None,
        }
    }

    /// How many slots of one kind are free. `most` is the number of all its slots.
    pub(super) fn free_slots(&self, slot: &ExecutionSlot, most: u32) -> u32 {
        most.saturating_sub(self.running.get(slot).copied().unwrap_or(0))
    }

    /// How many more jobs each waiting worker can run that registered a capacity.
    fn worker_capacities(
        &self,
        inner: &Inner,
        catalog: &Catalog,
        reports: &[Report],
    ) -> BTreeMap<String, u32> {
        let (mut running, mut capacities) = (None, BTreeMap::new());
        for call in self.leases.iter().map(|waiting| &waiting.call) {
            let Some(name) = call.worker.as_deref() else { continue };
            if call.is_gone() || is_drained(catalog, Some(name)) {
                continue;
            }
            let capacity = inner.workers.capacity(name);
            if let Some(capacity) = capacity {
                let running =
                    running.get_or_insert_with(|| inner.engine.running_by_worker(reports));
                let runs = running.get(name).copied().unwrap_or_default();
                let left = u64::from(capacity).saturating_sub(runs) as u32;
                if left == 0 {
                    inner.on_full_worker();
                }
                capacities.insert(name.to_owned(), left);
            }
        }
        capacities
    }

    /// Marks the task as idle if the queue's jobs have no taker.
    ///
    /// A later request is a message, and its tick reads the store. A type that becomes pushed or
    /// gets a handler changes the version of the configuration.
    pub(super) fn set_idle(&self, demands: &[Demand], catalog: &Catalog) {
        let idle = demands.iter().all(|demand| demand.capacity == 0)
            && self.leases.iter().all(|waiting| waiting.call.max == 0)
            && self.watches.is_empty();
        self.idle_under.store(if idle { catalog.version } else { NOT_IDLE }, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// How many jobs `call` gets at least: any number once its wait is over, and no more than its
/// worker may start, by `capacities`.
fn least(inner: &Inner, call: &LeaseCall, capacities: &BTreeMap<String, u32>) -> u32 {
    if call.until <= inner.engine.ports().clock.machine_now() {
        return 0;
    }
    let capacity = call.worker.as_ref().and_then(|name| capacities.get(name));
    capacity.map_or(call.min, |capacity| call.min.min(*capacity))
}
