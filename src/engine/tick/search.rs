//! Which candidates a round looks at, and in what turn; each is offered to the [`Admission`], which decides.
//!
//! Critical jobs go first. Without partitions a round looks from the front and then goes on where the last one stopped; with
//! partitions they take turns, one candidate each.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use super::{Ask, Change, Claimed, Hand, Plan, Round, check::CLAIM_BY, grant, overdue};
use crate::{
    engine::{Catalog, Engine, Error, View, view::AUDIT},
    job::{Event, Job, JobId, QueueName, Token, TypeName, Version, life::Waiting},
    port::job_store::DueQuery,
    queue::{
        Admission, Candidate, Limits, Rule, Verdict,
        config::{Delivery, Release, SCAN_BOUND, Start, TypeConfig},
        order::{Order, Position},
    },
    time::Timestamp,
};

/// How long a push may take beyond its own timeout before its attempt is given up.
const PUSH_MARGIN: Duration = Duration::from_secs(5);
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
    fn is_granted(&self, job: &Job) -> bool {
        self.granted.as_ref().is_some_and(|(view, released)| {
            view.granted(&job.id) == Some(job.life.version) && released.get(&job.id) != Some(&job.life.version)
        })
    }
}

/// The rooms of a round's askers as they fill.
struct Rooms<'a> {
    asks: &'a [Ask],
    left: Vec<u32>,
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
    fn find(&self, job_type: &TypeName) -> Option<usize> {
        (0..self.asks.len()).find(|index| self.left[*index] > 0 && self.asks[*index].types.contains(job_type))
    }

    fn total(&self) -> u32 {
        self.left.iter().fold(0, |sum, left| sum.saturating_add(*left))
    }
}

