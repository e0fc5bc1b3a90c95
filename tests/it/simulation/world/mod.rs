//! The processes of a simulated world: engines that tick and sweep, workers, clients, and an owner
//! who changes limits.

mod clients;
mod config;
mod connections;
mod engines;
mod events;
mod leaders;
mod messages;
mod owner;
mod unclaimed;
mod workers;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_backends::sqlite::SqliteStore;
use tidegate_core::{
    job::QueueName,
    port::job_store::SharedStore,
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    Engine,
    memory::MemoryStore,
    testkit::{FnPolicy, builders::name, faults::Faults},
};
use tokio::runtime::Runtime;

pub use config::{RunConfig, StoreKind, unreached};

use self::{messages::InFlight, unclaimed::EngineProcess};
#[cfg(feature = "aws")]
use super::table::{ObservedTable, TABLE_FAULTS, TableFaults};
use super::{
    log::Log,
    model::Model,
    plugins,
    postgres::{self, Server},
    scheduler::{ProcessFaults, Scheduler},
    shared::Scheduled,
    store::{EngineStore, ObservedStore},
};

/// How long faults are injected, not counting the time when ticks are off.
const FAULT_PERIOD: Duration = Duration::from_mins(3);
/// How long ticks and sweeps are off in some worlds. Windows of the day are open after it as before.
const TIME_OFF: Duration = Duration::from_hours(24);
/// The longest time after that until every job has ended.
const MAX_DRAIN_PERIOD: Duration = Duration::from_mins(10);
/// The longest time after that until every slot is free: the audit interval, and the ticks around
/// it.
const MAX_AUDIT_PERIOD: Duration = Duration::from_secs(75);
/// The longest pause of a process between two steps: longer than a lease, a claim deadline and the
/// audit interval.
const MAX_PROCESS_PAUSE: Duration = Duration::from_secs(90);
/// How long a call to a push target waits for its response.
const RESPONSE_TIMEOUT: Seconds = Seconds::from_millis(10_000);
/// How often the grants are audited in a world with a log, in which time passes in small steps.
const AUDIT_STEP: Duration = Duration::from_millis(100);
const ENGINE_COUNT: usize = 3;
const JOB_TYPES: [&str; 4] = ["push", "push-once", "pull", "pull-once"];
/// The types of a world whose queue starts without a ledger.
const JOB_TYPES_WITH_PLAIN: [&str; 5] = ["push", "push-once", "pull", "pull-once", PLAIN_TYPE];
/// The type of the jobs that start by unclaimed dispatch while the queue has no ledger.
const PLAIN_TYPE: &str = "push-plain";

/// The faults of an engine's connection to the store.
const STORE_FAULTS: Faults =
    Faults { cut: 0.03, lose_answer: 0.04, unavailable: 0.03, throttled: 0.01, reads: 0.01 };
/// How often a commit, or a request of a table, is refused in a throttled world.
const HEAVY_THROTTLING: f64 = 0.15;

pub struct World {
    config: RunConfig,
    scheduler: Arc<Scheduler>,
    model: Arc<Mutex<Model>>,
    /// The store as each of its servers sees it: one of Postgres has two, others have one.
    observed: Vec<Arc<ObservedStore>>,
    /// What the servers of a shared store have scheduled.
    scheduled: Arc<Scheduled>,
    /// The log, if the store is behind one.
    log: Option<Arc<Log>>,
    /// The table, if the store is on one.
    #[cfg(feature = "aws")]
    table: Option<Arc<ObservedTable>>,
    engines: Mutex<Vec<EngineProcess>>,
    engine_stores: Mutex<Vec<Arc<EngineStore>>>,
    in_flight: Mutex<InFlight>,
    faults_until: Timestamp,
    /// When ticks and sweeps are off.
    ticks_off: Option<(Timestamp, Timestamp)>,
    queue: QueueName,
    policy: FnPolicy,
}

/// The summary of a run.
pub struct Summary {
    pub counts: BTreeMap<&'static str, u64>,
    pub steps: u64,
    /// A hash of everything that was written, in order: two runs of one seed must agree.
    pub log_hash: u64,
}

