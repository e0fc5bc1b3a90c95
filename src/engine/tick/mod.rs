//! `tick`: one pass over a queue, in one commit: settle reports, release, check, admit, claim.
//!
//! ```text
//!   reports ─▶ settle ─┐
//!   ledger ─▶ release, check due batches ─▶ Admission over candidates ─▶ commit ─▶ claimed jobs
//!             ▲                                                            │
//!             └─────── refused: another process wrote; read it again ◀─────┘
//! ```
//!
//! The one thing to know: **nothing changes before the commit**. A tick is computed from the view,
//! the jobs and the configuration as they were read. Each write requires the version that it was
//! computed from, so a tick that read old values is refused and computed again. On a queue without
//! a ledger every change is a transaction of its own.
//!
//! The order of the writes makes any prefix safe: settled jobs, then batch, then ledger, then
//! claims.
//!
//! # Where a job is admitted
//!
//! `Search::try_admit` in `search/admit.rs` offers one candidate to the limits, which decide in
//! `Admission::try_admit` of tidegate-core. With a throttler, `throttle/reconcile.rs` and
//! `throttle/page.rs` offer a page of candidates to the same `Admission`. Every admitted job passes
//! through `Search::admit`, which adds its grant and its claim to the plan.
//!
//! # How a job starts
//!
//! There are five paths. The queue's ledger and the job's type decide which one a job takes.
//!
//! | path | the queue | who claims | who knows the attempt |
//! |---|---|---|---|
//! | granted claim | has a ledger | the tick | job and ledger |
//! | granted dispatch | has a ledger | the receiver of the message | ledger, then job |
//! | granted offer | has a ledger | the lease call that waits for it | ledger, then job |
//! | ungranted claim | has no ledger | the tick, or the receiver | the job |
//! | unclaimed dispatch | has no ledger | no claim | the process that sent it |
//!
//! - **Granted claim**: the process that ticks runs or leases the job. Embedded: pull, push and
//!   handlers. Serverless: pull, in a lease call that loses no race.
//! - **Granted dispatch**: the tick grants the job and sends it through the work queue. The
//!   receiver claims it at the granted version. Serverless push only: `tick` grants, `deliver`
//!   claims.
//! - **Granted offer**: the tick grants the job to a worker whose lease call waits. The call claims
//!   it at the granted version. Serverless pull only: `tick` grants, the lease call claims.
//! - **Ungranted claim**: one transaction per job. Embedded: pull, push and handlers. Serverless:
//!   pull, in the lease call, and push, where `deliver` claims a message without a grant.
//! - **Unclaimed dispatch**: for a push type with `start: "plain"`. The first write is a result or
//!   a heartbeat. Embedded: push. Serverless: push, where `deliver` does it for its own invocation.
//!
//! A store is atomic if a commit is one transaction: its `max_in_flight_write` is zero. What a
//! crash costs depends on when it happens:
//!
//! | path | decisive write | a crash before it costs | after it |
//! |---|---|---|---|
//! | granted claim, atomic store | the commit | nothing | one attempt |
//! | granted claim, other store | the claim | no attempt, but perhaps the slot | one attempt |
//! | granted dispatch, granted offer | the claim | no attempt | one attempt |
//! | ungranted claim | the claim | no attempt | one attempt |
//! | unclaimed dispatch | the result | no attempt, but the target may run it twice | nothing |
//!
//! - An atomic store takes the grant and the claim in one transaction. On another store the claim
//!   is a third commit, after jobs and ledger. A crash between ledger and claim occupies the slot
//!   until `check_at`.
//! - Granted work that is not claimed is sent again for a day. An offer that is not claimed is
//!   revoked after six seconds.
//!
//! "One attempt" fails with `lease_expired`; for `at_most_once` the job ends with
//! `outcome_unknown`. The simulation (`tests/it/simulation`) counts all five paths on both kinds
//! of store. For the last, one process dispatches. Scenarios in `tests/it/cases/unclaimed.rs`
//! cover each race of such a dispatch with a change.
//!
//! Without a ledger there are two paths, because the second saves a write. Per job, on AWS by the
//! table in `docs/deploy-aws.md`, and on SQLite with 20,000 due jobs for a local target (median of
//! three runs on two cores, 2026-11-23):
//!
//! | path | writes on AWS | $ a million on AWS | processor time on SQLite | jobs/s on SQLite |
//! |---|---|---|---|---|
//! | ungranted claim | 3.10 | 3.56 | 0.051 ms | 22,200 |
//! | unclaimed dispatch | 2.00 | 2.87 | 0.043 ms | 25,400 |
//!
//! # Reading order
//!
//! 1. This file: the loop of a tick.
//! 2. [`input`], [`outcome`], [`plan`] and [`cache`]: the values that it works on.
//! 3. [`settle`]: reports are applied to their jobs.
//! 4. [`limited`] and [`unlimited`]: a tick of a queue with a ledger, and of one without.
//! 5. [`search`]: which candidates are offered, in which order, and what happens to each.
//! 6. [`mod@line`]: queues with strict order.
//! 7. [`throttle`]: the queue's plugin decides on a page of candidates.
//! 8. [`check`]: grants whose check time has come. [`claim`]: the receiver of work starts it.

mod cache;
mod check;
mod claim;
mod input;
mod lease;
mod limited;
pub(crate) mod line;
mod outcome;
mod plan;
mod search;
mod settle;
mod spread;
pub(crate) mod throttle;
mod unlimited;
pub mod view;

use std::sync::Arc;

