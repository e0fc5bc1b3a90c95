//! `tick`: one pass over a queue, in one commit: settle reports, release, check, admit, claim.
//!
//! ```text
//!   reports ─▶ settle ─┐
//!   ledger ─▶ release, check due batches ─▶ Admission over candidates ─▶ commit ─▶ claimed jobs
//!             ▲                                                            │
//!             └─────── refused: another process wrote; read it again ◀─────┘
//! ```
//!
//! The one thing to know: **nothing changes before the commit**. A tick is computed from the view, the
//! jobs and the configuration as they were read. Each write requires the version that it was computed
//! from, so a tick that read old values is refused and computed again. On a queue without a ledger
//! every change is a transaction of its own.
//!
//! The order of the writes makes any prefix safe: settled jobs, then batch, then ledger, then claims.
//!
//! # How a job starts
//!
//! There are four paths. The queue's ledger and the job's type decide which one a job takes.
//!
//! | path | when | embedded | serverless |
//! |---|---|---|---|
//! | granted claim | the queue has a ledger; the process that ticks runs or leases the job | pull, push, handlers | pull: the lease call |
//! | granted dispatch | the queue has a ledger; the tick sends the job through the work queue | not used | push: `tick` grants, `deliver` claims |
//! | ungranted claim | the queue has no ledger | pull, push, handlers | pull: the lease call; push: a message without a grant, `deliver` claims |
//! | unclaimed dispatch | the queue has no ledger and the type has `start: "plain"` | push | push: `deliver`, for its own invocation |
//!
//! A store is atomic if a commit is one transaction: its `max_in_flight_write` is zero.
//!
//! | path | store | who claims | who remembers the attempt | what a crash costs |
//! |---|---|---|---|---|
//! | granted claim | atomic | the tick, in the transaction of the grant | job and ledger | before the commit nothing, after it one attempt |
//! | granted claim | not atomic | the tick, in a third commit after jobs and ledger | job and ledger | as above; between ledger and claim no attempt, but the slot until `check_at` |
//! | granted dispatch | either | the receiver of the message, at the granted version | the ledger from the grant, the job from the claim | before the claim no attempt, the work is sent up to three times; after it one attempt |
//! | ungranted claim | either | the tick or the receiver, in one transaction per job | the job | before the claim no attempt; after it one attempt |
//! | unclaimed dispatch | either | no claim; the first write is a result or a heartbeat | only the process that sent it | no attempt, but the target may run the job twice |
//!
//! "One attempt" fails with `lease_expired`; for `at_most_once` the job ends with `outcome_unknown`.
//! The simulation (`tests/it/simulation`) counts the first three paths on both kinds of store.
//! Scenarios in `tests/it/cases/plain.rs` cover the fourth.
//!
//! # Reading order
//!
//! This file (what a tick consists of), [`limited`] (a tick of a queue with a ledger) and
//! [`unlimited`] (of one without), [`search`] and [`partitions`] (which candidates are offered, in
//! which order), [`capacities`] (how many the workers take), [`offer`] (what happens to one
//! candidate), [`throttle`] (the queue's plugin decides on a page), [`check`] (grants whose check
//! time has come).

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

/// How often a tick is computed again because another process wrote.
const MAX_TICK_RETRIES: usize = 8;

/// A request for jobs of some types.
#[derive(Clone, Debug)]
pub struct Demand {
    /// The requested types.
    pub types: Vec<TypeName>,
    /// How many jobs at most.
    pub capacity: u32,
    /// The worker's name.
    pub worker: Option<String>,
    /// How long its leases last; absent: the type's setting.
    pub lease: Option<Seconds>,
    /// What happens to the admitted jobs.
    pub dispatch: Dispatch,
}

/// What happens to an admitted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// It is claimed in the same commit and returned to the caller.
    Claim,
    /// It is sent through the work queue, and its receiver claims it.
    Queue,
}

