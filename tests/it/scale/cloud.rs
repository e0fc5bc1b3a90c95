//! A deployment: functions with memory, timeouts and reserved concurrency, over the table with
//! limits and the queues with pollers.
//!
//! Each environment has its own server and store, as a process has. An invocation that runs out of
//! time or memory is dropped at the step that it had reached, with its environment.

use std::{
    collections::{BTreeSet, HashMap},
    future::poll_fn,
    sync::{Arc, Weak},
    task::Poll,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use object_store::memory::InMemory;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use tidegate_backends::{
    cost::{OBJECT_BYTES, price::LIST},
    dynamodb::{DynamoStore, TickRequests, memory::MemoryTable},
    testkit::limits::{LimitedTable, TableLimits, TableUse},
};
use tidegate_core::{
    port::{
        Clock, Entropy, Target, WorkQueue,
        job_store::SharedStore,
        policy::NoPolicy,
        target::{Request, Response, TargetError},
    },
    time::Timestamp,
};
use tidegate_engine::{
    Error, Ports, Rules,
    memory::SeededEntropy,
    request::{LeaseRequest, NewJob, Report, ReportOutcome},
    testkit::builders::name,
};
use tidegate_server::{
    Server,
    lambda::{self, SqsEvent},
    runtime::Options,
};

use super::{
    memory::{Gauge, RUNTIME_BYTES},
    queues::{EnvironmentQueues, Kind, Message, NoQueues, QueueUse, Queues},
    store::{CountedStore, EnvironmentTable, SharedTable, Unlimited},
};
use crate::serverless::time::Virtual;

/// Microseconds of a whole processor for one call of a target.
const CALL_MICROS: f64 = 250.0;
/// How long the event of the rule is kept while `sweep` is throttled.
const MAX_EVENT_AGE: Duration = Duration::from_mins(1);

/// The parameters of a deployment.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub memory_mb: f64,
    pub shards: u8,
    /// Batches that `deliver` handles at once.
    pub deliver_concurrency: f64,
    /// The part of the full load, and of the limits.
    pub scale: f64,
    /// The part of these limits that the table has.
    pub capacity: f64,
}

/// Why an invocation has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Throttled,
    TimedOut,
    OutOfMemory,
}

/// What the invocations of a function took.
#[derive(Clone, Copy, Debug, Default)]
pub struct FunctionUse {
    pub calls: u64,
    pub throttled: u64,
    pub timed_out: u64,
    pub out_of_memory: u64,
    pub gb_seconds: f64,
    pub longest: Duration,
    /// The most live bytes of an environment, without the runtime.
    pub peak: usize,
}

struct Function {
    timeout: Duration,
    most: usize,
    idle: Mutex<Vec<Environment>>,
    running: Mutex<usize>,
    used: Mutex<FunctionUse>,
}

impl Function {
    fn new(timeout: u64, most: usize) -> Self {
        Self {
            timeout: Duration::from_secs(timeout),
            most,
            idle: Mutex::default(),
            running: Mutex::default(),
            used: Mutex::default(),
        }
    }
}

/// A process that runs one invocation after the other.
struct Environment {
    server: Server,
    gauge: Arc<Gauge>,
}

/// The jobs that started, and when they were due.
#[derive(Default)]
pub struct Starts {
    due: HashMap<String, Timestamp>,
    early: HashMap<String, Timestamp>,
    /// The due times and the starts of each job's first attempt, by the path of its target.
    pub started: HashMap<String, Vec<(Timestamp, Timestamp)>>,
    pub repeated: u64,
    /// Running calls of `main`, the slot-seconds so far, and when they were counted.
    busy: (u64, f64, Timestamp),
    pub most_busy: u64,
}

impl Starts {
    /// Records when a job is due. It may have started.
    pub fn expect(&mut self, path: &str, id: &str, due: Timestamp) {
        match self.early.remove(id) {
            Some(at) => self.started.entry(path.to_owned()).or_default().push((due, at)),
            None => drop(self.due.insert(id.to_owned(), due)),
        }
    }

    fn start(&mut self, path: &str, id: String, now: Timestamp, known: bool) {
        match self.due.remove(&id) {
            Some(due) => self.started.entry(path.to_owned()).or_default().push((due, now)),
            None if known => drop(self.early.insert(id, now)),
            None => self.repeated += 1,
        }
    }

