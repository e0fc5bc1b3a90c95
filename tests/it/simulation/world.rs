//! Who lives in a simulated world: engines that tick and sweep, workers, clients, and an owner who changes limits.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidegate_core::error_code::ErrorCode;

use object_store::memory::InMemory;
use parking_lot::Mutex;
use tidegate_backends::sqlite::SqliteStore;
use tidegate_core::{
    calendar::window::Window,
    event::trigger::{Reply, TriggerOutcome},
    job::{
        Job, JobId, Payload, QueueName, TypeName, Value, Version,
        lifecycle::{Failure, Reason, ReplyId},
        retry::{Backoff, Jitter, Retry},
        type_config::{Delivery, TypeConfig},
    },
    port::{
        Clock, Hint, HintKind, Timer, Work, WorkQueue,
        job_store::{SharedStore, StoreError},
    },
    queue::{
        QueueConfig,
        config::{Constraint, OrderKind, Rate},
        matcher::Matcher,
    },
    target::{Push, TargetConfig},
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    Claimed, Demand, Dispatch, Engine, Error, Ports, Rules, TickCache, TickInput,
    events::reply::ReplyMatches,
    memory::MemoryStore,
    request::{Heartbeat, JobPatch, NewJob, Report, ReportOutcome},
    testkit::{FnPolicy, builders::name, faults::Faults},
};

#[cfg(feature = "aws")]
use super::table::{TROUBLE, TableBug, Trouble, WatchedTable};
#[cfg(feature = "aws")]
use crate::dynamodb::emulator::EmulatedTable;
#[cfg(feature = "aws")]
use tidegate_backends::dynamodb::{DynamoStore, LowWatermarks, memory::MemoryTable, table::Table};

use super::{
    bugs::Bug,
    model::Model,
    plugins,
    scheduler::{Mishaps, Scheduler, SharedEntropy, SkewedClock},
    store::{Watched, Way},
};

/// How long faults happen.
const FAULTS: Duration = Duration::from_mins(3);
/// By when, after them, every job has ended.
const PATIENCE: Duration = Duration::from_mins(10);
/// How long after that every slot is free: the audit's minute, and the ticks around it.
const AUDIT: Duration = Duration::from_secs(75);
/// How long a write may be under way on a store that writes one by one.
const FLIGHT: Duration = Duration::from_secs(5);
/// The longest pause of a process between two steps: longer than a lease, a claim-by and the audit.
const LONGEST_PAUSE: Duration = Duration::from_secs(90);
const ENGINES: usize = 3;
const TYPES: [&str; 4] = ["push", "push-once", "pull", "pull-once"];

/// Where a world keeps everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// The store in memory.
    Memory,
    /// SQLite.
    Sqlite,
    /// The store on a table, which is in memory; every engine has its own store on it.
    #[cfg(feature = "aws")]
    Table,
    /// The same, on the emulator.
    #[cfg(feature = "aws")]
    Emulator,
}

/// What kind of world it is.
#[derive(Clone, Copy, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a kind of world of its own, and they combine"
)]
pub struct Plan {
    pub seed: u64,
    /// Writes arrive one by one, and a process may die between two of them.
    pub slow: bool,
    /// The queue has no limit at first, so no ledger.
    pub late_limit: bool,
    /// Limits hold no job: a light load shows what a backlog hides.
    pub light: bool,
    /// Where everything is kept.
    pub home: Home,
    /// Its queue may have a throttler, and some of its types have a retry strategy, that are plugins.
    pub plugins: bool,
    pub jobs: usize,
    pub bug: Option<Bug>,
    /// What is broken of the table, where there is one.
    #[cfg(feature = "aws")]
    pub table_bug: Option<TableBug>,
}

impl Plan {
    /// A plan drawn from its seed.
    pub fn of(seed: u64) -> Self {
        let late_limit = seed % 4 == 3;
        Self {
            seed,
            slow: seed % 2 == 1,
            late_limit,
            light: seed % 5 == 4,
            home: Home::Memory,
            plugins: seed % 3 == 1 || seed % 8 == 6,
            jobs: if late_limit { 150 } else { [30, 60, 150][(seed / 3 % 3) as usize] },
            bug: None,
            #[cfg(feature = "aws")]
            table_bug: None,
        }
    }
}