/// The input of a tick.
#[derive(Clone, Debug, Default)]
pub struct TickInput {
    /// Results of attempts.
    pub reports: Vec<Report>,
    /// Hints: jobs that left the version at which they were granted.
    pub released: Vec<(JobId, Version)>,
    /// Requests for jobs.
    pub demands: Vec<Demand>,
    /// How many more jobs each worker with a capacity takes, in all its demands.
    pub workers: BTreeMap<String, u32>,
    /// Whether a job arrived or a slot became free since the last tick. A scan in progress may have
    /// passed it, so another scan follows.
    pub news: bool,
    /// How many bytes the claimed jobs may have together; absent: any.
    pub byte_budget: Option<ByteBudget>,
}

/// A budget of bytes for jobs, each counted as it is serialized: a response may have a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteBudget {
    /// The bytes that are left.
    pub left: usize,
    /// The whole budget. A larger job counts as this much: it is taken alone, so that it does not
    /// wait forever, and the caller decides what happens to it.
    pub most: usize,
}

impl ByteBudget {
    /// The budget that is left after `job`, if it fits.
    #[must_use]
    pub fn after(self, job: &Job) -> Option<Self> {
        let left = self.left.checked_sub(self.bytes(job))?;
        Some(Self { left, ..self })
    }

    /// The bytes that `job` takes.
    fn bytes(self, job: &Job) -> usize {
        job.bytes().min(self.most)
    }
}

/// What one engine keeps of a queue between ticks. Losing it costs reads, and the reservations of a
/// scan in progress.
#[derive(Debug, Default)]
pub struct TickCache {
    view: Option<View>,
    /// The version of the catalog under which the queue had no ledger: without a new version none
    /// appears.
    unlimited_under: Option<u64>,
    last_partition: Option<String>,
    lap_start: Option<String>,
    scan_cursor: Option<Position>,
    /// What candidates before the scan's cursor have reserved.
    reservations: (Scan, Reservations),
    /// Whether a job arrived or a slot became free since the scan in progress began.
    news: bool,
    /// When the next job becomes due, as far as that scan read.
    next_at: Option<Timestamp>,
    /// The throttler that failed last.
    trouble: Option<OpenCircuit>,
    /// Ended attempts that the throttler has not received: it failed, or its circuit was open.
    unreported: Arc<Vec<Ended>>,
    /// Failed calls that no outcome has reported yet.
    faults: Vec<ThrottlerCall>,
}

/// Identifies a scan and its progress. Another process may end it and begin the next, which writes
/// the ledger. Reservations are valid only under the configuration that they were made with.
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
    /// The view of the queue's ledger, if there is one and it was read.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// What earlier ticks of this engine have reserved in the scan that `view` is in.
    fn reserved(&self, view: &View, limits: &Limits) -> Reservations {
        let (scan, reserved) = &self.reservations;
        if view.ledger.scan_cursor.is_some() && *scan == Scan::of(view, limits) {
            reserved.clone()
        } else {
            Reservations::default()
        }
    }

    /// Records news that a scan in progress may have passed.
    fn note_news(&mut self, input: &TickInput, now: Timestamp) {
        let (cursor, lap_start) =
            self.view.as_ref().map_or((&self.scan_cursor, &self.lap_start), |view| {
                (&view.ledger.scan_cursor, &view.ledger.lap_start)
            });
        let goes_on = cursor.is_some() || lap_start.is_some();
        self.news |= goes_on && (input.news || self.next_at.is_some_and(|at| at <= now));
    }

    /// Keeps what `plan` leaves to the next tick's scan. A completed scan starts again if there were
    /// news.
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

/// A claimed job.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// For which demand: an index into [`TickInput::demands`].
    pub demand: usize,
    /// The job, running.
    pub job: Job,
    /// When it was due.
    pub run_at: Timestamp,
}

