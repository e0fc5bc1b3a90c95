//! `tick`: one round of a queue: settle reports, release, check, admit, claim, in one commit.
//!
//! ```text
//!   reports ─▶ settle ─┐
//!   head ─▶ release, check due batches ─▶ Admission over candidates ─▶ commit ─▶ claimed jobs
//!             ▲                                                          │
//!             └────────── refused: somebody else wrote; look again ◀─────┘
//! ```
//!
//! The one thing to know: **nothing is changed before the commit**. A round is worked out on the side
//! from the view, the jobs and the configuration as they were seen; each write says what it was
//! worked out from, so a round that saw something old is refused and worked out anew. On a queue
//! without a head every change is a transaction of its own.
//!
//! The order of the writes makes any prefix safe: settled jobs, then batch, then head, then claims.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use super::{
    Catalog, Engine, Error, View,
    report::Settled,
    request::Report,
    view::{AUDIT, Delta, Prepared},
};
use crate::{
    job::{
        Event, Job, JobId, QueueName, Revision, State, Token, TypeName, Version,
        life::{Next, Waiting},
    },
    port::{
        Committed, Txn, Work, Write,
        job_store::{DueQuery, Expect, ItemKind, Standing},
    },
    queue::{
        Admission, Candidate, Grant, Head, Limits, Rule, Verdict,
        config::{Delivery, Release, SCAN_BOUND, Start, TypeConfig},
        head::BatchId,
        order::{Order, Position},
    },
    time::{Seconds, Timestamp},
};

/// How long a push may take beyond its own timeout before its attempt is given up.
const PUSH_MARGIN: Duration = Duration::from_secs(5);
/// How long handed-on work may stay unclaimed before it is sent again.
const CLAIM_BY: Duration = Duration::from_secs(6);
/// The wait before work is handed on again that the work queue did not take.
const RESEND: Duration = Duration::from_secs(1);
/// How often unclaimed work is sent before its grant is revoked.
const SENDS: u8 = 3;
/// How often a round is worked out anew when somebody else wrote.
const TRIES: usize = 8;
/// Candidates that every round looks at from the front of the order, wherever the scan stands.
const FRONT: u32 = 100;
/// Most partitions that one round visits.
const PARTITIONS: u32 = 64;
/// Of most this many rules the head remembers since when they hold somebody: a rule may have thousands of values.
const HELD: usize = 24;
/// Most grants that one round checks.
const CHECKS: usize = 2000;

/// Somebody who takes jobs of these types.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The types.
    pub types: Vec<TypeName>,
    /// How many.
    pub room: u32,
    /// How it names itself.
    pub worker: Option<String>,
    /// How long its leases last; absent: as the type says.
    pub lease: Option<Seconds>,
    /// What happens to what it gets.
    pub hand: Hand,
}

/// What happens to an admitted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hand {
    /// It is claimed in the same commit and handed to the asker.
    Claim,
    /// It is sent through the work queue, to be claimed by whoever gets it.
    Send,
}

/// What a round starts from.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// What became of attempts.
    pub reports: Vec<Report>,
    /// Jobs that left the version they were granted at.
    pub released: Vec<(JobId, Version)>,
    /// Who takes jobs.
    pub asks: Vec<Ask>,
}

/// What one engine remembers of a queue between rounds. Losing it costs reads, nothing else.
#[derive(Debug, Default)]
pub struct Memory {
    view: Option<View>,
    /// The catalog under which the queue was seen to have no head: without a change of it none appears.
    headless: Option<u64>,
    turn: Option<String>,
    lap: Option<String>,
    look: Option<Position>,
}

impl Memory {
    /// The view of the queue's head, if there is one and it was read.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }
}

/// A job that was handed to an asker.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Which asker: an index into [`Round::asks`].
    pub ask: usize,
    /// The job, running.
    pub job: Job,
    /// When it was due.
    pub run_at: Timestamp,
}

