//! How long a claimed job's worker may go without a heartbeat, and what follows when it does.

use std::time::Duration;

use super::{Demand, Dispatch, delivery};
use crate::{Catalog, Engine};
use tidegate_core::job::{
    Event, Job,
    lifecycle::RetryDecision,
    type_config::{Delivery, HoldSlotUntil, TypeConfig},
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
        (true, None) => config.response_timeout_seconds.duration() + PUSH_MARGIN,
        (false, None) => config.lease_seconds.duration(),
    }
}

/// The lease of a claimed push.
pub(crate) fn push_lease(catalog: &Catalog, job: &Job) -> Duration {
    let config = catalog.types.get(&job.spec.job_type).map(|item| &item.config);
    let demand = Demand {
        types: Vec::new(),
        capacity: 0,
        worker: None,
        lease: None,
        dispatch: Dispatch::Claim,
    };
    lease(config, true, &demand, job)
}

/// The event of an expired lease, here so that sweeps and checks agree.
pub(crate) fn lease_expired(engine: &Engine, catalog: &Catalog, job: &Job) -> Event {
    let next: RetryDecision = engine.retry_decision(job);
    Event::LeaseExpired { next, at_most_once: delivery(catalog, job) == Delivery::AtMostOnce }
}
