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
//!
//! Read in this order: this file (what a round is made of), [`head`] (a round of a limited queue) and [`free`] (of one without a head),
//! [`search`] (which candidates are looked at, in what turn), [`offer`] (what becomes of one), [`throttle`] (what the queue's
//! plugin says of a page), [`check`] (what becomes of grants whose time has come).

mod check;
mod claim;
mod limited;
mod offer;
mod search;
mod throttle;
mod unlimited;
pub mod view;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use super::{Catalog, Engine, Error, View, request::Report};
use crate::{jobs::report::Settled, plugins::circuit_breaker::OpenCircuit, tick::view::Delta};
use tidegate_core::{
    job::{
        Event, Job, JobId, Lifecycle, QueueName, Revision, TypeName, Version,
        lifecycle::RetryDecision, type_config::Delivery,
    },
    port::{Work, job_store::CurrentRecord, policy::Ended},
    queue::{Grant, Limits, Rule, admission::Reservations, order::Position},
    time::{Seconds, Timestamp},
};

pub(super) use offer::push_lease;
pub(super) use search::Turns;
pub use throttle::ThrottlerCall;
use throttle::Throttling;

/// How often a round is worked out anew when somebody else wrote.
const MAX_TICK_RETRIES: usize = 8;

/// Somebody who takes jobs of these types.
#[derive(Clone, Debug)]
pub struct Demand {
    /// The types.
    pub types: Vec<TypeName>,
    /// How many.
    pub capacity: u32,
    /// How it names itself.
    pub worker: Option<String>,
    /// How long its leases last; absent: as the type says.
    pub lease: Option<Seconds>,
    /// What happens to what it gets.
    pub dispatch: Dispatch,
}

/// What happens to an admitted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// It is claimed in the same commit and handed to the asker.
    Claim,
    /// It is sent through the work queue, to be claimed by whoever gets it.
    Queue,
}

/// What a round starts from.
#[derive(Clone, Debug, Default)]
pub struct TickInput {
    /// What became of attempts.
    pub reports: Vec<Report>,
    /// Jobs that left the version they were granted at.
    pub released: Vec<(JobId, Version)>,
    /// Who takes jobs.
    pub demands: Vec<Demand>,
    /// How many more each worker takes that has a capacity, in all its asks.
    pub workers: BTreeMap<String, u32>,
    /// Whether something came, or became free, since the last round: where a scan goes on that has passed it, another follows.
    pub news: bool,
    /// How much the jobs that they take may have together; absent: any.
    pub byte_budget: Option<ByteBudget>,
}

/// Room for jobs by the bytes that each has where it is shown whole: an answer may have a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteBudget {
    /// What is left.
    pub left: usize,
    /// What there is where nothing was taken yet. A job that has more counts for as much: it is taken alone, so that it does not wait for
    /// ever, and whoever asked says what becomes of it.
    pub most: usize,
}

impl ByteBudget {
    /// What is left beside `job`, if it fits.
    #[must_use]
    pub fn after(self, job: &Job) -> Option<Self> {
        let left = self.left.checked_sub(self.bytes(job))?;
        Some(Self { left, ..self })
    }

    /// What `job` takes.
    fn bytes(self, job: &Job) -> usize {
        job.bytes().min(self.most)
    }
}

/// What one engine remembers of a queue between rounds. Losing it costs reads, and what a scan that goes on has reserved.
#[derive(Debug, Default)]
pub struct TickCache {
    view: Option<View>,
    /// The catalog under which the queue was seen to have no head: without a change of it none appears.
    unlimited_under: Option<u64>,
    last_partition: Option<String>,
    lap_start: Option<String>,
    scan_cursor: Option<Position>,
    /// What candidates before `look` have reserved in this scan.
    reservations: (Scan, Reservations),
    /// Whether something came since the scan that goes on began.
    news: bool,
    /// When more is due than was, by what that scan saw.
    next_at: Option<Timestamp>,
    /// The throttler that failed last.
    trouble: Option<OpenCircuit>,
    /// Attempts that ended, and of which the throttler is still to hear: it failed, or was left alone.
    unreported: Arc<Vec<Ended>>,
    /// Calls that failed and were not told of yet.
    faults: Vec<ThrottlerCall>,
}

/// Which scan it is, as far as it has come. Another process may end one and begin the next, which writes the head; and what is reserved
/// means something only under the configuration that was seen.
#[derive(Debug, Default, PartialEq, Eq)]
struct Scan {
    config_version: u64,
    ledger_version: u64,
    cursor: Option<Position>,
}

