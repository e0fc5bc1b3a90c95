//! What jobs cost on a real server: the requests of jobs that are enqueued, leased and reported one by one,
//! in virtual time, compared with the table of the documents.
//!
//! The table has three commits for each job, independent of each other. The tasks of a server work for all
//! workers that wait, one commit after the other, so a server writes fewer records. A thousand jobs a second
//! need hundreds of workers that wait, which all wake up whenever the clock moves: too much processor time.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use object_store::memory::InMemory;
use tempfile::TempDir;

use super::timeline::Timeline;
use crate::runtime::{
    Server,
    testing::{AcceptAll, ports},
};
use tidegate_backends::{
    bucket_log::{
        Edge, Hint, Hints, LogBucket, Node, NodeSettings, Pace, Removable, StoreBucket,
        create::{GetAnswer, PutAnswer},
        immediate::{Immediate, at_once},
        key::ObjectKey,
    },
    sqlite::SqliteReplica,
    system::SystemEntropy,
};
use tidegate_core::{
    job::{Job, Payload, type_config::TypeConfig},
    port::{
        Clock, Entropy as _, JobStore, StoreError, StoreLayer, job_store::SharedStore,
        store_layer::Operation,
    },
};
use tidegate_engine::{
    Ports,
    memory::SeededEntropy,
    request::{LeaseRequest, NewJob, Report, ReportOutcome},
    testkit::builders::{at, name},
};

/// The document with the table.
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/deploy-bucket.md");
/// Jobs a second, and for how long they are measured.
const LOADS: [(u32, Duration); 3] =
    [(1, Duration::from_secs(200)), (10, Duration::from_secs(20)), (100, Duration::from_secs(5))];
/// The time at which a run begins: 2026-01-01T00:00:00Z, in milliseconds.
const START: i64 = 1_767_225_600_000;
/// When a leader knows that there is no standby, and seldom beats.
const SETTLED: Duration = Duration::from_secs(150);
/// The time from the first job until the measurement begins.
const WARM_UP: Duration = Duration::from_secs(3);
/// Workers. Some wait for jobs at all times.
const WORKERS: usize = 60;
/// How long a worker works on a job.
const WORK: Duration = Duration::from_millis(50);
/// The least and the most PUTs of a server, as parts of those in the table.
const BOUNDS: [f64; 2] = [0.6, 1.2];
/// A busy leader reads the claim of the next epoch once in this many records.
const PUTS_PER_GET: f64 = 20.0;
/// The most GETs of a leader alone from one of its beats to the next one. It beats once a minute, and looks
/// for a standby every ten seconds.
const GETS_PER_BEAT: f64 = 8.0;
/// The least part of the offered jobs that end in the time of the measurement.
const MIN_ENDED: f64 = 0.75;

/// A bucket that counts PUTs and GETs. A request takes 60 ms on average.
struct Metered {
    inner: StoreBucket,
    clock: Arc<Timeline>,
    chance: SeededEntropy,
    puts: AtomicU64,
    gets: AtomicU64,
}

impl Metered {
    /// Half the way of a request.
    async fn travel(&self) {
        let millis = 20 + (self.chance.fraction() * 21.0) as u64;
        self.clock.sleep_until(self.clock.now() + Duration::from_millis(millis)).await;
    }
}

#[async_trait]
impl LogBucket for Metered {
    async fn create(&self, key: &ObjectKey, bytes: Bytes) -> PutAnswer {
        self.puts.fetch_add(1, Ordering::Relaxed);
        self.travel().await;
        let answer = self.inner.create(key, bytes).await;
        self.travel().await;
        answer
    }

    async fn read(&self, key: &ObjectKey) -> GetAnswer {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.travel().await;
        let answer = LogBucket::read(&self.inner, key).await;
        self.travel().await;
        answer
    }

    async fn remove(&self, object: &Removable) -> bool {
        self.inner.remove(object).await
    }
}

#[async_trait]
impl Hints for Metered {
    async fn write(&self, hint: Hint, bytes: Bytes) -> bool {
        self.puts.fetch_add(1, Ordering::Relaxed);
        self.travel().await;
        let written = self.inner.write(hint, bytes).await;
        self.travel().await;
        written
    }

    async fn read(&self, hint: Hint) -> Option<Bytes> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.travel().await;
        let read = Hints::read(&self.inner, hint).await;
        self.travel().await;
        read
    }
}

/// A store whose reads take no virtual time, however slow its threads are. What is written waits for the
/// bucket.
struct Prompt(SharedStore);

impl StoreLayer for Prompt {
    fn inner(&self) -> &dyn JobStore {
        &*self.0
    }

    async fn around<T: Send>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        match operation {
            Operation::Commit | Operation::Purge | Operation::Upkeep | Operation::KeepCounts => {
                call.await
            }
            _ => at_once(call),
        }
    }
}

/// A server that leads a log alone.
struct Leader {
    clock: Arc<Timeline>,
    bucket: Arc<Metered>,
    server: Server,
    ended: Arc<AtomicU64>,
    _dir: TempDir,
}

