//! Engines: the connection of each one to the store, and its ticks and sweeps.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use object_store::memory::InMemory;
#[cfg(feature = "aws")]
use parking_lot::Mutex;
#[cfg(feature = "aws")]
use tidegate_backends::dynamodb::{
    DynamoStore, LowWatermarks, TickRequests, memory::MemoryTable, table::Table,
};
use tidegate_core::{
    job::{Job, JobId, TypeName, Version},
    port::{Clock, Hint, HintKind, WorkQueue},
    queue::GrantDigest,
};
use tidegate_engine::{
    Claimed, Demand, Dispatch, Engine, Error, Ports, Rules, TickCache, TickInput, request::Report,
    testkit::builders::name,
};

use super::super::{
    bugs::Bug,
    model::ProcessNumber,
    releases::{Release, Releases},
    scheduler::{SharedEntropy, SkewedClock},
    store::EngineStore,
};
#[cfg(feature = "aws")]
use super::{
    super::{model::Model, scheduler::Scheduler, table::ObservedTable},
    config::{RunConfig, StoreKind},
};
use super::{
    PLAIN_TYPE, World,
    config::StartPath,
    messages::{Messages, arrived},
    unclaimed::{DISPATCHER, EngineProcess},
};
#[cfg(feature = "aws")]
use crate::dynamodb::emulator::EmulatedTable;

/// How long a write may be in flight on a store that writes one by one.
const MAX_IN_FLIGHT_WRITE: Duration = Duration::from_secs(5);

impl World {
    /// A new engine process at `index`, with its own store connection, clock and caches.
    pub(super) fn engine(self: &Arc<Self>, index: usize) -> EngineProcess {
        let in_flight = if self.config.slow { MAX_IN_FLIGHT_WRITE } else { Duration::ZERO };
        let in_flight = self.config.bug.map_or(in_flight, |bug| bug.in_flight_write(in_flight));
        let is_wrong = self.config.bug == Some(Bug::ClockAhead) && index == 0;
        let skew_millis = if is_wrong { 3_600_000 } else { self.scheduler.draw(801) as i64 - 400 };
        let clock: Arc<dyn Clock> =
            Arc::new(SkewedClock { scheduler: Arc::clone(&self.scheduler), skew_millis });
        let connection = self.store_connection(in_flight, &clock);
        let release = match (self.config.releases, index % 2 == 1) {
            (Releases::One, _) | (Releases::Two, false) => Release::This,
            (Releases::OneForgets, false) => Release::Forgetful,
            (_, true) => Release::Next,
        };
        connection.set_release(release);
        let faults_active = self.faults_active() && self.scheduler.steps() > 0;
        connection.set_faults(self.store_faults(faults_active));
        let number = {
            let mut connections = self.engine_stores.lock();
            connections.push(Arc::clone(&connection));
            ProcessNumber(connections.len())
        };
        let ports = Ports {
            store: connection,
            objects: Arc::new(InMemory::new()),
            work: self.work_queue(&clock),
            clock,
            entropy: Arc::new(SharedEntropy(Arc::clone(&self.scheduler))),
            policy: Arc::new(self.policy.clone()),
        };
        EngineProcess { number, engine: Arc::new(Engine::new(ports, Rules::default())) }
    }

    /// The messages, and on a table its requests for ticks.
    fn work_queue(self: &Arc<Self>, clock: &Arc<dyn Clock>) -> Arc<dyn WorkQueue> {
        let messages = Messages(Arc::downgrade(self));
        #[cfg(feature = "aws")]
        if let Some(table) = &self.table {
            let entropy = Arc::new(SharedEntropy(Arc::clone(&self.scheduler)));
            let table = Arc::clone(table) as Arc<dyn Table>;
            return Arc::new(TickRequests::new(
                Arc::new(messages),
                table,
                Arc::clone(clock),
                entropy,
            ));
        }
        let _ = clock;
        Arc::new(messages)
    }

