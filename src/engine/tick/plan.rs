//! A tick, computed and not yet committed.

use std::collections::{BTreeMap, HashSet};

use super::{
    Claimed, Demand, ThrottlerCall, TickOutcome,
    search::{Lap, ReadAhead},
    throttle::Throttling,
    view::Delta,
};
use crate::{Error, plugins::circuit_breaker::OpenCircuit};
use tidegate_core::{
    job::{
        Event, Job, JobId, Lifecycle, Revision,
        lifecycle::{State, Waiting},
    },
    port::Work,
    queue::{
        Rule,
        admission::{Hold, Reservations},
        order::Position,
        rate::RateCounts,
    },
    time::Timestamp,
};

/// A job's change in a tick.
pub(super) struct JobChange {
    pub(super) job: Job,
    pub(super) was: Revision,
}

/// A tick, computed and not yet committed.
#[derive(Default)]
pub(super) struct TickPlan {
    /// Settled, fenced, revoked and moved jobs: written before the ledger.
    pub(super) before: Vec<JobChange>,
    /// Claims: written after it.
    pub(super) claims: Vec<JobChange>,
    /// Unclaimed dispatches: not written until their result arrives.
    pub(super) unclaimed: Vec<JobChange>,
    pub(super) claimed: Vec<Claimed>,
    /// Jobs that this tick has handled. Its pages may overlap, and a job is offered once.
    pub(super) seen: HashSet<JobId>,
    /// Granted work that others claim, each with the index of its demand.
    pub(super) offers: Vec<(usize, Work)>,
    /// Granted work: new, or unclaimed for too long.
    pub(super) send: Vec<Work>,
    pub(super) sent: usize,
    pub(super) delta: Delta,
    pub(super) ended: Vec<JobId>,
    /// Reports that repeated a known result.
    pub(super) repeated: HashSet<usize>,
    pub(super) lapsed: Vec<Job>,
    /// The objects that settled jobs no longer name, each with its job.
    pub(super) unnamed_objects: Vec<(JobId, String)>,
    pub(super) held: BTreeMap<Rule, u64>,
    /// Whether there was capacity, so that candidates were searched.
    pub(super) searched: bool,
    pub(super) next_at: Option<Timestamp>,
    pub(super) next_start_at: Option<Timestamp>,
    pub(super) again: bool,
    pub(super) scan_cursor: Option<Position>,
    /// What candidates before the cursor have reserved.
    pub(super) reserved: Reservations,
    pub(super) last_partition: Option<String>,
    pub(super) lap_start: Option<String>,
    pub(super) lap: Lap,
    /// Candidates that an earlier tick has read, or this one reads for the next.
    pub(super) read_ahead: ReadAhead,
    pub(super) rate_counts: RateCounts,
    /// The queue's throttler.
    pub(super) throttling: Option<Throttling>,
    pub(super) open_circuit: Option<OpenCircuit>,
    pub(super) shadowed_calls: Vec<ThrottlerCall>,
    pub(super) faults: Vec<ThrottlerCall>,
    /// Whether the throttler moved or dropped a job, which is valid only under this ledger.
    pub(super) decided: bool,
}

/// How often a tick decides again without the demands that would get fewer jobs than they require.
const MAX_GATHERING_PASSES: usize = 3;

impl TickPlan {
    /// The `demands` that this plan gives fewer jobs than they require, in addition to `closed`, and
    /// those that would get too few of the same types instead. After some passes, all others that
    /// require several wait for the next tick.
    pub(super) fn unmet(&self, demands: &[Demand], closed: &[usize], pass: usize) -> Vec<usize> {
        if demands.iter().all(|demand| demand.min <= 1) {
            return Vec::new();
        }
        let mut taken = vec![0; demands.len()];
        let claimed = self.claimed.iter().map(|claimed| claimed.demand);
        for index in claimed.chain(self.offers.iter().map(|(index, _)| *index)) {
            taken[index] += 1;
        }
        let least = |index: usize| demands[index].min;
        let unmet: Vec<usize> = (0..demands.len())
            .filter(|index| taken[*index] > 0 && taken[*index] < least(*index))
            .collect();
        let is_like = |index: usize| {
            let like = |other: &usize| {
                demands[index].types == demands[*other].types && taken[*other] < least(index)
            };
            taken[index] == 0 && unmet.iter().any(like)
        };
        if unmet.is_empty() {
            return unmet;
        }
        let is_last = pass >= MAX_GATHERING_PASSES;
        let others = (0..demands.len()).filter(|index| {
            !closed.contains(index)
                && !unmet.contains(index)
                && (is_like(*index) || (is_last && least(*index) > 1))
        });
        unmet.iter().copied().chain(others).collect()
    }

    /// Plans the next tick for `at`, unless it is planned for earlier.
    pub(super) fn wake(&mut self, at: Option<Timestamp>) {
        self.next_at = self.next_at.into_iter().chain(at).min();
    }

    /// The same for an instant at which a job may start.
    pub(super) fn wake_to_start(&mut self, at: Option<Timestamp>) {
        self.next_start_at = self.next_start_at.into_iter().chain(at).min();
        self.wake(at);
    }

    /// Whether the scan stopped before its end.
    pub(super) fn goes_on(&self) -> bool {
        self.scan_cursor.is_some() || self.lap_start.is_some()
    }

    /// The outcome of the tick, once it is committed; `reports` has one answer per report.
    pub(super) fn into_outcome(mut self, reports: Vec<Result<Job, Error>>) -> TickOutcome {
        // The search did not see these jobs: a retry that is due first must be found in time.
        let changed = || self.before.iter().map(|change| &change.job.life);
        let pending = changed().any(Lifecycle::awaits_retry_decision);
        let decided = changed().filter(|life| !life.awaits_retry_decision());
        let next_at = decided.filter_map(Lifecycle::run_at).min();
        self.wake_to_start(next_at);
        let ended: HashSet<&JobId> = self.ended.iter().collect();
        let ended =
            self.before.iter().map(|change| &change.job).filter(|job| ended.contains(&job.id));
        TickOutcome {
            reports,
            ended: ended.cloned().collect(),
            pending,
            repeated: self.repeated,
            claimed: self.claimed,
            offers: self.offers,
            lost: false,
            outdated: false,
            sent: self.sent,
            lapsed: self.lapsed,
            unnamed_objects: self.unnamed_objects.into_iter().map(|(_, key)| key).collect(),
            held: self.held,
            next_at: self.next_at,
            next_start_at: self.next_start_at,
            again: self.again,
            left: Vec::new(),
            shadowed_calls: self.shadowed_calls,
            faults: Vec::new(),
        }
    }

    /// Counts a held candidate, and wakes the queue when it may run.
    pub(super) fn hold(&mut self, hold: Hold) {
        self.wake_to_start(hold.earliest_at);
        *self.held.entry(hold.rule).or_default() += 1;
    }

    /// Lets a candidate wait for a window to open.
    pub(super) fn await_window(&mut self, job: &Job, opening: Timestamp, now: Timestamp) {
        // An earlier window may have closed before the job could start.
        let due = match job.life.state {
            State::Scheduled { waiting: Waiting::Window { due }, .. } => due,
            _ => job.life.run_at().unwrap_or(now),
        };
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
        self.wake_to_start(Some(run_at));
    }

    /// Ends a candidate.
    pub(super) fn end(&mut self, job: &Job, ended: Job) {
        debug_assert!(matches!(ended.life.state, State::Ended { .. }), "it has ended");
        self.ended.push(job.id.clone());
        self.before.push(JobChange { was: job.life.revision, job: ended });
    }
}
