//! Nodes of a log on a metered store, and jobs, in virtual time. The seed alone determines a run.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use object_store::ObjectStore;
use parking_lot::Mutex;
use tidegate_core::{
    port::{Clock, Entropy},
    time::Timestamp,
};

use super::{
    super::simulation::{
        executor::{Actor, Executor},
        kv::{Command, KvReplica},
    },
    store::{MeteredStore, Requests},
};
use crate::bucket_log::{Edge, Handle, Node, NodeSettings, StoreBucket};

/// How long after each commit of a job the next one comes, in milliseconds: it is enqueued, a waiting
/// worker leases it, works and reports.
const COMMITS_OF_A_JOB: [i64; 3] = [1, 50, 0];
/// The time between two writes of a client, in milliseconds.
const CLIENT_PAUSE: i64 = 20;
/// The longest time, in milliseconds, in which a node must lead.
const MAX_WAIT: i64 = 120_000;

/// What a span of time took.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub requests: Requests,
    /// Jobs that ended.
    pub jobs: f64,
}

/// When a node has acknowledged commits, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acknowledged {
    pub first: Option<i64>,
    pub last: Option<i64>,
}

impl Acknowledged {
    fn note(&mut self, at: i64) {
        self.first.get_or_insert(at);
        self.last = Some(at);
    }
}

/// A handle of a node, and its replica.
type Open = (Handle<bool>, Arc<KvReplica>);

/// A run. Times are milliseconds.
pub struct Run {
    pub executor: Arc<Executor>,
    pub store: Arc<MeteredStore>,
    nodes: Mutex<BTreeMap<usize, Open>>,
    jobs: AtomicU64,
    /// Nodes that have stopped by themselves, and why.
    pub ended: Mutex<Vec<String>>,
}

impl Run {
    pub fn new(seed: u64) -> Arc<Self> {
        let executor = Executor::new(seed);
        Arc::new(Self {
            store: Arc::new(MeteredStore::new(Arc::clone(&executor))),
            executor,
            nodes: Mutex::default(),
            jobs: 0.into(),
            ended: Mutex::default(),
        })
    }

    /// A run with a node, 0, that leads.
    pub fn with_leader(seed: u64, settings: NodeSettings) -> Arc<Self> {
        let run = Self::new(seed);
        run.start(0, NodeSettings { leads_at_start: true, ..settings });
        run.until_leads(0);
        run
    }

    /// The log's part of the store, for a node or a reader.
    pub fn edge(&self) -> (Edge, Arc<StoreBucket>) {
        let store = Arc::clone(&self.store) as Arc<dyn ObjectStore>;
        let bucket = Arc::new(StoreBucket::new(store, "log".into()));
        let edge = Edge {
            bucket: Arc::clone(&bucket) as _,
            clock: Arc::new(VirtualClock(Arc::clone(&self.executor))),
            entropy: Arc::new(SeededEntropy(Arc::clone(&self.executor))),
        };
        (edge, bucket)
    }

    /// Starts a node with an empty disk.
    pub fn start(self: &Arc<Self>, number: usize, settings: NodeSettings) {
        let run = Arc::clone(self);
        self.executor.spawn(Actor::Node(number), async move {
            let (edge, bucket) = run.edge();
            let replica = Arc::new(KvReplica::new(number, Arc::default(), None));
            let opened = Node::open(edge, Arc::clone(&replica), settings).await;
            let (node, handle) = opened.expect("the store can have a log");
            run.nodes.lock().insert(number, (handle, replica));
            let ended = node.with_hints(bucket).run_once().await;
            run.ended.lock().push(format!("node {number}: {ended:?}"));
        });
    }

    pub fn handle(&self, number: usize) -> Option<Handle<bool>> {
        self.nodes.lock().get(&number).map(|(handle, _)| handle.clone())
    }

    /// The replica of a node that was started.
    pub fn replica(&self, number: usize) -> Arc<KvReplica> {
        let nodes = self.nodes.lock();
        nodes.get(&number).map(|(_, replica)| Arc::clone(replica)).expect("the node is open")
    }

    pub fn leads(&self, number: usize) -> bool {
        self.handle(number).is_some_and(|handle| handle.epoch().is_some())
    }

    /// Loses a node.
    pub fn lose(&self, number: usize) {
        self.executor.kill(number);
        self.nodes.lock().remove(&number);
    }