    /// Leaves some of the hints in the table, and takes what was left there.
    async fn exchange_hints(
        &self,
        process: &EngineProcess,
        mut hints: Vec<(JobId, Version)>,
    ) -> (Vec<(JobId, Version)>, BTreeSet<GrantDigest>) {
        if self.is_requested_in_store() {
            let work = &process.engine.ports().work;
            let count = self.scheduler.draw(hints.len() + 1);
            let left: Vec<Hint> = hints
                .iter()
                .take(count)
                .map(|(job, version)| Hint {
                    queue: self.queue.clone(),
                    kind: HintKind::Released(job.clone(), *version),
                })
                .collect();
            if work.hint(&left).await.is_ok() {
                hints.drain(..count);
            }
            if let Ok(digests) = work.take_releases(&self.queue).await {
                return (hints, digests);
            }
        }
        (hints, BTreeSet::new())
    }

    /// Whether ticks are requested by an item of the store.
    fn is_requested_in_store(&self) -> bool {
        #[cfg(feature = "aws")]
        return self.table.is_some();
        #[cfg(not(feature = "aws"))]
        false
    }

    /// A new connection to the store.
    fn store_connection(&self, in_flight: Duration, clock: &Arc<dyn Clock>) -> Arc<EngineStore> {
        #[cfg(feature = "aws")]
        if let Some(table) = &self.table {
            let entropy = Arc::new(SharedEntropy(Arc::clone(&self.scheduler)));
            let store =
                DynamoStore::new(Arc::clone(table) as Arc<dyn Table>, Arc::clone(clock), entropy);
            // A run is too short for low watermarks to save much. They are used here because a
            // wrong one would hide a job.
            let store = store.with_low_watermarks(LowWatermarks {
                worth: 1,
                stuck: 2,
                old: Duration::from_secs(30),
            });
            // While a deployment changes its number of shards, some of its processes know the new
            // number and some do not.
            let store = store.with_shards(1 + self.scheduler.draw(2) as u8);
            return EngineStore::direct(
                Arc::new(store),
                &self.observed,
                in_flight,
                self.config.bug,
            );
        }
        let _ = clock;
        EngineStore::new(
            &self.observed,
            self.config.seed ^ self.scheduler.steps(),
            in_flight,
            self.config.bug,
        )
    }

    #[cfg(feature = "aws")]
    pub(super) fn table(
        config: RunConfig,
        scheduler: &Arc<Scheduler>,
        model: &Arc<Mutex<Model>>,
    ) -> Option<Arc<ObservedTable>> {
        let table: Arc<dyn Table> = match config.store_kind {
            StoreKind::Table => Arc::new(MemoryTable::new()),
            StoreKind::Emulator => Arc::new(EmulatedTable::new()),
            StoreKind::Memory | StoreKind::Sqlite => return None,
        };
        let (scheduler, model) = (Arc::clone(scheduler), Arc::clone(model));
        Some(Arc::new(ObservedTable {
            table,
            scheduler,
            model,
            faults: Mutex::default(),
            bug: config.table_bug,
        }))
    }

    /// Starts the processes of an engine. If the engine dies, a new one replaces it.
    pub(super) fn start_engine(self: &Arc<Self>, index: usize) {
        let (world, replacement) = (Arc::clone(self), Arc::clone(self));
        let restart = move || {
            replacement.model.lock().count("deaths");
            let process = replacement.engine(index);
            let dead = std::mem::replace(&mut replacement.engines.lock()[index], process);
            replacement.bury(dead.number);
            replacement.start_engine(index);
        };
        self.scheduler.spawn_restartable(async move { world.tick(index).await }, restart);
        self.start_sweeper(index);
        let world = Arc::clone(self);
        self.scheduler.spawn(async move { world.deliver().await });
        let world = Arc::clone(self);
        self.scheduler.spawn(async move { world.take_offers().await });
    }