/// What a round did.
#[derive(Debug, Default)]
pub struct Ticked {
    /// One answer per report, in order: the job as it stands now.
    pub reports: Vec<Result<Job, Error>>,
    /// The jobs that were claimed.
    pub claimed: Vec<Claimed>,
    /// How many jobs were handed to the work queue.
    pub sent: usize,
    /// Jobs that ended in this round without a report.
    pub ended: Vec<Job>,
    /// How many candidates each rule held.
    pub held: BTreeMap<Rule, u64>,
    /// When the queue is to be looked at next even if nothing happens.
    pub next_at: Option<Timestamp>,
    /// Whether the scan goes on: tick again at once.
    pub again: bool,
}

/// A job's change in a round.
struct Change {
    job: Job,
    was: Revision,
}

/// A round, worked out and not yet committed.
#[derive(Default)]
struct Plan {
    /// Settled, fenced, revoked and moved jobs: written before the head.
    before: Vec<Change>,
    /// Claims: written after it.
    claims: Vec<Change>,
    /// Claims that are not written until their result comes.
    plain: Vec<Change>,
    claimed: Vec<Claimed>,
    /// Jobs that this round has dealt with. Its pages may overlap, and a job is offered once.
    seen: HashSet<JobId>,
    send: Vec<Work>,
    sent: usize,
    delta: Delta,
    ended: Vec<JobId>,
    held: BTreeMap<Rule, u64>,
    /// Whether somebody took jobs, so that what was held is known.
    searched: bool,
    next_at: Option<Timestamp>,
    again: bool,
    look: Option<Position>,
    turn: Option<String>,
    lap: Option<String>,
    buckets: BTreeMap<(String, String), crate::queue::head::Bucket>,
}

impl Plan {
    fn wake(&mut self, at: Option<Timestamp>) {
        self.next_at = self.next_at.into_iter().chain(at).min();
    }
}

/// The jobs of a round as they are known, with what this round makes of them.
struct Known {
    jobs: HashMap<JobId, Option<Job>>,
}

impl Engine {
    /// One round of `queue`.
    ///
    /// Losing the race for the head is no error: the round is worked out anew from what stands.
    ///
    /// # Errors
    ///
    /// The store's. Nothing is known then of what was committed; `memory` is cleared, and the caller
    /// answers its reports with the error (their repeat is harmless) and ticks again.
    pub async fn tick(&self, queue: &QueueName, memory: &mut Memory, round: Round) -> Result<Ticked, Error> {
        let attempts: Vec<(JobId, u16)> = round.reports.iter().map(|report| (report.id.clone(), report.attempt)).collect();
        let recalled = if attempts.is_empty() { Vec::new() } else { self.recall_attempts(&attempts).await? };
        let mut known = Known { jobs: attempts.into_iter().map(|(id, _)| id).zip(recalled).collect() };
        for attempt in 0..TRIES {
            let catalog = self.catalog().await?;
            let limits = catalog.limits(queue);
            if memory.view.is_none() && memory.headless != Some(catalog.version) {
                memory.view = self.view(queue, &limits).await?;
                memory.headless = memory.view.is_none().then_some(catalog.version);
            }
            let done = if memory.view.is_some() {
                self.tick_head(queue, memory, &round, &mut known, &catalog, &limits).await
            } else {
                self.tick_free(queue, memory, &round, &mut known, &catalog, &limits).await
            };
            match done {
                Ok(Some(ticked)) => return Ok(ticked),
                Ok(None) => tracing::debug!(%queue, attempt, "the round lost a race"),
                Err(error) => {
                    memory.view = None;
                    self.forget(&round);
                    return Err(error);
                }
            }
        }
        // Reports must not be lost to a busy head: settle them without admitting anything.
        let rest = Round { reports: round.reports.clone(), ..Round::default() };
        let catalog = self.catalog().await?;
        let limits = catalog.limits(queue);
        let mut ticked = self.tick_free(queue, &mut Memory::default(), &rest, &mut known, &catalog, &limits).await?.unwrap_or_default();
        ticked.again = true;
        Ok(ticked)
    }

    fn forget(&self, round: &Round) {
        let mut running = self.running.lock();
        for report in &round.reports {
            running.remove(&report.id);
        }
    }

