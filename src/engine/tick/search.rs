//! Which candidates a round looks at, and in what turn; each is offered to the [`Admission`], which decides, or a
//! page of them to the queue's throttler.
//!
//! Critical jobs go first. Without partitions a round looks from the front and then goes on where the last one stopped; with
//! partitions they take turns, one candidate each.

use std::{
    collections::{BTreeMap, HashMap},
    ops::ControlFlow,
    time::Duration,
};

use super::{ByteBudget, Demand, TickInput, TickPlan, throttle::PAGE};
use crate::{Catalog, Engine, Error, View};
use tidegate_core::{
    job::{Job, JobId, QueueName, TypeName, Version},
    port::{Work, job_store::DueQuery},
    queue::{
        Admission, AdmissionDecision, Candidate, Limits, Rule,
        config::SCAN_BOUND,
        ledger::Bucket,
        order::{Order, Position},
    },
    time::Timestamp,
};

/// Candidates that every round looks at from the front of the order, wherever the scan stands.
const FRONT: u32 = 100;
/// Most partitions that one round visits.
const PARTITIONS: u32 = 64;

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

/// The rooms of a round's askers as they fill.
#[derive(Clone)]
pub(super) struct Capacities<'a> {
    pub(super) demands: &'a [Demand],
    /// How many jobs each asker still takes for itself.
    jobs: Vec<u32>,
    /// How many more each worker takes that has a capacity, in all its asks.
    workers: BTreeMap<&'a str, u32>,
    /// What all of them together take.
    byte_budget: Option<ByteBudget>,
    /// Whether somebody was too large for the space that is left: nobody is taken any more, so that the smaller do not overtake him.
    pub(super) full: bool,
}

impl<'a> Capacities<'a> {
    pub(super) fn of(round: &'a TickInput) -> Self {
        let workers = round.workers.iter().map(|(name, free)| (name.as_str(), *free)).collect();
        Self {
            demands: &round.demands,
            jobs: round.demands.iter().map(|ask| ask.capacity).collect(),
            workers,
            byte_budget: round.byte_budget,
            full: false,
        }
    }

    /// The types somebody still takes.
    fn types(&self) -> Vec<TypeName> {
        let asks = self.demands.iter().enumerate().filter(|(index, _)| self.takes(*index));
        let mut types: Vec<TypeName> =
            asks.flat_map(|(_, ask)| ask.types.iter().cloned()).collect();
        types.sort_unstable();
        types.dedup();
        types
    }

    /// Whether the asker `ask` takes more.
    fn takes(&self, ask: usize) -> bool {
        let worker = self.demands[ask].worker.as_deref().and_then(|name| self.workers.get(name));
        !self.full && self.jobs[ask] > 0 && worker != Some(&0)
    }

    /// Who takes `job`, if there is space for it.
    pub(super) fn find(&self, job: &Job) -> Option<usize> {
        (0..self.demands.len())
            .find(|ask| self.takes(*ask) && self.demands[*ask].types.contains(&job.spec.job_type))
    }

    /// How many are still taken, if they are small.
    pub(super) fn total(&self) -> u32 {
        let mut workers = self.workers.clone();
        self.demands.iter().zip(&self.jobs).fold(0, |sum: u32, (ask, jobs)| {
            let mut taken = *jobs;
            if let Some(free) = ask.worker.as_deref().and_then(|name| workers.get_mut(name)) {
                taken = taken.min(*free);
                *free -= taken;
            }
            sum.saturating_add(taken)
        })
    }

    /// What `job` takes of the space. A job is written out for that, so it is asked once.
    pub(super) fn bytes(&self, job: &Job) -> usize {
        self.byte_budget.map_or(0, |space| space.bytes(job))
    }

    /// The verdict of `admission` on a candidate that takes so much space. None if it would run and is too large for what is left.
    pub(super) fn try_admit(
        &mut self,
        admission: &mut Admission<'_>,
        candidate: Candidate<'_>,
        bytes: usize,
    ) -> Option<AdmissionDecision> {
        if self.byte_budget.is_none_or(|space| bytes <= space.left) {
            return Some(admission.try_admit(candidate));
        }
        let held =
            Some(admission.check(candidate)).filter(|verdict| *verdict != AdmissionDecision::Run);
        self.full |= held.is_none();
        held
    }

