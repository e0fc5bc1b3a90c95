//! A simulation: the real engine, a store in memory, and a clock that jumps from one moment at which something happens to
//! the next.
//!
//! ```text
//!   next moment ─▶ arrivals ─▶ enqueue ─┐
//!       ▲          results ─────────────┼─▶ tick ─▶ claimed jobs: how long, and how they end, is drawn
//!       └──────────────── sweep ────────┘                       │
//!       ◀───────────────────────────────────────────────────────┘
//! ```

mod attempts;
mod setup;

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Duration};

use parking_lot::Mutex;

pub(super) use setup::run;

use self::attempts::Attempt;
use super::{
    arrivals::Coming,
    policies::{Plugins, SeenDecisions},
    record::Recording,
    report::Over,
    scenario::{BadScenario, Scenario},
};
use crate::{
    Demand, Dispatch, Engine, Error, TickCache, TickInput, memory::FakeClock, request::Report,
};
use tidegate_core::{
    job::{JobId, TypeName, Version},
    port::Clock,
    time::Timestamp,
    validate::DECADE,
};

/// Most rounds of a simulation.
const MOST_ROUNDS: u64 = 20_000_000;
/// Most jobs that workers take in one round. Those of a live queue ask for a few each, and a round reads as many candidates as
/// are asked for; whoever is still free asks in the next one.
const ROOM: u32 = 100;
/// Most jobs of one enqueue.
const BATCH: usize = 1000;
/// How often progress is told, in rounds.
const TELL: u64 = 256;

/// Why there is no report.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failed {
    /// The scenario cannot be simulated.
    #[error("{0}")]
    Scenario(#[from] BadScenario),
    /// The queue refuses something of it.
    #[error("{what} is refused: {error}")]
    Refused {
        /// What.
        what: String,
        /// Why.
        error: Error,
    },
    /// The engine failed, which it must not.
    #[error("the simulated queue failed: {0}")]
    Engine(#[from] Error),
}

/// A simulation that is over.
pub(super) struct Ran {
    pub record: Recording,
    pub over: Over,
    /// When, in milliseconds from its start.
    pub end: u64,
    pub rounds: u64,
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
    memory: TickCache,
    types: Vec<TypeName>,
    coming: Vec<Coming<'a>>,
    ids: Vec<JobId>,
    /// How many have come.
    came: usize,
    under_way: BinaryHeap<Reverse<Attempt>>,
    started: u64,
    /// Results that the next round takes.
    reports: Vec<Report>,
    left: Vec<(JobId, Version)>,
    /// When the next round is to be, if one is.
    tick_at: Option<Timestamp>,
    /// Whether something happened since the last round.
    news: bool,
    ticked_at: Option<Timestamp>,
    rounds: u64,
}

impl World<'_> {
    /// Goes from moment to moment to the end.
    async fn live(&mut self, tell: &mut (dyn FnMut(u64) + Send)) -> Result<Over, Failed> {
        let end = self.scenario.start + self.scenario.duration_seconds.duration();
        let total = self.coming.len() as u64;
        loop {
            if self.record.lock().ended == total {
                return Ok(Over::Done);
            }
            let arrival = self.coming.get(self.came).map(|job| job.at);
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
            // What waited for a round may have waited until now.
            let now = now.max(self.clock.now());
            self.clock.set(now);
            let mut happened = self.arrive(now).await?;
            happened |= self.finish(now);
            if wake.is_some_and(|at| at <= now) {
                happened |= self.sweep(end).await?;
            }
            if happened {
                (self.tick_at, self.news) = (Some(now), true);
            }
            let free_at =
                self.ticked_at.map_or(now, |at| at + self.scenario.tick_seconds.duration());
            self.tick_at = self.tick_at.map(|at| at.max(free_at));
            if self.tick_at.is_some_and(|at| at <= now) {
                self.round(now).await?;
                if self.rounds.is_multiple_of(TELL) {
                    tell(self.record.lock().ended);
                }
                if self.rounds >= MOST_ROUNDS {
                    return Ok(Over::Rounds);
                }
            }
        }
    }

    /// Hands in the jobs that come by `now`; whether there were any.
    async fn arrive(&mut self, now: Timestamp) -> Result<bool, Failed> {
        let first = self.came;
        while self.coming.get(self.came).is_some_and(|job| job.at <= now) {
            let from = self.came;
            let here = self.coming[from..].iter().take_while(|job| job.at <= now).take(BATCH);
            let jobs: Vec<_> =
                here.zip(&self.ids[from..]).map(|(job, id)| job.request(id.clone())).collect();
            self.came += jobs.len();
            for (answer, id) in self.engine.enqueue(jobs).await.into_iter().zip(&self.ids[from..]) {
                answer.map_err(|error| Failed::Refused { what: format!("job {id}"), error })?;
            }
        }
        Ok(self.came > first)
    }

    /// Takes the results that have come by `now`; whether there were any.
    fn finish(&mut self, now: Timestamp) -> bool {
        let record = self.record.lock();
        let mut any = false;
        while self.under_way.peek().is_some_and(|Reverse(attempt)| attempt.until <= now) {
            let Some(Reverse(attempt)) = self.under_way.pop() else {
                break;
            };
            let note = &record.jobs[attempt.number];
            // The engine may have given it up before its worker was done.
            if note.running && note.attempt == attempt.report.attempt {
                self.reports.push(attempt.report);
                any = true;
            }
        }
        any
    }

    /// Lets what expires expire; whether anything changed that the queue must know.
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
            let verdicts = self.engine.verdicts(swept.pending).await?;
            self.left.extend(verdicts.changed.into_iter().map(|(job, version)| (job.id, version)));
        }
        Ok(self.left.len() > before)
    }

    async fn round(&mut self, now: Timestamp) -> Result<(), Failed> {
        // Whoever reports is free again.
        let busy = self.record.lock().running.saturating_sub(self.reports.len() as u32);
        let free = self.scenario.workers.saturating_sub(busy);
        let room = free.min(ROOM);
        // A simulated worker gives its signs of life in time.
        let ask = Demand {
            types: self.types.clone(),
            capacity: room,
            worker: None,
            lease: Some(DECADE),
            dispatch: Dispatch::Claim,
        };
        let round = TickInput {
            reports: std::mem::take(&mut self.reports),
            released: std::mem::take(&mut self.left),
            demands: vec![ask],
            news: std::mem::take(&mut self.news),
            ..TickInput::default()
        };
        let ticked = self.engine.tick(&self.scenario.name, &mut self.memory, round).await?;
        self.rounds += 1;
        self.ticked_at = Some(now);
        self.left = ticked.left;
        let soon = now + Duration::from_millis(1);
        let again = ticked.again || (ticked.claimed.len() as u32 == room && free > room);
        self.tick_at = if again { Some(soon) } else { ticked.next_at.map(|at| at.max(soon)) };
        {
            let mut record = self.record.lock();
            for (rule, count) in &ticked.held {
                *record.held.entry(rule.to_string()).or_default() += count;
            }
            for (id, reason) in self.seen.lock().round_over(now) {
                record.hold(&id, reason);
            }
        }
        for claimed in ticked.claimed {
            self.start(&claimed.job, now);
        }
        Ok(())
    }
}
