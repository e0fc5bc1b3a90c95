//! The order in which a tick offers candidates. Each is offered to the [`Admission`], which
//! decides. With a throttler, a page of candidates is offered to the queue's plugin first.
//!
//! Critical jobs go first. Without partitions, a tick reads from the front and then continues where
//! the last one stopped. Partitions take turns, one candidate each.

mod admit;
mod capacities;
mod lap;
mod partitions;
mod read_ahead;
mod turns;

pub(super) use capacities::Capacities;
pub(super) use lap::Lap;
pub(super) use read_ahead::ReadAhead;
pub(crate) use turns::Turns;

use std::{collections::HashMap, ops::ControlFlow, sync::Arc};

use super::{plan::TickPlan, throttle::MIN_THROTTLER_PAGE};
use crate::{Catalog, Engine, Error, LedgerView};
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName, Version},
    port::{
        Work,
        job_store::{DuePage, DueQuery},
    },
    queue::{
        Admission, Limits, Rule,
        config::SCAN_BOUND,
        order::{Order, Position},
        rate::RateCounts,
    },
    time::Timestamp,
};

/// Candidates that every tick offers from the front of the order, wherever the scan's cursor is.
const MAX_FRONT_CANDIDATES: u32 = 100;

/// How many more candidates a page has than the queue admits, because other rules hold some.
const PAGE_MARGIN: u64 = 8;

/// A tick's search for jobs to admit; its decisions go to the plan.
pub(super) struct Search<'a> {
    pub(super) engine: &'a Engine,
    pub(super) queue: &'a QueueName,
    pub(super) catalog: &'a Catalog,
    pub(super) limits: &'a Limits,
    pub(super) now: Timestamp,
    /// The view, and the grants that this tick has released; none on a queue without a ledger.
    pub(super) granted: Option<(&'a LedgerView, HashMap<JobId, Version>)>,
    /// The limits, over the running jobs and those that this tick has admitted.
    pub(super) admission: Admission<'a>,
    pub(super) capacities: Capacities<'a>,
    /// The live grants, for a store that reads them in vain otherwise.
    pub(super) leave_out: Option<Arc<HashMap<JobId, Timestamp>>>,
    /// Of how many due jobs the first page has at least, and at which part of it the search begins.
    pub(super) window: Option<(u32, f64)>,
    pub(super) plan: &'a mut TickPlan,
}

