//! Engines: how each one reaches the store, and its ticks and sweeps.

use std::{sync::Arc, time::Duration};

use object_store::memory::InMemory;
#[cfg(feature = "aws")]
use parking_lot::Mutex;
#[cfg(feature = "aws")]
use tidegate_backends::dynamodb::{DynamoStore, LowWatermarks, memory::MemoryTable, table::Table};
use tidegate_core::{
    job::{Job, TypeName, Version},
    port::Clock,
};
use tidegate_engine::{
    Claimed, Demand, Dispatch, Engine, Error, Ports, Rules, TickCache, TickInput,
    request::Report,
    testkit::{builders::name, faults::Faults},
};

use super::super::{
    bugs::Bug,
    scheduler::{SharedEntropy, SkewedClock},
    store::Way,
};
#[cfg(feature = "aws")]
use super::{
    super::{model::Model, scheduler::Scheduler, table::WatchedTable},
    plan::{Home, Plan},
};
use super::{
    STORE_FAULTS, TYPES, World,
    messages::{Messages, arrived},
    plan::StartPath,
};
#[cfg(feature = "aws")]
use crate::dynamodb::emulator::EmulatedTable;

/// How long a write may be under way on a store that writes one by one.
const FLIGHT: Duration = Duration::from_secs(5);

impl World {
    /// A new engine process at place `index`: its own way to the store, clock and caches.
    pub(super) fn engine(self: &Arc<Self>, index: usize) -> Arc<Engine> {
        let flight = if self.plan.slow { FLIGHT } else { Duration::ZERO };
        let flight = self.plan.bug.map_or(flight, |bug| bug.flight(flight));
        let lies = self.plan.bug == Some(Bug::ClockLies) && index == 0;
        let skew_millis = if lies { 3_600_000 } else { self.scheduler.draw(801) as i64 - 400 };
        let clock: Arc<dyn Clock> =
            Arc::new(SkewedClock { scheduler: Arc::clone(&self.scheduler), skew_millis });
        let way = self.way(flight, &clock);
        let faulty = self.faulty() && self.scheduler.steps() > 0;
        way.set_faults(if faulty { STORE_FAULTS } else { Faults::default() });
        self.ways.lock().push(Arc::clone(&way));
        let ports = Ports {
            store: way,
            objects: Arc::new(InMemory::new()),
            work: Arc::new(Messages(Arc::downgrade(self))),
            clock,
            entropy: Arc::new(SharedEntropy(Arc::clone(&self.scheduler))),
            policy: Arc::new(self.policy.clone()),
        };
        Arc::new(Engine::new(ports, Rules::default()))
    }

    /// A new way to what is stored.
    fn way(&self, flight: Duration, clock: &Arc<dyn Clock>) -> Arc<Way> {
        #[cfg(feature = "aws")]
        if let Some(table) = &self.table {
            let entropy = Arc::new(SharedEntropy(Arc::clone(&self.scheduler)));
            let store =
                DynamoStore::new(Arc::clone(table) as Arc<dyn Table>, Arc::clone(clock), entropy);
            // A run is too short for floors to be worth much, and they are where a job would be forgotten.
            let store = store.with_low_watermarks(LowWatermarks {
                worth: 1,
                stuck: 2,
                old: Duration::from_secs(30),
            });
            // While a deployment spreads its jobs over more partitions, or over fewer, some of its processes know and some do not.
            let store = store.with_shards(1 + self.scheduler.draw(2) as u8);
            return Way::straight(Arc::new(store), &self.watched, flight, self.plan.bug);
        }
        let _ = clock;
        Way::new(&self.watched, self.plan.seed ^ self.scheduler.steps(), flight, self.plan.bug)
    }

    #[cfg(feature = "aws")]
    pub(super) fn table(
        plan: Plan,
        scheduler: &Arc<Scheduler>,
        model: &Arc<Mutex<Model>>,
    ) -> Option<Arc<WatchedTable>> {
        let table: Arc<dyn Table> = match plan.home {
            Home::Table => Arc::new(MemoryTable::new()),
            Home::Emulator => Arc::new(EmulatedTable::new()),
            Home::Memory | Home::Sqlite => return None,
        };
        let (scheduler, model) = (Arc::clone(scheduler), Arc::clone(model));
        Some(Arc::new(WatchedTable {
            table,
            scheduler,
            model,
            trouble: Mutex::default(),
            bug: plan.table_bug,
        }))
    }

    /// Starts what an engine does of its own; if it dies, a fresh one takes its place.
    pub(super) fn start_engine(self: &Arc<Self>, index: usize) {
        let (world, heir) = (Arc::clone(self), Arc::clone(self));
        let reborn = move || {
            heir.model.lock().count("deaths");
            let engine = heir.engine(index);
            heir.engines.lock()[index] = engine;
            heir.start_engine(index);
        };
        self.scheduler.spawn_with_heir(async move { world.tick(index).await }, reborn);
        self.start_sweeper(index);
        let world = Arc::clone(self);
        self.scheduler.spawn(async move { world.deliver().await });
    }

