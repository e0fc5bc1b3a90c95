//! A simulation: the real engine, a store in memory, and a clock that jumps from one moment at which something happens to
//! the next.
//!
//! ```text
//!   next moment ─▶ arrivals ─▶ enqueue ─┐
//!       ▲          results ─────────────┼─▶ tick ─▶ claimed jobs: how long, and how they end, is drawn
//!       └──────────────── sweep ────────┘                       │
//!       ◀───────────────────────────────────────────────────────┘
//! ```

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    arrivals::{self, Coming},
    draw::{Draw, For},
    policies::{Plugins, SeenDecisions, Watched},
    record::{By, Recording},
    report::Over,
    scenario::{BadScenario, Scenario, Service, TracedAttempt},
    store::SimulationStore,
};
use crate::{
    Demand, Dispatch, Engine, Error, Ports, Rules, TickCache, TickInput,
    memory::{FakeClock, MemoryWorkQueue, SeededEntropy},
    plugins::registry::Stage,
    request::{Report, ReportOutcome},
};
use tidegate_core::{
    job::{
        Job, JobId, Outcome, PluginName, QueueName, TypeName, Version,
        lifecycle::{Failure, Reason},
        retry::Retry,
        spec::KeepResult,
        type_config::{HoldSlotUntil, OnResponseTimeout, Start, TypeConfig},
    },
    port::Clock,
    queue::{Order, matcher::Subject},
    time::{Seconds, Timestamp},
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
/// What types that name no retry strategy of their own call the simulated one.
const RETRY: &str = "simulated-retry";
/// How long an attempt takes that no rule says anything of.
const USUAL: f64 = 1.0;

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

/// An attempt under way.
#[derive(Debug)]
struct Attempt {
    until: Timestamp,
    /// Of attempts that end at one moment, that which started first.
    order: u64,
    number: usize,
    report: Report,
}

impl PartialEq for Attempt {
    fn eq(&self, other: &Self) -> bool {
        (self.until, self.order) == (other.until, other.order)
    }
}

impl Eq for Attempt {}

impl PartialOrd for Attempt {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Attempt {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.until, self.order).cmp(&(other.until, other.order))
    }
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

/// Simulates `scenario`, its jobs told apart by `by`; `tell` is told now and then how many jobs have ended.
///
/// # Errors
///
/// The scenario is not sound, or the queue refuses its configuration or one of its jobs.
pub(super) async fn run(
    scenario: &Scenario,
    plugins: &Plugins,
    by: By,
    tell: &mut (dyn FnMut(u64) + Send),
) -> Result<Ran, Failed> {
    scenario.check()?;
    let coming = arrivals::coming(scenario);
    let ids = arrivals::ids(&coming)?;
    let watches =
        scenario.expect.max_running.keys().map(|key| {
            key.split_once('=').map(|(name, value)| (By::named(name), value.to_owned()))
        });
    let record = Arc::new(Mutex::new(Recording::new(scenario.start, by, watches)));
    let clock = Arc::new(FakeClock::new(scenario.start));
    let store = SimulationStore::new(
        scenario.name.clone(),
        Order::of(&scenario.queue),
        clock.clone(),
        Arc::clone(&record),
    );
    let seen = Arc::new(Mutex::new(SeenDecisions::default()));
    let policy = Watched {
        policy: Arc::clone(&plugins.policy),
        meter: plugins.meter.clone(),
        seen: Arc::clone(&seen),
    };
    let ports = Ports {
        store: Arc::new(store),
        objects: Arc::clone(&plugins.objects),
        policy: Arc::new(policy),
        work: Arc::new(MemoryWorkQueue::default()),
        clock: clock.clone(),
        entropy: Arc::new(SeededEntropy::new(scenario.seed)),
    };
    let mut types: Vec<TypeName> =
        coming.iter().map(|job| job.job_type).chain(scenario.types.keys()).cloned().collect();
    types.sort_unstable();
    types.dedup();
    let mut world = World {
        scenario,
        plugins,
        seen,
        engine: Engine::new(ports, Rules::default()),
        clock,
        record,
        memory: TickCache::default(),
        types,
        coming,
        ids,
        came: 0,
        under_way: BinaryHeap::new(),
        started: 0,
        reports: Vec::new(),
        left: Vec::new(),
        tick_at: None,
        news: false,
        ticked_at: None,
        rounds: 0,
    };
    world.configure().await?;
    let over = world.live(tell).await?;
    let end = world.clock.now().since(scenario.start).as_millis() as u64;
    let World { record, seen, rounds, ids, .. } = world;
    let (record, seen) = (record.lock().clone(), std::mem::take(&mut *seen.lock()));
    Ok(Ran { record, over, end, rounds, ids, seen })
}

impl World<'_> {
    async fn configure(&self) -> Result<(), Failed> {
        let refused = |what: String| move |error| Failed::Refused { what, error };
        let (name, mut queue) = (&self.scenario.name, self.scenario.queue.clone());
        if let Some((version, throttler)) = &self.plugins.throttler {
            let pushed =
                self.engine.push_plugin(&throttler.plugin, version.clone(), Stage::Live).await;
            pushed.map_err(refused(format!("plugin {}", throttler.plugin)))?;
            queue.throttler = Some(throttler.clone());
        }
        if let Some((version, _)) = &self.plugins.retry {
            for strategy in self.strategies() {
                let pushed = self.engine.push_plugin(&strategy, version.clone(), Stage::Live).await;
                pushed.map_err(refused(format!("plugin {strategy}")))?;
            }
        }
        self.engine.put_queue(name, queue, None).await.map_err(refused(format!("queue {name}")))?;
        for job_type in &self.types {
            let mut config =
                simulated(self.scenario.types.get(job_type).cloned().unwrap_or_default(), name);
            if let (Some((_, given)), Retry::Exponential(_)) = (&self.plugins.retry, &config.retry)
            {
                config.retry =
                    Retry::Plugin(RETRY.parse().expect("a good name"), Arc::clone(given));
            }
            self.engine
                .put_type(job_type, config, None)
                .await
                .map_err(refused(format!("type {job_type}")))?;
        }
        Ok(())
    }

    /// The names that the retry strategy is given: those by which types name theirs.
    fn strategies(&self) -> BTreeSet<PluginName> {
        let named = self.scenario.types.values().filter_map(|config| match &config.retry {
            Retry::Plugin(name, _) => Some(name.clone()),
            Retry::Exponential(_) => None,
        });
        named.chain([RETRY.parse().expect("a good name")]).collect()
    }

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

    /// A worker starts an attempt: how long it takes, and how it ends, is settled now.
    fn start(&mut self, job: &Job, now: Timestamp) {
        let number = self.record.lock().number(&job.id).expect("it was enqueued");
        let attempt = job.life.attempt;
        let (seconds, verdict) = match self.coming[number].attempts.get(usize::from(attempt) - 1) {
            Some(traced) if traced.outcome.is_some() => (traced.seconds, traced_verdict(traced)),
            _ => self.drawn(job, number, now),
        };
        let token = job.life.running().map(|run| run.token);
        let report =
            Report { id: job.id.clone(), job_type: None, attempt, token, outcome: verdict };
        self.started += 1;
        self.under_way.push(Reverse(Attempt {
            until: now + seconds.duration(),
            order: self.started,
            number,
            report,
        }));
    }

    /// How long an attempt takes and how it ends, by the first rule that matches its job.
    fn drawn(&self, job: &Job, number: usize, now: Timestamp) -> (Seconds, ReportOutcome) {
        let spec = &job.spec;
        let subject = Subject {
            job_type: &spec.job_type,
            priority: spec.priority,
            attributes: &spec.attributes,
        };
        let Some(rule) = self.scenario.service.iter().find(|rule| rule.matcher.matches(subject))
        else {
            return (arrivals::span(USUAL), ReportOutcome::Succeeded { result: None });
        };
        let mut draw =
            Draw::new(self.scenario.seed, For::Attempt, number as u64, u64::from(job.life.attempt));
        let (chance, seconds) = (draw.fraction(), draw.span(rule.seconds));
        let at = now.since(self.scenario.start);
        match fails(rule, chance, at) {
            None => (arrivals::span(seconds), ReportOutcome::Succeeded { result: None }),
            Some(failure) => {
                let seconds = failure.seconds.map_or(seconds, |span| draw.span(span));
                (arrivals::span(seconds), failed(failure.reason, failure.status, failure.retryable))
            }
        }
    }
}

