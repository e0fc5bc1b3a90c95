//! A deployment with a meter: three functions over one metered table and metered queues. Each
//! function has its own server and store, like a process of its own. Time passes while a target
//! works.

use std::{
    collections::{BTreeMap, btree_map::OccupiedEntry},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture, poll, stream::FuturesUnordered};
use object_store::memory::InMemory;
use parking_lot::Mutex;
use tidegate_backends::{
    cost::Units,
    dynamodb::{DynamoStore, TickRequests, memory::MemoryTable, table::Table},
    testkit::meter::{Bill, Metered, MeteredQueue, Received, Requests},
};
use tidegate_core::{
    job::{
        Payload, QueueName, Token,
        type_config::{Start, TypeConfig},
    },
    port::{
        Clock, Entropy, Target,
        policy::NoPolicy,
        target::{Request, Response, TargetError},
    },
    queue::QueueConfig,
    target::{Push, TargetConfig},
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    Ports, Rules,
    memory::{FakeClock, SeededEntropy},
    request::{LeaseRequest, NewJob, Registration, Report, ReportOutcome},
    testkit::builders::name,
};
use tidegate_server::{
    Server,
    lambda::{self, SqsEvent, testkit},
};

const TYPE: &str = "invoice";

/// Which jobs run, and how they arrive.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub jobs: usize,
    /// Bytes of each job's data.
    pub size: usize,
    /// Jobs of one enqueue call.
    pub per_call: usize,
    /// The time from one call to the next.
    pub gap: Duration,
    /// How long after its enqueue each is due.
    pub delay: Duration,
    pub limit: Option<u32>,
    pub start: Start,
    pub pulled: bool,
    /// Whether the first attempt of each fails.
    pub fails: bool,
    /// Whether workers answer 202 and call back, one by one.
    pub callbacks: bool,
    /// Most messages that a function is called with.
    pub most: usize,
    pub config: QueueConfig,
    /// Queues that there are: the jobs are of the first.
    pub queues: usize,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            jobs: 400,
            size: 300,
            per_call: 1,
            gap: Duration::from_millis(10),
            delay: Duration::ZERO,
            limit: None,
            start: Start::Claim,
            pulled: false,
            fails: false,
            callbacks: false,
            most: 10,
            config: QueueConfig::default(),
            queues: 1,
        }
    }
}

/// Invocations of each function.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    enqueue: f64,
    tick: f64,
    deliver: f64,
    /// Seconds in which `tick` waited.
    waits: f64,
    sweeps: f64,
}

/// The consumption up to a moment.
#[derive(Clone, Copy)]
struct Taken {
    bill: Bill,
    requests: Requests,
    calls: Calls,
}

pub struct Deployment {
    pub table: Arc<Metered<MemoryTable>>,
    pub queue: Arc<MeteredQueue>,
    pub clock: Arc<FakeClock>,
    enqueue: Server,
    tick: Server,
    deliver: Server,
    worker: Arc<Worker>,
    calls: Mutex<Calls>,
    sweep_at: Mutex<Timestamp>,
    /// Whether `tick` has hints of the queue.
    hint_in_flight: Mutex<bool>,
}

/// The calls of `tick` in progress.
type Ticks<'a> = FuturesUnordered<BoxFuture<'a, ()>>;

/// Answers after 50 to 150 ms.
struct Worker {
    clock: Arc<FakeClock>,
    chance: SeededEntropy,
    fails: bool,
    callbacks: bool,
    done: Mutex<usize>,
    /// What is to be called back, and when.
    later: Mutex<BTreeMap<(Timestamp, String), Report>>,
}

