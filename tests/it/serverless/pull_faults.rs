//! Many pull workers, several processes, and a table that throttles and loses answers: no two
//! workers ever have one job, no attempt starts twice, the limit holds, and every job ends.
//!
//! `TIDEGATE_SEEDS` and `TIDEGATE_SEED` choose seeds, as for the simulation.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::{BoxFuture, Either, select};
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tidegate_backends::dynamodb::{DynamoStore, memory::MemoryTable};
use tidegate_core::{
    job::{
        Job, JobId, Outcome,
        lifecycle::{Failure, Reason},
        type_config::TypeConfig,
    },
    port::{Clock, JobStore, job_store::ListQuery},
    queue::QueueConfig,
    target::{Push, TargetConfig},
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    Error,
    memory::SeededEntropy,
    request::{LeaseRequest, Leased, Report, ReportOutcome},
    testkit::builders::name,
};
use tidegate_server::Server;

use super::{
    faulty_table::FaultyTable,
    model::{Cloud, Mishaps, job},
    time::Virtual,
};
use crate::simulation;

/// How long faults are injected.
const FAULT_PERIOD: Duration = Duration::from_mins(2);
/// The longest time after that until every job has ended.
const DRAIN_PERIOD: Duration = Duration::from_mins(12);
/// How many jobs arrive together.
const BURST: usize = 12;
const WORKERS: usize = 16;
/// The lease of the pulled jobs.
const LEASE: Duration = Duration::from_secs(15);

/// What the workers have seen.
#[derive(Default)]
struct Seen {
    started: BTreeSet<(JobId, u16)>,
    /// The jobs that workers have and whose work is not done, which takes less than a lease.
    held: BTreeSet<JobId>,
    running: usize,
    most: usize,
    faults: Vec<String>,
}

impl Seen {
    fn receive(&mut self, job: &Job, job_type: &str) {
        let (id, attempt) = (&job.id, job.life.attempt);
        if job.spec.job_type.as_str() != job_type {
            self.faults.push(format!("{id} was leased to a worker of {job_type}"));
        }
        if !self.started.insert((id.clone(), attempt)) {
            self.faults.push(format!("{id} attempt {attempt} started twice"));
        }
        if !self.held.insert(id.clone()) {
            self.faults.push(format!("{id} attempt {attempt} started while another one runs"));
        }
    }
}

/// One run.
struct Run {
    cloud: Cloud,
    /// The processes of the lease function.
    processes: Vec<Server>,
    /// A connection without faults.
    store: Arc<DynamoStore>,
    seen: Arc<Mutex<Seen>>,
    chance: Arc<Mutex<StdRng>>,
    offers: Arc<AtomicUsize>,
}

impl Run {
    fn new(seed: u64, limit: Option<u32>) -> Self {
        let (table, time) = (Arc::new(MemoryTable::new()), Virtual::new());
        let (until, never, offers) = (Arc::default(), Arc::default(), Arc::default());
        let throttled = if seed % 2 == 1 { 0.12 } else { 0.02 };
        let store_until = |number: u64, until: &Arc<Mutex<Option<Timestamp>>>| {
            let faulty = FaultyTable {
                table: Arc::clone(&table),
                time: Arc::clone(&time),
                chance: Mutex::new(StdRng::seed_from_u64(1000 * seed + number)),
                throttled,
                until: Arc::clone(until),
                offers: Arc::clone(&offers),
            };
            let entropy = Arc::new(SeededEntropy::new(2000 * seed + number));
            let clock = Arc::clone(&time) as Arc<dyn Clock>;
            Arc::new(DynamoStore::new(Arc::new(faulty), clock, entropy))
        };
        let store = |number| store_until(number, &until);
        let cloud = Cloud::on(seed, Arc::clone(&time), store(0));
        let processes = (1..=4).map(|number| cloud.process(store(number), 3000 * seed + number));
        let processes = processes.collect();
        let limits = QueueConfig { concurrency: limit, ..QueueConfig::default() };
        cloud.now(cloud.server.put_queue(&name("q"), limits, None)).unwrap();
        let of = |target: Option<TargetConfig>| TypeConfig {
            queue: name("q"),
            target,
            lease_seconds: Seconds::new(LEASE.as_secs()),
            max_attempts: Some(60),
            ..TypeConfig::default()
        };
        let target = TargetConfig::Push(Box::new(Push::to("http://worker.example/limited")));
        for (job_type, target) in [("pull", None), ("other", None), ("push", Some(target))] {
            cloud.now(cloud.server.put_type(&name(job_type), of(target), None)).unwrap();
        }
        *until.lock() = Some(time.now() + FAULT_PERIOD);
        if seed % 3 == 2 {
            cloud.set_mishaps(Mishaps { lost: 0.1, twice: 0.1, ..Mishaps::default() });
        }
        let chance = Arc::new(Mutex::new(StdRng::seed_from_u64(4000 * seed)));
        let store = store_until(9, &never);
        Self { cloud, processes, store, seen: Arc::default(), chance, offers: Arc::clone(&offers) }
    }