fn fails(rule: &Service, chance: f64, at: Duration) -> Option<&super::scenario::FailureRule> {
    let failure = rule.failure.as_ref()?;
    let within = failure
        .during_seconds
        .is_none_or(|[from, to]| (from.duration()..to.duration()).contains(&at));
    (within && chance < failure.rate).then_some(failure)
}

fn failed(reason: Reason, status: Option<u16>, retryable: bool) -> ReportOutcome {
    let message =
        status.map_or_else(|| "simulated".to_owned(), |status| format!("simulated: HTTP {status}"));
    let failure = Failure { status, ..Failure::new(reason, message) };
    ReportOutcome::Failed { failure, retryable, least_wait: Duration::ZERO }
}

fn traced_verdict(traced: &TracedAttempt) -> ReportOutcome {
    match traced.outcome {
        Some(Outcome::Failed) => {
            failed(traced.reason.unwrap_or(Reason::Failed), traced.status, true)
        }
        _ => ReportOutcome::Succeeded { result: None },
    }
}

/// The type as it is simulated: in this queue, for workers who always answer, and with nobody to tell.
fn simulated(config: TypeConfig, queue: &QueueName) -> TypeConfig {
    TypeConfig {
        queue: queue.clone(),
        target: None,
        callback_url: None,
        keep_result: KeepResult::None,
        retention_seconds: DECADE,
        hold_slot_until: HoldSlotUntil::LeaseEnd,
        start: Start::Claim,
        on_response_timeout: OnResponseTimeout::Fail,
        ..config
    }
}
