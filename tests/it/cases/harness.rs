//! The harness of the cases: an engine on a store, with simulated time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use object_store::{ObjectStore, memory::InMemory};
use tidegate_backends::sqlite::SqliteStore;
use tidegate_core::{
    job::{
        Job, JobId, Payload, QueueName, TypeName, Value,
        lifecycle::{Failure, Reason},
        type_config::TypeConfig,
    },
    port::{
        Clock, JobStore, StoreError, StoreLayer, Work, job_store::SharedStore,
        store_layer::Operation,
    },
    queue::{
        QueueConfig,
        plugin::{Description, OnFailure, Throttler},
    },
    time::Timestamp,
};
use tidegate_engine::{
    Demand, Dispatch, Engine, Error, Lookahead, Ports, Rules, TickCache, TickInput, TickOutcome,
    memory::{FakeClock, MemoryStore, MemoryWorkQueue, SeededEntropy},
    plugins::registry::{NewCode, NewVersion, Pushed, Stage},
    request::{Explanation, NewJob, QueueExplanation, Report, ReportOutcome, WorkerStatus},
    testkit::{FnPolicy, builders::name},
};

/// Damages the record of a job in a store; a second call restores it.
type Damage = Arc<dyn Fn(JobId) -> BoxFuture<'static, ()> + Send + Sync>;

/// A store that lets other tasks run before each call, so that their calls come in between.
pub struct Yielding(pub SharedStore);

impl StoreLayer for Yielding {
    fn inner(&self) -> &dyn JobStore {
        &*self.0
    }

    async fn around<T: Send>(
        &self,
        _: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        tokio::task::yield_now().await;
        call.await
    }
}

/// A queue `default`, and its workers.
pub struct Harness {
    pub clock: Arc<FakeClock>,
    pub store: SharedStore,
    pub engine: Engine,
    pub cache: Box<TickCache>,
    pub policy: FnPolicy,
    work: Arc<MemoryWorkQueue>,
    damage: Option<Damage>,
}

/// One harness on each embedded store, and one on a table, where each write is separate and takes
/// time.
pub fn every_store_and_table() -> Vec<Harness> {
    every_store().into_iter().chain(on_a_table()).collect()
}

/// One harness on each embedded store.
pub fn every_store() -> [Harness; 2] {
    let memory = Arc::new(MemoryStore::new());
    let mut on_memory = Harness::on(Arc::clone(&memory) as _);
    on_memory.damage = Some(Arc::new(move |id| {
        memory.damage_job(&id);
        Box::pin(async {})
    }));
    let sqlite = Arc::new(SqliteStore::open_temporary().unwrap());
    let mut on_sqlite = Harness::on(Arc::clone(&sqlite) as _);
    on_sqlite.damage = Some(Arc::new(move |id| {
        let db = rusqlite::Connection::open(sqlite.file()).unwrap();
        let find = "SELECT life FROM jobs WHERE id = ?1";
        let mut life: Vec<u8> = db.query_row(find, [id.as_str()], |row| row.get(0)).unwrap();
        *life.last_mut().unwrap() ^= 1;
        let change = "UPDATE jobs SET life = ?2 WHERE id = ?1";
        db.execute(change, rusqlite::params![id.as_str(), life]).unwrap();
        Box::pin(async {})
    }));
    [on_memory, on_sqlite]
}

/// A harness on a DynamoDB table in memory.
#[cfg(feature = "aws")]
#[allow(clippy::unnecessary_wraps, reason = "without the feature there is none")]
pub fn on_a_table() -> Option<Harness> {
    use tidegate_backends::dynamodb::{DynamoStore, memory::MemoryTable};
    let clock = Arc::new(FakeClock::default());
    let store = DynamoStore::new(
        Arc::new(MemoryTable::new()),
        Arc::clone(&clock) as _,
        Arc::new(SeededEntropy::new(11)),
    );
    let store = Arc::new(store);
    let mut harness = Harness::at(Arc::clone(&store) as _, clock);
    harness.damage = Some(Arc::new(move |id| {
        let store = Arc::clone(&store);
        Box::pin(async move { store.damage_job(&id).await })
    }));
    Some(harness)
}

#[cfg(not(feature = "aws"))]
pub fn on_a_table() -> Option<Harness> {
    None
}

impl Harness {
    pub fn on(store: SharedStore) -> Self {
        Self::at(store, Arc::new(FakeClock::default()))
    }

    pub fn at(store: SharedStore, clock: Arc<FakeClock>) -> Self {
        let work = Arc::new(MemoryWorkQueue::default());
        let policy = FnPolicy::default();
        let engine = engine(&store, &clock, &work, &policy);
        Self { clock, store, engine, cache: Box::default(), policy, work, damage: None }
    }

    /// Damages the record of a job, so that it cannot be read, and forgets what was cached. A
    /// second call restores the record.
    pub async fn damage(&mut self, id: &JobId) {
        let damage = Arc::clone(self.damage.as_ref().expect("the store can be damaged"));
        damage(id.clone()).await;
        self.restart();
    }

    /// The same with these plugins, in a new process.
    pub fn with_policy(mut self, policy: FnPolicy) -> Self {
        self.policy = policy;
        self.restart();
        self
    }

    /// A new process on the same store: cached state is gone.
    pub fn restart(&mut self) {
        self.engine = engine(&self.store, &self.clock, &self.work, &self.policy);
        *self.cache = TickCache::default();
    }

    /// A second process on the same store.
    pub fn another(&self) -> Engine {
        engine(&self.store, &self.clock, &self.work, &self.policy)
    }

