//! Offers one candidate: it is skipped, ended, moved, held, or granted and claimed.

use std::time::Duration;

use super::{
    Claimed, Demand, Dispatch, JobChange, TickPlan, check::CLAIM_BY, delivery, grant, overdue,
    search::Search,
};
use crate::{Catalog, tick::view::AUDIT};
use tidegate_core::{
    job::{
        Event, Job, Token,
        lifecycle::{State, Waiting},
        type_config::{Delivery, HoldSlotUntil, Start, TypeConfig},
    },
    queue::{AdmissionDecision, Candidate, admission::Hold},
    time::Timestamp,
};

/// How much longer than its response timeout a push may take before its attempt fails.
const PUSH_MARGIN: Duration = Duration::from_secs(5);

impl Search<'_> {
    /// Offers one job. Whether it was admitted.
    pub(super) fn try_admit(&mut self, job: &Job) -> bool {
        let Some(demand) = self.consider(job) else {
            return false;
        };
        let bytes = self.capacities.bytes(job);
        match self.capacities.try_admit(&mut self.admission, Candidate::of(&job.spec), bytes) {
            Some(AdmissionDecision::Hold(hold)) => self.plan.hold(hold),
            Some(AdmissionDecision::Move(opening)) => {
                self.plan.await_window(job, opening, self.now);
            }
            Some(AdmissionDecision::Run) => {
                self.admit(demand, job, bytes);
                return true;
            }
            None => {}
        }
        false
    }

    /// The demand that would take `job`, if it is a candidate: not offered before in this tick, without
    /// a grant, not overdue.
    pub(super) fn consider(&mut self, job: &Job) -> Option<usize> {
        if !self.plan.seen.insert(job.id.clone())
            || self.is_granted(job)
            || self.engine.unclaimed.is_dispatched(&job.id)
        {
            return None;
        }
        if let Some((view, _)) = &self.granted
            && let Some(older) =
                view.grant(&job.id).filter(|grant| grant.version < job.life.version)
        {
            // This read proves that the job left the granted version. Its slot is free once the
            // release is committed.
            let release = (job.id.clone(), older.version);
            if !self.plan.delta.released.contains(&release) {
                self.plan.delta.released.push(release);
                // This tick still counts it as taken: the next one uses it at once.
                self.plan.again = true;
                if let Some(throttling) = &mut self.plan.throttling {
                    throttling.note_ended(older, job);
                }
            }
        }
        let demand = self.capacities.find(job)?;
        if let Some(ended) = overdue(job, self.now) {
            self.plan.end(job, ended);
            return None;
        }
        if delivery(self.catalog, job) == Delivery::AtMostOnce
            && let Ok(ended) = job.apply(Event::MustNotRunTwice, self.now)
        {
            self.plan.end(job, ended);
            return None;
        }
        // A job that awaits its retry decision is no candidate.
        (!job.life.awaits_retry_decision()).then_some(demand)
    }

    /// Grants and claims (or sends) an admitted job of `bytes`.
    pub(super) fn admit(&mut self, demand_index: usize, job: &Job, bytes: usize) {
        let now = self.now;
        let demand = &self.capacities.demands[demand_index];
        let granted = self.granted.is_some();
        if demand.dispatch == Dispatch::Queue && granted {
            self.plan.delta.granted.push(grant(job, now));
            self.plan.delta.sent = false;
            self.plan.delta.check_at = earlier(self.plan.delta.check_at, now + CLAIM_BY);
            self.plan.wake(Some(now + CLAIM_BY));
            self.capacities.take(demand_index, bytes);
            return;
        }
        let config = self.catalog.types.get(&job.spec.job_type).map(|item| &item.config);
        let push = config.is_some_and(|config| self.engine.is_pushed(config));
        let lease = lease(config, push, demand, job);
        let event = Event::Claim {
            version: job.life.version,
            token: Token(self.engine.ports.entropy.bits()),
            worker: demand.worker.clone(),
            lease,
            granted,
            decided_at: now,
        };
        let was = job.life.revision;
        let Ok(claimed) = job.apply(event, now) else {
            return;
        };
        if granted {
            self.plan.delta.granted.push(grant(job, now));
            let flight = self.engine.ports.store.capabilities().atomicity.max_in_flight_write();
            // Without atomic transactions the grant may be written and the claim not.
            let claim_by = if flight.is_zero() { AUDIT } else { CLAIM_BY.max(flight) };
            let until = claimed.life.running().map_or(now, |run| run.lease_until);
            self.plan.delta.check_at = earlier(self.plan.delta.check_at, until.min(now + claim_by));
        }
        let is_unclaimed = !granted && push && config.is_some_and(is_unclaimed);
        let change = JobChange { job: claimed.clone(), was };
        if is_unclaimed {
            self.plan.unclaimed.push(change);
        } else {
            self.plan.claims.push(change);
        }
        self.plan.claimed.push(Claimed {
            demand: demand_index,
            run_at: job.life.run_at().unwrap_or(now),
            job: claimed,
        });
        self.capacities.take(demand_index, bytes);
    }
}

impl TickPlan {
    /// Counts a held candidate, and wakes the queue when it may run.
    pub(super) fn hold(&mut self, hold: Hold) {
        self.wake(hold.earliest_at);
        *self.held.entry(hold.rule).or_default() += 1;
    }

    /// Lets a candidate wait for a window to open.
    pub(super) fn await_window(&mut self, job: &Job, opening: Timestamp, now: Timestamp) {
        let due = job.life.run_at().unwrap_or(now);
        self.put_off(job, opening, Waiting::Window { due }, None, now);
    }

    /// Gives a candidate another due time.
    pub(super) fn put_off(
        &mut self,
        job: &Job,
        run_at: Timestamp,
        waiting: Waiting,
        reason: Option<String>,
        now: Timestamp,
    ) {
        let event = Event::Move { version: job.life.version, run_at, waiting, reason };
        if let Ok(moved) = job.apply(event, now) {
            self.before.push(JobChange { was: job.life.revision, job: moved });
        }
        self.wake(Some(run_at));
    }

    /// Ends a candidate.
    pub(super) fn end(&mut self, job: &Job, ended: Job) {
        debug_assert!(matches!(ended.life.state, State::Ended { .. }), "it has ended");
        self.ended.push(job.id.clone());
        self.before.push(JobChange { was: job.life.revision, job: ended });
    }
}

/// The earlier of two instants; the first may not be set yet.
fn earlier(at: Timestamp, other: Timestamp) -> Timestamp {
    if at == Timestamp::EPOCH { other } else { at.min(other) }
}

/// How long a claimed job's worker may go without a heartbeat.
fn lease(config: Option<&TypeConfig>, push: bool, demand: &Demand, job: &Job) -> Duration {
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

/// Whether jobs of this push type start by unclaimed dispatch.
fn is_unclaimed(config: &TypeConfig) -> bool {
    config.start == Start::Plain && config.delivery == Delivery::AtLeastOnce
}