impl Scan {
    fn of(view: &View, limits: &Limits) -> Self {
        Self {
            config_version: limits.version,
            ledger_version: view.head.version,
            cursor: view.head.scan_cursor.clone(),
        }
    }
}

impl TickCache {
    /// The view of the queue's head, if there is one and it was read.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// What earlier rounds of the scan that goes on in `view` have reserved, if they were taken here.
    fn reserved(&self, view: &View, limits: &Limits) -> Reservations {
        let (scan, reserved) = &self.reservations;
        if view.head.scan_cursor.is_some() && *scan == Scan::of(view, limits) {
            reserved.clone()
        } else {
            Reservations::default()
        }
    }

    /// Takes note of news that a scan which goes on may have passed.
    fn note_news(&mut self, round: &TickInput, now: Timestamp) {
        let (look, lap) = self.view.as_ref().map_or((&self.scan_cursor, &self.lap_start), |view| {
            (&view.head.scan_cursor, &view.head.lap_start)
        });
        let goes_on = look.is_some() || lap.is_some();
        self.news |= goes_on && (round.news || self.next_at.is_some_and(|at| at <= now));
    }

    /// Takes note of what `plan` leaves to the next round's scan. One that is through begins anew if there were news.
    fn keep_scan(&mut self, plan: &mut TickPlan, limits: &Limits) {
        let scan = self.view.as_ref().map(|view| Scan::of(view, limits)).unwrap_or_default();
        self.reservations = (scan, std::mem::take(&mut plan.reserved));
        if plan.goes_on() {
            self.next_at = self.next_at.into_iter().chain(plan.next_at).min();
        } else if plan.searched {
            plan.wake(self.next_at.take());
            plan.again |= std::mem::take(&mut self.news);
        }
    }
}

/// A job that was handed to an asker.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// Which asker: an index into [`Round::asks`].
    pub demand: usize,
    /// The job, running.
    pub job: Job,
    /// When it was due.
    pub run_at: Timestamp,
}

/// What a round did.
#[derive(Debug, Default)]
pub struct TickOutcome {
    /// One answer per report, in order: the job as it stands now.
    pub reports: Vec<Result<Job, Error>>,
    /// Which of the reports said what was known already.
    pub repeated: HashSet<usize>,
    /// The jobs that were claimed.
    pub claimed: Vec<Claimed>,
    /// How many jobs were handed to the work queue.
    pub sent: usize,
    /// Jobs that ended in this round without a report.
    pub ended: Vec<Job>,
    /// Jobs whose lease was over and that are tried again.
    pub lapsed: Vec<Job>,
    /// How many candidates each rule held.
    pub held: BTreeMap<Rule, u64>,
    /// When the queue is to be looked at next even if nothing happens.
    pub next_at: Option<Timestamp>,
    /// Whether the scan goes on: tick again at once.
    pub again: bool,
    /// Hints that this round could not take, its own among them: for the next one.
    pub left: Vec<(JobId, Version)>,
    /// Whether jobs wait for their retry strategy to be asked: sweep at once.
    pub pending: bool,
    /// What the throttler said, page by page, if another version runs in its shadow.
    pub asked: Vec<ThrottlerCall>,
    /// Calls of the throttler that failed.
    pub faults: Vec<ThrottlerCall>,
}

/// A job's change in a round.
struct JobChange {
    job: Job,
    was: Revision,
}

/// A round, worked out and not yet committed.
#[derive(Default)]
struct TickPlan {
    /// Settled, fenced, revoked and moved jobs: written before the head.
    before: Vec<JobChange>,
    /// Claims: written after it.
    claims: Vec<JobChange>,
    /// Claims that are not written until their result comes.
    unclaimed: Vec<JobChange>,
    claimed: Vec<Claimed>,
    /// Jobs that this round has dealt with. Its pages may overlap, and a job is offered once.
    seen: HashSet<JobId>,
    send: Vec<Work>,
    sent: usize,
    delta: Delta,
    ended: Vec<JobId>,
    /// Reports that said what was known already.
    repeated: HashSet<usize>,
    lapsed: Vec<Job>,
    held: BTreeMap<Rule, u64>,
    /// Whether somebody took jobs, so that what was held is known.
    searched: bool,
    next_at: Option<Timestamp>,
    again: bool,
    scan_cursor: Option<Position>,
    /// What candidates before `look` have reserved.
    reserved: Reservations,
    last_partition: Option<String>,
    lap_start: Option<String>,
    buckets: BTreeMap<(String, String), tidegate_core::queue::ledger::Bucket>,
    /// The queue's throttler, as far as the round has asked it.
    throttling: Option<Throttling>,
    trouble: Option<OpenCircuit>,
    asked: Vec<ThrottlerCall>,
    faults: Vec<ThrottlerCall>,
    /// Whether the throttler moved or dropped somebody, which must not happen but under this head.
    decided: bool,
}