    /// Another process on the same store, with other rules.
    pub fn rules(&mut self, change: impl FnOnce(&mut Rules)) {
        let mut rules = Rules::default();
        change(&mut rules);
        self.engine = Engine::new(self.engine.ports().clone(), rules);
        *self.cache = TickCache::default();
    }

    /// Another process on the same store, whose objects are these.
    pub fn objects(&mut self, objects: Arc<dyn ObjectStore>) {
        self.engine =
            Engine::new(Ports { objects, ..self.engine.ports().clone() }, Rules::default());
        *self.cache = TickCache::default();
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

    /// Pushes a version of a plugin, with text in place of the component.
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

    /// One tick.
    pub async fn tick(&mut self, input: TickInput) -> TickOutcome {
        self.engine.tick(&queue(), &mut self.cache, input).await.unwrap()
    }

    /// Leases at most `room` jobs of type `work`, in one tick.
    pub async fn lease(&mut self, capacity: u32) -> Vec<Job> {
        self.lease_of(&["work"], capacity).await
    }

    pub async fn lease_of(&mut self, types: &[&str], capacity: u32) -> Vec<Job> {
        let outcome = self
            .tick(TickInput {
                demands: vec![demand(types, capacity, Dispatch::Claim)],
                ..TickInput::default()
            })
            .await;
        outcome.claimed.into_iter().map(|claimed| claimed.job).collect()
    }

    /// Admits at most `room` jobs of type `work` to the work queue, and takes what is there.
    pub async fn send(&mut self, capacity: u32) -> Vec<Work> {
        self.tick(TickInput {
            demands: vec![demand(&["work"], capacity, Dispatch::Queue)],
            ..TickInput::default()
        })
        .await;
        self.work.take(usize::MAX, self.now())
    }

    /// Runs a lookahead over the queue, with a minute of time.
    pub async fn look_ahead(&self) -> Result<Lookahead, Error> {
        self.look_ahead_until(&[queue()], self.now() + Duration::from_mins(1)).await
    }

    /// Runs a lookahead over `queues`, which stops at `stop_at`.
    pub async fn look_ahead_until(
        &self,
        queues: &[QueueName],
        stop_at: Timestamp,
    ) -> Result<Lookahead, Error> {
        match self.engine.begin_lookahead().await? {
            Some(begun) => self.engine.look_ahead(begun, queues, stop_at).await,
            None => Ok(Lookahead::default()),
        }
    }

    /// Takes the dispatched work that is due.
    pub fn work(&self) -> Vec<Work> {
        self.work.take(usize::MAX, self.now())
    }

    /// Waits until the queue's first limit holds: as long as a write may be in flight.
    pub async fn settle(&mut self) {
        self.lease(1).await;
        self.wait(self.store.capabilities().atomicity.max_in_flight_write().as_secs() + 1);
        self.lease(1).await;
    }

    /// Reports success, in one tick.
    pub async fn succeed(&mut self, jobs: &[Job]) -> Vec<Job> {
        let reports =
            jobs.iter().map(|job| report(job, ReportOutcome::Succeeded { result: None })).collect();
        let outcome = self.tick(TickInput { reports, ..TickInput::default() }).await;
        outcome.reports.into_iter().map(Result::unwrap).collect()
    }

    pub async fn job(&self, id: &JobId) -> Job {
        self.engine.job(id, None).await.unwrap()
    }

    /// Why a job waits, if a worker of every type waits for jobs.
    pub async fn explain(&self, id: &JobId) -> Explanation {
        self.explain_with(id, &|_| polling()).await
    }

    /// Why a job waits, if the workers of each type have this status.
    pub async fn explain_with(
        &self,
        id: &JobId,
        workers: &(dyn Fn(&TypeName) -> WorkerStatus + Sync),
    ) -> Explanation {
        self.engine.explain(&self.job(id).await, workers).await.unwrap()
    }

    /// Why the queue is idle or slow, if the workers of each type have this status.
    pub async fn explain_queue(
        &self,
        workers: &(dyn Fn(&TypeName) -> WorkerStatus + Sync),
    ) -> QueueExplanation {
        let depths = self.store.depth(Some(&queue())).await.unwrap().counts;
        self.engine.explain_queue(&queue(), &depths, 1000, workers).await.unwrap()
    }

    /// The granted weight by the stored ledger.
    pub async fn granted(&self) -> u64 {
        let Some((ledger, batches)) = self.store.ledger(&queue()).await.unwrap() else {
            return 0;
        };
        tidegate_engine::LedgerView::new(ledger, batches)
            .live()
            .map(|grant| u64::from(grant.weight))
            .sum()
    }
}

fn engine(
    store: &SharedStore,
    clock: &Arc<FakeClock>,
    work: &Arc<MemoryWorkQueue>,
    policy: &FnPolicy,
) -> Engine {
    // Two engines never draw the same random numbers.
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

/// A worker that waits for jobs.
pub fn polling() -> WorkerStatus {
    WorkerStatus { known: Some(1), polling: Some(1), busy: Some(0), ..WorkerStatus::default() }
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

pub fn demand(types: &[&str], capacity: u32, dispatch: Dispatch) -> Demand {
    Demand {
        min: 0,
        types: types.iter().map(|of| name::<TypeName>(of)).collect(),
        capacity,
        worker: None,
        lease: None,
        dispatch,
        call: None,
    }
}

pub fn report(job: &Job, outcome: ReportOutcome) -> Report {
    let token = job.life.running().map(|run| run.token);
    Report {
        id: job.id.clone(),
        job_type: None,
        attempt: job.life.attempt,
        token,
        outcome,
        checkpoint: None,
    }
}

pub fn failed() -> ReportOutcome {
    ReportOutcome::Failed { failure: Failure::new(Reason::Failed, "no"), retryable: true }
}