#[async_trait::async_trait]
impl Target for Worker {
    async fn call(&self, request: Request) -> Result<Response, TargetError> {
        let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        let (id, attempt) =
            (body["id"].as_str().unwrap().to_owned(), body["attempt"].as_u64().unwrap() as u16);
        let fails = self.fails && attempt == 1;
        *self.done.lock() += usize::from(!fails);
        let works = Duration::from_millis(50 + (self.chance.bits() % 100) as u64);
        self.clock.sleep_until(self.clock.now() + works).await;
        if self.callbacks {
            let token =
                u128::from_str_radix(body["callback"]["token"].as_str().unwrap(), 16).unwrap();
            let outcome = if fails { failure() } else { ReportOutcome::Succeeded { result: None } };
            let report = Report {
                id: name(&id),
                job_type: None,
                attempt,
                token: Some(Token::new(token)),
                outcome,
                checkpoint: None,
            };
            self.later
                .lock()
                .insert((self.clock.now() + Duration::from_secs(1) + works * 20, id), report);
            return Ok(Response { status: 202, headers: Vec::new(), body: Bytes::new() });
        }
        Ok(Response {
            status: if fails { 500 } else { 200 },
            headers: Vec::new(),
            body: Bytes::new(),
        })
    }
}

fn failure() -> ReportOutcome {
    use tidegate_core::job::lifecycle::{Failure, Reason};
    ReportOutcome::Failed { failure: Failure::new(Reason::Failed, "no"), retryable: true }
}

fn queue() -> QueueName {
    name("mail")
}

impl Deployment {
    pub async fn new(scenario: &Scenario) -> Self {
        let clock = Arc::new(FakeClock::default());
        let (table, queue) =
            (Metered::new(MemoryTable::new()), MeteredQueue::new(Arc::clone(&clock) as _));
        let worker = Arc::new(Worker {
            clock: Arc::clone(&clock),
            chance: SeededEntropy::new(5),
            fails: scenario.fails,
            callbacks: scenario.callbacks,
            done: Mutex::default(),
            later: Mutex::default(),
        });
        let objects = Arc::new(InMemory::new());
        let server = async |seed| {
            let entropy = Arc::new(SeededEntropy::new(seed));
            let store = DynamoStore::new(
                Arc::clone(&table) as Arc<dyn Table>,
                Arc::clone(&clock) as _,
                Arc::clone(&entropy) as _,
            );
            let work = TickRequests::new(
                Arc::clone(&queue) as _,
                Arc::clone(&table) as Arc<dyn Table>,
                Arc::clone(&clock) as _,
                Arc::clone(&entropy) as _,
            );
            let ports = Ports {
                store: Arc::new(store),
                objects: Arc::clone(&objects) as _,
                work: Arc::new(work),
                clock: Arc::clone(&clock) as _,
                entropy,
                policy: Arc::new(NoPolicy),
            };
            let rules =
                Rules { object_bytes: tidegate_backends::cost::OBJECT_BYTES, ..Rules::default() };
            Server::builder(ports, Arc::clone(&worker) as _)
                .rules(rules)
                .serverless()
                .start()
                .await
                .unwrap()
        };
        let (enqueue, tick, deliver) = (server(1).await, server(2).await, server(3).await);
        // As the first sweep of a deployment does, long before these jobs.
        let first = server(4).await;
        let catalog = first.engine().catalog().await.unwrap();
        first.engine().record_schema(catalog).await.unwrap();
        let sweep_at = Mutex::new(clock.now() + Duration::from_secs(17));
        let deployment = Self {
            table,
            queue,
            clock,
            enqueue,
            tick,
            deliver,
            worker,
            calls: Mutex::default(),
            sweep_at,
            hint_in_flight: Mutex::new(false),
        };
        let config = QueueConfig { concurrency: scenario.limit, ..scenario.config.clone() };
        for number in 0..scenario.queues {
            let queue = if number == 0 { self::queue() } else { name(&format!("q{number}")) };
            deployment.enqueue.put_queue(&queue, config.clone(), None).await.unwrap();
        }
        let push = TargetConfig::Push(Box::new(Push::to("http://worker.example/")));
        let target = (!scenario.pulled).then_some(push);
        for number in 0..scenario.queues {
            let (queue, of) = if number == 0 {
                (self::queue(), name(TYPE))
            } else {
                (name(&format!("q{number}")), name(&format!("t{number}")))
            };
            let config = TypeConfig {
                queue,
                target: target.clone(),
                start: scenario.start,
                ..TypeConfig::default()
            };
            deployment.enqueue.put_type(&of, config, None).await.unwrap();
        }
        deployment.enqueue.flush().await.unwrap();
        // A new ledger settles, and each process reads what it reads only once.
        deployment.run(deployment.clock.now() + Duration::from_mins(2)).await;
        deployment
    }