    /// Starts the sweeps of an engine. If that process dies, it is started again.
    fn start_sweeper(self: &Arc<Self>, index: usize) {
        let (world, replacement) = (Arc::clone(self), Arc::clone(self));
        self.scheduler.spawn_restartable(async move { world.sweep(index).await }, move || {
            replacement.start_sweeper(index);
        });
    }

    /// Ticks until the end of the run.
    async fn tick(self: Arc<Self>, index: usize) {
        let (mut cache, mut scanning) = (TickCache::default(), false);
        loop {
            let process = self.engines.lock()[index].clone();
            let now = self.scheduler.now();
            // Responses come first: their number tells them from the reports.
            let mut reports = self.responses_to(process.number, now);
            let responses = reports.len();
            let released = {
                let mut in_flight = self.in_flight.lock();
                reports.extend(arrived(&mut in_flight.reports, now));
                arrived(&mut in_flight.hints, now)
            };
            let (released, released_digests) = self.exchange_hints(&process, released).await;
            let demands = self.demands(index);
            let kept = reports.clone();
            let queue_changed = !scanning || !reports.is_empty() || !released.is_empty();
            let input = TickInput {
                reports,
                released,
                released_digests,
                demands,
                queue_changed,
                ..TickInput::default()
            };
            let promised = self.model.lock().promised(&self.queue);
            let tick_outcome = process.engine.tick(&self.queue, &mut cache, input).await;
            scanning = tick_outcome.as_ref().is_ok_and(|tick_outcome| tick_outcome.again);
            if let Ok(tick_outcome) = tick_outcome {
                for (index, (report, answer)) in kept.iter().zip(&tick_outcome.reports).enumerate()
                {
                    if !matches!(answer, Err(Error::Unavailable { .. })) {
                        self.check_answer(report, answer);
                        if index < responses {
                            self.model.lock().check_response(report, answer);
                        }
                    } else if index < responses {
                        self.respond_again(process.number, report);
                    } else if !self.fault_happens(0.3) {
                        // The caller does not know the result, and sends the report again.
                        self.in_flight
                            .lock()
                            .reports
                            .push((now + Duration::from_secs(1), report.clone()));
                    }
                }
                self.in_flight
                    .lock()
                    .hints
                    .extend(tick_outcome.left.into_iter().map(|hint| (now, hint)));
                self.offer(tick_outcome.offers.into_iter().map(|(_, work)| work));
                for Claimed { job, .. } in tick_outcome.claimed {
                    let granted = job.life.running().is_some_and(|run| run.granted);
                    if granted {
                        self.start(job, StartPath::GrantedClaim);
                    } else if job.spec.job_type.as_str() == PLAIN_TYPE {
                        self.model.lock().dispatch(process.number, &job, promised, now);
                        self.start_unclaimed(job, &process);
                    } else {
                        self.start(job, StartPath::UngrantedClaim);
                    }
                }
                self.model.lock().count("ticks");
            } else {
                for report in kept.iter().take(responses) {
                    self.respond_again(process.number, report);
                }
                // The callers that are alive send their reports again.
                let repeated: Vec<_> = kept
                    .into_iter()
                    .skip(responses)
                    .filter(|_| !self.fault_happens(0.3))
                    .map(|report| (now + Duration::from_secs(1), report))
                    .collect();
                self.in_flight.lock().reports.extend(repeated);
            }
            if self.fault_happens(0.03) {
                cache = TickCache::default();
            }
            if self.config.bug == Some(Bug::DispatchesForgotten) && self.fault_happens(0.03) {
                let replacement = EngineProcess { number: process.number, ..self.engine(index) };
                self.engines.lock()[index] = replacement;
            }
            if !scanning {
                let nap = self.scheduler.span(1.5);
                self.scheduler.elapse(nap + Duration::from_millis(50)).await;
            }
        }
    }