    /// The head of `queue` as it stands; a new one if the queue needs one and has none.
    async fn view(&self, queue: &QueueName, limits: &Limits) -> Result<Option<View>, Error> {
        let now = self.now();
        if let Some((head, batches)) = self.ports.store.head(queue).await? {
            self.collect(queue, &head).await?;
            return Ok(Some(View::new(head, batches)));
        }
        if !limits.any() {
            return Ok(None);
        }
        let flight = self.ports.store.flight();
        let head = Head { version: 1, config_version: limits.version, time: now, settling_until: Some(now + flight), ..Head::default() };
        let write = Write::SetHead { queue: queue.clone(), head: head.clone(), was: Expect::Absent };
        match self.ports.store.commit(vec![vec![write]]).await?.pop() {
            Some(Committed::All) => Ok(Some(View::new(head, Vec::new()))),
            _ => Ok(self.ports.store.head(queue).await?.map(|(head, batches)| View::new(head, batches))),
        }
    }

    /// Removes the batches of ticks that died between writing one and naming it. A tick that still means to name
    /// one wrote it for a later head than this, or will be refused.
    async fn collect(&self, queue: &QueueName, head: &Head) -> Result<(), Error> {
        if self.ports.store.flight().is_zero() {
            return Ok(());
        }
        let stored = self.ports.store.batches(queue).await?;
        let named = |id: &BatchId| head.batches.iter().any(|reference| reference.id == *id);
        let garbage = stored.into_iter().filter(|(id, for_head)| *for_head < head.version && !named(id));
        let txns: Vec<Txn> = garbage.map(|(id, _)| vec![Write::RemoveBatch(queue.clone(), id)]).collect();
        if !txns.is_empty() {
            self.ports.store.commit(txns).await?;
        }
        Ok(())
    }

    /// A round of a queue without a head: every change on its own.
    async fn tick_free(
        &self,
        queue: &QueueName,
        memory: &mut Memory,
        round: &Round,
        known: &mut Known,
        catalog: &Catalog,
        limits: &Limits,
    ) -> Result<Option<Ticked>, Error> {
        let now = self.now();
        let mut plan = Plan { look: memory.look.take(), turn: memory.turn.clone(), lap: memory.lap.take(), ..Plan::default() };
        let answers = self.settle_all(round, known, catalog, &mut plan, now);
        let free = Limits {
            queue: crate::queue::QueueConfig { concurrency: None, constraints: Vec::new(), ..limits.queue.clone() },
            ..Limits::default()
        };
        let mut admission = Admission::new(&free, crate::queue::Usage::default(), BTreeMap::new(), now);
        let mut search = Search { queue, round, catalog, limits, now, granted: None };
        self.search(&mut search, &mut admission, &mut plan).await?;

        let require = Write::RequireItem { kind: ItemKind::Queue, name: queue.to_string(), version: limits.version };
        let before = plan.before.len();
        let mut txns: Vec<Txn> = plan.before.iter().map(|change| self.change(change.was, &change.job, false, now)).collect();
        txns.extend(
            plan.claims.iter().map(|claim| vec![require.clone(), Write::SetJob { job: claim.job.clone(), was: claim.was, all: false }]),
        );
        let committed = if txns.is_empty() { Vec::new() } else { self.ports.store.commit(txns).await? };
        let mut lost = HashSet::new();
        let mut stale = false;
        for (index, outcome) in committed.into_iter().enumerate() {
            let Committed::Refused { standing, .. } = outcome else { continue };
            if index >= before {
                let job = &plan.claims[index - before].job;
                // A refused claim that finds its own token has succeeded: its first answer was lost.
                if !matches!(&standing, Standing::Job(there) if same_claim(there, job)) {
                    lost.insert(job.id.clone());
                }
                continue;
            }
            let id = &plan.before[index].job.id;
            stale = true;
            known.jobs.insert(id.clone(), standing_job(standing));
            self.running.lock().remove(id);
        }
        self.adopt_plain(&plan);
        for change in plan.before.iter().chain(&plan.claims).filter(|change| !lost.contains(&change.job.id)) {
            self.remember(&change.job);
        }
        plan.claimed.retain(|claimed| !lost.contains(&claimed.job.id));
        memory.turn.clone_from(&plan.turn);
        memory.lap.clone_from(&plan.lap);
        memory.look.clone_from(&plan.look);
        if stale {
            return self.resettle(round, known, catalog, plan, answers).await.map(Some);
        }
        Ok(Some(ticked(plan, answers)))
    }