    /// Does the work while time passes and `ticks` go on.
    async fn drive<T>(&self, work: impl Future<Output = T>, ticks: &mut Ticks<'_>) -> T {
        let mut work = pin!(work);
        loop {
            for _ in 0..8 {
                if let Poll::Ready(done) = poll!(&mut work) {
                    return done;
                }
                tokio::task::yield_now().await;
            }
            self.step(ticks).await;
        }
    }

    /// Lets `ticks` go on, and some time pass.
    async fn step(&self, ticks: &mut Ticks<'_>) {
        for _ in 0..8 {
            let _ = poll!(ticks.next());
            tokio::task::yield_now().await;
        }
        self.clock.advance(Duration::from_millis(5));
    }

    /// Calls `tick` with these messages.
    async fn call_tick(&self, bodies: Vec<String>, is_hinted: bool) {
        self.calls.lock().tick += 1.0;
        let event: SqsEvent =
            serde_json::from_value(testkit::messages(bodies.iter().map(String::as_str))).unwrap();
        let began = self.clock.now();
        assert!(lambda::tick(&self.tick, &event, self.until()).await.is_empty());
        // Requests take no time here, so that this is what it waits.
        self.calls.lock().waits += self.clock.now().since(began).as_secs_f64();
        // More jobs arrive during a tick.
        self.clock.sleep_until(self.clock.now() + Duration::from_millis(40)).await;
        if is_hinted {
            *self.hint_in_flight.lock() = false;
        }
    }

    fn until(&self) -> Timestamp {
        self.clock.now() + Duration::from_mins(5)
    }

    /// Calls functions as they are to be called, until `end`.
    pub async fn run(&self, end: Timestamp) {
        self.run_with(end, &mut BTreeMap::new(), 10).await;
    }

    /// The same, with enqueue calls at their times, and at most `most` messages to a call.
    async fn run_with(
        &self,
        end: Timestamp,
        arrivals: &mut BTreeMap<Timestamp, Vec<NewJob>>,
        most: usize,
    ) {
        let mut ticks = Ticks::new();
        loop {
            let now = self.clock.now();
            if let Some(jobs) = arrivals
                .first_entry()
                .filter(|first| *first.key() <= now)
                .map(OccupiedEntry::remove)
            {
                self.calls.lock().enqueue += 1.0;
                let answers = self.enqueue.enqueue_many(jobs).await;
                assert!(answers.iter().all(Result::is_ok));
                self.enqueue.flush().await.unwrap();
                continue;
            }
            let called_back = self
                .worker
                .later
                .lock()
                .first_entry()
                .filter(|first| first.key().0 <= now)
                .map(OccupiedEntry::remove);
            if let Some(report) = called_back {
                self.calls.lock().enqueue += 1.0;
                assert!(self.enqueue.report(vec![report]).await[0].is_ok());
                self.enqueue.flush().await.unwrap();
                continue;
            }
            if *self.sweep_at.lock() <= now {
                *self.sweep_at.lock() = now + Duration::from_mins(1);
                self.calls.lock().sweeps += 1.0;
                assert_eq!(
                    self.drive(self.tick.maintenance_sweep(self.until()), &mut ticks).await.failed,
                    0
                );
                continue;
            }
            let has_hint = *self.hint_in_flight.lock();
            match self.queue.receive(most, !has_hint) {
                Some(Received::Hints(bodies)) => {
                    *self.hint_in_flight.lock() = true;
                    ticks.push(Box::pin(self.call_tick(bodies, true)));
                    continue;
                }
                Some(Received::Timers(bodies)) => {
                    ticks.push(Box::pin(self.call_tick(bodies, false)));
                    continue;
                }
                Some(Received::Deliver(bodies)) => {
                    self.calls.lock().deliver += 1.0;
                    let event: SqsEvent = serde_json::from_value(testkit::messages(
                        bodies.iter().map(String::as_str),
                    ))
                    .unwrap();
                    let deliver = lambda::deliver(&self.deliver, &event, self.until());
                    assert!(self.drive(deliver, &mut ticks).await.is_empty());
                    continue;
                }
                None => {}
            }
            if !ticks.is_empty() {
                self.step(&mut ticks).await;
                continue;
            }
            let next = [
                arrivals.keys().next().copied(),
                self.worker.later.lock().keys().next().map(|(at, _)| *at),
                Some(*self.sweep_at.lock()),
                self.queue.next_at(),
            ];
            let next = next.into_iter().flatten().min().unwrap();
            if next > end {
                self.clock.set(end.max(now));
                return;
            }
            self.clock.set(next.max(now));
        }
    }

