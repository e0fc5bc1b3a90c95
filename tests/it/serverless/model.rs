//! A model of SQS and Lambda: delays in whole seconds, latencies, message groups in order, and a
//! rule that fires late.
//!
//! The latencies are published by AWS or measured by others. A message is received within 5 to 50
//! ms, sometimes 200 ms. A warm call begins within 15 ms, and one call in fifty is cold, with 250
//! ms. A rule fires within two seconds of its minute.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use object_store::memory::InMemory;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tidegate_core::{
    job::{JobId, Payload, QueueName},
    port::{
        Clock, Hint, HintKind, StoreError, Target, Timer, Work, WorkQueue,
        job_store::SharedStore,
        policy::NoPolicy,
        target::{Request, Response, TargetError},
    },
    queue::GrantDigest,
    time::Timestamp,
};
use tidegate_engine::{
    Ports,
    memory::{MemoryStore, SeededEntropy},
    request::NewJob,
    testkit::builders::name,
};
use tidegate_server::{Server, lambda::redelivery};

use super::time::Virtual;

/// How long an invocation may run.
const INVOCATION: Duration = Duration::from_mins(5);
/// The visibility timeout of a message.
const VISIBLE: Duration = Duration::from_mins(6);
/// How long its reads and writes take before it does anything that shows.
const STORE: Duration = Duration::from_millis(30);

/// The faults of messages and calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mishaps {
    /// How often a message is lost.
    pub lost: f64,
    /// How often it is delivered twice.
    pub twice: f64,
    /// How often a target answers 500.
    pub fails: f64,
    /// How often an invocation fails: before its work, or after it and before its response.
    pub refused: f64,
}

/// A deployment.
pub struct Cloud {
    pub time: Arc<Virtual>,
    pub server: Server,
    pub calls: Arc<Mutex<Vec<(JobId, Timestamp)>>>,
    pub most: Arc<Mutex<(usize, usize)>>,
    queue: Arc<Queues>,
    target: Arc<dyn Target>,
}

/// The queues, and the functions behind them.
struct Queues {
    time: Arc<Virtual>,
    chance: Mutex<StdRng>,
    mishaps: Mutex<Mishaps>,
    server: Mutex<Option<Server>>,
    /// Hints of each queue that wait for the one before.
    groups: Mutex<HashMap<QueueName, VecDeque<HintKind>>>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    /// Releases that were left for ticks.
    releases: Mutex<BTreeSet<GrantDigest>>,
    me: Weak<Queues>,
}

impl Cloud {
    pub fn new(seed: u64) -> Self {
        Self::on(seed, Virtual::new(), Arc::new(MemoryStore::new()))
    }

    /// A deployment on this store.
    pub fn on(seed: u64, time: Arc<Virtual>, store: SharedStore) -> Self {
        let queue = Arc::new_cyclic(|me| Queues {
            time: Arc::clone(&time),
            chance: Mutex::new(StdRng::seed_from_u64(seed)),
            mishaps: Mutex::default(),
            server: Mutex::default(),
            releases: Mutex::default(),
            groups: Mutex::default(),
            counts: Mutex::default(),
            me: me.clone(),
        });
        let (calls, most) = (Arc::default(), Arc::default());
        let target = Endpoint {
            queues: Arc::clone(&queue),
            calls: Arc::clone(&calls),
            most: Arc::clone(&most),
        };
        let target = Arc::new(target) as Arc<dyn Target>;
        let server = queue.start(store, Arc::clone(&target), seed);
        *queue.server.lock() = Some(server.clone());
        let cloud = Self { time, server, calls, most, queue, target };
        cloud.start_rule();
        cloud
    }

    /// Another process of the deployment, with a connection of its own to the store.
    pub fn process(&self, store: SharedStore, seed: u64) -> Server {
        self.queue.start(store, Arc::clone(&self.target), seed)
    }

    pub fn set_mishaps(&self, mishaps: Mishaps) {
        *self.queue.mishaps.lock() = mishaps;
    }

    /// Leaves a release for the next tick, as hints of a busy queue do.
    pub fn leave_release(&self, grant: GrantDigest) {
        self.queue.releases.lock().insert(grant);
    }

    /// How many messages of a kind were sent.
    pub fn count(&self, kind: &str) -> u64 {
        self.queue.counts.lock().get(kind).copied().unwrap_or(0)
    }

    /// The rule of the maintenance sweep.
    fn start_rule(&self) {
        let queues = Arc::clone(&self.queue);
        let server = self.server.clone();
        let first = self.time.now();
        self.time.spawn(async move {
            for minute in 0_u64.. {
                let at = first + Duration::from_secs(17 + 60 * minute) + queues.span(2.0);
                queues.time.sleep_until(at).await;
                queues.begin().await;
                server.maintenance_sweep(queues.time.now() + INVOCATION).await;
            }
        });
    }

