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

mod capacities;
mod check;
mod claim;
mod limited;
mod offer;
mod partitions;
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
pub(super) use partitions::Turns;
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
            ledger_version: view.ledger.version,
            cursor: view.ledger.scan_cursor.clone(),
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
        if view.ledger.scan_cursor.is_some() && *scan == Scan::of(view, limits) {
            reserved.clone()
        } else {
            Reservations::default()
        }
    }

    /// Takes note of news that a scan which goes on may have passed.
    fn note_news(&mut self, round: &TickInput, now: Timestamp) {
        let (look, lap) = self.view.as_ref().map_or((&self.scan_cursor, &self.lap_start), |view| {
            (&view.ledger.scan_cursor, &view.ledger.lap_start)
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

    /// Whether the scan stopped before its end.
    fn goes_on(&self) -> bool {
        self.scan_cursor.is_some() || self.lap_start.is_some()
    }

    /// The outcome of the tick, once it is committed; `reports` has one answer per report.
    fn into_outcome(mut self, reports: Vec<Result<Job, Error>>) -> TickOutcome {
        // The search did not see these jobs: a retry that is due first must be found in time.
        let changed = || self.before.iter().map(|change| &change.job.life);
        let pending = changed().any(Lifecycle::awaits_retry_decision);
        let decided = changed().filter(|life| !life.awaits_retry_decision());
        let next_at = decided.filter_map(Lifecycle::run_at).min();
        self.wake(next_at);
        let ended: HashSet<&JobId> = self.ended.iter().collect();
        let ended =
            self.before.iter().map(|change| &change.job).filter(|job| ended.contains(&job.id));
        TickOutcome {
            reports,
            ended: ended.cloned().collect(),
            pending,
            repeated: self.repeated,
            claimed: self.claimed,
            sent: self.sent,
            lapsed: self.lapsed,
            held: self.held,
            next_at: self.next_at,
            again: self.again,
            left: Vec::new(),
            asked: self.asked,
            faults: Vec::new(),
        }
    }
}

/// What an attempt of a tick is computed from. The commit requires that catalog and limits are
/// still current.
struct TickContext<'a> {
    queue: &'a QueueName,
    input: &'a TickInput,
    catalog: &'a Catalog,
    limits: &'a Arc<Limits>,
}

/// The jobs that a tick of an unlimited queue considers.
#[derive(Clone, Copy)]
enum Candidates<'a> {
    /// All due jobs, in the queue's order.
    Due,
    /// These jobs alone, each if it is still at the version that was sent.
    Named(&'a [Work]),
}

/// The jobs that the reports name, as this process last saw them; none if a job does not exist.
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
    /// Runs one tick of `queue`: settles reports, releases grants, admits and claims jobs.
    ///
    /// A lost race for the ledger is no error: the tick is computed again from the current values.
    ///
    /// # Errors
    ///
    /// The store's. Then it is unknown what was committed. `cache` is cleared, and the caller answers
    /// its reports with the error (repeating them is harmless) and ticks again.
    pub async fn tick(
        &self,
        queue: &QueueName,
        cache: &mut TickCache,
        input: TickInput,
    ) -> Result<TickOutcome, Error> {
        let mut known = self.known_jobs(&input.reports).await?;
        for attempt in 0..MAX_TICK_RETRIES {
            let catalog = self.catalog().await?;
            let limits = catalog.limits(queue);
            if cache.view.is_none() && cache.unlimited_under != Some(catalog.version) {
                cache.view = self.view(queue, &limits).await?;
                cache.unlimited_under = cache.view.is_none().then_some(catalog.version);
            }
            cache.note_news(&input, self.now());
            let context = TickContext { queue, input: &input, catalog: &catalog, limits: &limits };
            let outcome = if cache.view.is_some() {
                self.tick_limited(&context, cache, &mut known).await.transpose()
            } else {
                Some(self.tick_unlimited(&context, cache, &mut known, Candidates::Due).await)
            };
            match outcome {
                Some(Ok(outcome)) => return Ok(self.finish_tick(&input, cache, outcome).await),
                Some(Err(error)) => {
                    cache.view = None;
                    self.forget(&input);
                    return Err(error);
                }
                None => tracing::debug!(%queue, attempt, "the tick lost a race"),
            }
        }
        // Reports must not be lost to a contended ledger: settle them and admit nothing.
        let mut outcome = self.settle_without_ledger(queue, input.reports, &mut known).await?;
        outcome.again = true;
        outcome.left.extend(input.released);
        Ok(outcome)
    }

    /// Completes the outcome of a committed tick: old results are removed, and stored replies to
    /// the claimed jobs are applied.
    async fn finish_tick(
        &self,
        input: &TickInput,
        cache: &mut TickCache,
        mut outcome: TickOutcome,
    ) -> TickOutcome {
        outcome.faults = std::mem::take(&mut cache.faults);
        Box::pin(self.forget_after(&input.reports, &outcome)).await;
        let keyed = |claimed: &Claimed| claimed.job.spec.correlation_key.is_some();
        if outcome.claimed.iter().any(keyed) {
            Box::pin(self.apply_early_replies(&mut outcome)).await;
        }
        outcome
    }

    /// The jobs that `reports` name, from the cache or the store.
    async fn known_jobs(&self, reports: &[Report]) -> Result<KnownJobs, Error> {
        let attempts: Vec<(JobId, u16)> =
            reports.iter().map(|report| (report.id.clone(), report.attempt)).collect();
        let jobs =
            if attempts.is_empty() { Vec::new() } else { self.cached_attempts(&attempts).await? };
        Ok(KnownJobs { jobs: attempts.into_iter().map(|(id, _)| id).zip(jobs).collect() })
    }

    /// Settles the reports of jobs of `queue` and admits nothing, for a caller that leaves ticks to
    /// other processes. The slots become free when a tick takes the hints in [`TickOutcome::left`].
    ///
    /// # Errors
    ///
    /// The store's; repeating the reports is harmless.
    pub async fn report(
        &self,
        queue: &QueueName,
        reports: Vec<Report>,
    ) -> Result<TickOutcome, Error> {
        let mut known = self.known_jobs(&reports).await?;
        self.settle_without_ledger(queue, reports, &mut known).await
    }

    /// Settles each report in a transaction of its own, and does not touch the ledger if there is
    /// one. What the reports release is returned as hints.
    async fn settle_without_ledger(
        &self,
        queue: &QueueName,
        reports: Vec<Report>,
        known: &mut KnownJobs,
    ) -> Result<TickOutcome, Error> {
        let running = |job: &Job| job.life.running().map(|_| job.life.version);
        let before: Vec<Option<Version>> =
            reports.iter().map(|report| running(known.jobs.get(&report.id)?.as_ref()?)).collect();
        let input = TickInput { reports, ..TickInput::default() };
        let catalog = self.catalog().await?;
        let limits = catalog.limits(queue);
        let context = TickContext { queue, input: &input, catalog: &catalog, limits: &limits };
        let cache = &mut TickCache::default();
        let mut outcome = self.tick_unlimited(&context, cache, known, Candidates::Due).await?;
        let settled = outcome.reports.iter().zip(before);
        outcome.left = settled
            .filter_map(|(answer, version)| Some((answer.as_ref().ok()?, version?)))
            .filter(|(job, version)| job.life.version > *version)
            .map(|(job, version)| (job.id.clone(), version))
            .collect();
        Box::pin(self.forget_after(&input.reports, &outcome)).await;
        Ok(outcome)
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

fn current_job(current: CurrentRecord) -> Option<Job> {
    match current {
        CurrentRecord::Job(job) => Some(*job),
        _ => None,
    }
}

/// What [`Next`] means for a lease that ended, kept here so that sweeps and checks agree.
pub(super) fn lease_over(engine: &Engine, catalog: &Catalog, job: &Job) -> Event {
    let next: RetryDecision = engine.next(job);
    Event::LeaseExpired { next, at_most_once: delivery(catalog, job) == Delivery::AtMostOnce }
}
