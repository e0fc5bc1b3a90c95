//! Which candidates a round looks at, and in what turn; each is offered to the [`Admission`], which decides, or a
//! page of them to the queue's throttler.
//!
//! Critical jobs go first. Without partitions a round looks from the front and then goes on where the last one stopped; with
//! partitions they take turns, one candidate each.

use std::collections::{BTreeMap, HashMap};

use super::{Ask, Plan, Round, throttle::PAGE};
use crate::{
    engine::{Catalog, Engine, Error, View},
    job::{Job, JobId, QueueName, TypeName, Version},
    port::{Work, job_store::DueQuery},
    queue::{
        Admission, Limits, Rule,
        config::SCAN_BOUND,
        order::{Order, Position},
    },
    time::Timestamp,
};

/// Candidates that every round looks at from the front of the order, wherever the scan stands.
const FRONT: u32 = 100;
/// Most partitions that one round visits.
const PARTITIONS: u32 = 64;

/// What a round's search for candidates looks at.
pub(super) struct Search<'a> {
    pub(super) queue: &'a QueueName,
    pub(super) round: &'a Round,
    pub(super) catalog: &'a Catalog,
    pub(super) limits: &'a Limits,
    pub(super) now: Timestamp,
    /// The view, and what this round has released; none on a queue without a head.
    pub(super) granted: Option<(&'a View, HashMap<JobId, Version>)>,
}

impl Search<'_> {
    /// Whether `job` is granted at its current version.
    pub(super) fn is_granted(&self, job: &Job) -> bool {
        self.granted.as_ref().is_some_and(|(view, released)| {
            view.granted(&job.id) == Some(job.life.version) && released.get(&job.id) != Some(&job.life.version)
        })
    }
}

/// The rooms of a round's askers as they fill.
pub(super) struct Rooms<'a> {
    pub(super) asks: &'a [Ask],
    pub(super) left: Vec<u32>,
}

impl Rooms<'_> {
    /// The types somebody still takes.
    fn types(&self) -> Vec<TypeName> {
        let mut types: Vec<TypeName> =
            self.asks.iter().zip(&self.left).filter(|(_, left)| **left > 0).flat_map(|(ask, _)| ask.types.iter().cloned()).collect();
        types.sort_unstable();
        types.dedup();
        types
    }

    /// Who takes a job of this type.
    pub(super) fn find(&self, job_type: &TypeName) -> Option<usize> {
        self.find_in(&self.left, job_type)
    }

    /// The same, if this were left of each room.
    pub(super) fn find_in(&self, left: &[u32], job_type: &TypeName) -> Option<usize> {
        (0..self.asks.len()).find(|index| left[*index] > 0 && self.asks[*index].types.contains(job_type))
    }

    pub(super) fn total(&self) -> u32 {
        self.left.iter().fold(0, |sum, left| sum.saturating_add(*left))
    }
}

impl Engine {
    /// Offers candidates to `admission`, critical ones first, until nobody takes more or nothing more fits.
    pub(super) async fn search(&self, search: &mut Search<'_>, admission: &mut Admission<'_>, plan: &mut Plan) -> Result<(), Error> {
        let mut rooms = Rooms { asks: &search.round.asks, left: search.round.asks.iter().map(|ask| ask.room).collect() };
        if rooms.total() > 0 {
            plan.searched = true;
            plan.seen = plan.before.iter().map(|change| change.job.id.clone()).collect();
            self.scan(search, admission, plan, &mut rooms, true, None, None, SCAN_BOUND).await?;
            if search.limits.queue.partition_by.is_some() {
                self.scan_partitions(search, admission, plan, &mut rooms).await?;
            } else {
                self.scan_all(search, admission, plan, &mut rooms).await?;
            }
        }
        self.tell_ended(search, admission, plan, &mut rooms).await
    }

    /// Offers the jobs in `named`, those of them that are as they were when they were sent.
    pub(super) async fn offer_named(
        &self,
        search: &Search<'_>,
        named: &[Work],
        admission: &mut Admission<'_>,
        plan: &mut Plan,
    ) -> Result<(), Error> {
        let mut rooms = Rooms { asks: &search.round.asks, left: search.round.asks.iter().map(|ask| ask.room).collect() };
        let ids: Vec<JobId> = named.iter().map(|work| work.job.clone()).collect();
        for (work, job) in named.iter().zip(self.ports.store.get(&ids).await?) {
            let stands = |job: &Job| {
                job.life.version == work.version && job.spec.queue == *search.queue && job.life.run_at().is_some_and(|at| at <= search.now)
            };
            if let Some(job) = job.filter(stands) {
                self.offer(search, admission, plan, &mut rooms, &job);
            }
        }
        Ok(())
    }