    fn taken(&self) -> Taken {
        Taken {
            bill: self.table.bill(),
            requests: self.queue.requests(),
            calls: *self.calls.lock(),
        }
    }

    /// What one idle maintenance sweep consumes, averaged over ten minutes.
    pub async fn idle_sweep(&self) -> Units {
        // The cleanup after the last jobs is over by then.
        self.run(self.clock.now() + Duration::from_mins(10)).await;
        let before = self.taken();
        self.run(self.clock.now() + Duration::from_mins(10)).await;
        self.since(before, Units::default()).over(10.0)
    }

    /// The consumption since `before`, without that of idle maintenance sweeps.
    fn since(&self, before: Taken, idle: Units) -> Units {
        let now = self.taken();
        let (bill, requests) = (now.bill - before.bill, now.requests - before.requests);
        let sweeps = now.calls.sweeps - before.calls.sweeps;
        Units {
            writes: bill.writes - sweeps * idle.writes,
            rows: bill.rows,
            reads: bill.reads - sweeps * idle.reads,
            standard: requests.standard,
            fifo: requests.fifo,
            enqueue: now.calls.enqueue - before.calls.enqueue,
            tick: now.calls.tick - before.calls.tick,
            deliver: now.calls.deliver - before.calls.deliver,
            waits: now.calls.waits - before.calls.waits,
        }
    }
}

fn job(scenario: &Scenario) -> NewJob {
    let mut job =
        NewJob::new(name(TYPE), Payload::json(format!("\"{}\"", "x".repeat(scenario.size - 2))));
    job.delay_seconds = (!scenario.delay.is_zero()).then(|| Seconds::new(scenario.delay.as_secs()));
    job.options.attributes.insert("region".into(), tidegate_core::job::Value::Text("east".into()));
    job
}

/// What `scenario` takes, for each of its jobs.
pub async fn units(scenario: &Scenario) -> Units {
    let deployment = Deployment::new(scenario).await;
    // The hour's buckets are registered by the first.
    let one = Scenario { jobs: 1, ..scenario.clone() };
    deployment.run_all(&one).await;
    let idle = deployment.idle_sweep().await;
    let before = deployment.taken();
    deployment.run_all(scenario).await;
    deployment.since(before, idle).over(scenario.jobs as f64)
}

/// The same with what the end of the retention writes.
pub async fn units_with_retention(scenario: &Scenario) -> Units {
    let deployment = Deployment::new(scenario).await;
    let one = Scenario { jobs: 1, ..scenario.clone() };
    deployment.run_all(&one).await;
    let idle = deployment.idle_sweep().await;
    let before = deployment.taken();
    deployment.run_all(scenario).await;
    let used = deployment.since(before, idle);
    let before = deployment.taken().bill.writes;
    deployment.clock.advance(Duration::from_hours(31 * 24));
    for _ in 0..3 {
        deployment.tick.engine().sweep().await.unwrap();
        deployment.clock.advance(Duration::from_mins(20));
    }
    let writes = deployment.taken().bill.writes - before;
    used.and(Units { writes, ..Units::default() }).over(scenario.jobs as f64)
}