    /// Settles again, one by one, the reports whose jobs had changed since they were seen. The claims stand.
    async fn resettle(
        &self,
        round: &Round,
        known: &mut Known,
        catalog: &Catalog,
        mut plan: Plan,
        mut answers: Vec<Result<Job, Error>>,
    ) -> Result<Ticked, Error> {
        for (index, report) in round.reports.iter().enumerate() {
            for _ in 0..TRIES {
                let now = self.now();
                let Some(Some(job)) = known.jobs.get(&report.id).cloned() else {
                    answers[index] = Err(Error::no_job(&report.id));
                    break;
                };
                // Somebody else's write may have led to the same revision: only the same life is ours.
                if answers[index].as_ref().is_ok_and(|answered| answered.life == job.life) {
                    break;
                }
                match self.settle(&job, report, delivery(catalog, &job), now) {
                    Err(error) => {
                        answers[index] = Err(error);
                        break;
                    }
                    Ok(Settled::Repeated) => {
                        answers[index] = Ok(job);
                        break;
                    }
                    Ok(Settled::Changed(settled)) => {
                        let writes = self.change(job.life.revision, &settled, false, now);
                        match self.ports.store.commit(vec![writes]).await?.pop() {
                            Some(Committed::All) => {
                                self.remember(&settled);
                                plan.wake(settled.life.run_at());
                                known.jobs.insert(report.id.clone(), Some((*settled).clone()));
                                answers[index] = Ok(*settled);
                                break;
                            }
                            Some(Committed::Refused { standing, .. }) => {
                                known.jobs.insert(report.id.clone(), standing_job(standing));
                            }
                            None => break,
                        }
                    }
                }
            }
        }
        Ok(ticked(plan, answers))
    }

    /// A round of a queue with a head: one transaction. `None` if it was refused.
    async fn tick_head(
        &self,
        queue: &QueueName,
        memory: &mut Memory,
        round: &Round,
        known: &mut Known,
        catalog: &Catalog,
        limits: &Arc<Limits>,
    ) -> Result<Option<Ticked>, Error> {
        let view = memory.view.as_mut().expect("the caller read it");
        let now = self.now().max(view.head.time);
        // Version 0: nobody configures the queue (any more), which the commit requires to be so still.
        if limits.version > 0 && limits.version < view.head.config_version {
            // Somebody else has seen a newer configuration: this snapshot is old.
            self.catalog.store(Arc::default());
            memory.view = None;
            return Ok(None);
        }
        let (look, turn, lap) = (view.head.look.clone(), view.head.turn.clone(), view.head.lap.clone());
        let mut plan = Plan { look, turn, lap, ..Plan::default() };
        plan.delta.sent = true;
        let answers = self.settle_all(round, known, catalog, &mut plan, now);
        for change in &plan.before {
            if let Some(version) = view.granted(&change.job.id).filter(|version| *version < change.job.life.version) {
                plan.delta.released.push((change.job.id.clone(), version));
            }
        }
        plan.delta.released.extend(round.released.iter().filter(|(job, version)| view.granted(job) == Some(*version)).cloned());
        self.check(view, catalog, &mut plan, now).await?;

        let mut head = view.head.clone();
        if let Some(until) = head.settling_until {
            if now < until {
                plan.wake(Some(until));
            } else {
                self.adopt(queue, view, &mut plan, now).await?;
                head.settling_until = None;
            }
        }
        let mut usage = view.usage(limits).clone();
        let released: HashSet<&JobId> = plan.delta.released.iter().map(|(job, _)| job).collect();
        for grant in view.live().filter(|grant| released.contains(&grant.job)) {
            usage.remove(limits, grant);
        }
        for grant in &plan.delta.granted {
            usage.add(limits, grant);
        }
        let mut admission = Admission::new(limits, usage, head.buckets.clone(), now);
        if head.settling_until.is_none() {
            let gone: HashMap<JobId, Version> = plan.delta.released.iter().cloned().collect();
            let mut search = Search { queue, round, catalog, limits, now, granted: Some((view, gone)) };
            self.search(&mut search, &mut admission, &mut plan).await?;
        }
        plan.buckets = admission.finish().1;
        self.finish_head(queue, memory, head, plan, known, limits, answers, now).await
    }

