//! The requests and units of one engine: of a batch, of a tick and of a backlog. The meter is
//! compared with the emulator's counts.

use std::time::Duration;

use tidegate_backends::dynamodb::memory::MemoryTable;
use tidegate_core::{
    job::{Job, Payload},
    queue::{QueueConfig, config::OrderKind},
};
use tidegate_engine::{Dispatch, request::NewJob, testkit::builders::name};

use super::{Shop, TYPE, report, settle};
use crate::dynamodb::emulator::EmulatedTable;

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
        shop.engine.ports().store.keep_counts(tidegate_core::time::Timestamp::MAX).await.unwrap();
        shop.engine.ports().store.depth(None).await.unwrap();
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