    /// Calls the API at `at` to enqueue `job`.
    pub fn enqueue_at(&self, at: Timestamp, job: NewJob) {
        let (server, time, queues) =
            (self.server.clone(), Arc::clone(&self.time), Arc::clone(&self.queue));
        self.time.spawn(async move {
            time.sleep_until(at).await;
            queues.begin().await;
            server.enqueue(job).await.unwrap();
            server.flush().await.unwrap();
        });
    }

    /// Does something at once, without any virtual time.
    #[allow(clippy::unused_self, reason = "it is done in this cloud")]
    pub fn now<T>(&self, work: impl Future<Output = T>) -> T {
        match poll_once(work) {
            std::task::Poll::Ready(done) => done,
            std::task::Poll::Pending => panic!("it waits"),
        }
    }
}

impl Drop for Cloud {
    fn drop(&mut self) {
        // The server and the queues hold each other.
        self.queue.server.lock().take();
    }
}

fn poll_once<T>(work: impl Future<Output = T>) -> std::task::Poll<T> {
    std::pin::pin!(work)
        .as_mut()
        .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}

pub fn job(job_type: &str, number: usize) -> NewJob {
    let mut job = NewJob::new(name(job_type), Payload::null());
    job.id = Some(name(&format!("{job_type}-{number}")));
    job
}

impl Queues {
    /// Starts a process.
    fn start(self: &Arc<Self>, store: SharedStore, target: Arc<dyn Target>, seed: u64) -> Server {
        let ports = Ports {
            store,
            objects: Arc::new(InMemory::new()),
            work: Arc::clone(self) as _,
            clock: Arc::clone(&self.time) as _,
            entropy: Arc::new(SeededEntropy::new(seed)),
            policy: Arc::new(NoPolicy),
        };
        match poll_once(Server::builder(ports, target).serverless().start()) {
            std::task::Poll::Ready(server) => server.unwrap(),
            std::task::Poll::Pending => panic!("nothing is waited for"),
        }
    }

    fn happens(&self, probability: f64) -> bool {
        self.chance.lock().random::<f64>() < probability
    }

    pub fn span(&self, most: f64) -> Duration {
        Duration::from_millis((self.chance.lock().random::<f64>() * most * 1000.0) as u64)
    }

    async fn pass(&self, span: Duration) {
        self.time.sleep_until(self.time.now() + span).await;
    }

    /// A call of a function begins.
    async fn begin(&self) {
        let cold = if self.happens(0.02) { Duration::from_millis(250) } else { Duration::ZERO };
        self.pass(cold + Duration::from_millis(2) + self.span(0.013) + STORE).await;
    }

    /// A message is received.
    async fn receive(&self, delay: Duration) {
        let slow = if self.happens(0.02) { self.span(0.15) } else { Duration::ZERO };
        self.pass(delay + Duration::from_millis(5) + self.span(0.045) + slow).await;
    }

    /// Sends a message, or loses it, or doubles it.
    fn post(
        &self,
        kind: &'static str,
        arrives: impl Fn(Arc<Self>, Server) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>,
    ) {
        *self.counts.lock().entry(kind).or_default() += 1;
        let (Some(me), Some(server)) = (self.me.upgrade(), self.server.lock().clone()) else {
            return;
        };
        let mishaps = *self.mishaps.lock();
        let copies = if self.happens(mishaps.lost) {
            0
        } else {
            1 + usize::from(self.happens(mishaps.twice))
        };
        for _ in 0..copies {
            self.time.spawn(arrives(Arc::clone(&me), server.clone()));
        }
    }

    /// Delays are whole seconds, and the adapter takes the nearest.
    fn delay(&self, at: Timestamp) -> Duration {
        let millis = at.since(self.time.now()).as_millis() as u64;
        Duration::from_secs(((millis + 500) / 1000).min(900))
    }
}

#[async_trait::async_trait]
impl WorkQueue for Queues {
    async fn send(&self, work: &[Work]) -> Result<(), StoreError> {
        let mut groups: BTreeMap<(QueueName, Duration), Vec<Work>> = BTreeMap::new();
        for work in work {
            groups
                .entry((work.queue.clone(), self.delay(work.run_at)))
                .or_default()
                .push(work.clone());
        }
        for ((_, delay), work) in groups {
            for work in work.chunks(10) {
                let work = work.to_vec();
                self.post("work", move |me, server| {
                    let work = work.clone();
                    Box::pin(async move {
                        me.receive(delay).await;
                        let (mut left, mut receives) = (work, 1);
                        loop {
                            me.begin().await;
                            let done = server.deliver(left.clone(), me.time.now() + INVOCATION);
                            let mut done = done.await.into_iter();
                            left.retain(|_| !done.next().unwrap_or(true));
                            if left.is_empty() {
                                break;
                            }
                            me.come_again(&mut receives).await;
                        }
                    })
                });
            }
        }
        Ok(())
    }