    fn change_busy(&mut self, now: Timestamp, more: i64) {
        let (count, area, at) = self.busy;
        let area = area + count as f64 * now.since(at).as_secs_f64();
        let count = count.saturating_add_signed(more);
        self.busy = (count, area, now);
        self.most_busy = self.most_busy.max(count);
    }

    /// The slot-seconds of `main` so far.
    pub fn slot_seconds(&mut self, now: Timestamp) -> f64 {
        self.change_busy(now, 0);
        self.busy.1
    }
}

/// What a deployment has consumed.
#[derive(Clone, Copy, Debug, Default)]
pub struct CloudUse {
    pub table: TableUse,
    pub queues: QueueUse,
    pub enqueue: FunctionUse,
    pub tick: FunctionUse,
    pub sweep: FunctionUse,
    pub deliver: FunctionUse,
    pub dropped_sweeps: u64,
    pub longest_sweep: Duration,
}

impl CloudUse {
    /// The list price, in dollars.
    pub fn dollars(&self) -> f64 {
        let functions = [self.enqueue, self.tick, self.sweep, self.deliver];
        let calls: u64 = functions.iter().map(|function| function.calls).sum();
        let gb_seconds: f64 = functions.iter().map(|function| function.gb_seconds).sum();
        (self.table.bill.writes * LIST.write
            + self.table.bill.reads * LIST.read
            + self.queues.standard * (LIST.standard + LIST.fair)
            + self.queues.fifo * LIST.fifo
            + calls as f64 * LIST.call)
            / 1e6
            + gb_seconds * LIST.gb_second
    }

    /// The same without what was consumed before.
    pub fn since(&self, before: &Self) -> Self {
        let function = |now: FunctionUse, then: FunctionUse| FunctionUse {
            calls: now.calls - then.calls,
            throttled: now.throttled - then.throttled,
            timed_out: now.timed_out - then.timed_out,
            out_of_memory: now.out_of_memory - then.out_of_memory,
            gb_seconds: now.gb_seconds - then.gb_seconds,
            ..now
        };
        Self {
            table: TableUse {
                bill: self.table.bill - before.table.bill,
                throttled: self.table.throttled - before.table.throttled,
                failed: self.table.failed - before.table.failed,
            },
            queues: QueueUse {
                standard: self.queues.standard - before.queues.standard,
                fifo: self.queues.fifo - before.queues.fifo,
                dead: self.queues.dead - before.queues.dead,
            },
            enqueue: function(self.enqueue, before.enqueue),
            tick: function(self.tick, before.tick),
            sweep: function(self.sweep, before.sweep),
            deliver: function(self.deliver, before.deliver),
            dropped_sweeps: self.dropped_sweeps - before.dropped_sweeps,
            longest_sweep: self.longest_sweep,
        }
    }
}

/// A deployment.
pub struct Cloud {
    pub time: Arc<Virtual>,
    pub table: SharedTable,
    pub queues: Queues,
    pub starts: Mutex<Starts>,
    pub scale: f64,
    settings: Settings,
    objects: Arc<InMemory>,
    entropy: Arc<SeededEntropy>,
    enqueue: Function,
    tick: Function,
    sweep: Function,
    deliver: Function,
    off: Mutex<BTreeSet<Kind>>,
    sweeps: Mutex<(u64, Duration)>,
    me: Weak<Self>,
}

impl Cloud {
    pub fn new(settings: Settings, seed: u64) -> Arc<Self> {
        let (time, entropy) = (Virtual::new(), Arc::new(SeededEntropy::new(seed)));
        let limits = TableLimits::AWS.scaled(settings.scale * settings.capacity);
        let clock = Arc::clone(&time) as Arc<dyn Clock>;
        let table = LimitedTable::new(MemoryTable::new(), limits, clock, entropy.clone());
        Arc::new_cyclic(|me| Self {
            time,
            table: Arc::new(table),
            queues: Queues::new(me.clone()),
            starts: Mutex::default(),
            scale: settings.scale,
            settings,
            objects: Arc::new(InMemory::new()),
            entropy,
            enqueue: Function::new(75, 100),
            tick: Function::new(60, 40),
            sweep: Function::new(60, 2),
            deliver: Function::new(300, 1000),
            off: Mutex::default(),
            sweeps: Mutex::default(),
            me: me.clone(),
        })
    }

