//! A run of a simulation: the real engine, a store in memory, and a clock that jumps from one event
//! to the next.
//!
//! ```text
//!   next moment ─▶ arrivals ─▶ enqueue ─┐
//!       ▲          results ─────────────┼─▶ tick ─▶ claimed jobs: draws length and result
//!       └──────────────── sweep ────────┘                       │
//!       ◀───────────────────────────────────────────────────────┘
//! ```

mod attempts;
mod setup;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

pub(super) use setup::run;

use self::attempts::{Attempt, AttemptsByTime};
use super::{
    GoesOn,
    arrivals::ArrivingJob,
    policies::{Plugins, SeenDecisions},
    record::Recording,
    report::Over,
    scenario::{BadScenario, Scenario},
};
use crate::{
    Demand, Dispatch, Engine, Error, TickCache, TickInput,
    memory::FakeClock,
    request::{NewJob, Report},
};
use tidegate_core::{
    job::{JobId, TypeName, Version},
    port::{Clock, policy::TargetHosts},
    time::Timestamp,
    validate::DECADE,
};

/// Most ticks of a simulation.
const MAX_TICKS: u64 = 20_000_000;
/// Most jobs that workers claim in one tick. Workers of a live queue request a few each, and a tick
/// reads as many candidates as are requested. Workers that are still free claim jobs in the next
/// tick.
const MAX_CLAIMS_PER_TICK: u32 = 100;
/// How long a count of what waits may take. No time passes in it.
const COUNT_TIME: Duration = Duration::from_mins(1);
/// Most jobs of one enqueue.
const MAX_ENQUEUE_JOBS: usize = 1000;

/// Why a simulation has no report.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failed {
    /// The scenario cannot be simulated.
    #[error("{0}")]
    Scenario(#[from] BadScenario),
    /// The queue refuses a part of the scenario.
    #[error("{what} is refused: {error}")]
    Refused {
        /// What.
        what: String,
        /// Why.
        error: Error,
    },
    /// The engine failed, which is a bug.
    #[error("the simulated queue failed: {0}")]
    Engine(#[from] Error),
}

/// A finished run.
pub(super) struct FinishedRun {
    pub record: Recording,
    pub over: Over,
    /// When, in milliseconds from its start.
    pub end: u64,
    pub ticks: u64,
    pub ids: Vec<JobId>,
    pub seen: SeenDecisions,
}

struct World<'a> {
    scenario: &'a Scenario,
    plugins: &'a Plugins,
    seen: Arc<Mutex<SeenDecisions>>,
    engine: Engine,
    clock: Arc<FakeClock>,
    record: Arc<Mutex<Recording>>,
    cache: TickCache,
    types: Vec<TypeName>,
    arriving: Vec<ArrivingJob<'a>>,
    attempts_by_time: AttemptsByTime<'a>,
    /// The hosts of the types' targets.
    hosts: Arc<TargetHosts>,
    ids: Vec<JobId>,
    /// The number of the job that took each correlation key last.
    keys: HashMap<(TypeName, String), usize>,
    /// How many jobs have arrived.
    arrived: usize,
    under_way: BinaryHeap<Reverse<Attempt>>,
    started: u64,
    /// Reports for the next tick.
    reports: Vec<Report>,
    left: Vec<(JobId, Version)>,
    /// When what waits is counted next.
    waiting_at: Timestamp,
    /// When the next tick is due, if one is.
    tick_at: Option<Timestamp>,
    /// Whether something happened since the last tick.
    queue_changed: bool,
    ticked_at: Option<Timestamp>,
    ticks: u64,
}