impl TickPlan {
    fn wake(&mut self, at: Option<Timestamp>) {
        self.next_at = self.next_at.into_iter().chain(at).min();
    }

    /// Whether the scan stopped on its way.
    fn goes_on(&self) -> bool {
        self.scan_cursor.is_some() || self.lap_start.is_some()
    }
}

/// The jobs of a round as they are known, with what this round makes of them.
struct KnownJobs {
    jobs: HashMap<JobId, Option<Job>>,
}

impl TickOutcome {
    /// The jobs whose reports told something new.
    pub fn settled(&self) -> impl Iterator<Item = &Job> {
        self.reports
            .iter()
            .enumerate()
            .filter(|(index, _)| !self.repeated.contains(index))
            .filter_map(|(_, report)| report.as_ref().ok())
    }
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
    pub async fn tick(
        &self,
        queue: &QueueName,
        memory: &mut TickCache,
        round: TickInput,
    ) -> Result<TickOutcome, Error> {
        let attempts: Vec<(JobId, u16)> =
            round.reports.iter().map(|report| (report.id.clone(), report.attempt)).collect();
        let recalled =
            if attempts.is_empty() { Vec::new() } else { self.cached_attempts(&attempts).await? };
        let mut known =
            KnownJobs { jobs: attempts.into_iter().map(|(id, _)| id).zip(recalled).collect() };
        for attempt in 0..MAX_TICK_RETRIES {
            let catalog = self.catalog().await?;
            let limits = catalog.limits(queue);
            if memory.view.is_none() && memory.unlimited_under != Some(catalog.version) {
                memory.view = self.view(queue, &limits).await?;
                memory.unlimited_under = memory.view.is_none().then_some(catalog.version);
            }
            memory.note_news(&round, self.now());
            let done = if memory.view.is_some() {
                self.tick_limited(queue, memory, &round, &mut known, &catalog, &limits).await
            } else {
                self.tick_unlimited(queue, memory, &round, &mut known, &catalog, &limits).await
            };
            match done {
                Ok(Some(mut ticked)) => {
                    ticked.faults = std::mem::take(&mut memory.faults);
                    Box::pin(self.forget_after(&round.reports, &ticked)).await;
                    if ticked
                        .claimed
                        .iter()
                        .any(|claimed| claimed.job.spec.correlation_key.is_some())
                    {
                        Box::pin(self.hear_early(&mut ticked)).await;
                    }
                    return Ok(ticked);
                }
                Ok(None) => tracing::debug!(%queue, attempt, "the round lost a race"),
                Err(error) => {
                    memory.view = None;
                    self.forget(&round);
                    return Err(error);
                }
            }
        }
        // Reports must not be lost to a busy head: settle them without admitting anything.
        let mut ticked = self.settle_apart(queue, round.reports, &mut known).await?;
        ticked.again = true;
        ticked.left.extend(round.released);
        Ok(ticked)
    }

    /// Settles the reports of jobs of `queue` and admits nothing: for those who leave rounds to others. Its hints are
    /// [`Ticked::left`]: until a round takes them, the slots are not free.
    ///
    /// # Errors
    ///
    /// The store's; repeating the reports is harmless.
    pub async fn report(
        &self,
        queue: &QueueName,
        reports: Vec<Report>,
    ) -> Result<TickOutcome, Error> {
        let attempts: Vec<(JobId, u16)> =
            reports.iter().map(|report| (report.id.clone(), report.attempt)).collect();
        let recalled = self.cached_attempts(&attempts).await?;
        let mut known =
            KnownJobs { jobs: attempts.into_iter().map(|(id, _)| id).zip(recalled).collect() };
        self.settle_apart(queue, reports, &mut known).await
    }

