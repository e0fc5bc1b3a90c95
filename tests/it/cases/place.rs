//! Where a case plays: an engine on a store, with time that is moved by hand.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use object_store::{ObjectStore, memory::InMemory};
use tidegate_backends::sqlite::SqliteStore;
use tidegate_core::{
    job::{
        Job, JobId, Payload, QueueName, TypeName, Value,
        lifecycle::{Failure, Reason},
        type_config::TypeConfig,
    },
    port::{Clock, Work, job_store::SharedStore},
    queue::{
        QueueConfig,
        plugin::{Description, OnFailure, Throttler},
    },
    time::Timestamp,
};
use tidegate_engine::{
    Demand, Dispatch, Engine, Error, Ports, Rules, TickCache, TickInput, TickOutcome,
    memory::{FakeClock, MemoryStore, MemoryWorkQueue, SeededEntropy},
    plugins::registry::{NewCode, NewVersion, Pushed, Stage},
    request::{NewJob, Report, ReportOutcome},
    testkit::{FnPolicy, builders::name},
};

/// A queue `default`, and whoever works on it.
pub struct Place {
    pub clock: Arc<FakeClock>,
    pub store: SharedStore,
    pub engine: Engine,
    pub memory: TickCache,
    pub policy: FnPolicy,
    work: Arc<MemoryWorkQueue>,
}

/// One place on each store of a machine, and one in the cloud: there writes go out one by one, and take their time.
pub fn in_every_home() -> Vec<Place> {
    everywhere().into_iter().chain(in_the_cloud()).collect()
}

/// One place on each store of a machine.
pub fn everywhere() -> [Place; 2] {
    [
        Place::on(Arc::new(MemoryStore::new())),
        Place::on(Arc::new(SqliteStore::open_temporary().unwrap())),
    ]
}

/// A place on a table of DynamoDB, in memory.
#[cfg(feature = "aws")]
#[allow(clippy::unnecessary_wraps, reason = "without the feature there is none")]
pub fn in_the_cloud() -> Option<Place> {
    use tidegate_backends::dynamodb::{DynamoStore, memory::MemoryTable};
    let clock = Arc::new(FakeClock::default());
    let store = DynamoStore::new(
        Arc::new(MemoryTable::new()),
        Arc::clone(&clock) as _,
        Arc::new(SeededEntropy::new(11)),
    );
    Some(Place::at(Arc::new(store), clock))
}

#[cfg(not(feature = "aws"))]
pub fn in_the_cloud() -> Option<Place> {
    None
}

impl Place {
    pub fn on(store: SharedStore) -> Self {
        Self::at(store, Arc::new(FakeClock::default()))
    }

    fn at(store: SharedStore, clock: Arc<FakeClock>) -> Self {
        let work = Arc::new(MemoryWorkQueue::default());
        let policy = FnPolicy::default();
        let engine = engine(&store, &clock, &work, &policy);
        Self { clock, store, engine, memory: TickCache::default(), policy, work }
    }

    /// With plugins that do this: another process, as after a restart.
    pub fn with_policy(mut self, policy: FnPolicy) -> Self {
        self.policy = policy;
        self.restart();
        self
    }

    /// Another process on the same store. What this one remembered is gone.
    pub fn restart(&mut self) {
        self.engine = engine(&self.store, &self.clock, &self.work, &self.policy);
        self.memory = TickCache::default();
    }

    /// Another process beside this one.
    pub fn another(&self) -> Engine {
        engine(&self.store, &self.clock, &self.work, &self.policy)
    }

    /// Another process on the same store, with other rules.
    pub fn rules(&mut self, change: impl FnOnce(&mut Rules)) {
        let mut rules = Rules::default();
        change(&mut rules);
        self.engine = Engine::new(self.engine.ports().clone(), rules);
        self.memory = TickCache::default();
    }