    /// Starts the rule of the sweep and the growth of the pollers.
    pub fn start(self: &Arc<Self>) {
        let cloud = Arc::clone(self);
        self.time.spawn(async move {
            loop {
                cloud.time.sleep_until(cloud.time.now() + Duration::from_mins(1)).await;
                if !cloud.is_off(Kind::Timers) {
                    let sweep = Arc::clone(&cloud);
                    cloud.time.spawn(async move { sweep.sweep().await });
                }
            }
        });
        let cloud = Arc::clone(self);
        self.time.spawn(async move {
            loop {
                cloud.time.sleep_until(cloud.time.now() + Duration::from_secs(1)).await;
                for kind in [Kind::Work, Kind::Timers, Kind::Hints] {
                    cloud.queues.dispatch(kind);
                }
            }
        });
    }

    /// Turns the function behind these queues off or on.
    pub fn set_off(&self, kinds: &[Kind], off: bool) {
        for kind in kinds {
            if off {
                self.off.lock().insert(*kind);
            } else {
                self.off.lock().remove(kind);
            }
        }
    }

    pub fn is_off(&self, kind: Kind) -> bool {
        self.off.lock().contains(&kind)
    }

    /// Most batches of a queue that are handled at once.
    pub fn pollers(&self, kind: Kind) -> f64 {
        if kind == Kind::Work {
            (self.settings.deliver_concurrency * self.scale).max(2.0)
        } else {
            1000.0 * self.scale
        }
    }

    pub fn chance(&self) -> f64 {
        self.entropy.fraction()
    }

    /// Waits between `least` and `least + more` seconds.
    pub async fn pass(&self, least: f64, more: f64) {
        let millis = ((least + more * self.chance()) * 1000.0) as u64;
        self.time.sleep_until(self.time.now() + Duration::from_millis(millis)).await;
    }

    /// What was consumed so far.
    pub fn used(&self) -> CloudUse {
        let (dropped_sweeps, longest_sweep) = *self.sweeps.lock();
        CloudUse {
            table: self.table.used(),
            queues: *self.queues.used.lock(),
            enqueue: *self.enqueue.used.lock(),
            tick: *self.tick.used.lock(),
            sweep: *self.sweep.used.lock(),
            deliver: *self.deliver.used.lock(),
            dropped_sweeps,
            longest_sweep,
        }
    }

    fn rules() -> Rules {
        Rules { object_bytes: OBJECT_BYTES, ..Rules::default() }
    }

    /// A server without limits whose messages are lost, to prepare a scenario.
    pub async fn preparing(&self) -> Server {
        let clock = Arc::clone(&self.time) as Arc<dyn Clock>;
        let table = Arc::new(Unlimited(Arc::clone(&self.table)));
        let store = DynamoStore::new(table, clock, self.entropy.clone());
        let store = Arc::new(store.with_shards(self.settings.shards));
        self.server(store, Arc::new(NoQueues), Arc::new(NoTarget)).await
    }

    async fn server(
        &self,
        store: SharedStore,
        work: Arc<dyn WorkQueue>,
        target: Arc<dyn Target>,
    ) -> Server {
        let ports = Ports {
            store,
            objects: Arc::clone(&self.objects) as _,
            work,
            clock: Arc::clone(&self.time) as _,
            entropy: self.entropy.clone(),
            policy: Arc::new(NoPolicy),
        };
        let bytes = self.settings.memory_mb * f64::from(1 << 20) * self.scale;
        let options = Options { delivery_bytes: Some((bytes * 0.4) as u64), ..Options::default() };
        let builder = Server::builder(ports, target).rules(Self::rules()).options(options);
        let builder = builder.serverless();
        builder.start().await.unwrap()
    }

    /// The bytes of rows and bodies that an environment can hold.
    pub fn memory(&self) -> usize {
        let memory = (self.settings.memory_mb * f64::from(1 << 20)) as usize - RUNTIME_BYTES;
        (memory as f64 * self.scale) as usize
    }

    async fn environment(&self) -> Environment {
        let limit = self.memory();
        let gauge = Gauge::new(self.settings.memory_mb, limit);
        let (time, clock) = (Arc::clone(&self.time), Arc::clone(&self.time) as Arc<dyn Clock>);
        let table =
            EnvironmentTable { table: Arc::clone(&self.table), gauge: Arc::clone(&gauge), time };
        let table = Arc::new(table);
        let queues = Arc::new(EnvironmentQueues(self.me.clone()));
        let work = TickRequests::new(queues, table.clone(), clock.clone(), self.entropy.clone());
        let store = DynamoStore::new(table, clock, self.entropy.clone());
        let store = store.with_shards(self.settings.shards);
        let store = Arc::new(CountedStore { store, gauge: Arc::clone(&gauge) });
        let target = Worker { cloud: self.me.clone(), gauge: Arc::clone(&gauge) };
        let server = self.server(store, Arc::new(work), Arc::new(target)).await;
        Environment { server, gauge }
    }