    /// A worker of one type, until `end`.
    fn start_worker(&self, number: usize, job_type: &'static str, end: Timestamp) {
        let worker = Worker {
            number,
            job_type,
            processes: self.processes.clone(),
            time: Arc::clone(&self.cloud.time),
            seen: Arc::clone(&self.seen),
            chance: Arc::clone(&self.chance),
            pushed: Arc::clone(&self.cloud.most),
            reports: Vec::new(),
        };
        self.cloud.time.spawn(worker.run(end));
    }

    /// Runs it to its end. Returns how many demands were answered with offers.
    fn check(self, seed: u64, limit: Option<u32>, jobs: usize) -> usize {
        let time = Arc::clone(&self.cloud.time);
        let start = time.now();
        let end = start + FAULT_PERIOD + DRAIN_PERIOD;
        for number in 0..WORKERS {
            self.start_worker(number, if number % 4 == 3 { "other" } else { "pull" }, end);
        }
        let mut at = start;
        for number in 0..jobs {
            if number.is_multiple_of(if seed % 4 < 2 { BURST } else { jobs }) {
                at = start + Duration::from_millis(self.chance.lock().random_range(0..100_000));
            }
            self.enqueue_at(at, ["pull", "pull", "other", "push"][number % 4], number);
        }
        time.run(start + FAULT_PERIOD);
        while time.now() < end && self.listed().iter().any(|job| job.life.ended().is_none()) {
            time.run(time.now() + Duration::from_secs(10));
        }
        let seen = self.seen.lock();
        assert!(seen.faults.is_empty(), "seed {seed}, {limit:?}: {:?}", seen.faults);
        let most = seen.most;
        assert!(limit.is_none_or(|limit| most <= limit as usize), "seed {seed}: {most} run");
        let listed = self.listed();
        assert_eq!(listed.len(), jobs, "seed {seed}, {limit:?}");
        for job in &listed {
            let ended = job.life.ended();
            assert_eq!(ended, Some(Outcome::Succeeded), "seed {seed}, {limit:?}: {job:?}");
        }
        let attempts: usize = listed.iter().map(|job| usize::from(job.life.attempt)).sum();
        let offers = self.offers.load(Ordering::Relaxed);
        println!("seed {seed}, {limit:?}: {attempts} attempts, {most} at once, {offers} offers");
        offers
    }

    fn listed(&self) -> Vec<Job> {
        let query = ListQuery { limit: 1000, ..ListQuery::default() };
        self.cloud.now(self.store.list(&query)).unwrap().jobs
    }

    /// Enqueues a job, again and again until that is answered.
    fn enqueue_at(&self, at: Timestamp, job_type: &'static str, number: usize) {
        let (server, time) = (self.processes[number % 4].clone(), Arc::clone(&self.cloud.time));
        self.cloud.time.spawn(async move {
            time.sleep_until(at).await;
            while server.enqueue(job(job_type, number)).await.is_err() {
                time.sleep_until(time.now() + Duration::from_secs(1)).await;
            }
            let _ = server.flush().await;
        });
    }
}