    /// Starts an engine's sweeps; if they end half way, others take their place: a process is started again.
    fn start_sweeper(self: &Arc<Self>, index: usize) {
        let (world, heir) = (Arc::clone(self), Arc::clone(self));
        self.scheduler.spawn_with_heir(async move { world.sweep(index).await }, move || {
            heir.start_sweeper(index);
        });
    }

    /// Ticks until the end of the run.
    async fn tick(self: Arc<Self>, index: usize) {
        let (mut cache, mut scanning) = (TickCache::default(), false);
        loop {
            let engine = Arc::clone(&self.engines.lock()[index]);
            let now = self.scheduler.now();
            let (reports, released) = {
                let mut mail = self.mail.lock();
                let reports = arrived(&mut mail.reports, now);
                let released = arrived(&mut mail.hints, now);
                (reports, released)
            };
            let demands = self.demands();
            let kept = reports.clone();
            let news = !scanning || !reports.is_empty() || !released.is_empty();
            let round = TickInput { reports, released, demands, news, ..TickInput::default() };
            let tick_outcome = engine.tick(&self.queue, &mut cache, round).await;
            scanning = tick_outcome.as_ref().is_ok_and(|tick_outcome| tick_outcome.again);
            if let Ok(tick_outcome) = tick_outcome {
                for (report, answer) in kept.iter().zip(&tick_outcome.reports) {
                    if !matches!(answer, Err(Error::Unavailable { .. })) {
                        self.check_answer(report, answer);
                    } else if !self.bad(0.3) {
                        // Its caller does not know what became of it, and sends it again.
                        self.mail
                            .lock()
                            .reports
                            .push((now + Duration::from_secs(1), report.clone()));
                    }
                }
                self.mail
                    .lock()
                    .hints
                    .extend(tick_outcome.left.into_iter().map(|hint| (now, hint)));
                for Claimed { job, .. } in tick_outcome.claimed {
                    let granted = job.life.running().is_some_and(|run| run.granted);
                    let claim =
                        if granted { StartPath::GrantedClaim } else { StartPath::UngrantedClaim };
                    self.start(job, claim);
                }
                self.model.lock().count("ticks");
            } else {
                // The callers send their reports again, if they live.
                let repeated: Vec<_> = kept
                    .into_iter()
                    .filter(|_| !self.bad(0.3))
                    .map(|report| (now + Duration::from_secs(1), report))
                    .collect();
                self.mail.lock().reports.extend(repeated);
            }
            if self.bad(0.03) {
                cache = TickCache::default();
            }
            if !scanning {
                let nap = self.scheduler.span(1.5);
                self.scheduler.sleep(nap + Duration::from_millis(50)).await;
            }
        }
    }

    /// A report of the running attempt is never refused, and one that was taken is recorded.
    fn check_answer(&self, report: &Report, answer: &Result<Job, Error>) {
        let mut model = self.model.lock();
        let Some(job) = model.jobs.get(&report.id) else {
            return;
        };
        let running = job.life.attempt == report.attempt && job.life.running().is_some();
        let recorded = job.life.history.iter().any(|entry| entry.attempt == report.attempt);
        match answer {
            Ok(_) if !recorded => {
                model.fault(format!(
                    "a report of {} attempt {} was taken and is not recorded",
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

    /// Who takes jobs at this moment.
    fn demands(&self) -> Vec<Demand> {
        let types = |prefix: &str| {
            TYPES
                .iter()
                .filter(|of| of.starts_with(prefix))
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
        let mut demands = Vec::new();
        let busy = !self.faulty();
        if busy || self.scheduler.happens(0.7) {
            demands.push(demand(types("push"), 1 + self.scheduler.draw(4) as u32, Dispatch::Queue));
        }
        if busy || self.scheduler.happens(0.4) {
            demands.push(demand(types("pull"), 1 + self.scheduler.draw(3) as u32, Dispatch::Claim));
        }
        demands
    }

    /// Sweeps until the end of the run.
    async fn sweep(self: Arc<Self>, index: usize) {
        loop {
            let nap = self.scheduler.span(4.0);
            self.scheduler.sleep(nap + Duration::from_millis(500)).await;
            let engine = Arc::clone(&self.engines.lock()[index]);
            if let Ok(heard) = engine.sweep_replies(None).await {
                for (job, version) in heard.changed {
                    self.hint(&job, version);
                }
            }
            if let Ok(swept) = engine.sweep().await {
                for (job, version) in swept.changed {
                    self.hint(&job, version);
                }
                if let Ok(verdicts) = engine.verdicts(swept.pending).await {
                    for (job, version) in verdicts.changed {
                        self.model.lock().count("verdicts");
                        self.hint(&job, version);
                    }
                }
            }
        }
    }

    /// Tells the ticks that a job left a version; or that gets lost.
    pub(super) fn hint(&self, job: &Job, version: Version) {
        let lies = self.plan.bug == Some(Bug::HintsLie);
        if job.life.version == version && !lies {
            return;
        }
        for _ in 0..=usize::from(self.bad(0.3)) {
            if !self.bad(0.3) {
                let late = self.scheduler.span(if self.bad(0.3) { 40.0 } else { 1.0 });
                let version = if lies { job.life.version } else { version };
                self.mail
                    .lock()
                    .hints
                    .push((self.scheduler.now() + late, (job.id.clone(), version)));
            }
        }
    }
}
