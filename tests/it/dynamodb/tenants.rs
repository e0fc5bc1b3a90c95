//! What a tick reads of the partitions whose jobs are due later.

use std::{sync::Arc, time::Duration};

use rstest::rstest;
use tidegate_backends::{
    dynamodb::{DynamoStore, memory::MemoryTable},
    testkit::meter::table::Metered,
};
use tidegate_core::{
    job::{Payload, type_config::TypeConfig},
    queue::{QueueConfig, plugin::Description},
    time::Timestamp,
};
use tidegate_engine::{
    Dispatch, TickInput, TickOutcome,
    memory::{FakeClock, SeededEntropy},
    request::{JobPatch, NewJob},
    testkit::{
        FnPolicy,
        policies::{each, hold, run},
    },
};

use crate::cases::harness::{Harness, demand, with};

const TENANTS: usize = 200;

/// A limited queue whose tenants take turns, with a job of each tenant `after` this time.
async fn harness(after: impl Fn(usize) -> Duration) -> (Harness, Arc<Metered<MemoryTable>>) {
    let (table, clock) = (Metered::new(MemoryTable::new()), Arc::new(FakeClock::default()));
    let entropy = Arc::new(SeededEntropy::new(3));
    let store = DynamoStore::new(Arc::clone(&table) as _, Arc::clone(&clock) as _, entropy);
    let mut p = Harness::at(Arc::new(store), clock);
    p.set_queue(QueueConfig {
        concurrency: Some(5),
        partition_by: Some("tenant".into()),
        ..QueueConfig::default()
    })
    .await;
    p.set_type("work", TypeConfig::default()).await;
    p.settle().await;
    let now = p.now();
    p.enqueue_many((0..TENANTS).map(|tenant| of_tenant(tenant, now + after(tenant)))).await;
    (p, table)
}

fn of_tenant(tenant: usize, run_at: Timestamp) -> NewJob {
    NewJob { run_at: Some(run_at), ..with("tenant", &format!("t{tenant:03}")) }
}

/// A tick, and the units that it read of entries and of everything.
async fn tick(p: &mut Harness, table: &Metered<MemoryTable>) -> (TickOutcome, f64, f64) {
    table.take_partitions();
    let demands = vec![demand(&["work"], 3, Dispatch::Claim)];
    let outcome = p.tick(TickInput { demands, queue_changed: true, ..TickInput::default() }).await;
    let read = table.take_partitions();
    let entries = read.iter().filter(|(key, _)| key.starts_with("B#"));
    let entries = entries.map(|(_, bill)| bill.reads).sum();
    (outcome, entries, read.values().map(|bill| bill.reads).sum())
}

#[tokio::test]
async fn tenants_of_later_hours_cost_a_tick_nothing() {
    let hours = |tenant| Duration::from_hours(2 + tenant as u64 % 20);
    let (mut p, table) = harness(hours).await;
    for _ in 0..3 {
        let (outcome, entries, all) = tick(&mut p, &table).await;
        assert!(outcome.claimed.is_empty());
        let next_at = outcome.next_start_at.expect("jobs are due later");
        assert!(p.now() < next_at && next_at <= p.now() + Duration::from_hours(2), "{next_at}");
        assert!(entries < 1.0 && all <= 10.0, "{entries} units of entries, {all} of everything");
        p.wait(1);
    }
    // Those that are due are found among them.
    let due = p.enqueue(of_tenant(77, p.now())).await;
    let (outcome, entries, _) = tick(&mut p, &table).await;
    assert!(outcome.claimed.iter().map(|claimed| &claimed.job.id).eq([&due.id]));
    assert!(entries <= 6.0, "{entries} units of entries");
}

#[tokio::test]
async fn tenants_of_this_hour_cost_a_tick_one_unit_each() {
    let minutes = |tenant| Duration::from_secs(1200 + tenant as u64);
    let (mut p, table) = harness(minutes).await;
    let first = p.now() + minutes(0);
    for _ in 0..3 {
        let (outcome, entries, _) = tick(&mut p, &table).await;
        assert!(outcome.claimed.is_empty() && !outcome.again);
        assert_eq!(outcome.next_start_at, Some(first));
        assert!(entries <= TENANTS as f64, "{entries} units of entries");
        p.wait(1);
    }
    p.wait(1300);
    let mut started = 0;
    for _ in 0..3 {
        let (outcome, ..) = tick(&mut p, &table).await;
        started += outcome.claimed.len();
    }
    assert_eq!(started, 5, "as many as the limit lets start");
}