    /// Invokes a function, which Lambda ends at its timeout and when its memory is used up.
    async fn invoke<T>(
        &self,
        function: &Function,
        work: impl FnOnce(Server, Timestamp) -> BoxFuture<'static, T>,
    ) -> Result<T, Ended> {
        {
            let mut running = function.running.lock();
            if *running >= function.most {
                function.used.lock().throttled += 1;
                return Err(Ended::Throttled);
            }
            *running += 1;
        }
        let warm = function.idle.lock().pop();
        let environment = if let Some(environment) = warm {
            environment
        } else {
            self.pass(0.15, 0.2).await;
            self.environment().await
        };
        self.pass(0.002, 0.013).await;
        let began = self.time.now();
        let end = began + function.timeout;
        let until = lambda::deadline(end.millis() as u64);
        let (mut work, time) = (work(environment.server.clone(), until), Arc::clone(&self.time));
        let mut timeout = Box::pin(async move { time.sleep_until(end).await });
        let result = poll_fn(|context| {
            let polled = work.as_mut().poll(context);
            if environment.gauge.is_over() {
                return Poll::Ready(Err(Ended::OutOfMemory));
            }
            match polled {
                Poll::Ready(done) => Poll::Ready(Ok(done)),
                Poll::Pending => timeout.as_mut().poll(context).map(|()| Err(Ended::TimedOut)),
            }
        })
        .await;
        drop(work);
        let took = self.time.now().since(began);
        let mut used = function.used.lock();
        used.calls += 1;
        used.gb_seconds += self.settings.memory_mb / 1024.0 * took.as_secs_f64();
        used.longest = used.longest.max(took);
        used.peak = used.peak.max(environment.gauge.take_peak());
        match &result {
            Ok(_) => function.idle.lock().push(environment),
            Err(Ended::OutOfMemory) => used.out_of_memory += 1,
            Err(_) => used.timed_out += 1,
        }
        drop(used);
        *function.running.lock() -= 1;
        result
    }

    /// The event of a minute: throttled ones are tried again until they are too old.
    async fn sweep(&self) {
        self.pass(0.0, 2.0).await;
        let (began, mut wait) = (self.time.now(), Duration::from_secs(1));
        loop {
            let swept = self.invoke(&self.sweep, |server, until| {
                Box::pin(async move { server.maintenance_sweep(until).await })
            });
            let started = self.time.now();
            if !matches!(swept.await, Err(Ended::Throttled)) {
                let mut sweeps = self.sweeps.lock();
                sweeps.1 = sweeps.1.max(self.time.now().since(started));
                return;
            }
            if self.time.now().since(began) + wait > MAX_EVENT_AGE {
                self.sweeps.lock().0 += 1;
                return;
            }
            self.time.sleep_until(self.time.now() + wait).await;
            wait *= 2;
        }
    }

    /// Invokes the function of a queue; returns the messages that it did not handle.
    pub async fn invoke_with(
        &self,
        kind: Kind,
        batch: &[(String, Message)],
    ) -> Result<Vec<usize>, Ended> {
        let event = event_of(batch);
        let failures = if kind == Kind::Work {
            self.invoke(&self.deliver, |server, until| {
                Box::pin(async move { lambda::deliver(&server, &event, until).await })
            })
            .await?
        } else {
            self.invoke(&self.tick, |server, until| {
                Box::pin(async move { lambda::tick(&server, &event, until).await })
            })
            .await?
        };
        Ok(failures.ids().filter_map(|id| id.parse().ok()).collect())
    }

    /// Handles dead letters of a queue.
    pub async fn handle_dead(&self, batch: &[(String, Message)]) -> Result<(), Ended> {
        let event = event_of(batch);
        self.invoke(&self.sweep, |server, until| {
            Box::pin(async move {
                lambda::handle_dead_letter(&server, &event, until).await;
            })
        })
        .await
    }