    /// Lets `span` pass.
    pub fn pass(&self, span: i64) {
        let end = self.executor.now() + span;
        self.executor.after(span, || ());
        self.executor.run(i64::MAX, || self.executor.now() >= end);
    }

    /// Lets time pass until `is_over`.
    #[track_caller]
    pub fn until(&self, is_over: impl Fn() -> bool) {
        let end = self.executor.now() + MAX_WAIT;
        self.executor.after(MAX_WAIT, || ());
        self.executor.run(i64::MAX, || is_over() || self.executor.now() >= end);
        assert!(is_over(), "two minutes have passed; ended: {:?}", self.ended.lock());
    }

    #[track_caller]
    pub fn until_leads(&self, number: usize) {
        self.until(|| self.leads(number));
    }

    /// Submits commands to a node. Returns whether they were executed.
    pub async fn submit(&self, number: usize, commands: usize) -> bool {
        let Some(handle) = self.handle(number) else { return false };
        // A repeat of the same write: the state stays small.
        let command = Command { write: 1, attempt: 1, key: 0, was: 0 };
        handle.submit(vec![command.encode(); commands]).await.is_ok()
    }

    /// Offers jobs to a node at random instants, on average `rate` in a second, without end.
    pub fn offer_jobs(self: &Arc<Self>, number: usize, rate: f64) {
        let run = Arc::clone(self);
        self.executor.spawn(Actor::Client, async move {
            let mut at = run.executor.now() as f64;
            loop {
                at -= (1.0 - run.executor.fraction()).ln() * 1000.0 / rate;
                let wait = at as i64 - run.executor.now();
                if wait > 0 {
                    run.executor.elapse(wait).await;
                }
                let job = Arc::clone(&run);
                run.executor.spawn(Actor::Client, async move { job.run_job(number).await });
            }
        });
    }

    /// Writes to each of `numbers` in turn, without end: the commits that each has acknowledged.
    pub fn write_always<const N: usize>(
        self: &Arc<Self>,
        numbers: [usize; N],
    ) -> Arc<Mutex<[Acknowledged; N]>> {
        let all = Arc::new(Mutex::new([Acknowledged::default(); N]));
        let (run, acknowledged) = (Arc::clone(self), Arc::clone(&all));
        self.executor.spawn(Actor::Client, async move {
            loop {
                for (index, number) in numbers.into_iter().enumerate() {
                    if run.submit(number, 1).await {
                        acknowledged.lock()[index].note(run.executor.now());
                    }
                }
                run.executor.elapse(CLIENT_PAUSE).await;
            }
        });
        all
    }

    async fn run_job(&self, number: usize) {
        for pause in COMMITS_OF_A_JOB {
            if !self.submit(number, 1).await {
                return;
            }
            self.executor.elapse(pause).await;
        }
        self.jobs.fetch_add(1, Ordering::Relaxed);
    }

    /// The requests and jobs of the next `span`.
    pub fn measure(&self, span: i64) -> Measured {
        let so_far = || (self.store.requests(), self.jobs.load(Ordering::Relaxed) as f64);
        let (requests_before, jobs_before) = so_far();
        self.pass(span);
        let (requests, jobs) = so_far();
        Measured { requests: requests.minus(requests_before), jobs: jobs - jobs_before }
    }

    /// Runs `work` as a client to its end: its output.
    pub fn complete<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let output = Arc::new(Mutex::new(None));
        let to = Arc::clone(&output);
        self.executor.spawn(Actor::Client, async move {
            let done = work.await;
            *to.lock() = Some(done);
        });
        self.until(|| output.lock().is_some());
        output.lock().take().expect("it has ended")
    }

    /// Ends the run, whose tasks hold it.
    pub fn end(&self) {
        self.executor.clear();
    }
}

/// The time of a run.
struct VirtualClock(Arc<Executor>);

#[async_trait]
impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.now())
    }

    async fn sleep_until(&self, at: Timestamp) {
        self.sleep(at.since(self.now())).await;
    }

    async fn sleep(&self, span: Duration) {
        self.0.elapse(span.as_millis() as i64).await;
    }
}

/// The random numbers of a run.
struct SeededEntropy(Arc<Executor>);

impl Entropy for SeededEntropy {
    fn bits(&self) -> u128 {
        self.0.bits()
    }
}