impl Engine {
    /// Offers candidates to `admission`, critical ones first, until nobody takes more or nothing more fits.
    pub(super) async fn search(&self, search: &mut Search<'_>, admission: &mut Admission<'_>, plan: &mut Plan) -> Result<(), Error> {
        let mut rooms = Rooms { asks: &search.round.asks, left: search.round.asks.iter().map(|ask| ask.room).collect() };
        if rooms.total() == 0 {
            return Ok(());
        }
        plan.searched = true;
        plan.seen = plan.before.iter().map(|change| change.job.id.clone()).collect();
        self.scan(search, admission, plan, &mut rooms, true, None, None, SCAN_BOUND).await?;
        if search.limits.queue.partition_by.is_some() {
            return self.scan_partitions(search, admission, plan, &mut rooms).await;
        }
        let look = plan.look.take();
        let front = if look.is_some() { FRONT } else { SCAN_BOUND };
        let stopped = self.scan(search, admission, plan, &mut rooms, false, None, None, front).await?;
        plan.look = match (look, stopped) {
            // The front page took all there was, or nothing more can be taken.
            (_, None) => None,
            (None, Some(stopped)) => Some(stopped),
            (Some(look), Some(_)) => self.scan(search, admission, plan, &mut rooms, false, None, Some(look), SCAN_BOUND).await?,
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
            // As many as are wanted; more each time that what was read did not do.
            let limit = rooms.total().saturating_add(looked).min(bound - looked).clamp(1, SCAN_BOUND);
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
            let mut last = None;
            for job in page.jobs {
                looked += 1;
                last = Some(position(&job));
                self.offer(search, admission, plan, rooms, &job);
                if admission.closed(critical) {
                    return Ok(None);
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
        let each = (SCAN_BOUND / names.len() as u32).min(rooms.total().saturating_add(8)).max(1);
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
        let mut offered = true;
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
        if admission.closed(false) || rooms.total() == 0 {
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

    /// Offers one job; whether it was admitted.
    fn offer(&self, search: &Search<'_>, admission: &mut Admission<'_>, plan: &mut Plan, rooms: &mut Rooms<'_>, job: &Job) -> bool {
        let now = search.now;
        if !plan.seen.insert(job.id.clone()) || search.is_granted(job) || self.plain.lock().contains_key(&job.id) {
            return false;
        }
        if let Some((view, _)) = &search.granted
            && let Some(older) = view.granted(&job.id).filter(|version| *version < job.life.version)
        {
            // This very read proves that the job left the version it was granted at. What it took is free once that is committed.
            let release = (job.id.clone(), older);
            if !plan.delta.released.contains(&release) {
                plan.delta.released.push(release);
            }
        }
        let Some(ask) = rooms.find(&job.spec.job_type) else { return false };
        if let Some(ended) = overdue(job, now) {
            plan.ended.push(job.id.clone());
            plan.before.push(Change { was: job.life.revision, job: ended });
            return false;
        }
        match admission.offer(Candidate::of(&job.spec)) {
            Verdict::Hold(hold) => {
                plan.wake(hold.earliest_at);
                *plan.held.entry(hold.rule).or_default() += 1;
                false
            }
            Verdict::Move(run_at) => {
                let event = Event::Move { version: job.life.version, run_at, waiting: Waiting::Window };
                if let Ok(moved) = job.apply(event, now) {
                    plan.before.push(Change { was: job.life.revision, job: moved });
                }
                plan.wake(Some(run_at));
                false
            }
            Verdict::Run => {
                self.admit(search, plan, rooms, ask, job);
                true
            }
        }
    }

    /// Grants and claims (or sends) an admitted job.
    fn admit(&self, search: &Search<'_>, plan: &mut Plan, rooms: &mut Rooms<'_>, ask: usize, job: &Job) {
        let now = search.now;
        let asker = &rooms.asks[ask];
        let granted = search.granted.is_some();
        if asker.hand == Hand::Send && granted {
            plan.delta.granted.push(grant(job, now));
            plan.delta.sent = false;
            plan.delta.check_at = earlier(plan.delta.check_at, now + CLAIM_BY);
            plan.wake(Some(now + CLAIM_BY));
            rooms.left[ask] -= 1;
            return;
        }
        let config = search.catalog.types.get(&job.spec.job_type).map(|item| &item.config);
        let push = config.is_some_and(|config| self.push_target(config).is_some());
        let lease = lease(config, push, asker, job);
        let event = Event::Claim {
            version: job.life.version,
            token: Token(self.ports.entropy.bits()),
            worker: asker.worker.clone(),
            lease,
            granted,
            decided_at: now,
        };
        let was = job.life.revision;
        let Ok(claimed) = job.apply(event, now) else { return };
        if granted {
            plan.delta.granted.push(grant(job, now));
            let flight = self.ports.store.flight();
            // Without atomic transactions the grant may be written and the claim not.
            let claim_by = if flight.is_zero() { AUDIT } else { CLAIM_BY.max(flight) };
            let until = claimed.life.running().map_or(now, |run| run.lease_until);
            plan.delta.check_at = earlier(plan.delta.check_at, until.min(now + claim_by));
        }
        let plain = !granted && push && config.is_some_and(is_plain);
        let change = Change { job: claimed.clone(), was };
        if plain {
            plan.plain.push(change);
        } else {
            plan.claims.push(change);
        }
        plan.claimed.push(Claimed { ask, run_at: job.life.run_at().unwrap_or(now), job: claimed });
        rooms.left[ask] -= 1;
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

/// The earlier of two instants, of which the first may not be set yet.
fn earlier(at: Timestamp, other: Timestamp) -> Timestamp {
    if at == Timestamp::EPOCH { other } else { at.min(other) }
}

fn position(job: &Job) -> Position {
    Position {
        partition: job.spec.partition.clone(),
        priority: job.spec.priority,
        run_at: job.life.run_at().unwrap_or_default(),
        id: job.id.clone(),
    }
}

/// How long a claimed job's worker may be silent.
fn lease(config: Option<&TypeConfig>, push: bool, ask: &Ask, job: &Job) -> Duration {
    let Some(config) = config else { return job.spec.timeout.duration() };
    if config.release == Release::OnReport {
        return job.spec.timeout.duration();
    }
    match (push, ask.lease) {
        (_, Some(lease)) => lease.duration(),
        (true, None) => config.response_timeout_seconds.duration() + PUSH_MARGIN,
        (false, None) => config.lease_seconds.duration(),
    }
}

/// How long the deliverer of a claimed push may be silent.
pub(in crate::engine) fn push_lease(catalog: &Catalog, job: &Job) -> Duration {
    let config = catalog.types.get(&job.spec.job_type).map(|item| &item.config);
    let ask = Ask { types: Vec::new(), room: 0, worker: None, lease: None, hand: Hand::Claim };
    lease(config, true, &ask, job)
}

/// Whether jobs of this push type are handed on without a claim.
fn is_plain(config: &TypeConfig) -> bool {
    config.start == Start::Plain && config.delivery == Delivery::AtLeastOnce
}
