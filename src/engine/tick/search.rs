//! Which candidates a round looks at, and in what turn; each is offered to the [`Admission`], which decides, or a
//! page of them to the queue's throttler.
//!
//! Critical jobs go first. Without partitions a round looks from the front and then goes on where the last one stopped; with
//! partitions they take turns, one candidate each.

use std::{
    collections::{BTreeMap, HashMap},
    ops::ControlFlow,
};

use super::{TickPlan, capacities::Capacities, throttle::PAGE};
use crate::{Catalog, Engine, Error, View};
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName, Version},
    port::{Work, job_store::DueQuery},
    queue::{
        Admission, Limits, Rule,
        config::SCAN_BOUND,
        ledger::Bucket,
        order::{Order, Position},
    },
    time::Timestamp,
};

/// Candidates that every round looks at from the front of the order, wherever the scan stands.
const FRONT: u32 = 100;

/// A round's search: what it looks at, and what it makes of it.
pub(super) struct Search<'a> {
    pub(super) engine: &'a Engine,
    pub(super) queue: &'a QueueName,
    pub(super) catalog: &'a Catalog,
    pub(super) limits: &'a Limits,
    pub(super) now: Timestamp,
    /// The view, and what this round has released; none on a queue without a head.
    pub(super) granted: Option<(&'a View, HashMap<JobId, Version>)>,
    /// What the limits say of a candidate, over those that were admitted before it.
    pub(super) admission: Admission<'a>,
    pub(super) capacities: Capacities<'a>,
    pub(super) plan: &'a mut TickPlan,
}

impl Search<'_> {
    /// Whether `job` is granted at its current version.
    pub(super) fn is_granted(&self, job: &Job) -> bool {
        self.granted.as_ref().is_some_and(|(view, released)| {
            view.granted(&job.id) == Some(job.life.version)
                && released.get(&job.id) != Some(&job.life.version)
        })
    }
}

impl Search<'_> {
    /// Offers candidates, critical ones first, until nobody takes more or nothing more fits. The token buckets as they are then.
    pub(super) async fn run(mut self) -> Result<BTreeMap<(String, String), Bucket>, Error> {
        if self.capacities.total() > 0 {
            self.plan.searched = true;
            self.plan.seen = self.plan.before.iter().map(|change| change.job.id.clone()).collect();
            self.scan(true, None, SCAN_BOUND).await?;
            if self.limits.queue.partition_by.is_some() {
                self.scan_partitions().await?;
            } else {
                self.scan_all().await?;
            }
        }
        self.report_ended().await?;
        Ok(self.admission.finish().1)
    }

    /// The types somebody still takes and of which one may be admitted.
    fn types(&self, critical: bool) -> Vec<TypeName> {
        let mut types = self.capacities.types();
        if !critical {
            types.retain(|name| !self.admission.closed_to(name));
        }
        types
    }

    /// Offers the jobs in `named` alone, those of them that are as they were when they were sent.
    pub(super) async fn run_named(mut self, named: &[Work]) -> Result<(), Error> {
        let ids: Vec<JobId> = named.iter().map(|work| work.job.clone()).collect();
        for (work, job) in named.iter().zip(self.engine.ports.store.get(&ids).await?) {
            let stands = |job: &Job| {
                job.life.version == work.version
                    && job.spec.queue == *self.queue
                    && job.life.run_at().is_some_and(|at| at <= self.now)
            };
            if let Some(job) = job.filter(stands) {
                self.try_admit(&job);
            }
        }
        Ok(())
    }

    /// Looks at a queue without partitions: from the front, and on from where the last round stopped.
    async fn scan_all(&mut self) -> Result<(), Error> {
        let (look, reserved) =
            (self.plan.scan_cursor.take(), std::mem::take(&mut self.plan.reserved));
        let front = if look.is_some() { FRONT } else { SCAN_BOUND };
        let stopped = self.scan(false, None, front).await?;
        self.plan.scan_cursor = match (look, stopped) {
            // The front page took all there was, or nothing more can be taken.
            (_, None) => None,
            (None, Some(stopped)) => Some(stopped),
            (Some(look), Some(_)) => {
                // Whoever was passed on the way here is passed by nobody behind.
                self.admission.restore_reservations(&reserved);
                self.scan(false, Some(look), SCAN_BOUND).await?
            }
        };
        if self.plan.scan_cursor.is_some() {
            self.plan.again = true;
            self.plan.reserved = self.admission.take_reserved();
        }
        Ok(())
    }

    /// Offers at most `bound` candidates, the critical or the others, from `after` on. Where it stopped, if there are more that
    /// could be admitted.
    async fn scan(
        &mut self,
        critical: bool,
        mut after: Option<Position>,
        bound: u32,
    ) -> Result<Option<Position>, Error> {
        let mut looked = 0;
        loop {
            let types = self.types(critical);
            if types.is_empty() || self.admission.closed(critical) {
                self.held_if_closed(critical);
                return Ok(None);
            }
            if !critical && self.plan.throttler_holds_all() {
                return Ok(None);
            }
            let throttled = !critical && self.plan.asks_throttler();
            // As many as are wanted; more each time that what was read did not do.
            let wanted =
                if throttled { self.capacities.total().max(PAGE) } else { self.capacities.total() };
            let limit = wanted.saturating_add(looked).min(bound - looked).clamp(1, SCAN_BOUND);
            let query = DueQuery {
                queue: self.queue.clone(),
                critical,
                types,
                partition: None,
                order: Order::of(&self.limits.queue),
                until: self.now,
                after: after.take(),
                limit,
            };
            let page = self.engine.ports.store.due(&[query]).await?.pop().unwrap_or_default();
            self.plan.wake(page.next_due);
            let mut last = page.jobs.last().filter(|_| throttled).map(position);
            if throttled {
                looked += page.jobs.len() as u32;
                if let ControlFlow::Break(stopped) =
                    self.throttle(&mut page.jobs.into_iter(), SCAN_BOUND as usize).await?
                {
                    return Ok(stopped);
                }
                if self.admission.closed(critical) {
                    return Ok(None);
                }
            } else {
                for job in page.jobs {
                    looked += 1;
                    last = Some(position(&job));
                    self.try_admit(&job);
                    if self.admission.closed(critical) {
                        return Ok(None);
                    }
                }
            }
            if !page.more {
                return Ok(None);
            }
            if looked >= bound {
                return Ok(last);
            }
            after = last;
        }
    }

    /// A queue that is closed before anybody was looked at holds everybody.
    pub(super) fn held_if_closed(&mut self, critical: bool) {
        if critical || !self.plan.held.is_empty() || !self.admission.closed(false) {
            return;
        }
        let rule = if self.limits.paused { Rule::Paused } else { Rule::Concurrency };
        self.plan.held.entry(rule).or_insert(1);
    }
}

pub(super) fn position(job: &Job) -> Position {
    Position {
        partition: job.spec.partition.clone(),
        priority: job.spec.priority,
        run_at: job.life.run_at().unwrap_or_default(),
        id: job.id.clone(),
    }
}
