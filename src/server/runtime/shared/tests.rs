//! Servers on one store in memory. Only the tests move time, so what happens without that happens by
//! notices.

mod forward;
#[cfg(feature = "embedded")]
mod forward_http;
mod inbox;
mod parts;
mod stream;
mod views;
mod waiting;

use std::{
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
    task::Poll,
};

use async_trait::async_trait;
use futures_util::poll;
use object_store::memory::InMemory;
use tokio::sync::broadcast;

use super::*;
use crate::{auth::TokenItem, runtime::testing::builder_on};
use tidegate_core::{
    job::{Job, JobId, Payload, QueueName, type_config::TypeConfig},
    port::{
        Clock as _, JobFilter, StoreError, Target,
        job_store::{SharedStore, StateFilter},
        target::{Request, Response, TargetError},
    },
    queue::QueueConfig,
    target::{Push, TargetConfig},
};
use tidegate_engine::{
    memory::{FakeClock, MemoryStore},
    request::{BulkChange, BulkRequest, LeaseRequest, NewJob, Registration, Report, ReportOutcome},
    testkit::{builders::name, faults::FaultyStore},
};

/// Notices between the servers of a test, which may all be lost.
struct Channel {
    sender: broadcast::Sender<BTreeSet<Notice>>,
    receiver: tokio::sync::Mutex<broadcast::Receiver<BTreeSet<Notice>>>,
    loses: Arc<AtomicBool>,
}

#[async_trait]
impl Notices for Channel {
    async fn send(&self, notices: &BTreeSet<Notice>) -> Result<(), StoreError> {
        if !self.loses.load(Ordering::Relaxed) {
            let _ = self.sender.send(notices.clone());
        }
        Ok(())
    }

    async fn receive(&self) -> Result<BTreeSet<Notice>, StoreError> {
        self.receiver.lock().await.recv().await.map_err(StoreError::unavailable)
    }
}

/// Counts the pushes of each job.
#[derive(Default)]
struct Pushes(Mutex<Vec<String>>);

#[async_trait]
impl Target for Pushes {
    async fn call(&self, request: Request) -> Result<Response, TargetError> {
        self.0.lock().push(request.url.clone());
        Ok(Response { status: 200, headers: Vec::new(), body: bytes::Bytes::new() })
    }
}

/// Servers that share a store.
struct Deployment {
    clock: Arc<FakeClock>,
    memory: Arc<MemoryStore>,
    /// The same store, whose commits take some time.
    store: SharedStore,
    sender: broadcast::Sender<BTreeSet<Notice>>,
    loses: Arc<AtomicBool>,
    /// Those of each server, in the order of their starts.
    pushes: Mutex<Vec<Arc<Pushes>>>,
}

impl Deployment {
    fn new() -> Self {
        let memory = Arc::new(MemoryStore::new());
        let store = FaultyStore::new(Arc::clone(&memory) as _, 1);
        Self {
            clock: Arc::new(FakeClock::default()),
            memory,
            store: Arc::new(store.with_flight(Duration::ZERO).shared()),
            sender: broadcast::channel(10_000).0,
            loses: Arc::default(),
            pushes: Mutex::default(),
        }
    }

    /// Starts another server, which all others know then.
    async fn start(&self) -> Server {
        self.start_with(Some(Arc::clone(&self.memory) as _)).await
    }

    /// As [`Self::start`], with this inbox.
    async fn start_with(&self, inbox: Option<Arc<dyn Inbox>>) -> Server {
        self.start_as(inbox, None).await
    }

    /// As [`Self::start_with`], with these peers.
    async fn start_as(&self, inbox: Option<Arc<dyn Inbox>>, peers: Option<Peers>) -> Server {
        let store = Arc::clone(&self.store);
        self.builder(store, inbox, peers).start().await.unwrap()
    }

    /// A builder of another server, on `store`.
    fn builder(
        &self,
        store: SharedStore,
        inbox: Option<Arc<dyn Inbox>>,
        peers: Option<Peers>,
    ) -> Builder {
        let mut builder = builder_on(&self.clock, store, Arc::new(InMemory::new()));
        let pushes = Arc::<Pushes>::default();
        self.pushes.lock().push(Arc::clone(&pushes));
        builder.target = pushes;
        let notices = Channel {
            sender: self.sender.clone(),
            receiver: tokio::sync::Mutex::new(self.sender.subscribe()),
            loses: Arc::clone(&self.loses),
        };
        builder.inbox = inbox;
        builder.peers = peers;
        builder.shared(Arc::new(notices))
    }

    /// Two servers that know each other: the owner of `what`, and the other one.
    async fn two(&self, what: &str) -> (Server, Server) {
        let (one, other) = (self.start().await, self.start().await);
        self.owner_and_other(one, other, what).await
    }

    /// The owner of `what`, and the other server, when they know each other.
    async fn owner_and_other(&self, one: Server, other: Server, what: &str) -> (Server, Server) {
        self.until(BY_NOTICE, async || members(&one) == 2 && members(&other) == 2).await;
        assert_ne!(one.inner.owns(what), other.inner.owns(what));
        if one.inner.owns(what) { (one, other) } else { (other, one) }
    }