    /// Another process on the same store, whose objects are these.
    pub fn objects(&mut self, objects: Arc<dyn ObjectStore>) {
        self.engine =
            Engine::new(Ports { objects, ..self.engine.ports().clone() }, Rules::default());
        self.memory = TickCache::default();
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn wait(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    pub async fn set_queue(&self, config: QueueConfig) {
        self.engine.put_queue(&queue(), config, None).await.unwrap();
    }

    pub async fn set_type(&self, job_type: &str, config: TypeConfig) {
        self.engine.put_type(&name(job_type), config, None).await.unwrap();
    }

    /// A queue with this limit, and a type `work`.
    pub async fn with_limit(&self, concurrency: u32) {
        self.set_queue(QueueConfig { concurrency: Some(concurrency), ..QueueConfig::default() })
            .await;
        self.set_type("work", TypeConfig::default()).await;
    }

    /// Pushes a version of a plugin: text stands for the component.
    pub async fn push(
        &self,
        plugin: &str,
        wasm: &str,
        throttler: Option<Description>,
        retry: Option<Description>,
    ) -> Result<Pushed, Error> {
        let code = vec![NewCode {
            target: "t".into(),
            engine: "e".into(),
            code: Bytes::from(format!("compiled {wasm}")),
        }];
        let version = NewVersion { wasm: Bytes::from(wasm.to_owned()), throttler, retry, code };
        self.engine.push_plugin(&name(plugin), version, Stage::Live).await
    }

    /// A queue with this configuration, throttled by the plugin `guard`, and a type `work`.
    pub async fn throttled(&self, says: Description, config: QueueConfig) {
        self.push("guard", "v1", Some(says), None).await.unwrap();
        let throttler = Throttler {
            plugin: name("guard"),
            config: Arc::new(serde_json::json!({})),
            on_failure: OnFailure::Hold,
        };
        self.set_queue(QueueConfig { throttler: Some(throttler), ..config }).await;
        self.set_type("work", TypeConfig::default()).await;
    }

    pub async fn enqueue(&self, job: NewJob) -> Job {
        self.engine.enqueue(vec![job]).await.pop().unwrap().unwrap().job
    }

    pub async fn enqueue_many(&self, jobs: impl IntoIterator<Item = NewJob>) -> Vec<Job> {
        let answers = self.engine.enqueue(jobs.into_iter().collect()).await;
        answers.into_iter().map(|answer| answer.unwrap().job).collect()
    }

    /// One round.
    pub async fn tick(&mut self, round: TickInput) -> TickOutcome {
        self.engine.tick(&queue(), &mut self.memory, round).await.unwrap()
    }

    /// Leases at most `room` jobs of type `work`: one round.
    pub async fn lease(&mut self, room: u32) -> Vec<Job> {
        self.lease_of(&["work"], room).await
    }

    pub async fn lease_of(&mut self, types: &[&str], room: u32) -> Vec<Job> {
        let ticked = self
            .tick(TickInput {
                demands: vec![ask(types, room, Dispatch::Claim)],
                ..TickInput::default()
            })
            .await;
        ticked.claimed.into_iter().map(|claimed| claimed.job).collect()
    }

    /// Admits at most `room` jobs of type `work` to the work queue, and takes what is there.
    pub async fn send(&mut self, room: u32) -> Vec<Work> {
        self.tick(TickInput {
            demands: vec![ask(&["work"], room, Dispatch::Queue)],
            ..TickInput::default()
        })
        .await;
        self.work.take(usize::MAX, self.now())
    }

    /// What was handed on and is due, taken.
    pub fn work(&self) -> Vec<Work> {
        self.work.take(usize::MAX, self.now())
    }

    /// Lets the queue's first limit begin to hold, which takes as long as a write may.
    pub async fn settle(&mut self) {
        self.lease(1).await;
        self.wait(self.store.capabilities().atomicity.max_in_flight_write().as_secs() + 1);
        self.lease(1).await;
    }

    /// Reports success, in one round.
    pub async fn succeed(&mut self, jobs: &[Job]) -> Vec<Job> {
        let reports =
            jobs.iter().map(|job| report(job, ReportOutcome::Succeeded { result: None })).collect();
        let ticked = self.tick(TickInput { reports, ..TickInput::default() }).await;
        ticked.reports.into_iter().map(Result::unwrap).collect()
    }

    pub async fn job(&self, id: &JobId) -> Job {
        self.engine.job(id, None).await.unwrap()
    }

    /// How much weight is granted, as the store knows it.
    pub async fn granted(&self) -> u64 {
        let Some((head, batches)) = self.store.ledger(&queue()).await.unwrap() else {
            return 0;
        };
        tidegate_engine::View::new(head, batches).live().map(|grant| u64::from(grant.weight)).sum()
    }
}

fn engine(
    store: &SharedStore,
    clock: &Arc<FakeClock>,
    work: &Arc<MemoryWorkQueue>,
    policy: &FnPolicy,
) -> Engine {
    // Two engines never draw the same.
    static SEED: AtomicU64 = AtomicU64::new(1);
    let seed = SEED.fetch_add(1, Ordering::Relaxed);
    let ports = Ports {
        store: Arc::clone(store),
        objects: Arc::new(InMemory::new()),
        work: Arc::clone(work) as _,
        clock: Arc::clone(clock) as _,
        entropy: Arc::new(SeededEntropy::new(seed)),
        policy: Arc::new(policy.clone()),
    };
    Engine::new(ports, Rules::default())
}

pub fn queue() -> QueueName {
    name("default")
}

/// A job of type `work`.
pub fn work() -> NewJob {
    of_type("work")
}

pub fn of_type(job_type: &str) -> NewJob {
    NewJob::new(name(job_type), Payload::null())
}

/// A job of type `work` with this attribute.
pub fn with(attribute: &str, value: &str) -> NewJob {
    let mut job = work();
    job.options.attributes.insert(attribute.into(), Value::Text(value.into()));
    job
}

pub fn ask(types: &[&str], room: u32, hand: Dispatch) -> Demand {
    Demand {
        types: types.iter().map(|of| name::<TypeName>(of)).collect(),
        capacity: room,
        worker: None,
        lease: None,
        dispatch: hand,
    }
}

pub fn report(job: &Job, verdict: ReportOutcome) -> Report {
    let token = job.life.running().map(|run| run.token);
    Report {
        id: job.id.clone(),
        job_type: None,
        attempt: job.life.attempt,
        token,
        outcome: verdict,
    }
}

pub fn failed() -> ReportOutcome {
    ReportOutcome::Failed {
        failure: Failure::new(Reason::Failed, "no"),
        retryable: true,
        least_wait: Duration::ZERO,
    }
}