impl Leader {
    async fn start(pace: Pace) -> Self {
        let clock = Arc::new(Timeline::new(at(START)));
        let objects = Arc::new(InMemory::new());
        let bucket = Arc::new(Metered {
            inner: StoreBucket::new(Arc::clone(&objects) as _, "log".into()),
            clock: Arc::clone(&clock),
            chance: SeededEntropy::new(1),
            puts: AtomicU64::new(0),
            gets: AtomicU64::new(0),
        });
        let edge = Edge {
            bucket: Arc::clone(&bucket) as _,
            clock: Arc::clone(&clock) as _,
            entropy: Arc::new(SystemEntropy),
        };
        let dir = TempDir::new().unwrap();
        let replica = SqliteReplica::open(dir.path()).unwrap();
        let store: SharedStore = Arc::new(Prompt(replica.store()));
        let replica = Arc::new(Immediate(replica));
        let settings = NodeSettings {
            pace,
            leads_at_start: true,
            ..NodeSettings::default().with_takeover(Duration::from_secs(7))
        };
        let opened = Box::pin(Node::open(edge, Arc::clone(&replica), settings));
        let opened = clock.complete(opened).await;
        let (node, handle) = opened.unwrap();
        replica.0.connect(handle.clone());
        let node = node.with_hints(Arc::clone(&bucket) as _);
        tokio::spawn(async move { node.run_once().await });
        let mut leadership = handle.leadership();
        let leads = async { leadership.wait_for(Option::is_some).await.map(drop) };
        clock.complete(leads).await.unwrap();

        let ports =
            Ports { store, objects, clock: Arc::clone(&clock) as _, ..ports(&Arc::default()) };
        let builder = Server::builder(ports, Arc::new(AcceptAll));
        let server = clock.complete(Box::pin(builder.start())).await.unwrap();
        let pull = name("pull");
        let put = Box::pin(server.put_type(&pull, TypeConfig::default(), None));
        clock.complete(put).await.unwrap();
        clock.pass(SETTLED).await;
        Self { clock, bucket, server, ended: Arc::default(), _dir: dir }
    }

    /// Offers jobs at random instants, on average `rate` in a second, to workers that wait.
    fn begin(&self, rate: f64) {
        for _ in 0..WORKERS {
            let (server, clock) = (self.server.clone(), Arc::clone(&self.clock));
            tokio::spawn(work(server, clock, Arc::clone(&self.ended)));
        }
        tokio::spawn(offer(self.server.clone(), Arc::clone(&self.clock), rate));
    }

    /// PUTs, GETs, and jobs that have ended.
    fn so_far(&self) -> [f64; 3] {
        let Metered { puts, gets, .. } = &*self.bucket;
        [puts, gets, &*self.ended].map(|count| count.load(Ordering::Relaxed) as f64)
    }
}

async fn offer(server: Server, clock: Arc<Timeline>, rate: f64) {
    let chance = SeededEntropy::new(2);
    let mut next = clock.now().millis() as f64;
    loop {
        next -= (1.0 - chance.fraction()).ln() * 1000.0 / rate;
        clock.sleep_until(at(next as i64)).await;
        let server = server.clone();
        tokio::spawn(async move {
            server.enqueue(NewJob::new(name("pull"), Payload::null())).await.unwrap();
        });
    }
}

/// Leases one job after the other, works on it and reports it.
async fn work(server: Server, clock: Arc<Timeline>, ended: Arc<AtomicU64>) {
    loop {
        let leased = Box::pin(server.lease(request())).await.unwrap();
        for job in leased.jobs {
            clock.sleep_until(clock.now() + WORK).await;
            for reported in Box::pin(server.report(vec![success(&job)])).await {
                reported.unwrap();
            }
            ended.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn request() -> LeaseRequest {
    LeaseRequest {
        min: 0,
        queue: None,
        types: vec![name("pull")],
        max: 1,
        wait: Duration::from_secs(20),
        max_pause: Duration::ZERO,
        call: None,
        worker: None,
        lease_seconds: None,
        reports: Vec::new(),
    }
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

/// A cell of the table: PUTs a second at `rate` jobs a second.
fn documented(rate: u32, column: usize) -> f64 {
    let text = fs::read_to_string(DOCUMENT).unwrap();
    let (_, table) = text.split_once("<!-- log costs").unwrap();
    let row = table.lines().find(|line| line.starts_with(&format!("| {rate} |"))).unwrap();
    row.split('|').nth(column).unwrap().trim().parse().unwrap()
}

/// Checks the requests of a server with `pace`, whose PUTs the table has in `column`.
async fn check(pace: Pace, column: usize) {
    for (rate, span) in LOADS {
        let leader = Leader::start(pace).await;
        leader.begin(rate.into());
        leader.clock.pass(WARM_UP).await;
        let before = leader.so_far();
        leader.clock.pass(span).await;
        let after = leader.so_far();
        let [puts, gets, jobs] = std::array::from_fn(|index| after[index] - before[index]);
        let offered = f64::from(rate) * span.as_secs_f64();
        assert!(jobs >= MIN_ENDED * offered, "{jobs} of about {offered} jobs have ended");
        // Either count may be of one more beat or record than the other one.
        let expected = puts / PUTS_PER_GET;
        let beats = span.as_secs_f64() / 60.0 + 1.0;
        let most = expected + 1.0 + GETS_PER_BEAT * beats;
        assert!((expected - 1.5..=most).contains(&gets), "{rate}: {gets} GETs, {puts} PUTs");
        let (puts, documented) = (puts / span.as_secs_f64(), documented(rate, column));
        println!("{rate} jobs a second: {puts:.1} PUTs a second, {documented} in the table");
        let [least, most] = BOUNDS.map(|part| part * documented);
        assert!((least..=most).contains(&puts), "{rate}: {puts} and {documented}");
    }
}

#[tokio::test]
async fn records_of_latency_are_at_most_those_of_the_table() {
    check(Pace::LATENCY, 2).await;
}

#[tokio::test]
async fn records_of_price_are_at_most_those_of_the_table() {
    check(Pace::price(None, None), 5).await;
}