use super::{Catalog, Engine, Error};
use tidegate_core::{
    job::{Event, Job, QueueName, type_config::Delivery},
    port::{
        Work,
        job_store::{CurrentRecord, ItemKind, StoredJob},
    },
    queue::{Grant, Limits},
    stored::UnknownFields,
    time::Timestamp,
};

pub use cache::TickCache;
pub use input::{ByteBudget, CountedBytes, Demand, Dispatch, TickInput};
pub(super) use lease::{lease_expired, push_lease, push_lease_of};
pub use outcome::{Claimed, TickOutcome};
pub(super) use search::Turns;
pub use throttle::ThrottlerCall;

/// How often a tick is computed again because another process wrote.
const MAX_TICK_RETRIES: usize = 8;
/// What an attempt of a tick is computed from. The commit requires that catalog and limits are
/// still current.
#[derive(Clone, Copy)]
struct TickContext<'a> {
    queue: &'a QueueName,
    input: &'a TickInput,
    catalog: &'a Catalog,
    limits: &'a Arc<Limits>,
    /// Whether the view of the ledger is from an earlier tick.
    from_cache: bool,
    /// The demands that take nothing in this attempt, because there are too few jobs for them.
    closed: &'a [usize],
}

/// The jobs that a tick of an unlimited queue considers.
#[derive(Clone, Copy)]
enum Candidates<'a> {
    /// All due jobs, in the queue's order.
    Due,
    /// These jobs alone, each if it is still at the version that was sent.
    Named(&'a [Work]),
}

impl Engine {
    /// Runs one tick of `queue`: settles reports, releases grants, admits and claims jobs.
    ///
    /// A lost race for the ledger is no error: the tick is computed again from the current values.
    ///
    /// # Errors
    ///
    /// The store's. Then it is unknown what was committed. `cache` is cleared, and the caller
    /// answers its reports with the error (repeating them is harmless) and ticks again.
    pub async fn tick(
        &self,
        queue: &QueueName,
        cache: &mut TickCache,
        mut input: TickInput,
    ) -> Result<TickOutcome, Error> {
        cache.read_ahead.begin(&input);
        let mut known = self.known_jobs(&input.reports).await?;
        let tries = if input.yields { 1 } else { MAX_TICK_RETRIES };
        let mut outdated = false;
        for attempt in 0..tries {
            let catalog = match input.catalog_age.filter(|_| attempt == 0) {
                Some(age) => self.catalog_within(age).await?,
                None => self.catalog().await?,
            };
            if input.catalog_version.is_some_and(|version| version != catalog.version) {
                // A worker may be drained now, or a type have another target.
                outdated = true;
                input.demands.clear();
                input.budgets.clear();
            }
            let limits = catalog.limits(queue);
            let from_cache = cache.view.is_some();
            if cache.view.is_none() && cache.unlimited_under != Some(catalog.version) {
                cache.view = self.view(queue, &limits).await?;
                cache.unlimited_under = cache.view.is_none().then_some(catalog.version);
            }
            cache.note_change(&input, self.now());
            let context = TickContext {
                queue,
                input: &input,
                catalog: &catalog,
                limits: &limits,
                from_cache,
                closed: &[],
            };
            let outcome = if cache.view.is_some() {
                self.tick_limited(&context, cache, &mut known).await.transpose()
            } else {
                Some(self.tick_unlimited(&context, cache, &mut known, Candidates::Due).await)
            };
            match outcome {
                Some(Ok(outcome)) => {
                    let outcome = TickOutcome { outdated, ..outcome };
                    return Ok(self.finish_tick(&input, cache, outcome).await);
                }
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
        (outcome.again, outcome.lost, outcome.outdated) = (true, true, outdated);
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
}

/// The grant of a job, decided at `granted_at`.
fn grant(job: &Job, granted_at: Timestamp) -> Grant {
    Grant {
        waits_until: None,
        job: job.id.clone(),
        version: job.life.version,
        job_type: job.spec.job_type.clone(),
        priority: job.spec.priority,
        weight: if job.spec.critical { 0 } else { job.spec.weight },
        critical: job.spec.critical,
        attributes: job.spec.attributes.clone(),
        granted_at,
        unknown: UnknownFields::default(),
    }
}

/// The end of a job past its expiry or its deadline.
pub(super) fn overdue(job: &Job, now: Timestamp) -> Option<Job> {
    [Event::Deadline, Event::Expire].into_iter().find_map(|event| job.apply(event, now).ok())
}

/// The delivery guarantee of `job`'s type.
///
/// # Errors
///
/// [`Error::Unavailable`] if the type cannot be read.
pub(super) fn delivery(catalog: &Catalog, job: &Job) -> Result<Delivery, Error> {
    catalog.refuse_unreadable(ItemKind::Type, job.spec.job_type.as_str())?;
    let item = catalog.types.get(&job.spec.job_type);
    Ok(item.map_or(Delivery::AtLeastOnce, |item| item.config.delivery))
}

/// Whether the running attempt of `stored` is the one that `ours` claimed.
pub(super) fn same_claim(stored: &Job, ours: &Job) -> bool {
    let (stored, ours) = (stored.life.running(), ours.life.running());
    stored.zip(ours).is_some_and(|(stored, ours)| stored.token == ours.token)
}

/// The job that a refused write found.
fn current_job(current: CurrentRecord) -> StoredJob {
    match current {
        CurrentRecord::Job(job) => Ok(Some(*job)),
        CurrentRecord::Unreadable(unreadable) => Err(unreadable),
        _ => Ok(None),
    }
}
