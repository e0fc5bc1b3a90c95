//! Who lives in a simulated world: engines that tick and sweep, workers, clients, and an owner who changes limits.

mod clients;
mod engines;
mod messages;
mod owner;
mod plan;
mod workers;

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_backends::sqlite::SqliteStore;
use tidegate_core::{job::QueueName, port::job_store::SharedStore, time::Timestamp};
use tidegate_engine::{
    Engine,
    memory::MemoryStore,
    testkit::{FnPolicy, builders::name, faults::Faults},
};

pub use plan::{Home, Plan, unreached_starts};

use self::messages::Mail;
#[cfg(feature = "aws")]
use super::table::{TROUBLE, Trouble, WatchedTable};
use super::{
    model::Model,
    plugins,
    scheduler::{Mishaps, Scheduler},
    store::{Watched, Way},
};

/// How long faults happen.
const FAULTS: Duration = Duration::from_mins(3);
/// By when, after them, every job has ended.
const PATIENCE: Duration = Duration::from_mins(10);
/// How long after that every slot is free: the audit's minute, and the ticks around it.
const AUDIT: Duration = Duration::from_secs(75);
/// The longest pause of a process between two steps: longer than a lease, a claim-by and the audit.
const LONGEST_PAUSE: Duration = Duration::from_secs(90);
const ENGINES: usize = 3;
const TYPES: [&str; 4] = ["push", "push-once", "pull", "pull-once"];

/// How often what goes wrong with an engine's way to the store.
const STORE_FAULTS: Faults =
    Faults { cut: 0.03, lose_answer: 0.04, unavailable: 0.03, throttled: 0.0, reads: 0.01 };

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

    fn any_engine(&self) -> Arc<Engine> {
        let index = self.scheduler.draw(ENGINES);
        Arc::clone(&self.engines.lock()[index])
    }
}
