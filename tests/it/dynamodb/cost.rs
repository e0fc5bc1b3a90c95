//! The cost of jobs on a table: the rows of the cost table that concern DynamoDB alone, metered by
//! the size of real bytes, and the requests of a batch. The meter is compared with the emulator's
//! counts.

use std::{sync::Arc, time::Duration};

use object_store::memory::InMemory;
use tidegate_backends::{
    cost::{Case, Units, Workload, case, estimate, month, price::LIST},
    dynamodb::{DynamoStore, memory::MemoryTable, table::Table},
    http::{Guard, HttpTarget},
    testkit::meter::{Bill, Metered},
};
use tidegate_core::{
    event::trigger::{Reply, TriggerOutcome},
    job::{
        Job, Payload, QueueName, TypeName,
        lifecycle::{Failure, Reason, ReplyId},
        type_config::{Start, TypeConfig},
    },
    port::{Clock, policy::NoPolicy},
    queue::{QueueConfig, config::OrderKind},
    target::{Push, TargetConfig},
};
use tidegate_engine::{
    Demand, Dispatch, Engine, Ports, Rules, TickCache, TickInput, TickOutcome,
    events::reply::Replied,
    memory::{FakeClock, MemoryWorkQueue, SeededEntropy},
    request::{NewJob, Report, ReportOutcome},
    testkit::builders::name,
};
use tidegate_server::Server;

use super::{
    deployment::{Deployment, Scenario, units},
    emulator::EmulatedTable,
};

/// An engine on a metered table.
struct Shop<T> {
    engine: Engine,
    table: Arc<Metered<T>>,
    clock: Arc<FakeClock>,
    cache: TickCache,
}

const TYPE: &str = "invoice";

/// Everything in memory, and a store on `table`.
fn ports(table: Arc<dyn Table>, clock: &Arc<FakeClock>) -> Ports {
    let (clock, entropy) = (Arc::clone(clock) as Arc<dyn Clock>, Arc::new(SeededEntropy::new(3)));
    Ports {
        store: Arc::new(DynamoStore::new(table, Arc::clone(&clock), Arc::clone(&entropy) as _)),
        objects: Arc::new(InMemory::new()),
        work: Arc::new(MemoryWorkQueue::default()),
        clock,
        entropy,
        policy: Arc::new(NoPolicy),
    }
}