impl World<'_> {
    /// Advances from event to event until the end.
    async fn run_to_end(
        &mut self,
        progress: &mut (dyn FnMut(u64) -> GoesOn + Send),
    ) -> Result<Over, Failed> {
        let end = self.scenario.start + self.scenario.duration_seconds.duration();
        let total = self.arriving.len() as u64;
        loop {
            if self.record.lock().ended == total {
                return Ok(Over::Done);
            }
            let arrival = self.arriving.get(self.arrived).map(|job| job.at);
            let result = self.under_way.peek().map(|Reverse(attempt)| attempt.until);
            let wake = self.record.lock().wake;
            let Some(now) = [arrival, result, self.tick_at, wake].into_iter().flatten().min()
            else {
                return Ok(Over::Stalled);
            };
            if now > end {
                self.clock.set(end);
                return Ok(Over::Duration);
            }
            // An event may be overdue because it waited for a tick.
            let now = now.max(self.clock.now());
            self.clock.set(now);
            let mut happened = self.arrive(now).await?;
            happened |= self.finish(now);
            if wake.is_some_and(|at| at <= now) {
                happened |= self.sweep(end).await?;
            }
            if happened {
                (self.tick_at, self.queue_changed) = (Some(now), true);
            }
            let free_at =
                self.ticked_at.map_or(now, |at| at + self.scenario.tick_seconds.duration());
            self.tick_at = self.tick_at.map(|at| at.max(free_at));
            if self.tick_at.is_some_and(|at| at <= now) {
                self.tick(now).await?;
                // After each, because a plugin may take a quarter of a second in every one.
                if progress(self.record.lock().ended).is_break() {
                    return Ok(Over::Stopped);
                }
                if self.ticks >= MAX_TICKS {
                    return Ok(Over::Ticks);
                }
            }
        }
    }

    /// Enqueues the jobs that arrive by `now`. Returns whether there were any.
    async fn arrive(&mut self, now: Timestamp) -> Result<bool, Failed> {
        let first = self.arrived;
        while self.arriving.get(self.arrived).is_some_and(|job| job.at <= now) {
            let from = self.arrived;
            let here =
                self.arriving[from..].iter().take_while(|job| job.at <= now).take(MAX_ENQUEUE_JOBS);
            let mut jobs: Vec<_> =
                here.zip(&self.ids[from..]).map(|(job, id)| job.request(id.clone())).collect();
            self.leave_out_taken_keys(&mut jobs);
            self.arrived += jobs.len();
            for (answer, id) in self.engine.enqueue(jobs).await.into_iter().zip(&self.ids[from..]) {
                answer.map_err(|error| Failed::Refused { what: format!("job {id}"), error })?;
            }
        }
        Ok(self.arrived > first)
    }

    /// Removes the correlation keys that live jobs have: an enqueue refuses a second one. In a
    /// simulation a job may live longer than it did in the live queue.
    fn leave_out_taken_keys(&mut self, jobs: &mut [NewJob]) {
        let record = self.record.lock();
        for (number, job) in (self.arrived..).zip(jobs) {
            let Some(key) = job.correlation_key.take() else { continue };
            // A job of the same enqueue has no record yet.
            let is_live =
                |holder: &usize| record.jobs.get(*holder).is_none_or(|job| job.ended.is_none());
            let named = (job.job_type.clone(), key);
            if !self.keys.get(&named).is_some_and(is_live) {
                job.correlation_key = Some(named.1.clone());
                self.keys.insert(named, number);
            }
        }
    }

    /// Collects the reports of attempts that end by `now`. Returns whether there were any.
    fn finish(&mut self, now: Timestamp) -> bool {
        let record = self.record.lock();
        let mut any = false;
        while self.under_way.peek().is_some_and(|Reverse(attempt)| attempt.until <= now) {
            let Some(Reverse(attempt)) = self.under_way.pop() else {
                break;
            };
            let job = &record.jobs[attempt.number];
            // The engine may have ended the attempt before its worker finished.
            if job.running && job.attempt == attempt.report.attempt {
                self.reports.push(attempt.report);
                any = true;
            }
        }
        any
    }

    /// Runs the maintenance sweep. Returns whether it changed something that the queue must
    /// process.
    async fn sweep(&mut self, end: Timestamp) -> Result<bool, Failed> {
        self.record.lock().wake = None;
        let swept = self.engine.sweep().await?;
        {
            let mut record = self.record.lock();
            record.wake =
                record.wake.into_iter().chain(swept.next_at.filter(|at| *at <= end)).min();
        }
        let changed =
            swept.changed.into_iter().filter(|(job, version)| job.life.version != *version);
        let before = self.left.len();
        self.left.extend(changed.map(|(job, version)| (job.id, version)));
        if !swept.pending.is_empty() {
            let decisions = self.engine.decide_retries(swept.pending).await?;
            self.left.extend(decisions.changed.into_iter().map(|(job, version)| (job.id, version)));
        }
        Ok(self.left.len() > before)
    }

    async fn tick(&mut self, now: Timestamp) -> Result<(), Failed> {
        // As the sweeper of a server does.
        if now >= self.waiting_at {
            self.waiting_at =
                self.engine.count_waiting(now + COUNT_TIME).await?.unwrap_or(Timestamp::MAX);
        }
        // A worker that reports is free again.
        let busy = self.record.lock().running.saturating_sub(self.reports.len() as u32);
        let free = self.scenario.workers.saturating_sub(busy);
        let capacity = free.min(MAX_CLAIMS_PER_TICK);
        // A simulated worker never misses a heartbeat.
        let demand = Demand {
            min: 0,
            types: self.types.clone(),
            capacity,
            worker: None,
            lease: Some(DECADE),
            dispatch: Dispatch::Claim,
            call: None,
        };
        let input = TickInput {
            reports: std::mem::take(&mut self.reports),
            released: std::mem::take(&mut self.left),
            demands: vec![demand],
            queue_changed: std::mem::take(&mut self.queue_changed),
            ..TickInput::default()
        };
        let ticked = self.engine.tick(&self.scenario.name, &mut self.cache, input).await?;
        self.ticks += 1;
        self.ticked_at = Some(now);
        self.left = ticked.left;
        let soon = now + Duration::from_millis(1);
        let continue_soon =
            ticked.again || (ticked.claimed.len() as u32 == capacity && free > capacity);
        self.tick_at =
            if continue_soon { Some(soon) } else { ticked.next_at.map(|at| at.max(soon)) };
        {
            let mut record = self.record.lock();
            for (rule, count) in &ticked.held {
                *record.held.entry(rule.to_string()).or_default() += count;
            }
            for (id, reason) in self.seen.lock().tick_over(now) {
                record.hold(&id, reason);
            }
        }
        for claimed in ticked.claimed {
            self.start(&claimed.job, now);
        }
        Ok(())
    }
}