impl World {
    /// Runs a world to its end.
    ///
    /// # Errors
    ///
    /// The first violated invariant, with the end of the event log.
    pub fn run(config: RunConfig) -> Result<Summary, String> {
        let scheduler = Scheduler::new(config.seed);
        let model = Arc::new(Mutex::new(Model::default()));
        let dir = tempfile::tempdir().expect("a directory");
        // A replica reads and writes the parts of snapshots on threads of a runtime, and Postgres has its
        // connections on one.
        let has_threads = matches!(config.store_kind, StoreKind::Log | StoreKind::Postgres);
        let runtime = has_threads.then(|| Runtime::new().expect("a runtime"));
        let _inside = runtime.as_ref().map(Runtime::enter);
        let stores: Vec<SharedStore> = match config.store_kind {
            StoreKind::Sqlite => vec![Arc::new(SqliteStore::open(dir.path()).expect("a store"))],
            StoreKind::Postgres => Server::open_all(&scheduler),
            _ => vec![Arc::new(MemoryStore::new())],
        };
        let log = (config.store_kind == StoreKind::Log)
            .then(|| Log::new(&scheduler, &model, dir.path(), config.log_bug));
        #[cfg(feature = "aws")]
        let table = Self::table(config, &scheduler, &model);
        let observed = Self::observe(stores, config, &scheduler, &model);
        let ticks_off = config.ticks_off.then(|| {
            let off_at = scheduler.now() + Duration::from_secs(40) + scheduler.span(60.0);
            (off_at, off_at + TIME_OFF)
        });
        let time_off = ticks_off.map_or(Duration::ZERO, |_| TIME_OFF);
        let faults_until = scheduler.now() + FAULT_PERIOD + time_off;
        let policy = plugins::policy(faults_until);
        let world = Arc::new(Self {
            config,
            faults_until,
            ticks_off,
            scheduler,
            model,
            observed,
            scheduled: Arc::default(),
            log,
            #[cfg(feature = "aws")]
            table,
            engines: Mutex::default(),
            engine_stores: Mutex::default(),
            in_flight: Mutex::default(),
            queue: name("q"),
            policy,
        });
        let ran = world.run_to_end().and_then(|()| world.summary());
        world.scheduler.clear();
        if let Some(log) = &world.log {
            log.end();
        }
        ran
    }

    /// The servers of a store, whose commits are observed by one model.
    fn observe(
        servers: Vec<SharedStore>,
        config: RunConfig,
        scheduler: &Arc<Scheduler>,
        model: &Arc<Mutex<Model>>,
    ) -> Vec<Arc<ObservedStore>> {
        let (has_several, keyed) = (servers.len() > 1, Arc::default());
        let observe = |(store, commits)| {
            Arc::new(ObservedStore {
                store,
                model: Arc::clone(model),
                scheduler: Arc::clone(scheduler),
                slow: config.slow,
                claiming: AtomicUsize::new(0),
                keyed: Arc::clone(&keyed),
                commits: has_several.then_some(commits),
            })
        };
        servers.into_iter().zip(postgres::COMMITS).map(observe).collect()
    }

    /// The server of the store that the engine at `index` uses.
    fn observed(&self, index: usize) -> &Arc<ObservedStore> {
        &self.observed[index % self.observed.len()]
    }

    /// Whether a claim is in progress.
    fn is_claiming(&self) -> bool {
        self.observed.iter().any(|observed| observed.claiming.load(Ordering::Relaxed) > 0)
    }

    fn run_to_end(self: &Arc<Self>) -> Result<(), String> {
        self.await_leader()?;
        for index in 0..ENGINE_COUNT {
            let engine = self.engine(index);
            self.engines.lock().push(engine);
        }
        let world = Arc::clone(self);
        self.scheduler.spawn(async move { world.configure().await });
        self.set_faults(false);
        // A commit to a log takes a tenth of a second.
        let start = Duration::from_secs(if self.log.is_some() { 10 } else { 1 });
        self.go(self.scheduler.now() + start, false)?;
        self.set_faults(true);
        for index in 0..ENGINE_COUNT {
            self.start_engine(index);
        }
        self.start_clients();
        self.start_log_faults();
        self.go(self.faults_until, false)?;

        self.set_faults(false);
        let world = Arc::clone(self);
        self.scheduler.spawn(async move { world.end_with_open_limits().await });
        let settled = self.scheduler.now() + MAX_PROCESS_PAUSE + Duration::from_secs(10);
        self.go(settled, false)?;
        self.go(self.scheduler.now() + MAX_DRAIN_PERIOD, true)?;
        self.go(self.scheduler.now() + MAX_AUDIT_PERIOD, false)?;
        let last_late = self.in_flight.lock().last_late();
        let is_awaited =
            |at: &Timestamp| self.config.awaits_late_messages && *at > self.scheduler.now();
        match last_late.filter(is_awaited) {
            Some(at) => self.go(at + MAX_AUDIT_PERIOD, false),
            None => Ok(()),
        }
    }