/// What a call of a pull worker takes that finds no job: one that is held for 20 s, or one that is
/// followed by a pause of up to `pause`.
pub async fn waiting_call(limit: Option<u32>, pause: Duration) -> Units {
    let scenario = Scenario { limit, pulled: true, jobs: 20, most: 1, ..Scenario::default() };
    let deployment = Deployment::new(&scenario).await;
    deployment.run_all(&scenario).await;
    let idle = deployment.idle_sweep().await;
    let (mut before, mut calls) = (deployment.taken(), 0.0);
    let (mut start, mut warm) = (deployment.clock.now(), false);
    while deployment.clock.now() < start + Duration::from_mins(10) {
        deployment.run_with(deployment.clock.now(), &mut BTreeMap::new(), 10).await;
        let ask = LeaseRequest {
            min: 0,
            queue: Some(queue()),
            types: Vec::new(),
            max: 1,
            wait: Duration::from_secs(20),
            max_pause: pause,
            call: None,
            worker: Some("w".into()),
            lease_seconds: None,
            reports: Vec::new(),
        };
        let leased =
            deployment.drive(deployment.enqueue.lease(ask), &mut Ticks::new()).await.unwrap();
        assert!(leased.jobs.is_empty());
        deployment.enqueue.flush().await.unwrap();
        calls += 1.0;
        deployment.run(deployment.clock.now() + leased.pause.unwrap_or_default()).await;
        // The first pauses are short.
        if !warm && deployment.clock.now() > start + Duration::from_mins(2) {
            (before, calls, warm) = (deployment.taken(), 0.0, true);
            start = deployment.clock.now();
        }
    }
    deployment.since(before, idle).over(calls)
}

/// The consumption of a worker's registration.
pub async fn registration() -> Units {
    let deployment = Deployment::new(&Scenario { pulled: true, ..Scenario::default() }).await;
    let idle = deployment.idle_sweep().await;
    let (before, count) = (deployment.taken(), 20);
    for _ in 0..count {
        let registration = Registration { queue: Some(queue()), ..Registration::of_capacity(4) };
        deployment.enqueue.register_worker("w", registration).await.unwrap();
        deployment.enqueue.flush().await.unwrap();
        deployment.run(deployment.clock.now() + Duration::from_secs(30)).await;
    }
    deployment.since(before, idle).over(f64::from(count))
}

impl Deployment {
    /// Runs the scenario's jobs to their ends.
    pub async fn run_all(&self, scenario: &Scenario) {
        let (start, wanted) = (self.clock.now(), *self.worker.done.lock() + scenario.jobs);
        let mut arrivals = BTreeMap::new();
        for (call, from) in (0..scenario.jobs).step_by(scenario.per_call).enumerate() {
            let count = scenario.per_call.min(scenario.jobs - from);
            arrivals.insert(
                start + scenario.gap * call as u32,
                (0..count).map(|_| job(scenario)).collect(),
            );
        }
        if scenario.pulled {
            return self.lease_all(scenario, arrivals).await;
        }
        let mut rounds = 0;
        while !arrivals.is_empty()
            || *self.worker.done.lock() < wanted
            || !self.worker.later.lock().is_empty()
        {
            rounds += 1;
            assert!(rounds < 5000, "{} of {wanted} are done", self.worker.done.lock());
            self.run_with(self.clock.now() + Duration::from_secs(1), &mut arrivals, scenario.most)
                .await;
        }
        self.run_with(self.clock.now() + Duration::from_secs(2), &mut arrivals, scenario.most)
            .await;
    }

    /// A worker requests as many jobs as it can run, with the results of the previous ones.
    async fn lease_all(&self, scenario: &Scenario, mut arrivals: BTreeMap<Timestamp, Vec<NewJob>>) {
        let (mut done, mut reports) = (0, Vec::new());
        while done < scenario.jobs {
            self.run_with(self.clock.now(), &mut arrivals, scenario.most).await;
            self.calls.lock().enqueue += 1.0;
            let ask = LeaseRequest {
                min: 0,
                queue: Some(queue()),
                types: Vec::new(),
                max: scenario.most as u32,
                wait: Duration::from_secs(5),
                max_pause: Duration::ZERO,
                call: None,
                worker: None,
                lease_seconds: None,
                reports: std::mem::take(&mut reports),
            };
            let leased = self.drive(self.enqueue.lease(ask), &mut Ticks::new()).await.unwrap();
            assert!(leased.reports.iter().all(Result::is_ok));
            self.enqueue.flush().await.unwrap();
            done += leased.reports.len();
            // One job after the other.
            self.clock.advance(Duration::from_millis(100) * leased.jobs.len().max(1) as u32);
            reports.extend(leased.jobs.iter().map(|job| Report {
                id: job.id.clone(),
                job_type: None,
                attempt: job.life.attempt,
                token: job.life.running().map(|run| run.token),
                outcome: ReportOutcome::Succeeded { result: None },
                checkpoint: None,
            }));
        }
    }
}