    /// How often all servers have pushed.
    fn pushed(&self) -> usize {
        self.pushes.lock().iter().map(|pushes| pushes.0.lock().len()).sum()
    }

    /// Lets time pass.
    async fn pass(&self, span: Duration) {
        let (step, until) = (Duration::from_millis(100), self.clock.now() + span);
        while self.clock.now() < until {
            self.clock.advance(step);
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// The result of `work`, which takes less than `limit`.
    async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> T {
        let (mut work, until) = (pin!(work), self.clock.now() + limit);
        loop {
            // All tasks do what they can at this instant.
            for _ in 0..200 {
                if let Poll::Ready(result) = poll!(&mut work) {
                    return result;
                }
                tokio::task::yield_now().await;
            }
            self.clock.advance(SEND_INTERVAL);
            assert!(self.clock.now() < until, "it takes longer than {limit:?}");
        }
    }

    /// As [`Self::within`]; it is to become `true`.
    async fn until(&self, limit: Duration, mut good: impl AsyncFnMut() -> bool) {
        let becomes = async {
            while !good().await {
                tokio::task::yield_now().await;
            }
        };
        self.within(limit, becomes).await;
    }
}

/// Less than any interval of polling.
const BY_NOTICE: Duration = Duration::from_millis(200);

fn members(server: &Server) -> usize {
    server.inner.shared.as_ref().map_or(0, |shared| shared.members.lock().count())
}

fn pushed_type() -> TypeConfig {
    TypeConfig {
        target: Some(TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:9/{id}")))),
        ..TypeConfig::default()
    }
}

fn request() -> LeaseRequest {
    LeaseRequest {
        min: 0,
        queue: None,
        types: vec![name("work")],
        max: 1,
        wait: Duration::from_secs(20),
        max_pause: Duration::ZERO,
        call: None,
        worker: None,
        lease_seconds: None,
        reports: Vec::new(),
    }
}

fn job() -> NewJob {
    NewJob::new(name("work"), Payload::null())
}

/// The report that the running attempt of `job` has succeeded.
fn success(job: &Job) -> Report {
    Report {
        id: job.id.clone(),
        job_type: None,
        attempt: job.life.attempt,
        token: Some(job.life.running().expect("it runs").token),
        outcome: ReportOutcome::Succeeded { result: None },
        checkpoint: None,
    }
}

#[tokio::test]
async fn a_worker_gets_the_job_that_another_server_accepted() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two("default").await;
    owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    for (accepts, leases) in [(&owner, &other), (&other, &owner)] {
        let mut lease = pin!(leases.lease(request()));
        for _ in 0..100 {
            assert!(poll!(&mut lease).is_pending());
            tokio::task::yield_now().await;
        }
        let accepted = accepts.enqueue(job()).await.unwrap().job;
        let leased = deployment.within(BY_NOTICE, lease).await.unwrap();
        assert_eq!(leased.jobs[0].id, accepted.id);
    }
}

#[tokio::test]
async fn a_worker_gets_the_job_of_another_server_without_a_notice() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two("default").await;
    owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    deployment.loses.store(true, Ordering::Relaxed);
    let mut lease = pin!(other.lease(request()));
    assert!(poll!(&mut lease).is_pending());
    owner.enqueue(job()).await.unwrap();
    let leased = deployment.within(Duration::from_millis(1100), lease).await.unwrap();
    assert_eq!(leased.jobs.len(), 1);
}

#[tokio::test]
async fn the_owner_alone_pushes_each_job_once() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two("default").await;
    other.put_type(&name("work"), pushed_type(), None).await.unwrap();
    for number in 0..20 {
        let server = if number % 2 == 0 { &owner } else { &other };
        server.enqueue(job()).await.unwrap();
    }
    deployment
        .until(BY_NOTICE, async || {
            let counts = owner.engine().ports().store.depth(None).await.unwrap().counts;
            let ended = counts.iter().filter(|depth| matches!(depth.state, StateFilter::Ended(_)));
            ended.map(|depth| depth.jobs).sum::<u64>() == 20
        })
        .await;
    let mut of_servers: Vec<Vec<String>> =
        deployment.pushes.lock().iter().map(|pushes| pushes.0.lock().clone()).collect();
    of_servers.sort_unstable();
    let [idle, jobs] = &mut of_servers[..] else { panic!("two servers") };
    assert!(idle.is_empty(), "the other server pushed {idle:?}");
    jobs.sort_unstable();
    jobs.dedup();
    assert_eq!((jobs.len(), deployment.pushed()), (20, 20));
}