    /// Looks at a queue without partitions: from the front, and on from where the last round stopped.
    async fn scan_all(
        &self,
        search: &Search<'_>,
        admission: &mut Admission<'_>,
        plan: &mut Plan,
        rooms: &mut Rooms<'_>,
    ) -> Result<(), Error> {
        let look = plan.look.take();
        let front = if look.is_some() { FRONT } else { SCAN_BOUND };
        let stopped = self.scan(search, admission, plan, rooms, false, None, None, front).await?;
        plan.look = match (look, stopped) {
            // The front page took all there was, or nothing more can be taken.
            (_, None) => None,
            (None, Some(stopped)) => Some(stopped),
            (Some(look), Some(_)) => self.scan(search, admission, plan, rooms, false, None, Some(look), SCAN_BOUND).await?,
        };
        plan.again |= plan.look.is_some();
        Ok(())
    }

    /// Offers at most `bound` candidates from `after` on. Where it stopped, if there are more that could be admitted.
    #[allow(clippy::too_many_arguments, reason = "a scan is a question with many parts")]
    async fn scan(
        &self,
        search: &Search<'_>,
        admission: &mut Admission<'_>,
        plan: &mut Plan,
        rooms: &mut Rooms<'_>,
        critical: bool,
        partition: Option<&str>,
        mut after: Option<Position>,
        bound: u32,
    ) -> Result<Option<Position>, Error> {
        let mut looked = 0;
        loop {
            let types = rooms.types();
            if types.is_empty() || admission.closed(critical) {
                plan.held_if_closed(search, admission, critical);
                return Ok(None);
            }
            if !critical && plan.throttler_holds_all() {
                return Ok(None);
            }
            let throttled = !critical && plan.asks_throttler();
            // As many as are wanted; more each time that what was read did not do.
            let wanted = if throttled { rooms.total().max(PAGE) } else { rooms.total() };
            let limit = wanted.saturating_add(looked).min(bound - looked).clamp(1, SCAN_BOUND);
            let query = DueQuery {
                queue: search.queue.clone(),
                critical,
                types,
                partition: partition.map(str::to_owned),
                order: Order::of(&search.limits.queue),
                until: search.now,
                after: after.take(),
                limit,
            };
            let page = self.ports.store.due(&[query]).await?.pop().unwrap_or_default();
            plan.wake(page.next_due);
            let mut last = page.jobs.last().filter(|_| throttled).map(position);
            if throttled {
                looked += page.jobs.len() as u32;
                if !self.throttle(search, admission, plan, rooms, page.jobs).await? || admission.closed(critical) {
                    return Ok(None);
                }
            } else {
                for job in page.jobs {
                    looked += 1;
                    last = Some(position(&job));
                    self.offer(search, admission, plan, rooms, &job);
                    if admission.closed(critical) {
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

    /// Lets partitions take turns, from the one after the last that was served.
    ///
    /// While nothing stops it, the search goes on with the next tick: first deeper into each partition of which there
    /// is more (`look`), then to the partitions that one round does not visit, until it has come round (`lap`).
    async fn scan_partitions(
        &self,
        search: &Search<'_>,
        admission: &mut Admission<'_>,
        plan: &mut Plan,
        rooms: &mut Rooms<'_>,
    ) -> Result<(), Error> {
        let types = rooms.types();
        if types.is_empty() || admission.closed(false) {
            plan.held_if_closed(search, admission, false);
            return Ok(());
        }
        if plan.throttler_holds_all() {
            return Ok(());
        }
        let (turn, look) = (plan.turn.clone(), plan.look.take());
        let store = &self.ports.store;
        let mut names = store.partitions(search.queue, &types, turn.as_deref(), PARTITIONS).await?;
        if names.len() < PARTITIONS as usize && turn.is_some() {
            let front = store.partitions(search.queue, &types, None, PARTITIONS).await?;
            let rest = front.into_iter().take_while(|name| Some(name) <= turn.as_ref());
            names.extend(rest.take(PARTITIONS as usize - names.len()).collect::<Vec<_>>());
        }
        if names.is_empty() {
            return Ok(());
        }
        let throttled = plan.asks_throttler();
        let wanted = if throttled { rooms.total().max(PAGE) } else { rooms.total().saturating_add(8) };
        let each = (SCAN_BOUND / names.len() as u32).min(wanted).max(1);
        let question = |partition: &str, after: Option<Position>| DueQuery {
            queue: search.queue.clone(),
            critical: false,
            types: types.clone(),
            partition: Some(partition.to_owned()),
            order: Order::of(&search.limits.queue),
            until: search.now,
            limit: if after.is_some() { SCAN_BOUND } else { each },
            after,
        };
        let mut queries: Vec<DueQuery> = names.iter().map(|name| question(name, None)).collect();
        // One partition at a time is looked at beyond its first page, so that what waits deep in it has its turn too.
        queries.extend(look.as_ref().map(|look| question(&look.partition, Some(look.clone()))));
        let mut ends = BTreeMap::new();
        let mut deeper = None;
        let mut lanes: Vec<std::vec::IntoIter<Job>> = Vec::with_capacity(queries.len());
        for (index, page) in store.due(&queries).await?.into_iter().enumerate() {
            plan.wake(page.next_due);
            match page.jobs.last().filter(|_| page.more).map(position) {
                Some(end) if index < names.len() => drop(ends.insert(end.partition.clone(), end)),
                end => deeper = end,
            }
            lanes.push(page.jobs.into_iter());
        }
        let mut offered = !throttled;
        let mut stopped = throttled && !self.throttle_lanes(search, admission, plan, rooms, &mut lanes).await?;
        while offered && !admission.closed(false) && rooms.total() > 0 {
            offered = false;
            for lane in &mut lanes {
                let Some(job) = lane.next() else { continue };
                offered = true;
                let partition = job.spec.partition.clone();
                if self.offer(search, admission, plan, rooms, &job) {
                    plan.turn = Some(partition);
                }
                if admission.closed(false) || rooms.total() == 0 {
                    break;
                }
            }
        }
        stopped |= admission.closed(false) || rooms.total() == 0;
        if stopped {
            (plan.look, plan.lap) = (look, None);
            return Ok(());
        }
        plan.look = deeper.or_else(|| match look {
            Some(look) => ends.into_iter().find(|(name, _)| *name > look.partition).map(|(_, end)| end),
            None => ends.into_values().next(),
        });
        if plan.look.is_some() {
            // These partitions to their end first.
            plan.turn = turn;
        } else {
            let start = plan.lap.take().or_else(|| turn.clone()).unwrap_or_default();
            let more = names.len() == PARTITIONS as usize;
            if let Some(last) = names.pop().filter(|last| more && !comes_round(&start, turn.as_deref().unwrap_or_default(), last)) {
                (plan.turn, plan.lap) = (Some(last), Some(start));
            }
        }
        plan.again |= plan.look.is_some() || plan.lap.is_some();
        Ok(())
    }

    /// Lets the throttler decide on the candidates of partitions that take turns, page by page. Whether it let the round see all.
    async fn throttle_lanes(
        &self,
        search: &Search<'_>,
        admission: &mut Admission<'_>,
        plan: &mut Plan,
        rooms: &mut Rooms<'_>,
        lanes: &mut [std::vec::IntoIter<Job>],
    ) -> Result<bool, Error> {
        let mut size = rooms.total().max(PAGE) as usize;
        let mut turns = Turns { lanes, next: 0 };
        loop {
            let page: Vec<Job> = turns.by_ref().take(size).collect();
            if page.is_empty() {
                return Ok(true);
            }
            if !plan.asks_throttler() {
                // It failed, and its owner lets the limits alone decide.
                for job in &page {
                    if self.offer(search, admission, plan, rooms, job) {
                        plan.turn = Some(job.spec.partition.clone());
                    }
                }
            } else if !self.throttle(search, admission, plan, rooms, page).await? {
                return Ok(false);
            }
            if admission.closed(false) || rooms.total() == 0 {
                return Ok(false);
            }
            size *= 2;
        }
    }
}

/// One from each lane in turn, until all are empty.
struct Turns<'a> {
    lanes: &'a mut [std::vec::IntoIter<Job>],
    next: usize,
}

impl Iterator for Turns<'_> {
    type Item = Job;
    fn next(&mut self) -> Option<Job> {
        (0..self.lanes.len()).find_map(|_| {
            let lane = self.next % self.lanes.len();
            self.next += 1;
            self.lanes[lane].next()
        })
    }
}

impl Plan {
    /// A closed queue holds everybody without looking at them one by one.
    fn held_if_closed(&mut self, search: &Search<'_>, admission: &Admission<'_>, critical: bool) {
        if critical || !admission.closed(false) {
            return;
        }
        let rule = if search.limits.paused { Rule::Paused } else { Rule::Concurrency };
        self.held.entry(rule).or_insert(1);
    }
}

/// Whether the way round from after `from` up to `to` passes `start`.
fn comes_round(start: &str, from: &str, to: &str) -> bool {
    if from < to { from < start && start <= to } else { start > from || start <= to }
}

fn position(job: &Job) -> Position {
    Position {
        partition: job.spec.partition.clone(),
        priority: job.spec.priority,
        run_at: job.life.run_at().unwrap_or_default(),
        id: job.id.clone(),
    }
}
