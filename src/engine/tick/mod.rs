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

mod cache;
mod check;
mod claim;
mod input;
mod lease;
mod limited;
mod outcome;
mod plan;
mod search;
mod settle;
mod throttle;
mod unlimited;
pub mod view;

use std::sync::Arc;

use super::{Catalog, Engine, Error};
use tidegate_core::{
    job::{Event, Job, QueueName, type_config::Delivery},
    port::{Work, job_store::CurrentRecord},
    queue::{Grant, Limits},
    time::Timestamp,
};

pub use cache::TickCache;
pub use input::{ByteBudget, Demand, Dispatch, TickInput};
pub(super) use lease::{lease_over, push_lease};
pub use outcome::{Claimed, TickOutcome};
pub(super) use search::Turns;
pub use throttle::ThrottlerCall;

/// How often a tick is computed again because another process wrote.
const MAX_TICK_RETRIES: usize = 8;
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