impl Search<'_> {
    /// Offers candidates, critical ones first, until no worker takes more or nothing more fits.
    /// Returns what the rates have counted.
    pub(super) async fn run(mut self) -> Result<RateCounts, Error> {
        if self.capacities.total() > 0 {
            self.plan.searched = true;
            self.plan.seen = self.plan.before.iter().map(|change| change.job.id.clone()).collect();
            let by_partition = self.limits.queue.partition_by.is_some();
            let (critical, ordinary) = self.first_pages(by_partition).await?;
            self.scan(true, None, SCAN_BOUND, critical).await?;
            if self.limits.queue.strict_order {
                self.scan_in_line().await?;
            } else if by_partition {
                self.scan_partitions().await?;
            } else {
                self.scan_all(ordinary).await?;
            }
        }
        self.report_ended().await?;
        Ok(self.admission.finish().1)
    }

    /// The first pages of critical and of other candidates, read by one call, or by an earlier tick;
    /// none where nothing can be admitted, and by partition.
    async fn first_pages(
        &mut self,
        by_partition: bool,
    ) -> Result<(Option<DuePage>, Option<DuePage>), Error> {
        let front = if self.plan.scan_cursor.is_some() { MAX_FRONT_CANDIDATES } else { SCAN_BOUND };
        let (mut queries, mut read, mut read_before) = (Vec::new(), [false; 2], None);
        for (critical, bound) in [(true, SCAN_BOUND), (false, front)] {
            let types = self.types(critical);
            let is_held = !critical && (by_partition || self.plan.throttler_holds_all());
            if types.is_empty() || is_held || self.admission.closed(critical) {
                continue;
            }
            let mut limit = self.wanted(critical).min(bound).clamp(1, SCAN_BOUND);
            if !critical {
                read_before = self.page_read_before(&types, limit);
                if read_before.is_some() {
                    continue;
                }
                limit = self.limit_ahead(&types, limit);
            }
            queries.push(self.due_query(critical, types, None, limit));
            read[usize::from(!critical)] = true;
        }
        let mut pages = self.due_pages(&queries).await?.into_iter();
        let [critical, ordinary] = read.map(|read| if read { pages.next() } else { None });
        Ok((critical, read_before.or(ordinary)))
    }

    /// Whether `job` is granted at its current version.
    fn is_granted(&self, job: &Job) -> bool {
        self.granted.as_ref().is_some_and(|(view, released)| {
            view.grant(&job.id).is_some_and(|grant| grant.starts(job))
                && released.get(&job.id) != Some(&job.life.version)
        })
    }

    /// The types that a worker still takes and whose jobs may be admitted.
    fn types(&self, critical: bool) -> Vec<TypeName> {
        let mut types = self.capacities.types();
        if !critical {
            types.retain(|name| !self.admission.closed_to(name));
        }
        types
    }

    /// Offers the jobs in `named` alone, each if it is still at the version that was sent.
    pub(super) async fn run_named(mut self, named: &[Work]) -> Result<(), Error> {
        let ids: Vec<JobId> = named.iter().map(|work| work.job.clone()).collect();
        for (work, job) in named.iter().zip(self.engine.ports.store.get(&ids).await?) {
            let is_current = |job: &Job| {
                job.life.version == work.version
                    && job.spec.queue == *self.queue
                    && job.life.run_at().is_some_and(|at| at <= self.now)
            };
            // One that cannot be read is left to the release that can, or to its repair.
            if let Some(job) = job.ok().flatten().filter(is_current) {
                self.try_admit(&job);
            }
        }
        Ok(())
    }

    /// Scans a queue without partitions: from the front, and then from where the last tick stopped.
    async fn scan_all(&mut self, first: Option<DuePage>) -> Result<(), Error> {
        let (cursor, reserved) =
            (self.plan.scan_cursor.take(), std::mem::take(&mut self.plan.reserved));
        let front = if cursor.is_some() { MAX_FRONT_CANDIDATES } else { SCAN_BOUND };
        let stopped = self.scan(false, None, front, first).await?;
        self.plan.scan_cursor = match (cursor, stopped) {
            // The front page contained all candidates, or no more can be admitted.
            (_, None) => None,
            (None, Some(stopped)) => Some(stopped),
            (Some(cursor), Some(_)) => {
                // A job that was held on the way here keeps its reservation from the jobs behind
                // it.
                self.admission.restore_reservations(&reserved);
                self.scan(false, Some(cursor), SCAN_BOUND, None).await?
            }
        };
        if self.plan.scan_cursor.is_some() {
            self.plan.again = true;
            self.plan.reserved = self.admission.take_reserved();
        }
        Ok(())
    }

    /// Offers at most `bound` candidates, the critical or the others, from `after` on; `first` is
    /// their first page if it was read before. Returns where it stopped, if more could be admitted.
    async fn scan(
        &mut self,
        critical: bool,
        mut after: Option<Position>,
        bound: u32,
        mut first: Option<DuePage>,
    ) -> Result<Option<Position>, Error> {
        let mut offered = 0;
        loop {
            let types = self.types(critical);
            if types.is_empty() || self.admission.closed(critical) {
                self.held_if_closed(critical);
                return Ok(None);
            }
            if !critical && self.plan.throttler_holds_all() {
                return Ok(None);
            }
            let throttled = !critical && self.plan.may_call_throttler();
            // Each page that was not enough makes the next one larger.
            let wanted = self.wanted(critical);
            let limit = wanted.saturating_add(offered).min(bound - offered).clamp(1, SCAN_BOUND);
            let page = if let Some(page) = first.take() {
                page
            } else {
                let query = self.due_query(critical, types, after.take(), limit);
                self.due_pages(&[query]).await?.pop().unwrap_or_default()
            };
            let (next, is_empty) = (page.next.clone(), page.jobs.is_empty());
            offered += page.jobs.len().max(1) as u32;
            if let ControlFlow::Break(stopped) = self.offer_page(page, critical, throttled).await? {
                return Ok(stopped);
            }
            // Jobs that cannot be read may fill a page. The next tick reads on behind them.
            if next.is_none() || offered >= bound || (is_empty && !critical) {
                return Ok(next);
            }
            after = next;
        }
    }

    /// How many candidates a first page has: about as many as this tick can admit, or as a throttler
    /// needs at least. Further pages follow if that was too few.
    pub(in crate::tick) fn wanted(&self, critical: bool) -> u32 {
        let total = self.capacities.total();
        let wanted = if critical {
            total
        } else if self.plan.may_call_throttler() {
            total.max(MIN_THROTTLER_PAGE)
        } else {
            let room = self.admission.room().saturating_add(PAGE_MARGIN);
            total.min(room.try_into().unwrap_or(u32::MAX))
        };
        self.window.map_or(wanted, |(window, _)| wanted.max(window))
    }

    /// A query for due jobs of `types`, in the queue's order.
    fn due_query(
        &self,
        critical: bool,
        types: Vec<TypeName>,
        after: Option<Position>,
        limit: u32,
    ) -> DueQuery {
        DueQuery {
            queue: self.queue.clone(),
            critical,
            types,
            partition: None,
            order: Order::of(&self.limits.queue),
            until: self.now,
            after,
            limit,
            granted: self.leave_out.clone(),
        }
    }

    /// Reads pages of due jobs, one for each query.
    async fn due_pages(&mut self, queries: &[DueQuery]) -> Result<Vec<DuePage>, Error> {
        let pages = self.engine.ports.store.due(queries).await?;
        for page in &pages {
            self.plan.wake_to_start(page.next_due);
        }
        Ok(pages)
    }

    /// Offers the jobs of a page, or lets the throttler decide on them. Breaks if the scan ends,
    /// with the position where the next tick continues.
    async fn offer_page(
        &mut self,
        mut page: DuePage,
        critical: bool,
        throttled: bool,
    ) -> Result<ControlFlow<Option<Position>>, Error> {
        if throttled {
            let flow = self.throttle(&mut page.jobs.into_iter(), SCAN_BOUND as usize).await?;
            let closed = flow.is_continue() && self.admission.closed(critical);
            return Ok(if closed { ControlFlow::Break(None) } else { flow });
        }
        if !critical && self.offer_ahead(&mut page) {
            let closed = self.admission.closed(false);
            return Ok(if closed { ControlFlow::Break(None) } else { ControlFlow::Continue(()) });
        }
        let mut jobs = page.jobs;
        if let Some((_, part)) = self.window {
            let first = ((jobs.len() as f64 * part) as usize).min(jobs.len());
            jobs.rotate_left(first);
        }
        for job in jobs {
            if self.window.is_some() && self.capacities.total() == 0 {
                break;
            }
            self.try_admit(&job);
            if self.admission.closed(critical) {
                return Ok(ControlFlow::Break(None));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Records the rule that holds all jobs of a queue that was closed before the search.
    pub(super) fn held_if_closed(&mut self, critical: bool) {
        if critical || !self.plan.held.is_empty() || !self.admission.closed(false) {
            return;
        }
        let rule = if self.limits.paused { Rule::Paused } else { Rule::Concurrency };
        self.plan.held.entry(rule).or_insert(1);
    }
}