    /// Gives a job that takes so much space to the asker `ask`.
    pub(super) fn take(&mut self, ask: usize, bytes: usize) {
        self.jobs[ask] -= 1;
        if let Some(free) =
            self.demands[ask].worker.as_deref().and_then(|name| self.workers.get_mut(name))
        {
            *free -= 1;
        }
        if let Some(space) = &mut self.byte_budget {
            space.left = space.left.saturating_sub(bytes);
        }
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
        self.tell_ended().await?;
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
    fn held_if_closed(&mut self, critical: bool) {
        if critical || !self.plan.held.is_empty() || !self.admission.closed(false) {
            return;
        }
        let rule = if self.limits.paused { Rule::Paused } else { Rule::Concurrency };
        self.plan.held.entry(rule).or_insert(1);
    }

    /// Lets partitions take turns, from the one after the last that was served.
    ///
    /// While nothing stops it, the search goes on with the next tick: first deeper into each partition of which there
    /// is more (`look`), then to the partitions that one round does not visit, until it has come round (`lap`).
    async fn scan_partitions(&mut self) -> Result<(), Error> {
        let types = self.capacities.types();
        if types.is_empty() || self.admission.closed(false) {
            self.held_if_closed(false);
            return Ok(());
        }
        if self.plan.throttler_holds_all() {
            return Ok(());
        }
        let (turn, look) = (self.plan.last_partition.clone(), self.plan.scan_cursor.take());
        let store = &self.engine.ports.store;
        let mut names = self.engine.partitions_in_turn(self.queue, &types, turn.as_deref()).await?;
        if names.is_empty() {
            return Ok(());
        }
        let throttled = self.plan.asks_throttler();
        let wanted = if throttled {
            self.capacities.total().max(PAGE)
        } else {
            self.capacities.total().saturating_add(8)
        };
        let each = (SCAN_BOUND / names.len() as u32).min(wanted).max(1);
        let question = |partition: &str, after: Option<Position>| DueQuery {
            queue: self.queue.clone(),
            critical: false,
            types: types.clone(),
            partition: Some(partition.to_owned()),
            order: Order::of(&self.limits.queue),
            until: self.now,
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
            self.plan.wake(page.next_due);
            match page.jobs.last().filter(|_| page.more).map(position) {
                Some(end) if index < names.len() => drop(ends.insert(end.partition.clone(), end)),
                end => deeper = end,
            }
            lanes.push(page.jobs.into_iter());
        }
        let mut offered = !throttled;
        let mut stopped = false;
        if throttled {
            match self.throttle_lanes(&mut lanes, look.as_ref()).await? {
                Some(mut left_off) => {
                    deeper =
                        look.as_ref().and_then(|look| left_off.remove(&look.partition)).or(deeper);
                    ends.extend(left_off);
                }
                None => stopped = true,
            }
        }
        while offered && !self.admission.closed(false) && self.capacities.total() > 0 {
            offered = false;
            for lane in &mut lanes {
                let Some(job) = lane.next() else { continue };
                offered = true;
                let partition = job.spec.partition.clone();
                if self.try_admit(&job) {
                    self.plan.last_partition = Some(partition);
                }
                if self.admission.closed(false) || self.capacities.total() == 0 {
                    break;
                }
            }
        }
        stopped |= self.admission.closed(false) || self.capacities.types().is_empty();
        if stopped {
            (self.plan.scan_cursor, self.plan.lap_start) = (look, None);
            return Ok(());
        }
        // Where each value of what makes partitions has a limit to itself, one that is full holds all of its partition.
        let by = self.limits.queue.partition_by.as_deref().unwrap_or_default();
        let is_open = |end: &Position| !self.admission.closed_to_value(by, &end.partition);
        self.plan.scan_cursor = deeper.filter(is_open).or_else(|| match look {
            Some(look) => {
                ends.into_values().find(|end| end.partition > look.partition && is_open(end))
            }
            None => ends.into_values().find(is_open),
        });
        if self.plan.scan_cursor.is_some() {
            // These partitions to their end first.
            self.plan.last_partition = turn;
        } else {
            let start = self.plan.lap_start.take().or_else(|| turn.clone()).unwrap_or_default();
            let more = names.len() == PARTITIONS as usize;
            if let Some(last) = names.pop().filter(|last| {
                more && !comes_round(&start, turn.as_deref().unwrap_or_default(), last)
            }) {
                (self.plan.last_partition, self.plan.lap_start) = (Some(last), Some(start));
            }
        }
        self.plan.again |= self.plan.scan_cursor.is_some() || self.plan.lap_start.is_some();
        Ok(())
    }

    /// Lets the throttler decide on the candidates of partitions that take turns, page by page; when that has taken its time, on one page
    /// more of those from `look` on, so that the search gets on. Where it left off in each partition of which it did not ask about
    /// everybody; none if nobody further is to be looked at.
    async fn throttle_lanes(
        &mut self,
        lanes: &mut [std::vec::IntoIter<Job>],
        look: Option<&Position>,
    ) -> Result<Option<BTreeMap<String, Position>>, Error> {
        let order = Order::of(&self.limits.queue);
        let first = self.capacities.total().max(PAGE) as usize;
        let mut size = first;
        let mut line = Turns::of(lanes).collect::<Vec<Job>>().into_iter();
        let places: Vec<Position> = line.as_slice().iter().map(position).collect();
        let mut late = false;
        while !late && line.len() > 0 {
            match self.throttle(&mut line, size).await? {
                ControlFlow::Break(None) => return Ok(None),
                ControlFlow::Break(Some(_)) => late = true,
                ControlFlow::Continue(())
                    if self.admission.closed(false) || self.capacities.total() == 0 =>
                {
                    return Ok(None);
                }
                ControlFlow::Continue(()) => size *= 2,
            }
        }
        let (asked, left) = places.split_at(places.len() - line.len());
        let mut reached: HashMap<&str, &Position> =
            look.iter().map(|look| (look.partition.as_str(), *look)).collect();
        pass(&mut reached, order, asked);
        // One partition after the other, as the search goes on: many may have a few left each.
        let behind = |job: &Job, look: &Position| {
            job.spec.partition > look.partition || is_behind(&position(job), look, order)
        };
        let mut more: Vec<Job> =
            look.map(|look| line.filter(|job| behind(job, look)).collect()).unwrap_or_default();
        more.sort_by(|one, other| one.spec.partition.cmp(&other.spec.partition));
        more.truncate(first);
        let more_places: Vec<Position> = more.iter().map(position).collect();
        let mut more = more.into_iter();
        if more.len() > 0 && self.throttle(&mut more, first).await? == ControlFlow::Break(None) {
            return Ok(None);
        }
        pass(&mut reached, order, &more_places[..more_places.len() - more.len()]);
        let mut left_off = BTreeMap::new();
        for next in left {
            match reached.get(next.partition.as_str()) {
                Some(last) if is_behind(next, last, order) => {
                    drop(left_off.insert(next.partition.clone(), (*last).clone()))
                }
                Some(_) => {}
                // Nobody of it was asked about. Nobody is due a millisecond before the first.
                None => {
                    let before = || Position {
                        run_at: next.run_at - Duration::from_millis(1),
                        ..next.clone()
                    };
                    left_off.entry(next.partition.clone()).or_insert_with(before);
                }
            }
        }
        Ok(Some(left_off))
    }
}

impl Engine {
    /// The partitions in which jobs of `types` are scheduled, from the one after `turn` on and round: those that one round visits.
    pub(crate) async fn partitions_in_turn(
        &self,
        queue: &QueueName,
        types: &[TypeName],
        turn: Option<&str>,
    ) -> Result<Vec<String>, Error> {
        let store = &self.ports.store;
        let mut names = store.partitions(queue, types, turn, PARTITIONS).await?;
        if names.len() < PARTITIONS as usize && turn.is_some() {
            let front = store.partitions(queue, types, None, PARTITIONS).await?;
            let rest = front.into_iter().take_while(|name| Some(name.as_str()) <= turn);
            names.extend(rest.take(PARTITIONS as usize - names.len()).collect::<Vec<_>>());
        }
        Ok(names)
    }
}

/// One from each lane in turn, until all are empty.
pub(crate) struct Turns<'a> {
    lanes: &'a mut [std::vec::IntoIter<Job>],
    next: usize,
}

impl<'a> Turns<'a> {
    pub(crate) fn of(lanes: &'a mut [std::vec::IntoIter<Job>]) -> Self {
        Self { lanes, next: 0 }
    }
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

/// Takes note of who was asked about: `reached` has the last of each partition.
fn pass<'a>(reached: &mut HashMap<&'a str, &'a Position>, order: Order, asked: &'a [Position]) {
    for place in asked {
        let last = reached.entry(&place.partition).or_insert(place);
        if is_behind(place, last, order) {
            *last = place;
        }
    }
}

/// Whether `place` comes after `other`, which is in the same partition.
fn is_behind(place: &Position, other: &Position, order: Order) -> bool {
    let key = |place: &Position| order.key(place.priority, place.run_at, &place.id);
    place.partition == other.partition && key(place) > key(other)
}

/// Whether the way round from after `from` up to `to` passes `start`.
fn comes_round(start: &str, from: &str, to: &str) -> bool {
    if from < to { from < start && start <= to } else { start > from || start <= to }
}

pub(super) fn position(job: &Job) -> Position {
    Position {
        partition: job.spec.partition.clone(),
        priority: job.spec.priority,
        run_at: job.life.run_at().unwrap_or_default(),
        id: job.id.clone(),
    }
}