    /// Commits a round of a queue with a head.
    #[allow(clippy::too_many_arguments, reason = "the last step of one function, split for its length")]
    async fn finish_head(
        &self,
        queue: &QueueName,
        memory: &mut Memory,
        mut head: Head,
        mut plan: Plan,
        known: &mut Known,
        limits: &Arc<Limits>,
        answers: Vec<Result<Job, Error>>,
        now: Timestamp,
    ) -> Result<Option<Ticked>, Error> {
        let view = memory.view.as_mut().expect("the caller read it");
        // What nobody looked at is held as before.
        let since: BTreeMap<Rule, Timestamp> = if plan.searched {
            let (old, new): (Vec<&Rule>, Vec<&Rule>) = plan.held.keys().partition(|rule| head.held.contains_key(*rule));
            let rules = old.into_iter().chain(new).take(HELD);
            rules.map(|rule| (rule.clone(), head.held.get(rule).copied().unwrap_or(now))).collect()
        } else {
            head.held.clone()
        };
        let changes_head = !plan.delta.released.is_empty()
            || !plan.delta.granted.is_empty()
            || !plan.delta.checked.is_empty()
            || head.settling_until != view.head.settling_until
            || (&plan.look, &plan.turn, &plan.lap) != (&view.head.look, &view.head.turn, &view.head.lap)
            || limits.version > view.head.config_version;
        let mut writes: Txn = Vec::new();
        for change in &plan.before {
            writes.extend(self.change(change.was, &change.job, false, now));
        }
        let mut claims_from = usize::MAX;
        let mut prepared = None;
        if changes_head {
            head.version += 1;
            head.nonce = self.ports.entropy.bits() as u64;
            head.time = now;
            head.config_version = head.config_version.max(limits.version);
            head.look.clone_from(&plan.look);
            head.turn.clone_from(&plan.turn);
            head.lap.clone_from(&plan.lap);
            head.buckets = std::mem::take(&mut plan.buckets);
            head.held = since;
            let ready = view.prepare(head, &plan.delta);
            let require = Write::RequireItem { kind: ItemKind::Queue, name: queue.to_string(), version: limits.version };
            writes.push(require);
            writes.extend(ready.add.iter().map(|batch| Write::AddBatch(queue.clone(), batch.clone())));
            writes.push(Write::SetHead { queue: queue.clone(), head: ready.head.clone(), was: Expect::Is(view.head.version) });
            claims_from = writes.len();
            writes.extend(plan.claims.iter().map(|claim| Write::SetJob { job: claim.job.clone(), was: claim.was, all: false }));
            writes.extend(ready.remove.iter().map(|id| Write::RemoveBatch(queue.clone(), *id)));
            prepared = Some(ready);
        } else {
            view.head.held = since;
        }
        if !writes.is_empty() {
            match self.ports.store.commit(vec![writes.clone()]).await?.pop() {
                Some(Committed::All) => {}
                Some(Committed::Refused { step, .. }) if step >= claims_from && !self.ports.store.flight().is_zero() => {
                    // Without atomic transactions all that comes before is written: the round stands, but for the claims
                    // from here on. Their grants are taken back when their time to be claimed is over.
                    let lost: HashSet<JobId> = plan.claims.drain(step - claims_from..).map(|claim| claim.job.id).collect();
                    plan.claimed.retain(|claimed| !lost.contains(&claimed.job.id));
                    memory.view = None;
                    plan.before.iter().chain(&plan.claims).for_each(|change| self.remember(&change.job));
                    plan.again = true;
                    return Ok(Some(ticked(plan, answers)));
                }
                Some(Committed::Refused { step, standing }) => {
                    self.refused(&writes[step], standing, known, memory, prepared.as_ref());
                    self.reread(&plan, known).await?;
                    return Ok(None);
                }
                None => return Err(Error::Internal("the store did not answer a transaction".into())),
            }
        }
        for change in plan.before.iter().chain(&plan.claims) {
            self.remember(&change.job);
        }
        view.note_read(&plan.delta);
        if let Some(prepared) = prepared {
            view.committed(prepared, &plan.delta, limits);
        }
        plan.wake(view.next_check());
        if !plan.send.is_empty() || view.head.batches.iter().any(|batch| !batch.sent) {
            // What was committed stands, whatever becomes of the messages: they are sent again.
            if let Err(error) = self.send(queue, memory, &mut plan).await {
                tracing::warn!(%queue, %error, "granted work was not handed on");
                memory.view = None;
                plan.wake(Some(now + RESEND));
            }
        }
        Ok(Some(ticked(plan, answers)))
    }