    async fn hint(&self, hints: &[Hint]) -> Result<(), StoreError> {
        for hint in hints {
            let hint = hint.clone();
            self.post("hint", move |me, server| {
                let hint = hint.clone();
                Box::pin(async move {
                    me.receive(Duration::ZERO).await;
                    me.handle_hint(&server, hint).await;
                })
            });
        }
        Ok(())
    }

    async fn take_releases(&self, _: &QueueName) -> Result<BTreeSet<GrantDigest>, StoreError> {
        Ok(std::mem::take(&mut *self.releases.lock()))
    }

    async fn set_timers(&self, timers: &[Timer]) -> Result<(), StoreError> {
        for timer in timers {
            let (timer, delay) = (timer.clone(), self.delay(timer.at));
            self.post("timer", move |me, server| {
                let timer = timer.clone();
                Box::pin(async move {
                    me.receive(delay).await;
                    me.begin().await;
                    me.time.sleep_until(timer.at).await;
                    let mut receives = 1;
                    while !me.round(&server, &timer.queue, Vec::new()).await {
                        me.come_again(&mut receives).await;
                    }
                })
            });
        }
        Ok(())
    }
}

impl Queues {
    /// A hint has arrived: the group's call takes it, with those that come while it works, ten at a
    /// time.
    async fn handle_hint(&self, server: &Server, hint: Hint) {
        {
            let mut groups = self.groups.lock();
            let waiting = groups.get_mut(&hint.queue);
            if let Some(waiting) = waiting {
                waiting.push_back(hint.kind);
                return;
            }
            groups.insert(hint.queue.clone(), VecDeque::from([hint.kind]));
        }
        loop {
            let hints: Vec<HintKind> = {
                let mut groups = self.groups.lock();
                let waiting = groups.get_mut(&hint.queue).expect("this call put it there");
                let count = waiting.len().min(10);
                if count == 0 {
                    groups.remove(&hint.queue);
                    return;
                }
                waiting.drain(..count).collect()
            };
            self.begin().await;
            let mut receives = 1;
            while !self.round(server, &hint.queue, hints.clone()).await {
                self.come_again(&mut receives).await;
            }
        }
    }

    /// Runs the ticks of a queue, as `tick` does; returns whether it acknowledged them.
    async fn round(&self, server: &Server, queue: &QueueName, hints: Vec<HintKind>) -> bool {
        let probability = self.mishaps.lock().refused;
        let refused = probability > 0.0 && self.happens(probability);
        if !refused || self.happens(0.5) {
            let until = self.time.now() + INVOCATION;
            let ticked = server.tick_queue(queue, hints, until).await;
            return !refused && ticked.and(server.flush().await).is_ok();
        }
        false
    }

    /// A failed message is received again, when `tick` schedules it or its visibility timeout ends.
    async fn come_again(&self, receives: &mut usize) {
        self.pass(redelivery::after(*receives).unwrap_or(VISIBLE)).await;
        *receives += 1;
        self.receive(Duration::ZERO).await;
        self.begin().await;
    }
}

/// An endpoint that remembers when it was called, and for which job.
struct Endpoint {
    queues: Arc<Queues>,
    calls: Arc<Mutex<Vec<(JobId, Timestamp)>>>,
    /// Calls in progress, and their maximum, of the path `/limited`.
    most: Arc<Mutex<(usize, usize)>>,
}

#[async_trait::async_trait]
impl Target for Endpoint {
    async fn call(&self, request: Request) -> Result<Response, TargetError> {
        let body: serde_json::Value = serde_json::from_slice(&request.body).expect("a job");
        self.calls.lock().push((name(body["id"].as_str().unwrap()), self.queues.time.now()));
        let limited = request.url.ends_with("/limited");
        if limited {
            let mut most = self.most.lock();
            most.0 += 1;
            most.1 = most.1.max(most.0);
        }
        self.queues.pass(Duration::from_millis(20) + self.queues.span(0.2)).await;
        if limited {
            self.most.lock().0 -= 1;
        }
        let fails = self.queues.mishaps.lock().fails;
        let status = if self.queues.happens(fails) { 500 } else { 200 };
        Ok(Response { status, headers: Vec::new(), body: Bytes::new() })
    }
}