/// The result of a tick.
#[derive(Debug, Default)]
pub struct TickOutcome {
    /// One answer per report, in order: the job after it.
    pub reports: Vec<Result<Job, Error>>,
    /// Which of the reports repeated a known result.
    pub repeated: HashSet<usize>,
    /// The jobs that were claimed.
    pub claimed: Vec<Claimed>,
    /// How many jobs were sent through the work queue.
    pub sent: usize,
    /// Jobs that ended in this tick without a report.
    pub ended: Vec<Job>,
    /// Jobs whose lease expired and that are retried.
    pub lapsed: Vec<Job>,
    /// How many candidates each rule held.
    pub held: BTreeMap<Rule, u64>,
    /// When the next tick is due even if nothing happens.
    pub next_at: Option<Timestamp>,
    /// Whether the scan is in progress: tick again at once.
    pub again: bool,
    /// Hints that this tick could not take, including its own: for the next one.
    pub left: Vec<(JobId, Version)>,
    /// Whether jobs await a retry decision: sweep at once.
    pub pending: bool,
    /// The throttler's calls, page by page, if it has a shadow version.
    pub asked: Vec<ThrottlerCall>,
    /// Failed calls of the throttler.
    pub faults: Vec<ThrottlerCall>,
}

/// A job's change in a tick.
struct JobChange {
    job: Job,
    was: Revision,
}

/// A tick, computed and not yet committed.
#[derive(Default)]
struct TickPlan {
    /// Settled, fenced, revoked and moved jobs: written before the ledger.
    before: Vec<JobChange>,
    /// Claims: written after it.
    claims: Vec<JobChange>,
    /// Unclaimed dispatches: not written until their result arrives.
    unclaimed: Vec<JobChange>,
    claimed: Vec<Claimed>,
    /// Jobs that this tick has handled. Its pages may overlap, and a job is offered once.
    seen: HashSet<JobId>,
    send: Vec<Work>,
    sent: usize,
    delta: Delta,
    ended: Vec<JobId>,
    /// Reports that repeated a known result.
    repeated: HashSet<usize>,
    lapsed: Vec<Job>,
    held: BTreeMap<Rule, u64>,
    /// Whether there was capacity, so that candidates were searched.
    searched: bool,
    next_at: Option<Timestamp>,
    again: bool,
    scan_cursor: Option<Position>,
    /// What candidates before the cursor have reserved.
    reserved: Reservations,
    last_partition: Option<String>,
    lap_start: Option<String>,
    buckets: BTreeMap<(String, String), tidegate_core::queue::ledger::Bucket>,
    /// The queue's throttler.
    throttling: Option<Throttling>,
    trouble: Option<OpenCircuit>,
    asked: Vec<ThrottlerCall>,
    faults: Vec<ThrottlerCall>,
    /// Whether the throttler moved or dropped a job, which is valid only under this ledger.
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
    /// The jobs whose reports were new.
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

    /// Applies each report to its job: adds the changes to the plan and returns the answers.
    fn settle_all(
        &self,
        input: &TickInput,
        known: &KnownJobs,
        catalog: &Catalog,
        plan: &mut TickPlan,
        now: Timestamp,
    ) -> Vec<Result<Job, Error>> {
        let mut settled: HashMap<&JobId, Job> = HashMap::new();
        input
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

    /// Removes reported jobs from the cache, except unclaimed dispatches, which only it has.
    fn forget(&self, input: &TickInput) {
        let mut running = self.running.lock();
        for report in
            input.reports.iter().filter(|report| !self.unclaimed.is_dispatched(&report.id))
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

/// The end of a job past its expiry or its deadline.
pub(super) fn overdue(job: &Job, now: Timestamp) -> Option<Job> {
    [Event::Deadline, Event::Expire].into_iter().find_map(|event| job.apply(event, now).ok())
}

/// The delivery guarantee of `job`'s type.
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

/// The event of an expired lease, here so that sweeps and checks agree.
pub(super) fn lease_over(engine: &Engine, catalog: &Catalog, job: &Job) -> Event {
    let next: RetryDecision = engine.next(job);
    Event::LeaseExpired { next, at_most_once: delivery(catalog, job) == Delivery::AtMostOnce }
}