    /// Takes note of why a transaction was refused, so that the next try sees what stands.
    fn refused(&self, write: &Write, standing: Standing, known: &mut Known, memory: &mut Memory, prepared: Option<&Prepared>) {
        match write {
            Write::SetJob { job, .. } => {
                self.running.lock().remove(&job.id);
                known.jobs.insert(job.id.clone(), standing_job(standing));
            }
            Write::RequireItem { .. } => self.catalog.store(Arc::default()),
            _ => {
                tracing::trace!(nonce = prepared.map(|prepared| prepared.head.nonce), "another engine moved the head");
                memory.view = None;
            }
        }
        if !self.ports.store.flight().is_zero() {
            memory.view = None;
        }
    }

    /// Reads the settled jobs anew: without atomic transactions some of them are written by now.
    async fn reread(&self, plan: &Plan, known: &mut Known) -> Result<(), Error> {
        if self.ports.store.flight().is_zero() {
            return Ok(());
        }
        let ids: Vec<JobId> = plan.before.iter().map(|change| change.job.id.clone()).collect();
        for (id, job) in ids.iter().zip(self.ports.store.get(&ids).await?) {
            self.running.lock().remove(id);
            known.jobs.insert(id.clone(), job);
        }
        Ok(())
    }

    /// What each report makes of its job: the changes go to the plan, the answers come back.
    fn settle_all(&self, round: &Round, known: &Known, catalog: &Catalog, plan: &mut Plan, now: Timestamp) -> Vec<Result<Job, Error>> {
        let mut settled: HashMap<&JobId, Job> = HashMap::new();
        round
            .reports
            .iter()
            .map(|report| {
                let job = match settled.get(&report.id) {
                    Some(job) => job.clone(),
                    None => known.jobs.get(&report.id).cloned().flatten().ok_or_else(|| Error::no_job(&report.id))?,
                };
                match self.settle(&job, report, delivery(catalog, &job), now)? {
                    Settled::Repeated => Ok(job),
                    Settled::Changed(after) => {
                        let was = self.plain.lock().remove(&report.id).unwrap_or(job.life.revision);
                        let mut after = *after;
                        after.life.revision = Revision(was.0 + 1);
                        plan.before.push(Change { job: after.clone(), was });
                        settled.insert(&report.id, after.clone());
                        Ok(after)
                    }
                }
            })
            .collect()
    }