    /// Checks that a report of the running attempt is accepted, and that an accepted report is
    /// recorded.
    fn check_answer(&self, report: &Report, answer: &Result<Job, Error>) {
        let mut model = self.model.lock();
        let Some(job) = model.jobs.get(&report.id) else {
            return;
        };
        // After a death, an unclaimed dispatch starts the same attempt again, with another token.
        let running = job.life.attempt == report.attempt
            && job.life.running().is_some_and(|run| report.token == Some(run.token));
        let recorded = job.life.history.iter().any(|entry| entry.attempt == report.attempt);
        match answer {
            Ok(_) if !recorded => {
                model.fault(format!(
                    "a report of {} attempt {} was accepted and is not recorded",
                    report.id, report.attempt
                ));
            }
            Err(error) if running => model.fault(format!(
                "a report of the running attempt of {} was refused: {error:?}",
                report.id
            )),
            _ => {}
        }
    }

    /// The current demands of the workers of the process at `index`.
    fn demands(&self, index: usize) -> Vec<Demand> {
        let types = |prefix: &str| {
            self.job_types()
                .iter()
                .filter(|of| of.starts_with(prefix) && **of != PLAIN_TYPE)
                .map(|of| name::<TypeName>(of))
                .collect::<Vec<_>>()
        };
        let demand = |types, capacity, dispatch| Demand {
            types,
            capacity,
            worker: Some("worker".into()),
            lease: None,
            dispatch,
        };
        let always = !self.faults_active();
        // A tick that offers jobs sends none.
        if self.scheduler.happens(0.3) {
            let capacity = 1 + self.scheduler.draw(3) as u32;
            return vec![demand(types("pull"), capacity, Dispatch::Offer)];
        }
        let mut demands = Vec::new();
        if always || self.scheduler.happens(0.7) {
            demands.push(demand(types("push"), 1 + self.scheduler.draw(4) as u32, Dispatch::Queue));
        }
        if always || self.scheduler.happens(0.4) {
            demands.push(demand(types("pull"), 1 + self.scheduler.draw(3) as u32, Dispatch::Claim));
        }
        if self.config.late_limit && index == DISPATCHER {
            let plain = vec![name(PLAIN_TYPE)];
            demands.push(demand(plain, 1 + self.scheduler.draw(8) as u32, Dispatch::Claim));
        }
        demands
    }

    /// Sweeps until the end of the run.
    async fn sweep(self: Arc<Self>, index: usize) {
        loop {
            let nap = self.scheduler.span(4.0);
            self.scheduler.elapse(nap + Duration::from_millis(500)).await;
            let engine = Arc::clone(&self.engines.lock()[index].engine);
            if let Ok(replies) = engine.sweep_replies(None).await {
                for (job, version) in replies.changed {
                    self.hint(&job, version);
                }
            }
            if let Ok(swept) = engine.sweep().await {
                for (job, version) in swept.changed {
                    self.hint(&job, version);
                }
                if let Ok(decisions) = engine.decide_retries(swept.pending).await {
                    for (job, version) in decisions.changed {
                        self.model.lock().count("decisions");
                        self.hint(&job, version);
                    }
                }
            }
        }
    }

    /// Sends the ticks a hint that a job left a version, unless it gets lost.
    pub(super) fn hint(&self, job: &Job, version: Version) {
        let is_wrong = self.config.bug == Some(Bug::HintsPremature);
        if job.life.version == version && !is_wrong {
            return;
        }
        for _ in 0..=usize::from(self.fault_happens(0.3)) {
            if !self.fault_happens(0.3) {
                let late = self.scheduler.span(if self.fault_happens(0.3) { 40.0 } else { 1.0 });
                let version = if is_wrong { job.life.version } else { version };
                self.in_flight
                    .lock()
                    .hints
                    .push((self.scheduler.now() + late, (job.id.clone(), version)));
            }
        }
    }
}