#[tokio::test]
async fn groups_of_what_waits_cost_a_tick_one_record() {
    let (p, table) = harness(|_| Duration::ZERO).await;
    let policy = FnPolicy::default().throttling(|_, call| {
        assert_eq!(call.waiting.groups["tenant"].len(), TENANTS);
        Ok(each(call, |_| hold("no")))
    });
    let mut p = p.with_policy(policy);
    let says = Description { waiting_by: vec!["tenant".into()], ..Description::default() };
    let config = QueueConfig { partition_by: Some("tenant".into()), ..QueueConfig::default() };
    p.throttled(says, QueueConfig { concurrency: Some(5), ..config }).await;
    let reads = |of: &str| {
        let read = table.take_partitions();
        let read = read.iter().filter(|(key, _)| key.starts_with(of));
        read.map(|(_, bill)| bill.reads).sum::<f64>()
    };
    reads("");
    let next_at = p.engine.count_waiting(Timestamp::MAX).await.unwrap().unwrap();
    // The bucket of each tenant, in a strongly consistent read of one unit.
    let counted = reads("B#");
    assert!((TENANTS as f64 - counted).abs() < 0.5, "{counted} units");
    assert!(next_at >= p.now() + Duration::from_secs(TENANTS as u64), "{next_at}");
    for (seconds, most) in [(11, 5.0), (1, 0.0), (11, 5.0)] {
        p.wait(seconds);
        let demands = vec![demand(&["work"], 3, Dispatch::Claim)];
        p.tick(TickInput { demands, queue_changed: true, ..TickInput::default() }).await;
        let record = reads("E#waiting");
        assert!(record <= most, "{record} units after {seconds} s");
    }
}

/// The jobs of a backlog.
struct Backlog {
    tenants: usize,
    jobs_of_each: usize,
    data_bytes: usize,
    /// Whether they wait for another time than that of their enqueue. Then they have index entries.
    moved: bool,
}

#[rstest]
#[case::few_tenants(Backlog { tenants: 3, jobs_of_each: 900, data_bytes: 10, moved: false })]
#[case::as_many_as_are_kept(Backlog { tenants: 1000, jobs_of_each: 1, data_bytes: 10, moved: false })]
#[case::more_than_are_kept(Backlog { tenants: 2500, jobs_of_each: 1, data_bytes: 10, moved: false })]
#[case::large_data(Backlog { tenants: 20, jobs_of_each: 20, data_bytes: 20_000, moved: false })]
#[case::moved_jobs(Backlog { tenants: 20, jobs_of_each: 20, data_bytes: 10, moved: true })]
#[tokio::test]
async fn a_count_pauses_a_second_for_each_unit_it_read(#[case] backlog: Backlog) {
    let (p, table) = harness(|_| Duration::from_hours(5)).await;
    let p = p.with_policy(FnPolicy::default().throttling(|_, call| Ok(each(call, |_| run()))));
    let says = Description { waiting_by: vec!["tenant".into()], ..Description::default() };
    let config = QueueConfig { partition_by: Some("tenant".into()), ..QueueConfig::default() };
    p.throttled(says, QueueConfig { concurrency: Some(5), ..config }).await;
    let now = p.now();
    let jobs = (0..backlog.tenants * backlog.jobs_of_each).map(|n| {
        let after = Duration::from_mins(if backlog.moved { 90 } else { 0 });
        let data = Payload::json(format!("\"{}\"", "x".repeat(backlog.data_bytes)));
        NewJob { data, ..of_tenant(n % backlog.tenants, now + after) }
    });
    for jobs in jobs.collect::<Vec<_>>().chunks(1000) {
        for job in p.enqueue_many(jobs.to_vec()).await.iter().filter(|_| backlog.moved) {
            let patch = JobPatch { run_at: Some(now), ..JobPatch::default() };
            p.engine.patch(&job.id, None, patch, None).await.unwrap();
        }
    }
    p.wait(1);
    // The first pass knows no partition, the second one those of the first.
    for pass in 1..=2 {
        table.take_partitions();
        let next_at = p.engine.count_waiting(Timestamp::MAX).await.unwrap().unwrap();
        let read = table.take_partitions();
        let of_pass = read.iter().filter(|(key, _)| !key.starts_with("E#waiting"));
        let units: f64 = of_pass.map(|(_, bill)| bill.reads).sum();
        let pause = next_at.since(p.now()).as_secs_f64();
        assert!(units >= 3.0, "{units} units in pass {pass}");
        assert!(units <= pause && pause <= units + 1.0, "{units} units, {pause} s in pass {pass}");
        p.clock.set(next_at);
    }
}