    /// Runs all processes until `end`, or until every accepted job has ended.
    fn go(&self, end: Timestamp, until_ended: bool) -> Result<(), String> {
        let step = self.log.as_ref().map_or(Duration::ZERO, |_| AUDIT_STEP);
        let mut audited_at = self.scheduler.now();
        self.scheduler.run(end, || {
            let now = self.scheduler.now();
            let mut model = self.model.lock();
            if now > audited_at + step {
                audited_at = now;
                model.audit(now, self.faults_until);
            }
            model.violation.is_some() || (until_ended && model.unfinished().is_empty())
        });
        self.violation()
    }

    fn violation(&self) -> Result<(), String> {
        let mut model = self.model.lock();
        let Some(fault) = model.violation.take() else {
            return Ok(());
        };
        let event_log: Vec<String> = model.event_log.iter().cloned().collect();
        Err(format!(
            "seed {}: {fault}\n{:?}\n{}",
            self.config.seed,
            self.config,
            event_log.join("\n")
        ))
    }

    fn summary(&self) -> Result<Summary, String> {
        self.model.lock().finish();
        self.violation()?;
        let model = self.model.lock();
        let mut log_hash = 0u64;
        for byte in model.event_log.iter().flat_map(|line| line.bytes()) {
            log_hash = log_hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte);
        }
        Ok(Summary { counts: model.counts.clone(), steps: self.scheduler.steps(), log_hash })
    }

    /// The faults of the connections to the store.
    fn store_faults(&self, on: bool) -> Faults {
        match (on, self.config.throttled) {
            (false, _) => Faults::default(),
            (true, false) => STORE_FAULTS,
            (true, true) => Faults { throttled: HEAVY_THROTTLING, ..STORE_FAULTS },
        }
    }

    fn set_faults(&self, on: bool) {
        let process_faults =
            ProcessFaults { death: 0.002, pause: 0.01, longest: MAX_PROCESS_PAUSE };
        self.scheduler.set_process_faults(if on {
            process_faults
        } else {
            ProcessFaults::default()
        });
        if let Some(log) = &self.log {
            log.bucket.set_faults(on);
        }
        #[cfg(feature = "aws")]
        if let Some(table) = &self.table {
            let heavy = TableFaults { throttled: HEAVY_THROTTLING, ..TABLE_FAULTS };
            *table.faults.lock() = match (on, self.config.throttled) {
                (false, _) => TableFaults::default(),
                (true, false) => TABLE_FAULTS,
                (true, true) => heavy,
            };
        }
        for connection in self.engine_stores.lock().iter() {
            connection.set_faults(self.store_faults(on));
        }
    }

    /// Whether faults are still injected.
    fn faults_active(&self) -> bool {
        self.scheduler.now() < self.faults_until
    }

    /// Whether a fault of this probability happens now.
    fn fault_happens(&self, probability: f64) -> bool {
        self.faults_active() && self.scheduler.happens(probability)
    }

    /// When ticks and sweeps are on again, if they are off now.
    fn ticks_off_until(&self) -> Option<Timestamp> {
        let (off_at, on_at) = self.ticks_off?;
        let now = self.scheduler.now();
        (off_at <= now && now < on_at).then_some(on_at)
    }

    /// The types of the jobs in this world.
    fn job_types(&self) -> &'static [&'static str] {
        if self.config.late_limit { &JOB_TYPES_WITH_PLAIN } else { &JOB_TYPES }
    }

    fn any_process(&self) -> EngineProcess {
        let index = self.scheduler.draw(ENGINE_COUNT);
        self.engines.lock()[index].clone()
    }

    fn any_engine(&self) -> Arc<Engine> {
        self.any_process().engine
    }
}