/// A worker that leases one or two jobs, and does one after the other.
struct Worker {
    number: usize,
    job_type: &'static str,
    processes: Vec<Server>,
    time: Arc<Virtual>,
    seen: Arc<Mutex<Seen>>,
    chance: Arc<Mutex<StdRng>>,
    /// How many pushed jobs run.
    pushed: Arc<Mutex<(usize, usize)>>,
    reports: Vec<Report>,
}

/// Leases jobs through one process.
async fn lease(server: Server, ask: LeaseRequest) -> Result<Leased, Error> {
    let leased = server.lease(ask).await;
    let _ = server.flush().await;
    leased
}

impl Worker {
    fn draw(&self, most: u64) -> u64 {
        self.chance.lock().random_range(0..=most)
    }

    async fn nap(&self, millis: u64) {
        self.time.sleep_until(self.time.now() + Duration::from_millis(millis)).await;
    }

    async fn run(mut self, end: Timestamp) {
        while self.time.now() < end {
            let Some(leased) = self.ask().await else {
                let millis = 500 + self.draw(1000);
                self.nap(millis).await;
                continue;
            };
            let answers = std::mem::take(&mut self.reports).into_iter().zip(leased.reports);
            let unsettled =
                answers.filter(|(_, answer)| matches!(answer, Err(Error::Unavailable { .. })));
            self.reports.extend(unsettled.map(|(report, _)| report));
            leased.jobs.iter().for_each(|job| self.seen.lock().receive(job, self.job_type));
            if leased.jobs.is_empty() {
                self.time.sleep_until(self.time.now() + leased.pause.unwrap_or_default()).await;
            }
            for job in leased.jobs {
                self.work(&job).await;
            }
        }
    }

    /// Asks for jobs; none if the call failed, or the worker hung up.
    async fn ask(&self) -> Option<Leased> {
        let ask = LeaseRequest {
            min: 0,
            queue: None,
            types: vec![name(self.job_type)],
            max: if self.number.is_multiple_of(4) { 2 } else { 1 },
            wait: Duration::from_secs(if self.draw(3) == 0 { 0 } else { 10 }),
            max_pause: Duration::from_secs(if self.number.is_multiple_of(3) { 5 } else { 0 }),
            call: None,
            worker: Some(format!("worker-{}", self.number)),
            lease_seconds: None,
            reports: self.reports.clone(),
        };
        let server = self.processes[self.draw(self.processes.len() as u64 - 1) as usize].clone();
        let call: BoxFuture<'static, _> = Box::pin(lease(server, ask));
        let patience = if self.draw(15) == 0 { self.draw(4000) } else { 60_000 };
        match select(call, Box::pin(self.nap(patience))).await {
            Either::Left((leased, _)) => leased.ok(),
            Either::Right(_) => None,
        }
    }

    async fn work(&mut self, job: &Job) {
        {
            let mut seen = self.seen.lock();
            seen.running += 1;
            seen.most = seen.most.max(seen.running + self.pushed.lock().0);
        }
        let millis = 100 + self.draw(1500);
        self.nap(millis).await;
        {
            let mut seen = self.seen.lock();
            seen.running -= 1;
            seen.held.remove(&job.id);
        }
        let outcome = if self.draw(9) == 0 {
            let failure = Failure::new(Reason::Failed, "it failed");
            ReportOutcome::Failed { failure, retryable: true }
        } else {
            ReportOutcome::Succeeded { result: None }
        };
        self.reports.push(Report {
            id: job.id.clone(),
            job_type: None,
            attempt: job.life.attempt,
            token: job.life.running().map(|run| run.token),
            outcome,
            checkpoint: None,
        });
    }
}

#[test]
fn no_two_workers_have_one_job_whatever_goes_wrong() {
    let mut offers = 0;
    for seed in simulation::seeds(6) {
        for (limit, jobs) in [(None, 96), (Some(1), 24), (Some(4), 96)] {
            offers += Run::new(seed, limit).check(seed, limit, jobs);
        }
    }
    assert!(offers > 0, "no job was offered to a call that waits");
}