/// A path by which a job starts; the table "How a job starts" in `src/engine/tick/mod.rs` has them.
#[derive(Clone, Copy)]
enum StartPath {
    GrantedClaim,
    GrantedDispatch,
    UngrantedClaim,
}

impl StartPath {
    /// The cells of the table that the simulation reaches. It has no type with unclaimed dispatch.
    const CELLS: [[&str; 2]; 3] = [
        ["granted claim, atomic store", "granted claim, other store"],
        ["granted dispatch, atomic store", "granted dispatch, other store"],
        ["ungranted claim, atomic store", "ungranted claim, other store"],
    ];

    fn cell(self, is_atomic: bool) -> &'static str {
        Self::CELLS[self as usize][usize::from(!is_atomic)]
    }
}

/// The cells of [`StartPath`] that are not in `counts`.
pub fn unreached_starts(counts: &BTreeMap<&'static str, u64>) -> Vec<&'static str> {
    StartPath::CELLS.into_iter().flatten().filter(|cell| !counts.contains_key(cell)).collect()
}

/// What is under way between processes.
#[derive(Default)]
struct Mail {
    work: Vec<(Timestamp, Work)>,
    hints: Vec<(Timestamp, (JobId, Version))>,
    reports: Vec<(Timestamp, Report)>,
    jobs: Vec<JobId>,
}

/// Takes what has arrived by `now`.
fn arrived<T>(mail: &mut Vec<(Timestamp, T)>, now: Timestamp) -> Vec<T> {
    let (here, later) = std::mem::take(mail).into_iter().partition(|(at, _)| *at <= now);
    *mail = later;
    let here: Vec<(Timestamp, T)> = here;
    here.into_iter().map(|(_, item)| item).collect()
}

pub struct World {
    plan: Plan,
    scheduler: Arc<Scheduler>,
    model: Arc<Mutex<Model>>,
    watched: Arc<Watched>,
    /// The table, if everything is kept on one.
    #[cfg(feature = "aws")]
    table: Option<Arc<WatchedTable>>,
    engines: Mutex<Vec<Arc<Engine>>>,
    ways: Mutex<Vec<Arc<Way>>>,
    mail: Mutex<Mail>,
    quiet_at: Timestamp,
    queue: QueueName,
    policy: FnPolicy,
}

/// Carries work badly.
struct Messages(std::sync::Weak<World>);

#[async_trait::async_trait]
impl WorkQueue for Messages {
    async fn send(&self, work: &[Work]) -> Result<(), StoreError> {
        let Some(world) = self.0.upgrade() else {
            return Ok(());
        };
        world.scheduler.step().await;
        let fails = world.bad(0.05);
        for piece in work {
            if fails && world.scheduler.happens(0.5) {
                return Err(StoreError::unavailable("a message was not taken"));
            }
            let copies = if world.bad(0.3) { 0 } else { 1 + usize::from(world.bad(0.2)) };
            for _ in 0..copies {
                let late = if world.bad(0.2) { 20.0 } else { 0.3 };
                let at = world.scheduler.now() + world.scheduler.span(late);
                world.mail.lock().work.push((at, piece.clone()));
            }
        }
        Ok(())
    }

    async fn hint(&self, hints: &[Hint]) -> Result<(), StoreError> {
        let Some(world) = self.0.upgrade() else {
            return Ok(());
        };
        let left = hints.iter().filter_map(|hint| {
            if let HintKind::Released(job, version) = &hint.kind {
                Some((job.clone(), *version))
            } else {
                None
            }
        });
        let now = world.scheduler.now();
        world.mail.lock().hints.extend(left.map(|left| (now, left)));
        Ok(())
    }

    /// Its ticks look at everything now and then.
    async fn set_timers(&self, _: &[Timer]) -> Result<(), StoreError> {
        Ok(())
    }
}

/// How a run went.
pub struct Summary {
    pub counts: BTreeMap<&'static str, u64>,
    pub steps: u64,
    /// Everything that was written, in order: two runs of one seed must agree.
    pub story: u64,
}

impl World {
    /// Runs `plan` to its end.
    ///
    /// # Errors
    ///
    /// The first invariant that was broken, with the end of the story.
    pub fn run(plan: Plan) -> Result<Summary, String> {
        let scheduler = Scheduler::new(plan.seed);
        let model = Arc::new(Mutex::new(Model::default()));
        let dir = tempfile::tempdir().expect("a directory");
        let store: SharedStore = if plan.home == Home::Sqlite {
            Arc::new(SqliteStore::open(dir.path()).expect("a store"))
        } else {
            Arc::new(MemoryStore::new())
        };
        #[cfg(feature = "aws")]
        let table = Self::table(plan, &scheduler, &model);
        let watched = Arc::new(Watched {
            store,
            model: Arc::clone(&model),
            scheduler: Arc::clone(&scheduler),
            slow: plan.slow,
            claiming: AtomicUsize::new(0),
            keyed: Mutex::default(),
        });
        let policy = plugins::policy(scheduler.now() + FAULTS);
        let world = Arc::new(Self {
            plan,
            quiet_at: scheduler.now() + FAULTS,
            scheduler,
            model,
            watched,
            #[cfg(feature = "aws")]
            table,
            engines: Mutex::default(),
            ways: Mutex::default(),
            mail: Mutex::default(),
            queue: name("q"),
            policy,
        });
        world.live()?;
        world.verdict()
    }

    fn live(self: &Arc<Self>) -> Result<(), String> {
        for index in 0..ENGINES {
            let engine = self.engine(index);
            self.engines.lock().push(engine);
        }
        let world = Arc::clone(self);
        self.scheduler.spawn(async move { world.begin().await });
        self.scheduler.set_mishaps(Mishaps::default());
        let start = self.scheduler.now() + Duration::from_secs(1);
        self.go(start, false)?;
        self.set_faults(true);
        for index in 0..ENGINES {
            self.start_engine(index);
        }
        self.start_clients();
        self.go(self.quiet_at, false)?;

        self.set_faults(false);
        let world = Arc::clone(self);
        self.scheduler.spawn(async move { world.settle_down().await });
        let settled = self.scheduler.now() + LONGEST_PAUSE + Duration::from_secs(10);
        self.go(settled, false)?;
        self.go(self.scheduler.now() + PATIENCE, true)?;
        self.go(self.scheduler.now() + AUDIT, false)
    }

    /// Lets everybody go on until `end`, or until every accepted job has ended.
    fn go(&self, end: Timestamp, until_ended: bool) -> Result<(), String> {
        let mut looked = self.scheduler.now();
        self.scheduler.run(end, || {
            let now = self.scheduler.now();
            let mut model = self.model.lock();
            if now > looked {
                looked = now;
                model.look(now, self.quiet_at);
            }
            model.broken.is_some() || (until_ended && model.unfinished().is_empty())
        });
        self.broken()
    }

    fn broken(&self) -> Result<(), String> {
        let mut model = self.model.lock();
        let Some(fault) = model.broken.take() else {
            return Ok(());
        };
        let story: Vec<String> = model.trace.iter().cloned().collect();
        Err(format!("seed {}: {fault}\n{:?}\n{}", self.plan.seed, self.plan, story.join("\n")))
    }

    fn verdict(&self) -> Result<Summary, String> {
        self.model.lock().finish();
        self.broken()?;
        let model = self.model.lock();
        let mut story = 0u64;
        for byte in model.trace.iter().flat_map(|line| line.bytes()) {
            story = story.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte);
        }
        Ok(Summary { counts: model.counts.clone(), steps: self.scheduler.steps(), story })
    }

    fn set_faults(&self, on: bool) {
        let mishaps = Mishaps { death: 0.002, pause: 0.01, longest: LONGEST_PAUSE };
        self.scheduler.set_mishaps(if on { mishaps } else { Mishaps::default() });
        #[cfg(feature = "aws")]
        if let Some(table) = &self.table {
            *table.trouble.lock() = if on { TROUBLE } else { Trouble::default() };
        }
        for way in self.ways.lock().iter() {
            way.set_faults(if on { STORE_FAULTS } else { Faults::default() });
        }
    }

    /// Whether faults still happen.
    fn faulty(&self) -> bool {
        self.scheduler.now() < self.quiet_at
    }

    /// Whether something bad of this probability happens.
    fn bad(&self, probability: f64) -> bool {
        self.faulty() && self.scheduler.happens(probability)
    }

    /// A new engine process at place `index`: its own way to the store, clock and caches.
    fn engine(self: &Arc<Self>, index: usize) -> Arc<Engine> {
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
    fn table(
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

    fn any_engine(&self) -> Arc<Engine> {
        let index = self.scheduler.draw(ENGINES);
        Arc::clone(&self.engines.lock()[index])
    }

    /// Starts what an engine does of its own; if it dies, a fresh one takes its place.
    fn start_engine(self: &Arc<Self>, index: usize) {
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

    /// The first configuration.
    async fn begin(self: Arc<Self>) {
        let engine = self.any_engine();
        for (plugin, number) in [(plugins::GUARD, 1), (plugins::PLANNER, 1)] {
            assert!(
                plugins::push(&engine, plugin, number, 1).await,
                "without faults a plugin can be pushed"
            );
        }
        let config = if self.plan.late_limit { QueueConfig::default() } else { self.limits() };
        assert!(self.put_queue(&engine, config).await, "without faults a queue can be configured");
        for job_type in TYPES {
            assert!(
                self.put_type(&engine, job_type, None).await,
                "without faults a type can be configured"
            );
        }
    }

    async fn put_queue(&self, engine: &Engine, config: QueueConfig) -> bool {
        match engine.put_queue(&self.queue, config, None).await {
            Ok((item, _)) => {
                self.model.lock().promise(&self.queue, item.version);
                true
            }
            Err(_) => false,
        }
    }

    async fn put_type(&self, engine: &Engine, job_type: &str, concurrency: Option<u32>) -> bool {
        let once = job_type.ends_with("once");
        let target = job_type
            .starts_with("push")
            .then(|| TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:1/"))));
        let retry = if self.plan.plugins && !once {
            Retry::Plugin(name(plugins::PLANNER), Arc::new(serde_json::json!({})))
        } else {
            Retry::Exponential(Backoff {
                base_seconds: Seconds::new(1),
                max_seconds: Seconds::new(8),
                jitter: Jitter::Full,
            })
        };
        let config = TypeConfig {
            queue: self.queue.clone(),
            target,
            delivery: if once { Delivery::AtMostOnce } else { Delivery::AtLeastOnce },
            concurrency,
            timeout_seconds: Seconds::new(60),
            response_timeout_seconds: Seconds::new(10),
            lease_seconds: Seconds::new(15),
            retry,
            ..TypeConfig::default()
        };
        engine.put_type(&name(job_type), config, None).await.is_ok()
    }

    /// Some limits.
    fn limits(&self) -> QueueConfig {
        let s = &self.scheduler;
        if self.plan.light {
            return QueueConfig { concurrency: Some(200), ..QueueConfig::default() };
        }
        let mut constraints = Vec::new();
        if s.happens(0.5) {
            constraints.push(Constraint {
                name: "tenant".into(),
                matcher: Matcher::default(),
                per: Some("tenant".into()),
                concurrency: Some(s.pick(&[1, 2, 3, 4])),
                rate: None,
            });
        }
        if s.happens(0.4) {
            let rate = Rate {
                count: s.pick(&[1, 2, 5]),
                per_seconds: Seconds::new(s.pick(&[1, 3])),
                burst: s.pick(&[None, Some(3)]),
            };
            constraints.push(Constraint {
                name: "rate".into(),
                matcher: serde_json::from_value(
                    serde_json::json!({"attribute": {"region": "east"}}),
                )
                .expect("a matcher"),
                per: s.happens(0.5).then(|| "tenant".into()),
                concurrency: s.happens(0.3).then_some(3),
                rate: Some(rate),
            });
        }
        let order = s.pick(&[OrderKind::Time, OrderKind::Priority]);
        QueueConfig {
            concurrency: s.pick(&[
                None,
                Some(0),
                Some(1),
                Some(2),
                Some(4),
                Some(4),
                Some(6),
                Some(9),
            ]),
            order,
            order_step_seconds: Seconds::new(s.pick(&[0, 5, 60])),
            ageing_seconds: (order == OrderKind::Priority && s.happens(0.5))
                .then(|| Seconds::new(1)),
            partition_by: s.happens(0.5).then(|| "tenant".into()),
            constraints,
            throttler: (self.plan.plugins && s.happens(0.8)).then(plugins::throttler),
        }
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
    fn hint(&self, job: &Job, version: Version) {
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

    /// Takes work that was sent, and claims it, until the end of the run.
    async fn deliver(self: Arc<Self>) {
        loop {
            let nap = self.scheduler.span(0.6);
            self.scheduler.sleep(nap + Duration::from_millis(20)).await;
            let mut work = arrived(&mut self.mail.lock().work, self.scheduler.now());
            if work.is_empty() {
                continue;
            }
            let later = work.split_off(work.len().min(4));
            let now = self.scheduler.now();
            self.mail.lock().work.extend(later.into_iter().map(|work| (now, work)));
            let engine = self.any_engine();
            match engine.claim(&work, Some("deliverer")).await {
                Ok(claimed) => {
                    let claimed = claimed.into_iter().flatten();
                    claimed.for_each(|claimed| self.start(claimed.job, StartPath::GrantedDispatch));
                }
                // The messages come again.
                Err(_) if !self.bad(0.3) => self
                    .mail
                    .lock()
                    .work
                    .extend(work.into_iter().map(|work| (now + Duration::from_secs(3), work))),
                Err(_) => {}
            }
        }
    }

    /// A worker starts an attempt; or never hears of it.
    fn start(self: &Arc<Self>, job: Job, path: StartPath) {
        self.model.lock().count(path.cell(!self.plan.slow));
        self.model.lock().count("max_attempts");
        if self.bad(0.1) {
            return;
        }
        let world = Arc::clone(self);
        self.scheduler.spawn(async move { world.work(job).await });
    }

    async fn work(self: Arc<Self>, job: Job) {
        let s = &self.scheduler;
        let run = job.life.running().expect("it was claimed").clone();
        let took =
            if self.faulty() { s.pick(&[0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 20.0, 40.0]) } else { 0.5 };
        let end = s.now() + Duration::from_millis((took * 1000.0) as u64);
        let beats = s.happens(0.5);
        while s.now() < end {
            let next = if beats { end.min(s.now() + Duration::from_secs(4)) } else { end };
            s.sleep_until(next).await;
            if beats && s.now() < end {
                let beat = Heartbeat {
                    id: job.id.clone(),
                    job_type: None,
                    attempt: job.life.attempt,
                    token: Some(run.token),
                    lease_seconds: None,
                    progress: None,
                };
                if matches!(
                    self.any_engine().heartbeat(beat).await,
                    Err(Error::Conflict { code: ErrorCode::StaleAttempt, .. })
                ) {
                    let model = self.model.lock();
                    let there = model.jobs.get(&job.id).map(|there| {
                        there.life.attempt == job.life.attempt && there.life.running().is_some()
                    });
                    drop(model);
                    assert_ne!(there, Some(true), "a running attempt's sign of life was refused");
                    break;
                }
            }
        }
        if self.bad(0.15) {
            return;
        }
        let verdict = if !self.faulty() || s.happens(0.7) {
            ReportOutcome::Succeeded { result: None }
        } else {
            let failure = Failure::new(Reason::Failed, "it failed");
            ReportOutcome::Failed { failure, retryable: s.happens(0.8), least_wait: Duration::ZERO }
        };
        let report = Report {
            id: job.id.clone(),
            job_type: None,
            attempt: job.life.attempt,
            token: Some(run.token),
            outcome: verdict,
        };
        for _ in 0..=usize::from(self.bad(0.3)) {
            let late = if self.bad(0.2) { s.span(60.0) } else { s.span(0.1) };
            self.mail.lock().reports.push((s.now() + late, report.clone()));
        }
    }

    fn start_clients(self: &Arc<Self>) {
        for index in 0..self.plan.jobs {
            let at = self.scheduler.now() + self.scheduler.span(FAULTS.as_secs_f64() * 0.8);
            let world = Arc::clone(self);
            self.scheduler.spawn(async move {
                world.scheduler.sleep_until(at).await;
                world.enqueue(index).await;
            });
        }
        for _ in 0..self.plan.jobs / 2 {
            let at = self.scheduler.now() + self.scheduler.span(FAULTS.as_secs_f64());
            let world = Arc::clone(self);
            self.scheduler.spawn(async move {
                world.scheduler.sleep_until(at).await;
                world.meddle().await;
            });
        }
        for _ in 0..self.plan.jobs / 2 {
            let at = self.scheduler.now() + self.scheduler.span(FAULTS.as_secs_f64());
            let world = Arc::clone(self);
            self.scheduler.spawn(async move {
                world.scheduler.sleep_until(at).await;
                world.answer().await;
            });
        }
        let world = Arc::clone(self);
        self.scheduler.spawn(async move { world.own().await });
    }

    /// Another system replies to a job by its correlation key: before, during or after its attempt,
    /// once or several times.
    async fn answer(&self) {
        let s = &self.scheduler;
        let said = if s.happens(0.6) {
            TriggerOutcome::Succeeded(Some(Payload::json("1")))
        } else {
            TriggerOutcome::Failed {
                message: Some("no".into()),
                details: None,
                retryable: s.happens(0.8),
            }
        };
        let reply = Reply {
            id: ReplyId(s.draw(1_000_000) as u128),
            job_type: name(s.pick(&TYPES)),
            correlation_key: format!("key-{}", s.draw(4)),
            attempt: s.pick(&[None, None, None, Some(1), Some(2)]),
            said,
        };
        let mut taken = false;
        for _ in 0..6 {
            let ReplyMatches { mut answers, changed } =
                self.any_engine().reply(std::slice::from_ref(&reply)).await;
            for (job, version) in changed {
                self.hint(&job, version);
            }
            match answers.pop().expect("one answer each") {
                Ok(answered) => {
                    taken = true;
                    self.model.lock().answered(reply.id, &answered);
                }
                Err(Error::Unavailable { .. }) => {}
                Err(error) => panic!("a reply was answered with {error:?}"),
            }
            if taken && !s.happens(0.3) {
                return;
            }
            s.sleep(Duration::from_millis(300)).await;
        }
    }

    async fn enqueue(&self, index: usize) {
        let s = &self.scheduler;
        let now = s.now();
        let mut job = NewJob::new(name(TYPES[s.draw(TYPES.len())]), Payload::null());
        job.id = Some(name(&format!("j{index}")));
        job.options.priority = Some(s.pick(&[1, 5, 100]));
        job.options.weight = Some(s.pick(&[0, 1, 1, 1, 2, 3]));
        job.options.critical = s.happens(0.1);
        job.options
            .attributes
            .insert("tenant".into(), Value::Text(s.pick(&["a", "b", "c"]).into()));
        if s.happens(0.5) {
            job.options
                .attributes
                .insert("region".into(), Value::Text(s.pick(&["east", "west"]).into()));
        }
        job.run_at =
            s.pick(&[None, None, Some(5), Some(20)]).map(|later| now + Duration::from_secs(later));
        job.expires_at = s.happens(0.1).then(|| now + Duration::from_secs(10) + s.span(60.0));
        job.options.deadline_seconds =
            s.happens(0.1).then(|| Seconds::from_millis(20_000 + s.draw(100_000) as u64));
        job.options.windows = s.happens(0.15).then(every_other_minute);
        job.options.callback_url =
            s.happens(0.3).then(|| "http://127.0.0.1:1/told".parse().expect("a URL"));
        job.correlation_key = s.happens(0.2).then(|| format!("key-{}", s.draw(4)));
        for _ in 0..4 {
            let answer =
                self.any_engine().enqueue(vec![job.clone()]).await.pop().expect("one answer each");
            match answer {
                Ok(enqueued) => {
                    if enqueued.new || enqueued.job.id.as_str() == format!("j{index}") {
                        self.model.lock().accept(&enqueued.job.id);
                        self.mail.lock().jobs.push(enqueued.job.id);
                    }
                    return;
                }
                Err(Error::Unavailable { .. }) => s.sleep(Duration::from_millis(300)).await,
                Err(Error::Conflict { .. } | Error::Invalid { .. }) => return,
                Err(error) => panic!("an enqueue was answered with {error:?}"),
            }
        }
    }

    /// A client changes, cancels or asks about some job.
    async fn meddle(&self) {
        let s = &self.scheduler;
        let jobs = self.mail.lock().jobs.clone();
        if jobs.is_empty() {
            return;
        }
        let id = &jobs[s.draw(jobs.len())];
        let engine = self.any_engine();
        match s.draw(4) {
            0 => {
                let run_at = s
                    .pick(&[None, Some(0), Some(4), Some(15)])
                    .map(|later| s.now() + Duration::from_secs(later));
                let patch = JobPatch {
                    run_at,
                    priority: s.happens(0.5).then_some(2),
                    ..JobPatch::default()
                };
                if let Ok((before, after)) = engine.patch(id, None, patch, None).await {
                    self.hint(&after, before.life.version);
                }
            }
            1 => {
                let force = s.happens(0.4);
                if let Ok((before, cancelled)) = engine.cancel(id, None, force).await {
                    self.hint(&cancelled.job, before.life.version);
                }
            }
            2 => {
                if let Ok((before, after)) = engine.drop_job(id, "purged").await {
                    self.hint(&after, before.life.version);
                }
            }
            _ => {
                if let Ok(explained) = engine.explain(id, None, |_| true).await
                    && explained.state == "scheduled"
                {
                    assert!(
                        explained.held_by.is_some(),
                        "a waiting job has an explanation: {explained:?}"
                    );
                }
            }
        }
    }

    /// The owner changes limits, live.
    async fn own(self: Arc<Self>) {
        let s = &self.scheduler;
        if self.plan.late_limit {
            s.sleep(Duration::from_secs(40) + s.span(30.0)).await;
            // The worst moment for a first limit: a job is about to start without a grant.
            for _ in 0..200 {
                if self.watched.claiming.load(Ordering::Relaxed) > 0 {
                    break;
                }
                s.sleep(Duration::from_millis(50)).await;
            }
            let limits = self.limits();
            self.put_queue(&self.any_engine(), limits).await;
        }
        loop {
            let engine = self.any_engine();
            match s.draw(4) {
                0 | 1 => {
                    let limits = self.limits();
                    self.put_queue(&engine, limits).await;
                }
                2 if self.plan.plugins && s.happens(0.5) => {
                    // Most new versions go on with what the one before remembers.
                    plugins::push(&engine, plugins::GUARD, s.draw(1000), s.pick(&[1, 1, 2])).await;
                }
                2 => {
                    let paused = s.happens(0.4);
                    if let Ok(item) = engine.pause_queue(&self.queue, paused).await {
                        self.model.lock().promise(&self.queue, item.version);
                    }
                }
                _ => {
                    let most = s.pick(&[None, Some(1), Some(3)]);
                    self.put_type(&engine, s.pick(&TYPES), most).await;
                }
            }
            s.sleep(Duration::from_secs(5) + s.span(40.0)).await;
            if !self.faulty() {
                return;
            }
        }
    }

    /// Sets limits that let everything through in the end.
    async fn settle_down(self: Arc<Self>) {
        // A process that was paused before the faults ended may still write.
        self.scheduler.sleep(LONGEST_PAUSE).await;
        let engine = self.any_engine();
        let constraint = Constraint {
            name: "tenant".into(),
            matcher: Matcher::default(),
            per: Some("tenant".into()),
            concurrency: Some(5),
            rate: None,
        };
        let throttler = self.plan.plugins.then(plugins::throttler);
        let limits = QueueConfig {
            concurrency: Some(8),
            constraints: vec![constraint],
            throttler,
            ..QueueConfig::default()
        };
        assert!(self.put_queue(&engine, limits).await, "without faults a queue can be configured");
        engine
            .pause_queue(&self.queue, false)
            .await
            .expect("without faults a queue can be resumed");
        for job_type in TYPES {
            assert!(
                self.put_type(&engine, job_type, Some(6)).await,
                "without faults a type can be configured"
            );
        }
    }
}

/// How often what goes wrong with an engine's way to the store.
const STORE_FAULTS: Faults =
    Faults { cut: 0.03, lose_answer: 0.04, unavailable: 0.03, throttled: 0.0, reads: 0.01 };

/// Open in every other minute of the first half hour of the day.
fn every_other_minute() -> Vec<Window> {
    (0..15)
        .map(|n| {
            let (from, to) = (format!("00:{:02}", 2 * n), format!("00:{:02}", 2 * n + 1));
            serde_json::from_value(serde_json::json!({"from": from, "to": to})).expect("a window")
        })
        .collect()
}