impl<T: Table + 'static> Shop<T> {
    async fn new(table: T, config: QueueConfig) -> Self {
        let (table, clock) = (Metered::new(table), Arc::new(FakeClock::default()));
        let engine =
            Engine::new(ports(Arc::clone(&table) as Arc<dyn Table>, &clock), Rules::default());
        engine.put_queue(&queue(), config, None).await.unwrap();
        let target = Some(TargetConfig::Push(Box::new(Push::to("http://127.0.0.1:1/"))));
        engine
            .put_type(
                &name(TYPE),
                TypeConfig { queue: queue(), target, ..TypeConfig::default() },
                None,
            )
            .await
            .unwrap();
        Self { engine, table, clock, cache: TickCache::default() }
    }

    /// Jobs of some 300 bytes, enqueued one by one or all at once.
    async fn enqueue(&self, jobs: usize, delay: u64, at_once: bool) -> Vec<Job> {
        let job = || {
            let mut job = NewJob::new(
                name(TYPE),
                Payload::json(format!("{{\"text\":\"{}\"}}", "x".repeat(300))),
            );
            job.delay_seconds = (delay > 0).then(|| tidegate_core::time::Seconds::new(delay));
            job.options
                .attributes
                .insert("region".into(), tidegate_core::job::Value::Text("east".into()));
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

    async fn tick(
        &mut self,
        capacity: u32,
        dispatch: Dispatch,
        reports: Vec<Report>,
    ) -> TickOutcome {
        let types: Vec<TypeName> = vec![name(TYPE)];
        let demands = if capacity > 0 {
            vec![Demand { types, capacity, worker: None, lease: None, dispatch }]
        } else {
            Vec::new()
        };
        self.engine
            .tick(&queue(), &mut self.cache, TickInput { reports, demands, ..TickInput::default() })
            .await
            .unwrap()
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
        ReportOutcome::Succeeded { result: None }
    } else {
        ReportOutcome::Failed {
            failure: Failure::new(Reason::Failed, "no"),
            retryable: true,
            least_wait: Duration::ZERO,
        }
    };
    let token = job.life.running().map(|run| run.token);
    Report {
        id: job.id.clone(),
        job_type: None,
        attempt: job.life.attempt,
        token,
        outcome: verdict,
    }
}

/// Each way in which jobs may go, batched, single and in bulk.
fn cases() -> Vec<(Case, Scenario)> {
    let at_once = Scenario::default();
    let plain = Scenario { start: Start::Plain, ..at_once.clone() };
    let delay = Duration::from_secs(400);
    // The calls are sequential here. At ten jobs a second that causes no backlog.
    let limited = Scenario { limit: Some(60), gap: Duration::from_millis(100), ..at_once.clone() };
    let retried = Scenario { fails: true, ..limited.clone() };
    vec![
        (case::PLAIN, plain.clone()),
        (case::CLAIMED, at_once.clone()),
        (case::RETRIED, Scenario { fails: true, ..at_once.clone() }),
        (case::CALLED_BACK, Scenario { callbacks: true, ..at_once.clone() }),
        (case::DELAYED_PLAIN, Scenario { delay, ..plain }),
        (case::DELAYED, Scenario { delay, ..at_once }),
        (case::LIMITED, limited.clone()),
        (case::LIMITED_RETRIED, retried.clone()),
        (case::LIMITED_CALLED_BACK, Scenario { callbacks: true, limit: Some(400), ..retried }),
        (case::PULLED, Scenario { pulled: true, ..limited }),
    ]
}

/// The same, one job after the other.
fn single(scenario: &Scenario) -> Scenario {
    let limit = scenario.limit.map(|_| 1);
    Scenario { jobs: 40, most: 1, gap: Duration::from_secs(5), limit, ..scenario.clone() }
}

fn bulk(scenario: &Scenario) -> Scenario {
    Scenario { per_call: 100, gap: scenario.gap * 100, ..scenario.clone() }
}

#[tokio::test]
async fn every_case_consumes_its_documented_units() {
    let mut wrong = Vec::new();
    for (case, scenario) in cases() {
        let points = [
            ("batched", case.batched, scenario.clone()),
            ("single", case.single, single(&scenario)),
            ("bulk", case.bulk, bulk(&scenario)),
        ];
        for (point, said, scenario) in points {
            let taken = units(&scenario).await;
            println!("{:42} {point:7} {}", case.name, numbers(taken));
            for ((what, said), (_, taken)) in said.named().into_iter().zip(taken.named()) {
                if (said - taken).abs() > 0.005 + said * 0.02 {
                    wrong.push(format!(
                        "{}, {point}: {taken:.3} {what}, and {said} are said",
                        case.name
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The bounds of the table in decision 12: case, arrival, writes, dollars.
fn bounds() -> Vec<(Case, (f64, f64), f64, f64)> {
    let text = include_str!("../../../docs/decisions/0012-dynamodb-table-as-due-time-index.md");
    let rows = text
        .lines()
        .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>())
        .filter(|cells| cells.len() == 7);
    let bound = |cells: Vec<&str>| {
        let case = case::CASES.into_iter().find(|case| case.name == cells[1])?;
        let comes = match cells[2] {
            "a hundred to a call" => (case::FULL_BATCH, case::BULK),
            "one by one, batched" => (case::FULL_BATCH, 1.0),
            "one by one, single" => (1.0, 1.0),
            other => panic!("how do they come: {other}"),
        };
        Some((case, comes, cells[3].parse().unwrap(), cells[4].parse().unwrap()))
    };
    rows.filter_map(bound).collect()
}

#[test]
fn a_million_jobs_cost_at_most_the_documented_bound() {
    let (bounds, deployment) = (bounds(), estimate::Deployment::default());
    assert_eq!(bounds.len(), 13);
    for (case, (batch, per_call), writes, dollars) in bounds {
        let workload = Workload { batch, per_call, ..Workload::default().of_case(&case) };
        let (takes, costs) =
            (workload.units().writes, estimate::total(&month(&workload, &deployment, &LIST)));
        assert!(
            takes <= writes,
            "{}, {per_call} to a call: {takes:.3} writes, and {writes} are the bound",
            case.name
        );
        assert!(
            costs <= dollars,
            "{}, {per_call} to a call: {costs:.2} $, and {dollars} are the bound",
            case.name
        );
    }
    let idle = |deployment| estimate::total(&estimate::idle(&deployment, &LIST));
    assert!(idle(deployment) <= 3.70, "{}", idle(deployment));
    let bare = estimate::Deployment { pollers: 2.0, alarms: 0.0, ..deployment };
    assert!(idle(bare) <= 1.10, "{}", idle(bare));
}

fn numbers(units: Units) -> String {
    units.named().map(|(name, number)| format!("{name} {number:.3}")).join("  ")
}

#[tokio::test]
async fn an_idle_sweep_consumes_its_documented_units() {
    let idle = async |queues: usize, limit| {
        let scenario = Scenario { limit, queues, jobs: 30, ..Scenario::default() };
        let deployment = Deployment::new(&scenario).await;
        deployment.run_all(&scenario).await;
        deployment.idle_minute().await
    };
    let (one, more, limited) = (idle(1, None).await, idle(11, None).await, idle(1, Some(1)).await);
    let each = more.and(one.times(-1.0)).over(10.0);
    let minute = one.and(each.times(-1.0));
    println!(
        "minute: {}\nqueue: {}\nlimited: {}",
        numbers(minute),
        numbers(each),
        numbers(limited)
    );
    for (what, said, taken) in
        [("a minute", case::IDLE_MINUTE, minute), ("a queue", case::IDLE_QUEUE, each)]
    {
        assert!(
            (said.writes - taken.writes).abs() < 0.2 && (said.reads - taken.reads).abs() < 1.0,
            "{what} takes {}",
            numbers(taken)
        );
    }
    assert!(
        limited.reads <= one.reads + 2.0,
        "a limited queue takes no more than one without: {}",
        numbers(limited)
    );
}

/// Read units of a maintenance sweep with this many unmatched replies.
async fn minute_with_replies(replies: usize) -> f64 {
    let (table, clock) = (Metered::new(MemoryTable::new()), Arc::new(FakeClock::default()));
    let ports = ports(Arc::clone(&table) as Arc<dyn Table>, &clock);
    let server = Server::builder(ports, Arc::new(HttpTarget::new(Guard::On).unwrap()))
        .serverless()
        .start()
        .await
        .unwrap();
    let of = |n: usize| Reply {
        id: ReplyId(n as u128),
        job_type: name(TYPE),
        correlation_key: format!("never-{n}"),
        attempt: None,
        said: TriggerOutcome::Succeeded(None),
    };
    let minute = async || {
        let before = table.bill();
        server.maintenance_sweep(clock.now() + Duration::from_mins(1)).await;
        (table.bill() - before).reads
    };
    minute().await;
    let idle = minute().await;
    let all: Vec<Reply> = (0..replies).map(of).collect();
    assert!(
        server
            .engine()
            .reply(&all)
            .await
            .answers
            .iter()
            .all(|answer| matches!(answer, Ok(Replied::Pending(_))))
    );
    let taken = minute().await - idle;
    clock.advance(Duration::from_mins(10));
    minute().await;
    let left = minute().await;
    assert!(
        left < idle + 2.0,
        "all are dropped when their time is over: {left}, and {idle} without any"
    );
    taken
}

#[tokio::test]
async fn a_minute_reads_each_kept_reply_once() {
    let (some, many) = (minute_with_replies(1000).await, minute_with_replies(4000).await);
    println!("1000 pending replies take {some} read units, 4000 take {many}");
    assert!(many < some * 4.5, "four times as many take {many} and not {some}");
}

/// Waits until a new ledger has settled.
async fn settle<T: Table + 'static>(shop: &mut Shop<T>) {
    shop.tick(1, Dispatch::Queue, Vec::new()).await;
    shop.clock.advance(Duration::from_secs(11));
    shop.tick(1, Dispatch::Queue, Vec::new()).await;
}

#[tokio::test]
async fn accepting_1000_jobs_takes_45_requests_admitting_them_60() {
    let mut shop = Shop::new(
        MemoryTable::new(),
        QueueConfig { concurrency: Some(2000), ..QueueConfig::default() },
    )
    .await;
    settle(&mut shop).await;
    shop.enqueue(1, 0, false).await;
    let before = shop.bill();
    assert_eq!(shop.enqueue(1000, 0, true).await.len(), 1000);
    let accepted = (shop.bill() - before).round_trips;
    println!("accepting 1000 takes {accepted} requests");
    assert!(accepted <= 45, "accepting 1000 takes {accepted} requests");
    shop.clock.advance(Duration::from_secs(1));
    let before = shop.bill();
    let claimed = shop.tick(1000, Dispatch::Claim, Vec::new()).await.claimed.len();
    let admitted = (shop.bill() - before).round_trips;
    println!("admitting {claimed} takes {admitted} requests");
    assert_eq!(claimed, 1000);
    assert!(admitted <= 60, "admitting 1000 takes {admitted} requests");
}

#[tokio::test]
async fn grants_too_large_for_one_item_are_split_over_several() {
    let mut shop = Shop::new(
        MemoryTable::new(),
        QueueConfig { concurrency: Some(2000), ..QueueConfig::default() },
    )
    .await;
    settle(&mut shop).await;
    let job = |number: usize| {
        let mut job = NewJob::new(name(TYPE), Payload::json("1"));
        let text = |index| format!("{number:04}{index:02}{}", "x".repeat(220));
        job.options.attributes = (0..16)
            .map(|index| {
                (format!("attribute-{index}"), tidegate_core::job::Value::Text(text(index)))
            })
            .collect();
        job
    };
    assert!(shop.engine.enqueue((0..300).map(job).collect()).await.iter().all(Result::is_ok));
    shop.clock.advance(Duration::from_secs(1));
    // Some 4 KB each: 1.2 MB, and the table takes no item of more than 400 KB.
    let claimed: Vec<Job> = shop
        .tick(1000, Dispatch::Claim, Vec::new())
        .await
        .claimed
        .into_iter()
        .map(|claimed| claimed.job)
        .collect();
    assert_eq!(claimed.len(), 300);
    let largest = shop.table.largest("G#");
    assert!(largest > 100 << 10 && largest < 400 << 10, "{largest}");
    for some in claimed.chunks(50) {
        let reports = some.iter().map(|job| report(job, true)).collect();
        let tick_outcome = shop.tick(0, Dispatch::Claim, reports).await;
        assert!(tick_outcome.reports.iter().all(Result::is_ok), "{:?}", tick_outcome.reports);
    }
    assert_eq!(shop.table.largest("G#"), 0, "every batch is spent");
}

/// The cost of jobs with large data: by the kilobyte in the table, by the request in object
/// storage.
#[tokio::test]
async fn larger_jobs_consume_their_documented_units() {
    for (size, is_object) in
        [(300, false), (900, false), (2048, false), (7000, false), (20_000, true)]
    {
        for limit in [None, Some(60)] {
            let gap = Duration::from_millis(if limit.is_some() { 100 } else { 10 });
            let taken =
                units(&Scenario { size, limit, gap, jobs: 200, ..Scenario::default() }).await;
            let workload = Workload { size, limited: limit.is_some(), ..Workload::default() };
            let said = workload.units();
            println!(
                "{size} bytes: {:.2} writes and {:.2} reads, {:.2} and {:.2} are said",
                taken.writes, taken.reads, said.writes, said.reads
            );
            assert!(
                (taken.writes - said.writes).abs() <= 0.3 + said.writes * 0.03,
                "{size}: {} writes, {} are said",
                taken.writes,
                said.writes
            );
            // Under a limit, the size of a page of candidates changes with the size of each job.
            let off = if limit.is_some() { 0.35 } else { 0.1 };
            assert!(
                (taken.reads - said.reads).abs() <= 0.3 + said.reads * off,
                "{size}: {} reads, {} are said",
                taken.reads,
                said.reads
            );
            let lines = month(&workload, &estimate::Deployment::default(), &LIST);
            assert_eq!(lines.iter().any(|line| line.service == "S3"), is_object);
        }
    }
}

/// Operations that are expensive on large tables, because no index serves them. Decision 12 has
/// these numbers.
#[tokio::test]
async fn a_backlog_has_its_documented_cost_in_each_order() {
    let backlog = 5000;
    let reads = async |config: QueueConfig, tenants: usize| {
        let mut shop =
            Shop::new(MemoryTable::new(), QueueConfig { concurrency: Some(20), ..config }).await;
        settle(&mut shop).await;
        let job = |number: usize| {
            let mut job =
                NewJob::new(name(TYPE), Payload::json(format!("\"{}\"", "x".repeat(300))));
            job.options.attributes.insert(
                "tenant".into(),
                tidegate_core::job::Value::Text(format!("t{}", number % tenants)),
            );
            job
        };
        for from in (0..backlog).step_by(1000) {
            assert!(
                shop.engine
                    .enqueue((from..from + 1000).map(job).collect())
                    .await
                    .iter()
                    .all(Result::is_ok)
            );
        }
        shop.clock.advance(Duration::from_mins(2));
        let claimed = shop.tick(20, Dispatch::Claim, Vec::new()).await.claimed;
        let before = shop.bill();
        let reports = claimed.iter().map(|claimed| report(&claimed.job, true)).collect();
        assert_eq!(shop.tick(20, Dispatch::Claim, reports).await.claimed.len(), 20);
        let round = shop.bill() - before;
        let before = shop.bill();
        shop.engine.ports().store.depth().await.unwrap();
        (round.reads, (shop.bill() - before).reads)
    };
    let (by_time, depth) = reads(QueueConfig::default(), 1).await;
    let (by_priority, _) =
        reads(QueueConfig { order: OrderKind::Priority, ..QueueConfig::default() }, 1).await;
    let (in_turns, _) =
        reads(QueueConfig { partition_by: Some("tenant".into()), ..QueueConfig::default() }, 100)
            .await;
    println!(
        "of {backlog} jobs a round reads {by_time} units by time, {by_priority} by priority, {in_turns} with 100 partitions; depth {depth}"
    );
}

#[tokio::test]
async fn the_meter_agrees_with_what_the_emulator_counts() {
    let mut shop = Shop::new(
        EmulatedTable::new(),
        QueueConfig { concurrency: Some(10), ..QueueConfig::default() },
    )
    .await;
    settle(&mut shop).await;
    shop.enqueue(30, 0, true).await;
    for _ in 0..6 {
        let claimed: Vec<Job> = shop
            .tick(5, Dispatch::Claim, Vec::new())
            .await
            .claimed
            .into_iter()
            .map(|claimed| claimed.job)
            .collect();
        let reports = claimed.iter().enumerate().map(|(n, job)| report(job, n % 2 == 0)).collect();
        shop.tick(0, Dispatch::Claim, reports).await;
        shop.clock.advance(Duration::from_secs(3));
    }
    let (bill, consumed) = (shop.bill(), shop.table.table().consumed());
    println!("{bill:?} {consumed:?}");
    assert_eq!(bill.round_trips, consumed.requests);
    // When every statement of a request was refused, the emulator, like DynamoDB, does not report
    // the consumed units.
    let counted = bill.writes + bill.reads;
    assert!(
        consumed.units <= counted && consumed.units >= counted - bill.refused,
        "{bill:?} {consumed:?}"
    );
}
