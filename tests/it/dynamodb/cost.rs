//! What jobs cost on a table: the rows of DESIGN's table that need nothing but it, metered by size on real bytes, and how many
//! requests a batch takes. The meter is compared with what the emulator counts.

use std::{sync::Arc, time::Duration};

use object_store::memory::InMemory;
use tidegate::{
    adapter::{
        dynamodb::{DynamoStore, memory::MemoryTable, table::Table},
        memory::MemoryWorkQueue,
    },
    engine::{
        Ask, Engine, Hand, Memory, Ports, Round, Rules, Ticked,
        request::{NewJob, Report, Verdict},
    },
    job::{
        Job, Payload, QueueName, TypeName,
        life::{Failure, Reason},
    },
    port::{Clock, Work, policy::NoPolicy},
    queue::{
        QueueConfig, TypeConfig,
        config::{Push, TargetConfig},
    },
    testkit::{
        FakeClock, SeededEntropy,
        builders::name,
        meter::{Bill, Metered},
    },
};

use super::emulator::EmulatedTable;

/// An engine on a metered table.
struct Shop<T> {
    engine: Engine,
    table: Arc<Metered<T>>,
    clock: Arc<FakeClock>,
    work: Arc<MemoryWorkQueue>,
    memory: Memory,
}

const TYPE: &str = "invoice";

impl<T: Table + 'static> Shop<T> {
    async fn new(table: T, config: QueueConfig) -> Self {
        let (table, clock, work) = (Metered::new(table), Arc::new(FakeClock::default()), Arc::new(MemoryWorkQueue::default()));
        let entropy = Arc::new(SeededEntropy::new(3));
        let store = DynamoStore::new(Arc::clone(&table) as Arc<dyn Table>, Arc::clone(&clock) as _, Arc::clone(&entropy) as _);
        let ports = Ports {
            store: Arc::new(store),
            objects: Arc::new(InMemory::new()),
            work: Arc::clone(&work) as _,
            clock: Arc::clone(&clock) as _,
            entropy,
            policy: Arc::new(NoPolicy),
        };
        let engine = Engine::new(ports, Rules::default());
        engine.put_queue(&queue(), config, None).await.unwrap();
        let target = Some(TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:1/"))));
        engine.put_type(&name(TYPE), TypeConfig { queue: queue(), target, ..TypeConfig::default() }, None).await.unwrap();
        Self { engine, table, clock, work, memory: Memory::default() }
    }

    /// Jobs of some 300 bytes, each asked for on its own or all at once.
    async fn enqueue(&self, jobs: usize, delay: u64, at_once: bool) -> Vec<Job> {
        let job = || {
            let mut job = NewJob::new(name(TYPE), Payload::json(format!("{{\"text\":\"{}\"}}", "x".repeat(300))));
            job.delay_seconds = (delay > 0).then(|| tidegate::time::Seconds::new(delay));
            job.attributes.insert("region".into(), tidegate::job::Value::Text("east".into()));
            job
        };
        let each = if at_once { jobs } else { 1 };
        let mut accepted = Vec::new();
        for _ in 0..jobs / each {
            let answers = self.engine.enqueue((0..each).map(|_| job()).collect()).await;
            accepted.extend(answers.into_iter().map(|answer| answer.unwrap().job));
        }
        accepted
    }

    async fn tick(&mut self, room: u32, hand: Hand, reports: Vec<Report>) -> Ticked {
        let types: Vec<TypeName> = vec![name(TYPE)];
        let asks = if room > 0 { vec![Ask { types, room, worker: None, lease: None, hand }] } else { Vec::new() };
        self.engine.tick(&queue(), &mut self.memory, Round { reports, released: Vec::new(), asks }).await.unwrap()
    }

    /// Claims work as it comes from messages, ten at a time.
    async fn claim(&self, work: &[Work]) -> Vec<Job> {
        let mut running = Vec::new();
        for some in work.chunks(10) {
            running.extend(self.engine.claim(some, None).await.unwrap().into_iter().flatten());
        }
        running
    }

    fn bill(&self) -> Bill {
        self.table.bill()
    }
}

fn queue() -> QueueName {
    name("mail")
}

fn report(job: &Job, succeeded: bool) -> Report {
    let verdict = if succeeded {
        Verdict::Succeeded { result: None }
    } else {
        Verdict::Failed { failure: Failure::new(Reason::Failed, "no"), retryable: true, least_wait: Duration::ZERO }
    };
    let token = job.life.running().map(|run| run.token);
    Report { id: job.id.clone(), job_type: None, attempt: job.life.attempt, token, verdict }
}

/// Asserts that `bill` for `jobs` jobs is at most so many writes each, and says what it was.
fn at_most(what: &str, bill: Bill, jobs: usize, writes: f64) {
    let each = bill.writes / jobs as f64;
    println!(
        "{what}: {each:.3} writes, {:.3} reads, {:.3} requests a job; {:.2} dollars a million for the table",
        bill.reads / jobs as f64,
        bill.round_trips as f64 / jobs as f64,
        bill.dollars_per_million(jobs as u64)
    );
    assert!(each <= writes, "{what}: {each} writes a job, more than {writes}");
    assert!(each >= writes - 0.6, "{what}: {each} writes a job is too good to be true");
}