    /// Looks at the grants of the batches whose time has come: releases, fences, sends again, revokes.
    async fn check(&self, view: &View, catalog: &Catalog, plan: &mut Plan, now: Timestamp) -> Result<(), Error> {
        let mut looked = 0;
        for reference in view.due_checks(now) {
            if looked >= CHECKS {
                plan.again = true;
                break;
            }
            // Until their time has come, grants are left to whoever was sent them, or is about to claim them.
            let due = reference.check_at <= now;
            let resend = reference.sends > 0 && reference.sends < SENDS;
            let grants: Vec<&Grant> = view.live_of(reference).collect();
            let ids: Vec<JobId> = grants.iter().map(|grant| grant.job.clone()).collect();
            looked += grants.len();
            let (mut next, mut resent) = (now + AUDIT, false);
            for (grant, job) in grants.into_iter().zip(self.ports.store.get(&ids).await?) {
                let release = (grant.job.clone(), grant.version);
                if plan.delta.released.contains(&release) {
                    continue;
                }
                let Some(job) = job.filter(|job| job.life.version == grant.version) else {
                    plan.delta.released.push(release);
                    continue;
                };
                let event = match &job.life.state {
                    State::Running(run) if run.lease_until <= now => {
                        Event::LeaseOver { next: self.next(&job), at_most_once: delivery(catalog, &job) == Delivery::AtMostOnce }
                    }
                    State::Running(run) => {
                        next = next.min(run.lease_until);
                        continue;
                    }
                    State::Scheduled { .. } if !due => continue,
                    State::Scheduled { .. } if resend => {
                        resent = true;
                        plan.send.push(work(&job, now));
                        continue;
                    }
                    State::Scheduled { .. } => Event::Revoke { version: grant.version },
                    State::Ended { .. } => continue,
                };
                let was = job.life.revision;
                if let Ok(job) = job.apply(event, now) {
                    plan.delta.released.push(release);
                    if job.life.ended().is_some() {
                        plan.ended.push(job.id.clone());
                    }
                    plan.before.push(Change { job, was });
                }
            }
            if resent {
                next = next.min(now + CLAIM_BY);
            }
            plan.delta.read.push(reference.id);
            if due {
                plan.delta.checked.push((reference.id, next, resent));
                plan.wake(Some(next));
            }
        }
        Ok(())
    }

    /// Takes every running job of a queue that just got its head as a grant.
    async fn adopt(&self, queue: &QueueName, view: &View, plan: &mut Plan, now: Timestamp) -> Result<(), Error> {
        let mut after = None;
        loop {
            let page = self.ports.store.running(queue, after.as_ref(), 1000).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id.clone());
            let fresh = page.iter().filter(|job| view.granted(&job.id).is_none());
            plan.delta.granted.extend(fresh.map(grant));
        }
        if !plan.delta.granted.is_empty() {
            plan.delta.check_at = now;
        }
        Ok(())
    }

    /// Hands admitted work on, and then says in the head that it went out.
    async fn send(&self, queue: &QueueName, memory: &mut Memory, plan: &mut Plan) -> Result<(), Error> {
        let view = memory.view.as_mut().expect("only a queue with a head sends");
        let mut work = std::mem::take(&mut plan.send);
        let sent: Vec<BatchId> = view.head.batches.iter().filter(|batch| !batch.sent).map(|batch| batch.id).collect();
        for grant in view.head.batches.iter().filter(|batch| !batch.sent).flat_map(|batch| view.live_of(batch)) {
            let (job, version, decided_at) = (grant.job.clone(), grant.version, view.head.time);
            work.push(Work { queue: queue.clone(), job, version, decided_at });
        }
        if work.is_empty() {
            return Ok(());
        }
        self.ports.work.send(&work).await?;
        plan.sent = work.len();
        plan.delta = Delta { sent_batches: sent, ..Delta::default() };
        let mut head = view.head.clone();
        head.version += 1;
        head.nonce = self.ports.entropy.bits() as u64;
        let prepared = view.prepare(head, &plan.delta);
        let mut writes: Txn = prepared.add.iter().map(|batch| Write::AddBatch(queue.clone(), batch.clone())).collect();
        writes.push(Write::SetHead { queue: queue.clone(), head: prepared.head.clone(), was: Expect::Is(view.head.version) });
        writes.extend(prepared.remove.iter().map(|id| Write::RemoveBatch(queue.clone(), *id)));
        match self.ports.store.commit(vec![writes]).await?.pop() {
            Some(Committed::All) => {
                let limits = Limits { version: u64::MAX, ..Limits::default() };
                view.committed(prepared, &plan.delta, &limits);
            }
            _ => memory.view = None,
        }
        Ok(())
    }

    /// Notes which jobs were handed on without a claim.
    fn adopt_plain(&self, plan: &Plan) {
        if plan.plain.is_empty() {
            return;
        }
        let mut plain = self.plain.lock();
        let mut running = self.running.lock();
        for change in &plan.plain {
            plain.insert(change.job.id.clone(), change.was);
            running.insert(change.job.id.clone(), change.job.clone());
        }
    }
}