#[tokio::test]
async fn a_limit_holds_for_the_workers_of_all_servers() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two("default").await;
    let config = QueueConfig { concurrency: Some(1), ..QueueConfig::default() };
    owner.put_queue(&name("default"), config, None).await.unwrap();
    owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    for _ in 0..10 {
        owner.enqueue(job()).await.unwrap();
    }
    let mut servers = [&owner, &other].into_iter().cycle();
    let mut ended: Vec<JobId> = Vec::new();
    while ended.len() < 10 {
        let server = servers.next().expect("they never end");
        let leased = deployment.within(BY_NOTICE, server.lease(request())).await.unwrap();
        let [running] = &leased.jobs[..] else { panic!("one job") };
        // A slot is taken: no worker of either server gets another.
        for server in [&owner, &other] {
            let no_wait = LeaseRequest { wait: Duration::ZERO, ..request() };
            let leased = deployment.within(BY_NOTICE, server.lease(no_wait)).await.unwrap();
            assert!(leased.jobs.is_empty());
        }
        let reporter = servers.next().expect("they never end");
        let reported = reporter.report(vec![success(running)]);
        let answers = deployment.within(BY_NOTICE, reported).await;
        answers.into_iter().next().unwrap().unwrap();
        ended.push(running.id.clone());
    }
    ended.sort_unstable();
    ended.dedup();
    assert_eq!(ended.len(), 10);
}

#[tokio::test]
async fn the_owner_pushes_what_another_server_has_given_a_target() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two("default").await;
    other.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    other.enqueue(job()).await.unwrap();
    let has_task = async || owner.inner.queues.lock().contains_key(&name::<QueueName>("default"));
    deployment.until(BY_NOTICE, has_task).await;
    other.put_type(&name("work"), pushed_type(), None).await.unwrap();
    deployment.until(BY_NOTICE, async || deployment.pushed() == 1).await;
}

/// The server that leased a job does not see its report at another one.
#[tokio::test]
async fn a_worker_that_reports_elsewhere_gets_the_next_job() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two("default").await;
    owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    owner.register_worker("w", Registration::of_capacity(1)).await.unwrap();
    for _ in 0..3 {
        owner.enqueue(job()).await.unwrap();
    }
    let of_worker = || LeaseRequest { worker: Some("w".into()), ..request() };
    for _ in 0..3 {
        let leased = deployment.within(2 * BY_NOTICE, owner.lease(of_worker())).await.unwrap();
        let answers = other.report(vec![success(&leased.jobs[0])]);
        deployment.within(BY_NOTICE, answers).await.pop().unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_capacity_holds_at_a_server_that_it_was_not_registered_with() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two("default").await;
    owner.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    for capacity in [5, 2] {
        owner.register_worker("w", Registration::of_capacity(capacity)).await.unwrap();
        let knows = async || other.inner.workers.capacity("w") == Some(capacity);
        deployment.until(2 * LEARN_INTERVAL, knows).await;
        // A call makes the worker known to this server.
        let no_wait = LeaseRequest { worker: Some("w".into()), wait: Duration::ZERO, ..request() };
        deployment.within(BY_NOTICE, other.lease(no_wait)).await.unwrap();
    }
}

#[tokio::test]
async fn others_take_over_at_once_from_a_server_that_stops() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two("default").await;
    owner.put_type(&name("work"), pushed_type(), None).await.unwrap();
    deployment.within(BY_NOTICE, owner.stop()).await;
    other.enqueue(job()).await.unwrap();
    deployment.until(BY_NOTICE, async || deployment.pushed() == 1).await;
}

#[tokio::test]
async fn others_take_over_from_a_server_that_dies() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two("default").await;
    owner.put_type(&name("work"), pushed_type(), None).await.unwrap();
    // Its tasks end with it, and its record stays.
    drop(owner);
    other.enqueue(job()).await.unwrap();
    deployment.until(Duration::from_secs(14), async || deployment.pushed() == 1).await;
}

#[tokio::test]
async fn the_owner_runs_the_bulk_operations_of_all() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two(OPERATIONS).await;
    other.put_type(&name("work"), TypeConfig::default(), None).await.unwrap();
    let accepted = other.enqueue(job()).await.unwrap().job;
    let request = BulkRequest::new(BulkChange::Cancel, JobFilter::default());
    let operation = other.bulk(request, None).await.unwrap();
    assert!(other.inner.operations.lock().is_empty());
    let has_ended = async || owner.operation(&operation.id).await.unwrap().ended_at.is_some();
    deployment.until(BY_NOTICE, has_ended).await;
    let cancelled = other.job(&accepted.id, None).await.unwrap();
    assert!(cancelled.life.ended().is_some());
}

#[tokio::test]
async fn each_server_learns_of_the_tokens_of_others() {
    let deployment = Deployment::new();
    let (owner, other) = deployment.two("default").await;
    let known = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&known);
    other.watch_tokens(move |tokens| *seen.lock() = tokens);
    let setting = TokenItem::admin_setting("tg_abc_secret").expect("it is a token");
    let token = TokenItem::of_admin_setting(&setting).expect("it is a setting");
    owner.put_token(&token).await.unwrap();
    deployment.until(BY_NOTICE, async || known.lock().len() == 1).await;
    deployment.loses.store(true, Ordering::Relaxed);
    owner.delete_token(&token.id, || false).await.unwrap();
    deployment.until(Duration::from_millis(2100), async || known.lock().is_empty()).await;
}