    /// Settles `reports`, each on its own, whether or not the queue has a head. Nobody releases anything: what they free is left.
    async fn settle_apart(
        &self,
        queue: &QueueName,
        reports: Vec<Report>,
        known: &mut KnownJobs,
    ) -> Result<TickOutcome, Error> {
        let running = |job: &Job| job.life.running().map(|_| job.life.version);
        let before: Vec<Option<Version>> =
            reports.iter().map(|report| running(known.jobs.get(&report.id)?.as_ref()?)).collect();
        let round = TickInput { reports, ..TickInput::default() };
        let catalog = self.catalog().await?;
        let limits = catalog.limits(queue);
        let mut ticked = self
            .tick_unlimited(queue, &mut TickCache::default(), &round, known, &catalog, &limits)
            .await?
            .unwrap_or_default();
        let settled = ticked.reports.iter().zip(before);
        ticked.left = settled
            .filter_map(|(answer, version)| Some((answer.as_ref().ok()?, version?)))
            .filter(|(job, version)| job.life.version > *version)
            .map(|(job, version)| (job.id.clone(), version))
            .collect();
        Box::pin(self.forget_after(&round.reports, &ticked)).await;
        Ok(ticked)
    }

    /// What each report makes of its job: the changes go to the plan, the answers come back.
    fn settle_all(
        &self,
        round: &TickInput,
        known: &KnownJobs,
        catalog: &Catalog,
        plan: &mut TickPlan,
        now: Timestamp,
    ) -> Vec<Result<Job, Error>> {
        let mut settled: HashMap<&JobId, Job> = HashMap::new();
        round
            .reports
            .iter()
            .enumerate()
            .map(|(index, report)| {
                let job = match settled.get(&report.id) {
                    Some(job) => job.clone(),
                    None => known
                        .jobs
                        .get(&report.id)
                        .cloned()
                        .flatten()
                        .ok_or_else(|| Error::no_job(&report.id))?,
                };
                match self.settle(&job, report, delivery(catalog, &job), now)? {
                    Settled::Repeated => {
                        plan.repeated.insert(index);
                        Ok(job)
                    }
                    Settled::Changed(after) => {
                        let was = self.unclaimed.revision(&report.id).unwrap_or(job.life.revision);
                        let mut after = *after;
                        after.life.revision = Revision(was.0 + 1);
                        plan.before.push(JobChange { job: after.clone(), was });
                        settled.insert(&report.id, after.clone());
                        Ok(after)
                    }
                }
            })
            .collect()
    }

    /// Forgets what was remembered of reported jobs, but of those that nobody else knows to run.
    fn forget(&self, round: &TickInput) {
        let mut running = self.running.lock();
        for report in
            round.reports.iter().filter(|report| !self.unclaimed.is_dispatched(&report.id))
        {
            running.remove(&report.id);
        }
    }
}

fn ticked(mut plan: TickPlan, reports: Vec<Result<Job, Error>>) -> TickOutcome {
    // The search for candidates did not see these yet: a retry that is due before anything else is to be looked for in time.
    let changed = || plan.before.iter().map(|change| &change.job.life);
    let next =
        changed().filter(|life| !life.awaits_retry_decision()).filter_map(Lifecycle::run_at).min();
    let pending = changed().any(Lifecycle::awaits_retry_decision);
    plan.wake(next);
    let ended: HashSet<&JobId> = plan.ended.iter().collect();
    let ended = plan
        .before
        .iter()
        .filter(|change| ended.contains(&change.job.id))
        .map(|change| change.job.clone())
        .collect();
    let TickPlan { claimed, sent, lapsed, held, next_at, again, asked, repeated, .. } = plan;
    let (faults, left) = (Vec::new(), Vec::new());
    TickOutcome {
        reports,
        repeated,
        claimed,
        sent,
        ended,
        lapsed,
        held,
        next_at,
        again,
        left,
        pending,
        asked,
        faults,
    }
}

/// The grant of a job, decided at `granted_at`.
fn grant(job: &Job, granted_at: Timestamp) -> Grant {
    Grant {
        job: job.id.clone(),
        version: job.life.version,
        job_type: job.spec.job_type.clone(),
        priority: job.spec.priority,
        weight: if job.spec.critical { 0 } else { job.spec.weight },
        critical: job.spec.critical,
        attributes: job.spec.attributes.clone(),
        granted_at,
    }
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

fn standing_job(standing: CurrentRecord) -> Option<Job> {
    match standing {
        CurrentRecord::Job(job) => Some(*job),
        _ => None,
    }
}

/// What [`Next`] means for a lease that ended, kept here so that sweeps and checks agree.
pub(super) fn lease_over(engine: &Engine, catalog: &Catalog, job: &Job) -> Event {
    let next: RetryDecision = engine.next(job);
    Event::LeaseExpired { next, at_most_once: delivery(catalog, job) == Delivery::AtMostOnce }
}