/// What a round's search for candidates looks at.
struct Search<'a> {
    queue: &'a QueueName,
    round: &'a Round,
    catalog: &'a Catalog,
    limits: &'a Limits,
    now: Timestamp,
    /// The view, and what this round has released; none on a queue without a head.
    granted: Option<(&'a View, HashMap<JobId, Version>)>,
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
    async fn search(&self, search: &mut Search<'_>, admission: &mut Admission<'_>, plan: &mut Plan) -> Result<(), Error> {
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
            plan.delta.granted.push(grant(job));
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
            plan.delta.granted.push(grant(job));
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

fn ticked(mut plan: Plan, reports: Vec<Result<Job, Error>>) -> Ticked {
    // The search for candidates did not see these yet: a retry that is due before anything else is to be looked for in time.
    let next = plan.before.iter().filter_map(|change| change.job.life.run_at()).min();
    plan.wake(next);
    let ended: HashSet<&JobId> = plan.ended.iter().collect();
    let ended = plan.before.iter().filter(|change| ended.contains(&change.job.id)).map(|change| change.job.clone()).collect();
    Ticked { reports, claimed: plan.claimed, sent: plan.sent, ended, held: plan.held, next_at: plan.next_at, again: plan.again }
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

/// The grant of a job.
fn grant(job: &Job) -> Grant {
    Grant {
        job: job.id.clone(),
        version: job.life.version,
        job_type: job.spec.job_type.clone(),
        priority: job.spec.priority,
        weight: if job.spec.critical { 0 } else { job.spec.weight },
        critical: job.spec.critical,
        attributes: job.spec.attributes.clone(),
    }
}

fn work(job: &Job, decided_at: Timestamp) -> Work {
    Work { queue: job.spec.queue.clone(), job: job.id.clone(), version: job.life.version, decided_at }
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
pub(super) fn push_lease(catalog: &Catalog, job: &Job) -> Duration {
    let config = catalog.types.get(&job.spec.job_type).map(|item| &item.config);
    let ask = Ask { types: Vec::new(), room: 0, worker: None, lease: None, hand: Hand::Claim };
    lease(config, true, &ask, job)
}

/// Whether jobs of this push type are handed on without a claim.
fn is_plain(config: &TypeConfig) -> bool {
    config.start == Start::Plain && config.delivery == Delivery::AtLeastOnce
}

/// The end of a job whose time to start, or to live, is over.
pub(super) fn overdue(job: &Job, now: Timestamp) -> Option<Job> {
    [Event::Deadline, Event::Expire].into_iter().find_map(|event| job.apply(event, now).ok())
}

/// Whether a job of `job`'s type may be started twice.
pub(super) fn delivery(catalog: &Catalog, job: &Job) -> Delivery {
    catalog.types.get(&job.spec.job_type).map_or(Delivery::AtLeastOnce, |item| item.config.delivery)
}

pub(super) fn same_claim(there: &Job, ours: &Job) -> bool {
    matches!((there.life.running(), ours.life.running()), (Some(there), Some(ours)) if there.token == ours.token)
}

fn standing_job(standing: Standing) -> Option<Job> {
    match standing {
        Standing::Job(job) => Some(*job),
        _ => None,
    }
}

/// What [`Next`] means for a lease that ended, kept here so that sweeps and checks agree.
pub(super) fn lease_over(engine: &Engine, catalog: &Catalog, job: &Job) -> Event {
    let next: Next = engine.next(job);
    Event::LeaseOver { next, at_most_once: delivery(catalog, job) == Delivery::AtMostOnce }
}