    /// A worker: leases one job after the other through the API, and works on it.
    pub async fn work(self: Arc<Self>, queue: String, worker: String, takes: Duration) {
        let mut reports: Vec<Report> = Vec::new();
        loop {
            let ask = LeaseRequest {
                min: 0,
                queue: Some(name(&queue)),
                types: Vec::new(),
                max: 1,
                wait: Duration::from_secs(10),
                max_pause: Duration::ZERO,
                call: None,
                worker: Some(worker.clone()),
                lease_seconds: None,
                reports: reports.clone(),
            };
            let leased = self.invoke(&self.enqueue, |server, _| {
                Box::pin(async move {
                    let leased = server.lease(ask).await;
                    let _ = server.flush().await;
                    leased
                })
            });
            let Ok(Ok(leased)) = leased.await else {
                self.pass(0.5, 1.0).await;
                continue;
            };
            // A report that was not settled is sent again.
            let mut answers = leased.reports.iter();
            reports.retain(|_| matches!(answers.next(), Some(Err(Error::Unavailable { .. }))));
            for job in leased.jobs {
                {
                    let (now, mut starts) = (self.time.now(), self.starts.lock());
                    starts.start("main", job.id.to_string(), now, job.life.attempt == 1);
                    starts.change_busy(now, 1);
                }
                self.time.sleep_until(self.time.now() + takes).await;
                self.starts.lock().change_busy(self.time.now(), -1);
                reports.push(Report {
                    id: job.id.clone(),
                    job_type: None,
                    attempt: job.life.attempt,
                    token: job.life.running().map(|run| run.token),
                    outcome: ReportOutcome::Succeeded { result: None },
                    checkpoint: None,
                });
            }
        }
    }

    /// Enqueues jobs through the API, which are due now.
    pub async fn enqueue(&self, path: &str, jobs: Vec<NewJob>) {
        let due = self.time.now();
        let enqueued = self.invoke(&self.enqueue, |server, _| {
            Box::pin(async move {
                let answers = server.enqueue_many(jobs).await;
                let _ = server.flush().await;
                answers.into_iter().flatten().map(|enqueued| enqueued.job.id.to_string()).collect()
            })
        });
        let ids: Vec<String> = enqueued.await.unwrap_or_default();
        let mut starts = self.starts.lock();
        for id in &ids {
            starts.expect(path, id, due);
        }
    }
}

fn event_of(batch: &[(String, Message)]) -> SqsEvent {
    let records = batch.iter().enumerate().map(|(index, (_, message))| {
        json!({
            "messageId": index.to_string(),
            "body": message.body,
            "attributes": {"ApproximateReceiveCount": message.receives.to_string()},
        })
    });
    serde_json::from_value(json!({"Records": records.collect::<Vec<_>>()})).unwrap()
}

/// The worker, as one environment calls it. Its URL says whose jobs they are, and how many
/// milliseconds each takes: `http://worker.example/main/1000`.
struct Worker {
    cloud: Weak<Cloud>,
    gauge: Arc<Gauge>,
}

#[derive(Deserialize)]
struct Called {
    id: String,
    attempt: u32,
}

#[async_trait]
impl Target for Worker {
    async fn call(&self, request: Request) -> Result<Response, TargetError> {
        let cloud = self.cloud.upgrade().expect("the deployment holds its environments");
        let _held = self.gauge.hold(2 * request.body.len());
        self.gauge.compute(&cloud.time, CALL_MICROS).await;
        let called: Called = serde_json::from_slice(&request.body).expect("a job");
        let mut parts = request.url.rsplit('/');
        let takes: u64 = parts.next().and_then(|part| part.parse().ok()).expect("milliseconds");
        let path = parts.next().expect("a path").to_owned();
        let is_main = path == "main";
        {
            let (now, mut starts) = (cloud.time.now(), cloud.starts.lock());
            starts.start(&path, called.id, now, called.attempt == 1);
            if is_main {
                starts.change_busy(now, 1);
            }
        }
        let busy = Busy(is_main.then(|| Arc::clone(&cloud)));
        cloud.time.sleep_until(cloud.time.now() + Duration::from_millis(takes)).await;
        drop(busy);
        Ok(Response { status: 200, headers: Vec::new(), body: Bytes::new() })
    }
}

/// A call in progress, until it ends or its invocation does.
struct Busy(Option<Arc<Cloud>>);

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(cloud) = &self.0 {
            cloud.starts.lock().change_busy(cloud.time.now(), -1);
        }
    }
}

/// A target that is never called.
struct NoTarget;

#[async_trait]
impl Target for NoTarget {
    async fn call(&self, _: Request) -> Result<Response, TargetError> {
        Err(TargetError::Forbidden("nothing is delivered while a scenario is prepared".into()))
    }
}