#[tokio::test]
async fn an_immediate_job_with_a_claim_costs_three_writes() {
    let shop = Shop::new(MemoryTable::new(), QueueConfig::default()).await;
    shop.enqueue(1, 0, false).await;
    let before = shop.bill();
    let jobs = shop.enqueue(200, 0, false).await;
    let work: Vec<Work> = jobs
        .iter()
        .map(|job| Work { queue: queue(), job: job.id.clone(), version: job.life.version, run_at: job.spec.created_at, granted_at: None })
        .collect();
    let running = shop.claim(&work).await;
    assert_eq!(running.len(), 200);
    let mut shop = shop;
    for some in running.chunks(10) {
        shop.tick(0, Hand::Send, some.iter().map(|job| report(job, true)).collect()).await;
    }
    at_most("immediate, claim", shop.bill() - before, 200, 3.1);
}

#[tokio::test]
async fn a_delayed_job_costs_little_more_than_an_immediate_one() {
    let mut shop = Shop::new(MemoryTable::new(), QueueConfig::default()).await;
    shop.enqueue(1, 60, false).await;
    let before = shop.bill();
    shop.enqueue(200, 60, true).await;
    shop.clock.advance(Duration::from_secs(61));
    let mut ended = 0;
    while ended < 200 {
        let claimed: Vec<Job> = shop.tick(100, Hand::Claim, Vec::new()).await.claimed.into_iter().map(|claimed| claimed.job).collect();
        assert!(!claimed.is_empty());
        ended += claimed.len();
        shop.tick(0, Hand::Claim, claimed.iter().map(|job| report(job, true)).collect()).await;
    }
    at_most("delayed, claim", shop.bill() - before, 200, 3.2);
}

#[tokio::test]
async fn a_limited_job_with_a_retry_costs_little_more_than_its_six_writes() {
    let mut shop = Shop::new(MemoryTable::new(), QueueConfig { concurrency: Some(40), ..QueueConfig::default() }).await;
    settle(&mut shop).await;
    shop.enqueue(1, 3600, false).await;
    let before = shop.bill();
    shop.enqueue(400, 0, true).await;
    let (mut ended, mut rounds) = (0, 0);
    let mut reports: Vec<Report> = Vec::new();
    while ended < 400 {
        rounds += 1;
        assert!(rounds < 400, "{ended} of 400 ended");
        let ticked = shop.tick(20, Hand::Send, std::mem::take(&mut reports)).await;
        ended += ticked.reports.iter().flatten().filter(|job| job.life.ended().is_some()).count();
        let work = shop.work.take(1000, shop.clock.now());
        if work.is_empty() {
            shop.clock.advance(Duration::from_millis(2500));
            continue;
        }
        let running = shop.claim(&work).await;
        reports = running.iter().map(|job| report(job, job.life.attempt > 1)).collect();
        shop.clock.advance(Duration::from_millis(50));
    }
    println!(
        "{rounds} rounds, head {} bytes, batches {} bytes, rows {} bytes",
        shop.table.largest("H#"),
        shop.table.largest("G#"),
        shop.table.largest("B#")
    );
    at_most("limited, one retry", shop.bill() - before, 400, 6.7);
}

/// Lets a new head settle.
async fn settle<T: Table + 'static>(shop: &mut Shop<T>) {
    shop.tick(1, Hand::Send, Vec::new()).await;
    shop.clock.advance(Duration::from_secs(11));
    shop.tick(1, Hand::Send, Vec::new()).await;
}

#[tokio::test]
async fn a_batch_of_a_thousand_is_accepted_in_45_requests_and_admitted_in_60() {
    let mut shop = Shop::new(MemoryTable::new(), QueueConfig { concurrency: Some(2000), ..QueueConfig::default() }).await;
    settle(&mut shop).await;
    shop.enqueue(1, 0, false).await;
    let before = shop.bill();
    assert_eq!(shop.enqueue(1000, 0, true).await.len(), 1000);
    let accepted = (shop.bill() - before).round_trips;
    println!("accepting 1000 takes {accepted} requests");
    assert!(accepted <= 45, "accepting 1000 takes {accepted} requests");
    shop.clock.advance(Duration::from_secs(1));
    let before = shop.bill();
    let claimed = shop.tick(1000, Hand::Claim, Vec::new()).await.claimed.len();
    let admitted = (shop.bill() - before).round_trips;
    println!("admitting {claimed} takes {admitted} requests");
    assert_eq!(claimed, 1000);
    assert!(admitted <= 60, "admitting 1000 takes {admitted} requests");
}

#[tokio::test]
async fn the_meter_agrees_with_what_the_emulator_counts() {
    let mut shop = Shop::new(EmulatedTable::new(), QueueConfig { concurrency: Some(10), ..QueueConfig::default() }).await;
    settle(&mut shop).await;
    shop.enqueue(30, 0, true).await;
    for _ in 0..6 {
        let claimed: Vec<Job> = shop.tick(5, Hand::Claim, Vec::new()).await.claimed.into_iter().map(|claimed| claimed.job).collect();
        let reports = claimed.iter().enumerate().map(|(n, job)| report(job, n % 2 == 0)).collect();
        shop.tick(0, Hand::Claim, reports).await;
        shop.clock.advance(Duration::from_secs(3));
    }
    let (bill, consumed) = (shop.bill(), shop.table.table().consumed());
    println!("{bill:?} {consumed:?}");
    assert_eq!(bill.round_trips, consumed.requests);
    // Where every statement of a request was refused the emulator, like DynamoDB, says nothing of what it took.
    let counted = bill.writes + bill.reads;
    assert!(consumed.units <= counted && consumed.units >= counted - bill.refused, "{bill:?} {consumed:?}");
}
