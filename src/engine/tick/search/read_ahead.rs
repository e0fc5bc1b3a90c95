//! Candidates that one tick reads for the next ones.
//!
//! ```text
//!   tick 1   reads a b c d e f   claims a b    keeps c d e f
//!   tick 2                       claims c d    keeps e f        no read
//!   tick 3   reads ...           because two are not more than it needs, or they are too old
//! ```
//!
//! The ticks of a busy queue follow each other at once, and each would read a page for a few claims. The
//! one thing to know: a kept candidate is only an older read. The claim compares the job's revision, so a
//! candidate that has changed refuses the commit, and the tick is computed again from a new page.
//!
//! Nothing is kept in a tick that may have left a candidate before those, or scheduled one. So the order
//! of the queue is that of the read, which is at most [`MAX_AGE`] old.

use std::time::Duration;

use super::Search;
use crate::tick::{TickInput, plan::TickPlan};
use tidegate_core::{
    job::{Job, TypeName},
    port::job_store::DuePage,
    queue::{config::SCAN_BOUND, order::Position},
    time::Timestamp,
};

/// How long after their read candidates are offered. A delayed job that becomes due meanwhile, or one of
/// another process whose notice is lost, is found after it.
const MAX_AGE: Duration = Duration::from_millis(20);
/// How many candidates are read ahead at first, and at most. Each tick that nothing but lease calls
/// caused doubles them, and each other one divides them by four.
const FIRST_AHEAD: u32 = 8;
const MAX_AHEAD: u32 = 64;

/// What the ticks of one engine read ahead of a queue.
#[derive(Debug, Default)]
pub(in crate::tick) struct ReadAhead {
    /// How many more candidates the next page has than its tick needs.
    more: u32,
    /// The read whose candidates this tick offers.
    offered: Option<PageRead>,
    kept: Option<KeptPage>,
}

/// A read of the first page of a queue.
#[derive(Debug)]
struct PageRead {
    /// By the clock of this process. The time of a tick is that of the ledger while that is later, so it
    /// may stay the same.
    at: Timestamp,
    /// The version of the configuration under which it was read.
    catalog: u64,
    types: Vec<TypeName>,
}

/// Candidates that were read and not admitted, at most [`MAX_AHEAD`].
#[derive(Debug)]
struct KeptPage {
    read: PageRead,
    /// In order. No other job was a candidate before them.
    jobs: Vec<Job>,
    next_due: Option<Timestamp>,
}

impl ReadAhead {
    /// Begins a tick: forgets the candidates, unless nothing has changed since they were read.
    pub(in crate::tick) fn begin(&mut self, input: &TickInput) {
        if input.unchanged {
            self.more = (self.more * 2).clamp(FIRST_AHEAD, MAX_AHEAD);
        } else {
            self.more /= 4;
            self.kept = None;
        }
    }

    /// What the tick after `plan`, which is committed, may use. Nothing, if the plan schedules a job,
    /// which may come before those.
    pub(in crate::tick) fn after(plan: &mut TickPlan) -> Self {
        let Self { more, kept, .. } = std::mem::take(&mut plan.read_ahead);
        let has_scheduled = plan.before.iter().any(|change| change.job.life.ended().is_none());
        Self { more, offered: None, kept: kept.filter(|_| !has_scheduled) }
    }
}

impl Search<'_> {
    /// Whether this tick may read candidates for the next ones, or offer those of an earlier one: in an
    /// order that no partition, throttler or scan in progress changes.
    fn reads_ahead(&self) -> bool {
        let queue = &self.limits.queue;
        self.plan.read_ahead.more > 0
            && self.granted.is_some()
            && self.window.is_none()
            && queue.partition_by.is_none()
            && !queue.strict_order
            && self.plan.throttling.is_none()
            && self.plan.scan_cursor.is_none()
            && self.engine.ports.store.capabilities().atomicity.is_atomic()
    }

    /// The first page of candidates of `types`, if an earlier tick has read it: it has more than the
    /// `limit` jobs that this one needs.
    pub(super) fn page_read_before(&mut self, types: &[TypeName], limit: u32) -> Option<DuePage> {
        let kept = self.plan.read_ahead.kept.take()?;
        let KeptPage { read, jobs, next_due } = kept;
        let clock = self.engine.now();
        let is_recent = read.at <= clock
            && clock <= read.at + MAX_AGE
            && next_due.is_none_or(|at| self.now < at);
        let is_same = read.catalog == self.catalog.version && read.types == *types;
        if !is_recent || !is_same || jobs.len() <= limit as usize || !self.reads_ahead() {
            return None;
        }
        self.plan.read_ahead.offered = Some(read);
        self.plan.wake_to_start(next_due);
        // If it is not enough after all, the store is read behind it.
        Some(DuePage { next: jobs.last().map(Position::of), jobs, next_due })
    }

    /// How many candidates the first page of `types` has, if this tick needs `limit`.
    pub(super) fn limit_ahead(&mut self, types: &[TypeName], limit: u32) -> u32 {
        let more = self.plan.read_ahead.more;
        let ahead = limit.saturating_add(more);
        // A tick that needs as many would read again. A page as large as a scan would end it.
        if more <= limit || ahead >= SCAN_BOUND || !self.reads_ahead() {
            return limit;
        }
        let (at, catalog) = (self.engine.now(), self.catalog.version);
        self.plan.read_ahead.offered = Some(PageRead { at, catalog, types: types.to_vec() });
        ahead
    }

    /// Offers the candidates of a first page that has more than this tick needs, and keeps the rest,
    /// also the one at which the queue closes. False for any other page: then it offers none.
    pub(super) fn offer_ahead(&mut self, page: &mut DuePage) -> bool {
        let Some(read) = self.plan.read_ahead.offered.take() else {
            return false;
        };
        let mut jobs = std::mem::take(&mut page.jobs);
        let (mut passed, mut are_admitted) = (0, true);
        while !self.admission.closed(false) && self.capacities.total() > 0 {
            let Some(job) = jobs.get(passed) else { break };
            let is_admitted = self.try_admit(job);
            if !is_admitted && self.admission.closed(false) {
                // It waits for a rule that counts all jobs, so it stays the first one.
                break;
            }
            are_admitted &= is_admitted;
            passed += 1;
        }
        let mut jobs = jobs.split_off(passed);
        jobs.truncate(MAX_AHEAD as usize);
        if are_admitted && !jobs.is_empty() {
            let next_due = page.next_due;
            self.plan.read_ahead.kept = Some(KeptPage { read, jobs, next_due });
        }
        true
    }
}
