//! How long a claimed job's worker may go without a heartbeat, and what follows when it does.

use std::time::Duration;

use super::{Demand, Dispatch, delivery};
use crate::{Catalog, Engine};
use tidegate_core::{
    job::{
        Event, Job,
        lifecycle::RetryDecision,
        type_config::{Delivery, HoldSlotUntil, TypeConfig},
    },
    time::Timestamp,
};

/// How much longer than its response timeout a push may take before its attempt fails.
const PUSH_MARGIN: Duration = Duration::from_secs(5);

/// How long a claimed job's worker may go without a heartbeat.
pub(super) fn lease(
    config: Option<&TypeConfig>,
    push: bool,
    demand: &Demand,
    job: &Job,
) -> Duration {
    let Some(config) = config else {
        return job.spec.timeout.duration();
    };
    if config.hold_slot_until == HoldSlotUntil::Report {
        return job.spec.timeout.duration();
    }
    match (push, demand.lease) {
        (_, Some(lease)) => lease.duration(),
        (true, None) => response_time(config),
        (false, None) => config.lease_seconds.duration(),
    }
}

/// How long a target may take to answer.
fn response_time(config: &TypeConfig) -> Duration {
    config.response_timeout_seconds.duration() + PUSH_MARGIN
}

/// The lease of every claimed push of a type; none if it depends on the job.
pub(crate) fn push_lease_of(config: &TypeConfig) -> Option<Duration> {
    (config.hold_slot_until != HoldSlotUntil::Report).then(|| response_time(config))
}

/// The lease of a claimed push.
pub(crate) fn push_lease(catalog: &Catalog, job: &Job) -> Duration {
    let config = catalog.types.get(&job.spec.job_type).map(|item| &item.config);
    let demand = Demand {
        min: 0,
        types: Vec::new(),
        capacity: 0,
        worker: None,
        lease: None,
        dispatch: Dispatch::Claim,
        call: None,
    };
    lease(config, true, &demand, job)
}

impl Engine {
    /// When the slot of a running push is free if no response comes; none if `job` is no push, or if
    /// its target has answered or its worker has been heard.
    pub fn unanswered_until(&self, catalog: &Catalog, job: &Job) -> Option<Timestamp> {
        let run = job.life.running()?;
        let config = &catalog.types.get(&job.spec.job_type)?.config;
        self.push_target(config)?;
        let until = (run.started_at + push_lease(catalog, job)).min(run.timeout_at);
        (run.lease_until == until && run.progress.is_none()).then_some(until)
    }
}

/// The event of an expired lease, here so that sweeps and checks agree. None if the job's type
/// cannot be read: whether it may start again is then not known, so that it keeps its slot.
pub(crate) fn lease_expired(engine: &Engine, catalog: &Catalog, job: &Job) -> Option<Event> {
    let at_most_once = delivery(catalog, job).ok()? == Delivery::AtMostOnce;
    let next: RetryDecision = engine.retry_decision(job);
    Some(Event::LeaseExpired { next, at_most_once })
}
